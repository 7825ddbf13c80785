// A loaded model from Python. The GIL is not held while the device works.
#include "model/runtime.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/unordered_map.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>

#include "bindings/bindings.h"
#include "bindings/sizes.h"
#include "error.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lily {
namespace {

using Words = nb::ndarray<const std::uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using LogitsView = nb::ndarray<nb::numpy, const float, nb::ndim<1>, nb::c_contig>;

std::span<const std::uint32_t> span_of(const Words& words) { return {words.data(), words.size()}; }

ModelConfig make_config(const std::string& family, const std::vector<std::string>& layer_types,
                        const std::map<std::string, std::uint32_t>& sizes, float rms_norm_eps, double rope_theta,
                        std::unordered_map<std::string, std::uint32_t> quantization) {
  ModelConfig config{};
  static_cast<ModelConstants&>(config) = constants_from(sizes, rms_norm_eps);
  if (family != "qwen3_5_moe" && family != "qwen3_next") throw std::invalid_argument("unknown model family \"" + family + "\"");
  config.family = family == "qwen3_next" ? Family::kQwen3Next : Family::kQwen35Moe;
  for (const std::string& type : layer_types) {
    if (type != "full_attention" && type != "linear_attention")
      throw std::invalid_argument("unknown layer type \"" + type + "\"");
    config.is_full_attention.push_back(type == "full_attention");
  }
  config.num_hidden_layers = static_cast<std::uint32_t>(layer_types.size());
  config.rope_theta = rope_theta;
  const auto bits = quantization.extract("");
  if (bits.empty()) throw std::invalid_argument("quantization has no entry \"\" for the default number of bits");
  config.default_bits = bits.mapped();
  config.module_bits = std::move(quantization);
  return config;
}

Sampling make_sampling(float temperature, float top_p, std::uint32_t top_k, float min_p, float presence_penalty,
                       float frequency_penalty, float repetition_penalty, std::uint64_t seed,
                       std::optional<std::uint32_t> logprobs, const std::vector<std::pair<std::uint32_t, float>>& bias) {
  if (logprobs.value_or(0) > LILY_MAX_TOP_LOGPROBS)
    throw std::invalid_argument("logprobs is " + std::to_string(*logprobs) + "; at most " +
                                std::to_string(LILY_MAX_TOP_LOGPROBS) + " are supported");
  Sampling sampling;
  sampling.row.temperature = temperature;
  sampling.row.top_p = top_p;
  sampling.row.min_p = min_p;
  sampling.row.top_k = top_k;
  sampling.row.presence_penalty = presence_penalty;
  sampling.row.frequency_penalty = frequency_penalty;
  sampling.row.repetition_penalty = repetition_penalty;
  sampling.row.seed_low = static_cast<std::uint32_t>(seed);
  sampling.row.seed_high = static_cast<std::uint32_t>(seed >> 32);
  sampling.row.num_logprobs = logprobs.value_or(0);
  sampling.row.wants_logprob = logprobs.has_value();
  for (const auto& [token_id, value] : bias) sampling.bias.push_back({token_id, value});
  return sampling;
}

// The result of `work`, for which this thread may have to wait.
auto without_gil(auto&& work) {
  const nb::gil_scoped_release release;
  return work();
}

// Where a runtime's Python objects find it, until it is closed. Read and changed with the GIL held.
struct Handle {
  std::shared_ptr<Runtime> runtime;
};

// A timeline and the runtime that it belongs to, which may be closed.
class BoundTimeline {
 public:
  BoundTimeline(std::shared_ptr<Handle> handle, Timeline timeline)
      : handle_(std::move(handle)), timeline_(std::make_shared<Timeline>(std::move(timeline))) {}
  ~BoundTimeline() { close(); }
  BoundTimeline(const BoundTimeline&) = delete;

  const std::shared_ptr<Handle>& handle() const { return handle_; }
  // Stays alive for a running call, should another thread close the timeline meanwhile.
  std::shared_ptr<Timeline> get() const {
    if (!handle_->runtime || !timeline_) throw_closed();
    return timeline_;
  }
  std::shared_ptr<Runtime> runtime() const {
    if (!handle_->runtime || !timeline_) throw_closed();
    return handle_->runtime;
  }
  // The result of `work` on the runtime and the timeline, for which this thread may have to wait.
  auto without_gil(auto&& work) const {
    const auto runtime = this->runtime();
    const auto timeline = get();
    return lily::without_gil([&] { return work(*runtime, *timeline); });
  }
  void close() {
    if (handle_->runtime && timeline_) handle_->runtime->close(std::move(timeline_));
    timeline_.reset();
  }

