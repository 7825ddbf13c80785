// The part of the chunked delta rule that does not depend on the state: U, W and M ∗ Q Kᵀ of every 64 tokens
// (docs/design/model.md 3.2).
#include <cmath>

#include "device/cpu/kernels/product.h"
#include "device/cpu/kernels/scratch.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

constexpr std::uint32_t kChunk = LILY_DELTA_CHUNK;

// What a thread keeps of one chunk.
struct ChunkScratch {
  ChunkScratch(const KernelCall& call, Scratch& scratch)
      : width(call.model->linear_value_head_dim + call.model->linear_key_head_dim),
        keys(scratch.take<float>(std::size_t(call.model->linear_key_head_dim) * kChunk)),
        kk(scratch.take<float>(kChunk * kChunk)),
        qk(scratch.take<float>(kChunk * kChunk)),
        a(scratch.take<float>(kChunk * kChunk)),
        x(scratch.take<float>(std::size_t(kChunk) * width)) {}

  std::uint32_t width;  // dv + dk
  float* keys;          // [dk][kChunk]: Kᵀ, columns past the chunk's end 0
  float* kk;            // [kChunk][kChunk]: K Kᵀ, lower triangle
  float* qk;            // Q Kᵀ, likewise
  float* a;             // −A
  float* x;             // [kChunk][width]: U | W
};

// keys[d][i] = rows[i][d] for i below `length`, 0 up to kChunk; in tiles that stay in the first-level cache.
static inline void transpose_keys(const float* rows, std::size_t stride, std::uint32_t length, std::uint32_t width, float* keys) {
  for (std::uint32_t i0 = 0; i0 < kChunk; i0 += kLanes)
    for (std::uint32_t d = 0; d < width; ++d) {
      float column[kLanes];
      for (std::uint32_t i = 0; i < std::uint32_t(kLanes); ++i) column[i] = i0 + i < length ? rows[(i0 + i) * stride + d] : 0.0f;
      std::memcpy(keys + d * kChunk + i0, column, sizeof column);
    }
}

// The rows' products with all keys at or before them; the rest of `to` is left as it is.
static inline void lower_products(const float* rows, std::size_t stride, const float* keys, std::uint32_t length,
                                  std::uint32_t width, float* to) {
  for_row_blocks(length, [&](std::uint32_t begin, std::uint32_t count) {
    for (std::uint32_t j = 0; j < begin + count; j += kTileColumns)
      product_tile_of(count, {rows + begin * stride, stride, 1}, keys + j, kChunk, width, false, to + begin * kChunk + j, kChunk);
  });
}

// Solves (I + A) X = X in place, by forward substitution: no power of A is formed, so nothing overflows.
static inline void substitute(const float* minus_a, std::uint32_t length, std::uint32_t width, float* x) {
  for_row_blocks(length, [&](std::uint32_t begin, std::uint32_t count) {
    if (begin > 0)
      for (std::uint32_t j = 0; j < width; j += kTileColumns)
        product_tile_of(count, {minus_a + begin * kChunk, kChunk, 1}, x + j, width, begin, true, x + begin * width + j, width);
    for (std::uint32_t i = begin + 1; i < begin + count; ++i)
      for (std::uint32_t j = begin; j < i; ++j)
        for (std::uint32_t e = 0; e < width; e += kLanes)
          storef(x + i * width + e, loadf(x + i * width + e) + minus_a[i * kChunk + j] * loadf(x + j * width + e));
  });
}

static void gdn_chunk(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const ModelConstants& model = *call.model;
  const std::uint32_t rows = args_of<RowsArgs>(call).rows;
  const std::uint32_t heads = model.linear_num_value_heads, heads_per_key = heads / model.linear_num_key_heads;
  const std::uint32_t key_width = model.linear_key_head_dim, value_width = model.linear_value_head_dim;
  const float* g = buffer<const float>(call, 3);
  const float* beta = buffer<const float>(call, 4);
  const ChunkScratch s = scratch_of<ChunkScratch>(call);
  const std::uint32_t width = s.width;
  std::uint32_t done_key_head = ~0u, done_chunk = ~0u;

  for (std::uint32_t index = first; index < last; ++index) {
    const Tile t = tile_at(call, index);
    const std::uint32_t head = t.x0, key_head = head / heads_per_key, chunk = t.y0;
    const std::size_t row0 = std::size_t(chunk) * kChunk;
    const std::uint32_t length = rows - row0 < kChunk ? std::uint32_t(rows - row0) : kChunk;
    const float* q = buffer<const float>(call, 0) + row0 * model.key_dim() + key_head * key_width;
    const float* k = buffer<const float>(call, 1) + row0 * model.key_dim() + key_head * key_width;
    const float* v = buffer<const float>(call, 2) + row0 * model.value_dim() + head * value_width;

    // The value heads of a key head are neighbours on the x axis and share these products.
    if (key_head != done_key_head || chunk != done_chunk) {
      transpose_keys(k, model.key_dim(), length, key_width, s.keys);
      lower_products(k, model.key_dim(), s.keys, length, key_width, s.kk);
      lower_products(q, model.key_dim(), s.keys, length, key_width, s.qk);
      done_key_head = key_head, done_chunk = chunk;
    }

    // G as a sum of two floats: G reaches −1000, where one float would leave 6e-5 in the differences of neighbours.
    float sum_high[kChunk], sum_low[kChunk];
    double sum = 0.0;
    for (std::uint32_t i = 0; i < kChunk; ++i) {
      if (i < length) sum += double(g[(row0 + i) * heads + head]);
      sum_high[i] = float(sum), sum_low[i] = float(sum - double(sum_high[i]));
    }

    for (std::uint32_t i = 0; i < length; ++i) {
      const std::size_t row = row0 + i;
      const float b = beta[row * heads + head], weight = b * std::exp(sum_high[i]);
      const float *v_row = v + i * model.value_dim(), *k_row = k + i * model.key_dim();
      float* x = s.x + i * width;
      float* qk = buffer<float>(call, 7) + (row * heads + head) * kChunk;
      for (std::uint32_t j = 0; j < kChunk; j += kLanes) {
        const Vi column = kLaneIndex + std::int32_t(j);
        const Vf difference = (sum_high[i] - loadf(sum_high + j)) + (sum_low[i] - loadf(sum_low + j));
        const Vf factor = exp(min(difference, Vf{}));
        storef(qk + j, column <= std::int32_t(i) ? factor * loadf(s.qk + i * kChunk + j) : Vf{});
        storef(s.a + i * kChunk + j, column < std::int32_t(i) ? -b * factor * loadf(s.kk + i * kChunk + j) : Vf{});
      }
      for (std::uint32_t e = 0; e < value_width; e += kLanes)
        storef(x + e, b * loadf(v_row + e));
      for (std::uint32_t e = 0; e < key_width; e += kLanes)
        storef(x + value_width + e, weight * loadf(k_row + e));
    }
    substitute(s.a, length, width, s.x);
    for (std::uint32_t i = 0; i < length; ++i) {
      const std::size_t at = (row0 + i) * heads + head;
      std::memcpy(buffer<float>(call, 5) + at * value_width, s.x + i * width, value_width * sizeof(float));
      std::memcpy(buffer<float>(call, 6) + at * key_width, s.x + i * width + value_width, key_width * sizeof(float));
    }
  }
}

void add_gdn_chunk(KernelTable& table) {
  add_kernel(table, {.op = "gdn_chunk", .run = gdn_chunk, .tile = {1, 1, 1}, .scratch_bytes = scratch_bytes<ChunkScratch>});
}

}  // namespace lily::cpu::LILY_ISA
