// The KV pool: [page][layer][K | V][Hkv][256][D], and the table that says which page holds a row's positions.
#pragma once

#include "device/cpu/kernel.h"
#include "device/cpu/kernels/simd.h"

namespace lily::cpu::LILY_ISA {

// Element: float, or Half with kInt16.
template <typename Element>
struct KvPool {
  Element* kv;
  const std::uint32_t* page_table;
  const ModelConstants* model;
  std::uint32_t layer;

  // The key or value row of `position` in the pages that begin at `page_begin` of the table; those behind it in the same page
  // follow it.
  Element* keys(std::uint32_t page_begin, std::uint32_t position, std::uint32_t head) const {
    return row(page_begin, position, head, 0);
  }
  Element* values(std::uint32_t page_begin, std::uint32_t position, std::uint32_t head) const {
    return row(page_begin, position, head, 1);
  }

  Element* row(std::uint32_t page_begin, std::uint32_t position, std::uint32_t head, std::uint32_t part) const {
    const std::size_t page = page_table[page_begin + position / LILY_PAGE_TOKENS];
    const std::size_t plane = ((page * model->num_attention_layers + layer) * 2 + part) * model->num_key_value_heads + head;
    return kv + (plane * LILY_PAGE_TOKENS + position % LILY_PAGE_TOKENS) * model->head_dim;
  }
};

// The kernel for the element type that goes with the call's operands.
template <KernelFunction kOfFloats, KernelFunction kOfHalves>
static void with_kv_element(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  (call.operands == Operands::kInt16 ? kOfHalves : kOfFloats)(call, first, last);
}

}  // namespace lily::cpu::LILY_ISA
