// What int_tile.h needs of x86 with AMX: how rows of integers become bytes, and their products with a panel. A tile register
// holds 16 rows of 64 bytes: a group of 16 rows of activations, or of 16 rows of the weight, four neighbours of each in a row of
// the register, as they lie in a panel. One instruction multiplies both, 16 · 16 · 64 products of bytes.
#pragma once

#if defined(LILY_AMX)
#include <immintrin.h>

#include "device/cpu/kernel.h"
#include "device/cpu/kernels/byte_dots.h"
#include "device/cpu/kernels/shorts.h"
#include "device/cpu/kernels/simd.h"

namespace lily::cpu::LILY_ISA {

constexpr int kIntegerParts = 2;  // of an integer, q = 256 · upper + lower, both signed bytes
constexpr int code_vectors(bool /*is_4_bit*/) { return 32; }  // vectors of a group of the panel
constexpr bool has_pairs(bool /*is_4_bit*/) { return false; }
constexpr float largest_integer(bool /*is_4_bit*/) { return kLargestShort; }
constexpr int kIntTileRows = 16;

// Sets this thread's tile registers up for the products; released they are not saved when the system runs another thread. The
// configuration is a constant: g++ believes that the instruction reads 8 bytes of it, and would leave out other stores.
static inline void set_up_tiles() {
  struct alignas(64) Config {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  static constexpr Config kConfig;
  static_assert(sizeof kConfig == 64);
  _tile_loadconfig(&kConfig);
}
static inline void release_tiles() { _tile_release(); }

// Writes a group of row `row`, whose rows start at `to`: 64 upper bytes, 64 lower ones. With 4-bit codes the order is that in
// which a shift and a mask leave them: of 8 neighbours the even ones, then the odd ones.
static inline void write_group(const Vi (&integers)[4], bool is_4_bit, std::uint32_t row, std::uint32_t /*rows*/, std::byte* to) {
  __m512i parts[kIntegerParts];
  split_group(integers, 8, parts);
  if (is_4_bit) {
    const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
    for (__m512i& part : parts) part = _mm512_shuffle_epi8(part, order);
  }
  std::memcpy(to + row * kRowBytes, parts, sizeof parts);
}

// The sums of kRows rows and two vectors of columns. The registers multiply 16 rows, whatever lies behind the last one.
template <int kRows, bool kIs4Bit>
struct IntSums {
  Vi sums[kIntegerParts][2][kIntTileRows];

  // All products of a group start with its first turn; while the others find work for the vector units, they go on.
  void multiply(const Vi* panel, const std::byte* x, int turn) {
    if (turn == 0) {
      reload();  // the intrinsics do not say that they read memory
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      _tile_loadd(4, x, kRowBytes);
      _tile_loadd(5, x + LILY_GROUP_SIZE, kRowBytes);
      _tile_loadd(6, panel, 2 * sizeof(Vi));
      _tile_loadd(7, panel + 1, 2 * sizeof(Vi));
      _tile_dpbsud(0, 4, 6);
      _tile_dpbsud(1, 4, 7);
      _tile_dpbsud(2, 5, 6);
      _tile_dpbsud(3, 5, 7);
    } else if (turn == 3) {
      _tile_stored(0, sums[0][0], sizeof(Vi));
      _tile_stored(1, sums[0][1], sizeof(Vi));
      _tile_stored(2, sums[1][0], sizeof(Vi));
      _tile_stored(3, sums[1][1], sizeof(Vi));
    }
  }
  void shift() {}
  Vi row(int i, int half) const { return (sums[0][half][i] << 8) + sums[1][half][i]; }
};

}  // namespace lily::cpu::LILY_ISA
#endif
