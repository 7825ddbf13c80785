// Timelines and snapshots from Python: their state in arrays.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/handles.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lily {
namespace {

using LogitsView = nb::ndarray<nb::numpy, const float, nb::ndim<1>, nb::c_contig>;

LogitsView logits_view(BoundTimeline& bound) {
  const auto runtime = bound.runtime();
  // The view keeps the runtime's memory alive, and the row from being given to another timeline.
  using Kept = std::pair<std::shared_ptr<Runtime>, std::shared_ptr<Timeline>>;
  auto kept = std::make_unique<Kept>(runtime, bound.get());
  const float* logits = runtime->logits(*kept->second);
  nb::capsule owner(kept.release(), [](void* p) noexcept { delete static_cast<Kept*>(p); });
  return LogitsView(logits, {runtime->config().vocab_size}, owner);
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
      to_array(std::move(host.conv_state), {c.num_linear_layers, LILY_CONV_TAPS - 1, c.conv_channels()});
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

void check_restart(const BoundTimeline& bound, std::uint32_t num_tokens, const BoundSnapshot* snapshot) {
  if (snapshot && snapshot->runtime() != bound.runtime())
    throw std::invalid_argument("the snapshot belongs to another runtime");
  const TokenState nothing, &from = snapshot ? snapshot->get() : nothing;
  bound.without_gil([&](Runtime& r, const Timeline& t) { r.check_restart(t, from, num_tokens); });
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

}  // namespace

#define LILY_ARRAY "numpy.typing.NDArray[numpy.float32]"
#define LILY_KV_ARRAY LILY_ARRAY " | numpy.typing.NDArray[numpy.float16]"
constexpr char kReadStateSignature[] = "def read_state(self) -> tuple[" LILY_ARRAY ", " LILY_ARRAY ", list[" LILY_KV_ARRAY "]]";

void bind_timeline(nb::module_& m) {
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
      .def("check_restart", &check_restart, "num_tokens"_a, "snapshot"_a = nb::none(),
           "Raises MemoryLimitError unless reset, or restore of the snapshot, and then reserve will find memory, once snapshots "
           "have given way. Changes nothing.")
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
}

}  // namespace lily
