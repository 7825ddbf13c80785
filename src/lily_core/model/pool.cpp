#include "model/pool.h"

#include <algorithm>

namespace lily {

Pool::Pool(std::uint32_t first, std::uint32_t count) : size_(count - first), holders_(count) {
  for (std::uint32_t number = count; number-- > first;) free_.push_back(number);
}

std::optional<std::uint32_t> Pool::take() {
  if (free_.empty()) return std::nullopt;
  const std::uint32_t number = free_.back();
  free_.pop_back();
  holders_[number].timelines = 1;
  return number;
}

void Pool::hold(std::uint32_t number) { change(number, 1, 0); }
void Pool::release(std::uint32_t number) { change(number, -1, 0); }
void Pool::keep(std::uint32_t number) { change(number, 0, 1); }
void Pool::drop(std::uint32_t number) { change(number, 0, -1); }

std::vector<std::pair<std::uint32_t, std::uint32_t>> Pool::free_runs() const {
  std::vector<std::uint32_t> numbers = free_;
  std::ranges::sort(numbers);
  std::vector<std::pair<std::uint32_t, std::uint32_t>> runs;
  for (const std::uint32_t number : numbers) {
    if (runs.empty() || runs.back().first + runs.back().second != number) runs.emplace_back(number, 0);
    ++runs.back().second;
  }
  return runs;
}

void Pool::change(std::uint32_t number, std::int32_t timelines, std::int32_t snapshots) {
  Holders& holders = holders_[number];
  const auto kept = [&] { return holders.snapshots > 0; };
  const auto reclaimable = [&] { return holders.snapshots > 0 && holders.timelines == 0; };
  num_kept_ -= kept();
  num_reclaimable_ -= reclaimable();
  holders.timelines += static_cast<std::uint32_t>(timelines);
  holders.snapshots += static_cast<std::uint32_t>(snapshots);
  num_kept_ += kept();
  num_reclaimable_ += reclaimable();
  if (holders.timelines + holders.snapshots == 0) free_.push_back(number);
}

}  // namespace lily
