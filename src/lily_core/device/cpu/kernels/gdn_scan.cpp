// The sequential part of the chunked delta rule: the state through all chunks, and the outputs (docs/design/model.md 3.2).
#include <cmath>

#include "device/cpu/kernels/product.h"
#include "device/cpu/kernels/scratch.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

constexpr std::uint32_t kChunk = LILY_DELTA_CHUNK;
// Value columns of a tile, at most: they never meet, so tiles need no order. Fewer would read q, k and w more often; with more,
// the 32 heads of the 35B would not keep 64 cores busy.
constexpr std::uint32_t kScanColumns = 64;
static_assert(kScanColumns % kTileColumns == 0);

struct ScanScratch {
  ScanScratch(const KernelCall& call, Scratch& scratch)
      : row_stride(call.model->linear_key_head_dim + 16),
        rows(scratch.take<float>(kChunk * row_stride)),
        d(scratch.take<float>(kChunk * kScanColumns)),
        o(scratch.take<float>(kChunk * kScanColumns)),
        from_start(scratch.take<float>(kChunk)),
        to_end(scratch.take<float>(kChunk)),
        state(scratch.take<float>(std::size_t(call.model->linear_key_head_dim) * kScanColumns)) {}

  // Copies a chunk's rows of w, q or k side by side and asks for those of the next chunk. Where they come from they are a power
  // of two apart: all in one set of the cache, and each in a page of its own.
  void set_rows(const float* from, std::size_t stride, std::uint32_t count) const {
    const std::size_t width = row_stride - 16;
    for (std::uint32_t i = 0; i < count; ++i, from += stride) {
      for (std::size_t j = 0; j < width; j += 16) __builtin_prefetch(from + kChunk * stride + j);
      std::memcpy(rows + i * row_stride, from, width * sizeof(float));
    }
  }

  std::size_t row_stride;
  float* rows;        // [kChunk][row_stride]: of w, q or k
  float* d;           // [kChunk][kScanColumns]
  float* o;           // [kChunk][kScanColumns]
  float* from_start;  // [kChunk]: e^{G_i}: what is left of the chunk's first state at row i
  float* to_end;      // [kChunk]: e^{G_C − G_i}: what is left of row i at the chunk's end
  float* state;       // [dk][kScanColumns]
};

// Sums from both ends: G_C − G_i as a difference of two sums near −1000 would be off by 6e-5.
static inline void decay_factors(const float* g, std::size_t stride, std::uint32_t length, const ScanScratch& s) {
  float sum = 0.0f;
  for (std::uint32_t i = 0; i < length; ++i) s.from_start[i] = std::exp(sum += g[i * stride]);
  sum = 0.0f;
  for (std::uint32_t i = length; i-- > 0; sum += g[i * stride]) s.to_end[i] = std::exp(sum);
}

static void gdn_scan(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const ModelConstants& model = *call.model;
  const LayerArgs& args = args_of<LayerArgs>(call);
  const StepRow& step = *buffer<const StepRow>(call, 0);
  const std::size_t heads = model.linear_num_value_heads, heads_per_key = heads / model.linear_num_key_heads;
  const std::size_t key_width = model.linear_key_head_dim, value_width = model.linear_value_head_dim;
  const std::size_t key_dim = model.key_dim(), value_dim = model.value_dim();
  float* states = buffer<float>(call, 7);
  const ScanScratch s = scratch_of<ScanScratch>(call);

  for (std::uint32_t index = first; index < last; ++index) {
    const Tile t = tile_at(call, index);
    const std::size_t head = t.y0, key_head = head / heads_per_key;
    const std::uint32_t columns = t.x1 - t.x0;
    auto state_at = [&](std::uint32_t slot) {
      const std::size_t matrix = (std::size_t(slot) * model.num_linear_layers + args.layer) * heads + head;
      return states + matrix * key_width * value_width + t.x0;
    };
    for (std::size_t i = 0; i < key_width; ++i)
      std::memcpy(s.state + i * kScanColumns, state_at(step.slot_in) + i * value_width, columns * sizeof(float));

    for (std::size_t row0 = 0; row0 < args.rows; row0 += kChunk) {
      const std::uint32_t length = args.rows - row0 < kChunk ? std::uint32_t(args.rows - row0) : kChunk;
      const float* q = buffer<const float>(call, 1) + row0 * key_dim + key_head * key_width;
      const float* k = buffer<const float>(call, 2) + row0 * key_dim + key_head * key_width;
      const float* u = buffer<const float>(call, 3) + row0 * value_dim + head * value_width + t.x0;
      const float* w = buffer<const float>(call, 4) + (row0 * heads + head) * key_width;
      const float* qk = buffer<const float>(call, 5) + (row0 * heads + head) * kChunk;
      float* o = buffer<float>(call, 8) + row0 * value_dim + head * value_width + t.x0;
      const float* g = buffer<const float>(call, 6) + row0 * heads + head;
      decay_factors(g, heads, length, s);

      s.set_rows(w, heads * key_width, length);
      product({s.rows, s.row_stride, 1}, s.state, kScanColumns, length, key_width, columns, false, s.d, kScanColumns);
      for (std::uint32_t i = 0; i < length; ++i)
        for (std::uint32_t j = 0; j < columns; j += kLanes)
          storef(s.d + i * kScanColumns + j, loadf(u + i * value_dim + j) - loadf(s.d + i * kScanColumns + j));

      s.set_rows(q, key_dim, length);
      product({s.rows, s.row_stride, 1}, s.state, kScanColumns, length, key_width, columns, false, s.o, kScanColumns);
      for (std::uint32_t i = 0; i < length; ++i) {
        for (std::uint32_t j = 0; j < columns; j += kLanes)
          storef(s.o + i * kScanColumns + j, s.from_start[i] * loadf(s.o + i * kScanColumns + j));
      }
      for_row_blocks(length, [&](std::uint32_t begin, std::uint32_t count) {
        product({qk + begin * heads * kChunk, heads * kChunk, 1}, s.d, kScanColumns, count, begin + count, columns, true,
                s.o + begin * kScanColumns, kScanColumns);
      });
      for (std::uint32_t i = 0; i < length; ++i)
        std::memcpy(o + i * value_dim, s.o + i * kScanColumns, columns * sizeof(float));

      for (std::uint32_t i = 0; i < length; ++i)
        for (std::uint32_t j = 0; j < columns; j += kLanes)
          storef(s.d + i * kScanColumns + j, s.to_end[i] * loadf(s.d + i * kScanColumns + j));
      const float whole = s.from_start[length - 1];
      for (std::size_t i = 0; i < key_width * kScanColumns; i += kLanes) storef(s.state + i, whole * loadf(s.state + i));
      s.set_rows(k, key_dim, length);
      product({s.rows, 1, s.row_stride}, s.d, kScanColumns, std::uint32_t(key_width), length, columns, true, s.state,
              kScanColumns);
    }
    for (std::size_t i = 0; i < key_width; ++i)
      std::memcpy(state_at(step.slot_out) + i * value_width, s.state + i * kScanColumns, columns * sizeof(float));
  }
}

void add_gdn_scan(KernelTable& table) {
  add_kernel(table, {.op = "gdn_scan", .run = gdn_scan, .tile = {kScanColumns, 1, 1},
                     .scratch_bytes = scratch_bytes<ScanScratch>});
}

}  // namespace lily::cpu::LILY_ISA
