#include "device/metal/cost.h"

#include <algorithm>
#include <cstring>

#include "device/contract.h"

namespace lily::metal {
namespace {

// An M1: 68 GB/s, and what its matrix units reach with quantised weights.
constexpr double kBytesPerSecond = 60e9;
constexpr double kFlopsPerSecond = 1e12;
constexpr double kLaunchSeconds = 5e-6;

double seconds_for(double bytes, double flops) { return std::max(bytes / kBytesPerSecond, flops / kFlopsPerSecond); }

// Every argument struct starts with the rows.
double rows_of(const Dispatch& dispatch) {
  lily_u32 rows;
  std::memcpy(&rows, dispatch.args.data(), sizeof rows);
  return rows;
}

// A weight is read once and multiplied with each row; of the experts a row takes k.
double weight_seconds(const Dispatch& dispatch, const KernelName& name, const ModelConstants& model, double rows) {
  if (name.op == "embed") return 0;
  // The largest bound ranges are the weight's: activations are bound with room for the largest chunk only where they are small.
  double bytes = 0, elements = 0;
  const double bits = name.formats.front()[1] == '4' ? 4 : 8;
  const auto accesses = dispatch.kernel->accesses();
  for (std::size_t i = 0; i < dispatch.ranges.size(); ++i) {
    if (accesses[i] != Access::kRead) continue;
    const auto length = static_cast<double>(dispatch.ranges[i].length);
    bytes = std::max(bytes, length);
  }
  const bool has_two = name.op == "shared_up" || name.op == "experts_up";
  if (has_two) bytes *= 2;
  elements = bytes * 8 / bits;
  const bool has_experts = name.op.starts_with("experts");
  if (!has_experts) return seconds_for(bytes, 2 * elements * rows);
  const double experts = model.num_experts, chosen = rows * model.num_experts_per_tok;
  return seconds_for(bytes * std::min(1.0, chosen / experts), 2 * elements * chosen / experts);
}

}  // namespace

Cost estimate(const Dispatch& dispatch, const ModelConstants& m) {
  const KernelName name(dispatch.kernel->name());
  const double rows = rows_of(dispatch);
  Cost cost{kLaunchSeconds};
  if (!name.formats.empty()) cost.seconds += weight_seconds(dispatch, name, m, rows);
  if (name.op.starts_with("gdn_") && name.formats.empty()) {
    const double state = double{1} * m.linear_num_value_heads * m.linear_key_head_dim * m.linear_value_head_dim;
    cost.seconds += seconds_for(8 * state, 8 * state * rows);  // read and written once, four products a token
  }
  if (name.op == "attn_split" || name.op == "attn_prefill") {
    const double query = double{1} * m.num_attention_heads * m.head_dim, key = double{1} * m.num_key_value_heads * m.head_dim;
    cost.seconds_per_key = seconds_for(4 * key, 4 * query * rows);
    cost.seconds += cost.seconds_per_key * rows;
    cost.step_row = static_cast<const StepRow*>(dispatch.ranges.front().buffer->contents()) +
                    dispatch.ranges.front().offset / sizeof(StepRow);
  }
  return cost;
}

}  // namespace lily::metal
