// Matrix products of one instruction set, in both kinds of operands, against plain loops in double, and the sums of integers that
// they are made of against plain loops in 64 bits: for processors where only this can be run (tools/check_arm64.sh). The digest
// is that of the tiles of 16-bit integers and 4-bit codes, whose results do not depend on the instruction set.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "device/cpu/kernels/byte_dots.h"
#include "device/cpu/kernels/gemm.h"
#include "device/cpu/kernels/matvec.h"

namespace lily::cpu {

void add_kernel(KernelTable&, KernelEntry) {}  // no table here

namespace LILY_ISA {
namespace {

struct Case {
  Format format;
  std::uint32_t rows, width, columns;  // of x; of both; rows of the weight
};

// A random weight of bits that any format may hold, and its values.
struct RandomWeight {
  RandomWeight(const Case& c, std::mt19937& random) : dense(std::size_t(c.columns) * c.width) {
    const std::size_t groups = dense.size() / LILY_GROUP_SIZE;
    codes.resize(groups * group_bytes(c.format));
    for (auto& code : codes) code = std::uint8_t(random());
    std::normal_distribution<float> normal;
    for (std::vector<std::byte>* pairs : {&scales, &biases})
      for (std::size_t i = 0; i < groups; ++i) {
        const float value = normal(random);
        std::uint32_t bits;
        std::memcpy(&bits, &value, sizeof bits);
        const auto* from = reinterpret_cast<const std::byte*>(&bits);
        if (is_wide(c.format)) {
          pairs->insert(pairs->end(), from, from + 4);
        } else {
          pairs->insert(pairs->end(), from + 2, from + 4);  // little-endian: the upper half is the bfloat16
        }
      }
    with_format(c.format, [&]<Format kFormat>() {
      for (std::size_t i = 0; i < dense.size(); ++i) {
        const int code = is_4_bit(kFormat) ? codes[i / 2] >> (i % 2 * 4) & 15 : codes[i];
        dense[i] = double(pair_value<kFormat>(scales.data(), i / 64)) * code + double(pair_value<kFormat>(biases.data(), i / 64));
      }
    });
  }
  Weight weight() const { return {codes.data(), scales.data(), biases.data()}; }

  std::vector<std::uint8_t> codes;
  std::vector<std::byte> scales, biases;
  std::vector<double> dense;
};

// The error against what is summed up, Σ (w x)²: the sum itself may nearly vanish.
double rms_ratio(const std::vector<double>& reference, double squares, const std::vector<float>& got) {
  double error = 0;
  for (std::size_t i = 0; i < got.size(); ++i) error += (got[i] - reference[i]) * (got[i] - reference[i]);
  return std::sqrt(error / squares);
}

std::uint64_t digest = 0xcbf29ce484222325;  // FNV-1a
void add_to_digest(const std::vector<float>& values) {
  for (const float value : values) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    digest = (digest ^ bits) * 0x100000001b3;
  }
}

bool check(const Case& c, Operands operands) {
  std::mt19937 random(c.rows + c.width);
  const RandomWeight w(c, random);
  std::normal_distribution<float> normal;
  std::vector<float> x(std::size_t(c.rows) * c.width);
  for (float& value : x) value = normal(random);
  std::vector<double> reference(std::size_t(c.rows) * c.columns);
  double squares = 0;
  for (std::uint32_t i = 0; i < c.rows; ++i)
    for (std::uint32_t n = 0; n < c.columns; ++n)
      for (std::uint32_t k = 0; k < c.width; ++k) {
        const double product = w.dense[std::size_t(n) * c.width + k] * x[std::size_t(i) * c.width + k];
        reference[i * c.columns + n] += product;
        squares += product * product;
      }

  ModelConstants model{};
  model.hidden_size = c.width;
  KernelCall call{};
  call.model = &model, call.operands = operands, call.format = c.format;
  auto row_at = [&](std::uint32_t i) { return x.data() + std::size_t(i) * c.width; };
  std::vector<float> tile(reference.size()), step(reference.size());

  Scratch measure(nullptr);
  GemmScratch(call, measure);
  Operand(call, measure, c.format, LILY_MAX_STEP_ROWS, c.width);
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(64, (measure.bytes() + 63) / 64 * 64));
  Scratch scratch(memory);
  GemmScratch gemm_scratch(call, scratch);
  gemm_scratch.hold(c.rows, c.width);
  gemm_scratch.set_rows(row_at);
  gemm({w.weight()}, 0, c.columns, gemm_scratch, [&](std::uint32_t n, std::uint32_t count, auto values) {
    for (std::uint32_t i = 0; i < c.rows; ++i) std::memcpy(&tile[i * c.columns + n], values(0, i), count * sizeof(float));
  });

