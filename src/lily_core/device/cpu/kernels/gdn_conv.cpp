// Between the input projections and the delta rule: causal convolution, silu, the norms of q and k, and the gates g and beta.
#include <cmath>
#include <initializer_list>

#include "device/cpu/kernels/conv.h"
#include "device/cpu/kernels/norm.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

constexpr std::uint32_t kConvRows = 64;
constexpr std::int64_t kRowsAhead = 6;

// The channels of one key head and of its value heads.
struct ConvScratch {
  ConvScratch(const KernelCall& call, Scratch& scratch)
      : q(scratch, call.model->linear_key_head_dim),
        k(scratch, call.model->linear_key_head_dim),
        v(scratch, call.model->value_dim() / call.model->linear_num_key_heads) {}

  ConvChannels q, k, v;
};

// A tile is one key head with its value heads, and a block of rows.
static void gdn_conv(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const ModelConstants& model = *call.model;
  const LayerArgs& args = args_of<LayerArgs>(call);
  const StepRow& step = *buffer<const StepRow>(call, 0);
  const std::size_t channels = model.conv_channels();
  const std::uint32_t key_width = model.linear_key_head_dim, heads = model.linear_num_value_heads;
  const std::uint32_t heads_per_key = heads / model.linear_num_key_heads;
  const float* qkv = buffer<const float>(call, 1);
  const float* ba = buffer<const float>(call, 2);
  const float* conv_w = buffer<const float>(call, 3);
  const float* A_log = buffer<const float>(call, 4);
  const float* dt_bias = buffer<const float>(call, 5);
  float* states = buffer<float>(call, 6);
  const std::size_t state_size = kKeptRows * channels;
  const float* state_in = states + (std::size_t(step.slot_in) * model.num_linear_layers + args.layer) * state_size;
  float* state_out = states + (std::size_t(step.slot_out) * model.num_linear_layers + args.layer) * state_size;
  float* g = buffer<float>(call, 10);
  float* beta = buffer<float>(call, 11);
  auto [q, k, v] = scratch_of<ConvScratch>(call);
  // Row `row` of the timeline, counted from the chunk's start: -3, -2 and -1 are in the state.
  auto row_at = [&](std::int64_t row) { return row < 0 ? state_in + (row + kKeptRows) * channels : qkv + row * channels; };

  for (std::uint32_t index = first; index < last; ++index) {
    const Tile t = tile_at(call, index);
    const std::uint32_t key_head = t.x0;
    q.load_taps(conv_w, key_head * key_width);
    k.load_taps(conv_w, model.key_dim() + key_head * key_width);
    v.load_taps(conv_w, 2 * model.key_dim() + key_head * v.width);

    for (std::uint32_t row = t.y0; row < t.y1; ++row) {
      const float* rows[LILY_CONV_TAPS];
      for (std::uint32_t j = 0; j < LILY_CONV_TAPS; ++j) rows[j] = row_at(std::int64_t(row) - kKeptRows + j);
      float* q_row = buffer<float>(call, 7) + std::size_t(row) * model.key_dim() + key_head * key_width;
      float* k_row = buffer<float>(call, 8) + std::size_t(row) * model.key_dim() + key_head * key_width;
      // Rows are pages apart: hardware does not foresee the next ones.
      const float* ahead = row_at(std::int64_t(row) + kRowsAhead);
      for (const ConvChannels* c : {&q, &k, &v})
        for (std::uint32_t i = 0; i < c->width; i += 16) __builtin_prefetch(ahead + c->begin + i);
      q.apply(rows, q_row);
      l2_normalise(q_row, key_width, 1.0f / std::sqrt(float(key_width)));
      k.apply(rows, k_row);
      l2_normalise(k_row, key_width, 1.0f);
      v.apply(rows, buffer<float>(call, 9) + std::size_t(row) * model.value_dim() + key_head * v.width);
      for (std::uint32_t h = key_head * heads_per_key; h < (key_head + 1) * heads_per_key; ++h) {
        const float* gates = ba + std::size_t(row) * 2 * heads;
        beta[std::size_t(row) * heads + h] = sigmoid(gates[h]);
        g[std::size_t(row) * heads + h] = log_decay(A_log[h], gates[heads + h], dt_bias[h]);
      }
    }

    if (t.y1 == args.rows)
      for (std::uint32_t j = 0; j < kKeptRows; ++j)
        for (const ConvChannels* c : {&q, &k, &v})
          std::memcpy(state_out + j * channels + c->begin, row_at(std::int64_t(args.rows) - kKeptRows + j) + c->begin,
                      c->width * sizeof(float));
  }
}

void add_gdn_conv(KernelTable& table) {
  add_kernel(table, {.op = "gdn_conv", .run = gdn_conv, .tile = {1, kConvRows, 1}, .scratch_bytes = scratch_bytes<ConvScratch>});
}

}  // namespace lily::cpu::LILY_ISA
