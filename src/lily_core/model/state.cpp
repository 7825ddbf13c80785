#include "model/state.h"

#include "error.h"

namespace lily {

FreeList::FreeList(std::uint32_t first, std::uint32_t count) {
  for (std::uint32_t number = count; number-- > first;) free_.push_back(number);
}

std::optional<std::uint32_t> FreeList::take() {
  if (free_.empty()) return std::nullopt;
  const std::uint32_t number = free_.back();
  free_.pop_back();
  return number;
}

namespace {

std::uint64_t recurrent_bytes(const ModelConfig& c) {
  return std::uint64_t{4} * c.num_linear_layers * c.linear_num_value_heads * c.linear_key_head_dim * c.linear_value_head_dim;
}

std::uint64_t conv_bytes(const ModelConfig& c) {
  return std::uint64_t{4} * c.num_linear_layers * (c.linear_conv_kernel_dim - 1) * c.conv_channels();
}

}  // namespace

std::uint64_t slot_bytes(const ModelConfig& config) { return recurrent_bytes(config) + conv_bytes(config); }

std::uint64_t page_bytes(const ModelConfig& c) {
  return std::uint64_t{4} * c.num_attention_layers * 2 * c.num_key_value_heads * LILY_PAGE_TOKENS * c.head_dim;
}

State::State(Device& device, const ModelConfig& config, std::uint32_t num_timelines, std::uint32_t num_slots, std::uint32_t num_pages)
    : recurrent_state(device.allocate("recurrent_state", num_slots * recurrent_bytes(config), Memory::kPrivate)),
      conv_state(device.allocate("conv_state", num_slots * conv_bytes(config), Memory::kPrivate)),
      kv(device.allocate("kv", num_pages * page_bytes(config), Memory::kPrivate)),
      page_table(device.allocate("page_table", std::uint64_t{4} * num_timelines * config.max_pages, Memory::kShared)),
      config_(config),
      rows_(0, num_timelines),
      slots_(kZeroSlot + 1, num_slots),
      pages_(0, num_pages),
      num_timelines_(num_timelines),
      num_pages_(num_pages) {
  device.fill({recurrent_state.get(), 0, recurrent_bytes(config)}, 0);
  device.fill({conv_state.get(), 0, conv_bytes(config)}, 0);
}

Timeline State::open() {
  if (rows_.num_free() == 0 || slots_.num_free() < 2)
    throw MemoryLimitError("another timeline", 2 * slot_bytes(config_), slots_.num_free() * slot_bytes(config_),
                           2 * num_timelines_ * slot_bytes(config_), "Close one of the open sessions, or raise memory_limit.");
  Timeline timeline;
  timeline.row = *rows_.take();
  for (std::uint32_t& slot : timeline.slots) slot = *slots_.take();
  return timeline;
}

void State::close(Timeline& timeline) {
  reset(timeline);
  for (const std::uint32_t slot : timeline.slots) slots_.give_back(slot);
  rows_.give_back(timeline.row);
  timeline.closed = true;
}

void State::reset(Timeline& timeline) {
  for (const std::uint32_t page : timeline.pages) pages_.give_back(page);
  timeline.pages.clear();
  timeline.num_tokens = 0;
  timeline.has_token = timeline.has_logits = false;
}

void State::reserve(Timeline& timeline, std::uint32_t num_tokens) {
  const std::size_t wanted = (num_tokens + LILY_PAGE_TOKENS - 1) / LILY_PAGE_TOKENS;
  if (wanted <= timeline.pages.size()) return;
  const std::size_t missing = wanted - timeline.pages.size();
  if (missing > pages_.num_free())
    throw MemoryLimitError("a timeline of " + std::to_string(num_tokens) + " tokens", missing * page_bytes(config_),
                           pages_.num_free() * page_bytes(config_), num_pages_ * page_bytes(config_),
                           "Close other sessions, or raise memory_limit.");
  auto* row = static_cast<std::uint32_t*>(page_table->contents()) + std::size_t{timeline.row} * config_.max_pages;
  for (std::size_t i = 0; i < missing; ++i) {
    row[timeline.pages.size()] = *pages_.take();
    timeline.pages.push_back(row[timeline.pages.size()]);
  }
}

}  // namespace lily