  [[noreturn]] static void throw_closed() { throw std::logic_error("the timeline or its engine is closed"); }

 private:
  std::shared_ptr<Handle> handle_;
  std::shared_ptr<Timeline> timeline_;
};

// A snapshot likewise. Dropped when Python drops it.
class BoundSnapshot {
 public:
  BoundSnapshot(const std::shared_ptr<Handle>& handle, Snapshot snapshot) : handle_(handle), snapshot_(std::move(snapshot)) {}
  ~BoundSnapshot() {
    if (handle_->runtime) handle_->runtime->release(std::move(snapshot_));
  }
  BoundSnapshot(const BoundSnapshot&) = delete;

  const Snapshot& get() const { return snapshot_; }
  std::shared_ptr<Runtime> runtime() const {
    if (!handle_->runtime) throw std::logic_error("the engine of the snapshot is closed");
    return handle_->runtime;
  }

 private:
  std::shared_ptr<Handle> handle_;
  Snapshot snapshot_;
};

class BoundRuntime {
 public:
  BoundRuntime(const std::string& folder, const ModelConfig& config, const RuntimeOptions& options,
               const std::optional<std::function<void(std::uint64_t, std::uint64_t)>>& progress) {
    // In the main thread Ctrl-C ends the load, too.
    const LoadProgress report = [&](std::uint64_t done, std::uint64_t total) {
      const nb::gil_scoped_acquire acquire;
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (progress) (*progress)(done, total);
    };
    const nb::gil_scoped_release release;
    handle_->runtime = std::make_shared<Runtime>(folder, config, options, report);
  }
  ~BoundRuntime() { close(); }
  BoundRuntime(const BoundRuntime&) = delete;

  std::shared_ptr<Runtime> get() const {
    if (!handle_->runtime) throw std::logic_error("the runtime is closed");
    return handle_->runtime;
  }
  const std::shared_ptr<Handle>& handle() const { return handle_; }
  void close() {
    std::shared_ptr<Runtime> last = std::move(handle_->runtime);
    const nb::gil_scoped_release release;
    last.reset();
  }

 private:
  std::shared_ptr<Handle> handle_ = std::make_shared<Handle>();
};

std::shared_ptr<Runtime> runtime_of(const BoundRuntime& bound, const BoundTimeline& timeline) {
  auto runtime = bound.get();
  if (timeline.runtime() != runtime) throw std::invalid_argument("the timeline belongs to another runtime");
  return runtime;
}

LogitsView logits_view(BoundTimeline& bound) {
  const auto runtime = bound.runtime();
  // The view keeps the runtime's memory alive, and the row from being given to another timeline.
  using Kept = std::pair<std::shared_ptr<Runtime>, std::shared_ptr<Timeline>>;
  auto kept = std::make_unique<Kept>(runtime, bound.get());
  const float* logits = runtime->logits(*kept->second);
  nb::capsule owner(kept.release(), [](void* p) noexcept { delete static_cast<Kept*>(p); });
  return LogitsView(logits, {runtime->config().vocab_size}, owner);
}

std::optional<SampleResult> prefill(const BoundRuntime& bound, BoundTimeline& bound_timeline, const Words& token_ids,
                                    bool wants_logits, const Sampling* sampling, const CancelFlag* cancel) {
  const auto runtime = runtime_of(bound, bound_timeline);
  const auto timeline = bound_timeline.get();
  const nb::gil_scoped_release release;
  return runtime->prefill(*timeline, span_of(token_ids), wants_logits, sampling, cancel);
}

std::vector<std::optional<SampleResult>> decode(const BoundRuntime& bound, const std::vector<BoundTimeline*>& bound_timelines,
                                                const std::optional<std::vector<std::uint32_t>>& token_ids,
                                                const std::optional<std::vector<const Sampling*>>& samplings) {
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
  const nb::gil_scoped_release release;
  return runtime->decode(timelines, token_ids ? std::optional<std::span<const std::uint32_t>>(*token_ids) : std::nullopt, rows);
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

using Floats = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using FloatArray = nb::ndarray<nb::numpy, float>;
using KvArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

FloatArray to_array(std::vector<float> values, std::initializer_list<std::size_t> shape) {
  auto* owned = new std::vector<float>(std::move(values));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
  return FloatArray(owned->data(), shape, owner);
}

nb::dlpack::dtype kv_dtype(const ModelConfig& c) {
  return {static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float), static_cast<std::uint8_t>(8 * c.precision.kv_bytes), 1};
}

nb::ndarray<nb::numpy> to_kv_array(const ModelConfig& c, std::vector<std::byte> bytes, std::size_t num_tokens) {
  auto* owned = new std::vector<std::byte>(std::move(bytes));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<std::byte>*>(p); });
  return nb::ndarray<nb::numpy>(owned->data(), {2, c.num_key_value_heads, num_tokens, c.head_dim}, owner, {}, kv_dtype(c));
}

