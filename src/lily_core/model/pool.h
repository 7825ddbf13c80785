// Numbers of slots or pages that are handed out and counted: one is free again when its last holder has let go.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace lily {

class Pool {
 public:
  // Hands out [first, count), the lowest numbers first.
  Pool(std::uint32_t first, std::uint32_t count);

  // A free number, held once by a timeline.
  std::optional<std::uint32_t> take();
  // One more timeline holds it, or one less.
  void hold(std::uint32_t number);
  void release(std::uint32_t number);
  // One more snapshot holds it, or one less.
  void keep(std::uint32_t number);
  void drop(std::uint32_t number);

  bool is_shared(std::uint32_t number) const { return holders_[number].timelines + holders_[number].snapshots > 1; }
  bool is_kept(std::uint32_t number) const { return holders_[number].snapshots > 0; }
  std::uint32_t num_timelines(std::uint32_t number) const { return holders_[number].timelines; }
  std::uint32_t size() const { return size_; }
  std::uint32_t num_free() const { return static_cast<std::uint32_t>(free_.size()); }
  // The free numbers as runs of (first, count), ascending.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> free_runs() const;
  std::uint32_t num_kept() const { return num_kept_; }                // held by snapshots
  std::uint32_t num_reclaimable() const { return num_reclaimable_; }  // held by snapshots only

 private:
  struct Holders {
    std::uint32_t timelines = 0;
    std::uint32_t snapshots = 0;
  };
  // Changes the holders of a number and keeps the totals and the free list in step.
  void change(std::uint32_t number, std::int32_t timelines, std::int32_t snapshots);

  std::uint32_t size_;
  std::vector<Holders> holders_;
  std::vector<std::uint32_t> free_;  // taken from the back
  std::uint32_t num_kept_ = 0;
  std::uint32_t num_reclaimable_ = 0;
};

}  // namespace lily
