#include "device/metal/pipelines.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include <unistd.h>

#include "device/device.h"
#include "device/metal/objc.h"

namespace lily::metal {

Archive::Archive(id<MTLDevice> device, std::string path) : device_(device), path_(std::move(path)) {
  if (path_.empty()) return;
  MTLBinaryArchiveDescriptor* descriptor = [MTLBinaryArchiveDescriptor new];
  std::error_code ignored;
  if (std::filesystem::exists(path_, ignored)) {
    descriptor.url = [NSURL fileURLWithPath:ns_string(path_)];
    archive_ = [device_ newBinaryArchiveWithDescriptor:descriptor error:nil];
    descriptor.url = nil;
  }
  if (!archive_) archive_ = [device_ newBinaryArchiveWithDescriptor:descriptor error:nil];
}

Pipeline Archive::make(MTLComputePipelineDescriptor* descriptor, const std::string& kernel) {
  id<MTLComputePipelineState> state = nil;
  if (archive_) {
    const std::shared_lock lock(archive_mutex_);
    descriptor.binaryArchives = @[ archive_ ];
    state = [device_ newComputePipelineStateWithDescriptor:descriptor
                                                   options:MTLPipelineOptionFailOnBinaryArchiveMiss
                                                reflection:nil
                                                     error:nil];
    descriptor.binaryArchives = nil;
  }
  if (state) return {state};
  NSError* error = nil;
  state = [device_ newComputePipelineStateWithDescriptor:descriptor options:MTLPipelineOptionNone reflection:nil error:&error];
  if (!state) throw DeviceError("metal", kernel, "pipeline", "Metal makes no pipeline of " + kernel + ": " + text_of(error));
  if (archive_) {
    const std::lock_guard lock(missing_mutex_);
    missing_.push_back(descriptor);
  }
  return {state};
}

void Archive::save() {
  std::vector<MTLComputePipelineDescriptor*> missing;
  {
    const std::lock_guard lock(missing_mutex_);
    missing.swap(missing_);
  }
  if (!archive_ || missing.empty()) return;
  const std::lock_guard lock(archive_mutex_);
  for (MTLComputePipelineDescriptor* descriptor : missing)
    [archive_ addComputePipelineFunctionsWithDescriptor:descriptor error:nil];
  namespace fs = std::filesystem;
  // A cache that cannot be written costs time at the next start and nothing else.
  std::error_code error;
  fs::create_directories(fs::path(path_).parent_path(), error);
  const std::string unfinished = path_ + "." + std::to_string(getpid());
  if ([archive_ serializeToURL:[NSURL fileURLWithPath:ns_string(unfinished)] error:nil]) fs::rename(unfinished, path_, error);
  fs::remove(unfinished, error);
}

Pipelines::Pipelines(id<MTLDevice> device, std::string archive_path)
    : device_(device), archive_(device, std::move(archive_path)) {}

Pipelines::~Pipelines() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    tasks_.clear();
  }
  changed_.notify_all();
  for (std::thread& worker : workers_) worker.join();
  const AutoreleasePool pool;
  archive_.save();
}

std::shared_future<Pipeline> Pipelines::build(PipelineSource source) {
  auto task = std::make_shared<std::packaged_task<Pipeline()>>([this, source = std::move(source)] { return compile(source); });
  give([task] { (*task)(); });
  return task->get_future().share();
}

void Pipelines::save() {
  give([this] { archive_.save(); });
}

void Pipelines::give(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    if (workers_.size() < std::max(1u, std::thread::hardware_concurrency())) workers_.emplace_back([this] { work(); });
  }
  changed_.notify_one();
}

void Pipelines::work() {
  for (;;) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
      if (stop_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    const AutoreleasePool pool;
    task();
  }
}

Pipeline Pipelines::compile(const PipelineSource& source) {
  MTLCompileOptions* options = [MTLCompileOptions new];
  // Fast mode, which is Metal's default, knows no NaN or infinity and reorders sums: no reference could be met.
  options.mathMode = MTLMathModeSafe;
  options.languageVersion = MTLLanguageVersion3_2;
  if (@available(macOS 26.0, *)) options.languageVersion = MTLLanguageVersion4_0;
  NSError* error = nil;
  id<MTLLibrary> library = [device_ newLibraryWithSource:ns_string(source.source) options:options error:&error];
  if (!library)
    throw DeviceError("metal", source.kernel, "compile", "Metal refuses the source of " + source.kernel + ": " + text_of(error));
  MTLComputePipelineDescriptor* descriptor = [MTLComputePipelineDescriptor new];
  descriptor.label = ns_string(source.kernel);
  descriptor.computeFunction = [library newFunctionWithName:ns_string(source.function)];
  if (!descriptor.computeFunction)
    throw DeviceError("metal", source.kernel, "compile",
                      "the source of " + source.kernel + " has no kernel function " + source.function);
  return archive_.make(descriptor, source.kernel);
}

}  // namespace lily::metal
