#include "model/runtime.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <numbers>
#include <set>
#include <stdexcept>

#include "error.h"

namespace lily {
namespace {

constexpr std::uint32_t kMaxTimelines = 32;
constexpr std::uint32_t kMinTimelines = 2;
constexpr std::uint32_t kDefaultContext = 262'144;  // when neither the caller nor the model says a limit
constexpr std::uint32_t kMaxKeptSlots = 4096;
constexpr std::size_t kMaxPrograms = 24;

std::uint32_t pages_for(std::uint64_t tokens) {
  return static_cast<std::uint32_t>((tokens + LILY_PAGE_TOKENS - 1) / LILY_PAGE_TOKENS);
}

Tensor upload(Device& device, const char* name, const void* data, std::uint64_t length) {
  Tensor tensor = device.allocate(name, length, Memory::kPrivate);
  device.write({tensor.get(), 0, length}, data);
  return tensor;
}

// Turns per position of each rotated pair, as two floats: a float alone is off by 0.006 rad at position 262,143.
Tensor rope_table(Device& device, const ModelConfig& config) {
  std::vector<float> table;
  for (std::uint32_t j = 0; j < config.rotary_dim / 2; ++j) {
    const double turns = std::pow(config.rope_theta, -2.0 * j / config.rotary_dim) / (2 * std::numbers::pi);
    const auto high = static_cast<float>(turns);
    table.push_back(high);
    table.push_back(static_cast<float>(turns - high));
  }
  return upload(device, "rope", table.data(), table.size() * sizeof(float));
}

Tensor identity_slots(Device& device, const ModelConfig& config) {
  std::vector<std::uint32_t> slots;
  for (std::uint32_t layer = 0; layer < config.num_hidden_layers; ++layer)
    for (std::uint32_t expert = 0; expert < config.num_experts; ++expert) slots.push_back(expert);
  return upload(device, "expert_slot", slots.data(), slots.size() * sizeof(std::uint32_t));
}

// How the GPU of a Mac, the only device with a limit of its own, gets to hold so much.
std::string more_device_memory(std::uint64_t bytes) {
  const std::uint64_t mib = (bytes + (1 << 20) - 1) >> 20;
  return "let the GPU, which may hold less than memory_limit, have more: sudo sysctl iogpu.wired_limit_mb=" +
         std::to_string(mib) + " (until the next restart; leave the system some 4096 of the Mac's MiB)";
}

std::string capitalized(std::string text) {
  text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

}  // namespace

Runtime::Recorded& Runtime::ProgramCache::get(const Key& key, const std::function<Recorded()>& record) {
  const auto found = std::ranges::find(entries_, key, &std::pair<Key, Recorded>::first);
  if (found != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, found);
  } else {
    entries_.emplace_front(key, record());
    if (entries_.size() > kMaxPrograms) entries_.pop_back();
  }
  return entries_.front().second;
}

Runtime::Runtime(const std::string& folder, const ModelConfig& config, const RuntimeOptions& options,
                 const LoadProgress& progress)
    : config_(config), checkpoint_(folder) {
  const std::string device_name = options.device == "auto" ? kDefaultDevice : options.device;
  config_.precision = precision_of(device_name, options.dtype);
  config_.traits = traits_of(device_name);
  // Before loading, by the bytes of the files; then, since some tensors are widened, by what the weights really take.
  plan_ = plan_memory(options, checkpoint_.held_bytes());
  config_.max_pages = pages_for(plan_.max_context);
  device_ = make_device(device_name, config_, options.device_options);
  weights_ = load_weights(checkpoint_, config_, *device_, progress);
  plan_ = plan_memory(options, weights_.mapped_bytes + weights_.copied_bytes);
  plan_.max_context = std::min(plan_.max_context, config_.max_pages * LILY_PAGE_TOKENS);
  state_ = std::make_unique<State>(*device_, config_, plan_.state);
  activations_ = std::make_unique<Activations>(*device_, config_, plan_.state.num_timelines);
  io_ = std::make_unique<StepIo>(*device_, config_, plan_.state.num_timelines);
  rope_ = rope_table(*device_, config_);
  expert_slot_ = identity_slots(*device_, config_);
  has_mask_.resize(plan_.state.num_timelines);
}

MemoryPlan Runtime::plan_memory(const RuntimeOptions& options, std::uint64_t weights_bytes) const {
  MemoryPlan plan;
  StateSizes& state = plan.state;
  const std::uint64_t device_bytes = config_.traits.memory_bytes;
  const std::uint64_t limit = device_bytes ? std::min(options.memory_limit, device_bytes) : options.memory_limit;
  plan.limit_bytes = limit;
  plan.weights_bytes = weights_bytes;
  plan.activations_bytes = activation_bytes(config_);
  const std::uint64_t model_context = options.model_context ? options.model_context : kDefaultContext;
  const std::uint64_t page = page_bytes(config_), slot = slot_bytes(config_);
  const std::uint64_t timeline = 2 * slot + step_io_bytes_per_timeline(config_);
  const std::uint64_t wanted_pages = pages_for(options.max_context.value_or(1));
  const std::uint64_t fixed = plan.weights_bytes + plan.activations_bytes + slot + options.prefix_cache_bytes.value_or(0);
  const std::uint64_t required = fixed + kMinTimelines * timeline + wanted_pages * page;
  if (required > limit) {
    const std::uint64_t least = fixed + kMinTimelines * timeline;
    const std::uint64_t fitting = limit > least ? (limit - least) / page * LILY_PAGE_TOKENS : 0;
    const std::string smaller_cache = options.prefix_cache_bytes.value_or(0) ? ", or lower prefix_cache_bytes" : "";
    const std::string more =
        limit < options.memory_limit ? more_device_memory(fitting ? required : least + page)
        : fitting                    ? "raise memory_limit"
                                     : "raise memory_limit to at least " + std::to_string(least + page) + " bytes";
    throw MemoryLimitError("loading the model", required, limit, limit,
                           (fitting ? "Use max_context=" + std::to_string(fitting) + " or less, or " + more : capitalized(more)) +
                               smaller_cache + ".");
  }
  // State of more timelines takes up to a quarter of what is left, snapshots another; pages the rest, as far as they could be
  // used.
  const std::uint64_t rest = limit - required;
  state.num_timelines = static_cast<std::uint32_t>(std::min<std::uint64_t>(kMaxTimelines, kMinTimelines + rest / 4 / timeline));
  if (options.prefix_cache_bytes.value_or(0) && *options.prefix_cache_bytes < slot + page)
    throw MemoryLimitError("one snapshot", slot + page, *options.prefix_cache_bytes, *options.prefix_cache_bytes,
                           "Raise prefix_cache_bytes, or set it to 0 for no prefix cache.");
  const std::uint64_t cache = options.prefix_cache_bytes.value_or(rest / 4);
  state.snapshot_limit = cache < slot + page ? 0 : cache;
  // Half in slots, half in pages: what conversations need that keep a snapshot every thousand tokens or so.
  const std::uint64_t half_in_slots = state.snapshot_limit / 2 / slot;
  if (state.snapshot_limit)
    state.num_kept_slots = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(half_in_slots, 1, kMaxKeptSlots));
  const std::uint64_t kept_pages = (state.snapshot_limit - state.num_kept_slots * slot) / page;
  const std::uint64_t more_timelines = (state.num_timelines - kMinTimelines) * timeline;
  const std::uint64_t taken = more_timelines + (options.prefix_cache_bytes ? 0 : state.snapshot_limit);
  const std::uint64_t pages = wanted_pages + (rest - taken) / page;
  plan.max_context = static_cast<std::uint32_t>(options.max_context.value_or(std::min(model_context, pages * LILY_PAGE_TOKENS)));
  const std::uint64_t usable = std::uint64_t{state.num_timelines} * pages_for(plan.max_context);
  const std::uint64_t keepable = std::uint64_t{state.num_kept_slots} * pages_for(plan.max_context);
  state.num_pages = static_cast<std::uint32_t>(std::min(pages, usable) + std::min(kept_pages, keepable));
  plan.activations_bytes += state.num_timelines * step_io_bytes_per_timeline(config_);
  plan.slots_bytes = state.num_slots() * slot;
  plan.pages_bytes = state.num_pages * page;
  return plan;
}

