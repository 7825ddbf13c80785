// Every op's registration, one a file, and the table of one instruction set.
#pragma once

#include "device/cpu/kernel.h"

namespace lily::cpu::LILY_ISA {

void add_rms_norm(KernelTable& table);

void add_all(KernelTable& table);

}  // namespace lily::cpu::LILY_ISA
