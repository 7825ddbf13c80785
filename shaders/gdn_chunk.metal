// The part of the chunked delta rule that does not depend on the state: U, W and M ∗ Q Kᵀ of every 64 tokens
// (docs/design/model.md 3.2). A threadgroup takes one value head and one chunk; all products are float32.
// Threadgroup memory: the 36 lower 8 x 8 blocks of a 64 x 64 matrix 9,216 bytes, scratch 8 · 256 = 2,048, gates 768: 12,032 in
// all, so that two groups fit into 32 KB. Accumulators: 16 blocks of 8 x 8 a simdgroup, 32 registers a lane.
#include "lily_args.h"
#include "lily_grid.h"
#include "lily_matrix.h"

constant constexpr uint kChunk = LILY_DELTA_CHUNK;
constant constexpr uint kStrips = kChunk / 8;  // of 8 tokens
constant constexpr uint kHeadsPerKey = LILY_LINEAR_NUM_VALUE_HEADS / LILY_LINEAR_NUM_KEY_HEADS;
static_assert(LILY_GDN_CHUNK_THREADS == 32 * kStrips, "a simdgroup per strip");

// Where block (i, j), j <= i, of the lower triangle begins, and where element (i, j) lies.
static inline uint block_at(uint i, uint j) { return (i * (i + 1) / 2 + j) * 64; }
static inline uint element_at(uint i, uint j) { return block_at(i / 8, j / 8) + i % 8 * 8 + j % 8; }

// Sums of decays from token j + 1 to token i, for one j and a stretch of i. Added up from the smallest range: a difference of two
// long sums near -1000 would be off by 6e-5.
struct DecaySum {
  float sum;

  void begin(threadgroup const float* decay, uint i, uint j) {
    sum = 0.0f;
    for (uint t = j + 1; t < i; ++t) sum += decay[t];
  }
  // exp(G_i - G_j), for i in order.
  float next(threadgroup const float* decay, uint i, uint j) {
    sum += i > j ? decay[i] : 0.0f;
    return exp(sum);
  }
};

// Rows of T times rows of `from`, 16 columns from `column0` on, for the tokens of the chunk.
static inline void solve(threadgroup const float* t_blocks, device const float* from, uint from_stride, device float* to,
                         uint to_stride, uint column0, uint length, threadgroup float* scratch, uint lane) {
  simdgroup_float8x8 sums[kStrips][2];
  for (uint i = 0; i < kStrips; ++i)
    for (uint c = 0; c < 2; ++c) set_zero(sums[i][c]);
  for (uint j = 0; j * 8 < length; ++j) {
    simdgroup_float8x8 b[2];
    for (uint c = 0; c < 2; ++c)
      load_rows(b[c], from + ulong(j) * 8 * from_stride + column0 + c * 8, from_stride, rows_from(j * 8, length), false, scratch,
                lane);
    for (uint i = 0; i < kStrips; ++i) {
      if (i < j) continue;
      simdgroup_float8x8 a;
      simdgroup_load(a, t_blocks + block_at(i, j), 8);
      for (uint c = 0; c < 2; ++c) simdgroup_multiply_accumulate(sums[i][c], a, b[c], sums[i][c]);
    }
  }
  for (uint i = 0; i < kStrips; ++i) {
    const uint rows = rows_from(i * 8, length);
    if (rows == 0) continue;
    for (uint c = 0; c < 2; ++c)
      store_rows(sums[i][c], to + ulong(i) * 8 * to_stride + column0 + c * 8, to_stride, rows, scratch, lane);
  }
}

