// The KV pool [page][layer][K | V][Hkv][256][D], as halves, and the table that says which page holds a row's positions.
#pragma once

#include "lily_args.h"

// Where the key row of `position` begins in the pool, in elements; its value row lies LILY_VALUE_ROWS further. `page_begin`: of
// the row's pages in the table.
static inline ulong key_row(device const uint* page_table, uint page_begin, uint position, uint layer, uint head) {
  const ulong page = page_table[page_begin + position / LILY_PAGE_TOKENS];
  const ulong plane = (page * LILY_NUM_ATTENTION_LAYERS + layer) * 2u * LILY_NUM_KEY_VALUE_HEADS + head;
  return (plane * LILY_PAGE_TOKENS + position % LILY_PAGE_TOKENS) * LILY_HEAD_DIM;
}

#define LILY_VALUE_ROWS (LILY_NUM_KEY_VALUE_HEADS * LILY_PAGE_TOKENS * LILY_HEAD_DIM)
