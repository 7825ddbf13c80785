#include "device/metal/matrix_form.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "device/widen.h"
#include "program/program.h"

namespace lily::metal {
namespace {

// On older GPUs tensor operations run on the same units as simdgroup matrices. A choice between equals would change with every
// start, and with it the last bits of results.
constexpr double kClearlyFaster = 1.25;
constexpr double kMeasurableSeconds = 1e-3;
constexpr std::uint32_t kRows = 64, kMaxRows = 16'384;  // of the timed product
constexpr int kTimings = 3;
constexpr double kFloatTolerance = 1e-4, kHalfTolerance = 2e-3;  // ratios of root mean squares: only the order of sums differs

// Heads as wide as in the models that lily is for; the rest as small as the tiles allow.
constexpr ModelConstants kModel = {.hidden_size = 256,
                                   .vocab_size = 256,
                                   .num_attention_layers = 1,
                                   .num_linear_layers = 1,
                                   .num_attention_heads = 4,
                                   .num_key_value_heads = 1,
                                   .head_dim = 256,
                                   .rotary_dim = 64,
                                   .linear_num_key_heads = 1,
                                   .linear_num_value_heads = 1,
                                   .linear_key_head_dim = 128,
                                   .linear_value_head_dim = 128,
                                   .num_experts = 2,
                                   .num_experts_per_tok = 1,
                                   .moe_intermediate_size = 128,
                                   .shared_expert_intermediate_size = 512,
                                   .rms_norm_eps = 1e-6f};

// Buffers of one device with numbers that are the same for every device.
class Operands {
 public:
  explicit Operands(Device& device) : device_(device) {}

  // Halves between 1/8 and 1 of either sign.
  Range halves(std::uint64_t count) {
    std::vector<std::uint16_t> values(count);
    for (std::uint16_t& value : values) {
      const std::uint32_t bits = next();
      value = static_cast<std::uint16_t>(0x3000 + bits % 0x0c00 + (bits >> 31 << 15));
    }
    return hold(values);
  }
  // A 4-bit weight with elements of -0.5 to 0.4375: codes, scales and biases.
  void weight(std::uint64_t elements, std::vector<Range>& ranges) {
    std::vector<std::uint32_t> codes(elements / 8);
    for (std::uint32_t& code : codes) code = next();
    ranges.push_back(hold(codes));
    ranges.push_back(hold(std::vector<std::uint16_t>(elements / LILY_GROUP_SIZE, 0x3d80)));  // 1/16 as BF16
    ranges.push_back(hold(std::vector<std::uint16_t>(elements / LILY_GROUP_SIZE, 0xbf00)));  // -1/2
  }
  template <typename T>
  Range hold(const std::vector<T>& values) {
    const Range range = output(values.size() * sizeof(T));
    device_.write(range, values.data());
    return range;
  }
  Range output(std::uint64_t bytes) {
    buffers_.push_back(device_.allocate("product", bytes, Memory::kPrivate));
    return {buffers_.back().get(), 0, bytes};
  }

 private:
  std::uint32_t next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(state_ >> 32);
  }

