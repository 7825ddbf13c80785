// The sizes of a model from Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unordered_map.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <stdexcept>

#include "bindings/bindings.h"
#include "bindings/sizes.h"
#include "model/runtime.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lily {
namespace {

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

}  // namespace

void bind_config(nb::module_& m) {
  nb::class_<ModelConfig>(m, "ModelConfig", "Checked sizes of a model; lily.config makes it.")
      .def("__init__",
           [](ModelConfig* self, const std::string& family, const std::vector<std::string>& layer_types,
              const std::map<std::string, std::uint32_t>& sizes, float rms_norm_eps, double rope_theta,
              const std::unordered_map<std::string, std::uint32_t>& quantization) {
             new (self) ModelConfig(make_config(family, layer_types, sizes, rms_norm_eps, rope_theta, quantization));
           },
           nb::kw_only(), "family"_a, "layer_types"_a, "sizes"_a, "rms_norm_eps"_a, "rope_theta"_a, "quantization"_a);
}

}  // namespace lily
