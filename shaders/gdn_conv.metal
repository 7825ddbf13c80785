// Between the input projections and the delta rule: causal convolution, silu, the norms of q and k, and the gates g and beta.
// A threadgroup takes a key head with its value heads and 16 rows; each of its simdgroups walks four of them, so that a row is
// read 7 / 4 times.
#include "lily_args.h"
#include "lily_conv.h"
#include "lily_grid.h"

constant constexpr uint kHeadsPerKey = LILY_LINEAR_NUM_VALUE_HEADS / LILY_LINEAR_NUM_KEY_HEADS;

// Rows of the timeline, counted from the chunk's start: -3, -2 and -1 are in the state.
struct History {
  device const half* qkv;
  device const float* state;

  float4 at(int row, uint channel) const {
    if (row < 0) return *(device const float4*)(state + uint(row + int(LILY_KEPT_ROWS)) * LILY_CONV_CHANNELS + channel);
    const half4 values = *(device const half4*)(qkv + ulong(row) * LILY_CONV_CHANNELS + channel);
    return float4(values);
  }
};

// The convolutions of four channels and the simdgroup's rows.
static inline void convolve_rows(thread const History& history, device const float* conv_w, uint channel, uint row0,
                            uint rows, thread float4 (&y)[LILY_GDN_CONV_SIMDGROUP_ROWS]) {
  float4 taps[LILY_CONV_TAPS];  // of channel, channel + 1, … : conv_w has the taps of a channel side by side
  for (uint i = 0; i < 4; ++i) {
    const float4 of_channel = ((device const float4*)conv_w)[channel + i];
    for (uint j = 0; j < LILY_CONV_TAPS; ++j) taps[j][i] = of_channel[j];
  }
  float4 window[LILY_CONV_TAPS];
  for (uint j = 0; j < LILY_KEPT_ROWS; ++j) window[j + 1] = history.at(int(row0 + j) - int(LILY_KEPT_ROWS), channel);
  for (uint r = 0; r < LILY_GDN_CONV_SIMDGROUP_ROWS; ++r) {
    for (uint j = 0; j < LILY_KEPT_ROWS; ++j) window[j] = window[j + 1];
    window[LILY_KEPT_ROWS] = history.at(int(min(row0 + r, rows - 1)), channel);
    float4 sum = float4(0.0f);
    for (uint j = 0; j < LILY_CONV_TAPS; ++j) sum += taps[j] * window[j];
    y[r] = sum / (1.0f + exp(-sum));
  }
}

// A head of q or k: convolution and norm.
static inline void convolve_and_norm(thread const History& history, device const float* conv_w, uint channel0, uint row0,
                                     uint rows, float scale, device float* to, uint lane) {
  constexpr uint kParts = (LILY_LINEAR_KEY_HEAD_DIM + 127) / 128;
  float4 y[kParts][LILY_GDN_CONV_SIMDGROUP_ROWS];
  float squares[LILY_GDN_CONV_SIMDGROUP_ROWS];
  for (uint r = 0; r < LILY_GDN_CONV_SIMDGROUP_ROWS; ++r) squares[r] = 0.0f;
  for (uint p = 0; p < kParts; ++p) {
    const uint i = p * 128 + lane * 4;
    if (i >= LILY_LINEAR_KEY_HEAD_DIM) continue;
    convolve_rows(history, conv_w, channel0 + i, row0, rows, y[p]);
    for (uint r = 0; r < LILY_GDN_CONV_SIMDGROUP_ROWS; ++r) squares[r] += dot(y[p][r], y[p][r]);
  }
  for (uint r = 0; r < LILY_GDN_CONV_SIMDGROUP_ROWS; ++r) {
    const float factor = scale * precise::rsqrt(poisoned(simd_sum(squares[r])) + 1e-6f);
    for (uint p = 0; p < kParts; ++p) {
      const uint i = p * 128 + lane * 4;
      if (i < LILY_LINEAR_KEY_HEAD_DIM && row0 + r < rows)
        *(device float4*)(to + ulong(row0 + r) * LILY_KEY_DIM + i) = factor * y[p][r];
    }
  }
}

