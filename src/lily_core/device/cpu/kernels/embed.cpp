// x = row of the embedding that belongs to the token, dequantised
#include "device/cpu/kernels/quant.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

template <typename TokenOf>
static void embed_rows(const KernelCall& call, std::uint32_t first, std::uint32_t last, const Weight& w, float* x,
                       TokenOf token_of) {
  const std::uint32_t width = call.model->hidden_size;
  with_format(call.format, [&]<Format kFormat>() {
    for (std::uint32_t i = first; i < last; ++i) {
      const Tile t = tile_at(call, i);
      for (std::uint32_t row = t.x0; row < t.x1; ++row)
        dequantise_row<kFormat>(w, token_of(row), width, x + std::size_t(row) * width);
    }
  });
}

static void embed(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const StepRow* step = buffer<const StepRow>(call, 0);
  const std::uint32_t* tokens = buffer<const std::uint32_t>(call, 1);
  embed_rows(call, first, last, weight_at(call, 2), buffer<float>(call, 5),
             [&](std::uint32_t row) { return tokens[step[row].token_slot]; });
}

static void embed_tile(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const std::uint32_t* tokens = buffer<const std::uint32_t>(call, 0);
  embed_rows(call, first, last, weight_at(call, 1), buffer<float>(call, 4), [&](std::uint32_t row) { return tokens[row]; });
}

void add_embed(KernelTable& table) {
  add_formats(table, {.op = "embed", .run = embed, .tile = {1, 1, 1}});
  add_formats(table, {.op = "embed", .is_tile = true, .run = embed_tile, .tile = {16, 1, 1}});
}

}  // namespace lily::cpu::LILY_ISA
