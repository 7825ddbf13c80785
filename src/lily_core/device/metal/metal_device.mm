#include "device/metal/metal_device.h"

#import <Metal/Metal.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "device/gpu.h"
#include "device/metal/command_queue.h"
#include "device/metal/debug_switches.h"
#include "device/metal/metal_buffer.h"
#include "device/metal/matrix_form.h"
#include "device/metal/metal_executable.h"
#include "device/metal/metal_kernel.h"
#include "device/metal/objc.h"
#include "device/metal/shader_source.h"
#include "device/metal/time_budget.h"
#include "device/metal/weight_windows.h"
#include "device/prepare.h"

namespace lily::metal {
namespace {

// Machine code depends on the shaders, the sizes compiled into them, the GPU and the system.
std::string archive_path(const ModelConstants& model, id<MTLDevice> device) {
#ifdef __APPLE__
  constexpr const char* kCaches = "/Library/Caches";
#else
  constexpr const char* kCaches = "/.cache";
#endif
  const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  if (!(cache && *cache) && !home) return "";
  const std::string folder = (cache && *cache ? std::string(cache) : home + std::string(kCaches)) + "/lily/";
  utsname system = {};
  uname(&system);
  std::string key = text_of(device.name) + "\n" + system.release + "\n" + system.version;
  key.append(reinterpret_cast<const char*>(&model), sizeof model);
  std::uint64_t digest = shaders_digest();
  for (const char byte : key) digest = (digest ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
  char name[48];
  std::snprintf(name, sizeof name, "metal-%016llx.archive", static_cast<unsigned long long>(digest));
  return folder + name;
}

id<MTLDevice> system_device() {
  id<MTLDevice> device = MTLCreateSystemDefaultDevice();
  if (!device) throw DeviceError("metal", "", "unavailable", "this machine has no Metal device");
  if (![device supportsFamily:MTLGPUFamilyApple7] || !device.hasUnifiedMemory)
    throw DeviceError("metal", "", "unavailable",
                      text_of(device.name) + " is not supported: lily needs Apple silicon (M1 or newer)");
  return device;
}

bool uses_metal4(const DebugSwitches& debug, id<MTLDevice> device) {
  if (@available(macOS 26.0, *)) return !debug.metal3 && [device supportsFamily:MTLGPUFamilyMetal4];
  return false;
}

// Every kernel with every format of its weights.
std::vector<std::string> all_kernel_names() {
  std::vector<std::string> names;
  for (const Grid& grid : grids()) {
    std::vector<std::string> stems{std::string(grid.op)};
    for (std::uint32_t weight = 0; weight < grid.weights; ++weight) {
      std::vector<std::string> longer;
      for (const std::string& stem : stems)
        for (const char* format : {"_q4g64", "_q4g64w", "_q8g64", "_q8g64w"}) longer.push_back(stem + format);
      stems = std::move(longer);
    }
    for (const std::string& stem : stems) names.push_back(stem + (grid.is_tile ? "_f16_tile" : "_f16"));
  }
  std::ranges::sort(names);
  return names;
}

std::string words(std::uint64_t bytes) { return std::to_string(bytes) + " bytes"; }

class MetalDevice final : public Device {
 public:
  MetalDevice(const ModelConstants& model, const DebugSwitches& debug, FormChoice form)
      : model_(model),
        debug_(debug),
        form_(std::move(form)),
        device_(system_device()),
        residency_(std::make_shared<Residency>(device_)),
        windows_(device_, residency_, progress_),
        pipelines_(device_, archive_path(model, device_)) {
    if (@available(macOS 26.0, *)) {
      if (uses_metal4(debug_, device_)) queue_ = make_metal4_queue(device_, residency_->set(), progress_);
    }
    is_metal4_ = queue_ != nullptr;
    if (!queue_) queue_ = make_metal3_queue(device_, residency_->set(), progress_);
  }
  ~MetalDevice() override {
    const AutoreleasePool pool;
    progress_->wait_for_room(0, debug_.patience_seconds);
    queue_.reset();
  }

  std::string_view name() const override { return "metal"; }
  std::string description() const override {
    const AutoreleasePool pool;
    return text_of(device_.name) + (is_metal4_ ? ", Metal 4, " : ", Metal 3, ") + name_of(form_.form);
  }
  std::string notes() const override { return form_.reason; }

  // Both kinds are shared storage: memory is unified, so private storage would only add copies.
  std::unique_ptr<Buffer> allocate(std::string name, std::uint64_t length, Memory memory) override {
    const AutoreleasePool pool;
    auto allocation = allocate_memory(name, length);
    if (memory == Memory::kShared) std::memset(allocation->contents(), 0, length);
    return std::make_unique<MetalBuffer>(std::move(name), length, std::move(allocation), 0);
  }
  void read(const Range& from, void* to) override { std::memcpy(to, settled_address(from), from.length); }
  void write(const Range& to, const void* from) override { std::memcpy(settled_address(to), from, to.length); }
  void copy(const Range& to, const Range& from) override {
    std::memmove(settled_address(to), settled_address(from), to.length);
  }
  void fill(const Range& range, std::uint8_t value) override { std::memset(settled_address(range), value, range.length); }

  PreparedWeight prepare(const HostWeight& weight) override {
    const AutoreleasePool pool;
    return prepare_weight(
        weight, [this](const TensorSource& tensor) { return windows_.map(tensor); },
        [this](std::string buffer_name, std::uint64_t length) {
          return allocate(std::move(buffer_name), length, Memory::kPrivate);
        });
  }

  const Kernel& kernel(std::string_view name) override {
    const std::string key(name);
    if (const auto found = kernels_.find(key); found != kernels_.end()) return *found->second;
    const AutoreleasePool pool;
    if (!std::ranges::binary_search(kernel_names_, key))
      throw DeviceError("metal", key, "unknown_kernel", "the metal device has no kernel " + key);
    const KernelName parts(key);
    const Contract* contract = find_contract(key);
    if (!contract) throw std::logic_error("kernel " + key + " has no contract");
    auto pipeline = pipelines_.build({key, shader_source(parts, model_, form_.form), function_name(parts)});
    auto kernel = std::make_unique<MetalKernel>(key, *contract, *find_grid(parts.op, parts.is_tile), std::move(pipeline));
    return *kernels_.emplace(key, std::move(kernel)).first->second;
  }

  std::vector<std::string_view> kernel_names() const override {
    return {kernel_names_.begin(), kernel_names_.end()};
  }

  std::unique_ptr<Executable> compile(Program& program) override {
    const AutoreleasePool pool;
    auto executable = std::make_unique<MetalExecutable>(
        program, model_, [this](std::uint64_t length) { return allocate_memory("arguments", length); });
    for (PreparedSegment& segment : executable->segments()) queue_->prepare(segment);
    pipelines_.save();
    return executable;
  }

  Ticket commit(Executable& executable, std::uint32_t index) override {
    const AutoreleasePool pool;
    check_alive();
    const PreparedSegment& segment = static_cast<MetalExecutable&>(executable).segments().at(index);
    residency_->commit();
    for (const Cut& part : cut(segment.costs, progress_->pace())) submit(segment, part);
    return last_ticket_;
  }

  void wait(Ticket ticket) override {
    const AutoreleasePool pool;
    check_alive();
    if (!progress_->wait(ticket, debug_.patience_seconds)) lose_patience();
    const auto failed = progress_->take_failure(ticket);
    if (!failed) return;
    const auto& [submission, failure] = *failed;
    is_lost_ = failure.is_fatal;
    const std::string kernel(submission.num_kernels == 1 ? submission.first_kernel : "");
    throw DeviceError("metal", kernel, failure.code, "Metal failed to run " + submission.content() + ": " + failure.message,
                      failure.is_fatal);
  }

 private:
  std::shared_ptr<Allocation> allocate_memory(const std::string& name, std::uint64_t length) {
    length = std::max<std::uint64_t>(length, 16);  // Metal knows no empty buffer
    const std::uint64_t longest = device_.maxBufferLength;
    if (length > longest)
      throw DeviceError("metal", "", "out_of_memory",
                        name + " needs " + words(length) + " in one piece; this Mac allows " + words(longest) +
                            ": lower max_context or memory_limit");
    id<MTLBuffer> buffer = [device_ newBufferWithLength:length
                                                options:MTLResourceStorageModeShared | MTLResourceHazardTrackingModeUntracked];
    if (!buffer) throw DeviceError("metal", "", "out_of_memory", "cannot allocate " + words(length) + " for " + name);
    buffer.label = ns_string(name);
    return std::make_shared<Allocation>(buffer, residency_, progress_);
  }

  // As one command buffer, without what has nothing to do.
  void submit(const PreparedSegment& segment, const Cut& part) {
    if (!progress_->wait_for_room(kMaxUnfinished - 1, debug_.patience_seconds)) lose_patience();
    const Ticket ticket = last_ticket_ + 1;
    queue_->begin(ticket);
    const PreparedDispatch *first = nullptr, *last = nullptr;
    std::size_t count = 0;
    for (std::size_t i = part.begin; i < part.end; ++i) {
      if (segment.costs[i].is_idle()) continue;
      const PreparedDispatch& next = segment.dispatches[i];
      const bool follows = last && (debug_.serial || next.level != last->level);
      if (follows) queue_->barrier();
      queue_->dispatch(segment, i);
      last = &next;
      if (!first) first = last;
      ++count;
    }
    progress_->submitted({.ticket = ticket,
                          .estimated_seconds = part.seconds,
                          .num_kernels = count,
                          .first_kernel = first ? first->kernel->name() : "",
                          .last_kernel = last ? last->kernel->name() : ""});
    last_ticket_ = ticket;
    queue_->submit(ticket);
  }

  // Host access to memory waits until no work is left that might use it.
  std::byte* settled_address(const Range& range) {
    if (!progress_->wait_for_room(0, debug_.patience_seconds)) lose_patience();
    return static_cast<std::byte*>(range.buffer->contents()) + range.offset;
  }

  void check_alive() const {
    if (is_lost_) throw DeviceError("metal", "", "lost", "the metal device failed before; make a new engine", true);
  }

  [[noreturn]] void lose_patience() {
    is_lost_ = true;
    throw DeviceError("metal", "", "timeout",
                      "the GPU has finished nothing for " + std::to_string(static_cast<int>(debug_.patience_seconds)) +
                          " seconds; it still runs " + progress_->unfinished(),
                      true);
  }

  const ModelConstants model_;
  const DebugSwitches debug_;
  const FormChoice form_;
  id<MTLDevice> device_;
  std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();
  std::shared_ptr<Residency> residency_;
  WeightWindows windows_;
  Pipelines pipelines_;
  const std::vector<std::string> kernel_names_ = all_kernel_names();
  std::unordered_map<std::string, std::unique_ptr<MetalKernel>> kernels_;
  std::unique_ptr<CommandQueue> queue_;
  bool is_metal4_ = false;
  bool is_lost_ = false;
  Ticket last_ticket_ = 0;
};

FormChoice form_choice(const DebugSwitches& debug) {
  const bool has_tensors = uses_metal4(debug, system_device());
  if (debug.form == MatrixForm::kTensor) {
    if (!has_tensors) throw DeviceError("metal", "", "debug", "the debug switch tensor needs Metal 4");
    return {MatrixForm::kTensor, "LILY_METAL_DEBUG asks for tensor operations"};
  }
  if (debug.form == MatrixForm::kSimdgroup) return {MatrixForm::kSimdgroup, "LILY_METAL_DEBUG asks for simdgroup matrices"};
  if (!has_tensors) return {MatrixForm::kSimdgroup, "tensor operations need Metal 4"};
  // Of the machine, not of a model: once in a process.
  static const FormChoice choice = choose_form([](const ModelConstants& model, MatrixForm form) {
    return std::make_unique<MetalDevice>(model, DebugSwitches(""), FormChoice{form, ""});
  });
  return choice;
}

}  // namespace

Precision precision_of(std::string_view dtype) {
  if (dtype == "float16" || dtype == "auto")
    return {.dtype = "float16", .suffix = "_f16", .activation_bytes = 2, .kv_bytes = 2};
  throw std::invalid_argument("dtype \"" + std::string(dtype) +
                              "\" is not supported by the metal device; use \"float16\" or \"auto\"");
}

DeviceTraits traits() {
  const AutoreleasePool pool;
  return gpu_traits(system_device().recommendedMaxWorkingSetSize);
}

std::unique_ptr<Device> make_metal_device(const ModelConstants& model, std::string_view debug) {
  const AutoreleasePool pool;
  const DebugSwitches switches(debug);
  return std::make_unique<MetalDevice>(model, switches, form_choice(switches));
}

}  // namespace lily::metal
