#include "device/cpu/cpu_executable.h"

#include <algorithm>
#include <string>

#include "device/cpu/tile_cut.h"
#include "device/cpu/tile_scheduler.h"

namespace lily::cpu {

PreparedCall::PreparedCall(const Dispatch& dispatch, const ModelConstants& model, std::uint32_t threads)
    : kernel(static_cast<const CpuKernel*>(dispatch.kernel)), ranges(dispatch.ranges), args(dispatch.args) {
  for (const Range& range : ranges) addresses.push_back(static_cast<std::byte*>(range.buffer->contents()) + range.offset);
  const KernelEntry& entry = kernel->entry();
  call = {.model = &model,
          .args = args.data(),
          .buffers = addresses.data(),
          .scratch = nullptr,
          .ready = nullptr,
          .format = entry.format,
          .second_format = entry.second_format,
          .operands = entry.operands,
          .extent = {dispatch.extent.x, dispatch.extent.y, dispatch.extent.z},
          .tile = {}};
  num_tiles = cut_into_tiles(entry, threads, call);
  scratch_bytes = entry.scratch_bytes ? entry.scratch_bytes(call) : 0;
}

CpuExecutable::CpuExecutable(Program& program, const ModelConstants& model, std::uint32_t threads) {
  for (const Segment& segment : program.segments()) {
    auto& levels = segments_.emplace_back();
    for (std::uint32_t level = 0; level < segment.num_levels; ++level) levels.push_back(std::make_unique<Level>());
    for (const Dispatch& dispatch : segment.dispatches) {
      Level& level = *levels[dispatch.level - 1];
      level.calls.push_back(std::make_unique<PreparedCall>(dispatch, model, threads));
      level.num_tiles += level.calls.back()->num_tiles;
      scratch_bytes_ = std::max(scratch_bytes_, level.calls.back()->scratch_bytes);
      if (level.num_tiles > TileScheduler::kMaxTiles)
        throw DeviceError("cpu", std::string(dispatch.kernel->name()), "tiles",
                          "a level has " + std::to_string(level.num_tiles) + " tiles; the cpu device takes at most " +
                              std::to_string(TileScheduler::kMaxTiles) + ": cut the dispatch");
    }
  }
}

}  // namespace lily::cpu
