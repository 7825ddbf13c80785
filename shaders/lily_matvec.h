// y = W x for the few rows of a step. Each simdgroup reads whole 16-byte words of consecutive weight rows; all operand rows share
// them. One operand row: exact codes times activations, scale and bias applied to the sums of a word; several rows: each code is
// made a weight in f32 once. All sums are f32.
#pragma once

#include "lily_args.h"
#include "lily_quant.h"

// Operand rows are staged in threadgroup memory as halves (norm outputs, gated outputs and activations of experts are the
// roundings that half mode allows, at the same points as in prefill), 8 KB at a time: 4,096 columns of one row, 512 of eight.
#define LILY_STAGE_QUADS 1024u

// Lanes that share a weight row of so many words.
static constexpr uint lanes_for(uint words) {
  return words > 16u ? 32u : words > 8u ? 16u : words > 4u ? 8u : words > 2u ? 4u : 2u;
}

// The most words of a row of weights W that are staged at a time, for each of ROWS operand rows.
template <class W, uint ROWS>
struct Span {
  static constexpr constant uint kMost = 4u * LILY_STAGE_QUADS / (ROWS * W::kCodesPerWord);
  static constexpr constant uint kWords = W::kWords < kMost ? W::kWords : kMost;
};

// How ROWS operand rows lie in the stage for weights W: kLanes lanes share a weight row, word i * kLanes + lane of a chunk being
// the lane's i-th, and kSubrows weight rows are read at once.
template <class W, uint ROWS, uint LANES = lanes_for(Span<W, ROWS>::kWords)>
struct Layout {
  static constexpr constant uint kLanes = LANES;
  static constexpr constant uint kSubrows = LILY_SIMD_WIDTH / kLanes;
  static constexpr constant uint kQuadsPerWord = W::kCodesPerWord / 4u;
  static constexpr constant uint kWordsPerLane = (Span<W, ROWS>::kWords + kLanes - 1u) / kLanes;  // in a chunk
  static constexpr constant uint kChunkWords = kWordsPerLane * kLanes;
  static constexpr constant uint kChunks = (W::kWords + kChunkWords - 1u) / kChunkWords;
  static constexpr constant uint kRowQuads = kChunkWords * kQuadsPerWord;  // staged quads of one operand row

  // Where quad `quad` of a chunk's row is staged: lanes that read at once read neighbours.
  static uint place(uint quad) {
    const uint word = quad / kQuadsPerWord;
    return (word / kLanes * kQuadsPerWord + quad % kQuadsPerWord) * kLanes + word % kLanes;
  }
};

// One lane's part of kCount weight rows, from `row` on in steps of kSubrows, for one word.
template <class W, uint COUNT>
struct Words {
  uint4 codes[COUNT];
  float2 pairs[COUNT];

  // Beyond the last row or word something else is loaded and not used.
  void load(W w, uint row, uint step, uint last_row, uint word) thread {
    const uint at = min(word, W::kWords - 1u);
#pragma clang loop unroll(full)
    for (uint i = 0; i < COUNT; ++i) {
      const ulong r = min(row + i * step, last_row);
      codes[i] = w.word(r, at);
      pairs[i] = w.pair(r, at);
    }
  }
};

// sums[i * ROWS + r] += the word of weight row i times staged operand row r. The operand's quads of this word lie at `quads`,
// `stride` apart, those of the next row `row_stride` further.
template <uint ROWS, class W, uint COUNT>
static inline void multiply_word(thread const Words<W, COUNT>& words, threadgroup const half4* quads, uint stride,
                                 uint row_stride, thread float (&sums)[COUNT * ROWS]) {
  if (ROWS == 1u) {
    float dots[COUNT];
#pragma clang loop unroll(full)
    for (uint i = 0; i < COUNT; ++i) dots[i] = 0.0f;
    float total = 0.0f;
#pragma clang loop unroll(full)
    for (uint j = 0; j < W::kCodesPerWord / 4u; ++j) {
      const float4 x = float4(quads[j * stride]);
      total += (x.x + x.y) + (x.z + x.w);
#pragma clang loop unroll(full)
      for (uint i = 0; i < COUNT; ++i) dots[i] += dot(Codes<W::kBits>::quad(words.codes[i], j), x);
    }
#pragma clang loop unroll(full)
    for (uint i = 0; i < COUNT; ++i) sums[i] += words.pairs[i].x * dots[i] + words.pairs[i].y * total;
    return;
  }
#pragma clang loop unroll(full)
  for (uint j = 0; j < W::kCodesPerWord / 4u; ++j) {
    float4 weights[COUNT];
#pragma clang loop unroll(full)
    for (uint i = 0; i < COUNT; ++i)
      weights[i] = words.pairs[i].x * Codes<W::kBits>::quad(words.codes[i], j) + words.pairs[i].y;
#pragma clang loop unroll(full)
    for (uint r = 0; r < ROWS; ++r) {
      const float4 x = float4(quads[r * row_stride + j * stride]);
#pragma clang loop unroll(full)
      for (uint i = 0; i < COUNT; ++i) sums[i * ROWS + r] += dot(weights[i], x);
    }
  }
}