Runtime::Recorded& Runtime::decode_recorded(std::uint32_t rows, std::uint32_t context, bool masks_follow) {
  const std::uint32_t bucket = step_bucket(context);
  return programs_.get({masks_follow ? 2u : 0u, rows, bucket}, [&] {
    Program program = decode_program(*device_, model(), rows, bucket, masks_follow);
    Recorded recorded{device_->compile(program), {}};
    recorded.stats = {program.num_dispatches(), program.num_levels()};
    return recorded;
  });
}

Runtime::Recorded& Runtime::prefill_recorded(std::uint32_t rows, bool wants_logits) {
  return programs_.get({1, rows, wants_logits}, [&] {
    Program program = prefill_program(*device_, model(), rows, wants_logits);
    Recorded recorded{device_->compile(program), {}};
    recorded.stats = {program.num_dispatches(), program.num_levels()};
    return recorded;
  });
}

ProgramStats Runtime::decode_stats(std::uint32_t context) {
  if (context == 0 || context > plan_.max_context)
    throw std::invalid_argument("context " + std::to_string(context) + " is outside of 1 to " +
                                std::to_string(plan_.max_context));
  const auto turn = take_turn();
  return decode_recorded(1, context, false).stats;
}

ProgramStats Runtime::prefill_stats(std::uint32_t rows) {
  if (rows == 0 || rows > max_chunk_tokens())
    throw std::invalid_argument("a prefill chunk has 1 to " + std::to_string(max_chunk_tokens()) + " tokens, not " +
                                std::to_string(rows));
  const auto turn = take_turn();
  return prefill_recorded(rows, true).stats;
}

