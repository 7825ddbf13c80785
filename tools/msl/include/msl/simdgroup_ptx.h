// On NVIDIA GPUs a simdgroup is a warp.
#pragma once

namespace msl {
MSL_INLINE uint lane() { return __nvvm_read_ptx_sreg_laneid(); }
enum class shuffle { index, exclusive_or, down, up };
// Moves the 32-bit words of a value between lanes.
template <shuffle Kind, class T> MSL_INLINE T move(T value, uint by) {
  static_assert(sizeof(T) <= 4 || sizeof(T) % 4 == 0, "words");
  constexpr int kWords = sizeof(T) <= 4 ? 1 : sizeof(T) / 4;
  struct words { uint word[kWords]; } w;
  if constexpr (sizeof(T) == 1) w.word[0] = __builtin_bit_cast(uchar, value);
  else if constexpr (sizeof(T) == 2) w.word[0] = __builtin_bit_cast(ushort, value);
  else w = __builtin_bit_cast(words, value);
  _Pragma("clang loop unroll(full)") for (int i = 0; i < kWords; ++i) {
    const int x = (int)w.word[i];
    if constexpr (Kind == shuffle::index) w.word[i] = __nvvm_shfl_sync_idx_i32(0xffffffffu, x, by, 31);
    if constexpr (Kind == shuffle::exclusive_or) w.word[i] = __nvvm_shfl_sync_bfly_i32(0xffffffffu, x, by, 31);
    if constexpr (Kind == shuffle::down) w.word[i] = __nvvm_shfl_sync_down_i32(0xffffffffu, x, by, 31);
    if constexpr (Kind == shuffle::up) w.word[i] = __nvvm_shfl_sync_up_i32(0xffffffffu, x, by, 0);
  }
  if constexpr (sizeof(T) == 1) return __builtin_bit_cast(T, (uchar)w.word[0]);
  else if constexpr (sizeof(T) == 2) return __builtin_bit_cast(T, (ushort)w.word[0]);
  else return __builtin_bit_cast(T, w);
}
}  // namespace msl

namespace metal {
MSL_INLINE void threadgroup_barrier(mem_flags) { __nvvm_bar_sync(0); }
MSL_INLINE void simdgroup_barrier(mem_flags) { __nvvm_bar_warp_sync(0xffffffffu); }
template <class T> MSL_INLINE T simd_shuffle(T value, ushort from) { return msl::move<msl::shuffle::index>(value, from); }
template <class T> MSL_INLINE T simd_broadcast(T value, ushort from) { return msl::move<msl::shuffle::index>(value, from); }
template <class T> MSL_INLINE T simd_broadcast_first(T value) { return msl::move<msl::shuffle::index>(value, 0); }
template <class T> MSL_INLINE T simd_shuffle_xor(T value, ushort mask) {
  return msl::move<msl::shuffle::exclusive_or>(value, mask);
}
template <class T> MSL_INLINE T simd_shuffle_down(T value, ushort delta) { return msl::move<msl::shuffle::down>(value, delta); }
template <class T> MSL_INLINE T simd_shuffle_up(T value, ushort delta) { return msl::move<msl::shuffle::up>(value, delta); }
template <class T> MSL_INLINE T simd_shuffle_rotate_down(T value, ushort delta) {
  return msl::move<msl::shuffle::index>(value, (msl::lane() + delta) & 31u);
}
#define MSL_REDUCTION(name, body) \
  template <class T> MSL_INLINE T name(T a) { \
    _Pragma("clang loop unroll(full)") for (int offset = 16; offset; offset >>= 1) { \
      const T b = simd_shuffle_xor(a, offset); \
      a = body; \
    } \
    return a; \
  }
MSL_REDUCTION(simd_sum, T(a + b)) MSL_REDUCTION(simd_product, T(a * b))
MSL_REDUCTION(simd_max, (a < b ? b : a)) MSL_REDUCTION(simd_min, (b < a ? b : a))
MSL_REDUCTION(simd_or, T(a | b)) MSL_REDUCTION(simd_and, T(a & b))
#undef MSL_REDUCTION
template <class T> MSL_INLINE T simd_prefix_inclusive_sum(T value) {
  _Pragma("clang loop unroll(full)") for (int offset = 1; offset < 32; offset <<= 1) {
    const T before = simd_shuffle_up(value, offset);
    if ((int)msl::lane() >= offset) value = T(value + before);
  }
  return value;
}
template <class T> MSL_INLINE T simd_prefix_exclusive_sum(T value) {
  const T before = simd_shuffle_up(simd_prefix_inclusive_sum(value), 1);
  return msl::lane() == 0 ? T(0) : before;
}
MSL_INLINE bool simd_any(bool value) { return __nvvm_vote_any_sync(0xffffffffu, value); }
MSL_INLINE bool simd_all(bool value) { return __nvvm_vote_all_sync(0xffffffffu, value); }
MSL_INLINE bool simd_is_first() { return msl::lane() == 0; }
struct simd_vote {
  typedef ulong vote_t;
  vote_t votes;
  MSL_INLINE explicit operator vote_t() const { return votes; }
  MSL_INLINE bool all() const { return votes == 0xffffffffu; }
  MSL_INLINE bool any() const { return votes != 0; }
};
MSL_INLINE simd_vote simd_ballot(bool value) { return {(uint)__nvvm_vote_ballot_sync(0xffffffffu, value)}; }
}  // namespace metal
