#include "device/cpu/kernels/gemm.h"

#include "device/cpu/kernels/panel.h"

namespace lily::cpu::LILY_ISA {

template <Format kFormat>
static void multiply_floats(const Weight& w, std::uint32_t n0, std::uint32_t columns, const GemmScratch& s, float* product) {
  for (std::uint32_t k0 = 0; k0 < s.width; k0 += kGemmDepth) {
    const std::uint32_t depth = std::min(s.width - k0, kGemmDepth);
    unpack_floats<kFormat>(w, s.width, n0, columns, k0, depth, kGemmDepth, s.panel);
    for_row_blocks(s.rows, [&](std::uint32_t begin, std::uint32_t count) {
      for (std::uint32_t i = 0; i < count; ++i) {
        const float* x = s.at[begin + i] + k0;
        for (std::uint32_t k = 0; k < depth; k += kLanes) storef(s.sliver + i * kSliverStride + k, loadf(x + k));
      }
      // The next block's rows come while this one is multiplied: they are short and far apart, so no hardware foresees them.
      for (std::uint32_t i = begin + count; i < s.rows && i < begin + count + kTileRows; ++i) {
        const float* x = s.at[i] + k0;
        for (std::uint32_t k = 0; k < depth; k += 16) __builtin_prefetch(x + k);
      }
      for (std::uint32_t n = 0; n < columns; n += kTileColumns)
        product_tile_of(count, {s.sliver, kSliverStride, 1}, s.panel + n * kGemmDepth, kTileColumns, depth, k0 > 0,
                        product + begin * kGemmColumns + n, kGemmColumns);
    });
  }
}

void gemm_floats(const Weight& w, std::uint32_t n, std::uint32_t columns, const GemmScratch& s, float* product) {
  with_format(s.format, [&]<Format kFormat>() { multiply_floats<kFormat>(w, n, columns, s, product); });
}

template <Format kFormat>
static void multiply_ints(const Weight* w, std::uint32_t weights, std::uint32_t n0, std::uint32_t n1, std::uint32_t strip,
                          const GemmScratch& s) {
  using Writer = PanelWriter<kFormat>;
  constexpr std::uint32_t kPanelGroups = kGemmIntDepth / LILY_GROUP_SIZE;
  const std::uint32_t groups = s.width / LILY_GROUP_SIZE, panels = (groups + kPanelGroups - 1) / kPanelGroups;  // of a strip
  const std::uint32_t strips = (n1 - n0 + kTileColumns - 1) / kTileColumns * weights;
  const std::uint32_t tiles = (s.rows + kIntTileRows - 1) / kIntTileRows;
  const auto first_row = [&](std::uint32_t of) { return n0 + of / weights * kTileColumns; };
  // Panels are numbered through; while one is multiplied the next one is written. While a strip is unpacked, the one behind it
  // comes from memory.
  const auto writer = [&](std::uint32_t number) {
    const std::uint32_t of = number / panels, group0 = number % panels * kPanelGroups;
    if (of == strips) return Writer();
    return Writer(w[of % weights], groups, first_row(of), n1, group0, std::min(groups - group0, kPanelGroups),
                  s.int_panel[number % 2], w[(of + 1) % weights], first_row(of + 1));
  };
  if (strip == 0) writer(0).write_rest();
  set_up_tiles();

  const Weight& weight = w[strip % weights];
  unpack_pairs<kFormat>(weight.scales, groups, first_row(strip), n1, s.scales);
  unpack_pairs<kFormat>(weight.biases, groups, first_row(strip), n1, s.biases);
  if constexpr (kCodeOffset<kFormat> != 0)
    for (std::uint32_t i = 0; i < groups * kTileColumns; i += kLanes)
      storef(s.biases + i, loadf(s.biases + i) + float(kCodeOffset<kFormat>) * loadf(s.scales + i));
  for (std::uint32_t i = 0; i < panels; ++i) {
    const std::uint32_t number = strip * panels + i, group0 = i * kPanelGroups;
    const std::uint32_t depth = std::min(groups - group0, kPanelGroups), turns = tiles * depth * kGroupTurns;
    Writer next = writer(number + 1);
    const std::uint32_t turn_units = (next.units_left() + turns - 1) / turns;
    auto turn = [&]() __attribute__((always_inline)) {
      for (std::uint32_t unit = 0; unit < turn_units && next.units_left() > 0; ++unit) next.write_unit();
    };
    for_row_blocks<kIntTileRows>(s.rows, [&](std::uint32_t begin, std::uint32_t count) {
      int_tile_of<is_4_bit(kFormat)>(count, s.ints_of(begin) + group0 * count * kRowGroupBytes, s.int_panel[number % 2],
                                     s.scales + group0 * kTileColumns, s.biases + group0 * kTileColumns, depth, i > 0,
                                     s.product[strip % weights] + begin * kTileColumns, turn);
    });
    next.write_rest();
  }
  release_tiles();
}

void gemm_ints(const Weight* w, std::uint32_t weights, std::uint32_t n0, std::uint32_t n1, std::uint32_t strip,
               const GemmScratch& s) {
  with_format(s.format, [&]<Format kFormat>() { multiply_ints<kFormat>(w, weights, n0, n1, strip, s); });
}

}  // namespace lily::cpu::LILY_ISA
