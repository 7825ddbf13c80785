// Weights as they lie in memory: codes in groups of 64 along a row, one (scale, bias) pair per group, w = scale * code + bias.
// LILY_WEIGHT_BITS and LILY_WEIGHT_WIDE (and LILY_SECOND_*) in front of the source say which format a build is for.
#pragma once

#include "lily_math.h"

// Pairs are BF16 or F32. BF16 is read as its bits: exact, and no bfloat arithmetic is needed.
template <uint WIDE>
struct PairOf {
  typedef ushort type;
};
template <>
struct PairOf<1u> {
  typedef float type;
};
static inline float pair_value(ushort bits) { return as_type<float>(uint(bits) << 16); }
static inline float pair_value(float value) { return value; }

// Codes of one 16-byte word, four at a time: quad j holds codes 4j to 4j + 3 as exact floats. The bits of a code become the
// mantissa of a power of two, which is taken away again: no conversion and, for most codes, no shift.
template <uint BITS>
struct Codes {
  static constexpr constant uint kPerWord = 32u;

  static float4 quad(uint4 word, uint j) {
    const uint bits = word[j / 2u] >> (j % 2u * 16u);
    const uint4 codes = (uint4(bits) & uint4(0xfu, 0xf0u, 0xf00u, 0xf000u)) |
                        uint4(0x4b000000u, 0x49000000u, 0x47000000u, 0x45000000u);
    return as_type<float4>(codes) - float4(8388608.0f, 524288.0f, 32768.0f, 2048.0f);
  }
};
template <>
struct Codes<8u> {
  static constexpr constant uint kPerWord = 16u;

  static float4 quad(uint4 word, uint j) {
    const uint low = word[j], high = low >> 16u;
    const uint4 codes = (uint4(low, low, high, high) & uint4(0xffu, 0xff00u, 0xffu, 0xff00u)) |
                        uint4(0x4b000000u, 0x47000000u, 0x4b000000u, 0x47000000u);
    return as_type<float4>(codes) - float4(8388608.0f, 32768.0f, 8388608.0f, 32768.0f);
  }
};

// The three ranges of a weight whose rows have COLUMNS elements.
template <uint BITS, uint WIDE, uint COLUMNS>
struct Weight {
  typedef typename PairOf<WIDE>::type Pair;

  static constexpr constant uint kBits = BITS;
  static constexpr constant uint kCodesPerWord = Codes<BITS>::kPerWord;
  static constexpr constant uint kWords = COLUMNS / kCodesPerWord;  // of a row
  static constexpr constant uint kGroups = COLUMNS / 64u;           // of a row

  device const uint4* codes;
  device const Pair* scales;
  device const Pair* biases;

  // The weight whose row 0 is row `row` of this one: of a stack of experts, one expert's.
  Weight from_row(ulong row) const thread {
    Weight result;
    result.codes = codes + row * kWords;
    result.scales = scales + row * kGroups;
    result.biases = biases + row * kGroups;
    return result;
  }
  uint4 word(ulong row, uint at) const thread { return codes[row * kWords + at]; }
  // Scale and bias of the group that word `at` of the row lies in.
  float2 pair(ulong row, uint at) const thread {
    const ulong group = row * kGroups + at * kCodesPerWord / 64u;
    return float2(pair_value(scales[group]), pair_value(biases[group]));
  }
};

// Pairs of this build's weights. A second weight is in the step form of experts_down only.
typedef PairOf<LILY_WEIGHT_WIDE>::type WeightPair;
#ifdef LILY_SECOND_WIDE
typedef PairOf<LILY_SECOND_WIDE>::type SecondPair;
#endif
