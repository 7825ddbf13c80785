// What a CPU kernel is. Kernels are compiled once per instruction set in namespace lily::cpu::LILY_ISA; this header is shared,
// so nothing here may have code that the linker could merge between instruction sets (see cmake/cpu_kernels.cmake).
#pragma once

#include <cstddef>
#include <cstdint>

#include "lily_args.h"

namespace lily::cpu {

struct Tile {
  std::uint32_t x0, x1, y0, y1, z0, z1;  // elements [x0, x1) × [y0, y1) × [z0, z1) of the dispatch's extent
};

// How a weight's bytes are read: the format part of a kernel's name (device/weight.h).
enum class Format : std::uint8_t { kQ4, kQ4Wide, kQ8, kQ8Wide, kNone };

// What the activations of matrix products are turned into: the activation part of a kernel's name. With kInt16 the KV pool is in
// half precision.
enum class Operands : std::uint8_t { kFloat32, kInt16 };

struct KernelCall {
  const ModelConstants* model;
  const void* args;        // the kernel's argument struct
  void* const* buffers;    // bound addresses, in the order of the contract
  std::byte* scratch;      // of this thread alone, 64-byte aligned, of the size the kernel asked for
  std::uint32_t* ready;    // of this thread: what its scratch holds since an earlier range of the dispatch; 0: nothing (is_ready)
  Format format;           // of the kernel's (first) weight
  Format second_format;    // of its second one
  Operands operands;
  std::uint32_t extent[3];
  std::uint32_t tile[3];   // elements per tile along each axis
};

// Runs tiles [first, last) of the dispatch; several threads run disjoint ranges of one dispatch at the same time.
// What all ranges need (a norm, a top-k) each thread computes once, in its first one, and finds in its scratch later.
using KernelFunction = void (*)(const KernelCall& call, std::uint32_t first, std::uint32_t last);

struct KernelEntry {
  const char* op;
  bool is_tile = false;
  KernelFunction run;
  std::uint32_t tile[3];    // elements per tile; 0 = the whole axis
  std::uint32_t least_x = 0;  // tile[0] is halved while there are fewer tiles than threads, but not below this; 0: never
  std::size_t (*scratch_bytes)(const KernelCall& call) = nullptr;  // per thread, of a call without buffers; nullptr: none
  Format format = Format::kNone;
  Format second_format = Format::kNone;
  Operands operands = Operands::kFloat32;
};

// Adds the kernel for each type of operands. Defined in the device, not inline: kernels of every instruction set call the same
// code.
class KernelTable;
void add_kernel(KernelTable& table, KernelEntry entry);

// Multiplies and adds on registers alone, with the instructions of the matrix products of these operands, `rounds` times with as
// many accumulators as hide their latency. Returns how many multiplications that were.
using MultiplyLoop = std::uint64_t (*)(Operands operands, std::uint32_t rounds);
void set_multiply_loop(KernelTable& table, MultiplyLoop loop);

}  // namespace lily::cpu

namespace lily::cpu::LILY_ISA {

// Tile `index` of the dispatch; x runs fastest.
static inline Tile tile_at(const KernelCall& call, std::uint32_t index) {
  const std::uint32_t nx = (call.extent[0] + call.tile[0] - 1) / call.tile[0];
  const std::uint32_t ny = (call.extent[1] + call.tile[1] - 1) / call.tile[1];
  const std::uint32_t ix = index % nx, iy = index / nx % ny, iz = index / nx / ny;
  auto end = [](std::uint32_t begin, std::uint32_t step, std::uint32_t extent) {
    return begin + step < extent ? begin + step : extent;
  };
  Tile t;
  t.x0 = ix * call.tile[0], t.x1 = end(t.x0, call.tile[0], call.extent[0]);
  t.y0 = iy * call.tile[1], t.y1 = end(t.y0, call.tile[1], call.extent[1]);
  t.z0 = iz * call.tile[2], t.z1 = end(t.z0, call.tile[2], call.extent[2]);
  return t;
}

template <typename Args>
static inline const Args& args_of(const KernelCall& call) {
  return *static_cast<const Args*>(call.args);
}

template <typename T>
static inline T* buffer(const KernelCall& call, int index) {
  return static_cast<T*>(call.buffers[index]);
}

}  // namespace lily::cpu::LILY_ISA