nb::tuple to_arrays(const ModelConfig& c, HostState host) {
  nb::list kv;
  for (std::vector<std::byte>& layer : host.kv) kv.append(to_kv_array(c, std::move(layer), host.num_tokens));
  const auto recurrent_state = to_array(std::move(host.recurrent_state), {c.num_linear_layers, c.linear_num_value_heads,
                                                                          c.linear_key_head_dim, c.linear_value_head_dim});
  const auto conv_state =
      to_array(std::move(host.conv_state), {c.num_linear_layers, c.linear_conv_kernel_dim - 1, c.conv_channels()});
  return nb::make_tuple(recurrent_state, conv_state, kv);
}

nb::tuple read_timeline(const BoundTimeline& bound) {
  const auto runtime = bound.runtime();
  return to_arrays(runtime->config(), bound.without_gil([](Runtime& r, const Timeline& t) { return r.read_state(t); }));
}

nb::tuple read_snapshot(const BoundSnapshot& bound) {
  const auto runtime = bound.runtime();
  return to_arrays(runtime->config(), without_gil([&] { return runtime->read_state(bound.get()); }));
}

std::unique_ptr<BoundSnapshot> keep_snapshot(const BoundTimeline& bound) {
  return std::make_unique<BoundSnapshot>(bound.handle(),
                                         bound.without_gil([](Runtime& r, const Timeline& t) { return r.snapshot(t); }));
}

void restore(const BoundTimeline& bound, const BoundSnapshot& snapshot) {
  if (snapshot.runtime() != bound.runtime()) throw std::invalid_argument("the snapshot belongs to another runtime");
  bound.without_gil([&](Runtime& r, Timeline& t) { r.restore(t, snapshot.get()); });
}

std::unique_ptr<BoundTimeline> fork(const BoundTimeline& bound) {
  return std::make_unique<BoundTimeline>(bound.handle(),
                                         bound.without_gil([](Runtime& r, const Timeline& t) { return r.fork(t); }));
}

void fill_from(std::vector<float>& target, const Floats& source, const char* name) {
  if (source.size() != target.size())
    throw std::invalid_argument(std::string(name) + " has " + std::to_string(source.size()) + " numbers; this model needs " +
                                std::to_string(target.size()));
  std::copy_n(source.data(), source.size(), target.data());
}

void load_state(const BoundTimeline& bound, std::uint32_t num_tokens, const Floats& recurrent_state, const Floats& conv_state,
                const std::vector<KvArray>& kv, const std::optional<Floats>& logits) {
  const auto runtime = bound.runtime();
  HostState host = make_host_state(runtime->config(), num_tokens);
  fill_from(host.recurrent_state, recurrent_state, "recurrent_state");
  fill_from(host.conv_state, conv_state, "conv_state");
  if (kv.size() != host.kv.size())
    throw std::invalid_argument("kv has " + std::to_string(kv.size()) + " layers; this model needs " +
                                std::to_string(host.kv.size()));
  for (std::size_t layer = 0; layer < kv.size(); ++layer) {
    if (kv[layer].dtype() != kv_dtype(runtime->config()) || kv[layer].nbytes() != host.kv[layer].size())
      throw std::invalid_argument("kv of layer " + std::to_string(layer) + " has " + std::to_string(kv[layer].nbytes()) +
                                  " bytes of " + std::to_string(kv[layer].dtype().bits) + "-bit numbers; this model needs " +
                                  std::to_string(host.kv[layer].size()) + " of " +
                                  std::to_string(kv_dtype(runtime->config()).bits) + "-bit floats");
    std::memcpy(host.kv[layer].data(), kv[layer].data(), host.kv[layer].size());
  }
  std::vector<float> row;
  if (logits) fill_from((row.resize(runtime->config().vocab_size), row), *logits, "logits");
  bound.without_gil([&](Runtime& r, Timeline& t) {
    r.load_state(t, host, logits ? std::optional<std::span<const float>>(row) : std::nullopt);
  });
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
  const nb::gil_scoped_release release;
  return stats_of(runtime->decode_stats(context));
}

