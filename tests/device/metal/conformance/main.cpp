// Checks of the Metal device as a whole, over software Metal: order, replay, splitting, failures, memory.
// usage: conformance CHECK [metal3] [reverse] [FOLDER]; FOLDER holds the headers of the 35B. Prints what went wrong, software
// Metal's reports and objects left alive; silence is success.
// The kernels are this file's own, under names of real ones: their contracts are what the device looks up.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "device/metal/cost.h"
#include "device/metal/embedded_shaders.h"
#include "device/metal/grid.h"
#include "device/metal/metal_device.h"
#include "device/metal/time_budget.h"
#include "program/program.h"
#include "tests/device/metal/outline_of_35b.h"
#include "tests/softmetal/objc_runtime.h"
#include "tests/softmetal/softmetal.h"

namespace lily::metal {
namespace {

// product(), a function of its own in each form of matrix products; as good and as fast in both unless a check says otherwise.
std::string products;

std::string product_header(const char* tensor, const char* simdgroup) {
  const std::string begin = "#pragma once\n#include <metal_stdlib>\n#if LILY_GEMM_FORM == 1\n", end = "\n#endif\n";
  return begin + tensor + "\n#else\n" + simdgroup + end;
}

constexpr const char* kFast = "inline float product(uint i) { return float(i % 7u) + 1.0f; }";
constexpr const char* kWrong = "inline float product(uint i) { return float(i % 7u) + (i == 100u ? 2.0f : 1.0f); }";
constexpr const char* kSlow = R"(
inline float product(uint i) {
  uint hash = i;
  for (uint k = 0; k < 100u; ++k) hash = (hash ^ k) * 1664525u + 1013904223u;
  return float(i % 7u) + (hash == 0u ? 2.0f : 1.0f);
})";

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
    // The kernels that choose_form() runs.
    {"shared_down.metal", R"(
#include "product.h"
kernel void shared_down_tile(device float* s [[buffer(4)]], uint2 group [[threadgroup_position_in_grid]],
                             uint lane [[thread_index_in_simdgroup]]) {
  for (uint i = lane; i < 64u * 256u; i += 32u) s[group.y * 64u * 256u + i] = product(i);
}
)"},
    {"experts_down.metal", R"(
#include "product.h"
kernel void experts_down_tile(device float* d [[buffer(7)]], uint lane [[thread_index_in_simdgroup]]) {
  for (uint i = lane; i < 32u * 256u; i += 32u) d[i] = product(i);
}
)"},
    {"attn_prefill.metal", R"(
#include "product.h"
kernel void attn_prefill(device half* y [[buffer(6)]], constant uint& rows [[buffer(7)]],
                         uint lane [[thread_index_in_simdgroup]]) {
  for (uint i = lane; i < metal::min(rows, 16u) * 4u * 256u; i += 32u) y[i] = half(product(i));
}
)"},
    {"product.h", ""},
    {"topk.metal", "#include <metal_stdlib>\nkernel void topk(device const float* x [[buffer(0)]]) { nonsense; }\n"},
};

constexpr Grid kGrids[] = {
    {"attn_prefill", false, {0, 0, 0}, 32},
    {"experts_down", true, {0, 0, 0}, 32, 1},
    {"gated_norm", false, {32, 1, 1}, 32},
    {"moe_combine", false, {32, 1, 1}, 32},
    {"moe_plan", false, {32, 1, 1}, 32},
    {"rms_norm", false, {32, 1, 1}, 32},
    {"shared_down", true, {0, 64, 0}, 32, 1},
    {"topk", false, {32, 1, 1}, 32},
};

}  // namespace

std::span<const EmbeddedShader> embedded_shaders() {
  static const std::vector<EmbeddedShader> shaders = [] {
    std::vector<EmbeddedShader> all(std::begin(kShaders), std::end(kShaders));
    std::ranges::find(all, "product.h", &EmbeddedShader::name)->text = products;
    return all;
  }();
  return shaders;
}
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
std::string folder_of_35b;

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

// A program of one `twice`, made ready to run.
struct Doubling {
  Doubling() { chain.twice(), executable = device->compile(chain.program); }
  void run() { device->wait(device->commit(*executable, 0)); }
  std::unique_ptr<Device> device = make_device();
  Chain chain{*device};
  std::unique_ptr<Executable> executable;
};

