#include "model/memory_plan.h"

#include <algorithm>
#include <cctype>
#include <string>

#include "error.h"
#include "model/activations.h"
#include "model/step_io.h"

namespace lily {
namespace {

constexpr std::uint32_t kMaxTimelines = 32;
constexpr std::uint32_t kMinTimelines = 2;
constexpr std::uint32_t kDefaultContext = 262'144;  // when neither the caller nor the model says a limit
constexpr std::uint32_t kMaxKeptSlots = 4096;

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

// The error of a model that needs `least` bytes and then `required` for all pages that are wanted, of `page` bytes each.
MemoryLimitError does_not_fit(const MemoryOptions& options, std::uint64_t limit, std::uint64_t least, std::uint64_t required,
                              std::uint64_t page) {
  const std::uint64_t fitting = limit > least ? (limit - least) / page * LILY_PAGE_TOKENS : 0;
  const std::uint64_t one_page = least + page;
  const std::string shorter =
      required > one_page ? ", or to " + std::to_string(one_page) + " with max_context=" + std::to_string(LILY_PAGE_TOKENS) : "";
  const std::string more = limit < options.limit_bytes ? more_device_memory(required)
                           : fitting                   ? "raise memory_limit"
                                                       : "raise memory_limit to at least " + std::to_string(required) + " bytes" +
                                                             shorter;
  const std::string fix = fitting ? "Use max_context=" + std::to_string(fitting) + " or less, or " + more : capitalized(more);
  const std::string smaller_cache = options.prefix_cache_bytes.value_or(0) ? ", or lower prefix_cache_bytes" : "";
  return {"loading the model", required, limit, limit, fix + smaller_cache + "."};
}

}  // namespace

MemoryPlan plan_memory(const ModelConfig& config, const MemoryOptions& options, std::uint64_t weights_bytes) {
  MemoryPlan plan;
  StateSizes& state = plan.state;
  const std::uint64_t device_bytes = config.traits.memory_bytes;
  const std::uint64_t limit = device_bytes ? std::min(options.limit_bytes, device_bytes) : options.limit_bytes;
  const std::uint64_t page = page_bytes(config), slot = slot_bytes(config);
  const std::uint64_t timeline = 2 * slot + step_io_bytes_per_timeline(config);
  plan.limit_bytes = limit;
  plan.weights_bytes = weights_bytes;
  plan.activations_bytes = activation_bytes(config);

  const std::uint64_t wanted_pages = pages_for(options.max_context.value_or(1));
  const std::uint64_t least = plan.weights_bytes + plan.activations_bytes + slot + options.prefix_cache_bytes.value_or(0) +
                              kMinTimelines * timeline;
  const std::uint64_t required = least + wanted_pages * page;
  if (required > limit) throw does_not_fit(options, limit, least, required, page);
  if (options.prefix_cache_bytes.value_or(0) && *options.prefix_cache_bytes < slot + page)
    throw MemoryLimitError("one snapshot", slot + page, *options.prefix_cache_bytes, *options.prefix_cache_bytes,
                           "Raise prefix_cache_bytes, or set it to 0 for no prefix cache.");

  // State of more timelines takes up to a quarter of what is left, snapshots another; pages the rest, as far as they could be
  // used.
  const std::uint64_t rest = limit - required;
  state.num_timelines = static_cast<std::uint32_t>(std::min<std::uint64_t>(kMaxTimelines, kMinTimelines + rest / 4 / timeline));
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
  const std::uint64_t model_context = options.model_context ? options.model_context : kDefaultContext;
  plan.max_context = static_cast<std::uint32_t>(options.max_context.value_or(std::min(model_context, pages * LILY_PAGE_TOKENS)));
  const std::uint64_t usable = std::uint64_t{state.num_timelines} * pages_for(plan.max_context);
  const std::uint64_t keepable = std::uint64_t{state.num_kept_slots} * pages_for(plan.max_context);
  state.num_pages = static_cast<std::uint32_t>(std::min(pages, usable) + std::min(kept_pages, keepable));

  plan.activations_bytes += state.num_timelines * step_io_bytes_per_timeline(config);
  plan.slots_bytes = state.num_slots() * slot;
  plan.pages_bytes = state.num_pages * page;
  return plan;
}

}  // namespace lily
