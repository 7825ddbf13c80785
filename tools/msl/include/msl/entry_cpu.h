// What the generated entries of a CPU library use.
#pragma once

template <class T> MSL_INLINE T msl_position(msl_uint3 p) {
  typedef typename msl::vector_traits<T>::element E;
  if constexpr (msl::vector_traits<T>::size == 1) {
    return (T)p.x;
  } else {
    T out;
    out[0] = (E)p.x;
    out[1] = (E)p.y;
    if constexpr (msl::vector_traits<T>::size == 3) out[2] = (E)p.z;
    return out;
  }
}
MSL_INLINE msl_uint3 msl_in_grid(const msl_group* g, const msl_thread* t) {
  return {g->position.x * g->size.x + t->position.x, g->position.y * g->size.y + t->position.y,
          g->position.z * g->size.z + t->position.z};
}

MSL_INLINE msl_uint3 msl_grid(const msl_group* g) {
  return {g->groups.x * g->size.x, g->groups.y * g->size.y, g->groups.z * g->size.z};
}

// What the compiler calls where its checks fail (-fsanitize=array-bounds,shift-exponent).
struct msl_place {
  const char* file;
  unsigned line, column;
};
extern "C" void __ubsan_handle_out_of_bounds_abort(msl_place* place, unsigned long) {
  msl_host->failure("index outside an array", place->file, (int)place->line);
  __builtin_trap();
}
extern "C" void __ubsan_handle_shift_out_of_bounds_abort(msl_place* place, unsigned long, unsigned long) {
  msl_host->failure("shift by more bits than there are", place->file, (int)place->line);
  __builtin_trap();
}

// The compiler calls this where it rounds to bfloat itself; not every libgcc has it.
extern "C" bfloat __truncsfbf2(float value) { return msl::to_bfloat(value); }