Timeline Runtime::open() {
  const auto turn = take_turn();
  Timeline timeline = state_->open();
  has_mask_[timeline.row] = false;
  return timeline;
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
    state_->close(*timeline);
    closed_.push_back(std::move(timeline));
  }
  // A row is free when nobody looks at its logits any more.
  std::erase_if(closed_, [&](const auto& timeline) {
    if (timeline.use_count() > 1) return false;
    state_->release_row(*timeline);
    return true;
  });
  for (Snapshot& snapshot : releasing_) state_->drop(snapshot);
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
  state_->reset(timeline);
}

Timeline Runtime::fork(const Timeline& timeline) {
  const auto turn = take_turn();
  check_open(timeline);
  Timeline branch = state_->open();
  state_->restore(branch, timeline);
  const auto copy_row = [&](auto&& table, std::size_t length) {
    std::ranges::copy_n(table.begin() + std::ptrdiff_t(timeline.row * length), std::ptrdiff_t(length),
                        table.begin() + std::ptrdiff_t(branch.row * length));
  };
  copy_row(logits_rows(), config_.vocab_size);
  copy_row(io_->counts.rows(), config_.vocab_size);
  copy_row(io_->mask.rows(), (config_.vocab_size + 31) / 32);
  copy_row(io_->tokens.rows(), 1);
  has_mask_[branch.row] = has_mask_[timeline.row];
  branch.has_token = timeline.has_token;
  branch.has_logits = timeline.has_logits;
  return branch;
}

void Runtime::reserve(Timeline& timeline, std::uint32_t num_tokens) {
  const auto turn = take_turn();
  check_open(timeline);
  if (num_tokens > timeline.num_tokens) check_room(timeline, num_tokens - timeline.num_tokens);
  state_->reserve(timeline, num_tokens);
}

Snapshot Runtime::snapshot(const Timeline& timeline) {
  const auto turn = take_turn();
  check_open(timeline);
  return state_->snapshot(timeline);
}

void Runtime::restore(Timeline& timeline, const Snapshot& snapshot) {
  const auto turn = take_turn();
  check_open(timeline);
  state_->restore(timeline, snapshot);
}

HostState Runtime::read_state(const Timeline& timeline) {
  const auto turn = take_turn();
  check_open(timeline);
  return lily::read_state(*device_, config_, *state_, timeline);
}

HostState Runtime::read_state(const Snapshot& snapshot) {
  const auto turn = take_turn();
  return lily::read_state(*device_, config_, *state_, snapshot);
}

void Runtime::load_state(Timeline& timeline, const HostState& from, std::optional<std::span<const float>> logits) {
  const auto turn = take_turn();
  check_open(timeline);
  state_->reset(timeline);
  if (from.num_tokens == 0) return;
  check_room(timeline, from.num_tokens);
  state_->begin(timeline, from.num_tokens);
  write_state(*device_, config_, *state_, timeline.spare, timeline.pages, from);
  state_->finish(timeline, from.num_tokens);
  timeline.has_logits = logits.has_value();
  if (logits) std::ranges::copy(*logits, logits_rows().begin() + std::ptrdiff_t(std::size_t{timeline.row} * config_.vocab_size));
}

StateUse Runtime::state_use() {
  const auto turn = take_turn();
  return state_->use();
}

void Runtime::discard_free() {
  const auto turn = take_turn();
  state_->discard_free();
}

