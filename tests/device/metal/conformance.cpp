// Checks of the Metal device as a whole, over software Metal: order, replay, splitting, failures, memory.
// usage: conformance CHECK [DEBUG]. Prints what went wrong, software Metal's reports and objects left alive; silence is success.
// The kernels are this file's own, under names of real ones: their contracts are what the device looks up.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "device/metal/embedded_shaders.h"
#include "device/metal/grid.h"
#include "device/metal/metal_device.h"
#include "program/program.h"
#include "tests/softmetal/objc_runtime.h"
#include "tests/softmetal/softmetal.h"

namespace lily::metal {
namespace {

constexpr EmbeddedShader kShaders[] = {
    {"add.h", "#pragma once\ninline float add(float a, float b) { return a + b; }\n"},
    // y = x + gain[0]
    {"rms_norm.metal", R"(
#include <metal_stdlib>
#include "add.h"
#include "add.h"
kernel void rms_norm(device const float* x [[buffer(0)]], device const float* gain [[buffer(1)]], device float* y [[buffer(2)]],
                     constant uint& rows [[buffer(3)]], uint i [[thread_position_in_grid]]) {
  if (i < rows) y[i] = add(x[i], gain[0]);
}
)"},
    // x = 2 x + d[0]
    {"moe_combine.metal", R"(
#include <metal_stdlib>
kernel void moe_combine(device const float* d [[buffer(0)]], device const float* weights [[buffer(1)]],
                        device const float* s [[buffer(2)]], device const float* gate [[buffer(3)]],
                        device float* x [[buffer(4)]], constant uint& rows [[buffer(5)]], uint i [[thread_position_in_grid]]) {
  if (i < rows) x[i] = 2.0f * x[i] + d[0];
}
)"},
    // Reads one element more than there is.
    {"gated_norm.metal", R"(
#include <metal_stdlib>
kernel void gated_norm(device const float* o [[buffer(0)]], device const float* z [[buffer(1)]],
                       device const float* norm [[buffer(2)]], device float* y [[buffer(3)]], constant uint& rows [[buffer(4)]],
                       uint i [[thread_position_in_grid]]) {
  if (i < rows) y[i] = o[i + 4];
}
)"},
    // Takes milliseconds.
    {"moe_plan.metal", R"(
#include <metal_stdlib>
kernel void moe_plan(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], device float* z [[buffer(2)]],
                     constant uint& rows [[buffer(3)]], uint i [[thread_position_in_grid]]) {
  float value = x[i];
  for (uint k = 0; k < 100000u; ++k) value = value * 0.999f + 1.0f;
  y[i] = value;
}
)"},
    {"topk.metal", "#include <metal_stdlib>\nkernel void topk(device const float* x [[buffer(0)]]) { nonsense; }\n"},
};

constexpr Grid kGrids[] = {
    {"gated_norm", false, {32, 1, 1}, 32},
    {"moe_combine", false, {32, 1, 1}, 32},
    {"moe_plan", false, {32, 1, 1}, 32},
    {"rms_norm", false, {32, 1, 1}, 32},
    {"topk", false, {32, 1, 1}, 32},
};

}  // namespace

std::span<const EmbeddedShader> embedded_shaders() { return kShaders; }
std::span<const Grid> grids() { return kGrids; }
const Grid* find_grid(std::string_view op, bool is_tile) {
  for (const Grid& grid : kGrids)
    if (grid.op == op && grid.is_tile == is_tile) return &grid;
  return nullptr;
}

}  // namespace lily::metal

