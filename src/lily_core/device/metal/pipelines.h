// Pipelines compiled from source on threads of their own, and an archive of machine code that spares the next start.
#pragma once

#import <Metal/Metal.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <shared_mutex>
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

  // From the archive, else compiled. Throws DeviceError when Metal cannot make it.
  Pipeline make(MTLComputePipelineDescriptor* descriptor, const std::string& kernel);
  // Adds what make() compiled since the last call, and writes the file.
  void save();

 private:
  id<MTLDevice> device_;
  std::string path_;
  id<MTLBinaryArchive> archive_;
  std::shared_mutex archive_mutex_;  // shared by those who only look up
  std::mutex missing_mutex_;
  std::vector<MTLComputePipelineDescriptor*> missing_;
};

class Pipelines {
 public:
  Pipelines(id<MTLDevice> device, std::string archive_path);
  ~Pipelines();
  Pipelines(const Pipelines&) = delete;
  Pipelines& operator=(const Pipelines&) = delete;

  // Starts to compile. The future holds a DeviceError when the source or the pipeline is refused.
  std::shared_future<Pipeline> build(PipelineSource source);
  // Keeps what is compiled by then for the next start, in the background.
  void save();

 private:
  void give(std::function<void()> task);
  void work();
  Pipeline compile(const PipelineSource& source);

  id<MTLDevice> device_;
  Archive archive_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace lily::metal
