// q | gate | k | v = y Wᵀ: all input projections of an attention layer.
#include "device/cpu/kernels/gemm.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

static void attn_in_tile(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const ModelConstants& model = *call.model;
  const std::uint32_t query_dim = model.num_attention_heads * model.head_dim;
  const std::uint32_t key_dim = model.num_key_value_heads * model.head_dim;
  const OutputPart parts[] = {{buffer<float>(call, 4), query_dim},
                              {buffer<float>(call, 5), query_dim},
                              {buffer<float>(call, 6), key_dim},
                              {buffer<float>(call, 7), key_dim}};
  gemm_tiles(call, first, last, model.hidden_size,
             [&](std::uint32_t row, std::uint32_t column, std::uint32_t count, const float* values) {
               store_parts(parts, row, column, count, values);
             });
}

void add_attn_in_tile(KernelTable& table) {
  add_formats(table, {.name = nullptr, .run = attn_in_tile, .access = "rrrrwwww", .args_size = sizeof(RowsArgs),
                      .tile = {kGemmColumns, kGemmRows, 1}, .scratch_bytes = gemm_scratch_bytes},
              LILY_FORMAT_NAMES("attn_in", "_f32_tile"));
}

}  // namespace lily::cpu::LILY_ISA
