// q = rope(norm(q)) in place; k = rope(norm(k)) and v go into the row's page.
#include <cmath>

#include "device/cpu/kernels/kv.h"
#include "device/cpu/kernels/norm.h"
#include "device/cpu/kernels/scratch.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {
namespace {

void store_row(const float* from, std::uint32_t width, float* to) { std::memcpy(to, from, width * sizeof(float)); }

// What would round to an infinite half becomes NaN: a key with a score of -inf would be one that nobody looks at.
void store_row(const float* from, std::uint32_t width, Half* to) {
  const Vf end = splat(65520.0f);
  for (std::uint32_t i = 0; i < width; i += kLanes) {
    const Vf x = loadf(from + i);
    const Vi fits = (x < end) & (-x < end);
    storef(to + i, fits ? x : splat(__builtin_nanf("")));
  }
}

// cos and sin of a position's angles. In double: the product position · frequency in float32 is off by 0.006 rad at the far end.
struct Turn {
  Turn(const KernelCall& call, Scratch& scratch)
      : half(call.model->rotary_dim / 2),
        cos(scratch.take<float>(half)),
        sin(scratch.take<float>(half)),
        key(scratch.take<float>(call.model->head_dim)) {}

  void set(const float* rope, std::uint32_t position) {
    for (std::uint32_t j = 0; j < half; ++j) {
      const double turns = double(position) * (double(rope[2 * j]) + double(rope[2 * j + 1]));
      const double angle = 6.283185307179586 * (turns - std::nearbyint(turns));
      cos[j] = float(std::cos(angle));
      sin[j] = float(std::sin(angle));
    }
  }

  // Rotates the pairs (j, j + half); the rest of the head stays.
  void apply(float* head) const {
    for (std::uint32_t j = 0; j < half; ++j) {
      const float a = head[j], b = head[j + half];
      head[j] = a * cos[j] - b * sin[j];
      head[j + half] = b * cos[j] + a * sin[j];
    }
  }

  std::uint32_t half;
  float* cos;  // [half]
  float* sin;
  float* key;  // [D] on its way to the cache
};

// Row i of a step is step row i; row i of a chunk is i positions behind the chunk's only step row.
template <bool kTile, typename Element>
void prepare(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const ModelConstants& model = *call.model;
  const std::uint32_t q_heads = model.num_attention_heads, kv_heads = model.num_key_value_heads, width = model.head_dim;
  const StepRow* step = buffer<const StepRow>(call, 0);
  float* q = buffer<float>(call, 1);
  const float* k = buffer<const float>(call, 2);
  const float* v = buffer<const float>(call, 3);
  const KvPool<Element> pool = {buffer<Element>(call, 8), buffer<const std::uint32_t>(call, 7), call.model,
                                args_of<LayerArgs>(call).layer};
  Turn turn = scratch_of<Turn>(call);

  std::uint32_t turned = ~0u;  // the row that `turn` belongs to
  for (std::uint32_t i = first; i < last; ++i) {
    const Tile t = tile_at(call, i);
    for (std::uint32_t row = t.y0; row < t.y1; ++row) {
      const StepRow& s = step[kTile ? 0 : row];
      const std::uint32_t position = s.position + (kTile ? row : 0);
      if (turned != row) turn.set(buffer<const float>(call, 6), position);
      turned = row;
      for (std::uint32_t head = t.x0; head < t.x1; ++head) {
        if (head < q_heads) {
          float* at = q + (std::size_t(row) * q_heads + head) * width;
          norm_row(at, buffer<const float>(call, 4), width, model.rms_norm_eps, at);
          turn.apply(at);
        } else {
          const std::size_t from = (std::size_t(row) * kv_heads + head - q_heads) * width;
          norm_row(k + from, buffer<const float>(call, 5), width, model.rms_norm_eps, turn.key);
          turn.apply(turn.key);
          store_row(turn.key, width, pool.keys(s.page_begin, position, head - q_heads));
          store_row(v + from, width, pool.values(s.page_begin, position, head - q_heads));
        }
      }
    }
  }
}

}  // namespace

void add_attn_prep(KernelTable& table) {
  add_kernel(table, {.op = "attn_prep", .run = with_kv_element<prepare<false, float>, prepare<false, Half>>, .tile = {4, 1, 1},
                     .scratch_bytes = scratch_bytes<Turn>});
  add_kernel(table, {.op = "attn_prep", .is_tile = true, .run = with_kv_element<prepare<true, float>, prepare<true, Half>>,
                     .tile = {0, 4, 1}, .scratch_bytes = scratch_bytes<Turn>});
}

}  // namespace lily::cpu::LILY_ISA
