// Command buffers of about 0.1 seconds.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "device/metal/cost.h"
#include "device/metal/time_budget.h"
#include "tests/device/metal/conformance/checks.h"
#include "tests/device/metal/outline_of_35b.h"

namespace lily::conformance {
namespace {

// When the GPU turns out to be slow, a program is cut into command buffers of about 0.1 seconds.
void check_split() {
  const auto device = make_device();
  Chain chain(*device);
  const auto unread = chain.make("unread", 0);
  for (int i = 0; i < 24; ++i)
    chain.program.dispatch(device->kernel("moe_plan_f16"), RowsArgs{kRows},
                           {Vectors::whole(chain.x), Vectors::whole(chain.y), Vectors::whole(unread)}, {kRows});
  const auto executable = device->compile(chain.program);
  const Device::Ticket unmeasured = device->commit(*executable, 0);
  expect(unmeasured == 1, "before anything is measured the program is one command buffer");
  device->wait(unmeasured);
  Device::Ticket last = unmeasured;
  std::string said;
  // The cuts come from the runs before: where others make the machine slower than it was then, the next run has finer ones.
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const Device::Ticket ticket = device->commit(*executable, 0);
    device->wait(ticket);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const Device::Ticket buffers = ticket - std::exchange(last, ticket);
    if (buffers > 1 && buffers > static_cast<Device::Ticket>(seconds / 0.2)) return;
    said = std::to_string(seconds) + " seconds were cut into " + std::to_string(buffers);
  }
  expect(false, said);
}

// Field `index` of a dispatch's arguments.
std::uint32_t arg_of(const Dispatch& dispatch, std::size_t index) {
  std::uint32_t value;
  std::memcpy(&value, dispatch.args.data() + index * sizeof value, sizeof value);
  return value;
}

// Makes a chunk of a program without a model begin behind so many tokens.
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
    Program prefill = outline.prefill(rows);
    std::vector<const Dispatch*> stretches;
    for (const Dispatch& dispatch : prefill.segments()[3].dispatches)
      if (is_attention(dispatch)) stretches.push_back(&dispatch);
    for (const std::uint32_t position : {0u, 131'072 - rows}) {
      const auto device = metal::make_metal_device(config_of_35b(), debug);
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

}  // namespace

const Checks& time_budget_checks() {
  static const Checks all = {
      {"split", check_split},
      {"budget", check_budget},
      {"time", check_time},
  };
  return all;
}

}  // namespace lily::conformance
