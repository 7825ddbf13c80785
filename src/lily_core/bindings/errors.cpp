// C++ exceptions as the classes of lily.errors, with their attributes.
#include <nanobind/stl/string.h>

#include "bindings/bindings.h"
#include "device/device.h"

namespace nb = nanobind;

namespace lily {
namespace {

void raise(const char* name, const char* message, const nb::dict& attributes) {
  const nb::object type = nb::module_::import_("lily.errors").attr(name);
  const nb::object error = type(message, **attributes);
  PyErr_SetObject(type.ptr(), error.ptr());
}

}  // namespace

void bind_errors(nb::module_&) {
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const DeviceError& error) {
      nb::dict attributes;
      attributes["device"] = error.device;
      attributes["kernel"] = error.kernel;
      attributes["code"] = error.code;
      attributes["fatal"] = error.fatal;
      raise("DeviceError", error.what(), attributes);
    }
  });
}

}  // namespace lily
