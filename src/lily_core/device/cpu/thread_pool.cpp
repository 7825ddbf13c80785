#include "device/cpu/thread_pool.h"

#include <chrono>
#include <string>
#include <system_error>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

#include "device/cpu/cores.h"
#include "device/device.h"

namespace lily::cpu {
namespace {

// Long enough to bridge the host's work between two tokens, short enough not to heat an idle machine.
constexpr auto kSpinTime = std::chrono::microseconds(200);

// A wish: where the system refuses it, the thread runs anywhere.
void keep_to([[maybe_unused]] const Processors& processors, [[maybe_unused]] std::thread& thread) {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const std::uint32_t processor : processors) CPU_SET(processor, &set);
  pthread_setaffinity_np(thread.native_handle(), sizeof set, &set);
#endif
}

}  // namespace

ThreadPool::ThreadPool(std::uint32_t threads) {
  const std::vector<Processors> processors = processors_of_threads(kSystemFolder, allowed_processors(), threads);
  try {
    for (std::uint32_t worker = 1; worker < threads; ++worker) {
      workers_.emplace_back([this, worker] { work(worker); });
      if (!processors.empty()) keep_to(processors[worker], workers_.back());
    }
  } catch (const std::system_error& error) {
    const std::uint32_t made = size();
    stop();
    throw DeviceError("cpu", "", "threads",
                      "the system refuses thread " + std::to_string(made + 1) + " of " + std::to_string(threads) + " (" +
                          error.what() + "); allow this process more threads, or set LILY_CPU_DEBUG=threads=" +
                          std::to_string(made));
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stop_.store(true, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

// A worker counts itself in before it looks whether the job is open, the caller closes the job before it looks whether a worker
// is inside: in the one order of these four that all threads see, one of both sees the other.
void ThreadPool::run(Job job, void* context) {
  if (workers_.empty()) return job(context, 0);
  job_ = job;
  context_ = context;
  is_open_.store(true);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  job(context, 0);
  is_open_.store(false);
  spin_until([this] { return inside_.load() == 0; });
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
    seen = round_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    inside_.fetch_add(1);
    if (is_open_.load()) job_(context_, worker);
    inside_.fetch_sub(1);
  }
}

}  // namespace lily::cpu
