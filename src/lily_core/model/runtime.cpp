#include "model/runtime.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

namespace lily {

Runtime::Runtime(const std::string& folder, const ModelConfig& model_config, const RuntimeOptions& options,
                 const LoadProgress& progress)
    : checkpoint_(folder) {
  const std::string device_name = options.device == "auto" ? kDefaultDevice : options.device;
  ModelConfig config = model_config;
  config.precision = precision_of(device_name, options.dtype);
  config.traits = traits_of(device_name);
  // Before loading, by the bytes of the files; then, since some tensors are widened, by what the weights really take.
  plan_ = plan_memory(config, options.memory, checkpoint_.held_bytes());
  config.max_pages = pages_for(plan_.max_context);
  device_ = make_device(device_name, config, options.debug);
  Weights weights = load_weights(checkpoint_, config, *device_, progress);
  plan_ = plan_memory(config, options.memory, weights.mapped_bytes + weights.copied_bytes);
  plan_.max_context = std::min(plan_.max_context, config.max_pages * LILY_PAGE_TOKENS);
  model_ = std::make_unique<Model>(*device_, config, std::move(weights), plan_.state);
  programs_ = std::make_unique<ProgramCache>(*device_, *model_);
}

ProgramStats Runtime::decode_stats(std::uint32_t context) {
  if (context == 0 || context > plan_.max_context)
    throw std::invalid_argument("context " + std::to_string(context) + " is outside of 1 to " +
                                std::to_string(plan_.max_context));
  const auto turn = take_turn();
  return programs_->decode(1, context, false).stats;
}

ProgramStats Runtime::prefill_stats(std::uint32_t rows) {
  if (rows == 0 || rows > max_chunk_tokens())
    throw std::invalid_argument("a prefill chunk has 1 to " + std::to_string(max_chunk_tokens()) + " tokens, not " +
                                std::to_string(rows));
  const auto turn = take_turn();
  return programs_->prefill(rows, true).stats;
}

Timeline Runtime::open() {
  const auto turn = take_turn();
  return model_->state.open();
}

void Runtime::close(std::shared_ptr<Timeline> timeline) {
  const std::lock_guard lock(closing_mutex_);
  closing_.push_back(std::move(timeline));
}

void Runtime::release(Snapshot snapshot) {
  const std::lock_guard lock(closing_mutex_);
  releasing_.push_back(std::move(snapshot));
}

std::unique_lock<std::mutex> Runtime::take_turn() {
  std::unique_lock turn(mutex_);
  const std::lock_guard lock(closing_mutex_);
  for (auto& timeline : closing_) {
    model_->state.close(*timeline);
    closed_.push_back(std::move(timeline));
  }
  // A row is free when nobody looks at its logits any more.
  std::erase_if(closed_, [&](const auto& timeline) {
    if (timeline.use_count() > 1) return false;
    model_->state.release_row(*timeline);
    return true;
  });
  for (Snapshot& snapshot : releasing_) model_->state.drop(snapshot);
  closing_.clear();
  releasing_.clear();
  return turn;
}

void Runtime::check_open(const Timeline& timeline) {
  if (timeline.closed) throw std::logic_error("the timeline was closed during the call");
}

void Runtime::reset(Timeline& timeline) {
  const auto turn = take_turn();
  check_open(timeline);
  model_->state.reset(timeline);
}

Timeline Runtime::fork(const Timeline& timeline) {
  const auto turn = take_turn();
  check_open(timeline);
  Timeline branch = model_->state.open();
  model_->state.restore(branch, timeline);
  std::ranges::copy(logits_row(timeline), logits_row(branch).begin());
  model_->io.copy(timeline, branch);
  branch.has_token = timeline.has_token;
  branch.has_logits = timeline.has_logits;
  branch.has_mask = timeline.has_mask;
  return branch;
}

void Runtime::reserve(Timeline& timeline, std::uint32_t num_tokens) {
  const auto turn = take_turn();
  check_open(timeline);
  if (num_tokens > timeline.num_tokens) check_room(timeline, num_tokens - timeline.num_tokens);
  model_->state.reserve(timeline, num_tokens);
}

Snapshot Runtime::snapshot(const Timeline& timeline) {
  const auto turn = take_turn();
  check_open(timeline);
  return model_->state.snapshot(timeline);
}

void Runtime::check_restart(const Timeline& timeline, const TokenState& from, std::uint32_t num_tokens) {
  const auto turn = take_turn();
  check_open(timeline);
  model_->state.check_restart(timeline, from, num_tokens);
}

void Runtime::restore(Timeline& timeline, const Snapshot& snapshot) {
  const auto turn = take_turn();
  check_open(timeline);
  model_->state.restore(timeline, snapshot);
}

HostState Runtime::read_state(const Timeline& timeline) {
  const auto turn = take_turn();
  check_open(timeline);
  return lily::read_state(*device_, config(), model_->state, timeline);
}

HostState Runtime::read_state(const Snapshot& snapshot) {
  const auto turn = take_turn();
  return lily::read_state(*device_, config(), model_->state, snapshot);
}

void Runtime::load_state(Timeline& timeline, const HostState& from, std::optional<std::span<const float>> logits) {
  const auto turn = take_turn();
  check_open(timeline);
  model_->state.reset(timeline);
  if (from.num_tokens == 0) return;
  check_room(timeline, from.num_tokens);
  model_->state.begin(timeline, from.num_tokens);
  write_state(*device_, config(), model_->state, timeline.spare, timeline.pages, from);
  model_->state.finish(timeline, from.num_tokens);
  timeline.has_logits = logits.has_value();
  if (logits) std::ranges::copy(*logits, logits_row(timeline).begin());
}

StateUse Runtime::state_use() {
  const auto turn = take_turn();
  return model_->state.use();
}

void Runtime::discard_free() {
  const auto turn = take_turn();
  model_->state.discard_free();
}

void Runtime::check_room(const Timeline& timeline, std::uint32_t num_tokens) const {
  if (num_tokens > plan_.max_context - timeline.num_tokens)
    throw std::invalid_argument(std::to_string(timeline.num_tokens) + " + " + std::to_string(num_tokens) +
                                " tokens exceed the context of " + std::to_string(plan_.max_context));
}

void Runtime::check_token_ids(std::span<const std::uint32_t> token_ids) const {
  for (const std::uint32_t id : token_ids)
    if (id >= config().vocab_size)
      throw std::invalid_argument("token id " + std::to_string(id) + " is outside of the vocabulary of " +
                                  std::to_string(config().vocab_size));
}

void Runtime::run(CachedProgram& program, const CancelFlag* cancel) {
  model_->io.flags[0] = {};
  for (std::uint32_t segment = 0; segment < program.executable->num_segments(); ++segment) {
    if (cancel && cancel->load(std::memory_order_relaxed)) throw CancelledError();
    device_->wait(device_->commit(*program.executable, segment));
  }
  check_run();
}

void Runtime::run_around(CachedProgram& program, const std::function<void()>& work) {
  model_->io.flags[0] = {};
  const Device::Ticket first = device_->commit(*program.executable, 0);
  try {
    work();
  } catch (...) {
    device_->wait(first);  // it must not write into what the next step uses
    throw;
  }
  device_->wait(device_->commit(*program.executable, 1));
  check_run();
}

void Runtime::check_run() const {
  checkpoint_.require_unchanged();  // after the work: what was computed from other bytes is never returned
  if (model_->io.flags[0].nan)
    throw DeviceError(std::string(device_->name()), "lm_head", "nan",
                      "the logits hold NaN or infinity: the checkpoint's weights are damaged, a number left the range of " +
                          config().precision.dtype + ", or the device computed wrongly");
  if (model_->io.flags[0].abort)
    throw DeviceError(std::string(device_->name()), "experts_up", "missing_expert", "a chosen expert is not loaded");
}

std::optional<SampleResult> Runtime::prefill(Timeline& timeline, std::span<const std::uint32_t> token_ids, bool wants_logits,
                                             const Sampling* sampling, const CancelFlag* cancel) {
  const auto turn = take_turn();
  check_open(timeline);
  const auto count = static_cast<std::uint32_t>(token_ids.size());
  if (token_ids.empty() || token_ids.size() > max_chunk_tokens())
    throw std::invalid_argument("a prefill chunk has 1 to " + std::to_string(max_chunk_tokens()) + " tokens, not " +
                                std::to_string(token_ids.size()));
  if (sampling && !wants_logits) throw std::invalid_argument("sampling needs the logits: wants_logits is false");
  check_room(timeline, count);
  check_token_ids(token_ids);
  model_->state.begin(timeline, count);
  StepIo& io = model_->io;
  io.write(0, timeline, timeline.num_tokens, false, nullptr);
  io.write(1, timeline, timeline.num_tokens + count - 1, wants_logits, sampling);
  std::ranges::copy(token_ids, io.chunk.row(0).begin());
  timeline.has_token = timeline.has_logits = false;
  run(programs_->prefill(count, wants_logits), cancel);
  const std::optional<SampleResult> result = io.result(timeline, sampling);
  model_->state.finish(timeline, count);
  timeline.has_token = result.has_value();
  timeline.has_logits = wants_logits;
  return result;
}

void Runtime::check_step(std::span<Timeline* const> timelines, std::optional<std::span<const std::uint32_t>> token_ids,
                         std::size_t num_samplings, std::size_t num_masks) const {
  const std::size_t rows = timelines.size();
  if (rows == 0 || rows > kMaxStepRows)
    throw std::invalid_argument("a step has 1 to " + std::to_string(kMaxStepRows) + " timelines, not " + std::to_string(rows));
  if ((token_ids && token_ids->size() != rows) || num_samplings != rows || (num_masks && num_masks != rows))
    throw std::invalid_argument("timelines, token ids, samplings and masks of a step differ in number");
  if (std::set<Timeline*>(timelines.begin(), timelines.end()).size() != rows)
    throw std::invalid_argument("a step takes each timeline once");
  for (const Timeline* timeline : timelines) check_open(*timeline);
  if (token_ids) check_token_ids(*token_ids);
  if (!token_ids && !std::ranges::all_of(timelines, &Timeline::has_token))
    throw std::invalid_argument("a step without token ids continues drawn tokens, but a timeline's last step drew none");
}

std::vector<std::optional<SampleResult>> Runtime::decode(std::span<Timeline* const> timelines,
                                                         std::optional<std::span<const std::uint32_t>> token_ids,
                                                         std::span<const Sampling* const> samplings,
                                                         std::span<const FillMask> fill_masks) {
  const auto turn = take_turn();
  check_step(timelines, token_ids, samplings.size(), fill_masks.size());
  const auto rows = static_cast<std::uint32_t>(timelines.size());
  StepIo& io = model_->io;
  std::uint32_t context = 0;
  for (Timeline* timeline : timelines) {
    check_room(*timeline, 1);
    model_->state.begin(*timeline, 1);
    context = std::max(context, timeline->num_tokens + 1);
  }
  const bool masks_follow = std::ranges::any_of(fill_masks, [](const FillMask& fill) { return fill != nullptr; });
  for (std::uint32_t row = 0; row < rows; ++row) {
    Timeline& timeline = *timelines[row];
    if (masks_follow && fill_masks[row]) timeline.has_mask = true;
    io.write(row, timeline, timeline.num_tokens, true, samplings[row]);
    if (token_ids) io.tokens[timeline.row] = (*token_ids)[row];
  }
  for (Timeline* timeline : timelines) timeline->has_token = timeline->has_logits = false;
  CachedProgram& program = programs_->decode(rows, context, masks_follow);
  if (masks_follow) {
    run_around(program, [&] {
      for (std::uint32_t row = 0; row < rows; ++row)
        if (fill_masks[row]) fill_masks[row](io.mask.row(timelines[row]->row));
    });
  } else {
    run(program, nullptr);
  }
  std::vector<std::optional<SampleResult>> results;
  for (std::uint32_t row = 0; row < rows; ++row) results.push_back(io.result(*timelines[row], samplings[row]));
  for (std::uint32_t row = 0; row < rows; ++row) {
    model_->state.finish(*timelines[row], 1);
    timelines[row]->has_token = results[row].has_value();
    timelines[row]->has_logits = true;
  }
  return results;
}

void Runtime::set_token_counts(const Timeline& timeline, std::span<const std::uint32_t> prompt_ids,
                               std::span<const std::uint32_t> output_ids) {
  const auto turn = take_turn();
  check_open(timeline);
  check_token_ids(prompt_ids);
  check_token_ids(output_ids);
  model_->io.count_tokens(timeline, prompt_ids, output_ids);
}

void Runtime::set_token_mask(Timeline& timeline, std::optional<std::span<const std::uint32_t>> words) {
  const auto turn = take_turn();
  check_open(timeline);
  if (words) copy_mask(*words, model_->io.mask.row(timeline.row));
  timeline.has_mask = words.has_value();
}

void copy_mask(std::span<const std::uint32_t> from, std::span<std::uint32_t> to) {
  if (from.size() != to.size())
    throw std::invalid_argument("a token mask has " + std::to_string(to.size()) + " words of 32 tokens, not " +
                                std::to_string(from.size()));
  std::ranges::copy(from, to.begin());
}

std::span<float> Runtime::logits_row(const Timeline& timeline) const {
  const std::size_t width = config().vocab_size;
  return {static_cast<float*>(model_->activations.logits->contents()) + timeline.row * width, width};
}

const float* Runtime::logits(const Timeline& timeline) const {
  if (!timeline.has_logits)
    throw std::logic_error("there are no logits: the timeline's last call failed or did not compute them");
  return logits_row(timeline).data();
}

}  // namespace lily
