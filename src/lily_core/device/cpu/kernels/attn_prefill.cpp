// Causal attention of a chunk over the timeline's pages, with an online softmax, times sigmoid(gate).
#include <cmath>

#include "device/cpu/kernel.h"
#include "device/cpu/kernels/product.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

constexpr std::uint32_t kQueryRows = 16;  // rows of a tile; with the heads of one KV head they are the tile's queries
constexpr std::uint32_t kKeyBlock = 64;
constexpr float kMasked = -1e30f;
static_assert(LILY_PAGE_TOKENS % kKeyBlock == 0);  // a block of keys lies in one page

// Scores are kept transposed, [key][query]: keys are then read where they lie, and the softmax runs along the lanes.
struct AttentionScratch {
  std::uint32_t queries;       // padded to register tiles
  std::uint32_t score_stride;  // not a power of two: a column of scores would fall into few cache sets
  float* q;                    // [query / kTileColumns][D][kTileColumns], times D^−½
  float* v;                    // [D / kTileColumns][kKeyBlock][kTileColumns]
  float* scores;               // [kKeyBlock][score_stride]
  float* acc;                  // [query][D]
  float* largest;              // [query]
  float* total;
  float* rescale;
  std::int32_t* last_key;      // [query]: its own position
  std::size_t bytes;

  AttentionScratch(const ModelConstants& model, std::byte* memory) {
    const std::uint32_t heads = model.num_attention_heads / model.num_key_value_heads, width = model.head_dim;
    queries = (kQueryRows * heads + kTileColumns - 1) / kTileColumns * kTileColumns;
    score_stride = queries + 16;
    std::size_t at = 0;
    auto take = [&](std::size_t floats) {
      float* const start = reinterpret_cast<float*>(memory) + at;
      at += floats;
      return start;
    };
    q = take(std::size_t(queries) * width);
    v = take(std::size_t(kKeyBlock) * width);
    scores = take(std::size_t(kKeyBlock) * score_stride);
    acc = take(std::size_t(queries) * width);
    largest = take(queries);
    total = take(queries);
    rescale = take(queries);
    last_key = reinterpret_cast<std::int32_t*>(take(queries));
    bytes = at * sizeof(float);
  }
};

static std::size_t attn_prefill_scratch_bytes(const ModelConstants& model, const void*) {
  return AttentionScratch(model, nullptr).bytes;
}

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
        score = last_key >= std::int32_t(key0 + j) ? score : splat(kMasked);
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

static void attn_prefill(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const ModelConstants& model = *call.model;
  const LayerArgs& args = args_of<LayerArgs>(call);
  const StepRow& step = *buffer<const StepRow>(call, 0);
  const std::uint32_t width = model.head_dim, kv_heads = model.num_key_value_heads, all_heads = model.num_attention_heads;
  const std::uint32_t heads = all_heads / kv_heads;
  const std::uint32_t* pages = buffer<const std::uint32_t>(call, 3) + std::size_t(step.page_row) * model.max_pages;
  const std::size_t head_size = std::size_t(LILY_PAGE_TOKENS) * width;
  const AttentionScratch s(model, call.scratch);
  const float scale = 1.0f / std::sqrt(float(width));

  for (std::uint32_t index = first; index < last; ++index) {
    const Tile t = tile_at(call, index);
    const std::uint32_t kv_head = t.x0, queries = (t.y1 - t.y0) * heads;
    const std::uint32_t padded = (queries + kTileColumns - 1) / kTileColumns * kTileColumns;
    // Query i is head i % heads of row i / heads.
    auto offset = [&](std::uint32_t i) {
      return (std::size_t(t.y0 + i / heads) * all_heads + kv_head * heads + i % heads) * width;
    };
    for (std::uint32_t i = 0; i < padded; ++i) {
      const float* q = buffer<const float>(call, 1) + (i < queries ? offset(i) : 0);
      float* to = s.q + std::size_t(i / kTileColumns) * width * kTileColumns + i % kTileColumns;
      for (std::uint32_t d = 0; d < width; ++d) to[d * kTileColumns] = i < queries ? q[d] * scale : 0.0f;
      s.last_key[i] = std::int32_t(i < queries ? step.position + t.y0 + i / heads : 0);
      s.largest[i] = kMasked, s.total[i] = 0.0f;
    }

    const std::uint32_t first_row_keys = step.position + t.y0 + 1, num_keys = step.position + t.y1;
    for (std::uint32_t key0 = 0; key0 < num_keys; key0 += kKeyBlock) {
      const std::uint32_t keys = num_keys - key0 < kKeyBlock ? num_keys - key0 : kKeyBlock;
      const std::size_t page = std::size_t(pages[key0 / LILY_PAGE_TOKENS]) * model.num_attention_layers + args.layer;
      const float* k =
          buffer<const float>(call, 4) + (page * 2 * kv_heads + kv_head) * head_size + key0 % LILY_PAGE_TOKENS * width;
      const float* v = k + kv_heads * head_size;

      for (std::uint32_t i = 0; i < padded; i += kTileColumns)
        product({k, width, 1}, s.q + std::size_t(i) * width, kTileColumns, keys, width, kTileColumns, false, s.scores + i,
                s.score_stride);
      softmax_block(s, padded, key0, keys, key0 + keys > first_row_keys);

      for (std::uint32_t j = 0; j < keys; ++j)
        for (std::uint32_t d = 0; d < width; d += kTileColumns)
          std::memcpy(s.v + std::size_t(d) * kKeyBlock + j * kTileColumns, v + j * width + d, kTileColumns * sizeof(float));
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
      const float* gate = buffer<const float>(call, 2) + offset(i);
      float* y = buffer<float>(call, 5) + offset(i);
      const float factor = 1.0f / s.total[i];
      for (std::uint32_t d = 0; d < width; d += kLanes)
        storef(y + d, loadf(s.acc + i * width + d) * factor * sigmoid(loadf(gate + d)));
    }
  }
}

void add_attn_prefill(KernelTable& table) {
  add_kernel(table, {.name = "attn_prefill_f32", .run = attn_prefill, .access = "rrrrrw", .args_size = sizeof(LayerArgs),
                     .tile = {1, kQueryRows, 1}, .scratch_bytes = attn_prefill_scratch_bytes});
}

}  // namespace lily::cpu::LILY_ISA
