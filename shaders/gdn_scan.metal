// The sequential part of the chunked delta rule: the state through all chunks, and the outputs (docs/design/model.md 3.2).
// A threadgroup takes 32 value columns of a head: columns never meet. Simdgroup s has tokens 8 s to 8 s + 7 of a chunk and every
// eighth strip of the state. All products are float32.
// Threadgroup memory: state 128 · 32 floats = 16,384 bytes, D 64 · 32 = 8,192, scratch 8 · 256 = 2,048, decays 768: 27,392 in
// all.
// Accumulators: 8 blocks of 8 x 8 a simdgroup, 16 registers a lane.
#include "lily_args.h"
#include "lily_grid.h"
#include "lily_matrix.h"

constant constexpr uint kChunk = LILY_DELTA_CHUNK;
constant constexpr uint kColumns = LILY_GDN_SCAN_COLUMNS;
constant constexpr uint kBlocks = kColumns / 8;  // of 8 columns
constant constexpr uint kSimdgroups = LILY_GDN_SCAN_THREADS / 32;
constant constexpr uint kHeadsPerKey = LILY_LINEAR_NUM_VALUE_HEADS / LILY_LINEAR_NUM_KEY_HEADS;
static_assert(kSimdgroups * 8 == kChunk, "a simdgroup per strip of 8 tokens");

