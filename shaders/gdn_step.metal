// One token of the gated delta rule per row: convolution, gates, and one pass over the recurrent state.
//   r = S^T k, s = S^T q;  d = beta (v - e^g r);  o = e^g s + (k . q) d;  S = e^g S + k d^T
// A threadgroup has LILY_GDN_STEP_COLUMNS columns of one head's state in registers (128 x 32 floats are 32 a thread): read once,
// written once. It convolves its head's q and k and its own columns of v itself.
#include "lily_conv.h"

#define LILY_COLUMN_QUADS (LILY_GDN_STEP_COLUMNS / 4u)
#define LILY_ROWS_AT_ONCE (LILY_GDN_STEP_THREADS / LILY_COLUMN_QUADS)
#define LILY_STEP_SIMDGROUPS (LILY_GDN_STEP_THREADS / LILY_SIMD_WIDTH)
constant constexpr uint kStateQuads = LILY_LINEAR_KEY_HEAD_DIM / LILY_ROWS_AT_ONCE;  // of a thread
constant constexpr uint kHeadsPerKey = LILY_LINEAR_NUM_VALUE_HEADS / LILY_LINEAR_NUM_KEY_HEADS;

// What a row's convolution reads. A row that continues the row before finds its history in qkv: what that row writes to
// conv_state in this dispatch may not be there yet.
struct History {
  device const StepRow* step;
  device const half* qkv;  // [R, C]
  device float* conv_state;
  uint layer;

  // The input of `channel`, `back` tokens before row `row`.
  float input(uint row, uint back, uint channel) const thread {
    for (; back > 0u && row > 0u && step[row].slot_in == step[row - 1u].slot_out; --back) --row;
    if (back == 0u) return float(qkv[row * LILY_CONV_CHANNELS + channel]);
    return conv_state[conv_place(step[row].slot_in, layer, LILY_KEPT_ROWS - back, channel)];
  }
  // The convolved channel; what the next token's convolution needs goes into slot_out when `keep` is set.
  float convolved(uint row, uint channel, device const float4* conv_w, bool keep) const thread {
    const float4 inputs = float4(input(row, 3u, channel), input(row, 2u, channel), input(row, 1u, channel),
                                 input(row, 0u, channel));
    if (keep)
      for (uint i = 0; i < LILY_KEPT_ROWS; ++i) conv_state[conv_place(step[row].slot_out, layer, i, channel)] = inputs[i + 1u];
    return convolve(conv_w[channel], inputs);
  }
};

