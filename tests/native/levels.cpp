// Jobs of levels, as the CPU device runs them, by more threads than the machine has cores: each tile reads what all tiles of the
// level before wrote. Made for -fsanitize=thread: everything but the counters is plain memory, freed as soon as a job has ended.
#include <chrono>
#include <cstdio>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "device/cpu/thread_pool.h"
#include "device/cpu/tile_scheduler.h"

namespace {

using lily::cpu::ThreadPool;
using lily::cpu::TileScheduler;

struct Job {
  TileScheduler& scheduler;
  std::vector<std::vector<std::uint64_t>> levels = {};  // a number for each tile

  void run(std::uint32_t worker) {
    const std::vector<std::uint64_t> nothing;
    const std::vector<std::uint64_t>* before = &nothing;
    for (std::uint32_t level = 0; level < levels.size(); ++level) {
      auto& numbers = levels[level];
      const auto run_tiles = [&](std::uint32_t begin, std::uint32_t end) {
        for (std::uint32_t tile = begin; tile < end; ++tile)
          numbers[tile] += tile + 1 + std::accumulate(before->begin(), before->end(), std::uint64_t{});
      };
      scheduler.run_level(worker, level, static_cast<std::uint32_t>(numbers.size()), run_tiles);
      before = &numbers;
    }
  }
};

// Whether each tile of each level was run once, when the level before had been.
bool is_right(const Job& job) {
  std::uint64_t sum = 0;
  for (const auto& numbers : job.levels) {
    const std::uint64_t before = sum;
    sum = 0;
    for (std::size_t tile = 0; tile < numbers.size(); ++tile) {
      if (numbers[tile] != before + tile + 1) return false;
      sum += numbers[tile];
    }
  }
  return true;
}

}  // namespace

int main() {
  int failed = 0;
  for (const std::uint32_t threads : {1u, 2u, 5u, 19u}) {  // 19: three groups of shares
    ThreadPool pool(threads);
    TileScheduler scheduler(threads);
    for (std::uint32_t round = 0; round < 5000 / (threads + 1); ++round) {
      auto job = std::make_unique<Job>(scheduler);
      for (std::uint32_t i = 0; i <= round % 8; ++i) job->levels.emplace_back((round + 5 * i) % 23);  // none, few, many tiles
      scheduler.start(static_cast<std::uint32_t>(job->levels.size()));
      pool.run([](void* context, std::uint32_t worker) { static_cast<Job*>(context)->run(worker); }, job.get());
      failed += !is_right(*job);
      if (round % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // workers go to sleep
    }
  }
  std::printf("%d wrong\n", failed);
  return failed != 0;
}
