// The two forms that matrix products of a prefill have in the shaders (LILY_GEMM_FORM), and which of them a machine should run.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "device/device.h"

namespace lily::metal {

enum class MatrixForm {
  kSimdgroup = 0,  // simdgroup matrices: every Apple GPU
  kTensor = 1,     // tensor operations: Metal 4
};

struct FormChoice {
  MatrixForm form = MatrixForm::kSimdgroup;
  std::string reason;  // for people
};

// Makes a device for a model of these sizes whose products have this form.
using MakeDevice = std::function<std::unique_ptr<Device>(const ModelConstants& model, MatrixForm form)>;

// For people.
const char* name_of(MatrixForm form);

// Runs small products of both forms and compares them: tensor operations where they give the same values and are clearly faster.
// What goes wrong with them is a reason, not an error. Throws the DeviceError of simdgroup matrices.
FormChoice choose_form(const MakeDevice& make);

}  // namespace lily::metal