std::map<std::string, std::uint32_t> prefill_stats(const BoundRuntime& bound, std::uint32_t rows) {
  const auto runtime = bound.get();
  const nb::gil_scoped_release release;
  return stats_of(runtime->prefill_stats(rows));
}

std::unique_ptr<BoundTimeline> open_timeline(const BoundRuntime& bound) {
  const auto runtime = bound.get();
  return std::make_unique<BoundTimeline>(bound.handle(), without_gil([&] { return runtime->open(); }));
}

void bind_sampling(nb::module_& m) {
  nb::class_<Sampling>(m, "Sampling", "How the next token is drawn. seed: 64 bits. bias: (token id, value) added to the logits.")
      .def("__init__",
           [](Sampling* self, float temperature, float top_p, std::uint32_t top_k, float min_p, float presence_penalty,
              float frequency_penalty, float repetition_penalty, std::uint64_t seed, std::optional<std::uint32_t> logprobs,
              const std::vector<std::pair<std::uint32_t, float>>& bias) {
             new (self) Sampling(make_sampling(temperature, top_p, top_k, min_p, presence_penalty, frequency_penalty,
                                               repetition_penalty, seed, logprobs, bias));
           },
           nb::kw_only(), "temperature"_a = 0.0f, "top_p"_a = 1.0f, "top_k"_a = 0, "min_p"_a = 0.0f, "presence_penalty"_a = 0.0f,
           "frequency_penalty"_a = 0.0f, "repetition_penalty"_a = 1.0f, "seed"_a = 0, "logprobs"_a = nb::none(),
           "bias"_a = std::vector<std::pair<std::uint32_t, float>>{});

  nb::class_<SampleResult>(m, "SampleResult", "A drawn token.")
      .def_ro("token_id", &SampleResult::token_id)
      .def_ro("logprob", &SampleResult::logprob,
              "Log-softmax of the raw logits, in nats; meaningful when logprobs were asked for.")
      .def_prop_ro(
          "top_logprobs",
          [](const SampleResult& r) {
            std::vector<std::pair<std::uint32_t, float>> top;
            for (std::uint32_t i = 0; i < r.num_logprobs; ++i) top.emplace_back(r.top_ids[i], r.top_logprobs[i]);
            return top;
          },
          "(token id, log-prob), most probable first.");
}

}  // namespace

#define LILY_ARRAY "numpy.typing.NDArray[numpy.float32]"
#define LILY_KV_ARRAY LILY_ARRAY " | numpy.typing.NDArray[numpy.float16]"
constexpr char kReadStateSignature[] = "def read_state(self) -> tuple[" LILY_ARRAY ", " LILY_ARRAY ", list[" LILY_KV_ARRAY "]]";

