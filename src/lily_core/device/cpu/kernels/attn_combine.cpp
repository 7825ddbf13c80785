// y = softmax average over the splits · sigmoid(gate)
#include <cmath>

#include "device/cpu/kernels/activation.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

static void attn_combine(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const std::uint32_t heads = call.model->num_attention_heads, width = call.model->head_dim;
  const std::uint32_t splits = args_of<AttnCombineArgs>(call).splits, stride = width + 2;
  for (std::uint32_t i = first; i < last; ++i) {
    const Tile t = tile_at(call, i);
    for (std::uint32_t head = t.x0; head < t.x1; ++head) {
      const std::size_t index = std::size_t(t.y0) * heads + head;
      const float* partial = buffer<const float>(call, 0) + index * splits * stride;
      const float* gate = buffer<const float>(call, 1) + index * width;
      float* y = buffer<float>(call, 2) + index * width;
      float largest = partial[width], total = 0;
      for (std::uint32_t s = 1; s < splits; ++s)
        largest = partial[s * stride + width] > largest ? partial[s * stride + width] : largest;
      std::memset(y, 0, width * sizeof(float));
      for (std::uint32_t s = 0; s < splits; ++s) {
        const float* of_split = partial + s * stride;
        if (of_split[width + 1] == 0) continue;  // an empty split has written nothing else
        const float weight = std::exp(of_split[width] - largest);
        total += weight * of_split[width + 1];
        for (std::uint32_t c = 0; c < width; c += kLanes) storef(y + c, loadf(y + c) + weight * loadf(of_split + c));
      }
      for (std::uint32_t c = 0; c < width; c += kLanes) storef(y + c, loadf(y + c) / total * sigmoid(loadf(gate + c)));
    }
  }
}

void add_attn_combine(KernelTable& table) {
  add_kernel(table, {.op = "attn_combine", .run = attn_combine, .tile = {2, 1, 1}});
}

}  // namespace lily::cpu::LILY_ISA
