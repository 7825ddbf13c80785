#pragma once
#ifndef MSL_EXPAND
#include <metal_tensor>
#include "msl/matmul2d.h"
#endif
