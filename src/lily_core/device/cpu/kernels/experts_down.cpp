// The second half of the chosen experts. A step adds them and the shared expert to the residual stream at once:
// x += Σ weight · W_e h_e + sigmoid(shared_gate) · W hs; a chunk leaves d = W_e h_e of each assignment to moe_combine.
#include "device/cpu/kernels/activation.h"
#include "device/cpu/kernels/expert_runs.h"
#include "device/cpu/kernels/matvec.h"
#include "device/cpu/kernels/table.h"
#include "device/cpu/kernels/topk.h"

namespace lily::cpu::LILY_ISA {
namespace {

constexpr std::uint32_t kColumns = 64;  // of x in a tile of a step

struct ExpertsDownScratch {
  ExpertsDownScratch(const KernelCall& call, Scratch& scratch)
      : rows(args_of<RowsArgs>(call).rows),
        assignments(rows * call.model->num_experts_per_tok),
        h(call, scratch, call.format, assignments, call.model->moe_intermediate_size),
        firsts(scratch.take<std::uint32_t>(assignments)),
        hs(call, scratch, call.second_format, rows, call.model->shared_expert_intermediate_size),
        products(scratch.take<float>(std::size_t(assignments) * kColumns)) {}

  std::uint32_t rows, assignments;
  Operand h;
  std::uint32_t* firsts;  // [≤ R k], of distinct_experts
  Operand hs;
  // [R k][kColumns]: each product has a place of its own and is summed in the order of the slots, so a row's result does not
  // depend on its neighbours.
  float* products;
};

}  // namespace

static void experts_down(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const std::uint32_t k = call.model->num_experts_per_tok, width = call.model->hidden_size;
  const std::uint32_t* ids = buffer<const std::uint32_t>(call, 1);
  const float* weights = buffer<const float>(call, 2);
  const std::uint32_t* expert_slot = buffer<const std::uint32_t>(call, 3);
  const float* shared_gate = buffer<const float>(call, 11);
  float* x = buffer<float>(call, 12);
  const Weight w = weight_at(call, 4), shared_w = weight_at(call, 8);
  ExpertsDownScratch s = scratch_of<ExpertsDownScratch>(call);
  if (!is_ready(call, 1)) {
    s.h.set_rows(buffer<const float>(call, 0));
    s.hs.set_rows(buffer<const float>(call, 7));
  }

  const std::uint32_t distinct = distinct_experts(ids, s.assignments, expert_slot, s.firsts);

  for (std::uint32_t i = first; i < last; ++i) {
    const Tile t = tile_at(call, i);
    const std::uint32_t count = t.x1 - t.x0;
    auto rows_of = [&](std::uint32_t e) -> Rows {
      return e < distinct ? Rows{w, std::size_t(expert_slot[ids[s.firsts[e]]]) * width + t.x0} : Rows{shared_w, t.x0};
    };
    for (std::uint32_t e = 0; e < distinct; ++e) {
      Product of_expert[LILY_MAX_STEP_ROWS];
      std::uint32_t n = 0;
      for (std::uint32_t b = s.firsts[e]; b < s.assignments; ++b)
        if (ids[b] == ids[s.firsts[e]]) of_expert[n++] = {b, s.products + std::size_t(b) * kColumns};
      matvec({rows_of(e), count, rows_of(e + 1)}, s.h, of_expert, n);
    }
    float shared[LILY_MAX_STEP_ROWS][kColumns];
    Product of_shared[LILY_MAX_STEP_ROWS];
    for (std::uint32_t r = 0; r < s.rows; ++r) of_shared[r] = {r, shared[r]};
    const Rows first_expert = rows_of(0);
    matvec({{shared_w, t.x0}, count, {first_expert.w, first_expert.first + count}}, s.hs, of_shared, s.rows);

    for (std::uint32_t r = 0; r < s.rows; ++r) {
      float total[kColumns] = {};
      for (std::uint32_t a = r * k; a < (r + 1) * k; ++a) {
        if (expert_slot[ids[a]] == LILY_NO_EXPERT) continue;  // experts_up has set the abort flag
        for (std::uint32_t j = 0; j < count; ++j) total[j] += weights[a] * s.products[std::size_t(a) * kColumns + j];
      }
      const float shared_weight = sigmoid(shared_gate[r]);
      float* to = x + std::size_t(r) * width + t.x0;
      for (std::uint32_t j = 0; j < count; ++j) to[j] += total[j] + shared_weight * shared[r][j];
    }
  }
}

static void experts_down_tile(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const std::uint32_t hidden = call.model->hidden_size, width = call.model->moe_intermediate_size;
  const float* h = buffer<const float>(call, 0);
  const std::uint32_t* order = buffer<const std::uint32_t>(call, 1);
  const ExpertBlock* blocks = buffer<const ExpertBlock>(call, 2);
  const std::uint32_t* expert_slot = buffer<const std::uint32_t>(call, 3);
  float* d = buffer<float>(call, 7);
  GemmScratch scratch = scratch_of<GemmScratch>(call);
  for (std::uint32_t i = first; i < last; ++i) {
    const Tile t = tile_at(call, i);
    for_expert_runs(call, t, blocks, [&](const ExpertRun& run) {
      const std::uint32_t slot = expert_slot[run.expert], rows = run.end - run.begin;
      if (slot == LILY_NO_EXPERT) return;  // experts_up has set the abort flag
      const Weight w = stacked_weight(call, 4, slot, hidden, width);
      scratch.hold(rows, width);
      scratch.set_rows([&](std::uint32_t row) { return h + std::size_t(run.begin + row) * width; });
      gemm({w}, t.x0, t.x1, scratch, [&](std::uint32_t n, std::uint32_t count, auto values) {
        for (std::uint32_t row = 0; row < rows; ++row)
          stream_row(d + std::size_t(order[run.begin + row]) * hidden + n, values(0, row), count);
      });
    });
  }
  finish_streams();
}

void add_experts_down(KernelTable& table) {
  KernelEntry entry = {.op = "experts_down", .run = experts_down, .tile = {kColumns, 0, 1}, .least_x = kStripRows,
                       .scratch_bytes = scratch_bytes<ExpertsDownScratch>};
  for (const Format shared : kFormats) {
    entry.second_format = shared;
    add_formats(table, entry);
  }
  add_formats(table, {.op = "experts_down", .is_tile = true, .run = experts_down_tile, .tile = {0, kBlocksPerSlice, 1},
                      .scratch_bytes = scratch_bytes<GemmScratch>});
}

}  // namespace lily::cpu::LILY_ISA