void bind_runtime(nb::module_& m) {
  m.attr("PAGE_TOKENS") = LILY_PAGE_TOKENS;
  m.def("default_device", [] { return kDefaultDevice; }, "The device that \"auto\" means on this machine.");
  bind_sampling(m);

  nb::class_<ModelConfig>(m, "ModelConfig", "Checked sizes of a model; lily.config makes it.")
      .def("__init__",
           [](ModelConfig* self, const std::string& family, const std::vector<std::string>& layer_types,
              const std::map<std::string, std::uint32_t>& sizes, float rms_norm_eps, double rope_theta,
              const std::unordered_map<std::string, std::uint32_t>& quantization) {
             new (self) ModelConfig(make_config(family, layer_types, sizes, rms_norm_eps, rope_theta, quantization));
           },
           nb::kw_only(), "family"_a, "layer_types"_a, "sizes"_a, "rms_norm_eps"_a, "rope_theta"_a, "quantization"_a);

  nb::class_<CancelFlag>(m, "CancelFlag", "Set from any thread to stop a running prefill between two layers.")
      .def(nb::init<>())
      .def("set", [](CancelFlag& flag) { flag.store(true); })
      .def("is_set", [](const CancelFlag& flag) { return flag.load(); });

  constexpr const char* kReadStateDoc =
      "recurrent_state [linear layers, Hv, dk, dv], conv_state [linear layers, 3, C], and per attention layer its keys and "
      "values [2, Hkv, num_tokens, D], float32 or float16 as the cache holds them: copies.";

  nb::class_<BoundSnapshot>(m, "Snapshot", "The state of a timeline at one moment; dropped with its last reference.")
      .def_prop_ro("num_tokens", [](const BoundSnapshot& s) { return s.get().num_tokens; })
      .def("read_state", &read_snapshot, nb::sig(kReadStateSignature),
           kReadStateDoc);

  nb::class_<BoundTimeline>(m, "Timeline", "One sequence of tokens and its state.")
      .def_prop_ro("num_tokens", [](BoundTimeline& t) { return t.get()->num_tokens; })
      .def_prop_ro("logits", &logits_view, nb::rv_policy::automatic,
                   nb::for_getter(nb::sig("def logits(self) -> numpy.typing.NDArray[numpy.float32]")),
                   "float32 [vocab_size], read-only and without a copy: valid until the timeline's next step.")
      .def("snapshot", &keep_snapshot,
           "Keeps the state after num_tokens tokens, shared and not copied. MemoryLimitError when snapshots hold all they may.")
      .def("restore", &restore, "snapshot"_a, "Continues from the snapshot, without logits.")
      .def("fork", &fork, "A second timeline of the same tokens, logits and counts; memory is shared until they differ.")
      .def(
          "reserve",
          [](const BoundTimeline& bound, std::uint32_t num_tokens) {
            bound.without_gil([&](Runtime& r, Timeline& t) { r.reserve(t, num_tokens); });
          },
          "num_tokens"_a,
          "Takes the memory of num_tokens tokens, prompt and completion, before any work. Raises MemoryLimitError.")
      .def("read_state", &read_timeline, nb::sig(kReadStateSignature), kReadStateDoc)
      .def("load_state", &load_state, "num_tokens"_a, "recurrent_state"_a, "conv_state"_a, "kv"_a, "logits"_a = nb::none(),
           nb::sig("def load_state(self, num_tokens: int, recurrent_state: " LILY_ARRAY ", conv_state: " LILY_ARRAY
                   ", kv: collections.abc.Sequence[" LILY_KV_ARRAY "], logits: " LILY_ARRAY " | None = None) -> None"),
           "Replaces what the timeline held by what read_state gave.")
      .def("reset", [](const BoundTimeline& bound) { bound.without_gil([](Runtime& r, Timeline& t) { r.reset(t); }); })
      .def(
          "set_token_counts",
          [](const BoundTimeline& bound, const std::vector<std::uint32_t>& prompt_ids,
             const std::vector<std::uint32_t>& output_ids) {
            bound.without_gil([&](Runtime& r, const Timeline& t) { r.set_token_counts(t, prompt_ids, output_ids); });
          },
          "prompt_ids"_a, "output_ids"_a, "Tokens that the penalties count; drawn tokens are added by the device.")
      .def(
          "set_token_mask",
          [](const BoundTimeline& bound, const std::optional<Words>& mask) {
            const auto words = mask ? std::optional(span_of(*mask)) : std::nullopt;
            bound.without_gil([&](Runtime& r, Timeline& t) { r.set_token_mask(t, words); });
          },
          "mask"_a = nb::none(),
          nb::sig("def set_token_mask(self, mask: numpy.typing.NDArray[numpy.uint32] | None = None) -> None"),
          "uint32 [ceil(vocab_size / 32)]: bit v % 32 of word v // 32 says that token v may be drawn; None: all.")
      .def("close", &BoundTimeline::close);

  nb::class_<BoundRuntime>(m, "Runtime", "A loaded model.")
      .def(
          "__init__",
          [](BoundRuntime* self, const std::string& folder, const ModelConfig& config, const std::string& device,
             const std::string& dtype, std::optional<std::uint32_t> max_context, std::uint32_t model_context,
             std::uint64_t memory_limit, std::optional<std::uint64_t> prefix_cache_bytes, std::uint32_t threads,
             const std::string& debug, const std::optional<std::function<void(std::uint64_t, std::uint64_t)>>& progress) {
            new (self) BoundRuntime(
                folder, config, {device, dtype, max_context, model_context, memory_limit, prefix_cache_bytes, {threads, debug}},
                progress);
          },
          "folder"_a, "config"_a, nb::kw_only(), "device"_a = "auto", "dtype"_a = "auto", "max_context"_a = nb::none(),
          "model_context"_a = 0, "memory_limit"_a, "prefix_cache_bytes"_a = nb::none(), "threads"_a = 0, "debug"_a = "",
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
           nb::sig("def decode(self, timelines: collections.abc.Sequence[Timeline], token_ids: collections.abc.Sequence[int] | "
                   "None, *, "
                   "sampling: collections.abc.Sequence[Sampling | None] | None = None) -> list[SampleResult | None]"),
           "Appends one token to each of up to max_step_rows timelines. Without token ids each continues with the token drawn "
           "last.")
      .def("close", &BoundRuntime::close, "Frees the model's memory, once no view of its logits is left.");
}

}  // namespace lily
