// What checkpoints hold and what loading makes of them, from Python: for the tests.
#include <nanobind/ndarray.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>

#include "bindings/bindings.h"
#include "bindings/gil.h"
#include "model/weights.h"

namespace nb = nanobind;

namespace lily {
namespace {

using HeaderRow = std::tuple<std::string, std::string, std::vector<std::uint64_t>, std::uint64_t, std::uint64_t>;

std::vector<HeaderRow> read_safetensors_header(const std::string& path) {
  const TensorFile file(path);
  std::vector<HeaderRow> rows;
  for (const TensorSource& t : file.tensors())
    rows.emplace_back(t.name(), t.dtype_name(), t.shape(), t.offset(), t.offset() + t.length());
  return rows;
}

using Bytes = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;

Bytes bytes_of(Device& device, const Range& range) {
  auto* data = new std::uint8_t[range.length];
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<std::uint8_t*>(p); });
  device.read(range, data);
  return Bytes(data, {static_cast<std::size_t>(range.length)}, owner);
}

// Collects what load_weights made, under the names of the structs' members.
class WeightsReader {
 public:
  explicit WeightsReader(Device& device) : device_(device) {}

  nb::dict read(const Weights& weights, const ModelConfig& config) {
    put("embed_tokens", weights.embed_tokens);
    std::size_t linear = 0, attention = 0;
    for (std::uint32_t i = 0; i < config.num_hidden_layers; ++i) {
      const std::string layer = "layers." + std::to_string(i) + ".";
      if (config.is_full_attention[i])
        put_layer(layer, weights.attention_layers[attention++]);
      else
        put_layer(layer, weights.linear_layers[linear++]);
    }
    put("norm", weights.norm);
    put("lm_head", weights.lm_head);
    return result_;
  }

 private:
  void put(const std::string& name, const PreparedWeight& weight) {
    nb::list ranges;
    for (const Range& range : weight.ranges) ranges.append(bytes_of(device_, range));
    result_[name.c_str()] = nb::make_tuple(weight.format, ranges);
  }
  void put(const std::string& name, const Vector& vector) {
    nb::list ranges;
    ranges.append(bytes_of(device_, {vector.get(), 0, vector->length()}));
    result_[name.c_str()] = nb::make_tuple("f32", ranges);
  }
  void put_layer(const std::string& layer, const LinearLayerWeights& w) {
    put(layer + "input_norm", w.input_norm), put(layer + "gdn_in", w.gdn_in), put(layer + "conv1d", w.conv1d);
    put(layer + "A_log", w.A_log), put(layer + "dt_bias", w.dt_bias), put(layer + "norm", w.norm);
    put(layer + "gdn_out", w.gdn_out);
    put_moe(layer + "moe.", w.moe);
  }
  void put_layer(const std::string& layer, const AttentionLayerWeights& w) {
    put(layer + "input_norm", w.input_norm), put(layer + "attn_in", w.attn_in);
    put(layer + "q_norm", w.q_norm), put(layer + "k_norm", w.k_norm), put(layer + "attn_out", w.attn_out);
    put_moe(layer + "moe.", w.moe);
  }
  void put_moe(const std::string& moe, const MoeWeights& w) {
    put(moe + "norm", w.norm), put(moe + "router", w.router);
    put(moe + "experts_up", w.experts_up), put(moe + "experts_down", w.experts_down);
    put(moe + "shared_up", w.shared_up), put(moe + "shared_down", w.shared_down);
  }

  Device& device_;
  nb::dict result_;
};

nb::tuple load_weights_to_arrays(const std::string& folder, const ModelConfig& config, const std::string& device_name,
                                 const std::optional<LoadProgress>& progress) {
  const std::unique_ptr<Device> device = make_device(device_name, config, "");
  Checkpoint checkpoint(folder);
  const Weights weights = load_weights(checkpoint, config, *device, progress.value_or(LoadProgress()));
  nb::dict report;
  report["mapped_bytes"] = weights.mapped_bytes;
  report["copied_bytes"] = weights.copied_bytes;
  report["skipped_bytes"] = checkpoint.skipped_bytes();
  report["num_files"] = checkpoint.num_files();
  report["has_mtp"] = checkpoint.mtp_path().has_value();
  return nb::make_tuple(WeightsReader(*device).read(weights, config), report);
}

}  // namespace

void bind_checkpoint(nb::module_& m) {
  m.def("read_safetensors_header", &read_safetensors_header, nb::arg("path"), nb::call_guard<ReleasedGil>(),
        "(name, dtype, shape, begin, end) of each tensor, in the order of its bytes [begin, end) of the file.\n\n"
        "Raises CheckpointError when the file is not a valid safetensors file.");
  m.def("load_weights", &load_weights_to_arrays, nb::arg("folder"), nb::arg("config"), nb::arg("device") = "cpu",
        nb::arg("progress") = nb::none(),
        nb::sig("def load_weights(folder: str, config: ModelConfig, device: str = \"cpu\", "
                "progress: collections.abc.Callable[[int, int], None] | None = None) "
                "-> tuple[dict[str, tuple[str, list[numpy.typing.NDArray[numpy.uint8]]]], dict[str, int]]"),
        "Loads a checkpoint onto a device and copies it back: (format, bytes of each range) by name, and a report.\n\n"
        "progress(done_bytes, total_bytes) is called after each weight. Raises CheckpointError.");
}

}  // namespace lily
