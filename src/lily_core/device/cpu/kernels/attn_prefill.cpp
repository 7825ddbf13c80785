// Causal attention of a chunk over a stretch of the timeline's keys, with an online softmax; behind its last key a row's average
// is multiplied by sigmoid(gate). Rows that see more keys leave sum, maximum and denominator for the dispatch of the next one.
#include <cmath>
#include <cstring>

#include "device/cpu/kernels/activation.h"
#include "device/cpu/kernels/kv.h"
#include "device/cpu/kernels/product.h"
#include "device/cpu/kernels/scratch.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

constexpr std::uint32_t kQueryRows = 16;  // rows of a tile; with the heads of one KV head they are the tile's queries
constexpr std::uint32_t kKeyBlock = 64;
static_assert(LILY_PAGE_TOKENS % kKeyBlock == 0);  // a block of keys lies in one page

// Scores are kept transposed, [key][query]: keys are then read where they lie, and the softmax runs along the lanes.
struct AttentionScratch {
  AttentionScratch(const KernelCall& call, Scratch& scratch)
      : heads_per_key(call.model->num_attention_heads / call.model->num_key_value_heads),
        queries((kQueryRows * heads_per_key + kTileColumns - 1) / kTileColumns * kTileColumns),
        score_stride(queries + 16),
        q(scratch.take<float>(std::size_t(queries) * call.model->head_dim)),
        k(scratch.take<float>(std::size_t(kKeyBlock) * call.model->head_dim)),
        v(scratch.take<float>(std::size_t(kKeyBlock) * call.model->head_dim)),
        scores(scratch.take<float>(std::size_t(kKeyBlock) * score_stride)),
        acc(scratch.take<float>(std::size_t(queries) * call.model->head_dim)),
        largest(scratch.take<float>(queries)),
        total(scratch.take<float>(queries)),
        rescale(scratch.take<float>(queries)),
        last_key(scratch.take<std::int32_t>(queries)) {}

  std::uint32_t heads_per_key;
  std::uint32_t queries;       // of a tile, padded to register tiles
  std::uint32_t score_stride;  // not a power of two: a column of scores would fall into few cache sets
  float* q;                    // [query / kTileColumns][D][kTileColumns], times D^−½
  float* k;                    // [kKeyBlock][D], where the cache holds halves
  float* v;                    // [D / kTileColumns][kKeyBlock][kTileColumns]
  float* scores;               // [kKeyBlock][score_stride]
  float* acc;                  // [query][D]
  float* largest;              // [query]
  float* total;                // [query]
  float* rescale;              // [query]
  std::int32_t* last_key;      // [query]: its own position
};

// Turns scores into exp(score − largest so far), and notes by how much the earlier sums shrink.
static inline void softmax_block(const AttentionScratch& s, std::uint32_t queries, std::uint32_t key0, std::uint32_t keys,
                                 bool masked) {
  for (std::uint32_t i = 0; i < queries; i += kLanes) {
    float* column = s.scores + i;
    const Vi last_key = load<Vi>(s.last_key + i);
    const Vf before = loadf(s.largest + i);
    Vf largest = before;
    for (std::uint32_t j = 0; j < keys; ++j) {
      Vf score = loadf(column + j * s.score_stride);
      if (masked) {
        score = last_key >= std::int32_t(key0 + j) ? score : splat(LILY_MASKED_SCORE);
        storef(column + j * s.score_stride, score);
      }
      largest = max(score, largest);
    }
    const Vf rescale = exp(before - largest);
    Vf total = {};
    for (std::uint32_t j = 0; j < keys; ++j) {
      const Vf p = exp(loadf(column + j * s.score_stride) - largest);
      storef(column + j * s.score_stride, p);
      total += p;
    }
    storef(s.largest + i, largest);
    storef(s.rescale + i, rescale);
    storef(s.total + i, loadf(s.total + i) * rescale + total);
  }
}

// Keys as floats: where they lie, or widened.
static inline const float* float_keys(const float* keys, std::uint32_t, float*) { return keys; }
static inline const float* float_keys(const Half* keys, std::uint32_t count, float* to) {
  for (std::uint32_t i = 0; i < count; i += kLanes) storef(to + i, loadf(keys + i));
  return to;
}

