// Threads that run one job together: the caller is worker 0. Made for jobs of microseconds: workers spin before they sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace lily::cpu {

class ThreadPool {
 public:
  using Job = void (*)(void* context, std::uint32_t worker);

  // Throws DeviceError when the system refuses a thread.
  explicit ThreadPool(std::uint32_t threads);
  ~ThreadPool();

  std::uint32_t size() const { return static_cast<std::uint32_t>(workers_.size()) + 1; }
  // Runs job(context, w) for every worker w and returns when all are done. One caller at a time.
  void run(Job job, void* context);
  // Waits until every worker of the running job has arrived. All must call it equally often.
  void barrier();

 private:
  void stop();
  void work(std::uint32_t worker);

  Job job_ = nullptr;
  void* context_ = nullptr;
  std::vector<std::thread> workers_;
  alignas(64) std::atomic<std::uint32_t> round_{0};     // changes when a job starts, and once more for the end
  alignas(64) std::atomic<std::uint32_t> arrived_{0};   // at the barrier
  alignas(64) std::atomic<std::uint32_t> barriers_{0};  // passed
  std::atomic<bool> stop_{false};
};

}  // namespace lily::cpu
