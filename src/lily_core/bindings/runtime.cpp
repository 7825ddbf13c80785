// A loaded model from Python. The GIL is not held while the device works.
#include "model/runtime.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>

#include "bindings/bindings.h"
#include "bindings/gil.h"
#include "bindings/handles.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lily {
namespace {

std::shared_ptr<Runtime> runtime_of(const BoundRuntime& bound, const BoundTimeline& timeline) {
  auto runtime = bound.get();
  if (timeline.runtime() != runtime) throw std::invalid_argument("the timeline belongs to another runtime");
  return runtime;
}

std::optional<SampleResult> prefill(const BoundRuntime& bound, BoundTimeline& bound_timeline, const Words& token_ids,
                                    bool wants_logits, const Sampling* sampling, const CancelFlag* cancel) {
  const auto runtime = runtime_of(bound, bound_timeline);
  const auto timeline = bound_timeline.get();
  const ReleasedGil released;
  return runtime->prefill(*timeline, span_of(token_ids), wants_logits, sampling, cancel);
}

std::vector<std::optional<SampleResult>> decode(const BoundRuntime& bound, const std::vector<BoundTimeline*>& bound_timelines,
                                                const std::optional<std::vector<std::uint32_t>>& token_ids,
                                                const std::optional<std::vector<const Sampling*>>& samplings,
                                                const std::optional<std::vector<nb::object>>& masks) {
  const auto runtime = bound.get();
  std::vector<std::shared_ptr<Timeline>> alive;
  std::vector<Timeline*> timelines;
  for (BoundTimeline* timeline : bound_timelines) {
    if (!timeline) throw std::invalid_argument("a step takes timelines, not None");
    runtime_of(bound, *timeline);
    alive.push_back(timeline->get());
    timelines.push_back(alive.back().get());
  }
  const std::vector<const Sampling*> rows = samplings.value_or(std::vector<const Sampling*>(timelines.size(), nullptr));
  std::vector<FillMask> fill_masks;
  for (std::size_t row = 0; masks && row < masks->size(); ++row) {
    const nb::object& mask = (*masks)[row];
    if (mask.is_none()) {
      fill_masks.emplace_back();
      continue;
    }
    fill_masks.emplace_back([&mask](std::span<std::uint32_t> words) {
      const AcquiredGil acquired;
      copy_mask(span_of(nb::cast<Words>(mask())), words);
    });
  }
  const ReleasedGil released;
  return runtime->decode(timelines, token_ids ? std::optional<std::span<const std::uint32_t>>(*token_ids) : std::nullopt, rows,
                         fill_masks);
}

std::map<std::string, std::uint64_t> memory_bytes(const BoundRuntime& bound) {
  const MemoryPlan& plan = bound.get()->memory();
  // Snapshots share slots and pages with the timelines: they are part of "state" and "kv".
  return {{"weights", plan.weights_bytes},
          {"activations", plan.activations_bytes},
          {"state", plan.slots_bytes},
          {"kv", plan.pages_bytes}};
}

std::map<std::string, std::uint64_t> state_use(const BoundRuntime& bound) {
  const auto runtime = bound.get();
  const StateUse use = without_gil([&] { return runtime->state_use(); });
  return {{"free_slots", use.free_slots},
          {"free_pages", use.free_pages},
          {"kept_slots", use.kept_slots},
          {"kept_pages", use.kept_pages},
          {"reclaimable_pages", use.reclaimable_pages},
          {"snapshot_bytes", use.snapshot_bytes},
          {"snapshot_limit_bytes", runtime->memory().state.snapshot_limit},
          {"max_kept_slots", runtime->memory().state.num_kept_slots},
          {"slot_bytes", slot_bytes(runtime->config())},
          {"page_bytes", page_bytes(runtime->config())}};
}

std::map<std::string, std::uint64_t> load_report(const BoundRuntime& bound) {
  const auto runtime = bound.get();
  return {{"mapped_bytes", runtime->weights().mapped_bytes},
          {"copied_bytes", runtime->weights().copied_bytes},
          {"skipped_bytes", runtime->checkpoint().skipped_bytes()},
          {"num_files", runtime->checkpoint().num_files()}};
}

std::map<std::string, std::uint32_t> stats_of(const ProgramStats& stats) {
  return {{"dispatches", stats.dispatches}, {"levels", stats.levels}};
}

std::map<std::string, std::uint32_t> decode_stats(const BoundRuntime& bound, std::uint32_t context) {
  const auto runtime = bound.get();
  const ReleasedGil released;
  return stats_of(runtime->decode_stats(context));
}

std::map<std::string, std::uint32_t> prefill_stats(const BoundRuntime& bound, std::uint32_t rows) {
  const auto runtime = bound.get();
  const ReleasedGil released;
  return stats_of(runtime->prefill_stats(rows));
}

std::unique_ptr<BoundTimeline> open_timeline(const BoundRuntime& bound) {
  const auto runtime = bound.get();
  return std::make_unique<BoundTimeline>(bound.handle(), without_gil([&] { return runtime->open(); }));
}

}  // namespace

