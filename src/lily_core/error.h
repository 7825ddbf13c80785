// Errors that cross the C++ boundary. The bindings turn them into the classes of the same names in python/lily/errors.py.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace lily {

// What a CheckpointError is about. Leave out what does not apply; `fix` ends the message.
struct CheckpointFault {
  std::string path = {};
  std::string tensor = {};
  std::string field = {};
  std::string expected = {};
  std::string found = {};
  std::string fix = {};
};

// A checkpoint cannot be used.
struct CheckpointError : std::runtime_error {
  explicit CheckpointError(const std::string& problem, CheckpointFault fault = {})
      : std::runtime_error(message(problem, fault)),
        path(std::move(fault.path)),
        tensor(std::move(fault.tensor)),
        field(std::move(fault.field)),
        expected(std::move(fault.expected)),
        found(std::move(fault.found)) {}

  std::string path;
  std::string tensor;
  std::string field;
  std::string expected;
  std::string found;

 private:
  // "FILE: tensor NAME: field NAME: problem (expected A, found B). Fix."
  static std::string message(const std::string& problem, const CheckpointFault& fault) {
    std::string text;
    if (!fault.path.empty()) text += fault.path + ": ";
    if (!fault.tensor.empty()) text += "tensor " + fault.tensor + ": ";
    if (!fault.field.empty()) text += "field " + fault.field + ": ";
    text += problem;
    if (!fault.expected.empty() && !fault.found.empty())
      text += " (expected " + fault.expected + ", found " + fault.found + ")";
    else if (!fault.expected.empty())
      text += " (expected " + fault.expected + ")";
    else if (!fault.found.empty())
      text += " (found " + fault.found + ")";
    if (!fault.fix.empty()) text += ". " + fault.fix;
    return text;
  }
};

// The work does not fit into the memory budget. Thrown before it starts.
struct MemoryLimitError : std::runtime_error {
  MemoryLimitError(const std::string& work, std::uint64_t required, std::uint64_t available, std::uint64_t limit,
                   std::string how_to_fit)
      : std::runtime_error(work + " needs " + std::to_string(required) + " bytes, but " + std::to_string(available) + " of the " +
                           std::to_string(limit) + " bytes of the limit are left. " + how_to_fit),
        required_bytes(required),
        available_bytes(available),
        limit_bytes(limit),
        suggestion(std::move(how_to_fit)) {}

  std::uint64_t required_bytes;
  std::uint64_t available_bytes;
  std::uint64_t limit_bytes;
  std::string suggestion;
};

}  // namespace lily
