// The part of Metal Performance Primitives that a matrix product needs: C[m, n] (+)= A[m, k] B[k, n].
#pragma once

namespace mpp { namespace tensor_ops {
struct matmul2d_descriptor {
  enum class mode { multiply, multiply_accumulate };
  int m, n, k;
  bool transpose_left, transpose_right, relaxed;
  mode matmul_mode;
  constexpr matmul2d_descriptor(int m_, int n_, int k_ = -1, bool transpose_left_ = false, bool transpose_right_ = false,
                                bool relaxed_ = false, mode mode_ = mode::multiply)
      : m(m_), n(n_), k(k_), transpose_left(transpose_left_), transpose_right(transpose_right_), relaxed(relaxed_),
        matmul_mode(mode_) {}
};

// Of the thread among the `Threads` that run an operation together: the threadgroup's, or those of one of its simdgroups.
template <int Threads> MSL_INLINE int msl_thread_index() {
#if MSL_CPU
  return (int)msl_host->call->self->index % Threads;
#else
  return __nvvm_read_ptx_sreg_tid_x() % Threads;
#endif
}
struct msl_index2 {
  int at[2];
  MSL_INLINE int operator[](int i) const { return at[i]; }
};

// Which elements a thread holds is the implementation's choice: code may only ask.
template <class T, int M, int N, int Simdgroups> struct cooperative_tensor {
  static constexpr int kThreads = 32 * Simdgroups;
#if MSL_CPU
  static constexpr int kCapacity = (M * N + kThreads - 1) / kThreads;
  MSL_INLINE bool is_valid_element(int i) const { return i * kThreads + msl_thread_index<kThreads>() < M * N; }
  MSL_INLINE msl_index2 get_multidimensional_index(int i) const {
    const int element = i * kThreads + msl_thread_index<kThreads>();
    return {{element % N, element / N}};
  }
#else
  // Tiles of 16x8 accumulators, spread over the warps.
  static constexpr int kWarpRows = Simdgroups < M / 16 ? Simdgroups : M / 16, kWarpColumns = Simdgroups / kWarpRows;
  static constexpr int kTileRows = M / 16 / kWarpRows, kTileColumns = N / 8 / kWarpColumns;
  static constexpr int kCapacity = kTileRows * kTileColumns * 4;
  static_assert(kTileRows * kWarpRows * 16 == M && kTileColumns * kWarpColumns * 8 == N,
                "the tile does not split over the simdgroups");
  MSL_INLINE bool is_valid_element(int) const { return true; }
  MSL_INLINE msl_index2 get_multidimensional_index(int i) const {
    const int warp = msl_thread_index<kThreads>() / 32, lane = msl_thread_index<kThreads>() % 32, tile = i / 4;
    const int row = (warp / kWarpColumns * kTileRows + tile / kTileColumns) * 16 + lane / 4 + (i & 2) * 4;
    return {{(warp % kWarpColumns * kTileColumns + tile % kTileColumns) * 8 + (lane % 4) * 2 + (i & 1), row}};
  }
#endif
  T elements[kCapacity];
  MSL_INLINE ushort get_capacity() const { return kCapacity; }
  MSL_INLINE thread T& operator[](int i) { return elements[i]; }
  template <class Tensor> MSL_INLINE void store(Tensor to) const {
    _Pragma("clang loop unroll(full)") for (int i = 0; i < kCapacity; ++i) {
      if (!is_valid_element(i)) continue;
      const msl_index2 at = get_multidimensional_index(i);
      if (to.contains(at[0], at[1])) *to.at(at[0], at[1]) = elements[i];
    }
  }
};

// Element (column k, row i) of an operand as float; 0 outside.
template <bool Turned, class Tensor> MSL_INLINE float msl_element(Tensor t, int column, int row) {
  const int x = Turned ? row : column, y = Turned ? column : row;
  return t.contains(x, y) ? msl::convert<float>(*t.at(x, y)) : 0.0f;
}
#if !MSL_CPU
// Two elements as a fragment of mma.
MSL_INLINE half msl_plain(half);
template <class T> MSL_INLINE bfloat msl_plain(T);
template <class T> MSL_INLINE uint msl_pack(float low, float high) {
  return __builtin_bit_cast(ushort, (T)low) | (uint)__builtin_bit_cast(ushort, (T)high) << 16;
}
#define MSL_MMA(type) \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 " \
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
               : "+f"(q[0]), "+f"(q[1]), "+f"(q[2]), "+f"(q[3]) \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
template <class T> MSL_INLINE void msl_mma(thread float* q, thread const uint* a, thread const uint* b) {
  if constexpr (msl::is_same<T, half>::value) MSL_MMA("f16");
  else MSL_MMA("bf16");
}
#undef MSL_MMA
#endif

template <matmul2d_descriptor D, class Scope> struct matmul2d {
  static_assert(D.m % 16 == 0 || D.n % 16 == 0, "at least one of M and N is a multiple of 16");
  template <class A, class B, class T>
  MSL_INLINE cooperative_tensor<T, D.m, D.n, Scope::count> get_destination_cooperative_tensor() const { return {}; }

  template <class A, class B, class T>
  MSL_INLINE void run(A a, B b, thread cooperative_tensor<T, D.m, D.n, Scope::count>& c) const {
    const int depth = D.k > 0 ? D.k : a.get_extent(D.transpose_left ? 1 : 0);
    constexpr bool kAdds = D.matmul_mode == matmul2d_descriptor::mode::multiply_accumulate;
    typedef cooperative_tensor<T, D.m, D.n, Scope::count> Tile;
#if MSL_CPU
    for (int i = 0; i < Tile::kCapacity; ++i) {
      if (!c.is_valid_element(i)) continue;
      const msl_index2 at = c.get_multidimensional_index(i);
      float sum = kAdds ? msl::convert<float>(c.elements[i]) : 0.0f;
      for (int k = 0; k < depth; ++k)
        sum = __builtin_fmaf(msl_element<D.transpose_left>(a, k, at[1]), msl_element<D.transpose_right>(b, at[0], k), sum);
      c.elements[i] = msl::convert<T>(sum);
    }
#else
    const int thread_index = msl_thread_index<Tile::kThreads>();
    const int warp = thread_index / 32, lane = thread_index % 32, group = lane / 4, place = lane % 4;
    float acc[Tile::kCapacity];
    _Pragma("clang loop unroll(full)") for (int i = 0; i < Tile::kCapacity; ++i)
      acc[i] = kAdds ? msl::convert<float>(c.elements[i]) : 0.0f;
    typedef decltype(msl_plain(*a.at(0, 0))) Operand;  // half, or bfloat for the rest
    const auto left = [&](int k, int row) {
      return msl_pack<Operand>(msl_element<D.transpose_left>(a, k, row), msl_element<D.transpose_left>(a, k + 1, row));
    };
    const auto right = [&](int k, int column) {
      return msl_pack<Operand>(msl_element<D.transpose_right>(b, column, k), msl_element<D.transpose_right>(b, column, k + 1));
    };
    for (int k0 = 0; k0 < depth; k0 += 16) {
      const int k = k0 + 2 * place;
      uint fa[Tile::kTileRows][4], fb[Tile::kTileColumns][2];
      _Pragma("clang loop unroll(full)") for (int i = 0; i < Tile::kTileRows; ++i) {
        const int row = (warp / Tile::kWarpColumns * Tile::kTileRows + i) * 16 + group;
        fa[i][0] = left(k, row);
        fa[i][1] = left(k, row + 8);
        fa[i][2] = left(k + 8, row);
        fa[i][3] = left(k + 8, row + 8);
      }
      _Pragma("clang loop unroll(full)") for (int j = 0; j < Tile::kTileColumns; ++j) {
        const int column = (warp % Tile::kWarpColumns * Tile::kTileColumns + j) * 8 + group;
        fb[j][0] = right(k, column);
        fb[j][1] = right(k + 8, column);
      }
      _Pragma("clang loop unroll(full)") for (int i = 0; i < Tile::kTileRows; ++i)
        _Pragma("clang loop unroll(full)") for (int j = 0; j < Tile::kTileColumns; ++j) {
          msl_mma<Operand>(acc + (i * Tile::kTileColumns + j) * 4, fa[i], fb[j]);
        }
    }
    _Pragma("clang loop unroll(full)") for (int i = 0; i < Tile::kCapacity; ++i) c.elements[i] = msl::convert<T>(acc[i]);
#endif
  }
};
} }  // namespace mpp::tensor_ops
