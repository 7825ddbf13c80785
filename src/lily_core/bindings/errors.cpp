// C++ exceptions as the classes of lily.errors, with their attributes.
#include "error.h"

#include <nanobind/stl/string.h>

#include "bindings/bindings.h"
#include "device/device.h"
#include "model/runtime.h"

namespace nb = nanobind;

namespace lily {
namespace {

void raise(const char* name, const std::exception& error, const nb::dict& attributes) {
  const nb::object type = nb::module_::import_("lily.errors").attr(name);
  const nb::object instance = type(error.what(), **attributes);
  PyErr_SetObject(type.ptr(), instance.ptr());
}

// Empty text is no value.
nb::object text_or_none(const std::string& text) { return text.empty() ? nb::none() : nb::object(nb::str(text.c_str())); }

void translate(const std::exception_ptr& pointer, void*) {
  nb::dict attributes;
  try {
    std::rethrow_exception(pointer);
  } catch (const CheckpointError& error) {
    attributes["path"] = text_or_none(error.path);
    attributes["tensor"] = text_or_none(error.tensor);
    attributes["field"] = text_or_none(error.field);
    attributes["expected"] = text_or_none(error.expected);
    attributes["found"] = text_or_none(error.found);
    raise("CheckpointError", error, attributes);
  } catch (const MemoryLimitError& error) {
    attributes["required_bytes"] = error.required_bytes;
    attributes["available_bytes"] = error.available_bytes;
    attributes["limit_bytes"] = error.limit_bytes;
    attributes["suggestion"] = error.suggestion;
    raise("MemoryLimitError", error, attributes);
  } catch (const DeviceError& error) {
    attributes["device"] = error.device;
    attributes["kernel"] = error.kernel;
    attributes["code"] = error.code;
    attributes["fatal"] = error.fatal;
    raise("DeviceError", error, attributes);
  } catch (const CancelledError& error) {
    raise("CancelledError", error, attributes);
  }
}

}  // namespace

void bind_errors(nb::module_&) { nb::register_exception_translator(translate); }

}  // namespace lily
