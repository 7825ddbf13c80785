// The delta net's short causal convolution, whose history is conv_state [slot][layer][3][C], oldest row first.
#pragma once

#include "lily_args.h"
#include "lily_math.h"

#define LILY_KEPT_ROWS (LILY_CONV_TAPS - 1u)

// silu of the taps of one channel times its last four inputs, the oldest first.
static inline float convolve(float4 taps, float4 inputs) { return silu(dot(taps, inputs)); }

// Element `row`, `channel` of a slot's conv_state.
static inline ulong conv_place(uint slot, uint layer, uint row, uint channel) {
  return (((ulong)slot * LILY_NUM_LINEAR_LAYERS + layer) * LILY_KEPT_ROWS + row) * LILY_CONV_CHANNELS + channel;
}
