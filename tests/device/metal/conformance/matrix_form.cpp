// The form of matrix products that the device chooses, and what it says of it.
#include <string>

#include "tests/device/metal/conformance/checks.h"
#include "tests/device/metal/conformance/shaders.h"

namespace lily::conformance {
namespace {

const std::string kWrong = "inline float product(uint i) { return float(i % 7u) + (i == 100u ? 2.0f : 1.0f); }";

// A right one of so many steps. Even the faster form takes a millisecond: less would be lost in the time that a busy machine
// takes to let the next thread run.
std::string product_of(int steps) {
  return "inline float product(uint i) {\n  uint hash = i;\n  for (uint k = 0; k < " + std::to_string(steps) +
         "u; ++k) hash = (hash ^ k) * 1664525u + 1013904223u;\n  return float(i % 7u) + (hash == 0u ? 2.0f : 1.0f);\n}";
}
const std::string kFast = product_of(50), kSlow = product_of(5'000);

// What the device says of its form of matrix products, with such forms.
void expect_form(const std::string& tensor, const std::string& simdgroup, const std::string& form, const std::string& why) {
  set_products(tensor, simdgroup);
  const auto device = make_device();
  const std::string said = device->description() + ": " + device->notes();
  const bool is_metal4 = debug.empty();
  const std::string expected = is_metal4 ? form : std::string("Metal 3, simdgroup matrices");
  expect(said.find(expected + ": " + (is_metal4 ? why : "tensor operations need Metal 4")) != std::string::npos,
         said + ", not " + expected + ": " + why);
}

// Tensor operations where they are right and faster, else simdgroup matrices, and why.
void check_tensor_form() {
  expect_form(kFast, kSlow, "Metal 4, tensor operations", "tensor operations are right and ");
}
void check_slow_tensor_form() {
  expect_form(kSlow, kFast, "Metal 4, simdgroup matrices", "tensor operations are right, but only ");
}
void check_wrong_tensor_form() {
  expect_form(kWrong, kSlow, "Metal 4, simdgroup matrices",
              "tensor operations give wrong values: shared_down is off by ");
}
void check_refused_tensor_form() {
  expect_form("nonsense;", kFast, "Metal 4, simdgroup matrices",
              "tensor operations fail: Metal refuses the source of shared_down");
}

}  // namespace

const Checks& matrix_form_checks() {
  static const Checks all = {
      {"tensor_form", check_tensor_form},
      {"slow_tensor_form", check_slow_tensor_form},
      {"wrong_tensor_form", check_wrong_tensor_form},
      {"refused_tensor_form", check_refused_tensor_form},
  };
  return all;
}

}  // namespace lily::conformance
