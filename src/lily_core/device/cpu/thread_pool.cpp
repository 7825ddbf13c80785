#include "device/cpu/thread_pool.h"

#include <chrono>
#include <string>
#include <system_error>

#include "device/device.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lily::cpu {
namespace {

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Long enough to bridge the host's work between two tokens, short enough not to heat an idle machine.
constexpr auto kSpinTime = std::chrono::microseconds(200);
// A spinning barrier must not starve the thread that it waits for when the machine is shared.
constexpr int kSpinsBeforeYield = 4096;

}  // namespace

ThreadPool::ThreadPool(std::uint32_t threads) {
  try {
    for (std::uint32_t worker = 1; worker < threads; ++worker) workers_.emplace_back([this, worker] { work(worker); });
  } catch (const std::system_error& error) {
    const std::uint32_t made = size();
    stop();
    throw DeviceError("cpu", "", "threads",
                      "the system refuses thread " + std::to_string(made + 1) + " of " + std::to_string(threads) + " (" +
                          error.what() + "); ask for at most " + std::to_string(made));
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stop_.store(true, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(Job job, void* context) {
  if (workers_.empty()) return job(context, 0);
  job_ = job;
  context_ = context;
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  job(context, 0);
  barrier();
}

void ThreadPool::barrier() {
  if (workers_.empty()) return;
  const std::uint32_t passed = barriers_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size()) {
    arrived_.store(0, std::memory_order_relaxed);
    barriers_.store(passed + 1, std::memory_order_release);
    return;
  }
  for (int spins = 0; barriers_.load(std::memory_order_acquire) == passed; ++spins) {
    if (spins < kSpinsBeforeYield) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::work(std::uint32_t worker) {
  std::uint32_t seen = 0;
  for (;;) {
    const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
    int spins = 0;
    while (round_.load(std::memory_order_acquire) == seen) {
      relax();
      if (++spins % 64 == 0 && std::chrono::steady_clock::now() > deadline) round_.wait(seen, std::memory_order_acquire);
    }
    ++seen;
    if (stop_.load(std::memory_order_relaxed)) return;
    job_(context_, worker);
    barrier();
  }
}

}  // namespace lily::cpu