namespace {

using namespace lily;

constexpr std::uint32_t kRows = 64;
std::string debug;

void expect(bool condition, const std::string& what) {
  if (!condition) std::printf("%s\n", what.c_str());
}

std::unique_ptr<Device> make_device() { return metal::make_metal_device(ModelConstants{}, {0, debug}); }

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

// Reads after writes, writes after reads, and two dispatches of one level.
void check_order() {
  const auto device = make_device();
  Chain chain(*device);
  const auto other = chain.make("other", 0);
  chain.twice();                      // x = 3
  chain.next(chain.x, chain.y);       // y = 4
  chain.next(chain.x, other);         // other = 4, on the same level
  chain.twice();                      // x = 7, behind both
  expect(chain.program.num_levels() == 0, "levels are derived at the end of a segment");
  chain.run();
  expect(chain.program.num_levels() == 3, "three levels");
  chain.expect_all(chain.x, 7);
  chain.expect_all(chain.y, 4);
  chain.expect_all(other, 4);
}

// Several command buffers under way, each behind the one before.
void check_submissions() {
  const auto device = make_device();
  Chain chain(*device);
  chain.twice();
  const auto executable = device->compile(chain.program);
  Device::Ticket last = 0;
  for (int i = 0; i < 20; ++i) last = device->commit(*executable, 0);
  device->wait(last);
  expect(last == 20, "a short program is one command buffer");
  chain.expect_all(chain.x, static_cast<float>((1 << 21) - 1));
}

// A replay makes nothing that stays.
void check_replay() {
  const auto device = make_device();
  Chain chain(*device);
  for (int i = 0; i < 8; ++i) chain.twice();
  const auto executable = device->compile(chain.program);
  const auto replay = [&](int times) {
    for (int i = 0; i < times; ++i) device->wait(device->commit(*executable, 0));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the queue's thread lets go a moment later
  };
  replay(10);  // every command buffer of the queue is used once
  const auto before = softmetal::live_objects();
  replay(10);
  for (const auto& [name, count] : softmetal::live_objects()) {
    const auto found = before.find(name);
    const long earlier = found == before.end() ? 0 : found->second;
    expect(count <= earlier, name + ": " + std::to_string(earlier) + " objects before ten replays, " + std::to_string(count) +
                                 " behind");
  }
}

// When the GPU turns out to be slow, a program is cut into command buffers of about 0.1 seconds.
void check_split() {
  const auto device = make_device();
  Chain chain(*device);
  const auto unread = chain.make("unread", 0);
  for (int i = 0; i < 24; ++i)
    chain.program.dispatch(device->kernel("moe_plan_f16"), RowsArgs{kRows},
                           {Vectors::whole(chain.x), Vectors::whole(chain.y), Vectors::whole(unread)}, {kRows});
  const auto executable = device->compile(chain.program);
  const auto seconds_of = [&] {
    const auto begin = std::chrono::steady_clock::now();
    device->wait(device->commit(*executable, 0));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const Device::Ticket unmeasured = device->commit(*executable, 0);
  expect(unmeasured == 1, "before anything is measured the program is one command buffer");
  device->wait(unmeasured);
  const double seconds = seconds_of();
  const Device::Ticket buffers = device->commit(*executable, 0);
  device->wait(buffers);
  const auto wanted = static_cast<Device::Ticket>(seconds / 0.2);
  expect(buffers > wanted && buffers > 3, std::to_string(seconds) + " seconds were cut into " + std::to_string(buffers) + " / 2");
}

// A failed command buffer is an error with Metal's code, and the device goes on.
void check_failure() {
  const auto device = make_device();
  Chain chain(*device);
  chain.twice();
  const auto executable = device->compile(chain.program);
  softmetal::Settings settings = softmetal::settings();
  settings.fail_code = 2;
  softmetal::configure(settings);
  std::string code;
  try {
    device->wait(device->commit(*executable, 0));
  } catch (const DeviceError& error) {
    code = error.code;
    expect(!error.fatal, "a timeout of the GPU is not fatal");
    expect(error.kernel == "moe_combine_f16", "the error names the kernel, not \"" + error.kernel + "\"");
  }
  expect(code == "gpu_timeout", "the error's code is \"" + code + "\"");
  settings.fail_code = 0;
  softmetal::configure(settings);
  device->wait(device->commit(*executable, 0));
  chain.expect_all(chain.x, 3);
}

// Metal ignores what follows some errors: the device says so from then on.
void check_fatal_failure() {
  const auto device = make_device();
  Chain chain(*device);
  chain.twice();
  const auto executable = device->compile(chain.program);
  softmetal::Settings settings = softmetal::settings();
  settings.fail_code = 4;
  softmetal::configure(settings);
  const auto code_of = [&] {
    try {
      device->wait(device->commit(*executable, 0));
    } catch (const DeviceError& error) {
      return error.code + (error.fatal ? " fatal" : "");
    }
    return std::string("no error");
  };
  std::string code = code_of();
  expect(code == "access_revoked fatal", code);
  settings.fail_code = 0;
  softmetal::configure(settings);
  code = code_of();
  expect(code == "lost fatal", code);
}

// A GPU that does not answer ends a wait.
void check_hang() {
  debug += debug.empty() ? "timeout=1" : ",timeout=1";
  softmetal::Settings settings = softmetal::settings();
  settings.stalls = true;
  {
    const auto device = make_device();
    Chain chain(*device);
    chain.twice();
    const auto executable = device->compile(chain.program);
    softmetal::configure(settings);
    std::string code, message;
    const auto begin = std::chrono::steady_clock::now();
    try {
      device->wait(device->commit(*executable, 0));
    } catch (const DeviceError& error) {
      code = error.code, message = error.what();
    }
    const auto passed = std::chrono::steady_clock::now() - begin;
    settings.stalls = false;
    softmetal::configure(settings);
    expect(code == "timeout", "the error's code is \"" + code + "\"");
    expect(message.find("still runs moe_combine_f16") != std::string::npos, message);
    expect(passed < std::chrono::seconds(20), "the wait took too long");
  }
}

// A read behind the end of a buffer.
void check_overrun() {
  const auto device = make_device();
  Chain chain(*device);
  chain.program.dispatch(device->kernel("gated_norm_f16"), RowsArgs{kRows},
                         {Vectors::whole(chain.x), Vectors::whole(chain.d), Vectors::whole(chain.d), Vectors::whole(chain.y)},
                         {kRows});
  chain.run();
}

// What the compiler says reaches the caller, with the file's own line.
void check_compile_error() {
  const auto device = make_device();
  Chain chain(*device);
  std::string code, message;
  try {
    chain.program.dispatch(device->kernel("topk_f16"), RowsArgs{kRows},
                           {Vectors::whole(chain.x), Vectors::whole(chain.y), Vectors::whole(chain.y)}, {kRows});
    chain.run();
  } catch (const DeviceError& error) {
    code = error.code, message = error.what();
  }
  expect(code == "compile", "the error's code is \"" + code + "\"");
  expect(message.find("topk.metal:2") != std::string::npos, message);
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, std::function<void()>> checks = {
      {"order", check_order},       {"submissions", check_submissions},     {"replay", check_replay},
      {"split", check_split},       {"failure", check_failure},             {"fatal_failure", check_fatal_failure},
      {"hang", check_hang},         {"overrun", check_overrun},             {"compile_error", check_compile_error},
  };
  softmetal::Settings settings;
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "reverse") settings.order = softmetal::Order::kReverse;
    if (word == "metal3") debug = "metal3";
  }
  softmetal::configure(settings);
  void* const pool = objc_autoreleasePoolPush();
  try {
    checks.at(argc > 1 ? argv[1] : "")();
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
  }
  objc_autoreleasePoolPop(pool);
  for (const std::string& report : softmetal::take_reports()) std::printf("report: %s\n", report.c_str());
  for (int i = 0; i < 200 && softmetal::live_objects().size() > 1; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  for (const auto& [name, count] : softmetal::live_objects())
    if (name != "SoftDevice") std::printf("alive: %s %ld\n", name.c_str(), count);
}
