// Causal attention of a chunk over a stretch of the timeline's keys, with an online softmax; behind its last key a row's average
// is multiplied by sigmoid(gate). Rows that see more keys leave sum, maximum and denominator for the dispatch of the next one.
//
// A threadgroup takes 16 rows and one KV head, whose query heads share every key and value that is read: four heads a pass, 64
// queries. Passes are shared out among the threadgroups along z. Keys come 32 at a time; blocks behind the last row are not
// visited, and only the last one or two are masked.
// KV reads: four heads of 16 rows a pass, so a quarter of what 16-row tiles of one head read.
// Accumulators: 64 queries · 256 floats = 64 KB a threadgroup; each of the 8 simdgroups has all queries and 32 of the columns,
// 64 registers a lane. All 8 heads of a KV head at once would take 128, all that a lane can have on an Apple GPU.
// Threadgroup memory: scores 64 · 36 floats = 9,216 bytes, weights 64 · 36 halves = 4,608, scratch 8 · 256 = 2,048, per query
// 256, flags 32: 16,160 in all, so that two groups fit into 32 KB.
#include "lily_args.h"
#include "lily_grid.h"
#include "lily_kv.h"
#include "lily_math.h"
#include "lily_matrix.h"
#if LILY_GEMM_FORM == 1
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
#include <metal_tensor>
#endif

constant constexpr uint kWidth = LILY_HEAD_DIM;
constant constexpr uint kRows = LILY_ATTN_PREFILL_ROWS;
constant constexpr uint kKeys = 32;  // of a block: it lies in one page
constant constexpr uint kSimdgroups = LILY_ATTN_PREFILL_THREADS / 32;
constant constexpr uint kHeadsPerKey = LILY_NUM_ATTENTION_HEADS / LILY_NUM_KEY_VALUE_HEADS;
constant constexpr uint kHeads = kHeadsPerKey < LILY_ATTN_PREFILL_HEADS ? kHeadsPerKey : LILY_ATTN_PREFILL_HEADS;  // of a pass
constant constexpr uint kStrips = 8;                                   // of 8 queries: head · 2 + half of the rows
constant constexpr uint kBlocks = kWidth / 64;                         // of 8 columns, that a simdgroup has
constant constexpr uint kPart = kBlocks < 4 ? kBlocks : 4;             // of them that pass through threadgroup memory together
constant constexpr uint kStride = kKeys + 4;
constant constexpr uint kPartialStride = kWidth + 2;  // sums of the values, largest score, sum of the weights
static_assert(kRows * LILY_ATTN_PREFILL_HEADS == 8 * kStrips && kSimdgroups == kStrips && LILY_PAGE_TOKENS % kKeys == 0,
              "the tile of the comment above");

// The queries of a pass: row r of head h is query 16 h + r.
struct Queries {
  device const half* q;  // row 0 of the first head
  uint rows;             // of the tile that exist
  uint heads;            // of the pass that exist

  device const half* strip(uint i) const {
    return q + ulong(i % 2 * 8) * (LILY_NUM_ATTENTION_HEADS * kWidth) + i / 2 * kWidth;
  }
  uint rows_of(uint i) const { return i / 2 < heads ? rows_from(i % 2 * 8, rows) : 0; }
};

#if LILY_GEMM_FORM != 1
// Scores of a block of keys: simdgroup s has 8 keys and the strips of two heads.
static inline void score(thread const Queries& queries, device const half* keys, threadgroup float* scores,
                         threadgroup half* scratch, uint simdgroup, uint lane) {
  const uint first = simdgroup / 4 * 4, key = simdgroup % 4 * 8;
  simdgroup_float8x8 sums[4];
  for (uint i = 0; i < 4; ++i) set_zero(sums[i]);
  for (uint d = 0; d < kWidth; d += 8) {
    simdgroup_half8x8 a, b;
    simdgroup_load(b, keys + key * kWidth + d, kWidth, ulong2(0, 0), true);
    for (uint i = 0; i < 4; ++i) {
      load_rows(a, queries.strip(first + i) + d, LILY_NUM_ATTENTION_HEADS * kWidth, queries.rows_of(first + i), false, scratch,
                lane);
      simdgroup_multiply_accumulate(sums[i], a, b, sums[i]);
    }
  }
  for (uint i = 0; i < 4; ++i) simdgroup_store(sums[i], scores + (first + i) * 8 * kStride + key, kStride);
}

// This simdgroup's columns of the sums over the values.
struct ValueSums {
  simdgroup_float8x8 sums[kStrips][kBlocks];

