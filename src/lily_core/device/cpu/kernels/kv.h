// The KV pool: [page][layer][K | V][Hkv][256][D], and the table that says which page holds a row's positions.
#pragma once

#include "device/cpu/kernel.h"

namespace lily::cpu::LILY_ISA {

struct KvPool {
  float* kv;
  const std::uint32_t* page_table;  // [page_row][max_pages]
  const ModelConstants* model;
  std::uint32_t layer;

  // The key or value row of `position`; those behind it in the same page follow it.
  float* keys(std::uint32_t page_row, std::uint32_t position, std::uint32_t head) const {
    return row(page_row, position, head, 0);
  }
  float* values(std::uint32_t page_row, std::uint32_t position, std::uint32_t head) const {
    return row(page_row, position, head, 1);
  }

  float* row(std::uint32_t page_row, std::uint32_t position, std::uint32_t head, std::uint32_t part) const {
    const std::size_t page = page_table[std::size_t(page_row) * model->max_pages + position / LILY_PAGE_TOKENS];
    const std::size_t plane = ((page * model->num_attention_layers + layer) * 2 + part) * model->num_key_value_heads + head;
    return kv + (plane * LILY_PAGE_TOKENS + position % LILY_PAGE_TOKENS) * model->head_dim;
  }
};

}  // namespace lily::cpu::LILY_ISA
