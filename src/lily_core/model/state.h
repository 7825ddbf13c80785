// The state of all timelines: recurrent and convolution state in slots, KV in pages. Nothing is updated in place: a step reads one
// slot and writes another.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "device/device.h"
#include "model/model_config.h"

namespace lily {

// Hands out the numbers [first, count).
class FreeList {
 public:
  FreeList(std::uint32_t first, std::uint32_t count);
  std::optional<std::uint32_t> take();
  void give_back(std::uint32_t number) { free_.push_back(number); }
  std::uint32_t num_free() const { return static_cast<std::uint32_t>(free_.size()); }

 private:
  std::vector<std::uint32_t> free_;  // taken from the back: lowest numbers first
};

constexpr std::uint32_t kZeroSlot = 0;

// One sequence of tokens. Its row is its place in the page table, the logits and the sampling tables.
struct Timeline {
  std::uint32_t row = 0;
  std::uint32_t num_tokens = 0;
  std::array<std::uint32_t, 2> slots{};  // written in turn
  std::uint32_t newest = 0;              // index of the slot that holds the state after num_tokens, if there are any
  std::vector<std::uint32_t> pages;
  bool has_token = false;   // the last step drew one, which waits in its row of `tokens`
  bool has_logits = false;  // the last step computed them
  bool closed = false;      // its row, slots and pages are given back

  std::uint32_t slot_in() const { return num_tokens ? slots[newest] : kZeroSlot; }
  std::uint32_t slot_out() const { return slots[1 - newest]; }
  // The step or chunk that was to write slot_out() is done.
  void advance(std::uint32_t tokens) {
    num_tokens += tokens;
    newest = 1 - newest;
  }
};

// Bytes of one slot, and of one page.
std::uint64_t slot_bytes(const ModelConfig& config);
std::uint64_t page_bytes(const ModelConfig& config);

class State {
 public:
  // num_slots counts the zero slot.
  State(Device& device, const ModelConfig& config, std::uint32_t num_timelines, std::uint32_t num_slots, std::uint32_t num_pages);

  std::unique_ptr<Buffer> recurrent_state;  // [slot, linear layer, Hv, dk, dv] f32
  std::unique_ptr<Buffer> conv_state;       // [slot, linear layer, 3, C] f32, oldest row first
  std::unique_ptr<Buffer> kv;               // [page, attention layer, K | V, Hkv, 256, D] f32
  std::unique_ptr<Buffer> page_table;       // [timeline, max_pages] u32

  // Throws MemoryLimitError when no row or slot is free.
  Timeline open();
  void close(Timeline& timeline);
  // Back to no tokens; pages are given back.
  void reset(Timeline& timeline);
  // Makes room for positions below num_tokens and enters the pages into the page table. Throws MemoryLimitError when the pool has
  // too few; the timeline keeps what it had.
  void reserve(Timeline& timeline, std::uint32_t num_tokens);

 private:
  const ModelConfig config_;
  FreeList rows_, slots_, pages_;
  std::uint32_t num_timelines_, num_pages_;
};

}  // namespace lily
