#include "program/program.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <unordered_map>

namespace lily {
namespace {

struct Touch {
  std::uint64_t begin, end;
  std::uint32_t level;
};

// Ranges of one buffer that earlier dispatches of the segment read and wrote.
struct History {
  std::vector<Touch> reads, writes;
};

std::uint32_t last_level(const std::vector<Touch>& touches, const Range& range) {
  std::uint32_t level = 0;
  for (const Touch& touch : touches)
    if (touch.begin < range.offset + range.length && range.offset < touch.end) level = std::max(level, touch.level);
  return level;
}

// Level of a dispatch = one more than the last level that wrote what it touches, or read what it writes.
std::uint32_t derive_levels(std::vector<Dispatch>& dispatches) {
  std::unordered_map<const Buffer*, History> histories;
  std::uint32_t num_levels = 0;
  for (Dispatch& dispatch : dispatches) {
    const auto accesses = dispatch.kernel->accesses();
    std::uint32_t level = 0;
    for (std::size_t i = 0; i < dispatch.ranges.size(); ++i) {
      const Range& range = dispatch.ranges[i];
      const History& history = histories[range.buffer];
      level = std::max(level, last_level(history.writes, range));
      if (accesses[i] != Access::kRead) level = std::max(level, last_level(history.reads, range));
    }
    dispatch.level = level + 1;
    for (std::size_t i = 0; i < dispatch.ranges.size(); ++i) {
      const Range& range = dispatch.ranges[i];
      History& history = histories[range.buffer];
      auto& touches = accesses[i] == Access::kRead ? history.reads : history.writes;
      touches.push_back({range.offset, range.offset + range.length, dispatch.level});
    }
    num_levels = std::max(num_levels, dispatch.level);
  }
  std::ranges::stable_sort(dispatches, {}, &Dispatch::level);
  return num_levels;
}

}  // namespace

void Program::dispatch_bytes(const Kernel& kernel, std::vector<std::byte> args, std::vector<Range> ranges, Extent extent) {
  const std::string name(kernel.name());
  if (args.size() != kernel.args_size())
    throw std::invalid_argument(name + " takes " + std::to_string(kernel.args_size()) + " bytes of arguments, got " +
                                std::to_string(args.size()));
  if (ranges.size() != kernel.accesses().size())
    throw std::invalid_argument(name + " binds " + std::to_string(kernel.accesses().size()) + " ranges, got " +
                                std::to_string(ranges.size()));
  for (const Range& range : ranges)
    if (!range.buffer || range.offset > range.buffer->length() || range.length > range.buffer->length() - range.offset)
      throw std::invalid_argument(name + " binds " + (range.buffer ? range.buffer->name() : "no buffer") +
                                  " outside of its length");
  open_.push_back({&kernel, std::move(args), std::move(ranges), extent, 0});
}

void Program::end_segment() {
  if (open_.empty()) return;
  Segment segment;
  segment.dispatches = std::move(open_);
  segment.num_levels = derive_levels(segment.dispatches);
  segments_.push_back(std::move(segment));
  open_.clear();
}

const std::vector<Segment>& Program::segments() {
  end_segment();
  return segments_;
}

std::uint32_t Program::num_dispatches() const {
  std::size_t count = open_.size();
  for (const Segment& segment : segments_) count += segment.dispatches.size();
  return static_cast<std::uint32_t>(count);
}

std::uint32_t Program::num_levels() const {
  std::uint32_t count = 0;
  for (const Segment& segment : segments_) count += segment.num_levels;
  return count;
}

}  // namespace lily
