#include "device/cpu/tile_scheduler.h"

#include <algorithm>

namespace lily::cpu {

TileScheduler::TileScheduler(std::uint32_t threads)
    : threads_(threads), shares_(threads), groups_((threads + kGroupSize - 1) / kGroupSize) {}

void TileScheduler::start(std::uint32_t levels) {
  first_epoch_ = next_epoch_;
  next_epoch_ += levels;
}

// A quarter of what is left of a share: no thread waits long for another one's run, or for the last.
TileScheduler::Tiles TileScheduler::take(std::uint32_t share, std::uint64_t epoch, std::uint32_t num_tiles) {
  const std::uint32_t begin = begin_of(share, num_tiles), size = begin_of(share + 1, num_tiles) - begin;
  const std::uint64_t start = epoch * kMaxTiles;
  std::atomic<std::uint64_t>& taken = shares_[share].taken;
  std::uint64_t before = taken.load(std::memory_order_relaxed);
  for (;;) {
    // Where the last tiles were taken in an earlier epoch, none of this one is; in a later one, all are.
    const auto position = static_cast<std::int64_t>(before - start);
    const auto first = static_cast<std::uint32_t>(std::clamp<std::int64_t>(position, 0, size));
    if (first == size) return {0, 0};
    const std::uint32_t end = first + (size - first + 3) / 4;
    if (taken.compare_exchange_weak(before, start + end, std::memory_order_relaxed)) return {begin + first, begin + end};
  }
}

// Who counts the last tile sets the counter back: nobody needs it before the next level.
void TileScheduler::count(std::uint32_t group, std::uint32_t tiles, std::uint64_t epoch, std::uint32_t num_tiles) {
  const auto completes = [](Counter& counter, std::uint32_t number, std::uint32_t all) {
    if (counter.done.fetch_add(number, std::memory_order_acq_rel) + number < all) return false;
    counter.done.store(0, std::memory_order_relaxed);
    return true;
  };
  const std::uint32_t first = group * kGroupSize, last = std::min(first + kGroupSize, threads_);
  const std::uint32_t of_group = begin_of(last, num_tiles) - begin_of(first, num_tiles);
  if (completes(groups_[group], tiles, of_group) && completes(all_groups_, of_group, num_tiles))
    done_epoch_.store(epoch, std::memory_order_release);
}

}  // namespace lily::cpu
