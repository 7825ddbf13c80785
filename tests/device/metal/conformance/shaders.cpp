#include "tests/device/metal/conformance/shaders.h"

#include <string>
#include <vector>

#include "device/metal/embedded_shaders.h"
#include "device/metal/grid.h"

namespace lily::metal {
namespace {

std::string product_header(const std::string& tensor, const std::string& simdgroup) {
  const std::string begin = "#pragma once\n#include <metal_stdlib>\n#if LILY_GEMM_FORM == 1\n", end = "\n#endif\n";
  return begin + tensor + "\n#else\n" + simdgroup + end;
}

constexpr const char* kProduct = "inline float product(uint i) { return float(i % 7u) + 1.0f; }";
std::string products = product_header(kProduct, kProduct);

constexpr EmbeddedShader kShaders[] = {
    {"add.h", "#pragma once\ninline float add(float a, float b) { return a + b; }\n"},
    // y = x + gain[0]
    {"rms_norm.metal", R"(
#include <metal_stdlib>
#include "add.h"
#include "add.h"
kernel void rms_norm(device const float* x [[buffer(0)]], device const float* gain [[buffer(1)]], device float* y [[buffer(2)]],
                     constant uint& rows [[buffer(3)]], uint i [[thread_position_in_grid]]) {
  if (i < rows) y[i] = add(x[i], gain[0]);
}
)"},
    // x = 2 x + d[0]
    {"moe_combine.metal", R"(
#include <metal_stdlib>
kernel void moe_combine(device const float* d [[buffer(0)]], device const float* weights [[buffer(1)]],
                        device const float* s [[buffer(2)]], device const float* gate [[buffer(3)]],
                        device float* x [[buffer(4)]], constant uint& rows [[buffer(5)]], uint i [[thread_position_in_grid]]) {
  if (i < rows) x[i] = 2.0f * x[i] + d[0];
}
)"},
    // Reads one element more than there is.
    {"gated_norm.metal", R"(
#include <metal_stdlib>
kernel void gated_norm(device const float* o [[buffer(0)]], device const float* z [[buffer(1)]],
                       device const float* norm [[buffer(2)]], device float* y [[buffer(3)]], constant uint& rows [[buffer(4)]],
                       uint i [[thread_position_in_grid]]) {
  if (i < rows) y[i] = o[i + 4];
}
)"},
    // Takes milliseconds.
    {"moe_plan.metal", R"(
#include <metal_stdlib>
kernel void moe_plan(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], device float* z [[buffer(2)]],
                     constant uint& rows [[buffer(3)]], uint i [[thread_position_in_grid]]) {
  float value = x[i];
  for (uint k = 0; k < 100000u; ++k) value = value * 0.999f + 1.0f;
  y[i] = value;
}
)"},
    // The kernels that choose_form() runs.
    {"shared_down.metal", R"(
#include "product.h"
kernel void shared_down_tile(device float* s [[buffer(4)]], uint2 group [[threadgroup_position_in_grid]],
                             uint lane [[thread_index_in_simdgroup]]) {
  for (uint i = lane; i < 64u * 256u; i += 32u) s[group.y * 64u * 256u + i] = product(i);
}
)"},
    {"experts_down.metal", R"(
#include "product.h"
kernel void experts_down_tile(device float* d [[buffer(7)]], uint lane [[thread_index_in_simdgroup]]) {
  for (uint i = lane; i < 32u * 256u; i += 32u) d[i] = product(i);
}
)"},
    {"attn_prefill.metal", R"(
#include "product.h"
kernel void attn_prefill(device half* y [[buffer(6)]], constant uint& rows [[buffer(7)]],
                         uint lane [[thread_index_in_simdgroup]]) {
  for (uint i = lane; i < metal::min(rows, 16u) * 4u * 256u; i += 32u) y[i] = half(product(i));
}
)"},
    {"topk.metal", "#include <metal_stdlib>\nkernel void topk(device const float* x [[buffer(0)]]) { nonsense; }\n"},
};

constexpr Grid kGrids[] = {
    {"attn_prefill", false, {0, 0, 0}, 32},
    {"experts_down", true, {0, 0, 0}, 32, 1},
    {"gated_norm", false, {32, 1, 1}, 32},
    {"moe_combine", false, {32, 1, 1}, 32},
    {"moe_plan", false, {32, 1, 1}, 32},
    {"rms_norm", false, {32, 1, 1}, 32},
    {"shared_down", true, {0, 64, 0}, 32, 1},
    {"topk", false, {32, 1, 1}, 32},
};

}  // namespace

std::span<const EmbeddedShader> embedded_shaders() {
  static const std::vector<EmbeddedShader> shaders = [] {
    std::vector<EmbeddedShader> all(std::begin(kShaders), std::end(kShaders));
    all.push_back({"product.h", products});
    return all;
  }();
  return shaders;
}

std::span<const Grid> grids() { return kGrids; }

const Grid* find_grid(std::string_view op, bool is_tile) {
  for (const Grid& grid : kGrids)
    if (grid.op == op && grid.is_tile == is_tile) return &grid;
  return nullptr;
}

}  // namespace lily::metal

void lily::conformance::set_products(const std::string& tensor, const std::string& simdgroup) {
  metal::products = metal::product_header(tensor, simdgroup);
}
