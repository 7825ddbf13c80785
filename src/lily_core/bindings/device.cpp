// Single kernels from Python, for the kernel tests and `lily doctor --selftest`, and how fast the processor multiplies.
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <tuple>

#include "bindings/bindings.h"
#include "bindings/gil.h"
#include "bindings/sizes.h"
#include "device/cpu/multiply_rate.h"
#include "device/device.h"
#include "program/program.h"

namespace nb = nanobind;

namespace lily {
namespace {

using Array = nb::ndarray<nb::numpy, nb::c_contig, nb::device::cpu>;

class BoundDevice {
 public:
  BoundDevice(const std::string& name, const std::map<std::string, std::uint32_t>& sizes, double rms_norm_eps,
              const std::string& debug)
      : device_(make_device(name, constants_from(sizes, static_cast<float>(rms_norm_eps)), debug)) {}

  std::string description() const { return device_->description(); }
  std::uint64_t memory_bytes() const { return traits_of(device_->name()).memory_bytes; }
  std::string notes() const { return device_->notes(); }
  std::vector<std::string> kernel_names() const {
    const auto names = device_->kernel_names();
    return {names.begin(), names.end()};
  }

  void run(const std::string& kernel_name, const nb::bytes& args, const std::vector<Array>& arrays,
           const std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>& extent,
           const std::optional<std::vector<std::optional<std::pair<std::uint64_t, std::uint64_t>>>>& parts) {
    const Kernel& kernel = device_->kernel(kernel_name);
    if (parts && parts->size() != arrays.size()) throw std::invalid_argument("ranges and buffers differ in number");
    std::vector<std::unique_ptr<Buffer>> buffers;
    std::vector<Range> ranges;
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      buffers.push_back(device_->allocate("argument " + std::to_string(i), arrays[i].nbytes(), Memory::kPrivate));
      const Range whole{buffers[i].get(), 0, arrays[i].nbytes()};
      if (whole.length) device_->write(whole, arrays[i].data());
      ranges.push_back(whole);
      if (parts && (*parts)[i]) ranges[i] = {buffers[i].get(), (*parts)[i]->first, (*parts)[i]->second};
    }
    const auto* bytes = reinterpret_cast<const std::byte*>(args.c_str());
    const auto [x, y, z] = extent;
    Program program;
    program.dispatch_bytes(kernel, {bytes, bytes + args.size()}, ranges, {x, y, z});
    const auto executable = device_->compile(program);
    {
      const ReleasedGil released;
      device_->wait(device_->commit(*executable, 0));
    }
    for (std::size_t i = 0; i < arrays.size(); ++i)
      if (kernel.accesses()[i] != Access::kRead && arrays[i].nbytes())
        device_->read({buffers[i].get(), 0, arrays[i].nbytes()}, const_cast<void*>(static_cast<const void*>(arrays[i].data())));
  }

 private:
  std::unique_ptr<Device> device_;
};

}  // namespace

void bind_device(nb::module_& m) {
  nb::class_<BoundDevice>(m, "Device", "A device that runs single kernels on NumPy arrays.")
      .def(nb::init<const std::string&, const std::map<std::string, std::uint32_t>&, double, const std::string&>(),
           nb::arg("name"), nb::kw_only(), nb::arg("sizes"), nb::arg("rms_norm_eps") = 1e-6, nb::arg("debug") = "")
      .def_prop_ro("description", &BoundDevice::description)
      .def_prop_ro("notes", &BoundDevice::notes, "What the device chose to do at its start, and why; may be empty.")
      .def_prop_ro("memory_bytes", &BoundDevice::memory_bytes, "What the device can hold at once; 0: what the machine has.")
      .def("kernel_names", &BoundDevice::kernel_names)
      .def("run", &BoundDevice::run, nb::arg("kernel"), nb::arg("args"), nb::arg("buffers"), nb::arg("extent"),
           nb::arg("ranges") = nb::none(),
           nb::sig(
               "def run(self, kernel: str, args: bytes, buffers: collections.abc.Sequence[numpy.typing.NDArray[numpy.generic]], "
               "extent: tuple[int, int, int], ranges: collections.abc.Sequence[tuple[int, int] | None] | None = None) -> None"),
           "Runs one kernel. buffers: C-contiguous arrays in the order of the kernel's contract (docs/design/kernels.md); those "
           "that it "
           "writes are updated in place. args: the argument struct's bytes. ranges: (offset, length) in bytes where less than a "
           "whole "
           "buffer is bound.");
  m.def("multiply_rate", &cpu::multiply_rate, nb::arg("dtype") = "auto", nb::arg("debug") = "",
        nb::call_guard<ReleasedGil>(),
        "Operations a second, a multiplication and its addition being two, that the cpu device's threads reach together on "
        "registers alone, with the instructions that it multiplies matrices of `dtype` by.\n\n"
        "debug: its switches. Takes 0.25 seconds.");
}

}  // namespace lily
