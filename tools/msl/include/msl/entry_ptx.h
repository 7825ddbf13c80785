// What the generated entries of a PTX module use.
#pragma once

template <class T> MSL_INLINE T msl_position(uint x, uint y, uint z) {
  typedef typename msl::vector_traits<T>::element E;
  if constexpr (msl::vector_traits<T>::size == 1) {
    return (T)x;
  } else {
    T out;
    out[0] = (E)x;
    out[1] = (E)y;
    if constexpr (msl::vector_traits<T>::size == 3) out[2] = (E)z;
    return out;
  }
}
#define MSL_SREG(name) __nvvm_read_ptx_sreg_##name##_x(), __nvvm_read_ptx_sreg_##name##_y(), __nvvm_read_ptx_sreg_##name##_z()
#define MSL_IN_GRID(d) __nvvm_read_ptx_sreg_ctaid_##d() * __nvvm_read_ptx_sreg_ntid_##d() + __nvvm_read_ptx_sreg_tid_##d()
#define MSL_GRID(d) __nvvm_read_ptx_sreg_nctaid_##d() * __nvvm_read_ptx_sreg_ntid_##d()
MSL_INLINE uint msl_index() {
  return __nvvm_read_ptx_sreg_tid_x() +
         __nvvm_read_ptx_sreg_ntid_x() *
             (__nvvm_read_ptx_sreg_tid_y() + __nvvm_read_ptx_sreg_ntid_y() * __nvvm_read_ptx_sreg_tid_z());
}
MSL_INLINE uint msl_threads() {
  return __nvvm_read_ptx_sreg_ntid_x() * __nvvm_read_ptx_sreg_ntid_y() * __nvvm_read_ptx_sreg_ntid_z();
}
