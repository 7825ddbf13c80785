// One token of the gated delta rule per row: convolution, gates, and one pass over the recurrent state.
//   r = Sᵀ k, s = Sᵀ q;  d = β (v − e^g r);  o = e^g s + (k · q) d;  S = e^g S + k dᵀ
#include <cmath>

#include "device/cpu/kernels/conv.h"
#include "device/cpu/kernels/matvec.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {
namespace {

// Where the rows of the convolution come from. A row that continues the row before it finds its history in qkv: what that row
// writes to conv_state in this dispatch may not be there yet.
struct History {
  const StepRow* step;
  const float* qkv;         // [R, C]
  float* conv_state;        // [slot][layer][3][C]
  std::uint32_t layers, layer, channels;

  float* state_row(std::uint32_t slot, std::uint32_t row) const {
    return conv_state + ((std::size_t(slot) * layers + layer) * 3 + row) * channels;
  }
  // The row of qkv `back` tokens before row `row`, 0 to 3.
  const float* at(std::uint32_t row, std::uint32_t back) const {
    for (; back > 0 && row > 0 && step[row].slot_in == step[row - 1].slot_out; --back) --row;
    return back == 0 ? qkv + std::size_t(row) * channels : state_row(step[row].slot_in, 3 - back);
  }
};

// kVectors vectors of columns of one head's state; all of it stays in registers but S, which comes from memory once.
template <int kVectors>
static inline void update_columns(const float* from, float* to, std::uint32_t dk, std::uint32_t dv, const float* q,
                                  const float* k, const float* v, float kq, float decay, float beta, float* o) {
  Vf r[kVectors] = {}, s[kVectors] = {};
  for (std::uint32_t i = 0; i < dk; ++i)
    for (int j = 0; j < kVectors; ++j) {
      const Vf x = loadf(from + std::size_t(i) * dv + j * kLanes);
      r[j] += k[i] * x;
      s[j] += q[i] * x;
    }
  Vf d[kVectors];
  for (int j = 0; j < kVectors; ++j) {
    d[j] = beta * (loadf(v + j * kLanes) - decay * r[j]);
    storef(o + j * kLanes, decay * s[j] + kq * d[j]);
  }
  for (std::uint32_t i = 0; i < dk; ++i)
    for (int j = 0; j < kVectors; ++j)
      storef(to + std::size_t(i) * dv + j * kLanes, decay * loadf(from + std::size_t(i) * dv + j * kLanes) + k[i] * d[j]);
}

}  // namespace

static void gdn_step(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const ModelConstants& model = *call.model;
  const LayerArgs& args = args_of<LayerArgs>(call);
  const std::uint32_t dk = model.linear_key_head_dim, dv = model.linear_value_head_dim;
  const std::uint32_t value_heads = model.linear_num_value_heads, share = value_heads / model.linear_num_key_heads;
  const std::uint32_t channels = model.conv_channels(), key_dim = model.key_dim();
  const StepRow* step = buffer<const StepRow>(call, 0);
  const float* ba = buffer<const float>(call, 2);
  const float* conv_w = buffer<const float>(call, 3);
  const float* A_log = buffer<const float>(call, 4);
  const float* dt_bias = buffer<const float>(call, 5);
  float* recurrent_state = buffer<float>(call, 7);
  const History history = {step, buffer<const float>(call, 1), buffer<float>(call, 6), model.num_linear_layers,
                           args.layer, channels};
  auto state_of = [&](std::uint32_t slot, std::uint32_t head) {
    return recurrent_state + ((std::size_t(slot) * model.num_linear_layers + args.layer) * value_heads + head) * dk * dv;
  };
  std::byte* scratch = call.scratch;
  float* q = take_floats(scratch, dk);
  float* k = take_floats(scratch, dk);
  float* v = take_floats(scratch, dv);

  for (std::uint32_t i = first; i < last; ++i) {
    const std::uint32_t head = tile_at(call, i).y0, key_head = head / share;
    const std::uint32_t q_channel = key_head * dk, k_channel = key_dim + q_channel, v_channel = 2 * key_dim + head * dv;
    for (std::uint32_t row = 0; row < args.rows; ++row) {
      const float* const taps[4] = {history.at(row, 3), history.at(row, 2), history.at(row, 1), history.at(row, 0)};
      conv_silu(taps, conv_w, q_channel, dk, q);
      conv_silu(taps, conv_w, k_channel, dk, k);
      conv_silu(taps, conv_w, v_channel, dv, v);
      l2_normalise(q, dk, 1.0f / std::sqrt(float(dk)));
      l2_normalise(k, dk, 1.0f);

      // Each channel has one writer: the value head, or the first of the value heads that share a key head.
      auto keep = [&](std::uint32_t channel, std::uint32_t count) {
        for (std::uint32_t j = 0; j < 3; ++j)
          std::memcpy(history.state_row(step[row].slot_out, j) + channel, taps[j + 1] + channel, count * sizeof(float));
      };
      keep(v_channel, dv);
      if (head % share == 0) keep(q_channel, dk), keep(k_channel, dk);

      const float* gates = ba + std::size_t(row) * 2 * value_heads;
      const float beta = 1.0f / (1.0f + std::exp(-gates[head]));
      const float decay = std::exp(log_decay(A_log[head], gates[value_heads + head], dt_bias[head]));
      float kq = 0;
      for (std::uint32_t j = 0; j < dk; ++j) kq += k[j] * q[j];

      const float* from = state_of(step[row].slot_in, head);
      float* to = state_of(step[row].slot_out, head);
      float* o = buffer<float>(call, 8) + (std::size_t(row) * value_heads + head) * dv;
      std::uint32_t c = 0;
      for (; c + 4 * kLanes <= dv; c += 4 * kLanes)
        update_columns<4>(from + c, to + c, dk, dv, q, k, v + c, kq, decay, beta, o + c);
      for (; c < dv; c += kLanes) update_columns<1>(from + c, to + c, dk, dv, q, k, v + c, kq, decay, beta, o + c);
    }
  }
}

static std::size_t scratch_bytes(const ModelConstants& model, const void*) {
  return 2 * scratch_floats(model.linear_key_head_dim) + scratch_floats(model.linear_value_head_dim);
}

void add_gdn_step(KernelTable& table) {
  add_kernel(table, {.name = "gdn_step_f32", .run = gdn_step, .access = "rrrrrrbbw", .args_size = sizeof(LayerArgs),
                     .tile = {0, 1, 1}, .scratch_bytes = scratch_bytes});
}

}  // namespace lily::cpu::LILY_ISA
