// One token of the gated delta rule per row: convolution, gates, and one pass over the recurrent state.
//   r = Sᵀ k, s = Sᵀ q;  d = β (v − e^g r);  o = e^g s + (k · q) d;  S = e^g S + k dᵀ
#include <cmath>

#include "device/cpu/kernels/conv.h"
#include "device/cpu/kernels/norm.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {
namespace {

// Of one value head and its key head.
struct StepScratch {
  StepScratch(const KernelCall& call, Scratch& scratch)
      : q(scratch.take<float>(call.model->linear_key_head_dim)),
        k(scratch.take<float>(call.model->linear_key_head_dim)),
        v(scratch.take<float>(call.model->linear_value_head_dim)),
        q_conv(scratch, call.model->linear_key_head_dim),
        k_conv(scratch, call.model->linear_key_head_dim),
        v_conv(scratch, call.model->linear_value_head_dim) {}

  float* q;  // [dk]
  float* k;  // [dk]
  float* v;  // [dv]
  ConvChannels q_conv, k_conv, v_conv;
};

// Where the rows of the convolution come from. A row that continues the row before it finds its history in qkv: what that row
// writes to conv_state in this dispatch may not be there yet.
struct History {
  const StepRow* step;
  const float* qkv;         // [R, C]
  float* conv_state;        // [slot][layer][3][C]
  std::uint32_t layers, layer, channels;

  float* state_row(std::uint32_t slot, std::uint32_t row) const {
    return conv_state + ((std::size_t(slot) * layers + layer) * kKeptRows + row) * channels;
  }
  // The row of qkv `back` tokens before row `row`, 0 to kKeptRows.
  const float* at(std::uint32_t row, std::uint32_t back) const {
    for (; back > 0 && row > 0 && step[row].slot_in == step[row - 1].slot_out; --back) --row;
    return back == 0 ? qkv + std::size_t(row) * channels : state_row(step[row].slot_in, kKeptRows - back);
  }
};

// As many vectors of a state's columns as leave registers for two sums each: rows are read whole where that is possible.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kColumnVectors = 8;
#else
constexpr int kColumnVectors = 4;
#endif
constexpr std::size_t kAhead = 2048;  // elements: how far ahead of its use the state is asked for

// kVectors vectors of columns of one head's state; all of it stays in registers but S, which comes from memory once.
template <int kVectors>
static inline void update_columns(const float* from, float* to, std::uint32_t key_width, std::size_t value_width, const float* q,
                                  const float* k, const float* v, float kq, float decay, float beta, float* o) {
  Vf r[kVectors] = {}, s[kVectors] = {};
  for (std::uint32_t i = 0; i < key_width; ++i)
    for (int j = 0; j < kVectors; ++j) {
      __builtin_prefetch(from + i * value_width + j * kLanes + kAhead);
      const Vf x = loadf(from + i * value_width + j * kLanes);
      r[j] += k[i] * x;
      s[j] += q[i] * x;
    }
  Vf d[kVectors];
  for (int j = 0; j < kVectors; ++j) {
    d[j] = beta * (loadf(v + j * kLanes) - decay * r[j]);
    storef(o + j * kLanes, decay * s[j] + kq * d[j]);
  }
  for (std::uint32_t i = 0; i < key_width; ++i)
    for (int j = 0; j < kVectors; ++j)
      storef(to + i * value_width + j * kLanes, decay * loadf(from + i * value_width + j * kLanes) + k[i] * d[j]);
}

}  // namespace

static void gdn_step(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const ModelConstants& model = *call.model;
  const LayerArgs& args = args_of<LayerArgs>(call);
  const std::uint32_t key_width = model.linear_key_head_dim, value_width = model.linear_value_head_dim;
  const std::uint32_t heads = model.linear_num_value_heads, heads_per_key = heads / model.linear_num_key_heads;
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
    const std::size_t matrix = (std::size_t(slot) * model.num_linear_layers + args.layer) * heads + head;
    return recurrent_state + matrix * key_width * value_width;
  };
  auto [q, k, v, q_conv, k_conv, v_conv] = scratch_of<StepScratch>(call);

  for (std::uint32_t i = first; i < last; ++i) {
    const std::uint32_t head = tile_at(call, i).y0, key_head = head / heads_per_key;
    q_conv.load_taps(conv_w, key_head * key_width);
    k_conv.load_taps(conv_w, key_dim + key_head * key_width);
    v_conv.load_taps(conv_w, 2 * key_dim + head * value_width);
    for (std::uint32_t row = 0; row < args.rows; ++row) {
      const float* rows[LILY_CONV_TAPS];
      for (std::uint32_t j = 0; j < LILY_CONV_TAPS; ++j) rows[j] = history.at(row, kKeptRows - j);
      q_conv.apply(rows, q);
      k_conv.apply(rows, k);
      v_conv.apply(rows, v);
      l2_normalise(q, key_width, 1.0f / std::sqrt(float(key_width)));
      l2_normalise(k, key_width, 1.0f);

      // Each channel has one writer: the value head, or the first of the value heads that share a key head.
      auto keep = [&](const ConvChannels& c) {
        for (std::uint32_t j = 0; j < kKeptRows; ++j)
          std::memcpy(history.state_row(step[row].slot_out, j) + c.begin, rows[j + 1] + c.begin, c.width * sizeof(float));
      };
      keep(v_conv);
      if (head % heads_per_key == 0) keep(q_conv), keep(k_conv);

      const float* gates = ba + std::size_t(row) * 2 * heads;
      const float beta = sigmoid(gates[head]);
      const float decay = std::exp(log_decay(A_log[head], gates[heads + head], dt_bias[head]));
      float kq = 0;
      for (std::uint32_t j = 0; j < key_width; ++j) kq += k[j] * q[j];

      const float* from = state_of(step[row].slot_in, head);
      float* to = state_of(step[row].slot_out, head);
      float* o = buffer<float>(call, 8) + (std::size_t(row) * heads + head) * value_width;
      std::uint32_t c = 0;
      for (; c + kColumnVectors * kLanes <= value_width; c += kColumnVectors * kLanes)
        update_columns<kColumnVectors>(from + c, to + c, key_width, value_width, q, k, v + c, kq, decay, beta, o + c);
      for (; c < value_width; c += kLanes)
        update_columns<1>(from + c, to + c, key_width, value_width, q, k, v + c, kq, decay, beta, o + c);
    }
  }
}

void add_gdn_step(KernelTable& table) {
  add_kernel(table, {.op = "gdn_step", .run = gdn_step, .tile = {0, 1, 1}, .scratch_bytes = scratch_bytes<StepScratch>});
}

}  // namespace lily::cpu::LILY_ISA
