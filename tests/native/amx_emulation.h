// The tile registers of AMX in plain C++, for a program compiled without it: what the instructions do by Intel's manual (Software
// Developer's Manual, volume 2), with the registers set up as amx_tile.h does. With -include.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#define LILY_AMX

struct EmulatedTiles {
  bool configured = false;
  std::uint8_t bytes[8][16][64];
};
inline thread_local EmulatedTiles emulated_tiles;

inline EmulatedTiles& tiles() {
  if (!emulated_tiles.configured) std::abort();  // the instructions would fault
  return emulated_tiles;
}

// Palette 1, and every register 16 rows of 64 bytes: the only configuration that is emulated.
inline void emulated_loadconfig(const void* config) {
  const auto* bytes = static_cast<const std::uint8_t*>(config);
  std::uint16_t widths[8];
  std::memcpy(widths, bytes + 16, sizeof widths);
  bool expected = bytes[0] == 1;
  for (int i = 1; i < 16; ++i) expected = expected && bytes[i] == 0;
  for (int i = 0; i < 8; ++i) expected = expected && widths[i] == 64 && bytes[48 + i] == 16;
  for (int i = 32; i < 48; ++i) expected = expected && bytes[i] == 0;
  for (int i = 56; i < 64; ++i) expected = expected && bytes[i] == 0;
  if (!expected) std::abort();
  emulated_tiles.configured = true;
  std::memset(emulated_tiles.bytes, 0, sizeof emulated_tiles.bytes);
}
inline void emulated_release() { emulated_tiles.configured = false; }
inline void emulated_zero(int to) { std::memset(tiles().bytes[to], 0, sizeof tiles().bytes[to]); }
inline void emulated_loadd(int to, const void* base, std::size_t stride) {
  for (int row = 0; row < 16; ++row) std::memcpy(tiles().bytes[to][row], static_cast<const char*>(base) + row * stride, 64);
}
inline void emulated_stored(int from, void* base, std::size_t stride) {
  for (int row = 0; row < 16; ++row) std::memcpy(static_cast<char*>(base) + row * stride, tiles().bytes[from][row], 64);
}
// TDPBSUD: to[m][n] += Σ_k a[m][k] · b[k / 4][4 n + k % 4], signed bytes times unsigned ones, in 32 bits.
inline void emulated_dpbsud(int to, int a, int b) {
  for (int m = 0; m < 16; ++m)
    for (int n = 0; n < 16; ++n) {
      std::int32_t sum;
      std::memcpy(&sum, &tiles().bytes[to][m][4 * n], sizeof sum);
      for (int k = 0; k < 64; ++k) sum += std::int8_t(tiles().bytes[a][m][k]) * tiles().bytes[b][k / 4][4 * n + k % 4];
      std::memcpy(&tiles().bytes[to][m][4 * n], &sum, sizeof sum);
    }
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbsud
#define _tile_loadconfig emulated_loadconfig
#define _tile_release emulated_release
#define _tile_zero emulated_zero
#define _tile_loadd emulated_loadd
#define _tile_stored emulated_stored
#define _tile_dpbsud emulated_dpbsud