template <typename Element>
static void attn_prefill(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const ModelConstants& model = *call.model;
  const AttnPrefillArgs& args = args_of<AttnPrefillArgs>(call);
  const StepRow& step = *buffer<const StepRow>(call, 0);
  const std::uint32_t position = step.position, begin = args.first_key, end = begin + args.num_keys;
  const std::uint32_t width = model.head_dim, q_heads = model.num_attention_heads;
  const KvPool<Element> pool = {buffer<Element>(call, 4), buffer<const std::uint32_t>(call, 3), call.model,
                                args.layer};
  const AttentionScratch s = scratch_of<AttentionScratch>(call);
  const std::uint32_t heads_per_key = s.heads_per_key;
  const float scale = 1.0f / std::sqrt(float(width));

  for (std::uint32_t index = first; index < last; ++index) {
    const Tile t = tile_at(call, index);
    if (begin >= position + t.y1) continue;
    const std::uint32_t kv_head = t.x0, queries = (t.y1 - t.y0) * heads_per_key;
    const std::uint32_t padded = (queries + kTileColumns - 1) / kTileColumns * kTileColumns;
    // Query i is head i % heads_per_key of row i / heads_per_key.
    auto query = [&](std::uint32_t i) {
      return std::size_t(t.y0 + i / heads_per_key) * q_heads + kv_head * heads_per_key + i % heads_per_key;
    };
    auto offset = [&](std::uint32_t i) { return query(i) * width; };
    auto partial = [&](std::uint32_t i) { return buffer<float>(call, 5) + query(i) * (width + 2); };
    for (std::uint32_t i = 0; i < padded; ++i) {
      const float* q = buffer<const float>(call, 1) + (i < queries ? offset(i) : 0);
      float* to = s.q + std::size_t(i / kTileColumns) * width * kTileColumns + i % kTileColumns;
      for (std::uint32_t d = 0; d < width; ++d) to[d * kTileColumns] = i < queries ? q[d] * scale : 0.0f;
      s.last_key[i] = std::int32_t(i < queries ? position + t.y0 + i / heads_per_key : 0);
      s.largest[i] = LILY_MASKED_SCORE, s.total[i] = 0.0f;
    }
    for (std::uint32_t i = 0; begin > 0 && i < queries; ++i) {
      float* acc = s.acc + std::size_t(i) * width;
      if (s.last_key[i] < std::int32_t(begin)) {  // finished by the dispatch before
        std::memset(acc, 0, width * sizeof(float));
        continue;
      }
      std::memcpy(acc, partial(i), width * sizeof(float));
      s.largest[i] = partial(i)[width], s.total[i] = partial(i)[width + 1];
    }

    const std::uint32_t first_row_keys = position + t.y0 + 1, last_row_keys = position + t.y1;
    const std::uint32_t key_end = last_row_keys < end ? last_row_keys : end;
    for (std::uint32_t key0 = begin; key0 < key_end; key0 += kKeyBlock) {
      const std::uint32_t keys = key_end - key0 < kKeyBlock ? key_end - key0 : kKeyBlock;
      const float* k = float_keys(pool.keys(step.page_begin, key0, kv_head), keys * width, s.k);
      const Element* v = pool.values(step.page_begin, key0, kv_head);

      for (std::uint32_t i = 0; i < padded; i += kTileColumns)
        product({k, width, 1}, s.q + std::size_t(i) * width, kTileColumns, keys, width, kTileColumns, false, s.scores + i,
                s.score_stride);
      softmax_block(s, padded, key0, keys, key0 + keys > first_row_keys);

      for (std::uint32_t j = 0; j < keys; ++j)
        for (std::uint32_t d = 0; d < width; d += kLanes)
          storef(s.v + std::size_t(d / kTileColumns) * kTileColumns * kKeyBlock + j * kTileColumns + d % kTileColumns,
                 loadf(v + j * width + d));
      for (std::uint32_t i = 0; key0 > 0 && i < queries; ++i)
        if (s.rescale[i] != 1.0f)
          for (std::uint32_t d = 0; d < width; d += kLanes)
            storef(s.acc + i * width + d, loadf(s.acc + i * width + d) * s.rescale[i]);
      for_row_blocks(queries, [&](std::uint32_t begin, std::uint32_t count) {
        for (std::uint32_t d = 0; d < width; d += kTileColumns)
          product_tile_of(count, {s.scores + begin, 1, s.score_stride}, s.v + std::size_t(d) * kKeyBlock, kTileColumns, keys,
                          key0 > 0, s.acc + std::size_t(begin) * width + d, width);
      });
    }

    for (std::uint32_t i = 0; i < queries; ++i) {
      if (s.last_key[i] < std::int32_t(begin)) continue;
      if (s.last_key[i] >= std::int32_t(end)) {
        std::memcpy(partial(i), s.acc + std::size_t(i) * width, width * sizeof(float));
        partial(i)[width] = s.largest[i], partial(i)[width + 1] = s.total[i];
        continue;
      }
      const float* gate = buffer<const float>(call, 2) + offset(i);
      float* y = buffer<float>(call, 6) + offset(i);
      const float factor = 1.0f / s.total[i];
      for (std::uint32_t d = 0; d < width; d += kLanes)
        storef(y + d, loadf(s.acc + i * width + d) * factor * sigmoid(loadf(gate + d)));
    }
  }
}

void add_attn_prefill(KernelTable& table) {
  add_kernel(table, {.op = "attn_prefill", .run = with_kv_element<attn_prefill<float>, attn_prefill<Half>>,
                     .tile = {1, kQueryRows, 0},
                     .scratch_bytes = scratch_bytes<AttentionScratch>});
}

}  // namespace lily::cpu::LILY_ISA