void Runtime::check_room(const Timeline& timeline, std::uint32_t num_tokens) const {
  if (num_tokens > plan_.max_context - timeline.num_tokens)
    throw std::invalid_argument(std::to_string(timeline.num_tokens) + " + " + std::to_string(num_tokens) +
                                " tokens exceed the context of " + std::to_string(plan_.max_context));
}

void Runtime::check_token_ids(std::span<const std::uint32_t> token_ids) const {
  for (const std::uint32_t id : token_ids)
    if (id >= config_.vocab_size)
      throw std::invalid_argument("token id " + std::to_string(id) + " is outside of the vocabulary of " +
                                  std::to_string(config_.vocab_size));
}

void Runtime::write_step_row(std::uint32_t row, const Timeline& timeline, std::uint32_t position, bool wants_logits,
                             const Sampling* sampling) {
  io_->step[row] = {.token_slot = timeline.row,
                    .position = position,
                    .slot_in = timeline.slot,
                    .slot_out = timeline.spare,
                    .page_begin = timeline.row * config_.max_pages,
                    .sample_row = sampling ? timeline.row : LILY_NO_SAMPLE,
                    .timeline = timeline.row,
                    .wants_logits = wants_logits};
  if (!sampling) return;
  if (sampling->bias.size() > kMaxBiasEntries)
    throw std::invalid_argument("logit_bias has " + std::to_string(sampling->bias.size()) + " entries; at most " +
                                std::to_string(kMaxBiasEntries) + " are supported");
  SampleRow& sample = io_->samples[timeline.row];
  sample = sampling->row;
  sample.bias_begin = timeline.row * kMaxBiasEntries;
  sample.bias_end = sample.bias_begin + static_cast<lily_u32>(sampling->bias.size());
  sample.uses_mask = has_mask_[timeline.row];
  sample.uses_counts = sample.presence_penalty != 0 || sample.frequency_penalty != 0 || sample.repetition_penalty != 1;
  sample.token_slot = timeline.row;
  std::ranges::copy(sampling->bias, io_->bias.rows().begin() + sample.bias_begin);
}

void Runtime::run(Recorded& recorded, const CancelFlag* cancel) {
  io_->flags[0] = {};
  for (std::uint32_t segment = 0; segment < recorded.executable->num_segments(); ++segment) {
    if (cancel && cancel->load(std::memory_order_relaxed)) throw CancelledError();
    device_->wait(device_->commit(*recorded.executable, segment));
  }
  check_run();
}

void Runtime::run_around(Recorded& recorded, const std::function<void()>& work) {
  io_->flags[0] = {};
  const Device::Ticket first = device_->commit(*recorded.executable, 0);
  try {
    work();
  } catch (...) {
    device_->wait(first);  // it must not write into what the next step uses
    throw;
  }
  device_->wait(device_->commit(*recorded.executable, 1));
  check_run();
}

void Runtime::check_run() const {
  checkpoint_.require_unchanged();  // after the work: what was computed from other bytes is never returned
  if (io_->flags[0].nan)
    throw DeviceError(std::string(device_->name()), "lm_head", "nan",
                      "the logits hold NaN or infinity: the checkpoint's weights are damaged, or the device computed wrongly");
  if (io_->flags[0].abort)
    throw DeviceError(std::string(device_->name()), "experts_up", "missing_expert", "a chosen expert is not loaded");
}

std::optional<SampleResult> Runtime::result_of(const Timeline& timeline, const Sampling* sampling) {
  if (!sampling) return std::nullopt;
  const SampleResult result = io_->results[timeline.row];
  if (result.token_id == LILY_NO_SAMPLE)
    throw std::invalid_argument("no token may be drawn: logit_bias and the token mask forbid the whole vocabulary");
  return result;
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
  state_->begin(timeline, count);
  write_step_row(0, timeline, timeline.num_tokens, false, nullptr);
  write_step_row(1, timeline, timeline.num_tokens + count - 1, wants_logits, sampling);
  std::ranges::copy(token_ids, io_->chunk.rows().begin());
  timeline.has_token = timeline.has_logits = false;
  run(prefill_recorded(count, wants_logits), cancel);
  const std::optional<SampleResult> result = result_of(timeline, sampling);
  state_->finish(timeline, count);
  timeline.has_token = result.has_value();
  timeline.has_logits = wants_logits;
  return result;
}

