// The Metal source of a kernel, made from the files of shaders/ that were embedded when lily was built.
#pragma once

#include <string>
#include <string_view>

#include "device/contract.h"
#include "device/metal/matrix_form.h"
#include "lily_args.h"

namespace lily::metal {

// Name of the function in shaders/<op>.metal: the op, or the op with "_tile".
std::string function_name(const KernelName& name);

// Everything that the compiler reads: the sizes of the model, the formats of the weights and the form of matrix products as
// macros, then the file with its headers inlined.
std::string shader_source(const KernelName& name, const ModelConstants& model, MatrixForm form);

// Changes with any of the embedded files.
std::uint64_t shaders_digest();

}  // namespace lily::metal
