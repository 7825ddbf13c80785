// Vectors are clang's extended vectors; constructors are functions, since clang lacks the functional cast.
#pragma once

template <class T, int N> using vec = T __attribute__((ext_vector_type(N)));
#define MSL_VECTORS(T) \
  typedef vec<T, 2> T##2; \
  typedef vec<T, 3> T##3; \
  typedef vec<T, 4> T##4;
#define MSL_FOR_EACH_SCALAR(X) X(float) X(half) X(bfloat) X(int) X(uint) X(short) X(ushort) X(char) X(uchar) X(long) X(ulong)
MSL_FOR_EACH_SCALAR(MSL_VECTORS)
typedef vec<bool, 2> bool2;
typedef vec<bool, 3> bool3;
typedef vec<bool, 4> bool4;
#undef MSL_VECTORS

namespace msl {
template <class T> struct vector_traits {
  typedef T element;
  static constexpr int size = 1;
};
template <class T, int N> struct vector_traits<T __attribute__((ext_vector_type(N)))> {
  typedef T element;
  static constexpr int size = N;
};
template <class A, class B> struct is_same { static constexpr bool value = false; };
template <class A> struct is_same<A, A> { static constexpr bool value = true; };

MSL_INLINE float from_bfloat(bfloat value) {
  return __builtin_bit_cast(float, uint(__builtin_bit_cast(ushort, value)) << 16);
}
// Round to nearest, ties to even; the CPU has no instruction for it, and a NaN stays one.
MSL_INLINE bfloat to_bfloat(float value) {
#if MSL_CPU
  const uint bits = __builtin_bit_cast(uint, value);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return __builtin_bit_cast(bfloat, ushort(nan ? (bits >> 16) | 0x40 : (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16));
#else
  return (bfloat)value;
#endif
}
template <class T, class A> MSL_INLINE T convert(A value) {
  if constexpr (is_same<T, A>::value) return value;
  else if constexpr (is_same<T, bfloat>::value) return to_bfloat((float)value);
  else if constexpr (is_same<A, bfloat>::value) return (T)from_bfloat(value);
  else return (T)value;
}
template <class T, int N, class A> MSL_INLINE void append(vec<T, N>& out, int& at, A value) {
  if constexpr (vector_traits<A>::size == 1) {
    out[at++] = convert<T>(value);
  } else {
    _Pragma("clang loop unroll(full)") for (int i = 0; i < vector_traits<A>::size; ++i)
      out[at++] = convert<T>((typename vector_traits<A>::element)value[i]);
  }
}
template <class T, int N, class... A> MSL_INLINE vec<T, N> make_vector(A... values) {
  vec<T, N> out;
  if constexpr (sizeof...(A) == 0) {
    out = (vec<T, N>)(T)0;
  } else if constexpr (sizeof...(A) == 1 && (vector_traits<A>::size * ... * 1) == 1) {
    out = (vec<T, N>)(convert<T>(values), ...);
  } else {
    static_assert((vector_traits<A>::size + ...) == N, "vector constructor: wrong number of elements");
    int at = 0;
    (append<T, N>(out, at, values), ...);
  }
  return out;
}
}  // namespace msl

#define MSL_CONSTRUCTORS(T) \
  template <class... A> MSL_INLINE T##2 msl_make_##T##2(A... values) { return msl::make_vector<T, 2>(values...); } \
  template <class... A> MSL_INLINE T##3 msl_make_##T##3(A... values) { return msl::make_vector<T, 3>(values...); } \
  template <class... A> MSL_INLINE T##4 msl_make_##T##4(A... values) { return msl::make_vector<T, 4>(values...); }
MSL_FOR_EACH_SCALAR(MSL_CONSTRUCTORS)
MSL_CONSTRUCTORS(bool)
#undef MSL_CONSTRUCTORS
template <class T, int N, class... A> MSL_INLINE vec<T, N> msl_make_vec(A... values) {
  return msl::make_vector<T, N>(values...);
}
template <class A> MSL_INLINE bfloat msl_make_bfloat(A value) { return msl::convert<bfloat>(value); }
MSL_INLINE bfloat msl_make_bfloat() { return msl::to_bfloat(0.0f); }

template <class T, class A> MSL_INLINE T as_type(A value) {
  static_assert(sizeof(T) == sizeof(A), "as_type: the sizes differ");
  return __builtin_bit_cast(T, value);
}
