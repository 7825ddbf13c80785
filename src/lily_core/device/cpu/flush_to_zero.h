// Results too small for a normal float become 0 while this lives, for this thread. The delta rule's states fade towards 0, and
// many x86 processors take a hundred times as long for what lies below 2^-126. Inputs stay as they are: widening half precision
// by a multiplication begins with such numbers. Processors for arm64 do not need it.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace lily::cpu {

class [[maybe_unused]] FlushToZero {
 public:
#if defined(__x86_64__)
  FlushToZero() { _mm_setcsr(before_ | _MM_FLUSH_ZERO_ON); }
  ~FlushToZero() { _mm_setcsr(before_); }  // the thread may be the caller's
  FlushToZero(const FlushToZero&) = delete;

 private:
  const unsigned before_ = _mm_getcsr();
#endif
};

}  // namespace lily::cpu
