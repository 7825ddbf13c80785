// On the CPU a lane that meets a simdgroup operation puts its operand into a slot and parks; when all have come, one of them
// computes for all. Sums use the order of a butterfly, as the shuffles of a warp give it: both targets add alike.
#pragma once

namespace msl {
MSL_INLINE uint lane() { return msl_host->call->self->lane; }
template <class R, class T> MSL_INLINE R together(T value, msl_simd_function function, const char* file, int line) {
  static_assert(sizeof(T) <= 64 && sizeof(R) <= 64, "an operand fits into a slot");
  return *(R*)msl_host->simd(&value, sizeof value, function, file, line);
}

template <class T> MSL_INLINE T* values(msl_slots* slots) { return (T*)slots->bytes; }
template <class T, class F> MSL_INLINE void butterfly(msl_slots* slots, uint active, F function, T identity) {
  T value[32], next[32];
  for (int i = 0; i < 32; ++i) value[i] = (active >> i) & 1 ? values<T>(slots)[i] : identity;
  for (int offset = 16; offset; offset >>= 1) {
    for (int i = 0; i < 32; ++i) next[i] = function(value[i], value[i ^ offset]);
    for (int i = 0; i < 32; ++i) value[i] = next[i];
  }
  for (int i = 0; i < 32; ++i) values<T>(slots)[i] = value[i];
}
template <class T> T any_active(msl_slots* slots, uint active) { return values<T>(slots)[__builtin_ctz(active)]; }
template <class T> void sum(msl_slots* slots, uint active) {
  butterfly<T>(slots, active, [](T a, T b) { return T(a + b); }, T(0));
}
template <class T> void product(msl_slots* slots, uint active) {
  butterfly<T>(slots, active, [](T a, T b) { return T(a * b); }, T(1));
}
template <class T> void maximum(msl_slots* slots, uint active) {
  butterfly<T>(slots, active, [](T a, T b) { return a < b ? b : a; }, any_active<T>(slots, active));
}
template <class T> void minimum(msl_slots* slots, uint active) {
  butterfly<T>(slots, active, [](T a, T b) { return b < a ? b : a; }, any_active<T>(slots, active));
}
template <class T> void bitwise_or(msl_slots* slots, uint active) {
  butterfly<T>(slots, active, [](T a, T b) { return T(a | b); }, T(0));
}
template <class T> void bitwise_and(msl_slots* slots, uint active) {
  butterfly<T>(slots, active, [](T a, T b) { return T(a & b); }, any_active<T>(slots, active));
}
template <class T, bool Inclusive> void prefix_sum(msl_slots* slots, uint active) {
  T running = T(0);
  for (int i = 0; i < 32; ++i) {
    if (!((active >> i) & 1)) continue;
    T& value = values<T>(slots)[i];
    const T after = T(running + value);
    value = Inclusive ? after : running;
    running = after;
  }
}
template <class T> struct fetch {
  T value;
  uint from;  // a lane, or kOwn
};
constexpr uint kOwn = 32;
template <class T> void gather(msl_slots* slots, uint active) {
  T value[32];
  fetch<T>* fetches = values<fetch<T>>(slots);
  for (int i = 0; i < 32; ++i) value[i] = fetches[i].value;
  for (int i = 0; i < 32; ++i)
    if (((active >> i) & 1) && fetches[i].from != kOwn) fetches[i].value = value[fetches[i].from];
}
inline void ballot(msl_slots* slots, uint active) {
  uint votes = 0;
  for (int i = 0; i < 32; ++i) votes |= (((active >> i) & 1) && values<uint>(slots)[i]) ? 1u << i : 0u;
  for (int i = 0; i < 32; ++i) values<uint>(slots)[i] = votes;
}
template <class T> MSL_INLINE T take(T value, uint from, const char* file, int line) {
  return together<fetch<T>>(fetch<T>{value, from}, gather<T>, file, line).value;
}
}  // namespace msl

namespace metal {
MSL_INLINE void threadgroup_barrier(mem_flags, MSL_PLACE) { msl_host->threadgroup_barrier(file, line); }
MSL_INLINE void simdgroup_barrier(mem_flags, MSL_PLACE) { msl_host->simdgroup_barrier(file, line); }
#define MSL_REDUCTION(name, function) \
  template <class T> MSL_INLINE T name(T value, MSL_PLACE) { return msl::together<T>(value, function, file, line); }
MSL_REDUCTION(simd_sum, msl::sum<T>) MSL_REDUCTION(simd_product, msl::product<T>)
MSL_REDUCTION(simd_max, msl::maximum<T>) MSL_REDUCTION(simd_min, msl::minimum<T>)
MSL_REDUCTION(simd_or, msl::bitwise_or<T>) MSL_REDUCTION(simd_and, msl::bitwise_and<T>)
MSL_REDUCTION(simd_prefix_exclusive_sum, (msl::prefix_sum<T, false>))
MSL_REDUCTION(simd_prefix_inclusive_sum, (msl::prefix_sum<T, true>))
#undef MSL_REDUCTION
template <class T> MSL_INLINE T simd_shuffle(T value, ushort from, MSL_PLACE) {
  return msl::take(value, from & 31u, file, line);
}
template <class T> MSL_INLINE T simd_broadcast(T value, ushort from, MSL_PLACE) {
  return msl::take(value, from & 31u, file, line);
}
template <class T> MSL_INLINE T simd_broadcast_first(T value, MSL_PLACE) { return msl::take(value, 0, file, line); }
template <class T> MSL_INLINE T simd_shuffle_xor(T value, ushort mask, MSL_PLACE) {
  return msl::take(value, (msl::lane() ^ mask) & 31u, file, line);
}
template <class T> MSL_INLINE T simd_shuffle_down(T value, ushort delta, MSL_PLACE) {
  const uint from = msl::lane() + delta;
  return msl::take(value, from > 31 ? msl::kOwn : from, file, line);
}
template <class T> MSL_INLINE T simd_shuffle_up(T value, ushort delta, MSL_PLACE) {
  const uint lane = msl::lane();
  return msl::take(value, lane < delta ? msl::kOwn : lane - delta, file, line);
}
template <class T> MSL_INLINE T simd_shuffle_rotate_down(T value, ushort delta, MSL_PLACE) {
  return msl::take(value, (msl::lane() + delta) & 31u, file, line);
}
MSL_INLINE bool simd_any(bool value, MSL_PLACE) { return msl::together<uint>(uint(value), msl::ballot, file, line) != 0; }
MSL_INLINE bool simd_all(bool value, MSL_PLACE) { return msl::together<uint>(uint(!value), msl::ballot, file, line) == 0; }
MSL_INLINE bool simd_is_first() { return msl::lane() == 0; }
struct simd_vote {
  typedef ulong vote_t;
  vote_t votes;
  explicit operator vote_t() const { return votes; }
  bool all() const { return votes == 0xffffffffu; }
  bool any() const { return votes != 0; }
};
MSL_INLINE simd_vote simd_ballot(bool value, MSL_PLACE) { return {msl::together<uint>(uint(value), msl::ballot, file, line)}; }
}  // namespace metal
