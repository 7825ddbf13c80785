// How tokens are drawn, and what was drawn, from Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>

#include "bindings/bindings.h"
#include "model/runtime.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lily {
namespace {

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

}  // namespace

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

}  // namespace lily
