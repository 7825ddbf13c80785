#include "device/cpu/kernels/multiply_loop.h"

#include "device/cpu/kernels/int_tile.h"
#include "device/cpu/kernels/simd.h"

namespace lily::cpu::LILY_ISA {
namespace {

// Twelve fit 16 registers and hide the latency of two multipliers, 20 fit 32 and hide that of four.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kAccumulators = 20;
#else
constexpr int kAccumulators = 12;
#endif

// Nobody knows what is in v behind this, so what is computed from it is computed again. No instruction.
template <typename V>
inline void forget(V& v) {
#if defined(__AVX512F__)
  asm("" : "+v"(v));
#elif defined(__SSE2__)
  asm("" : "+x"(v));
#elif defined(__aarch64__)
  asm("" : "+w"(v));
#else
  asm("" : "+m"(v));
#endif
}

// As the register tile multiplies.
inline Vf multiply_add(Vf acc, Vf a, Vf b) { return acc + a * b; }
inline Vi multiply_add(Vi acc, Vi a, Vi b) {
#if defined(__AVX512VNNI__)
  return dot_quads(acc, a, b);
#elif defined(__ARM_FEATURE_MATMUL_INT8)
  return (Vi)vusmmlaq_s32((int32x4_t)acc, (uint8x16_t)a, (int8x16_t)b);
#elif defined(__ARM_FEATURE_DOTPROD)
  return (Vi)vdotq_s32((int32x4_t)acc, (int8x16_t)a, (int8x16_t)b);
#else
  return dot_pairs(acc, (Vs)a, (Vs)b);
#endif
}

// The sum of all lanes of all accumulators: how many multiplications were made, if each one is that of 1 with 1.
template <typename V>
std::uint64_t sum_of_products(V ones, std::uint32_t rounds) {
  V acc[kAccumulators] = {}, a = ones, b = ones;
  forget(a);  // a multiplication by 1 would be left out
  for (std::uint32_t round = 0; round < rounds; ++round)
#pragma GCC unroll 20
    for (int i = 0; i < kAccumulators; ++i) {
      forget(b);
      acc[i] = multiply_add(acc[i], a, b);
    }
  double total = 0;
  for (const V& sums : acc)
    for (int lane = 0; lane < kLanes; ++lane) total += sums[lane];
  return std::uint64_t(total);
}

#if defined(LILY_AMX)
// Likewise, of four tiles: they hide the latency.
std::uint64_t sum_of_tile_products(std::uint32_t rounds) {
  std::uint8_t ones[16][64];
  std::int32_t sums[4][16][16];
  std::memset(ones, 1, sizeof ones);
  set_up_tiles();
  reload();
  _tile_loadd(4, ones, sizeof ones[0]);
  _tile_loadd(5, ones, sizeof ones[0]);
  for (std::uint32_t round = 0; round < rounds; ++round) {
    _tile_dpbsud(0, 4, 5);
    _tile_dpbsud(1, 4, 5);
    _tile_dpbsud(2, 4, 5);
    _tile_dpbsud(3, 4, 5);
  }
  _tile_stored(0, sums[0], sizeof sums[0][0]);
  _tile_stored(1, sums[1], sizeof sums[0][0]);
  _tile_stored(2, sums[2], sizeof sums[0][0]);
  _tile_stored(3, sums[3], sizeof sums[0][0]);
  release_tiles();
  std::uint64_t total = 0;
  for (const auto& tile : sums)
    for (const auto& row : tile)
      for (const std::int32_t sum : row) total += std::uint64_t(sum);
  return total;
}
#endif

}  // namespace

std::uint64_t multiply_loop(Operands operands, std::uint32_t rounds) {
  if (operands == Operands::kFloat32) return sum_of_products(splat(1.0f), rounds);
  // Integers that are split into bytes take two multiplications.
#if defined(LILY_AMX)
  return sum_of_tile_products(rounds) / kIntegerParts;
#endif
  return sum_of_products(splati(kIntegerParts == 2 ? 0x01010101 : 0x00010001), rounds) / kIntegerParts;
}

}  // namespace lily::cpu::LILY_ISA