kernel void gdn_chunk(device const float* q [[buffer(0)]], device const float* k [[buffer(1)]],
                      device const float* v [[buffer(2)]], device const float* g [[buffer(3)]],
                      device const float* beta [[buffer(4)]], device float* u [[buffer(5)]], device float* w [[buffer(6)]],
                      device float* qk [[buffer(7)]], constant RowsArgs& args [[buffer(8)]],
                      uint2 group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
                      uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float blocks[kStrips * (kStrips + 1) / 2 * 64];  // Q Kᵀ, then -A, then T
  threadgroup float all_scratch[kStrips * 64];
  threadgroup float decay[kChunk];       // g
  threadgroup float gate[kChunk];        // beta
  threadgroup float from_start[kChunk];  // e^G
  constexpr uint kHeads = LILY_LINEAR_NUM_VALUE_HEADS, kKeyWidth = LILY_LINEAR_KEY_HEAD_DIM;
  constexpr uint kValueWidth = LILY_LINEAR_VALUE_HEAD_DIM;
  const uint head = group.x, row0 = group.y * kChunk, length = min(args.rows - row0, kChunk);
  threadgroup float* scratch = all_scratch + simdgroup * 64;
  device const float* q_rows = q + ulong(row0) * LILY_KEY_DIM + head / kHeadsPerKey * kKeyWidth;
  device const float* k_rows = k + ulong(row0) * LILY_KEY_DIM + head / kHeadsPerKey * kKeyWidth;
  const ulong head_row = ulong(row0) * kHeads + head;

  if (index < kChunk) {
    decay[index] = index < length ? g[head_row + index * kHeads] : 0.0f;
    gate[index] = index < length ? beta[head_row + index * kHeads] : 0.0f;
  }

  // Half of the simdgroups make Q Kᵀ, half K Kᵀ; each takes two strips that have 9 lower blocks between them.
  const uint low = simdgroup % 4, high = kStrips - 1 - low;
  simdgroup_float8x8 low_sums[kStrips / 2], high_sums[kStrips];
  for (uint j = 0; j < kStrips / 2; ++j) set_zero(low_sums[j]);
  for (uint j = 0; j < kStrips; ++j) set_zero(high_sums[j]);
  device const float* rows = simdgroup < 4 ? q_rows : k_rows;
  for (uint d = 0; d < kKeyWidth; d += 8) {
    simdgroup_float8x8 a_low, a_high;
    load_rows(a_low, rows + ulong(low) * 8 * LILY_KEY_DIM + d, LILY_KEY_DIM, rows_from(low * 8, length), false, scratch, lane);
    load_rows(a_high, rows + ulong(high) * 8 * LILY_KEY_DIM + d, LILY_KEY_DIM, rows_from(high * 8, length), false, scratch, lane);
    for (uint j = 0; j < kStrips; ++j) {
      if (j > high) continue;
      simdgroup_float8x8 b;
      load_rows(b, k_rows + ulong(j) * 8 * LILY_KEY_DIM + d, LILY_KEY_DIM, rows_from(j * 8, length), true, scratch, lane);
      simdgroup_multiply_accumulate(high_sums[j], a_high, b, high_sums[j]);
      if (j < kStrips / 2 && j <= low) simdgroup_multiply_accumulate(low_sums[j], a_low, b, low_sums[j]);
    }
  }

  // A thread turns 16 elements of a column: rows i0 to i0 + 15 of column j.
  const uint j = index % kChunk, i0 = index / kChunk * 16;
  DecaySum sum;
  for (uint product = 0; product < 2; ++product) {
    if (simdgroup / 4 == product) {
      for (uint b = 0; b < kStrips / 2; ++b)
        if (b <= low) simdgroup_store(low_sums[b], blocks + block_at(low, b), 8);
      for (uint b = 0; b < kStrips; ++b)
        if (b <= high) simdgroup_store(high_sums[b], blocks + block_at(high, b), 8);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    sum.begin(decay, i0, j);
    for (uint i = i0; i < i0 + 16; ++i) {
      const float factor = sum.next(decay, i, j);
      if (product == 0) {
        if (i < length) qk[(head_row + i * kHeads) * kChunk + j] = j <= i ? factor * blocks[element_at(i, j)] : 0.0f;
      } else if (j / 8 <= i / 8) {
        blocks[element_at(i, j)] = j < i ? -gate[i] * factor * blocks[element_at(i, j)] : 0.0f;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  // T = (I + A)^-1 in place: the four 16 x 16 blocks of the diagonal by forward substitution, a lane per column; then the rows of
  // blocks below, T_ij = T_ii Σ_k (-A_ik) T_kj. No power of A is formed, so nothing overflows.
  if (simdgroup < 4) {
    const uint at = simdgroup * 16, column = lane % 16;
    float t[16];
    for (uint i = 0; i < 16; ++i) {
      t[i] = i == column ? 1.0f : 0.0f;
      for (uint m = 0; m < i; ++m) t[i] += blocks[element_at(at + i, at + m)] * t[m];
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < 16; ++i)
      if (lane < 16 && column / 8 <= i / 8) blocks[element_at(at + i, at + column)] = t[i];
  }
  if (index < kChunk) {
    float total = 0.0f;
    for (uint i = 0; i <= index; ++i) total += decay[i];
    from_start[index] = exp(total);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = 2; i < kStrips; i += 2) {
    simdgroup_float8x8 upper, lower;
    if (simdgroup < i) {
      simdgroup_float8x8 p_upper, p_lower, a, b;
      set_zero(p_upper);
      set_zero(p_lower);
      for (uint m = simdgroup; m < i; ++m) {
        simdgroup_load(b, blocks + block_at(m, simdgroup), 8);
        simdgroup_load(a, blocks + block_at(i, m), 8);
        simdgroup_multiply_accumulate(p_upper, a, b, p_upper);
        simdgroup_load(a, blocks + block_at(i + 1, m), 8);
        simdgroup_multiply_accumulate(p_lower, a, b, p_lower);
      }
      simdgroup_load(a, blocks + block_at(i, i), 8);
      simdgroup_multiply(upper, a, p_upper);
      simdgroup_load(a, blocks + block_at(i + 1, i), 8);
      simdgroup_multiply(lower, a, p_upper);
      simdgroup_load(a, blocks + block_at(i + 1, i + 1), 8);
      simdgroup_multiply_accumulate(lower, a, p_lower, lower);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup < i) {
      simdgroup_store(upper, blocks + block_at(i, simdgroup), 8);
      simdgroup_store(lower, blocks + block_at(i + 1, simdgroup), 8);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  // U = T diag(beta) V and W = T diag(beta e^G) K: the factors go into the columns of T.
  for (uint i = max(i0, j / 8 * 8); i < i0 + 16; ++i) blocks[element_at(i, j)] *= gate[j];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint c = simdgroup * 16; c < kValueWidth; c += kStrips * 16)
    solve(blocks, v + head_row * kValueWidth, kHeads * kValueWidth, u + head_row * kValueWidth, kHeads * kValueWidth, c, length,
          scratch, lane);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = max(i0, j / 8 * 8); i < i0 + 16; ++i) blocks[element_at(i, j)] *= from_start[j];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint c = simdgroup * 16; c < kKeyWidth; c += kStrips * 16)
    solve(blocks, k_rows, LILY_KEY_DIM, w + head_row * kKeyWidth, kHeads * kKeyWidth, c, length, scratch, lane);
}
