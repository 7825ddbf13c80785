// Jobs of levels, as the CPU device runs them, by more threads than the machine has cores: each tile reads what all tiles of the
// level before wrote. Made for -fsanitize=thread: everything but the counters is plain memory, freed as soon as a job has ended.
#include "device/cpu/thread_pool.h"

#include <chrono>
#include <cstdio>
#include <memory>
#include <numeric>
#include <vector>

namespace {

struct Level {
  explicit Level(std::uint32_t tiles) : sums(tiles) {}

  std::vector<std::uint64_t> sums;
  std::atomic<std::uint32_t> next_tile{0}, tiles_done{0};
};

struct Job {
  std::vector<std::unique_ptr<Level>> levels;

  void run() {
    for (std::size_t i = 0; i < levels.size(); ++i) {
      Level& level = *levels[i];
      const std::size_t tiles = level.sums.size();
      std::uint32_t done = 0;
      for (std::uint32_t tile; (tile = level.next_tile.fetch_add(1, std::memory_order_relaxed)) < tiles; ++done) {
        const auto& before = i ? levels[i - 1]->sums : level.sums;
        level.sums[tile] = tile + (i ? std::accumulate(before.begin(), before.end(), std::uint64_t{}) : 0);
      }
      level.tiles_done.fetch_add(done, std::memory_order_release);
      lily::cpu::spin_until([&] { return level.tiles_done.load(std::memory_order_acquire) == tiles; });
    }
  }
};

// What the last level's first tile has to hold.
std::uint64_t expected(const Job& job) {
  std::uint64_t before = 0;
  for (std::size_t i = 0; i + 1 < job.levels.size(); ++i) {
    const std::uint64_t tiles = job.levels[i]->sums.size();
    before = tiles * before + tiles * (tiles - 1) / 2;
  }
  return before;
}

}  // namespace

int main() {
  int failed = 0;
  for (const std::uint32_t threads : {1u, 2u, 5u}) {
    lily::cpu::ThreadPool pool(threads);
    for (std::uint32_t round = 0; round < 2000; ++round) {
      auto job = std::make_unique<Job>();
      for (std::uint32_t i = 0; i <= round % 8; ++i) job->levels.push_back(std::make_unique<Level>((round + i) % 7 + 1));
      pool.run([](void* context, std::uint32_t) { static_cast<Job*>(context)->run(); }, job.get());
      failed += job->levels.back()->sums[0] != expected(*job);
      if (round % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // workers go to sleep
    }
  }
  std::printf("%d wrong\n", failed);
  return failed != 0;
}
