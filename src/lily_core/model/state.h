// The state of all timelines and snapshots: recurrent and convolution state in slots, KV in pages, both counted and shared.
// A slot is never updated in place: a step reads one and writes another. A page is only ever appended to.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "device/device.h"
#include "error.h"
#include "model/model_config.h"
#include "model/pool.h"

namespace lily {

constexpr std::uint32_t kZeroSlot = 0;

// The state after a number of tokens.
struct TokenState {
  std::uint32_t num_tokens = 0;
  std::uint32_t slot = kZeroSlot;
  std::vector<std::uint32_t> pages;  // those of a timeline may reach beyond num_tokens
};

// State that is kept. Timelines share it; nobody changes it.
struct Snapshot : TokenState {};

// One sequence of tokens. Its row is its place in the page table, the logits and the sampling tables.
struct Timeline : TokenState {
  std::uint32_t row = 0;
  std::uint32_t spare = kZeroSlot;  // written by the next step; kZeroSlot: a free one is taken
  bool has_token = false;           // the last step drew one, which waits in its row of `tokens`
  bool has_logits = false;          // the last step computed them
  bool has_mask = false;            // its row of `mask` says which tokens may be drawn
  bool closed = false;              // its slots and pages are given back
};

// Pages that hold so many tokens.
constexpr std::uint32_t pages_for(std::uint64_t num_tokens) {
  return static_cast<std::uint32_t>((num_tokens + LILY_PAGE_TOKENS - 1) / LILY_PAGE_TOKENS);
}

// Bytes of one slot, and of one page.
std::uint64_t slot_bytes(const ModelConfig& config);
std::uint64_t page_bytes(const ModelConfig& config);

struct StateSizes {
  std::uint32_t num_timelines = 0;
  std::uint32_t num_pages = 0;
  std::uint32_t num_kept_slots = 0;   // at most so many slots are held by snapshots
  std::uint64_t snapshot_limit = 0;   // bytes of slots and pages that snapshots may hold

  // The zero slot, two of each timeline, and those of snapshots: a step always finds one to write.
  std::uint32_t num_slots() const { return 1 + 2 * num_timelines + num_kept_slots; }
};

// What is in use now.
struct StateUse {
  std::uint32_t free_slots = 0;
  std::uint32_t free_pages = 0;
  std::uint32_t kept_slots = 0;         // held by snapshots
  std::uint32_t kept_pages = 0;
  std::uint32_t reclaimable_pages = 0;  // held by snapshots only
  std::uint64_t snapshot_bytes = 0;     // of the kept slots and pages, each counted once
};

class State {
 public:
  State(Device& device, const ModelConfig& config, const StateSizes& sizes);

  std::unique_ptr<Buffer> recurrent_state;  // [slot, linear layer, Hv, dk, dv] f32
  std::unique_ptr<Buffer> conv_state;       // [slot, linear layer, 3, C] f32, oldest row first
  std::unique_ptr<Buffer> kv;               // [page, attention layer, K | V, Hkv, 256, D], elements of precision.kv_bytes
  std::unique_ptr<Buffer> page_table;       // [timeline, max_pages] u32

  // An empty timeline. Throws MemoryLimitError when no row is free.
  Timeline open();
  // Gives back all but the row, which release_row() does when nobody reads it any more.
  void close(Timeline& timeline);
  void release_row(const Timeline& timeline);
  // Back to no tokens; pages and slot are given back.
  void reset(Timeline& timeline);

  // Makes room for positions below num_tokens, so that steps up to there cannot fail for want of memory: takes pages, enters them
  // into the page table, and copies a partly filled last page that another timeline appends to. Throws MemoryLimitError when the
  // pool has too few; the timeline keeps what it had.
  void reserve(Timeline& timeline, std::uint32_t num_tokens);
  // Throws MemoryLimitError unless restore() from `from` and then reserve() will find their pages once snapshots have given
  // way. Changes nothing.
  void check_restart(const Timeline& timeline, const TokenState& from, std::uint32_t num_tokens) const;
  // Reserves `count` more tokens and a slot to write, timeline.spare. Then finish() makes it the current state; without that the
  // timeline is as before.
  void begin(Timeline& timeline, std::uint32_t count);
  void finish(Timeline& timeline, std::uint32_t count);

  // Keeps the timeline's current state, shared and not copied. Throws MemoryLimitError when snapshots hold all that they may.
  Snapshot snapshot(const Timeline& timeline);
  void drop(Snapshot& snapshot);
  // The timeline continues from `state`, which stays as it is.
  void restore(Timeline& timeline, const TokenState& state);

  // Gives the memory of free slots and pages back to the system, where the device can.
  void discard_free();

  StateUse use() const;

 private:
  static constexpr std::uint32_t kNoWriter = 0xffffffff;
  struct Page {
    std::uint32_t writer = kNoWriter;  // row of the one timeline that may append while the page is shared
    std::uint32_t num_tokens = 0;      // filled by anybody
  };

  std::uint32_t* page_row(const Timeline& timeline);
  bool may_append(const Timeline& timeline) const;
  void copy_last_page(Timeline& timeline);
  std::uint32_t take_page(const Timeline& timeline);
  MemoryLimitError no_room(std::uint32_t num_tokens, std::uint32_t missing_pages, std::uint32_t found_pages) const;
  void let_go(Timeline& timeline);

  Device& device_;
  const ModelConfig config_;
  const StateSizes sizes_;
  Pool rows_, slots_, pages_;
  std::vector<Page> page_;
};

}  // namespace lily
