// Threads that work on one job together: the caller is worker 0. Made for jobs of microseconds: workers spin before they sleep.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lily::cpu {

// How far apart memory lies of which each thread writes its own: Apple silicon has cache lines of so many bytes, x86 fetches its
// lines of 64 in pairs.
inline constexpr std::size_t kCacheLineBytes = 128;

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until ready(). On a shared machine the thread that is waited for may need this one's core: after a while it gets it.
template <typename Ready>
void spin_until(Ready ready) {
  constexpr int kSpinsBeforeYield = 4096;
  for (int spins = 0; !ready(); ++spins) {
    if (spins < kSpinsBeforeYield) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
}

class ThreadPool {
 public:
  using Job = void (*)(void* context, std::uint32_t worker);

  // On a machine of several NUMA nodes each thread but the caller's is kept on one node (processors_of_threads). Throws
  // DeviceError when the system refuses a thread.
  explicit ThreadPool(std::uint32_t threads);
  ~ThreadPool();

  std::uint32_t size() const { return static_cast<std::uint32_t>(workers_.size()) + 1; }
  // Runs job(context, 0) here; until that returns the other workers call the job too, once, more often or, where the system does
  // not let them run, never. Returns when none is in it. One caller at a time.
  void run(Job job, void* context);

 private:
  void stop();
  void work(std::uint32_t worker);

  Job job_ = nullptr;
  void* context_ = nullptr;
  std::vector<std::thread> workers_;
  alignas(kCacheLineBytes) std::atomic<std::uint32_t> round_{0};  // changes when a job starts, and once more for the end
  std::atomic<bool> is_open_{false};                              // whether workers may enter the job
  alignas(kCacheLineBytes) std::atomic<std::uint32_t> inside_{0};  // workers that may be in it
  std::atomic<bool> stop_{false};
};

}  // namespace lily::cpu
