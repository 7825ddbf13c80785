// Metal 4's tensors over memory, rank 2: extents and strides with the innermost dimension first.
#pragma once

namespace metal {
constexpr size_t dynamic_extent = ~size_t(0);
template <class I, int Rank> struct dextents {
  I extent[Rank];
  template <class... A> constexpr dextents(A... a) : extent{(I)a...} { static_assert(sizeof...(A) == Rank, "extents"); }
};
struct tensor_inline {};
template <class P, class E, class Tag = tensor_inline> struct tensor {
  P* data;
  E extents;
  int strides[2];
  MSL_INLINE tensor(P* p, E e) : data(p), extents(e), strides{1, (int)e.extent[0]} {}
  MSL_INLINE tensor(P* p, E e, array<int, 2> s) : data(p), extents(e), strides{s[0], s[1]} {}
  MSL_INLINE int get_extent(int i) const { return extents.extent[i]; }
  MSL_INLINE tensor slice(int x, int y) const {
    tensor part = *this;
    part.data = at(x, y);
    part.extents.extent[0] -= x;
    part.extents.extent[1] -= y;
    return part;
  }
  MSL_INLINE bool contains(int x, int y) const { return x < extents.extent[0] && y < extents.extent[1]; }
  MSL_INLINE P* at(int x, int y) const { return data + (long)x * strides[0] + (long)y * strides[1]; }
};
template <class P, class E> tensor(P*, E) -> tensor<P, E>;
template <class P, class E> tensor(P*, E, array<int, 2>) -> tensor<P, E>;
template <int N> struct execution_simdgroups { static constexpr int count = N; };
typedef execution_simdgroups<1> execution_simdgroup;
}  // namespace metal
