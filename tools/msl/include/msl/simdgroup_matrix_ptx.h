// 8x8 matrices of a simdgroup on a GPU: two neighbours of a row in each lane.
#pragma once

namespace metal {
template <class T, int Columns, int Rows> struct simdgroup_matrix {
  static_assert(Columns == 8 && Rows == 8, "only 8x8 exists");
  vec<T, 2> elements;
  MSL_INLINE simdgroup_matrix() {}
  explicit MSL_INLINE simdgroup_matrix(T diagonal);
};
}  // namespace metal

namespace msl {
// A lane holds (row, column) and (row, column + 1).
MSL_INLINE void matrix_place(uint lane, thread uint& row, thread uint& column) {
  row = lane >> 2;
  column = (lane & 3) * 2;
}
}  // namespace msl

namespace metal {
template <class T, int C, int R> MSL_INLINE simdgroup_matrix<T, C, R>::simdgroup_matrix(T diagonal) {
  uint row, column;
  msl::matrix_place(msl::lane(), row, column);
  const T zero = msl::convert<T>(0.0f);
  elements[0] = row == column ? diagonal : zero;
  elements[1] = row == column + 1 ? diagonal : zero;
}
template <class T, int C, int R> MSL_INLINE simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, C, R> out;
  out.elements = (vec<T, 2>)(value);
  return out;
}

#define MSL_MATRIX_MEMORY(S) \
  template <class T> \
  MSL_INLINE void simdgroup_load(thread simdgroup_matrix<T, 8, 8>& d, const S T* from, ulong stride = 8, \
                                 ulong2 origin = (ulong2)(0ul), bool transpose = false) { \
    uint row, column; \
    msl::matrix_place(msl::lane(), row, column); \
    for (uint j = 0; j < 2; ++j) \
      d.elements[j] = transpose ? from[(origin.y + column + j) * stride + origin.x + row] \
                                : from[(origin.y + row) * stride + origin.x + column + j]; \
  } \
  template <class T> \
  MSL_INLINE void simdgroup_store(simdgroup_matrix<T, 8, 8> s, S T* to, ulong stride = 8, ulong2 origin = (ulong2)(0ul), \
                                  bool transpose = false) { \
    uint row, column; \
    msl::matrix_place(msl::lane(), row, column); \
    for (uint j = 0; j < 2; ++j) { \
      if (transpose) to[(origin.y + column + j) * stride + origin.x + row] = s.elements[j]; \
      else to[(origin.y + row) * stride + origin.x + column + j] = s.elements[j]; \
    } \
  }
MSL_MATRIX_MEMORY(device) MSL_MATRIX_MEMORY(threadgroup)
#undef MSL_MATRIX_MEMORY

template <class D, class A, class B, class C>
MSL_INLINE void simdgroup_multiply_accumulate(thread simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a,
                                              simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<C, 8, 8> c) {
  if constexpr (msl::is_same<A, bfloat>::value && msl::is_same<B, bfloat>::value && msl::is_same<D, float>::value) {
    // m16n8k8 with an empty lower half. The place of a row operand is ours, the column operand is turned.
    const uint ra = __builtin_bit_cast(uint, a.elements), rb = __builtin_bit_cast(uint, b.elements), zero = 0;
    uint turned;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(rb));
    float c0 = c.elements[0], c1 = c.elements[1], c2 = 0.0f, c3 = 0.0f;
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
                 : "r"(ra), "r"(zero), "r"(turned));
    d.elements[0] = c0;
    d.elements[1] = c1;
  } else {
    uint row, column;
    msl::matrix_place(msl::lane(), row, column);
    float s0 = msl::convert<float>((C)c.elements[0]), s1 = msl::convert<float>((C)c.elements[1]);
    _Pragma("clang loop unroll(full)") for (uint k = 0; k < 8; ++k) {
      const vec<A, 2> av = simd_shuffle(a.elements, row * 4 + k / 2);
      const vec<B, 2> bv = simd_shuffle(b.elements, k * 4 + column / 2);
      const float left = msl::convert<float>((A)av[k % 2]);
      s0 = __builtin_fmaf(left, msl::convert<float>((B)bv[0]), s0);
      s1 = __builtin_fmaf(left, msl::convert<float>((B)bv[1]), s1);
    }
    d.elements[0] = msl::convert<D>(s0);
    d.elements[1] = msl::convert<D>(s1);
  }
}
template <class D, class A, class B>
MSL_INLINE void simdgroup_multiply(thread simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a,
                                   simdgroup_matrix<B, 8, 8> b) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<D, 8, 8>(msl::convert<D>(0.0f)));
}
}  // namespace metal
