// Attention of one KV head's queries over one stretch of keys: softmax numerator, largest score and denominator of that stretch.
#include <cmath>

#include "device/cpu/kernels/kv.h"
#include "device/cpu/kernels/scratch.h"
#include "device/cpu/kernels/simd.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

constexpr std::uint32_t kBlock = 32;  // keys at a time: their scores, and the softmax's correction, are shared work
constexpr int kHeads = 4;             // query heads that share a loaded row of K or V

// Of the query heads of one KV head.
struct SplitScratch {
  SplitScratch(const KernelCall& call, Scratch& scratch)
      : heads_per_key(call.model->num_attention_heads / call.model->num_key_value_heads),
        scores(scratch.take<float>(heads_per_key * kBlock)),
        shrink(scratch.take<float>(heads_per_key)),
        largest(scratch.take<float>(heads_per_key)),
        total(scratch.take<float>(heads_per_key)) {}

  std::uint32_t heads_per_key;
  float* scores;   // [head][kBlock]
  float* shrink;   // [head]
  float* largest;  // [head]
  float* total;    // [head]
};

// scores[h][i] = q_h · k_i for kQ heads.
template <int kQ, typename Element>
static inline void score(const float* q, const Element* keys, std::uint32_t count, std::uint32_t width, float scale,
                         float* scores) {
  for (std::uint32_t i = 0; i < count; ++i, keys += width) {
    Vf acc[kQ][2] = {};
    for (std::uint32_t c = 0; c < width; c += 2 * kLanes) {
      const Vf k0 = loadf(keys + c), k1 = loadf(keys + c + kLanes);
      for (int h = 0; h < kQ; ++h) {
        acc[h][0] += k0 * loadf(q + h * width + c);
        acc[h][1] += k1 * loadf(q + h * width + c + kLanes);
      }
    }
    for (int h = 0; h < kQ; ++h) scores[h * kBlock + i] = scale * sum(acc[h][0] + acc[h][1]);
  }
}

// out_h = shrink_h out_h + Σ_i p[h][i] v_i for kQ heads.
template <int kQ, typename Element>
static inline void accumulate(const float* p, const float* shrink, const Element* values, std::uint32_t count,
                              std::uint32_t width, float* out, std::size_t out_row) {
  for (std::uint32_t c = 0; c < width; c += 2 * kLanes) {
    Vf acc[kQ][2];
    for (int h = 0; h < kQ; ++h)
      for (int j = 0; j < 2; ++j) acc[h][j] = shrink[h] * loadf(out + h * out_row + c + j * kLanes);
    for (std::uint32_t i = 0; i < count; ++i) {
      const Vf v0 = loadf(values + std::size_t(i) * width + c), v1 = loadf(values + std::size_t(i) * width + c + kLanes);
      for (int h = 0; h < kQ; ++h) {
        acc[h][0] += p[h * kBlock + i] * v0;
        acc[h][1] += p[h * kBlock + i] * v1;
      }
    }
    for (int h = 0; h < kQ; ++h)
      for (int j = 0; j < 2; ++j) storef(out + h * out_row + c + j * kLanes, acc[h][j]);
  }
}

// The softmax of a block of scores: p = exp(score − new maximum); returns the factor for what came before.
static inline float fold(float* scores, std::uint32_t count, float& largest, float& total) {
  float block_max = scores[0];
  for (std::uint32_t i = 1; i < count; ++i) block_max = scores[i] > block_max ? scores[i] : block_max;
  const float before = largest;
  if (block_max > largest) largest = block_max;
  for (std::uint32_t i = count; i % kLanes; ++i) scores[i] = -__builtin_inff();
  Vf block_sum = {};
  for (std::uint32_t i = 0; i < count; i += kLanes) {
    const Vf p = exp(loadf(scores + i) - largest);
    storef(scores + i, p);
    block_sum += p;
  }
  const float shrink = std::exp(before - largest);
  total = shrink * total + sum(block_sum);
  return shrink;
}

template <typename Element>
static void attn_split(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const ModelConstants& model = *call.model;
  const AttnSplitArgs& args = args_of<AttnSplitArgs>(call);
  const std::uint32_t q_heads = model.num_attention_heads, width = model.head_dim;
  const float scale = 1.0f / std::sqrt(float(width));
  const StepRow* step = buffer<const StepRow>(call, 0);
  const KvPool<Element> pool = {buffer<Element>(call, 3), buffer<const std::uint32_t>(call, 2), call.model, args.layer};
  const auto [heads_per_key, scores, shrink, largest, total] = scratch_of<SplitScratch>(call);

  for (std::uint32_t i = first; i < last; ++i) {
    const Tile t = tile_at(call, i);
    const std::uint32_t head = t.x0, split = t.y0, row = t.z0;
    const std::uint32_t known = step[row].position + 1, keys_per_split = step[row].keys_per_split;
    const std::uint32_t begin = split * keys_per_split, end = known - begin < keys_per_split ? known : begin + keys_per_split;
    const float* q = buffer<const float>(call, 1) + (std::size_t(row) * q_heads + head * heads_per_key) * width;
    const std::size_t stride = std::size_t(args.splits) * (width + 2);  // from one query head's partial to the next one's
    float* partial = buffer<float>(call, 4) + (std::size_t(row) * q_heads + head * heads_per_key) * stride + split * (width + 2);
    for (std::uint32_t h = 0; h < heads_per_key; ++h) largest[h] = LILY_MASKED_SCORE, total[h] = 0;
    if (begin < known) {
      for (std::uint32_t h = 0; h < heads_per_key; ++h) std::memset(partial + h * stride, 0, width * sizeof(float));
      for (std::uint32_t key = begin; key < end;) {
        const std::uint32_t in_page = LILY_PAGE_TOKENS - key % LILY_PAGE_TOKENS;
        std::uint32_t count = end - key < kBlock ? end - key : kBlock;
        count = count < in_page ? count : in_page;
        const Element* keys = pool.keys(step[row].page_begin, key, head);
        const Element* values = pool.values(step[row].page_begin, key, head);
        std::uint32_t h = 0;
        for (; h + kHeads <= heads_per_key; h += kHeads)
          score<kHeads>(q + h * width, keys, count, width, scale, scores + h * kBlock);
        for (; h < heads_per_key; ++h) score<1>(q + h * width, keys, count, width, scale, scores + h * kBlock);
        for (h = 0; h < heads_per_key; ++h) shrink[h] = fold(scores + h * kBlock, count, largest[h], total[h]);
        for (h = 0; h + kHeads <= heads_per_key; h += kHeads)
          accumulate<kHeads>(scores + h * kBlock, shrink + h, values, count, width, partial + h * stride, stride);
        for (; h < heads_per_key; ++h)
          accumulate<1>(scores + h * kBlock, shrink + h, values, count, width, partial + h * stride, stride);
        key += count;
      }
    }
    for (std::uint32_t h = 0; h < heads_per_key; ++h) {
      partial[h * stride + width] = largest[h];
      partial[h * stride + width + 1] = total[h];
    }
  }
}

void add_attn_split(KernelTable& table) {
  add_kernel(table, {.op = "attn_split", .run = with_kv_element<attn_split<float>, attn_split<Half>>, .tile = {1, 1, 1},
                     .scratch_bytes = scratch_bytes<SplitScratch>});
}

}  // namespace lily::cpu::LILY_ISA
