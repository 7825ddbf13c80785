// Model sizes from a Python mapping with the field names of ModelConstants.
#pragma once

#include <map>
#include <string>

#include "lily_args.h"

namespace lily {

// Throws std::invalid_argument for an unknown or a missing name.
ModelConstants constants_from(const std::map<std::string, std::uint32_t>& sizes, float rms_norm_eps);

}  // namespace lily
