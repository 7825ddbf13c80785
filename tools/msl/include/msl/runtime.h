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

// What a simdgroup operation takes in and gives back: one value after another, by lane, of at most 64 bytes.
struct msl_slots {
  alignas(64) char bytes[32 * 64];
};
typedef void (*msl_simd_function)(msl_slots* slots, unsigned active);

// What the operations on simdgroup matrices that a thread has met add up to, and where the last one was: the same for all lanes
// of a simdgroup, or they went different ways.
struct msl_trail {
  unsigned sum;
  const char* file;
  int line;
};

struct msl_call {
  void* const* buffers;
  const msl_group* group;
  const msl_thread* self;
  msl_trail trail;
};

// The runtime's side. Every call names the place in the shader, for messages about divergence.
struct msl_runtime {
  msl_call* call;  // of the thread that runs now
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
