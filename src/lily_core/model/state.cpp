#include "model/state.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "error.h"

namespace lily {

namespace {

std::uint64_t recurrent_bytes(const ModelConfig& c) {
  return std::uint64_t{4} * c.num_linear_layers * c.linear_num_value_heads * c.linear_key_head_dim * c.linear_value_head_dim;
}

std::uint64_t conv_bytes(const ModelConfig& c) {
  return std::uint64_t{4} * c.num_linear_layers * (LILY_CONV_TAPS - 1) * c.conv_channels();
}

}  // namespace

std::uint64_t slot_bytes(const ModelConfig& config) { return recurrent_bytes(config) + conv_bytes(config); }

std::uint64_t page_bytes(const ModelConfig& c) {
  return std::uint64_t{c.precision.kv_bytes} * c.num_attention_layers * 2 * c.num_key_value_heads * LILY_PAGE_TOKENS * c.head_dim;
}

State::State(Device& device, const ModelConfig& config, const StateSizes& sizes)
    : recurrent_state(device.allocate("recurrent_state", sizes.num_slots() * recurrent_bytes(config), Memory::kPrivate)),
      conv_state(device.allocate("conv_state", sizes.num_slots() * conv_bytes(config), Memory::kPrivate)),
      kv(device.allocate("kv", sizes.num_pages * page_bytes(config), Memory::kPrivate)),
      page_table(device.allocate("page_table", std::uint64_t{4} * sizes.num_timelines * config.max_pages, Memory::kShared)),
      device_(device),
      config_(config),
      sizes_(sizes),
      rows_(0, sizes.num_timelines),
      slots_(kZeroSlot + 1, sizes.num_slots()),
      pages_(0, sizes.num_pages),
      page_(sizes.num_pages) {
  device.fill({recurrent_state.get(), 0, recurrent_bytes(config)}, 0);
  device.fill({conv_state.get(), 0, conv_bytes(config)}, 0);
}

Timeline State::open() {
  const auto row = rows_.take();
  if (!row)
    throw MemoryLimitError("another timeline", 2 * slot_bytes(config_), 0, 2 * sizes_.num_timelines * slot_bytes(config_),
                           "Close one of the open sessions, drop the logits of closed ones, or raise memory_limit.");
  Timeline timeline;
  timeline.row = *row;
  return timeline;
}

void State::close(Timeline& timeline) {
  reset(timeline);
  if (timeline.spare != kZeroSlot) slots_.release(timeline.spare);
  timeline.spare = kZeroSlot;
  timeline.closed = true;
}

void State::release_row(const Timeline& timeline) { rows_.release(timeline.row); }

void State::reset(Timeline& timeline) { restore(timeline, TokenState{}); }

void State::let_go(Timeline& timeline) {
  if (timeline.slot != kZeroSlot) slots_.release(timeline.slot);
  for (const std::uint32_t page : timeline.pages) {
    if (page_[page].writer == timeline.row) page_[page].writer = kNoWriter;
    pages_.release(page);
  }
}

std::uint32_t* State::page_row(const Timeline& timeline) {
  return static_cast<std::uint32_t*>(page_table->contents()) + std::size_t{timeline.row} * config_.max_pages;
}

// Whether the timeline may write behind its last token, in a page that is partly filled. Of those that share the page one may:
// what it appends lies beyond what the others read.
bool State::may_append(const Timeline& timeline) const {
  const std::uint32_t page = timeline.pages[timeline.num_tokens / LILY_PAGE_TOKENS];
  const Page& entry = page_[page];
  if (!pages_.is_shared(page)) return true;
  if (entry.writer != kNoWriter && entry.writer != timeline.row) return false;
  return entry.num_tokens == timeline.num_tokens % LILY_PAGE_TOKENS;
}

std::uint32_t State::take_page(const Timeline& timeline) {
  const std::uint32_t page = *pages_.take();
  page_[page] = {.writer = timeline.row};
  return page;
}

void State::copy_last_page(Timeline& timeline) {
  const std::size_t last = timeline.num_tokens / LILY_PAGE_TOKENS;
  const std::uint32_t from = timeline.pages[last], to = take_page(timeline);
  const std::uint64_t bytes = page_bytes(config_);
  device_.copy({kv.get(), to * bytes, bytes}, {kv.get(), from * bytes, bytes});
  page_[to].num_tokens = timeline.num_tokens % LILY_PAGE_TOKENS;
  if (page_[from].writer == timeline.row) page_[from].writer = kNoWriter;
  pages_.release(from);
  timeline.pages[last] = page_row(timeline)[last] = to;
}

MemoryLimitError State::no_room(std::uint32_t num_tokens, std::uint32_t missing_pages, std::uint32_t found_pages) const {
  return MemoryLimitError("a timeline of " + std::to_string(num_tokens) + " tokens", missing_pages * page_bytes(config_),
                          found_pages * page_bytes(config_), sizes_.num_pages * page_bytes(config_),
                          "Use a shorter prompt or a smaller max_tokens, close other sessions, or raise memory_limit.");
}

void State::check_restart(const Timeline& timeline, const TokenState& from, std::uint32_t num_tokens) const {
  // A page stands at the same place in all timelines that hold it.
  const auto is_own = [&](std::size_t i, std::uint32_t page) { return i < timeline.pages.size() && timeline.pages[i] == page; };
  std::uint32_t found = pages_.num_free() + pages_.num_reclaimable();
  for (const std::uint32_t page : timeline.pages) found += pages_.num_timelines(page) == 1;
  std::uint32_t missing = pages_for(std::max(num_tokens, from.num_tokens));
  for (std::uint32_t i = 0; i < pages_for(from.num_tokens); ++i) {
    const std::uint32_t page = from.pages[i];
    if (pages_.num_timelines(page) == is_own(i, page)) continue;  // of no other timeline: found above
    const std::uint32_t filled = std::min(from.num_tokens - i * LILY_PAGE_TOKENS, LILY_PAGE_TOKENS);
    const Page& entry = page_[page];
    const bool is_free_behind =
        (entry.writer == kNoWriter || entry.writer == timeline.row) && entry.num_tokens == filled;
    missing -= filled == LILY_PAGE_TOKENS || num_tokens <= from.num_tokens || is_free_behind;  // or it is copied
  }
  if (missing > found) throw no_room(num_tokens, missing, found);
}

void State::reserve(Timeline& timeline, std::uint32_t num_tokens) {
  if (num_tokens <= timeline.num_tokens) return;
  const bool appends = timeline.num_tokens % LILY_PAGE_TOKENS != 0;
  const bool copies = appends && !may_append(timeline);
  const auto owned = static_cast<std::uint32_t>(timeline.pages.size()), wanted = pages_for(num_tokens);
  const std::uint32_t missing = (wanted > owned ? wanted - owned : 0) + copies;
  if (missing > pages_.num_free()) throw no_room(num_tokens, missing, pages_.num_free());
  if (copies) {
    copy_last_page(timeline);
  } else if (appends) {
    page_[timeline.pages[timeline.num_tokens / LILY_PAGE_TOKENS]] = {timeline.row, timeline.num_tokens % LILY_PAGE_TOKENS};
  }
  while (timeline.pages.size() < wanted) {
    page_row(timeline)[timeline.pages.size()] = take_page(timeline);
    timeline.pages.push_back(page_row(timeline)[timeline.pages.size()]);
  }
}

void State::begin(Timeline& timeline, std::uint32_t count) {
  reserve(timeline, timeline.num_tokens + count);
  if (timeline.spare == kZeroSlot) timeline.spare = *slots_.take();  // StateSizes::num_slots: there is one
}

void State::finish(Timeline& timeline, std::uint32_t count) {
  const std::uint32_t end = timeline.num_tokens + count;
  for (std::uint32_t i = timeline.num_tokens / LILY_PAGE_TOKENS; i < pages_for(end); ++i)
    page_[timeline.pages[i]].num_tokens = std::min(end - i * LILY_PAGE_TOKENS, LILY_PAGE_TOKENS);
  timeline.num_tokens = end;
  const std::uint32_t before = std::exchange(timeline.slot, std::exchange(timeline.spare, kZeroSlot));
  if (before == kZeroSlot) return;
  if (slots_.is_shared(before)) {
    slots_.release(before);
  } else {
    timeline.spare = before;
  }
}

Snapshot State::snapshot(const Timeline& timeline) {
  if (timeline.num_tokens == 0) throw std::invalid_argument("a timeline without tokens has no state to keep");
  Snapshot snapshot;
  snapshot.num_tokens = timeline.num_tokens;
  snapshot.slot = timeline.slot;
  snapshot.pages.assign(timeline.pages.begin(), timeline.pages.begin() + pages_for(timeline.num_tokens));
  const bool new_slot = !slots_.is_kept(snapshot.slot);
  const auto new_pages = std::ranges::count_if(snapshot.pages, [&](std::uint32_t page) { return !pages_.is_kept(page); });
  const std::uint64_t needed = new_slot * slot_bytes(config_) + static_cast<std::uint64_t>(new_pages) * page_bytes(config_);
  const std::uint64_t left = sizes_.snapshot_limit - use().snapshot_bytes;
  if (needed > left || (new_slot && slots_.num_kept() == sizes_.num_kept_slots))
    throw MemoryLimitError("a snapshot of " + std::to_string(snapshot.num_tokens) + " tokens", needed, left,
                           sizes_.snapshot_limit, "Drop other snapshots, or raise prefix_cache_bytes.");
  slots_.keep(snapshot.slot);
  for (const std::uint32_t page : snapshot.pages) pages_.keep(page);
  return snapshot;
}

void State::drop(Snapshot& snapshot) {
  slots_.drop(snapshot.slot);
  for (const std::uint32_t page : snapshot.pages) pages_.drop(page);
  snapshot = {};
}

void State::restore(Timeline& timeline, const TokenState& state) {
  const std::vector<std::uint32_t> pages(state.pages.begin(), state.pages.begin() + pages_for(state.num_tokens));
  // Held before the old ones are released: they may be the same.
  if (state.slot != kZeroSlot) slots_.hold(state.slot);
  for (const std::uint32_t page : pages) pages_.hold(page);
  const std::uint32_t num_tokens = state.num_tokens, slot = state.slot;
  let_go(timeline);
  timeline.num_tokens = num_tokens;
  timeline.slot = slot;
  timeline.pages = pages;
  timeline.has_token = timeline.has_logits = false;
  std::ranges::copy(pages, page_row(timeline));
}

void State::discard_free() {
  const auto discard = [&](const Pool& pool, Buffer& buffer, std::uint64_t bytes) {
    for (const auto& [first, count] : pool.free_runs()) device_.discard({&buffer, first * bytes, count * bytes});
  };
  discard(slots_, *recurrent_state, recurrent_bytes(config_));
  discard(slots_, *conv_state, conv_bytes(config_));
  discard(pages_, *kv, page_bytes(config_));
}

StateUse State::use() const {
  return {.free_slots = slots_.num_free(),
          .free_pages = pages_.num_free(),
          .kept_slots = slots_.num_kept(),
          .kept_pages = pages_.num_kept(),
          .reclaimable_pages = pages_.num_reclaimable(),
          .snapshot_bytes = slots_.num_kept() * slot_bytes(config_) + pages_.num_kept() * page_bytes(config_)};
}

}  // namespace lily