std::vector<std::optional<SampleResult>> Runtime::decode(std::span<Timeline* const> timelines,
                                                         std::optional<std::span<const std::uint32_t>> token_ids,
                                                         std::span<const Sampling* const> samplings,
                                                         std::span<const FillMask> fill_masks) {
  const auto turn = take_turn();
  const auto rows = static_cast<std::uint32_t>(timelines.size());
  if (timelines.empty() || timelines.size() > kMaxStepRows)
    throw std::invalid_argument("a step has 1 to " + std::to_string(kMaxStepRows) + " timelines, not " +
                                std::to_string(timelines.size()));
  if ((token_ids && token_ids->size() != rows) || samplings.size() != rows || (!fill_masks.empty() && fill_masks.size() != rows))
    throw std::invalid_argument("timelines, token ids, samplings and masks of a step differ in number");
  if (std::set<Timeline*>(timelines.begin(), timelines.end()).size() != rows)
    throw std::invalid_argument("a step takes each timeline once");
  for (const Timeline* timeline : timelines) check_open(*timeline);
  if (token_ids) check_token_ids(*token_ids);
  if (!token_ids && !std::ranges::all_of(timelines, &Timeline::has_token))
    throw std::invalid_argument("a step without token ids continues drawn tokens, but a timeline's last step drew none");
  std::uint32_t context = 0;
  for (std::uint32_t row = 0; row < rows; ++row) {
    Timeline& timeline = *timelines[row];
    check_room(timeline, 1);
    state_->begin(timeline, 1);
    context = std::max(context, timeline.num_tokens + 1);
  }
  const bool masks_follow = std::ranges::any_of(fill_masks, [](const FillMask& fill) { return fill != nullptr; });
  for (std::uint32_t row = 0; row < rows; ++row) {
    if (masks_follow && fill_masks[row]) has_mask_[timelines[row]->row] = true;
    write_step_row(row, *timelines[row], timelines[row]->num_tokens, true, samplings[row]);
    if (token_ids) io_->tokens[timelines[row]->row] = (*token_ids)[row];
  }
  for (Timeline* timeline : timelines) timeline->has_token = timeline->has_logits = false;
  Recorded& recorded = decode_recorded(rows, context, masks_follow);
  if (masks_follow) {
    run_around(recorded, [&] {
      for (std::uint32_t row = 0; row < rows; ++row)
        if (fill_masks[row]) fill_masks[row](mask_words(*timelines[row]));
    });
  } else {
    run(recorded, nullptr);
  }
  std::vector<std::optional<SampleResult>> results;
  for (std::uint32_t row = 0; row < rows; ++row) results.push_back(result_of(*timelines[row], samplings[row]));
  for (std::uint32_t row = 0; row < rows; ++row) {
    state_->finish(*timelines[row], 1);
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
  const auto counts = io_->counts.rows().subspan(std::size_t{timeline.row} * config_.vocab_size, config_.vocab_size);
  std::ranges::fill(counts, 0);
  for (const std::uint32_t id : prompt_ids) counts[id] |= LILY_COUNT_IN_PROMPT;
  for (const std::uint32_t id : output_ids) ++counts[id];
}

void Runtime::set_token_mask(Timeline& timeline, std::optional<std::span<const std::uint32_t>> words) {
  const auto turn = take_turn();
  check_open(timeline);
  if (words) copy_mask(*words, mask_words(timeline));
  has_mask_[timeline.row] = words.has_value();
}

void copy_mask(std::span<const std::uint32_t> from, std::span<std::uint32_t> to) {
  if (from.size() != to.size())
    throw std::invalid_argument("a token mask has " + std::to_string(to.size()) + " words of 32 tokens, not " +
                                std::to_string(from.size()));
  std::ranges::copy(from, to.begin());
}

std::span<std::uint32_t> Runtime::mask_words(const Timeline& timeline) const {
  const std::size_t row_words = (config_.vocab_size + 31) / 32;
  return io_->mask.rows().subspan(timeline.row * row_words, row_words);
}

std::span<float> Runtime::logits_rows() const {
  return {static_cast<float*>(activations_->logits->contents()), std::size_t{plan_.state.num_timelines} * config_.vocab_size};
}

const float* Runtime::logits(const Timeline& timeline) const {
  if (!timeline.has_logits)
    throw std::logic_error("there are no logits: the timeline's last call failed or did not compute them");
  return logits_rows().data() + std::size_t{timeline.row} * config_.vocab_size;
}

}  // namespace lily