struct Failure {
  std::string code, kernel, message;
  bool fatal = false;
};

// What `work` fails with.
Failure failure_of(auto&& work) {
  try {
    work();
  } catch (const DeviceError& error) {
    return {error.code, error.kernel, error.what(), error.fatal};
  }
  return {};
}

void expect_code(const Failure& failure, const std::string& code) {
  expect(failure.code == code, "the error's code is \"" + failure.code + "\"");
}

void change_settings(auto&& change) {
  softmetal::Settings settings = softmetal::settings();
  change(settings);
  softmetal::configure(settings);
}

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
  Doubling doubling;
  Device::Ticket last = 0;
  change_settings([](softmetal::Settings& s) { s.stalls = true; });  // so that two of them are under way for certain
  for (int i = 0; i < 2; ++i) last = doubling.device->commit(*doubling.executable, 0);
  change_settings([](softmetal::Settings& s) { s.stalls = false; });
  for (int i = 2; i < 20; ++i) last = doubling.device->commit(*doubling.executable, 0);
  doubling.device->wait(last);
  expect(last == 20, "a short program is one command buffer");
  doubling.chain.expect_all(doubling.chain.x, static_cast<float>((1 << 21) - 1));
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

// Field `index` of a dispatch's arguments.
std::uint32_t arg_of(const Dispatch& dispatch, std::size_t index) {
  std::uint32_t value;
  std::memcpy(&value, dispatch.args.data() + index * sizeof value, sizeof value);
  return value;
}

// Makes a chunk of a program that was recorded without memory begin behind so many tokens.
void set_position(const Dispatch& of_attention, std::uint32_t position) {
  static_cast<StepRow*>(of_attention.ranges.front().buffer->contents())->position = position;
}

bool is_attention(const Dispatch& dispatch) { return dispatch.kernel->name() == "attn_prefill_f16"; }

// Seconds of a dispatch of the 35B's prefill on the slowest GPU, 1 TFLOP/s, from what it multiplies: weights, or keys and values.
double counted_seconds(const Dispatch& dispatch, std::uint32_t position) {
  const double rows = arg_of(dispatch, 0);
  if (is_attention(dispatch)) {
    const double known = position + rows, first = arg_of(dispatch, 2), count = arg_of(dispatch, 3);
    const double busy = std::max(rows, 32.0);  // for 8 cores; 16 rows are 4 threadgroups
    return 4.0 * 16 * 256 * busy * std::clamp(known - first, 0.0, count) / 1e12;
  }
  const std::string name(dispatch.kernel->name());
  const auto format = name.find("_q");
  if (format == std::string::npos || name.starts_with("embed")) return 0;
  std::uint64_t longest = 0, codes = 0;  // scales and biases are shorter; gate and up are of one length
  for (const Range& range : dispatch.ranges)
    if (range.buffer->name().find(".layers.") != std::string::npos) longest = std::max(longest, range.length);
  for (const Range& range : dispatch.ranges)
    if (range.length == longest && range.buffer->name().find(".layers.") != std::string::npos) codes += range.length;
  const double elements = 8.0 * codes / (name[format + 2] - '0');
  return 2 * rows * elements * (name.starts_with("experts") ? 8.0 / 256 : 1.0) / 1e12;
}