kernel void gdn_conv(device const StepRow* step [[buffer(0)]], device const half* qkv [[buffer(1)]],
                     device const float* ba [[buffer(2)]], device const float* conv_w [[buffer(3)]],
                     device const float* A_log [[buffer(4)]], device const float* dt_bias [[buffer(5)]],
                     device float* conv_state [[buffer(6)]], device float* q [[buffer(7)]], device float* k [[buffer(8)]],
                     device float* v [[buffer(9)]], device float* g [[buffer(10)]], device float* beta [[buffer(11)]],
                     constant LayerArgs& args [[buffer(12)]], uint2 group [[threadgroup_position_in_grid]],
                     uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint kKeyWidth = LILY_LINEAR_KEY_HEAD_DIM, kValueWidth = kHeadsPerKey * LILY_LINEAR_VALUE_HEAD_DIM;
  const uint key_head = group.x, rows = args.rows;
  const uint row0 = group.y * LILY_GDN_CONV_ROWS + simdgroup * LILY_GDN_CONV_SIMDGROUP_ROWS;
  if (row0 >= rows) return;
  const History history = {qkv, conv_state + conv_place(step->slot_in, args.layer, 0, 0)};
  const uint q0 = key_head * kKeyWidth, k0 = LILY_KEY_DIM + q0, v0 = 2 * LILY_KEY_DIM + key_head * kValueWidth;

  convolve_and_norm(history, conv_w, q0, row0, rows, precise::rsqrt(float(kKeyWidth)), q + q0, lane);
  convolve_and_norm(history, conv_w, k0, row0, rows, 1.0f, k + q0, lane);
  for (uint i = lane * 4; i < kValueWidth; i += 128) {
    float4 y[LILY_GDN_CONV_SIMDGROUP_ROWS];
    convolve_rows(history, conv_w, v0 + i, row0, rows, y);
    for (uint r = 0; r < LILY_GDN_CONV_SIMDGROUP_ROWS && row0 + r < rows; ++r)
      *(device float4*)(v + ulong(row0 + r) * LILY_VALUE_DIM + key_head * kValueWidth + i) = y[r];
  }
  for (uint i = lane; i < LILY_GDN_CONV_SIMDGROUP_ROWS * kHeadsPerKey; i += 32) {
    const uint row = row0 + i / kHeadsPerKey, head = key_head * kHeadsPerKey + i % kHeadsPerKey;
    if (row >= rows) continue;
    device const float* gates = ba + ulong(row) * 2 * LILY_LINEAR_NUM_VALUE_HEADS;
    const ulong to = ulong(row) * LILY_LINEAR_NUM_VALUE_HEADS + head;
    beta[to] = sigmoid(gates[head]);
    g[to] = log_decay(A_log[head], gates[LILY_LINEAR_NUM_VALUE_HEADS + head], dt_bias[head]);
  }

  if (row0 + LILY_GDN_CONV_SIMDGROUP_ROWS < rows) return;
  // The last rows' simdgroup keeps what the next chunk's convolution reads.
  for (uint j = 0; j < LILY_KEPT_ROWS; ++j) {
    const int row = int(rows + j) - int(LILY_KEPT_ROWS);
    device float* to = conv_state + conv_place(step->slot_out, args.layer, j, 0);
    for (uint i = lane * 4; i < kKeyWidth; i += 128) {
      *(device float4*)(to + q0 + i) = history.at(row, q0 + i);
      *(device float4*)(to + k0 + i) = history.at(row, k0 + i);
    }
    for (uint i = lane * 4; i < kValueWidth; i += 128) *(device float4*)(to + v0 + i) = history.at(row, v0 + i);
  }
}
