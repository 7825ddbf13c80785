// 8x8 matrices of a simdgroup on the CPU: the first lane holds all elements and does all the work, so that no lane has to wait.
// All lanes leave a trail, and the runtime compares: an operation in divergent flow shows where it next looks.
#pragma once

namespace msl {
typedef vec<float, 8> matrix_row;

// Notes an operation; whether this lane does it.
MSL_INLINE bool holds_matrices(const char* file, int line) {
  msl_call* call = msl_host->call;
  call->trail = {call->trail.sum * 31 + (unsigned)line, file, line};
  return call->self->lane == 0;
}
MSL_INLINE bool holds_matrices() { return lane() == 0; }

// Rows become columns: what rows have to exchange that are n = 4, 2 and 1 apart.
#define MSL_EXCHANGE(m, i, n, a, b, c, d, e, f, g, h) \
  { \
    const matrix_row low = __builtin_shufflevector(m[i], m[i + n], a, b, c, d, e, f, g, h); \
    m[i + n] = __builtin_shufflevector(m[i], m[i + n], a + n, b + n, c + n, d + n, e + n, f + n, g + n, h + n); \
    m[i] = low; \
  }
MSL_INLINE void transpose(matrix_row (&m)[8]) {
  MSL_EXCHANGE(m, 0, 4, 0, 1, 2, 3, 8, 9, 10, 11) MSL_EXCHANGE(m, 1, 4, 0, 1, 2, 3, 8, 9, 10, 11)
  MSL_EXCHANGE(m, 2, 4, 0, 1, 2, 3, 8, 9, 10, 11) MSL_EXCHANGE(m, 3, 4, 0, 1, 2, 3, 8, 9, 10, 11)
  MSL_EXCHANGE(m, 0, 2, 0, 1, 8, 9, 4, 5, 12, 13) MSL_EXCHANGE(m, 1, 2, 0, 1, 8, 9, 4, 5, 12, 13)
  MSL_EXCHANGE(m, 4, 2, 0, 1, 8, 9, 4, 5, 12, 13) MSL_EXCHANGE(m, 5, 2, 0, 1, 8, 9, 4, 5, 12, 13)
  MSL_EXCHANGE(m, 0, 1, 0, 8, 2, 10, 4, 12, 6, 14) MSL_EXCHANGE(m, 2, 1, 0, 8, 2, 10, 4, 12, 6, 14)
  MSL_EXCHANGE(m, 4, 1, 0, 8, 2, 10, 4, 12, 6, 14) MSL_EXCHANGE(m, 6, 1, 0, 8, 2, 10, 4, 12, 6, 14)
}
#undef MSL_EXCHANGE
}  // namespace msl

namespace metal {
// Elements as floats, which all types of elements are without loss.
template <class T, int Columns, int Rows> struct simdgroup_matrix {
  static_assert(Columns == 8 && Rows == 8, "only 8x8 exists");
  msl::matrix_row rows[8];
  MSL_INLINE simdgroup_matrix() {}
  explicit MSL_INLINE simdgroup_matrix(T diagonal, MSL_PLACE) {
    if (!msl::holds_matrices(file, line)) return;
    for (int i = 0; i < 8; ++i) {
      rows[i] = (msl::matrix_row)(0.0f);
      rows[i][i] = msl::convert<float>(diagonal);
    }
  }
  MSL_INLINE simdgroup_matrix(const simdgroup_matrix& other) { *this = other; }
  MSL_INLINE simdgroup_matrix& operator=(const simdgroup_matrix& other) {
    if (msl::holds_matrices())
      for (int i = 0; i < 8; ++i) rows[i] = other.rows[i];
    return *this;
  }
};
template <class T, int C, int R> MSL_INLINE simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T value, MSL_PLACE) {
  simdgroup_matrix<T, C, R> out;
  if (msl::holds_matrices(file, line))
    for (int i = 0; i < 8; ++i) out.rows[i] = (msl::matrix_row)(msl::convert<float>(value));
  return out;
}

#define MSL_MATRIX_MEMORY(S) \
  template <class T> \
  MSL_INLINE void simdgroup_load(simdgroup_matrix<T, 8, 8>& d, const S T* from, ulong stride = 8, \
                                 ulong2 origin = (ulong2)(0ul), bool transpose = false, MSL_PLACE) { \
    if (!msl::holds_matrices(file, line)) return; \
    from += origin.y * stride + origin.x; \
    for (uint i = 0; i < 8; ++i) \
      for (uint j = 0; j < 8; ++j) d.rows[i][j] = msl::convert<float>(T(from[i * stride + j])); \
    if (transpose) msl::transpose(d.rows); \
  } \
  template <class T> \
  MSL_INLINE void simdgroup_store(simdgroup_matrix<T, 8, 8> s, S T* to, ulong stride = 8, \
                                  ulong2 origin = (ulong2)(0ul), bool transpose = false, MSL_PLACE) { \
    if (!msl::holds_matrices(file, line)) return; \
    to += origin.y * stride + origin.x; \
    if (transpose) msl::transpose(s.rows); \
    for (uint i = 0; i < 8; ++i) \
      for (uint j = 0; j < 8; ++j) to[i * stride + j] = msl::convert<T>(s.rows[i][j]); \
  }
MSL_MATRIX_MEMORY(device) MSL_MATRIX_MEMORY(threadgroup)
#undef MSL_MATRIX_MEMORY

template <class D, class A, class B, class C>
MSL_INLINE void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                              const simdgroup_matrix<B, 8, 8>& b, const simdgroup_matrix<C, 8, 8>& c, MSL_PLACE) {
  if (!msl::holds_matrices(file, line)) return;
  msl::matrix_row sums[8];  // d may be one of the operands
  for (int i = 0; i < 8; ++i) {
    sums[i] = c.rows[i];
    for (int k = 0; k < 8; ++k) sums[i] = __builtin_elementwise_fma((msl::matrix_row)(a.rows[i][k]), b.rows[k], sums[i]);
  }
  for (int i = 0; i < 8; ++i)
    for (int j = 0; j < 8; ++j) d.rows[i][j] = msl::convert<float>(msl::convert<D>(sums[i][j]));
}
template <class D, class A, class B>
MSL_INLINE void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                   const simdgroup_matrix<B, 8, 8>& b, MSL_PLACE) {
  const auto zero = make_filled_simdgroup_matrix<D, 8, 8>(msl::convert<D>(0.0f), file, line);
  simdgroup_multiply_accumulate(d, a, b, zero, file, line);
}
}  // namespace metal