// Segments of a chunk of the 35B are cut into command buffers of at most 0.1 seconds, and of no less than need be.
void expect_within_budget(const std::vector<Segment>& segments, std::uint32_t rows, std::uint32_t position, double pace) {
  set_position(*std::ranges::find_if(segments[3].dispatches, is_attention), position);
  double total = 0, longest = 0, shortest = 1;
  for (const Segment& segment : segments) {
    std::vector<metal::Cost> costs;
    for (const Dispatch& dispatch : segment.dispatches) costs.push_back(metal::estimate(dispatch, config_of_35b()));
    std::size_t next = 0;
    double before = 1;
    for (const metal::Cut& part : metal::cut(costs, pace)) {
      expect(part.begin == next && part.end > part.begin, "command buffers hold every dispatch once, in order");
      double seconds = 0;
      for (next = part.begin; next < part.end; ++next) seconds += counted_seconds(segment.dispatches[next], position);
      total += pace * seconds, longest = std::max(longest, pace * seconds);
      shortest = std::min(shortest, before + pace * counted_seconds(segment.dispatches[part.begin], position));
      before = pace * seconds;
    }
    expect(next == segment.dispatches.size(), "command buffers hold the whole segment");
  }
  const std::string where = std::to_string(rows) + " tokens behind " + std::to_string(position);
  expect(longest <= 0.1, "a command buffer of " + std::to_string(longest) + " seconds for " + where);
  expect(shortest > 0.08, "the next dispatch would make " + std::to_string(shortest) + " seconds for " + where);
  const double least = 4.8e9 * rows / 1e12 * pace;  // about 5 GFLOP a token, without attention and head
  expect(total > least, std::to_string(total) + " seconds in all for " + where);
}

