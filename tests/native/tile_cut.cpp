// Prints how dispatches are cut: lines of threads, least_x, tile and extent along x, y and z to lines of tiles and their x.
#include "device/cpu/tile_cut.h"

#include <iostream>

int main() {
  lily::cpu::KernelEntry entry = {};
  lily::cpu::KernelCall call = {};
  std::uint32_t threads;
  while (std::cin >> threads >> entry.least_x >> entry.tile[0] >> entry.tile[1] >> entry.tile[2] >> call.extent[0] >>
         call.extent[1] >> call.extent[2]) {
    const std::uint32_t tiles = lily::cpu::cut_into_tiles(entry, threads, call);
    std::cout << tiles << ' ' << call.tile[0] << '\n';
  }
}
