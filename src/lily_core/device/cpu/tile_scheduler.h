// How the threads of a job share the tiles of its levels, one level after the other. Each thread has a share of a level, always
// the same part of it, and takes ever smaller runs from it; one that has finished its own takes from the others'.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "device/cpu/thread_pool.h"

namespace lily::cpu {

class TileScheduler {
 public:
  static constexpr std::uint32_t kMaxTiles = 1 << 24;  // of a level

  explicit TileScheduler(std::uint32_t threads);

  // Before a job of `levels` levels: no thread is in another.
  void start(std::uint32_t levels);

  // Level `level` of the job, by thread `worker`: calls run(begin, end) for runs of its tiles, and returns when all `num_tiles`
  // have been run, by whichever thread. It waits for tiles, not for threads: one that the system has stopped holds up nobody,
  // unless it has tiles that it has not counted. A thread of the job calls this for level 0, 1, 2 and so on, or leaves the job
  // to the others.
  template <typename Run>
  void run_level(std::uint32_t worker, std::uint32_t level, std::uint32_t num_tiles, Run run) {
    if (num_tiles == 0) return;
    const std::uint64_t epoch = first_epoch_ + level;
    for (std::uint32_t i = 0; i < threads_ && !is_done(epoch); ++i) {
      const std::uint32_t owner = (worker + i) % threads_;
      std::uint32_t done = 0;
      for (Tiles tiles; (tiles = take(owner, epoch, num_tiles)).begin < tiles.end; done += tiles.end - tiles.begin)
        run(tiles.begin, tiles.end);
      if (done > 0) count(owner / kGroupSize, done, epoch, num_tiles);
    }
    spin_until([&] { return is_done(epoch); });
  }

 private:
  struct Tiles {
    std::uint32_t begin, end;
  };
  // On cache lines of their own: a thread that counts or takes must not disturb those that wait.
  struct alignas(kCacheLineBytes) Share {
    std::atomic<std::uint64_t> taken{0};  // epoch · kMaxTiles + tiles taken in it
  };
  struct alignas(kCacheLineBytes) Counter {
    std::atomic<std::uint32_t> done{0};
  };

  // Counters that all threads share cost each of them a transfer of the line: these are counted together first.
  static constexpr std::uint32_t kGroupSize = 8;

  bool is_done(std::uint64_t epoch) const {
    return static_cast<std::int64_t>(done_epoch_.load(std::memory_order_acquire) - epoch) >= 0;
  }
  // First tile of a share.
  std::uint32_t begin_of(std::uint32_t share, std::uint32_t num_tiles) const {
    return static_cast<std::uint32_t>(std::uint64_t{num_tiles} * share / threads_);
  }
  Tiles take(std::uint32_t share, std::uint64_t epoch, std::uint32_t num_tiles);
  void count(std::uint32_t group, std::uint32_t tiles, std::uint64_t epoch, std::uint32_t num_tiles);

  const std::uint32_t threads_;
  std::vector<Share> shares_;    // [threads]
  std::vector<Counter> groups_;  // tiles of kGroupSize shares
  Counter all_groups_;           // tiles of the groups that are complete
  // Every level has an epoch of its own, so nothing is set back between levels.
  std::uint64_t first_epoch_ = 1;  // of the job's level 0
  std::uint64_t next_epoch_ = 1;
  alignas(kCacheLineBytes) std::atomic<std::uint64_t> done_epoch_{0};
};

}  // namespace lily::cpu