// Weight rows [begin, end) of a threadgroup, times `rows` operand rows.
//   operand.measure(rows)     what must be known before any row is staged; ends with a barrier if that is anything
//   operand.row(r).quad(q)    columns 4q to 4q + 3 of operand row r
//   store(row, r, value)      called by one lane per product; of two matrices value is silu(gate) * up. NaN for infinity
// COUNT: weight rows (pairs of rows, when there are two matrices) that a simdgroup has in flight. A thread holds COUNT sums per
// matrix and operand row (8 rows: half as many weight rows) and two words of each weight row, the second on its way.
template <uint COUNT, uint MATRICES, class W>
struct MatVec {
  W weights[MATRICES];
  uint begin, end;
  threadgroup half4* stage;  // [LILY_STAGE_QUADS]

  // `rows` is 1 to LILY_MAX_STEP_ROWS; one row has the path that fits it exactly.
  template <class Operand, class Store>
  void run(Operand operand, uint rows, Store store, Thread self) const thread {
    if (rows == 1u)
      run_padded<1u>(operand, rows, store, self);
    else if (rows == 2u)
      run_padded<2u>(operand, rows, store, self);
    else if (rows <= 4u)
      run_padded<4u>(operand, rows, store, self);
    else
      run_padded<8u>(operand, rows, store, self);
  }

  template <uint ROWS, class Operand, class Store>
  void run_padded(Operand operand, uint rows, Store store, Thread self) const thread {
    typedef Layout<W, ROWS> L;
    constexpr uint kCount = COUNT > L::kSubrows ? COUNT / L::kSubrows : 1u;
    constexpr uint kSimdgroupRows = kCount * L::kSubrows;
    const uint lane = self.lane % L::kLanes, subrow = self.lane / L::kLanes;
    for (uint from = begin; from < end; from += LILY_MATVEC_THREADS / LILY_SIMD_WIDTH * kSimdgroupRows) {
      const uint row = from + self.simdgroup * kSimdgroupRows + subrow;
      float sums[MATRICES][kCount * ROWS];
#pragma clang loop unroll(full)
      for (uint m = 0; m < MATRICES; ++m)
#pragma clang loop unroll(full)
        for (uint i = 0; i < kCount * ROWS; ++i) sums[m][i] = 0.0f;
      for (uint chunk = 0; chunk < L::kChunks; ++chunk) {
        const uint first_word = chunk * L::kChunkWords;
        Words<W, kCount> next[MATRICES];  // on their way while the operand is staged
        load(next, row, L::kSubrows, first_word + lane);
        if (L::kChunks > 1u || from == begin) {
          if (chunk > 0u || from > begin) threadgroup_barrier(mem_flags::mem_threadgroup);
          if (chunk == 0u && from == begin) operand.measure(rows, self);
          stage_chunk<ROWS>(operand, min(rows, ROWS), first_word, self);
          threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        for (uint i = 0; i < L::kWordsPerLane; ++i) {
          const uint word = first_word + i * L::kLanes + lane;
          Words<W, kCount> now[MATRICES];
#pragma clang loop unroll(full)
          for (uint m = 0; m < MATRICES; ++m) now[m] = next[m];
          if (i + 1u < L::kWordsPerLane) load(next, row, L::kSubrows, word + L::kLanes);
          if (word >= W::kWords) continue;
          threadgroup const half4* quads = stage + i * L::kLanes * L::kQuadsPerWord + lane;
#pragma clang loop unroll(full)
          for (uint m = 0; m < MATRICES; ++m) multiply_word<ROWS>(now[m], quads, L::kLanes, L::kRowQuads, sums[m]);
        }
      }
#pragma clang loop unroll(full)
      for (uint i = 0; i < kCount; ++i)
#pragma clang loop unroll(full)
        for (uint r = 0; r < ROWS; ++r) {
          float value = lanes_sum<L::kLanes>(sums[0][i * ROWS + r]);
          if (MATRICES == 2u) value = silu(value) * lanes_sum<L::kLanes>(sums[MATRICES - 1u][i * ROWS + r]);
          if (lane == 0u && r < rows && row + i * L::kSubrows < end) store(row + i * L::kSubrows, r, poisoned(value));
        }
    }
  }

  template <uint N>
  void load(thread Words<W, N> (&words)[MATRICES], uint row, uint step, uint word) const thread {
#pragma clang loop unroll(full)
    for (uint m = 0; m < MATRICES; ++m) words[m].load(weights[m], row, step, end - 1u, word);
  }

  template <uint ROWS, class Operand>
  void stage_chunk(Operand operand, uint rows, uint first_word, Thread self) const thread {
    typedef Layout<W, ROWS> L;
    const uint first_quad = first_word * L::kQuadsPerWord;
    const uint count = min(L::kRowQuads, W::kWords * L::kQuadsPerWord - first_quad);
    for (uint r = 0; r < rows; ++r) {
      const typename Operand::Row row = operand.row(r);
      for (uint q = self.index; q < count; q += LILY_MATVEC_THREADS)
        stage[r * L::kRowQuads + L::place(q)] = half4(row.quad(first_quad + q));
    }
  }
};

// A single matrix.
template <uint COUNT, class W>
static inline MatVec<COUNT, 1u, W> matvec(W weight, uint begin, uint end, threadgroup half4* stage) {
  MatVec<COUNT, 1u, W> product;
  product.weights[0] = weight;
  product.begin = begin;
  product.end = end;
  product.stage = stage;
  return product;
}

// Two of one shape: silu(gate x) * (up x).
template <uint COUNT, class W>
static inline MatVec<COUNT, 2u, W> matvec_gate_up(W gate, W up, uint begin, uint end, threadgroup half4* stage) {
  MatVec<COUNT, 2u, W> product;
  product.weights[0] = gate;
  product.weights[1] = up;
  product.begin = begin;
  product.end = end;
  product.stage = stage;
  return product;
}
