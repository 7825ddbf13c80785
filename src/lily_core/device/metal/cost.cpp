#include "device/metal/cost.h"

#include <algorithm>
#include <cstring>

#include "device/contract.h"
#include "lily_grid.h"

namespace lily::metal {
namespace {

// An M1: 68 GB/s, and what the matrix units of its cores reach with quantised weights.
constexpr double kBytesPerSecond = 60e9;
constexpr double kFlopsPerSecond = 1e12;
constexpr std::uint32_t kCores = 8;
constexpr double kLaunchSeconds = 5e-6;

std::uint32_t divided_up(std::uint32_t a, std::uint32_t b) { return (a + b - 1) / b; }

double seconds_for(double bytes, double flops) { return std::max(bytes / kBytesPerSecond, flops / kFlopsPerSecond); }

// A field of the argument struct, which has 32-bit fields only.
lily_u32 arg(const Dispatch& dispatch, std::size_t index) {
  lily_u32 value;
  std::memcpy(&value, dispatch.args.data() + index * sizeof value, sizeof value);
  return value;
}

// Columns of the weight that the op multiplies with.
double columns_of(std::string_view op, const ModelConstants& m) {
  if (op == "gdn_out") return m.value_dim();
  if (op == "attn_out") return double{1} * m.num_attention_heads * m.head_dim;
  if (op == "experts_down") return m.moe_intermediate_size;
  if (op == "shared_down") return m.shared_expert_intermediate_size;
  return m.hidden_size;
}

// A weight is read once and multiplied with each row; of the experts a row takes k.
double weight_seconds(const Dispatch& dispatch, const KernelName& name, const ModelConstants& m, double rows) {
  if (name.op == "embed") return 0;
  const bool is_pair = name.op == "shared_up" || name.op == "experts_up";
  const double elements = dispatch.extent.x * columns_of(name.op, m) * (is_pair ? 2 : 1);
  const double bytes = elements * (name.formats.front()[1] == '4' ? 0.5 : 1);
  if (!name.op.starts_with("experts")) return seconds_for(bytes, 2 * elements * rows);
  const double chosen = rows * m.num_experts_per_tok;
  return seconds_for(bytes * std::min<double>(m.num_experts, chosen), 2 * elements * chosen);
}

// Rows that a chunk's attention takes the time of: whole tiles, and at least a threadgroup for each core.
double attended_rows(std::uint32_t rows, const ModelConstants& m) {
  const std::uint32_t heads = m.num_attention_heads / m.num_key_value_heads;
  const std::uint32_t groups = m.num_key_value_heads * divided_up(heads, LILY_ATTN_PREFILL_HEADS);  // of a tile
  return LILY_ATTN_PREFILL_ROWS * std::max(divided_up(rows, LILY_ATTN_PREFILL_ROWS), divided_up(kCores, groups));
}

}  // namespace

Cost estimate(const Dispatch& dispatch, const ModelConstants& m) {
  const KernelName name(dispatch.kernel->name());
  const double rows = arg(dispatch, 0);  // every argument struct starts with them
  Cost cost;
  cost.seconds = kLaunchSeconds;
  if (!name.formats.empty()) {
    cost.seconds += weight_seconds(dispatch, name, m, rows);
  } else if (name.op.starts_with("gdn_")) {
    const double state = double{1} * m.linear_num_value_heads * m.linear_key_head_dim * m.linear_value_head_dim;
    cost.seconds += seconds_for(8 * state, 8 * state * rows);  // read and written once, four products a token
  } else if (name.op == "attn_split" || name.op == "attn_prefill") {
    const double query = double{1} * m.num_attention_heads * m.head_dim, key = double{1} * m.num_key_value_heads * m.head_dim;
    cost.rows = arg(dispatch, 0);
    const bool is_prefill = name.op == "attn_prefill";
    cost.seconds_per_key = seconds_for(4 * key, 4 * query * (is_prefill ? attended_rows(cost.rows, m) : rows));
    if (is_prefill) cost.first_key = arg(dispatch, 2), cost.num_keys = arg(dispatch, 3);
    const Range& step = dispatch.ranges.front();
    cost.step_row = reinterpret_cast<const StepRow*>(static_cast<const std::byte*>(step.buffer->contents()) + step.offset);
  }
  return cost;
}

}  // namespace lily::metal
