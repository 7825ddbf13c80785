// Weights as they lie in memory: codes in groups of 64 along a row, one (scale, bias) pair per group, w = scale · code + bias.
#pragma once

#include "device/cpu/kernel.h"
#include "device/cpu/kernels/simd.h"

namespace lily::cpu::LILY_ISA {

// The three ranges of one weight.
struct Weight {
  const std::uint8_t* codes;
  const std::byte* scales;
  const std::byte* biases;
};

static inline Weight weight_at(const KernelCall& call, int index) {
  return {buffer<const std::uint8_t>(call, index), buffer<const std::byte>(call, index + 1),
          buffer<const std::byte>(call, index + 2)};
}

constexpr bool is_wide(Format format) { return format == Format::kQ4Wide || format == Format::kQ8Wide; }
constexpr bool is_4_bit(Format format) { return format == Format::kQ4 || format == Format::kQ4Wide; }
constexpr std::uint32_t group_bytes(Format format) { return is_4_bit(format) ? LILY_GROUP_SIZE / 2 : LILY_GROUP_SIZE; }

// Scale or bias number `index`, counted over the whole matrix.
template <Format kFormat>
static inline float pair_value(const std::byte* pairs, std::size_t index) {
  if constexpr (is_wide(kFormat)) {
    return load<float>(pairs + index * sizeof(float));
  } else {
    return bf16_to_float(load<std::uint16_t>(pairs + index * sizeof(std::uint16_t)));
  }
}

// kLanes of them from number `index`.
template <Format kFormat>
static inline Vf pair_values(const std::byte* pairs, std::size_t index) {
  if constexpr (is_wide(kFormat)) {
    return load<Vf>(pairs + index * sizeof(float));
  } else {
    return load_bf16(pairs + index * sizeof(std::uint16_t));
  }
}

// The first `count` of them; the other lanes are 0.
template <Format kFormat>
static inline Vf pair_values_part(const std::byte* pairs, std::size_t index, std::uint32_t count) {
  if (count == std::uint32_t(kLanes)) return pair_values<kFormat>(pairs, index);
  if constexpr (is_wide(kFormat)) return load_part(reinterpret_cast<const float*>(pairs) + index, count);
#if defined(__AVX512F__)
  const __mmask16 mask = __mmask16((1u << count) - 1);
  const __m256i halves = _mm256_maskz_loadu_epi16(mask, pairs + index * sizeof(std::uint16_t));
  return (Vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16);
#else
  float values[kLanes] = {};
  for (std::uint32_t i = 0; i < count; ++i) values[i] = pair_value<kFormat>(pairs, index + i);
  return loadf(values);
#endif
}

// Calls `body.operator()<format>()` for the format of a call.
template <typename Body>
static inline void with_format(Format format, Body&& body) {
  switch (format) {
    case Format::kQ4: return body.template operator()<Format::kQ4>();
    case Format::kQ4Wide: return body.template operator()<Format::kQ4Wide>();
    case Format::kQ8: return body.template operator()<Format::kQ8>();
    case Format::kQ8Wide: return body.template operator()<Format::kQ8Wide>();
    case Format::kNone: return;
  }
}

constexpr Format kFormats[] = {Format::kQ4, Format::kQ4Wide, Format::kQ8, Format::kQ8Wide};

// The kernel for each format of its (first) weight.
static inline void add_formats(KernelTable& table, KernelEntry entry) {
  for (const Format format : kFormats) {
    entry.format = format;
    add_kernel(table, entry);
  }
}

// Row `row` of the matrix, `columns` wide.
template <Format kFormat>
static inline void dequantise_row(const Weight& w, std::size_t row, std::uint32_t columns, float* to) {
  const std::size_t first_group = row * (columns / LILY_GROUP_SIZE);
  const std::uint8_t* codes = w.codes + first_group * group_bytes(kFormat);
  for (std::uint32_t group = 0; group < columns / LILY_GROUP_SIZE; ++group) {
    const float scale = pair_value<kFormat>(w.scales, first_group + group);
    const float bias = pair_value<kFormat>(w.biases, first_group + group);
    if constexpr (is_4_bit(kFormat)) {
      for (std::uint32_t i = 0; i < LILY_GROUP_SIZE / 2; ++i) {
        to[2 * i] = scale * float(codes[i] & 15) + bias;
        to[2 * i + 1] = scale * float(codes[i] >> 4) + bias;
      }
    } else {
      for (std::uint32_t i = 0; i < LILY_GROUP_SIZE; ++i) to[i] = scale * float(codes[i]) + bias;
    }
    codes += group_bytes(kFormat);
    to += LILY_GROUP_SIZE;
  }
}

}  // namespace lily::cpu::LILY_ISA