kernel void gdn_scan(device const StepRow* step [[buffer(0)]], device const float* q [[buffer(1)]],
                     device const float* k [[buffer(2)]], device const float* u [[buffer(3)]],
                     device const float* w [[buffer(4)]], device const float* qk [[buffer(5)]],
                     device const float* g [[buffer(6)]], device float* recurrent_state [[buffer(7)]],
                     device float* o [[buffer(8)]], constant LayerArgs& args [[buffer(9)]],
                     uint2 group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
                     uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float state[LILY_LINEAR_KEY_HEAD_DIM * kColumns];
  threadgroup float d_rows[kChunk * kColumns];
  threadgroup float all_scratch[kSimdgroups * 64];
  threadgroup float decay[kChunk];
  threadgroup float from_start[kChunk];  // e^{G_i}: what is left of the chunk's first state at token i
  threadgroup float to_end[kChunk];      // e^{G_C - G_i}: what is left of token i at the chunk's end
  constexpr uint kHeads = LILY_LINEAR_NUM_VALUE_HEADS, kKeyWidth = LILY_LINEAR_KEY_HEAD_DIM;
  constexpr uint kValueWidth = LILY_LINEAR_VALUE_HEAD_DIM;
  const uint column0 = group.x * kColumns, head = group.y;
  threadgroup float* scratch = all_scratch + simdgroup * 64;

  const ulong matrix = ulong(kKeyWidth) * kValueWidth, in_slot = args.layer * kHeads + head;
  device const float* state_in =
      recurrent_state + (ulong(step->slot_in) * LILY_NUM_LINEAR_LAYERS * kHeads + in_slot) * matrix + column0;
  device float* state_out =
      recurrent_state + (ulong(step->slot_out) * LILY_NUM_LINEAR_LAYERS * kHeads + in_slot) * matrix + column0;
  for (uint i = index; i < kKeyWidth * kColumns; i += LILY_GDN_SCAN_THREADS)
    state[i] = state_in[i / kColumns * kValueWidth + i % kColumns];

  for (uint row0 = 0; row0 < args.rows; row0 += kChunk) {
    const uint length = min(args.rows - row0, kChunk);
    const ulong head_row = ulong(row0) * kHeads + head;
    if (index < kChunk) decay[index] = index < length ? g[head_row + index * kHeads] : 0.0f;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // Sums from both ends: G_C - G_i as a difference of two sums near -1000 would be off by 6e-5.
    if (index < 2 * kChunk) {
      const uint i = index % kChunk;
      float sum = 0.0f;
      if (index < kChunk) {
        for (uint t = 0; t <= i; ++t) sum += decay[t];
        from_start[i] = exp(sum);
      } else {
        for (uint t = kChunk - 1; t > i; --t) sum += decay[t];
        to_end[i] = exp(sum);
      }
    }

    // D = U - W S and Q S for the simdgroup's tokens; rows past the chunk's end are 0.
    const uint first = simdgroup * 8, rows = rows_from(first, length);
    device const float* k_rows = k + ulong(row0) * LILY_KEY_DIM + head / kHeadsPerKey * kKeyWidth;
    device const float* q_rows = q + ulong(row0 + first) * LILY_KEY_DIM + head / kHeadsPerKey * kKeyWidth;
    device const float* w_rows = w + (head_row + first * kHeads) * kKeyWidth;
    device const float* u_rows = u + (head_row + first * kHeads) * kValueWidth + column0;
    simdgroup_float8x8 d[kBlocks], qs[kBlocks], a_w, a_q, b;
    for (uint c = 0; c < kBlocks; ++c) set_zero(d[c]);
    for (uint c = 0; c < kBlocks; ++c) set_zero(qs[c]);
    if (rows > 0) {
      for (uint i = 0; i < kKeyWidth; i += 8) {
        load_rows(a_w, w_rows + i, kHeads * kKeyWidth, rows, false, scratch, lane);
        load_rows(a_q, q_rows + i, LILY_KEY_DIM, rows, false, scratch, lane);
        for (uint c = 0; c < kBlocks; ++c) {
          simdgroup_load(b, state + i * kColumns + c * 8, kColumns);
          simdgroup_multiply_accumulate(d[c], a_w, b, d[c]);
          simdgroup_multiply_accumulate(qs[c], a_q, b, qs[c]);
        }
      }
      for (uint c = 0; c < kBlocks; ++c) simdgroup_store(d[c], d_rows + first * kColumns + c * 8, kColumns);
      simdgroup_barrier(mem_flags::mem_threadgroup);
      for (uint i = 0; i < 8; ++i) {
        threadgroup float* to = d_rows + (first + i) * kColumns + lane;
        *to = i < rows ? u_rows[i * kHeads * kValueWidth + lane] - *to : 0.0f;
      }
    } else {
      for (uint i = 0; i < 8; ++i) d_rows[(first + i) * kColumns + lane] = 0.0f;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // O = diag(e^G) Q S + (M ∗ Q Kᵀ) D
    simdgroup_float8x8 factors;
    if (rows > 0) {
      load_diagonal(factors, from_start + first, scratch, lane);
      for (uint c = 0; c < kBlocks; ++c) simdgroup_multiply(qs[c], factors, qs[c]);
      for (uint j = 0; j <= simdgroup; ++j) {
        simdgroup_float8x8 a;
        load_rows(a, qk + (head_row + first * kHeads) * kChunk + j * 8, kHeads * kChunk, rows, false, scratch, lane);
        for (uint c = 0; c < kBlocks; ++c) {
          simdgroup_load(b, d_rows + j * 8 * kColumns + c * 8, kColumns);
          simdgroup_multiply_accumulate(qs[c], a, b, qs[c]);
        }
      }
      for (uint c = 0; c < kBlocks; ++c)
        store_rows(qs[c], o + (head_row + first * kHeads) * kValueWidth + column0 + c * 8, kHeads * kValueWidth, rows, scratch,
                   lane);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // S = e^{G_C} S + Kᵀ diag(e^{G_C - G}) D
    for (uint i = 0; i < 8; ++i) d_rows[(first + i) * kColumns + lane] *= to_end[first + i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float whole = from_start[kChunk - 1];  // decays past the chunk's end are 0
    for (uint strip = simdgroup; strip < kKeyWidth / 8; strip += kSimdgroups) {
      threadgroup float* own = state + strip * 8 * kColumns;
      for (uint i = 0; i < 8; ++i) own[i * kColumns + lane] *= whole;
      simdgroup_barrier(mem_flags::mem_threadgroup);
      simdgroup_float8x8 sums[kBlocks];
      for (uint c = 0; c < kBlocks; ++c) simdgroup_load(sums[c], own + c * 8, kColumns);
      for (uint j = 0; j * 8 < length; ++j) {
        simdgroup_float8x8 a;
        load_rows(a, k_rows + ulong(j) * 8 * LILY_KEY_DIM + strip * 8, LILY_KEY_DIM, rows_from(j * 8, length), true, scratch,
                  lane);
        for (uint c = 0; c < kBlocks; ++c) {
          simdgroup_load(b, d_rows + j * 8 * kColumns + c * 8, kColumns);
          simdgroup_multiply_accumulate(sums[c], a, b, sums[c]);
        }
      }
      simdgroup_barrier(mem_flags::mem_threadgroup);
      for (uint c = 0; c < kBlocks; ++c) simdgroup_store(sums[c], own + c * 8, kColumns);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = index; i < kKeyWidth * kColumns; i += LILY_GDN_SCAN_THREADS)
    state_out[i / kColumns * kValueWidth + i % kColumns] = state[i];
}
