#include "bindings/bindings.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "model/safetensors.h"

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

}  // namespace

void bind_checkpoint(nb::module_& m) {
  m.def("read_safetensors_header", &read_safetensors_header, nb::arg("path"), nb::call_guard<nb::gil_scoped_release>(),
        "(name, dtype, shape, begin, end) of each tensor, in the order of its bytes [begin, end) of the file.\n\n"
        "Raises CheckpointError when the file is not a valid safetensors file.");
}

}  // namespace lily
