// What tends to trip a C++ front end. language: 3.2
#include <metal_stdlib>
using namespace metal;

#define WIDTH 64
constant uint LIMIT = 16;
constant float TABLE[4] = {1.0f, 2.0f, 4.0f, 8.0f};
constant constexpr half STEP = 0.5h;

struct Settings {
  uint count;
  float gain;
  float2 pair;
};

enum class Mode : uint { plain, twice };

template <typename T, uint N>
static inline void accumulate(thread T (&sums)[N], T v) {
  for (uint i = 0; i < N; ++i) sums[i] += v * T(i);
}
static inline float first(device const float* p) { return p[0]; }
static inline float first(threadgroup const float* p) { return p[0] + 0.25f; }
static inline void exchange(thread float& a, thread float& b) {
  const float t = a;
  a = b;
  b = t;
}
template <Mode M, typename T>
static T apply(T v) {
  return M == Mode::twice ? v + v : v;
}

#define LANGUAGE_KERNEL(NAME, MODE) \
  [[kernel]] void NAME(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], \
                       constant Settings& settings [[buffer(2)]], constant float* table [[buffer(3)]], \
                       ushort2 place [[thread_position_in_threadgroup]], uint3 group [[threadgroup_position_in_grid]], \
                       uint3 grid [[threads_per_grid]], uint3 position [[thread_position_in_grid]]) { \
    threadgroup float a[WIDTH], b[WIDTH + 1]; \
    threadgroup float4 quads[WIDTH / 4]; \
    const uint t = place.x; \
    const uint i = group.x * WIDTH + t; \
    a[t] = i < settings.count ? x[i] : 0.0f; \
    b[t] = a[t] * TABLE[t % 4] + table[t % 4]; \
    threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device); \
    if (t < WIDTH / 4) quads[t] = float4(b[4 * t], float2(b[4 * t + 1], b[4 * t + 2]), b[4 * t + 3]); \
    threadgroup_barrier(mem_flags::mem_threadgroup); \
    float4 q = quads[t / 4]; \
    q.xy = q.yx; \
    q.w *= settings.gain + settings.pair.y; \
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f}; \
    accumulate(sums, q.x); \
    float l = first(x), r = first((threadgroup const float*)a); \
    exchange(l, r); \
    auto scaled = [&](float v) { return v * float(STEP) + l - r; }; \
    const uint2 bits = as_type<uint2>(q.zw); \
    const vec<float, 2> z = vec<float, 2>(as_type<float>(bits.x), as_type<float>(bits.y)); \
    float s = scaled(sums[3]) + z.x + z.y; \
    s = select(s, clamp(s, -50.0f, 50.0f), t > LIMIT); \
    if (position.x < settings.count) y[i] = apply<MODE>(s) + float(grid.x) * 0.001f; \
  }
LANGUAGE_KERNEL(language_plain, Mode::plain)
LANGUAGE_KERNEL(language_twice, Mode::twice)
