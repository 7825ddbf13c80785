// The checks by what they are about, and what they share: a device, and programs on it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device/metal/metal_device.h"
#include "program/program.h"
#include "tests/softmetal/softmetal.h"

namespace lily::conformance {

// Each says by expect() what is wrong, or throws.
using Checks = std::map<std::string, std::function<void()>>;

const Checks& order_checks();
const Checks& time_budget_checks();
const Checks& failure_checks();
const Checks& matrix_form_checks();

// The device's debug switch, and the folder with the headers of the 35B, for the whole process.
inline std::string debug;
inline std::string folder_of_35b;

constexpr std::uint32_t kRows = 64;

inline void expect(bool condition, const std::string& what) {
  if (!condition) std::printf("%s\n", what.c_str());
}

inline std::unique_ptr<Device> make_device() { return metal::make_metal_device(ModelConstants{}, debug); }

struct Vectors {
  explicit Vectors(Device& device) : device(device) {}
  std::unique_ptr<Buffer> make(const char* name, float value) {
    auto buffer = device.allocate(name, kRows * sizeof(float), Memory::kPrivate);
    std::vector<float> values(kRows, value);
    device.write(whole(buffer), values.data());
    return buffer;
  }
  static Range whole(const std::unique_ptr<Buffer>& buffer) { return {buffer.get(), 0, buffer->length()}; }
  void expect_all(const std::unique_ptr<Buffer>& buffer, float value) {
    std::vector<float> values(kRows);
    device.read(whole(buffer), values.data());
    for (const float got : values)
      if (got != value)
        return expect(false, buffer->name() + " holds " + std::to_string(got) + ", not " + std::to_string(value));
  }
  Device& device;
};

// d, x and y, and dispatches on them: `twice` makes x = 2 x + d, `next` makes y = x + d.
struct Chain : Vectors {
  explicit Chain(Device& device)
      : Vectors(device), d(make("d", 1)), unused(make("unused", 0)), x(make("x", 1)), y(make("y", 0)) {}
  void twice() {
    program.dispatch(device.kernel("moe_combine_f16"), RowsArgs{kRows},
                     {whole(d), whole(unused), whole(unused), whole(unused), whole(x)}, {kRows});
  }
  void next(const std::unique_ptr<Buffer>& from, const std::unique_ptr<Buffer>& to) {
    program.dispatch(device.kernel("rms_norm_f16"), RowsArgs{kRows}, {whole(from), whole(d), whole(to)}, {kRows});
  }
  void run() {
    const auto executable = device.compile(program);
    for (std::uint32_t segment = 0; segment < executable->num_segments(); ++segment)
      device.wait(device.commit(*executable, segment));
  }
  Program program;
  std::unique_ptr<Buffer> d, unused, x, y;
};

// A program of one `twice`, made ready to run.
struct Doubling {
  Doubling() { chain.twice(), executable = device->compile(chain.program); }
  void run() { device->wait(device->commit(*executable, 0)); }
  std::unique_ptr<Device> device = make_device();
  Chain chain{*device};
  std::unique_ptr<Executable> executable;
};

void change_settings(auto&& change) {
  softmetal::Settings settings = softmetal::settings();
  change(settings);
  softmetal::configure(settings);
}

}  // namespace lily::conformance
