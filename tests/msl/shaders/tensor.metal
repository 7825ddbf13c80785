// c[m, n] = a[m, k] b[n, k]ᵀ with tensor operations; the edge of the problem need not be the edge of a tile.
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

constant constexpr int TILE = 32;

kernel void tensor_product(device bfloat* a [[buffer(0)]], device bfloat* b [[buffer(1)]], device float* c [[buffer(2)]],
                           constant uint3& size [[buffer(3)]], uint2 group [[threadgroup_position_in_grid]]) {
  constexpr auto descriptor = matmul2d_descriptor(TILE, TILE, static_cast<int>(dynamic_extent), false, true, false,
                                                  matmul2d_descriptor::mode::multiply);
  matmul2d<descriptor, execution_simdgroups<4>> operation;
  auto left = tensor(a, dextents<int32_t, 2>(int(size.z), int(size.x)));
  auto right = tensor(b, dextents<int32_t, 2>(int(size.z), int(size.y)));
  auto out = tensor(c, dextents<int32_t, 2>(int(size.y), int(size.x)));
  auto l = left.slice(0, int(group.y) * TILE);
  auto r = right.slice(0, int(group.x) * TILE);
  auto o = out.slice(int(group.x) * TILE, int(group.y) * TILE);
  auto sum = operation.get_destination_cooperative_tensor<decltype(l), decltype(r), float>();
  operation.run(l, r, sum);
  for (ushort i = 0; i < sum.get_capacity(); ++i) {
    if (sum.is_valid_element(i)) sum[i] = sum[i] * 2.0f;
  }
  sum.store(o);
}