#define LILY_MASK_FUNCTION "collections.abc.Callable[[], numpy.typing.NDArray[numpy.uint32]]"
void bind_runtime(nb::module_& m) {
  m.attr("PAGE_TOKENS") = LILY_PAGE_TOKENS;
  m.def("default_device", [] { return kDefaultDevice; }, "The device that \"auto\" means on this machine.");

  nb::class_<CancelFlag>(m, "CancelFlag", "Set from any thread to stop a running prefill between two layers.")
      .def(nb::init<>())
      .def("set", [](CancelFlag& flag) { flag.store(true); })
      .def("is_set", [](const CancelFlag& flag) { return flag.load(); });

  nb::class_<BoundRuntime>(m, "Runtime", "A loaded model.")
      .def(
          "__init__",
          [](BoundRuntime* self, const std::string& folder, const ModelConfig& config, const std::string& device,
             const std::string& dtype, std::optional<std::uint32_t> max_context, std::uint32_t model_context,
             std::uint64_t memory_limit, std::optional<std::uint64_t> prefix_cache_bytes, const std::string& debug,
             const std::optional<std::function<void(std::uint64_t, std::uint64_t)>>& progress) {
            new (self) BoundRuntime(
                folder, config,
                {device, dtype, {max_context, model_context, memory_limit, prefix_cache_bytes}, debug}, progress);
          },
          "folder"_a, "config"_a, nb::kw_only(), "device"_a = "auto", "dtype"_a = "auto", "max_context"_a = nb::none(),
          "model_context"_a = 0, "memory_limit"_a, "prefix_cache_bytes"_a = nb::none(), "debug"_a = "",
          "progress"_a = nb::none())
      .def_prop_ro("device", [](const BoundRuntime& r) { return r.get()->device_name(); })
      .def_prop_ro("device_description", [](const BoundRuntime& r) { return r.get()->device_description(); })
      .def_prop_ro("dtype", [](const BoundRuntime& r) { return r.get()->dtype(); })
      .def_prop_ro("max_context", [](const BoundRuntime& r) { return r.get()->memory().max_context; })
      .def_prop_ro("max_timelines", [](const BoundRuntime& r) { return r.get()->memory().state.num_timelines; })
      .def_prop_ro("max_chunk_tokens", [](const BoundRuntime& r) { return r.get()->max_chunk_tokens(); })
      .def_prop_ro("max_step_rows", [](const BoundRuntime&) { return kMaxStepRows; })
      .def_prop_ro("memory_limit", [](const BoundRuntime& r) { return r.get()->memory().limit_bytes; },
                   "Bytes: what was given, or what the device can hold where that is less.")
      .def_prop_ro("memory_bytes", &memory_bytes, "Planned bytes: weights, activations, state (slots), kv (pages).")
      .def_prop_ro("state_use", &state_use,
                   "Slots and pages now: free, kept by snapshots, pages reclaimable by dropping snapshots, and bytes.")
      .def("discard_free", [](const BoundRuntime& r) { without_gil([&, runtime = r.get()] { runtime->discard_free(); }); },
           "Gives the memory that no timeline and no snapshot holds back to the system, where the device can.")
      .def_prop_ro("load_report", &load_report)
      .def("decode_stats", &decode_stats, "context"_a, "Dispatches and levels of one decoded token.")
      .def("prefill_stats", &prefill_stats, "rows"_a, "Dispatches and levels of one prefill chunk.")
      .def("timeline", &open_timeline)
      .def("prefill", &prefill, "timeline"_a, "token_ids"_a, nb::kw_only(), "wants_logits"_a, "sampling"_a.none() = nb::none(),
           "cancel"_a.none() = nb::none(),
           nb::sig("def prefill(self, timeline: Timeline, token_ids: numpy.typing.NDArray[numpy.uint32], *, wants_logits: bool, "
                   "sampling: Sampling | None = None, cancel: CancelFlag | None = None) -> SampleResult | None"),
           "Extends the timeline by one chunk of 1 to max_chunk_tokens tokens. On any error the timeline is as before.")
      .def("decode", &decode, "timelines"_a, "token_ids"_a.none(), nb::kw_only(), "sampling"_a.none() = nb::none(),
           "masks"_a.none() = nb::none(),
           nb::sig("def decode(self, timelines: collections.abc.Sequence[Timeline], token_ids: collections.abc.Sequence[int] | "
                   "None, *, "
                   "sampling: collections.abc.Sequence[Sampling | None] | None = None, "
                   "masks: collections.abc.Sequence[" LILY_MASK_FUNCTION " | None] | None = None) -> list[SampleResult | None]"),
           "Appends one token to each of up to max_step_rows timelines. Without token ids each continues with the token drawn "
           "last. masks: per timeline None, or a function that gives what set_token_mask takes; it is called while the device "
           "computes the logits, and must not call this runtime.")
      .def("close", &BoundRuntime::close, "Frees the model's memory, once no view of its logits is left.");
}

}  // namespace lily