// Whole chunks, of the length that GPUs of two classes take, and the few tokens of a prompt that are left, at the start and far
// into a prompt, on a GPU as slow as the estimate and on a fast one.
void check_budget() {
  for (const std::uint32_t context : {32'768u, 131'072u, 262'144u})
    for (const std::uint64_t device_gib : {16, 64}) {
      ProgramOutline outline = outline_of_35b(folder_of_35b, context, device_gib);
      for (const std::uint32_t rows : {outline.chunk_tokens(), 16u}) {
        Program program = outline.prefill(rows);
        for (const std::uint32_t position : {0u, context - rows})
          for (const double pace : {0.05, 1.0}) expect_within_budget(program.segments(), rows, position, pace);
      }
    }
}

// The device itself: attention of one layer of such a chunk. Far into a prompt no two of its dispatches share a command buffer;
// at the start of one only the first has anything to do, and no other is run.
void check_time() {
  for (const std::uint64_t device_gib : {16, 64}) {
    ProgramOutline outline = outline_of_35b(folder_of_35b, 131'072, device_gib);
    const std::uint32_t rows = outline.chunk_tokens();
    Program recorded = outline.prefill(rows);
    std::vector<const Dispatch*> stretches;
    for (const Dispatch& dispatch : recorded.segments()[3].dispatches)
      if (is_attention(dispatch)) stretches.push_back(&dispatch);
    for (const std::uint32_t position : {0u, 131'072 - rows}) {
      const auto device = metal::make_metal_device(config_of_35b(), {0, debug});
      Vectors vectors(*device);
      const auto unread = vectors.make("unread", 0);
      const auto step = device->allocate("step", sizeof(StepRow), Memory::kShared);
      const StepRow row{.position = position};
      device->write(Vectors::whole(step), &row);
      std::vector<std::unique_ptr<Buffer>> outputs;  // what this file's kernel writes
      Program program;
      for (const Dispatch* stretch : stretches) {
        outputs.push_back(device->allocate("y", 16 * 4 * 256 * 2, Memory::kShared));
        const Range none = Vectors::whole(unread);
        program.dispatch_bytes(device->kernel("attn_prefill_f16"), stretch->args,
                               {Vectors::whole(step), none, none, none, none, none, Vectors::whole(outputs.back())},
                               stretch->extent);
      }
      const auto executable = device->compile(program);
      const Device::Ticket buffers = device->commit(*executable, 0);
      device->wait(buffers);
      const Device::Ticket wanted = position ? stretches.size() : 1;
      const std::string where = " for " + std::to_string(rows) + " tokens behind " + std::to_string(position);
      expect(buffers == wanted, std::to_string(buffers) + " command buffers" + where);
      std::size_t ran = 0;
      for (const auto& y : outputs) ran += *static_cast<const std::uint16_t*>(y->contents()) != 0;
      expect(ran == wanted, std::to_string(ran) + " dispatches ran" + where);
    }
  }
}

// A failed command buffer is an error with Metal's code, and the device goes on.
void check_failure() {
  Doubling doubling;
  change_settings([](softmetal::Settings& s) { s.fail_code = 2; });
  const Failure failure = failure_of([&] { doubling.run(); });
  expect_code(failure, "gpu_timeout");
  expect(!failure.fatal, "a timeout of the GPU is not fatal");
  expect(failure.kernel == "moe_combine_f16", "the error names the kernel, not \"" + failure.kernel + "\"");
  change_settings([](softmetal::Settings& s) { s.fail_code = 0; });
  doubling.run();
  doubling.chain.expect_all(doubling.chain.x, 3);
}

// Metal ignores what follows some errors: the device says so from then on.
void check_fatal_failure() {
  Doubling doubling;
  for (const auto& [fail_code, expected] : {std::pair(4, "access_revoked"), std::pair(0, "lost")}) {
    change_settings([&](softmetal::Settings& s) { s.fail_code = fail_code; });
    const Failure failure = failure_of([&] { doubling.run(); });
    expect_code(failure, expected);
    expect(failure.fatal, failure.code + " is fatal");
  }
}

// A GPU that does not answer ends a wait.
void check_hang() {
  debug += debug.empty() ? "timeout=1" : ",timeout=1";
  Doubling doubling;
  change_settings([](softmetal::Settings& s) { s.stalls = true; });
  const auto begin = std::chrono::steady_clock::now();
  const Failure failure = failure_of([&] { doubling.run(); });
  const auto passed = std::chrono::steady_clock::now() - begin;
  change_settings([](softmetal::Settings& s) { s.stalls = false; });
  expect_code(failure, "timeout");
  expect(failure.message.find("still runs moe_combine_f16") != std::string::npos, failure.message);
  expect(passed < std::chrono::seconds(20), "the wait took too long");
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
  const Failure failure = failure_of([&] {
    chain.program.dispatch(device->kernel("topk_f16"), RowsArgs{kRows},
                           {Vectors::whole(chain.x), Vectors::whole(chain.y), Vectors::whole(chain.y)}, {kRows});
    chain.run();
  });
  expect_code(failure, "compile");
  expect(failure.message.find("topk.metal:2") != std::string::npos, failure.message);
}

// What the device says of its form of matrix products, with such forms.
void expect_form(const char* tensor, const char* simdgroup, const std::string& form, const std::string& why) {
  metal::products = metal::product_header(tensor, simdgroup);
  const auto device = make_device();
  const std::string said = device->description() + ": " + device->notes();
  const bool is_metal4 = debug.empty();
  const std::string expected = is_metal4 ? form : std::string("Metal 3, simdgroup matrices");
  expect(said.find(expected + ": " + (is_metal4 ? why : "tensor operations need Metal 4")) != std::string::npos,
         said + ", not " + expected + ": " + why);
}

// Tensor operations where they are right and faster, else simdgroup matrices, and why.
void check_tensor_form() {
  expect_form(metal::kFast, metal::kSlow, "Metal 4, tensor operations", "tensor operations are right and ");
}
void check_slow_tensor_form() {
  expect_form(metal::kSlow, metal::kFast, "Metal 4, simdgroup matrices", "tensor operations are right, but only ");
}
void check_wrong_tensor_form() {
  expect_form(metal::kWrong, metal::kSlow, "Metal 4, simdgroup matrices",
              "tensor operations give wrong values: shared_down is off by ");
}
void check_refused_tensor_form() {
  expect_form("nonsense;", metal::kFast, "Metal 4, simdgroup matrices",
              "tensor operations fail: Metal refuses the source of shared_down");
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, std::function<void()>> checks = {
      {"order", check_order},
      {"submissions", check_submissions},
      {"replay", check_replay},
      {"split", check_split},
      {"time", check_time},
      {"budget", check_budget},
      {"failure", check_failure},
      {"fatal_failure", check_fatal_failure},
      {"hang", check_hang},
      {"overrun", check_overrun},
      {"compile_error", check_compile_error},
      {"tensor_form", check_tensor_form},
      {"slow_tensor_form", check_slow_tensor_form},
      {"wrong_tensor_form", check_wrong_tensor_form},
      {"refused_tensor_form", check_refused_tensor_form},
  };
  softmetal::Settings settings;
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "reverse") settings.order = softmetal::Order::kReverse;
    if (word == "metal3") debug = "metal3";
    if (word.find('/') != std::string::npos) folder_of_35b = word;
  }
  softmetal::configure(settings);
  metal::products = metal::product_header(metal::kFast, metal::kFast);
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