  void clear() {
    for (uint i = 0; i < kStrips; ++i)
      for (uint c = 0; c < kBlocks; ++c) set_zero(sums[i][c]);
  }

  void rescale(threadgroup const float* factors, threadgroup const uint* changed, threadgroup float* scratch, uint lane) {
    for (uint i = 0; i < kStrips; ++i) {
      if (!changed[i]) continue;
      simdgroup_float8x8 diagonal;
      load_diagonal(diagonal, factors + i * 8, scratch, lane);
      for (uint c = 0; c < kBlocks; ++c) simdgroup_multiply(sums[i][c], diagonal, sums[i][c]);
    }
  }

  // Adds the block's values: the first `keys` of them exist.
  void add(threadgroup const half* weights, device const half* values, uint keys, threadgroup half* scratch, uint lane) {
    for (uint j = 0; j < kKeys && j < keys; j += 8) {
      simdgroup_half8x8 a, b[kBlocks];
      for (uint c = 0; c < kBlocks; ++c)
        load_rows(b[c], values + j * kWidth + c * 8, kWidth, rows_from(j, keys), false, scratch, lane);
      for (uint i = 0; i < kStrips; ++i) {
        simdgroup_load(a, weights + i * 8 * kStride + j, kStride);
        for (uint c = 0; c < kBlocks; ++c) simdgroup_multiply_accumulate(sums[i][c], a, b[c], sums[i][c]);
      }
    }
  }

