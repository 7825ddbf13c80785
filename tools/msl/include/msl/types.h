// The few types and traits of Metal's library that are neither scalars nor vectors.
#pragma once

namespace metal {
using ::as_type;
using ::vec;

template <class T, size_t N> struct array {
  T elements[N];
  constexpr T& operator[](size_t i) { return elements[i]; }
  constexpr const T& operator[](size_t i) const { return elements[i]; }
  constexpr size_t size() const { return N; }
};
#if __cplusplus >= 201703L
template <class T, class... U> array(T, U...) -> array<T, 1 + sizeof...(U)>;
#endif

template <class A, class B> struct is_same { static constexpr bool value = msl::is_same<A, B>::value; };
template <class A, class B> constexpr bool is_same_v = msl::is_same<A, B>::value;
template <bool B, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { typedef T type; };
template <bool B, class T = void> using enable_if_t = typename enable_if<B, T>::type;
template <bool B, class X, class Y> struct conditional { typedef X type; };
template <class X, class Y> struct conditional<false, X, Y> { typedef Y type; };
template <bool B, class X, class Y> using conditional_t = typename conditional<B, X, Y>::type;

template <class T> struct numeric_limits;
#define MSL_LIMITS(T, lowest_value, max_value) \
  template <> struct numeric_limits<T> { \
    static constexpr T lowest() { return lowest_value; } \
    static constexpr T max() { return max_value; } \
  };
MSL_LIMITS(float, -FLT_MAX, FLT_MAX) MSL_LIMITS(half, -HALF_MAX, HALF_MAX)
MSL_LIMITS(int, INT_MIN, INT_MAX) MSL_LIMITS(uint, 0u, UINT_MAX)
#undef MSL_LIMITS
}  // namespace metal
