// Matrix products of one instruction set, in both kinds of operands, against plain loops in double, and the sums of integers that
// they are made of against plain loops in 64 bits; what the bare loop of multiplications counts. test_products.py runs this on
// this machine, tools/check_arm64.sh where kernels cannot be run otherwise. The digest is that of the tiles of integers and 4-bit
// codes, which all sets of arm64 have in common.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "device/cpu/isas.h"
#include "device/cpu/kernels/gemm.h"
#include "device/cpu/kernels/matvec.h"
#include "device/cpu/kernels/multiply_loop.h"

namespace lily::cpu {

void add_kernel(KernelTable&, KernelEntry) {}  // no table here

namespace LILY_ISA {
namespace {

struct Case {
  Format format;
  std::uint32_t rows, width, columns;  // of x; of both; rows of the weight
};

// A weight of the bytes that any format may hold, and its values.
struct TestWeight {
  // Of code k of row n, and of the scale and bias of a group.
  template <typename Code, typename Scale, typename Bias>
  TestWeight(const Case& c, Code code, Scale scale, Bias bias) : dense(std::size_t(c.columns) * c.width) {
    const std::size_t groups = dense.size() / LILY_GROUP_SIZE;
    codes.resize(groups * group_bytes(c.format));
    for (std::size_t i = 0; i < dense.size(); ++i) {
      const int value = code(i / c.width, i % c.width);
      dense[i] = value;
      codes[is_4_bit(c.format) ? i / 2 : i] |= std::uint8_t(is_4_bit(c.format) ? value << (i % 2 * 4) : value);
    }
    for (std::size_t group = 0; group < groups; ++group) {
      const double scale_of = put(c.format, scale(), scales), bias_of = put(c.format, bias(), biases);
      for (std::size_t i = group * LILY_GROUP_SIZE; i < (group + 1) * LILY_GROUP_SIZE; ++i)
        dense[i] = scale_of * dense[i] + bias_of;
    }
  }
  Weight weight() const { return {codes.data(), scales.data(), biases.data()}; }

  std::vector<std::uint8_t> codes;
  std::vector<std::byte> scales, biases;
  std::vector<double> dense;

 private:
  // Adds a number of a pair, cut off where the format does; returns what it is now.
  static float put(Format format, float value, std::vector<std::byte>& pairs) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if (!is_wide(format)) bits &= 0xffff0000;  // bfloat16
    const auto* from = reinterpret_cast<const std::byte*>(&bits);
    pairs.insert(pairs.end(), from + (is_wide(format) ? 0 : 2), from + 4);  // little-endian: the upper half is the bfloat16
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
};

// x Wᵀ as a prefill computes it and as a step does, each [rows][columns].
struct Products {
  std::vector<float> tile, step;
};

Products multiply(const Case& c, Operands operands, const std::vector<float>& x, const Weight& w) {
  ModelConstants model{};
  model.hidden_size = c.width;
  KernelCall call{};
  call.model = &model, call.operands = operands, call.format = c.format;
  auto row_at = [&](std::uint32_t i) { return x.data() + std::size_t(i) * c.width; };
  Products y = {std::vector<float>(std::size_t(c.rows) * c.columns), std::vector<float>(std::size_t(c.rows) * c.columns)};

  Scratch measure(nullptr);
  GemmScratch(call, measure);
  Operand(call, measure, c.format, LILY_MAX_STEP_ROWS, c.width);
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(64, measure.bytes()));
  Scratch scratch(memory);
  GemmScratch gemm_scratch(call, scratch);
  gemm_scratch.hold(c.rows, c.width);
  gemm_scratch.set_rows(row_at);
  gemm({w}, 0, c.columns, gemm_scratch, [&](std::uint32_t n, std::uint32_t count, auto values) {
    for (std::uint32_t i = 0; i < c.rows; ++i) std::memcpy(&y.tile[i * c.columns + n], values(0, i), count * sizeof(float));
  });

