// The kernels that the checks run, under names of real ones: their contracts are what the device looks up.
#pragma once

#include <string>

namespace lily::conformance {

// Gives each form of matrix products another product(), which the kernels of choose_form() call. Before the first device.
void set_products(const std::string& tensor, const std::string& simdgroup);

}  // namespace lily::conformance
