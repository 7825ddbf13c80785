// How this thread computes while this lives, whatever its caller has set: floats are rounded to the nearest one, so that it does
// not matter which thread runs a tile. On x86 results too small for a normal float become 0: the delta rule's states fade towards
// 0, and many of its processors take a hundred times as long for what lies below 2^-126. Inputs stay as they are there: widening
// half precision by a multiplication begins with such numbers.
#pragma once

#include <cfenv>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace lily::cpu {

class FloatMode {
 public:
  FloatMode() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | _MM_FLUSH_ZERO_ON);
#endif
  }
  ~FloatMode() { std::fesetenv(&before_); }  // the thread may be the caller's
  FloatMode(const FloatMode&) = delete;

 private:
  std::fenv_t before_;
};

}  // namespace lily::cpu
