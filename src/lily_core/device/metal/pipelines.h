// Pipelines compiled from source on threads of their own, and an archive of machine code that spares the next start.
#pragma once

#import <Metal/Metal.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace lily::metal {

struct Pipeline {
  id<MTLComputePipelineState> state;
};

struct PipelineSource {
  std::string kernel;  // for messages
  std::string source;
  std::string function;
};

// Machine code of pipelines in a file. One that is missing or cannot be read starts empty.
class Archive {
 public:
  Archive(id<MTLDevice> device, std::string path);  // an empty path: nothing is kept

  // The archive holds the pipeline afterwards. Throws DeviceError when Metal cannot make one.
  Pipeline make(MTLComputePipelineDescriptor* descriptor, const std::string& kernel);
  // Writes the file when it lacks something.
  void save();

 private:
  id<MTLDevice> device_;
  std::string path_;
  std::mutex mutex_;
  id<MTLBinaryArchive> archive_;
  bool changed_ = false;
};

class Pipelines {
 public:
  Pipelines(id<MTLDevice> device, std::string archive_path);
  ~Pipelines();
  Pipelines(const Pipelines&) = delete;
  Pipelines& operator=(const Pipelines&) = delete;

  // Starts to compile. The future holds a DeviceError when the source or the pipeline is refused.
  std::shared_future<Pipeline> build(PipelineSource source);
  // Keeps what was compiled since the last call for the next start.
  void save() { archive_.save(); }

 private:
  void work();
  Pipeline compile(const PipelineSource& source);

  id<MTLDevice> device_;
  Archive archive_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<Pipeline()>> tasks_;
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace lily::metal