kernel void gdn_step(device const StepRow* step [[buffer(0)]], device const half* qkv [[buffer(1)]],
                     device const float* ba [[buffer(2)]], device const float4* conv_w [[buffer(3)]],
                     device const float* A_log [[buffer(4)]], device const float* dt_bias [[buffer(5)]],
                     device float* conv_state [[buffer(6)]], device float* recurrent_state [[buffer(7)]],
                     device float* o [[buffer(8)]], constant LayerArgs& args [[buffer(9)]],
                     uint3 group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
                     uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float q[LILY_LINEAR_KEY_HEAD_DIM], k[LILY_LINEAR_KEY_HEAD_DIM], v[LILY_GDN_STEP_COLUMNS];
  threadgroup float qq[LILY_STEP_SIMDGROUPS], kk[LILY_STEP_SIMDGROUPS], kq[LILY_STEP_SIMDGROUPS];
  threadgroup float4 r_parts[LILY_STEP_SIMDGROUPS * LILY_COLUMN_QUADS], s_parts[LILY_STEP_SIMDGROUPS * LILY_COLUMN_QUADS];
  const uint head = group.y, key_head = head / kHeadsPerKey, first_column = group.x * LILY_GDN_STEP_COLUMNS;
  const uint column = index % LILY_COLUMN_QUADS, first_row = index / LILY_COLUMN_QUADS;  // of the thread's quads of the state
  const uint q_channel = key_head * LILY_LINEAR_KEY_HEAD_DIM, k_channel = LILY_KEY_DIM + q_channel;
  const uint v_channel = 2u * LILY_KEY_DIM + head * LILY_LINEAR_VALUE_HEAD_DIM + first_column;
  // Each channel has one writer of its history: q and k have that of the first columns of the first value head.
  const bool keeps_keys = group.x == 0u && head % kHeadsPerKey == 0u;
  const History history = {step, qkv, conv_state, args.layer};
  const ulong matrix_quads = LILY_LINEAR_KEY_HEAD_DIM * LILY_LINEAR_VALUE_HEAD_DIM / 4u;
  const ulong first_quad = (first_row * LILY_LINEAR_VALUE_HEAD_DIM + first_column) / 4u + column;

  float4 state[kStateQuads];
  for (uint row = 0; row < args.rows; ++row) {
    // The state of a row that continues the row before is in the registers.
    if (row == 0u || step[row].slot_in != step[row - 1u].slot_out) {
      const ulong matrix = ((ulong)step[row].slot_in * LILY_NUM_LINEAR_LAYERS + args.layer) * LILY_LINEAR_NUM_VALUE_HEADS + head;
      device const float4* from = (device const float4*)recurrent_state + matrix * matrix_quads + first_quad;
#pragma clang loop unroll(full)
      for (uint i = 0; i < kStateQuads; ++i) state[i] = from[i * LILY_ROWS_AT_ONCE * LILY_LINEAR_VALUE_HEAD_DIM / 4u];
    }

    float q_sum = 0.0f, k_sum = 0.0f, kq_sum = 0.0f;
    for (uint i = index; i < LILY_LINEAR_KEY_HEAD_DIM; i += LILY_GDN_STEP_THREADS) {
      const float q_i = history.convolved(row, q_channel + i, conv_w, keeps_keys);
      const float k_i = history.convolved(row, k_channel + i, conv_w, keeps_keys);
      q[i] = q_i;
      k[i] = k_i;
      q_sum += q_i * q_i;
      k_sum += k_i * k_i;
      kq_sum += k_i * q_i;
    }
    if (index < LILY_GDN_STEP_COLUMNS) v[index] = history.convolved(row, v_channel + index, conv_w, true);
    q_sum = simd_sum(q_sum);
    k_sum = simd_sum(k_sum);
    kq_sum = simd_sum(kq_sum);
    if (lane == 0u) {
      qq[simdgroup] = q_sum;
      kk[simdgroup] = k_sum;
      kq[simdgroup] = kq_sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // q and k are normalised through their sums: the epsilon is added to the sum of squares.
    const float q_scale = rsqrt(poisoned(parts_sum<LILY_STEP_SIMDGROUPS>(qq)) + 1e-6f) * rsqrt(float(LILY_LINEAR_KEY_HEAD_DIM));
    const float k_scale = rsqrt(poisoned(parts_sum<LILY_STEP_SIMDGROUPS>(kk)) + 1e-6f);
    const float kq_scaled = parts_sum<LILY_STEP_SIMDGROUPS>(kq) * q_scale * k_scale;
    float4 r = float4(0.0f), s = float4(0.0f);
#pragma clang loop unroll(full)
    for (uint i = 0; i < kStateQuads; ++i) {
      r += k[first_row + i * LILY_ROWS_AT_ONCE] * state[i];
      s += q[first_row + i * LILY_ROWS_AT_ONCE] * state[i];
    }
#pragma clang loop unroll(full)
    for (ushort width = LILY_COLUMN_QUADS; width < LILY_SIMD_WIDTH; width *= 2u) {
      r += simd_shuffle_xor(r, width);
      s += simd_shuffle_xor(s, width);
    }
    if (lane < LILY_COLUMN_QUADS) {
      r_parts[simdgroup * LILY_COLUMN_QUADS + column] = r;
      s_parts[simdgroup * LILY_COLUMN_QUADS + column] = s;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    r = float4(0.0f);
    s = float4(0.0f);
#pragma clang loop unroll(full)
    for (uint i = 0; i < LILY_STEP_SIMDGROUPS; ++i) {
      r += r_parts[i * LILY_COLUMN_QUADS + column];
      s += s_parts[i * LILY_COLUMN_QUADS + column];
    }
    device const float* gates = ba + row * 2u * LILY_LINEAR_NUM_VALUE_HEADS + head;
    const float beta = sigmoid(gates[0]);
    const float decay = exp(log_decay(A_log[head], gates[LILY_LINEAR_NUM_VALUE_HEADS], dt_bias[head]));
    const float4 value = float4(v[4u * column], v[4u * column + 1u], v[4u * column + 2u], v[4u * column + 3u]);
    const float4 d = beta * (value - decay * k_scale * r);
    if (first_row == 0u) {
      const uint at = (row * LILY_LINEAR_NUM_VALUE_HEADS + head) * LILY_LINEAR_VALUE_HEAD_DIM + first_column;
      ((device float4*)(o + at))[column] = decay * q_scale * s + kq_scaled * d;
    }
    const ulong matrix = ((ulong)step[row].slot_out * LILY_NUM_LINEAR_LAYERS + args.layer) * LILY_LINEAR_NUM_VALUE_HEADS + head;
    device float4* to = (device float4*)recurrent_state + matrix * matrix_quads + first_quad;
#pragma clang loop unroll(full)
    for (uint i = 0; i < kStateQuads; ++i) {
      state[i] = decay * state[i] + k[first_row + i * LILY_ROWS_AT_ONCE] * k_scale * d;
      to[i * LILY_ROWS_AT_ONCE * LILY_LINEAR_VALUE_HEAD_DIM / 4u] = state[i];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);  // the next row writes what this one reads
  }
}
