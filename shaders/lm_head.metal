// logits = W norm(x), for the rows that want them.
#include "lily_matvec.h"
#include "lily_operands.h"

struct Logits {
  device const StepRow* step;
  device float* logits;       // [timelines, V]
  device atomic_uint* flags;  // StepFlags
  uint places;                // nibble r: the step row of operand row r

  void operator()(uint row, uint r, float value) const thread {
    logits[(ulong)step[places >> (4u * r) & 15u].timeline * LILY_VOCAB_SIZE + row] = value;
    // By its bits: a compiler may take it that floats are finite.
    if ((as_type<uint>(value) & 0x7f800000u) == 0x7f800000u) atomic_store_explicit(&flags[1], 1u, memory_order_relaxed);
  }
};

kernel void lm_head(device const StepRow* step [[buffer(0)]], device const float* x [[buffer(1)]],
                    device const float* gain [[buffer(2)]], device const uint4* codes [[buffer(3)]],
                    device const WeightPair* scales [[buffer(4)]], device const WeightPair* biases [[buffer(5)]],
                    device float* logits [[buffer(6)]], device atomic_uint* flags [[buffer(7)]],
                    constant RowsArgs& args [[buffer(8)]], uint3 group [[threadgroup_position_in_grid]],
                    uint index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup half4 stage[LILY_STAGE_QUADS];
  threadgroup float parts[LILY_NORM_PARTS];
  const Thread self = {index, simdgroup, lane};
  uint places = 0u, rows = 0u;
  for (uint r = 0; r < args.rows; ++r)
    if (step[r].wants_logits != 0u) places |= r << (4u * rows++);
  if (rows == 0u) return;
  const NormedRows operand = normed_rows(x, gain, parts, places);
  const Logits store = {step, logits, flags, places};
  const uint begin = group.x * LILY_LM_HEAD_ROWS;
  const Weight<LILY_WEIGHT_BITS, LILY_WEIGHT_WIDE, LILY_HIDDEN_SIZE> weight = {codes, scales, biases};
  matvec<4u>(weight, begin, min(begin + LILY_LM_HEAD_ROWS, LILY_VOCAB_SIZE), stage).run(operand, rows, store, self);
}
