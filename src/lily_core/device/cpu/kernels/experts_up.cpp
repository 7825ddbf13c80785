// h = silu(W_gate norm(x)) · (W_up norm(x)) for the k experts that the router chose for each row. A chunk's rows are grouped by
// moe_plan; a step looks for rows that share an expert itself.
#include "device/cpu/kernels/expert_runs.h"
#include "device/cpu/kernels/matvec.h"
#include "device/cpu/kernels/table.h"
#include "device/cpu/kernels/topk.h"

namespace lily::cpu::LILY_ISA {
namespace {

struct ExpertsUpScratch {
  ExpertsUpScratch(const KernelCall& call, Scratch& scratch)
      : x(call, scratch),
        ids(scratch.take<std::uint32_t>(x.rows * call.model->num_experts_per_tok)),
        firsts(scratch.take<std::uint32_t>(x.rows * call.model->num_experts_per_tok)),
        weights(scratch.take<float>(x.rows * call.model->num_experts_per_tok)) {}

  NormedOperand x;
  std::uint32_t* ids;     // [R][k]
  std::uint32_t* firsts;  // [≤ R k], of distinct_experts
  float* weights;         // [R][k]
};

void set_abort(StepFlags* flags) { __atomic_store_n(&flags->abort, 1u, __ATOMIC_RELAXED); }

}  // namespace

static void experts_up(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const ModelConstants& model = *call.model;
  const std::uint32_t experts = model.num_experts, k = model.num_experts_per_tok, width = model.moe_intermediate_size;
  const float* router_logits = buffer<const float>(call, 2);
  const std::uint32_t* expert_slot = buffer<const std::uint32_t>(call, 3);
  float* h = buffer<float>(call, 10);
  ExpertsUpScratch s = scratch_of<ExpertsUpScratch>(call);
  const std::uint32_t rows = s.x.rows;
  if (!is_ready(call, 1)) {
    set_normed_rows(call, s.x);
    for (std::uint32_t r = 0; r < rows; ++r)
      choose_experts(router_logits + std::size_t(r) * experts, experts, k, s.ids + r * k, s.weights + r * k);
  }

  const std::uint32_t distinct = distinct_experts(s.ids, rows * k, expert_slot, s.firsts);
  for (std::uint32_t a = 0; a < rows * k; ++a)
    if (expert_slot[s.ids[a]] == LILY_NO_EXPERT) set_abort(buffer<StepFlags>(call, 13));

  for (std::uint32_t i = first; i < last; ++i) {
    const Tile t = tile_at(call, i);
    if (t.x0 == 0) {  // one tile writes what every range has worked out
      std::memcpy(buffer<std::uint32_t>(call, 11), s.ids, rows * k * sizeof(std::uint32_t));
      std::memcpy(buffer<float>(call, 12), s.weights, rows * k * sizeof(float));
    }
    auto row_of = [&](std::uint32_t e, std::uint32_t row) { return std::size_t(expert_slot[s.ids[s.firsts[e]]]) * width + row; };
    for (std::uint32_t e = 0; e < distinct; ++e) {
      Product of_expert[LILY_MAX_STEP_ROWS];
      std::uint32_t n = 0;
      for (std::uint32_t b = s.firsts[e]; b < rows * k; ++b)  // the rows that chose it
        if (s.ids[b] == s.ids[s.firsts[e]]) of_expert[n++] = {b / k, h + std::size_t(b) * width + t.x0};
      const std::size_t next = e + 1 < distinct ? row_of(e + 1, t.x0) : row_of(0, t.x1);
      matvec_gate_up(weight_at(call, 4), weight_at(call, 7), row_of(e, t.x0), t.x1 - t.x0, next, s.x, of_expert, n);
    }
  }
}

static void experts_up_tile(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const ModelConstants& model = *call.model;
  const std::uint32_t hidden = model.hidden_size, width = model.moe_intermediate_size;
  const float* y = buffer<const float>(call, 0);
  const std::uint32_t* order = buffer<const std::uint32_t>(call, 1);
  const ExpertBlock* blocks = buffer<const ExpertBlock>(call, 2);
  const std::uint32_t* expert_slot = buffer<const std::uint32_t>(call, 3);
  float* h = buffer<float>(call, 10);
  GemmScratch scratch = scratch_of<GemmScratch>(call);
  for (std::uint32_t i = first; i < last; ++i) {
    const Tile t = tile_at(call, i);
    for_expert_runs(call, t, blocks, [&](const ExpertRun& run) {
      const std::uint32_t slot = expert_slot[run.expert];
      if (slot == LILY_NO_EXPERT) return set_abort(buffer<StepFlags>(call, 11));
      scratch.hold(run.end - run.begin, hidden);
      scratch.set_rows([&](std::uint32_t row) {
        return y + std::size_t(order[run.begin + row] / model.num_experts_per_tok) * hidden;
      });
      const Weight gate = stacked_weight(call, 4, slot, width, hidden), up = stacked_weight(call, 7, slot, width, hidden);
      gemm_gate_up(gate, up, t.x0, t.x1, scratch, h + std::size_t(run.begin) * width, width);
    });
  }
}

void add_experts_up(KernelTable& table) {
  add_formats(table, {.op = "experts_up", .run = experts_up, .tile = {kGateUpColumns, 0, 0}, .least_x = kStripRows,
                      .scratch_bytes = scratch_bytes<ExpertsUpScratch>});
  add_formats(table, {.op = "experts_up", .is_tile = true, .run = experts_up_tile, .tile = {0, kBlocksPerSlice, 1},
                      .scratch_bytes = scratch_bytes<GemmScratch>});
}

}  // namespace lily::cpu::LILY_ISA
