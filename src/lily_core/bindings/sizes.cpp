#include "bindings/sizes.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

#include "device/model_sizes.h"

namespace lily {

ModelConstants constants_from(const std::map<std::string, std::uint32_t>& sizes, float rms_norm_eps) {
  ModelConstants c{};
  c.rms_norm_eps = rms_norm_eps;
  for (const auto& [name, value] : sizes) {
    const auto* known = std::ranges::find(kModelSizes, name, &ModelSize::name);
    if (known == std::end(kModelSizes)) throw std::invalid_argument("unknown model size \"" + name + "\"");
    c.*known->field = value;
  }
  for (const auto& [name, field] : kModelSizes)
    if (!sizes.contains(name)) throw std::invalid_argument("missing model size \"" + std::string(name) + "\"");
  return c;
}

}  // namespace lily