  Device& device_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::uint64_t state_ = 1;
};

void run(Device& device, Executable& executable) { device.wait(device.commit(executable, 0)); }

void run(Device& device, Program& program) { run(device, *device.compile(program)); }

std::vector<float> floats_of(Device& device, const Range& range) {
  std::vector<float> values(range.length / sizeof(float));
  device.read(range, values.data());
  return values;
}

std::vector<float> halves_of(Device& device, const Range& range) {
  std::vector<std::uint16_t> bits(range.length / sizeof(std::uint16_t));
  device.read(range, bits.data());
  std::vector<float> values(bits.size());
  std::ranges::transform(bits, values.begin(), widen_f16);
  return values;
}

// y Wᵀ of all rows with one weight: the product of most prefill kernels.
struct DenseProduct {
  DenseProduct(Device& device, std::uint32_t rows) : operands(device) {
    std::vector<Range> ranges{operands.halves(std::uint64_t{rows} * kModel.shared_expert_intermediate_size)};
    operands.weight(kModel.hidden_size * kModel.shared_expert_intermediate_size, ranges);
    result = operands.output(std::uint64_t{rows} * kModel.hidden_size * sizeof(float));
    ranges.push_back(result);
    program.dispatch(device.kernel("shared_down_q4g64_f16_tile"), RowsArgs{rows}, ranges, {kModel.hidden_size, rows});
  }
  Operands operands;
  Range result;
  Program program;
};

std::vector<float> dense_product(Device& device) {
  DenseProduct product(device, kRows);
  run(device, product.program);
  return floats_of(device, product.result);
}

// The tile of a block of an expert's rows.
std::vector<float> expert_product(Device& device) {
  Operands operands(device);
  const std::uint32_t rows = LILY_EXPERT_BLOCK, width = kModel.moe_intermediate_size;
  std::vector<std::uint32_t> order(rows);
  for (std::uint32_t i = 0; i < rows; ++i) order[i] = rows - 1 - i;
  const std::vector<ExpertBlock> blocks{{1, 0, rows}};
  std::vector<Range> ranges{operands.halves(rows * width), operands.hold(order), operands.hold(blocks),
                            operands.hold(std::vector<std::uint32_t>{1, 0})};
  operands.weight(std::uint64_t{kModel.num_experts} * kModel.hidden_size * width, ranges);
  const Range result = operands.output(std::uint64_t{rows} * kModel.hidden_size * sizeof(float));
  ranges.push_back(result);
  Program program;
  program.dispatch(device.kernel("experts_down_q4g64_f16_tile"), RowsArgs{rows}, ranges, {kModel.hidden_size, 1});
  run(device, program);
  return floats_of(device, result);
}

// Scores and sums of values of attention: a full tile of rows over two stretches of keys, the last block partly filled.
std::vector<float> attention(Device& device) {
  Operands operands(device);
  const std::uint32_t rows = 16, elements = rows * kModel.num_attention_heads * kModel.head_dim;
  std::vector<StepRow> step(1);
  step[0].position = LILY_PAGE_TOKENS - 6;
  const std::uint64_t pool = std::uint64_t{4} * kModel.num_key_value_heads * LILY_PAGE_TOKENS * kModel.head_dim;
  const std::vector<Range> ranges{operands.hold(step),          operands.halves(elements), operands.halves(elements),
                                  operands.hold(std::vector{1u, 0u}), operands.halves(pool),
                                  operands.output(std::uint64_t{rows} * kModel.num_attention_heads * (kModel.head_dim + 2) * 4),
                                  operands.output(elements * 2)};
  Program program;
  for (const std::uint32_t first_key : {0u, LILY_PAGE_TOKENS})
    program.dispatch(device.kernel("attn_prefill_f16"), AttnPrefillArgs{rows, 0, first_key, LILY_PAGE_TOKENS}, ranges,
                     {kModel.num_key_value_heads, rows});
  run(device, program);
  return halves_of(device, ranges.back());
}

struct Case {
  std::string_view kernel;
  std::vector<float> (*run)(Device& device);
  double tolerance;
};

constexpr Case kCases[] = {
    {"shared_down", dense_product, kFloatTolerance},
    {"experts_down", expert_product, kFloatTolerance},
    {"attn_prefill", attention, kHalfTolerance},
};

// Of the dense product: the least of a few runs.
double seconds_of(Device& device, std::uint32_t rows) {
  DenseProduct product(device, rows);
  const auto executable = device.compile(product.program);
  run(device, *executable);
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kTimings; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    run(device, *executable);
    least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return least;
}

// Ratio of root mean squares; infinite where a value is not finite.
double difference(const std::vector<float>& values, const std::vector<float>& expected) {
  double error = 0, size = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    error += (double{values[i]} - expected[i]) * (double{values[i]} - expected[i]);
    size += double{expected[i]} * expected[i];
  }
  return std::isfinite(error) ? std::sqrt(error / size) : std::numeric_limits<double>::infinity();
}

std::string number(const char* format, double value) {
  char text[32];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

FormChoice stay(const std::string& reason) { return {MatrixForm::kSimdgroup, reason}; }

}  // namespace

const char* name_of(MatrixForm form) { return form == MatrixForm::kTensor ? "tensor operations" : "simdgroup matrices"; }

FormChoice choose_form(const MakeDevice& make) {
  std::vector<std::vector<float>> expected;
  std::uint32_t rows = kRows;
  double simdgroup_seconds = 0;
  {
    const std::unique_ptr<Device> device = make(kModel, MatrixForm::kSimdgroup);
    for (const Case& one : kCases) expected.push_back(one.run(*device));
    while ((simdgroup_seconds = seconds_of(*device, rows)) < kMeasurableSeconds && rows < kMaxRows) rows *= 4;
  }
  try {
    const std::unique_ptr<Device> device = make(kModel, MatrixForm::kTensor);
    for (std::size_t i = 0; i < std::size(kCases); ++i) {
      const double error = difference(kCases[i].run(*device), expected[i]);
      if (!(error <= kCases[i].tolerance))
        return stay("tensor operations give wrong values: " + std::string(kCases[i].kernel) + " is off by " +
                    number("%.1e", error));
    }
    const double speed = simdgroup_seconds / seconds_of(*device, rows);
    const std::string times = number("%.2f", speed) + " times as fast";
    if (speed < kClearlyFaster) return stay("tensor operations are right, but only " + times + " as simdgroup matrices");
    return {MatrixForm::kTensor, "tensor operations are right and " + times + " as simdgroup matrices"};
  } catch (const DeviceError& error) {
    const std::string_view message = error.what();
    return stay("tensor operations fail: " + std::string(message.substr(0, message.find('\n'))));
  }
}

}  // namespace lily::metal
