// Between the input projections and the delta rule: causal convolution, silu, the norms of q and k, and the gates g and beta.
#include <cmath>

#include "device/cpu/kernel.h"
#include "device/cpu/kernels/norm.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

constexpr std::uint32_t kTaps = 4;
constexpr std::uint32_t kConvRows = 64;

// Channels [begin, begin + width) of the tile's key head; their taps lie transposed at `taps`: [kTaps][width].
struct Channels {
  std::uint32_t begin, width;
  const float* taps;
};

// y = silu of the convolution over rows[0..3], oldest first.
static inline void convolve(const float* const (&rows)[kTaps], const Channels& c, float* y) {
  for (std::uint32_t i = 0; i < c.width; i += kLanes) {
    Vf total = {};
    for (std::uint32_t j = 0; j < kTaps; ++j) total += loadf(c.taps + j * c.width + i) * loadf(rows[j] + c.begin + i);
    storef(y + i, silu(total));
  }
}

// y *= scale / sqrt(Σ y² + 1e-6): eps is added to the sum, not to the mean.
static inline void l2_norm(float* y, std::uint32_t width, float scale) {
  const float factor = scale / std::sqrt(sum_of_squares(y, width) + 1e-6f);
  for (std::uint32_t i = 0; i < width; i += kLanes) storef(y + i, loadf(y + i) * factor);
}

static inline float softplus(float x) { return (x > 0.0f ? x : 0.0f) + std::log1p(std::exp(-std::fabs(x))); }

// A tile is one key head with its value heads, and a block of rows.
static void gdn_conv(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const ModelConstants& model = *call.model;
  const LayerArgs& args = args_of<LayerArgs>(call);
  const StepRow& step = *buffer<const StepRow>(call, 0);
  const std::size_t channels = model.conv_channels();
  const std::uint32_t key_width = model.linear_key_head_dim, heads = model.linear_num_value_heads;
  const std::uint32_t heads_per_key = heads / model.linear_num_key_heads;
  const std::uint32_t value_width = heads_per_key * model.linear_value_head_dim;
  const float* qkv = buffer<const float>(call, 1);
  const float* ba = buffer<const float>(call, 2);
  const float* conv_w = buffer<const float>(call, 3);
  const float* a_log = buffer<const float>(call, 4);
  const float* dt_bias = buffer<const float>(call, 5);
  float* states = buffer<float>(call, 6);
  const std::size_t state_size = (kTaps - 1) * channels;
  const float* state_in = states + (std::size_t(step.slot_in) * model.num_linear_layers + args.layer) * state_size;
  float* state_out = states + (std::size_t(step.slot_out) * model.num_linear_layers + args.layer) * state_size;
  float* g = buffer<float>(call, 10);
  float* beta = buffer<float>(call, 11);
  float* taps = reinterpret_cast<float*>(call.scratch);
  // Row `row` of the timeline, counted from the chunk's start: -3, -2 and -1 are in the state.
  auto row_at = [&](std::int64_t row) { return row < 0 ? state_in + (row + 3) * channels : qkv + row * channels; };

  for (std::uint32_t index = first; index < last; ++index) {
    const Tile t = tile_at(call, index);
    const std::uint32_t key_head = t.x0;
    const Channels q = {key_head * key_width, key_width, taps};
    const Channels k = {model.key_dim() + q.begin, key_width, q.taps + kTaps * key_width};
    const Channels v = {2 * model.key_dim() + key_head * value_width, value_width, k.taps + kTaps * key_width};
    const Channels all[] = {q, k, v};
    float* to = taps;
    for (const Channels& c : all)
      for (std::uint32_t j = 0; j < kTaps; ++j)
        for (std::uint32_t i = 0; i < c.width; ++i) *to++ = conv_w[std::size_t(c.begin + i) * kTaps + j];

    for (std::uint32_t row = t.y0; row < t.y1; ++row) {
      const float* rows[kTaps];
      for (std::uint32_t j = 0; j < kTaps; ++j) rows[j] = row_at(std::int64_t(row) - 3 + j);
      float* q_row = buffer<float>(call, 7) + std::size_t(row) * model.key_dim() + q.begin;
      float* k_row = buffer<float>(call, 8) + std::size_t(row) * model.key_dim() + q.begin;
      convolve(rows, q, q_row);
      l2_norm(q_row, key_width, 1.0f / std::sqrt(float(key_width)));
      convolve(rows, k, k_row);
      l2_norm(k_row, key_width, 1.0f);
      convolve(rows, v, buffer<float>(call, 9) + std::size_t(row) * model.value_dim() + key_head * value_width);
      for (std::uint32_t h = key_head * heads_per_key; h < (key_head + 1) * heads_per_key; ++h) {
        const float* gates = ba + std::size_t(row) * 2 * heads;
        beta[std::size_t(row) * heads + h] = 1.0f / (1.0f + std::exp(-gates[h]));
        g[std::size_t(row) * heads + h] = -std::exp(a_log[h]) * softplus(gates[heads + h] + dt_bias[h]);
      }
    }

    if (t.y1 == args.rows)
      for (std::uint32_t j = 0; j < kTaps - 1; ++j)
        for (const Channels& c : all)
          std::memcpy(state_out + j * channels + c.begin, row_at(std::int64_t(args.rows) - 3 + j) + c.begin,
                      c.width * sizeof(float));
  }
}

static std::size_t gdn_conv_scratch_bytes(const ModelConstants& model, const void*) {
  return kTaps * (model.conv_channels() / model.linear_num_key_heads) * sizeof(float);
}

void add_gdn_conv(KernelTable& table) {
  add_kernel(table, {.name = "gdn_conv_f32", .run = gdn_conv, .access = "rrrrrrbwwwww", .args_size = sizeof(LayerArgs),
                     .tile = {1, kConvRows, 1}, .scratch_bytes = gdn_conv_scratch_bytes});
}

}  // namespace lily::cpu::LILY_ISA
