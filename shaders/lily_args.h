// Argument structs and table rows shared by shaders and C++. All fields are 32-bit, so both sides agree on every offset.
// docs/design/kernels.md lists, per kernel, which struct it takes and which buffers it binds.
#pragma once

#ifdef __METAL_VERSION__
typedef uint lily_u32;
typedef float lily_f32;
#else
#include <cstdint>
typedef std::uint32_t lily_u32;
typedef float lily_f32;
#endif

// What host and kernels agree on.
#define LILY_GROUP_SIZE 64u        // neighbours of a weight's row that share a scale and a bias
#define LILY_MAX_STEP_ROWS 8u      // rows of a step
#define LILY_DELTA_CHUNK 64u       // tokens per chunk of the delta rule, counted from the start of the prefill chunk
#define LILY_CONV_TAPS 4u          // of the delta net's convolution: linear_conv_kernel_dim of a config.json
#define LILY_MASKED_SCORE (-1e30f) // below every attention score, and still a number: differences of two are 0, not NaN

// Everything that changes from step to step, one row per timeline that takes part (a prefill chunk is one row).
struct StepRow {
  lily_u32 token_slot;      // where the input token id lies in `tokens`; unused by prefill, whose ids are a buffer of their own
  lily_u32 position;        // position of the row's token; of the first token of a prefill chunk
  lily_u32 slot_in;         // state slot read; slot 0 is all zeros and never written
  lily_u32 slot_out;        // state slot written, never equal to slot_in
  lily_u32 page_begin;      // where the row's pages begin in the page table
  lily_u32 sample_row;      // row of the sample tables, or LILY_NO_SAMPLE
  lily_u32 timeline;        // row of `logits` and of `token_counts`
  lily_u32 wants_logits;    // 0: lm_head skips the row
  lily_u32 keys_per_split;  // of decode attention; unused by prefill
};

#define LILY_NO_SAMPLE 0xffffffffu
#define LILY_NO_EXPERT 0xffffffffu
#define LILY_PAGE_TOKENS 256u
#define LILY_MAX_TOP_LOGPROBS 20u

struct StepFlags {
  lily_u32 abort;  // an expert is not loaded: the rest of the step must not be used
  lily_u32 nan;    // a logit was not finite
};

// Sampling order: bias, vocabulary mask, penalties, temperature, min_p, top_k, top_p, draw.
// temperature 0 is argmax after penalties.
struct SampleRow {
  lily_f32 temperature;
  lily_f32 top_p;
  lily_f32 min_p;
  lily_u32 top_k;  // 0: all
  lily_f32 presence_penalty;
  lily_f32 frequency_penalty;
  lily_f32 repetition_penalty;
  lily_u32 uses_counts;  // penalties are read from token_counts, and the drawn token is added to it
  lily_u32 seed_low;
  lily_u32 seed_high;
  lily_u32 num_logprobs;  // top log-probs wanted, at most LILY_MAX_TOP_LOGPROBS
  lily_u32 wants_logprob;
  lily_u32 bias_begin;  // entries [bias_begin, bias_end) of `bias`
  lily_u32 bias_end;
  lily_u32 uses_mask;  // row `sample_row` of the vocabulary mask
  lily_u32 token_slot;  // where the drawn token id is written in `tokens`
};

struct BiasEntry {
  lily_u32 token_id;
  lily_f32 value;
};

// token_counts: bit 31 says that the token is in the prompt, the lower bits count it in the output.
#define LILY_COUNT_IN_PROMPT 0x80000000u

struct SampleResult {
  lily_u32 token_id;
  lily_f32 logprob;  // log-softmax of the raw logits, before bias, mask, penalties and temperature
  lily_u32 num_logprobs;
  lily_u32 top_ids[LILY_MAX_TOP_LOGPROBS];
  lily_f32 top_logprobs[LILY_MAX_TOP_LOGPROBS];
};

// One per block of LILY_SAMPLE_BLOCK vocabulary entries, written by sample_scan.
#define LILY_SAMPLE_BLOCK 1024u
struct SampleBlock {
  lily_f32 raw_max;   // of the raw logits
  lily_f32 raw_sum;   // sum of exp(raw - raw_max)
  lily_f32 best;      // largest adjusted logit
  lily_u32 best_id;   // lowest id that has it
};

// One block of rows of the grouped expert products: assignments [begin, end) in expert order all belong to `expert`.
#define LILY_EXPERT_BLOCK 32u
struct ExpertBlock {
  lily_u32 expert;  // LILY_NO_EXPERT: sentinel, the block is empty
  lily_u32 begin;
  lily_u32 end;
};

struct RowsArgs {
  lily_u32 rows;
};
struct LayerArgs {
  lily_u32 rows;
  lily_u32 layer;  // index among the layers of its kind: the row of the state pool or of a KV page
};
// Both numbers of keys are multiples of LILY_PAGE_TOKENS.
struct AttnPrefillArgs {
  lily_u32 rows;
  lily_u32 layer;
  lily_u32 first_key;
  lily_u32 num_keys;
};
struct AttnSplitArgs {
  lily_u32 rows;
  lily_u32 layer;
  lily_u32 splits;  // of the row that has most
};
struct AttnCombineArgs {
  lily_u32 rows;
  lily_u32 splits;
};

#ifndef __METAL_VERSION__
// Sizes of the model. GPUs get them as a preamble of constants in front of the shader source, the CPU as this struct.
struct ModelConstants {
  lily_u32 hidden_size;
  lily_u32 vocab_size;
  lily_u32 num_attention_layers;
  lily_u32 num_linear_layers;
  lily_u32 num_attention_heads;
  lily_u32 num_key_value_heads;
  lily_u32 head_dim;
  lily_u32 rotary_dim;
  lily_u32 linear_num_key_heads;
  lily_u32 linear_num_value_heads;
  lily_u32 linear_key_head_dim;
  lily_u32 linear_value_head_dim;
  lily_u32 num_experts;
  lily_u32 num_experts_per_tok;
  lily_u32 moe_intermediate_size;
  lily_u32 shared_expert_intermediate_size;
  lily_f32 rms_norm_eps;

  lily_u32 key_dim() const { return linear_num_key_heads * linear_key_head_dim; }
  lily_u32 value_dim() const { return linear_num_value_heads * linear_value_head_dim; }
  lily_u32 conv_channels() const { return 2 * key_dim() + value_dim(); }
  lily_u32 sample_blocks() const { return (vocab_size + LILY_SAMPLE_BLOCK - 1) / LILY_SAMPLE_BLOCK; }
  // Blocks of the grouped expert products for a chunk of `rows` rows, sentinels included.
  lily_u32 max_expert_blocks(lily_u32 rows) const {
    const lily_u32 assignments = rows * num_experts_per_tok;
    return (num_experts < assignments ? num_experts : assignments) + assignments / LILY_EXPERT_BLOCK;
  }
};

static_assert(sizeof(StepRow) == 36 && sizeof(SampleRow) == 64 && sizeof(SampleResult) == 172);
static_assert(sizeof(SampleBlock) == 16 && sizeof(ExpertBlock) == 12 && sizeof(BiasEntry) == 8 && sizeof(StepFlags) == 8);
#endif
