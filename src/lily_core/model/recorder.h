// Writes dispatches into a program: kernel names from stem and weight format, bindings from tensors and weights.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "program/program.h"

namespace lily {

// What one argument of a kernel binds: a whole buffer, a part of one, or all ranges of a weight.
class Binding {
 public:
  Binding(const std::unique_ptr<Buffer>& buffer) : ranges_{{buffer.get(), 0, buffer->length()}} {}
  Binding(const Range& range) : ranges_{range} {}
  Binding(const PreparedWeight& weight) : ranges_(weight.ranges), format_(&weight.format) {}

  const std::vector<Range>& ranges() const { return ranges_; }
  const std::string* format() const { return format_; }  // of a weight, else nullptr

 private:
  std::vector<Range> ranges_;
  const std::string* format_ = nullptr;
};

class Recorder {
 public:
  Recorder(Device& device, Program& program, const Precision& precision)
      : device_(device), program_(program), suffix_(precision.suffix) {}

  // `op` with the formats of the bound weights and the activation type added: ("gdn_in", …) -> gdn_in_q4g64_f32.
  template <typename Args>
  void operator()(std::string_view op, const Args& args, std::initializer_list<Binding> bindings, Extent extent) {
    record(op, "", args, bindings, extent);
  }
  // The form that works on a chunk of rows: gdn_in_q4g64_f32_tile.
  template <typename Args>
  void tile(std::string_view op, const Args& args, std::initializer_list<Binding> bindings, Extent extent) {
    record(op, "_tile", args, bindings, extent);
  }

 private:
  template <typename Args>
  void record(std::string_view op, std::string_view form, const Args& args, std::initializer_list<Binding> bindings,
              Extent extent) {
    std::string name(op);
    std::vector<Range> ranges;
    for (const Binding& binding : bindings) {
      if (binding.format()) name += "_" + *binding.format();
      ranges.insert(ranges.end(), binding.ranges().begin(), binding.ranges().end());
    }
    name += suffix_;
    name += form;
    program_.dispatch(device_.kernel(name), args, std::move(ranges), extent);
  }

  Device& device_;
  Program& program_;
  const std::string suffix_;
};

}  // namespace lily
