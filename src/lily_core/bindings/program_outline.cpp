// Programs without a model from Python, for bench/ledger.py.
#include "model/program_outline.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <tuple>

#include "bindings/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lily {
namespace {

using RangeTuple = std::tuple<std::string, std::uint64_t, std::string>;  // buffer, bytes, "r", "w" or "b"
using DispatchTuple = std::tuple<std::string, std::uint32_t, std::vector<std::uint32_t>, std::vector<RangeTuple>>;

const char* letter_of(Access access) { return access == Access::kRead ? "r" : access == Access::kWrite ? "w" : "b"; }

// Levels count through all segments. Argument structs of programs are u32 fields throughout.
std::vector<DispatchTuple> list(Program program) {
  std::vector<DispatchTuple> dispatches;
  std::uint32_t level = 0;
  for (const Segment& segment : program.segments()) {
    for (const Dispatch& dispatch : segment.dispatches) {
      std::vector<std::uint32_t> args(dispatch.args.size() / sizeof(std::uint32_t));
      std::memcpy(args.data(), dispatch.args.data(), dispatch.args.size());
      std::vector<RangeTuple> ranges;
      for (std::size_t i = 0; i < dispatch.ranges.size(); ++i) {
        const Range& range = dispatch.ranges[i];
        ranges.emplace_back(range.name(), range.length, letter_of(dispatch.kernel->accesses()[i]));
      }
      dispatches.emplace_back(dispatch.kernel->name(), level + dispatch.level, std::move(args), std::move(ranges));
    }
    level += segment.num_levels;
  }
  return dispatches;
}

constexpr const char* kDispatches = "list[tuple[str, int, list[int], list[tuple[str, int, str]]]]";

}  // namespace

void bind_program_outline(nb::module_& m) {
  static const std::string decode_signature = std::string("def decode(self, rows: int, context: int) -> ") + kDispatches;
  static const std::string prefill_signature = std::string("def prefill(self, rows: int) -> ") + kDispatches;
  nb::class_<ProgramOutline>(m, "ProgramOutline",
                        "The programs of a checkpoint for a GPU, recorded without its weights. Each dispatch is its kernel, its "
                        "level from 1, its arguments, and (buffer, bytes, access) of what it binds.")
      .def(nb::init<const std::string&, const ModelConfig&, std::uint32_t, std::uint64_t>(), nb::kw_only(), "folder"_a,
           "config"_a, "max_context"_a, "device_bytes"_a)
      .def_prop_ro("chunk_tokens", &ProgramOutline::chunk_tokens,
                   "Tokens of a prefill chunk on a GPU that may hold `device_bytes`.")
      .def(
          "decode", [](ProgramOutline& r, std::uint32_t rows, std::uint32_t context) { return list(r.decode(rows, context)); },
          "rows"_a, "context"_a, nb::sig(decode_signature.c_str()), "One step of `rows` rows at a context.")
      .def(
          "prefill", [](ProgramOutline& r, std::uint32_t rows) { return list(r.prefill(rows)); }, "rows"_a,
          nb::sig(prefill_signature.c_str()), "One chunk of `rows` tokens, without the head.");
}

}  // namespace lily
