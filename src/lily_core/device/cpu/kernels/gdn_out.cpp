// x += W (norm · o / rms(o) · silu(z)): the gated norm and the output projection of a Gated DeltaNet layer. A chunk has the gated
// norm in a kernel of its own.
#include "device/cpu/kernels/gemm.h"
#include "device/cpu/kernels/matvec.h"
#include "device/cpu/kernels/norm.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {
namespace {

struct GatedOperand : Operand {
  GatedOperand(const KernelCall& call, Scratch& scratch)
      : Operand(call, scratch, call.format, args_of<RowsArgs>(call).rows, call.model->value_dim()),
        gated(scratch.take<float>(columns)) {}

  float* gated;  // [Hv dv]: one row
};

}  // namespace

static void gdn_out(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const std::uint32_t value_width = call.model->linear_value_head_dim;
  const float* o = buffer<const float>(call, 0);
  const float* z = buffer<const float>(call, 1);
  const float* gain = buffer<const float>(call, 2);
  GatedOperand y = scratch_of<GatedOperand>(call);
  const std::uint32_t missing = is_ready(call, 1) ? 0 : y.rows;
  for (std::uint32_t r = 0; r < missing; ++r, o += y.columns, z += y.columns) {
    for (std::uint32_t at = 0; at < y.columns; at += value_width)
      gated_norm_row(o + at, z + at, gain, value_width, call.model->rms_norm_eps, y.gated + at);
    y.set_row(r, y.gated);
  }
  matvec_add(call, first, last, weight_at(call, 3), y, buffer<float>(call, 6));
}

static void gdn_out_tile(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  gemm_add(call, first, last, call.model->value_dim());
}

void add_gdn_out(KernelTable& table) {
  add_formats(table, {.op = "gdn_out", .run = gdn_out, .tile = {32, 0, 1}, .scratch_bytes = scratch_bytes<GatedOperand>});
  add_formats(table, {.op = "gdn_out", .is_tile = true, .run = gdn_out_tile, .tile = {kGemmColumns, kGemmRows, 1},
                      .scratch_bytes = scratch_bytes<GemmScratch>});
}

}  // namespace lily::cpu::LILY_ISA
