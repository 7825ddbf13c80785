// qkv | z | b, a = y Wᵀ: all input projections of a Gated DeltaNet layer.
#include "device/cpu/kernels/gemm.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

static void gdn_in_tile(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const ModelConstants& model = *call.model;
  const OutputPart parts[] = {{buffer<float>(call, 4), model.conv_channels()},
                              {buffer<float>(call, 5), model.value_dim()},
                              {buffer<float>(call, 6), 2 * model.linear_num_value_heads}};
  gemm_tiles(call, first, last, model.hidden_size,
             [&](std::uint32_t row, std::uint32_t column, std::uint32_t count, const float* values) {
               store_parts(parts, row, column, count, values);
             });
}

void add_gdn_in_tile(KernelTable& table) {
  add_formats(table, {.name = nullptr, .run = gdn_in_tile, .access = "rrrrwww", .args_size = sizeof(RowsArgs),
                      .tile = {kGemmColumns, kGemmRows, 1}, .scratch_bytes = gemm_scratch_bytes},
              LILY_FORMAT_NAMES("gdn_in", "_f32_tile"));
}

}  // namespace lily::cpu::LILY_ISA