  Operand operand(call, scratch, c.format, LILY_MAX_STEP_ROWS, c.width);
  for (std::uint32_t first = 0; first < c.rows; first += LILY_MAX_STEP_ROWS) {
    Product products[LILY_MAX_STEP_ROWS];
    const std::uint32_t count = std::min(c.rows - first, LILY_MAX_STEP_ROWS);
    for (std::uint32_t i = 0; i < count; ++i) {
      operand.set_row(i, row_at(first + i));
      products[i] = {i, &step[(first + i) * c.columns]};
    }
    matvec({{w.weight(), 0}, c.columns, {w.weight(), c.columns}}, operand, products, count);
  }
  std::free(memory);
  if (operands == Operands::kInt16 && is_4_bit(c.format)) add_to_digest(tile);
  const double bound = operands == Operands::kInt16 ? 2e-4 : 2e-6;
  const double errors[] = {rms_ratio(reference, squares, tile), rms_ratio(reference, squares, step)};
  const bool passed = errors[0] < bound && errors[1] < bound;
  if (!passed)
    std::printf("format %d, operands %d, %u x %u x %u: tile %.2e, step %.2e\n", int(c.format), int(operands), c.rows, c.columns,
                c.width, errors[0], errors[1]);
  return passed;
}

#if defined(__ARM_FEATURE_DOTPROD)
// The sums of products of bytes are those of the integers, at the ends of the ranges too.
template <Format kFormat>
bool check_sums(bool largest) {
  std::mt19937 random(largest);
  std::uint8_t codes[group_bytes(kFormat)];
  for (auto& code : codes) code = std::uint8_t(largest ? 0xff : random());
  std::int16_t q[2][LILY_GROUP_SIZE], bytes[2][LILY_GROUP_SIZE];
  for (int row = 0; row < 2; ++row) {
    for (auto& value : q[row]) value = std::int16_t(largest ? (row ? -32639 : 32639) : int(random() % 65279) - 32639);
    split_bytes(q[row], LILY_GROUP_SIZE, kFormat, bytes[row]);
  }
  const std::int16_t* const rows[2] = {bytes[0], bytes[1]};
  Vi dot[2];
  dot_group<kFormat, 2>(codes, rows, 0, dot);
  for (int row = 0; row < 2; ++row) {
    std::int64_t expected = 0, got = 0;
    for (std::uint32_t k = 0; k < LILY_GROUP_SIZE; ++k) {
      const int code = is_4_bit(kFormat) ? codes[k / 2] >> (k % 2 * 4) & 15 : codes[k];
      expected += std::int64_t(code - kCodeOffset<kFormat>) * q[row][k];
    }
    for (int lane = 0; lane < kLanes; ++lane) got += dot[row][lane];
    if (got != expected) return false;
  }
  return true;
}
#endif

// Every half goes to its float and back.
bool check_halves() {
  for (std::uint32_t bits = 0; bits < 0x10000; bits += kLanes) {
    Half from[kLanes], to[kLanes];
    float floats[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) from[lane].bits = std::uint16_t(bits + lane);
    storef(floats, loadf(from));
    storef(to, loadf(floats));
    for (int lane = 0; lane < kLanes; ++lane) {
      const std::uint32_t exponent = from[lane].bits >> 10 & 31, mantissa = from[lane].bits & 1023;
      const double size = exponent ? std::ldexp(1024 + mantissa, int(exponent) - 25) : std::ldexp(mantissa, -24);
      const bool is_number = exponent < 31;
      if (is_number && (std::fabs(floats[lane]) != size || to[lane].bits != from[lane].bits)) return false;
      if (!is_number && (mantissa ? floats[lane] == floats[lane] : !std::isinf(floats[lane]))) return false;
    }
  }
  return true;
}

}  // namespace
}  // namespace LILY_ISA
}  // namespace lily::cpu

int main() {
  using namespace lily::cpu;
  using namespace lily::cpu::LILY_ISA;
  int passed = 0, failed = 0;
  for (const Format format : kFormats)
    for (const Operands operands : {Operands::kFloat32, Operands::kInt16})
      for (const std::uint32_t width : {64u, 192u, 512u, 1088u})
        for (const std::uint32_t rows : {1u, 3u, 8u, 17u})
          for (const std::uint32_t columns : {1u, 33u, 128u})
            ++(check({format, rows, width, columns}, operands) ? passed : failed);
  ++(check_halves() ? passed : failed);
#if defined(__ARM_FEATURE_DOTPROD)
  for (const bool largest : {false, true}) {
    ++(check_sums<Format::kQ4>(largest) ? passed : failed);
    ++(check_sums<Format::kQ8>(largest) ? passed : failed);
  }
#endif
  std::printf("digest %016llx\n", static_cast<unsigned long long>(digest));
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed != 0;
}
