// Address spaces, scalar types and what the translator writes in place of MSL's own constructs.
#pragma once

#ifdef __NVPTX__
#define MSL_PTX 1
#else
#define MSL_CPU 1
#endif

// On the CPU the spaces cost nothing, but the compiler still keeps them apart.
#define device __attribute__((address_space(1)))
#define threadgroup __attribute__((address_space(3)))
#if MSL_CPU
#define constant const __attribute__((address_space(2)))
#else
#define constant const  // kernel arguments and literals lie in spaces of their own there: generic pointers reach both
#endif
#define thread
#define MSL_INLINE inline __attribute__((always_inline))
#define METAL_FUNC MSL_INLINE
#ifndef MSL_KERNEL
#define MSL_KERNEL static MSL_INLINE
#endif

// A variable in threadgroup memory: one section a kernel, so that the runtime knows where it lies and how long it is; used,
// since the runtime and other threads write what this code may never write.
#ifndef MSL_THREADGROUP_VARIABLE
#if MSL_CPU
#define MSL_THREADGROUP_VARIABLE(kernel) static __attribute__((section("msl_" #kernel), aligned(16), used)) threadgroup
#else
#define MSL_THREADGROUP_VARIABLE(kernel) static __attribute__((loader_uninitialized, aligned(16))) threadgroup
#endif
#endif

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef signed char int8_t;
typedef uchar uint8_t;
typedef short int16_t;
typedef ushort uint16_t;
typedef int int32_t;
typedef uint uint32_t;
typedef long int64_t;
typedef ulong uint64_t;
typedef ulong size_t;
typedef long ptrdiff_t;
typedef _Float16 half;
typedef __bf16 bfloat;

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define MAXFLOAT 3.402823466e+38f
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
#define HALF_MAX 65504.0h
#define INT_MAX 2147483647
#define INT_MIN (-INT_MAX - 1)
#define UINT_MAX 4294967295u
#define M_PI_F 3.14159265358979323846f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LN2_F 0.693147180559945309417f

#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wuser-defined-literals"
constexpr half operator""h(long double value) { return (half)value; }
constexpr half operator""h(unsigned long long value) { return (half)value; }
#pragma clang diagnostic pop

#if MSL_CPU
#include "msl/runtime.h"
static const msl_runtime* msl_host;
// The place of the caller: a trailing parameter of every function that synchronises.
#define MSL_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()
#endif