  // The sums so far are input.get(query, column of this simdgroup); `memory` is 8 x 36 floats of the simdgroup's own.
  template <typename Input>
  void resume(thread const Input& input, threadgroup float* memory, uint lane) {
    for (uint i = 0; i < kStrips; ++i) {
      for (uint c0 = 0; c0 < kBlocks; c0 += kPart) {
        for (uint e = lane; e < 64 * kPart; e += 32) {
          const uint row = e / (8 * kPart), column = e % (8 * kPart);
          memory[row * kStride + column] = input.get(i * 8 + row, c0 * 8 + column);
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        for (uint c = 0; c < kPart; ++c) simdgroup_load(sums[i][c0 + c], memory + c * 8, kStride);
        simdgroup_barrier(mem_flags::mem_threadgroup);
      }
    }
  }

  // Calls output.put(query, column of this simdgroup, sum), with memory as above.
  template <typename Output>
  void finish(thread const Output& output, threadgroup float* memory, uint lane) {
    for (uint i = 0; i < kStrips; ++i) {
      for (uint c0 = 0; c0 < kBlocks; c0 += kPart) {
        for (uint c = 0; c < kPart; ++c) simdgroup_store(sums[i][c0 + c], memory + c * 8, kStride);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        for (uint e = lane; e < 64 * kPart; e += 32) {
          const uint row = e / (8 * kPart), column = e % (8 * kPart);
          output.put(i * 8 + row, c0 * 8 + column, memory[row * kStride + column]);
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
      }
    }
  }
};
#else
// Scores of a block of keys: simdgroup s has 16 keys and the 16 rows of one head.
static inline void score(thread const Queries& queries, device const half* keys, threadgroup float* scores, threadgroup half*,
                         uint simdgroup, uint) {
  constexpr auto descriptor = mpp::tensor_ops::matmul2d_descriptor(16, 16, int(kWidth), false, true, false,
                                                                   mpp::tensor_ops::matmul2d_descriptor::mode::multiply);
  const uint head = simdgroup / 2, key = simdgroup % 2 * 16;
  if (head >= queries.heads) return;
  mpp::tensor_ops::matmul2d<descriptor, execution_simdgroup> product;
  auto q = tensor((device half*)queries.strip(head * 2), dextents<int, 2>(int(kWidth), int(queries.rows)),
                  array<int, 2>{1, int(LILY_NUM_ATTENTION_HEADS * kWidth)});
  auto k = tensor((device half*)keys + key * kWidth, dextents<int, 2>(int(kWidth), 16));
  auto sums = product.get_destination_cooperative_tensor<decltype(q), decltype(k), float>();
  product.run(q, k, sums);
  sums.store(tensor(scores + head * 16 * kStride + key, dextents<int, 2>(16, 16), array<int, 2>{1, int(kStride)}));
}

constexpr mpp::tensor_ops::matmul2d_descriptor value_descriptor() {
  return mpp::tensor_ops::matmul2d_descriptor(int(kStrips * 8), int(kBlocks * 8), int(kKeys), false, false, false,
                                              mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate);
}

// This simdgroup's columns of the sums over the values.
struct ValueSums {
  typedef mpp::tensor_ops::matmul2d<value_descriptor(), execution_simdgroup> Product;
  typedef decltype(tensor((threadgroup half*)nullptr, dextents<int, 2>(1, 1), array<int, 2>{1, 1})) Weights;
  typedef decltype(tensor((device half*)nullptr, dextents<int, 2>(1, 1), array<int, 2>{1, 1})) Values;
  typedef decltype(Product().template get_destination_cooperative_tensor<Weights, Values, float>()) Sums;

  Sums sums;

  void clear() {
    for (ushort i = 0; i < sums.get_capacity(); ++i)
      if (sums.is_valid_element(i)) sums[i] = 0.0f;
  }

  void rescale(threadgroup const float* factors, threadgroup const uint* changed, threadgroup float*, uint) {
    uint any = 0;
    for (uint i = 0; i < kStrips; ++i) any |= changed[i];
    if (!any) return;
    for (ushort i = 0; i < sums.get_capacity(); ++i)
      if (sums.is_valid_element(i)) sums[i] *= factors[sums.get_multidimensional_index(i)[1]];
  }

  // Adds the block's values: the first `keys` of them exist.
  void add(threadgroup half* weights, device const half* values, uint keys, threadgroup half*, uint) {
    const int depth = int(min(keys, kKeys));
    Weights p = tensor(weights, dextents<int, 2>(depth, int(kStrips * 8)), array<int, 2>{1, int(kStride)});
    Values v = tensor((device half*)values, dextents<int, 2>(int(kBlocks * 8), depth), array<int, 2>{1, int(kWidth)});
    Product().run(p, v, sums);
  }

  template <typename Input>
  void resume(thread const Input& input, threadgroup float*, uint) {
    for (ushort i = 0; i < sums.get_capacity(); ++i) {
      if (!sums.is_valid_element(i)) continue;
      const auto at = sums.get_multidimensional_index(i);
      sums[i] = input.get(uint(at[1]), uint(at[0]));
    }
  }

  template <typename Output>
  void finish(thread const Output& output, threadgroup float*, uint) {
    for (ushort i = 0; i < sums.get_capacity(); ++i) {
      if (!sums.is_valid_element(i)) continue;
      const auto at = sums.get_multidimensional_index(i);
      output.put(uint(at[1]), uint(at[0]), sums[i]);
    }
  }
};
#endif

// What a lane keeps of the softmax of a query; the four lanes of a query keep the same.
struct Softmax {
  float largest;
  float total;
};

// Turns 8 scores of a query, of keys from `key` on, into weights; returns the factor of the sums so far.
static inline float softmax(thread Softmax& state, threadgroup const float* scores, uint key, uint last_key,
                            threadgroup half* weights) {
  const float scale = precise::rsqrt(float(kWidth));
  float s[8], largest = state.largest;
  for (uint i = 0; i < 8; ++i) {
    s[i] = key + i <= last_key ? scores[i] * scale : LILY_MASKED_SCORE;
    largest = max(largest, s[i]);
  }
  largest = max(largest, simd_shuffle_xor(largest, 1));
  largest = max(largest, simd_shuffle_xor(largest, 2));
  const float factor = exp(state.largest - largest);
  float total = 0.0f;
  for (uint i = 0; i < 8; ++i) {
    const half p = half(exp(s[i] - largest));
    total += float(p);
    weights[i] = p;
  }
  total += simd_shuffle_xor(total, 1);
  total += simd_shuffle_xor(total, 2);
  state.total = state.total * factor + total;
  state.largest = largest;
  return factor;
}

// Which queries of a pass this dispatch works on, and where they are. Rows of the tile from `done` on still have keys here, those
// from `finished` on will have more.
struct Pass {
  uint row0, head0;
  uint rows, heads;  // that exist
  uint done, finished;

  bool is_open(uint query) const {
    const uint row = query % kRows;
    return query / kRows < heads && row >= done && row < rows;
  }
  bool is_finished(uint query) const { return query % kRows < finished; }
  // Row and head as one number.
  ulong at(uint query) const { return ulong(row0 + query % kRows) * LILY_NUM_ATTENTION_HEADS + head0 + query / kRows; }
};

// What the dispatch before left of the simdgroup's columns.
struct Earlier {
  Pass pass;
  device const float* partial;  // from the simdgroup's first column on

  float get(uint query, uint column) const {
    return pass.is_open(query) ? partial[pass.at(query) * kPartialStride + column] : 0.0f;
  }
};

// The end of a query, average times sigmoid(gate), or its sums for the next dispatch.
struct Result {
  Pass pass;
  device const half* gate;  // from the simdgroup's first column on, as y and partial
  device half* y;
  device float* partial;
  threadgroup const float* totals;

  void put(uint query, uint column, float sum) const {
    if (!pass.is_open(query)) return;
    if (!pass.is_finished(query)) {
      partial[pass.at(query) * kPartialStride + column] = sum;
      return;
    }
    const ulong at = pass.at(query) * kWidth + column;
    y[at] = half(sum / totals[query] * sigmoid(float(gate[at])));
  }
};

kernel void attn_prefill(device const StepRow* step [[buffer(0)]], device const half* q [[buffer(1)]],
                         device const half* gate [[buffer(2)]], device const uint* page_table [[buffer(3)]],
                         device const half* kv [[buffer(4)]], device float* partial [[buffer(5)]],
                         device half* y [[buffer(6)]], constant AttnPrefillArgs& args [[buffer(7)]],
                         uint3 group [[threadgroup_position_in_grid]], uint3 groups [[threadgroups_per_grid]],
                         uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float scores[kStrips * 8 * kStride];
  threadgroup half weights[kStrips * 8 * kStride];
  threadgroup float all_scratch[kSimdgroups * 64];
  threadgroup float per_query[kStrips * 8];  // the factors of a block, at the end the totals
  threadgroup uint changed[kStrips];         // whether one of the strip's factors is not 1
  threadgroup float* scratch = all_scratch + simdgroup * 64;
  threadgroup float* columns = scores + simdgroup * 8 * kStride;  // while there are no scores

  const uint kv_head = group.x, row0 = group.y * kRows, rows = min(args.rows - row0, kRows);
  const uint position = step->position + row0, last_position = position + rows - 1;
  const uint begin = args.first_key, end = begin + args.num_keys;
  if (begin > last_position) return;
  const uint last_key = min(last_position, end - 1);
  const uint done = begin > position ? begin - position : 0, finished = end > position ? end - position : 0;
  // A simdgroup's softmax is that of strip `simdgroup`, four lanes a query.
  const uint query = simdgroup * 8 + lane / 4, own_keys = lane % 4 * 8;
  const uint query_position = position + query % kRows;
  const uint column0 = simdgroup * kBlocks * 8;  // of the values' sums

  for (uint head0 = group.z * kHeads; head0 < kHeadsPerKey; head0 += groups.z * kHeads) {
    const uint head = kv_head * kHeadsPerKey + head0, heads = min(kHeads, kHeadsPerKey - head0);
    const Pass pass = {row0, head, rows, heads, done, finished};
    const Queries queries = {q + pass.at(0) * kWidth, rows, heads};
    ValueSums sums;
    Softmax state = {LILY_MASKED_SCORE, 0.0f};
    if (begin == 0) {
      sums.clear();
    } else {
      const Earlier earlier = {pass, partial + column0};
      sums.resume(earlier, columns, lane);
      if (pass.is_open(query)) {
        device const float* of_query = partial + pass.at(query) * kPartialStride + kWidth;
        state.largest = of_query[0];
        state.total = of_query[1];
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }

    for (uint key0 = begin; key0 <= last_key; key0 += kKeys) {
      device const half* keys = kv + key_row(page_table, step->page_begin, key0, args.layer, kv_head);
      device const half* values = keys + LILY_VALUE_ROWS;
      score(queries, keys, scores, (threadgroup half*)scratch, simdgroup, lane);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      const float factor = softmax(state, scores + query * kStride + own_keys, key0 + own_keys, query_position,
                                   weights + query * kStride + own_keys);
      const bool is_changed = simd_any(factor != 1.0f);
      if (own_keys == 0) per_query[query] = factor;
      if (lane == 0) changed[simdgroup] = is_changed ? 1 : 0;
      threadgroup_barrier(mem_flags::mem_threadgroup);
      sums.rescale(per_query, changed, scratch, lane);
      sums.add(weights, values + column0, last_key + 1 - key0, (threadgroup half*)scratch, lane);
    }

    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (own_keys == 0) per_query[query] = state.total;
    if (own_keys == 0 && pass.is_open(query) && !pass.is_finished(query)) {
      device float* of_query = partial + pass.at(query) * kPartialStride + kWidth;
      of_query[0] = state.largest;
      of_query[1] = state.total;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const Result result = {pass, gate + column0, y + column0, partial + column0, per_query};
    sums.finish(result, columns, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}