  Operand operand(call, scratch, c.format, LILY_MAX_STEP_ROWS, c.width);
  for (std::uint32_t first = 0; first < c.rows; first += LILY_MAX_STEP_ROWS) {
    Product products[LILY_MAX_STEP_ROWS];
    const std::uint32_t count = std::min(c.rows - first, LILY_MAX_STEP_ROWS);
    for (std::uint32_t i = 0; i < count; ++i) {
      operand.set_row(i, row_at(first + i));
      products[i] = {i, &y.step[(first + i) * c.columns]};
    }
    matvec({{w, 0}, c.columns, {w, c.columns}}, operand, products, count);
  }
  std::free(memory);
  return y;
}

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

std::vector<float> normal_rows(const Case& c, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> x(std::size_t(c.rows) * c.width);
  for (float& value : x) value = normal(random);
  return x;
}
TestWeight random_weight(const Case& c, std::mt19937& random) {
  std::normal_distribution<float> normal;
  auto pair = [&] { return normal(random); };
  return TestWeight(c, [&](std::size_t, std::size_t) { return int(random() % (is_4_bit(c.format) ? 16 : 256)); }, pair, pair);
}

bool check(const Case& c, Operands operands) {
  std::mt19937 random(c.rows + c.width);
  const TestWeight w = random_weight(c, random);
  const std::vector<float> x = normal_rows(c, random);
  std::vector<double> reference(std::size_t(c.rows) * c.columns);
  double squares = 0;
  for (std::uint32_t i = 0; i < c.rows; ++i)
    for (std::uint32_t n = 0; n < c.columns; ++n)
      for (std::uint32_t k = 0; k < c.width; ++k) {
        const double product = w.dense[std::size_t(n) * c.width + k] * x[std::size_t(i) * c.width + k];
        reference[i * c.columns + n] += product;
        squares += product * product;
      }

  const Products y = multiply(c, operands, x, w.weight());
  if (operands == Operands::kInt16 && is_4_bit(c.format)) add_to_digest(y.tile);
  const double bound = operands == Operands::kInt16 ? 2e-4 : 2e-6;
  const double errors[] = {rms_ratio(reference, squares, y.tile), rms_ratio(reference, squares, y.step)};
  const bool passed = errors[0] < bound && errors[1] < bound;
  if (!passed)
    std::printf("format %d, operands %d, %u x %u x %u: tile %.2e, step %.2e\n", int(c.format), int(operands), c.rows, c.columns,
                c.width, errors[0], errors[1]);
  return passed;
}

// Rows of integers whose largest is that of the operand keep a scale of 1, so that whole numbers come out: of every byte that the
// integers are cut into both ends, and codes of both ends.
template <Format kFormat>
bool check_sums(std::uint32_t rows, bool of_tile) {
  const Case c = {kFormat, rows, LILY_GROUP_SIZE, 3 * rows};
  std::mt19937 random(rows);
  const int most = int(of_tile ? largest_integer(is_4_bit(kFormat)) : kLargestShort), top = is_4_bit(kFormat) ? 15 : 255;
  const auto code = [&](std::size_t n, std::size_t) {
    return n % 3 == 0 ? top : n % 3 == 1 ? int(random() % 2) * top : int(random() % (top + 1));
  };
  const TestWeight w(c, code, [] { return 1.0f; }, [] { return -3.0f; });
  const auto integer = [&](std::uint32_t i) {
    const int value = int(random() % (2 * most + 1)) - most;
    switch (i % 4) {
      case 0: return i % 8 == 0 ? most : -most;
      case 1: return value < 0 ? -most : most;
      case 2: return std::clamp((value & -64) - (value & 1), -most, most);  // the ends of lower bytes
      default: return value / 64;
    }
  };
  std::vector<float> x(std::size_t(rows) * c.width);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = float(integer(std::uint32_t(i / c.width)));
  for (std::uint32_t row = 0; row < rows; ++row) x[row * c.width + random() % c.width] = float(row / 8 % 2 ? most : -most);

  const Products y = multiply(c, Operands::kInt16, x, w.weight());
  for (std::uint32_t i = 0; i < rows; ++i)
    for (std::uint32_t n = 0; n < c.columns; ++n) {
      std::int64_t expected = 0, magnitude = 0;
      for (std::uint32_t k = 0; k < c.width; ++k) {
        const auto q = std::int64_t(x[i * c.width + k]), value = std::int64_t(w.dense[n * c.width + k]);
        expected += q * value, magnitude += std::abs(q) * (std::abs(value) + 2 * 3 + 128 * (top == 255));
      }
      // Floats hold every integer up to 2^24. The bias comes apart from the code, which of 8 bits may be multiplied less 128.
      const double bound = magnitude <= 1 << 24 ? 0 : magnitude * 0x1p-22;
      const double got = (of_tile ? y.tile : y.step)[i * c.columns + n];
      if (std::fabs(got - double(expected)) <= bound) continue;
      std::printf("format %d, row %u of %u, column %u: %s has %.0f instead of %lld\n", int(kFormat), i, rows, n,
                  of_tile ? "tile" : "step", got, static_cast<long long>(expected));
      return false;
    }
  return true;
}

// Rows without a number, without a finite one, without anything that matters: and none changes its neighbours.
bool check_unusual_rows(Format format) {
  const Case c = {format, 17, 192, 33}, alone = {format, 1, c.width, c.columns};
  std::mt19937 random(c.rows);
  const TestWeight w = random_weight(c, random);
  std::vector<float> x = normal_rows(c, random);
  const auto is_nan = [](std::uint32_t row) { return row % 5 == 1; };
  const auto is_zero = [](std::uint32_t row) { return row % 5 == 3; };
  for (std::uint32_t row = 0; row < c.rows; ++row) {
    float* values = &x[row * c.width];
    if (is_nan(row)) values[row * 11] = values[row * 11 ^ 16] = row % 2 ? std::nanf("") : -INFINITY;  // twice in a lane
    if (is_zero(row))
      for (std::uint32_t k = 0; k < c.width; ++k) values[k] = row % 2 ? 0.0f : k % 2 ? 1e-40f : -0.0f;
  }
  const Products all = multiply(c, Operands::kInt16, x, w.weight());
  for (std::uint32_t row = 0; row < c.rows; ++row) {
    const auto first = x.begin() + row * c.width;
    const Products one = multiply(alone, Operands::kInt16, {first, first + c.width}, w.weight());
    for (std::uint32_t n = 0; n < c.columns; ++n)
      for (const auto& [among, own] : {std::pair(all.tile[row * c.columns + n], one.tile[n]),
                                       std::pair(all.step[row * c.columns + n], one.step[n])}) {
        const bool passed = is_nan(row) ? std::isnan(among) && std::isnan(own) : among == own && (among == 0) == is_zero(row);
        if (passed) continue;
        std::printf("format %d, row %u, column %u: %g, alone %g\n", int(format), row, n, among, own);
        return false;
      }
  }
  return true;
}

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

// Every round of the bare loop multiplies as often as the one before; 16-bit integers by codes twice as often as floats, with
// instructions that take two rows of bytes four times, with tiles as often as four of them have products of two bytes.
bool check_multiply_loop() {
  const auto floats = multiply_loop(Operands::kFloat32, 1), integers = multiply_loop(Operands::kInt16, 1);
  if (floats % kLanes != 0 || floats == 0) return false;
#if defined(LILY_AMX)
  if (integers != 4 * 16 * 16 * LILY_GROUP_SIZE / 2) return false;
#elif defined(__ARM_FEATURE_MATMUL_INT8)
  if (integers != 4 * floats) return false;
#else
  if (integers != 2 * floats) return false;
#endif
  for (const std::uint32_t rounds : {0u, 7u, 1u << 14, 1u << 16}) {
    if (multiply_loop(Operands::kFloat32, rounds) != rounds * floats) return false;
    if (multiply_loop(Operands::kInt16, rounds) != rounds * integers) return false;
  }
  return true;
}

}  // namespace
}  // namespace LILY_ISA
}  // namespace lily::cpu

int main() {
  using namespace lily::cpu;
  using namespace lily::cpu::LILY_ISA;
  for (const Isa& isa : isas()) isa.is_available();  // asks for the tile registers
  int passed = 0, failed = 0;
  for (const Format format : kFormats)
    for (const Operands operands : {Operands::kFloat32, Operands::kInt16})
      for (const std::uint32_t width : {64u, 192u, 512u, 1088u})
        for (const std::uint32_t rows : {1u, 3u, 8u, 17u})
          for (const std::uint32_t columns : {1u, 33u, 128u})
            ++(check({format, rows, width, columns}, operands) ? passed : failed);
  ++(check_halves() ? passed : failed);
  ++(check_multiply_loop() ? passed : failed);
  for (std::uint32_t rows = 1; rows <= 17; ++rows)
    for (const bool of_tile : {false, true}) {
      ++(check_sums<Format::kQ4>(rows, of_tile) ? passed : failed);
      ++(check_sums<Format::kQ8>(rows, of_tile) ? passed : failed);
    }
  for (const Format format : kFormats) ++(check_unusual_rows(format) ? passed : failed);
  std::printf("digest %016llx\n", static_cast<unsigned long long>(digest));
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed != 0;
}
