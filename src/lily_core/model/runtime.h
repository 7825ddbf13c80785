// A loaded model that runs: timelines, prefill and decode. The boundary of the C++ side; policy is Python's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "model/checkpoint.h"
#include "model/host_state.h"
#include "model/memory_plan.h"
#include "model/model.h"
#include "model/model_config.h"
#include "model/program_cache.h"
#include "model/sampling.h"
#include "model/state.h"

namespace lily {

struct RuntimeOptions {
  std::string device = "auto";  // or a device's name
  std::string dtype = "auto";   // or the operand type of matrix products
  MemoryOptions memory;
  std::string debug;            // switches of the device
};

// The caller set a CancelFlag. What was computed is lost, the timeline is as before the call.
struct CancelledError : std::runtime_error {
  CancelledError() : std::runtime_error("cancelled") {}
};

using CancelFlag = std::atomic<bool>;

// Writes all words of a timeline's token mask.
using FillMask = std::function<void(std::span<std::uint32_t> words)>;
// Throws std::invalid_argument when the lengths differ.
void copy_mask(std::span<const std::uint32_t> from, std::span<std::uint32_t> to);

// Member functions may be called from any thread, one at a time: they take turns.
class Runtime {
 public:
  // Throws CheckpointError, MemoryLimitError (before anything large is allocated) or DeviceError.
  Runtime(const std::string& folder, const ModelConfig& config, const RuntimeOptions& options, const LoadProgress& progress);

  const ModelConfig& config() const { return model_->config; }
  std::string device_name() const { return std::string(device_->name()); }
  std::string device_description() const { return device_->description(); }
  const std::string& dtype() const { return config().precision.dtype; }  // of the operands of matrix products
  std::uint32_t max_chunk_tokens() const { return config().traits.chunk_tokens; }
  const MemoryPlan& memory() const { return plan_; }
  const Weights& weights() const { return model_->weights; }
  const Checkpoint& checkpoint() const { return checkpoint_; }

  Timeline open();
  // Gives the timeline's memory back, at the latest when the next call starts: never waits for a running one. Its row of logits
  // goes to another timeline when the last reference to this one is gone.
  void close(std::shared_ptr<Timeline> timeline);
  void reset(Timeline& timeline);
  // A second timeline of the same tokens, logits, counts, mask and drawn token; slot and pages are shared until they differ.
  // Throws MemoryLimitError.
  Timeline fork(const Timeline& timeline);

  // Makes sure that steps up to `num_tokens` tokens cannot fail for want of memory. Throws MemoryLimitError before any work, and
  // std::invalid_argument beyond the context.
  void reserve(Timeline& timeline, std::uint32_t num_tokens);

  // Keeps the timeline's state, shared and not copied. Throws MemoryLimitError when snapshots hold all that they may.
  Snapshot snapshot(const Timeline& timeline);
  // As close().
  void release(Snapshot snapshot);
  // Throws MemoryLimitError unless reset(), or restore() from the snapshot, and then reserve() will find memory once snapshots
  // have given way. Changes nothing.
  void check_restart(const Timeline& timeline, const TokenState& from, std::uint32_t num_tokens);
  // The timeline continues from the snapshot, without logits. The snapshot stays as it is.
  void restore(Timeline& timeline, const Snapshot& snapshot);

  // State as files hold it. load_state() replaces what the timeline held; throws MemoryLimitError, and then it is empty.
  HostState read_state(const Timeline& timeline);
  HostState read_state(const Snapshot& snapshot);
  void load_state(Timeline& timeline, const HostState& from, std::optional<std::span<const float>> logits);

  StateUse state_use();
  // Gives the memory that no timeline and no snapshot holds back to the system, where the device can.
  void discard_free();

  // Extends the timeline by one chunk of 1 to max_chunk_tokens() tokens. With `wants_logits` the logits after the last one are
  // computed, and with `sampling` the next token is drawn. Throws std::invalid_argument for wrong lengths or token ids,
  // MemoryLimitError, DeviceError, CancelledError, or CheckpointError when mapped weights changed; then the timeline holds the
  // tokens that it held before, but logits and a drawn token only where nothing ran.
  std::optional<SampleResult> prefill(Timeline& timeline, std::span<const std::uint32_t> token_ids, bool wants_logits,
                                      const Sampling* sampling, const CancelFlag* cancel);
  // Appends one token to each timeline, computes its logits and, where `samplings` says how, draws the next one. Without token
  // ids each timeline continues with the token drawn last. `fill_masks`, one per timeline or none at all: those that are not
  // empty are called while the device computes the logits, and set the mask of this and the following draws; what they throw
  // ends the step. Errors as above, and then the same of every timeline.
  std::vector<std::optional<SampleResult>> decode(std::span<Timeline* const> timelines,
                                                  std::optional<std::span<const std::uint32_t>> token_ids,
                                                  std::span<const Sampling* const> samplings,
                                                  std::span<const FillMask> fill_masks = {});

  // Tokens for the penalties, and which tokens may be drawn (one bit each, none: all): per timeline, until set again.
  void set_token_counts(const Timeline& timeline, std::span<const std::uint32_t> prompt_ids,
                        std::span<const std::uint32_t> output_ids);
  void set_token_mask(Timeline& timeline, std::optional<std::span<const std::uint32_t>> words);

  // Logits after the timeline's last token, [V] f32; overwritten by its next step. Throws std::logic_error when there are none.
  const float* logits(const Timeline& timeline) const;

  // Dispatches and levels of the step program of one row at a context, and of the prefill program of a chunk.
  ProgramStats decode_stats(std::uint32_t context);
  ProgramStats prefill_stats(std::uint32_t rows);

 private:
  std::unique_lock<std::mutex> take_turn();  // and close what was given to close() meanwhile
  static void check_open(const Timeline& timeline);
  void check_room(const Timeline& timeline, std::uint32_t num_tokens) const;
  void check_token_ids(std::span<const std::uint32_t> token_ids) const;
  void check_step(std::span<Timeline* const> timelines, std::optional<std::span<const std::uint32_t>> token_ids,
                  std::size_t num_samplings, std::size_t num_masks) const;
  void run(CachedProgram& program, const CancelFlag* cancel);
  // A program of two segments: `work` is done while the device runs the first one.
  void run_around(CachedProgram& program, const std::function<void()>& work);
  void check_run() const;
  std::span<float> logits_row(const Timeline& timeline) const;  // [V]

  std::mutex mutex_;
  std::mutex closing_mutex_;
  std::vector<std::shared_ptr<Timeline>> closing_;
  std::vector<std::shared_ptr<Timeline>> closed_;  // whose rows are still held by others
  std::vector<Snapshot> releasing_;
  Checkpoint checkpoint_;  // outlives the weights, which may be mapped
  MemoryPlan plan_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<ProgramCache> programs_;
};

}  // namespace lily
