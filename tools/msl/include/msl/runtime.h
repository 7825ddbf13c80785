// What a shader library compiled for the CPU and the runtime that executes it exchange. Plain types: both sides include it.
#pragma once

struct msl_uint3 {
  unsigned x, y, z;
};

// The same for all threads of a threadgroup. `size` in threads, `groups` in threadgroups.
struct msl_group {
  msl_uint3 position, size, groups;
  unsigned simdgroups;
};

struct msl_thread {
  msl_uint3 position;  // in the threadgroup
  unsigned index, lane, simdgroup;
};

// One slot a lane: what a simdgroup operation takes in and gives back.
struct msl_slots {
  alignas(64) char lane[32][64];
};
typedef void (*msl_simd_function)(msl_slots* slots, unsigned active);

struct msl_call {
  void* const* buffers;
  const msl_group* group;
  const msl_thread* self;
};

// The runtime's side. Every call names the place in the shader, for messages about divergence.
struct msl_runtime {
  const msl_call* call;  // of the thread that runs now
  void* (*simd)(const void* in, unsigned size, msl_simd_function function, const char* file, int line);
  void (*simdgroup_barrier)(const char* file, int line);
  void (*threadgroup_barrier)(const char* file, int line);
  void (*failure)(const char* what, const char* file, int line);
};

// The library's side: one entry a kernel. Bit i of a mask speaks of argument i.
struct msl_kernel {
  const char* name;
  void (*entry)(const msl_call* call);
  unsigned long buffers, written;   // [[buffer(i)]] arguments; those that a kernel may write
  char *static_begin, *static_end;  // threadgroup memory declared in the kernel
};
struct msl_library {
  const msl_kernel* kernels;
  unsigned num_kernels;
  const msl_runtime** runtime;
};
