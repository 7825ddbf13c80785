// Relaxed atomics, the only ones that Metal has.
#pragma once

namespace metal {
enum memory_order { memory_order_relaxed };
template <class T> using atomic = _Atomic(T);  // not a class: a class could not live in threadgroup memory
typedef _Atomic(uint) atomic_uint;
typedef _Atomic(int) atomic_int;
typedef _Atomic(float) atomic_float;

#define MSL_ATOMIC_UPDATE(S, T, name, builtin) \
  MSL_INLINE T name(volatile S _Atomic(T)* object, T value, memory_order) { return builtin(object, value, __ATOMIC_RELAXED); }
#define MSL_ATOMIC(S, T) \
  MSL_INLINE T atomic_load_explicit(const volatile S _Atomic(T)* object, memory_order) { \
    return __c11_atomic_load(object, __ATOMIC_RELAXED); \
  } \
  MSL_INLINE void atomic_store_explicit(volatile S _Atomic(T)* object, T value, memory_order) { \
    __c11_atomic_store(object, value, __ATOMIC_RELAXED); \
  } \
  MSL_ATOMIC_UPDATE(S, T, atomic_fetch_add_explicit, __c11_atomic_fetch_add) \
  MSL_ATOMIC_UPDATE(S, T, atomic_exchange_explicit, __c11_atomic_exchange)
#define MSL_ATOMIC_INTEGER(S, T) \
  MSL_ATOMIC(S, T) \
  MSL_ATOMIC_UPDATE(S, T, atomic_fetch_sub_explicit, __c11_atomic_fetch_sub) \
  MSL_ATOMIC_UPDATE(S, T, atomic_fetch_or_explicit, __c11_atomic_fetch_or) \
  MSL_ATOMIC_UPDATE(S, T, atomic_fetch_and_explicit, __c11_atomic_fetch_and) \
  MSL_ATOMIC_UPDATE(S, T, atomic_fetch_xor_explicit, __c11_atomic_fetch_xor) \
  MSL_ATOMIC_UPDATE(S, T, atomic_fetch_max_explicit, __c11_atomic_fetch_max) \
  MSL_ATOMIC_UPDATE(S, T, atomic_fetch_min_explicit, __c11_atomic_fetch_min)
MSL_ATOMIC_INTEGER(device, uint) MSL_ATOMIC_INTEGER(device, int)
MSL_ATOMIC_INTEGER(threadgroup, uint) MSL_ATOMIC_INTEGER(threadgroup, int)
MSL_ATOMIC(device, float)
#undef MSL_ATOMIC_INTEGER
#undef MSL_ATOMIC
#undef MSL_ATOMIC_UPDATE
}  // namespace metal
