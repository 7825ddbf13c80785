#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

void add_all(KernelTable& table) {
  add_rms_norm(table);
}

}  // namespace lily::cpu::LILY_ISA
