#include "device/cpu/isas.h"

#include <utility>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace lily::cpu {
namespace {

#if defined(__x86_64__)
// What -march=x86-64-v3, and -v4 with VNNI, need. Clang knows these names only since version 18, and before that not all features
// behind them; every processor with those that it knows has the others too.
#if defined(__clang__) && (defined(__apple_build_version__) || __clang_major__ < 18)
bool supports_v3() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2");
}
bool supports_v4() {
  return supports_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}
#else
bool supports_v3() { return __builtin_cpu_supports("x86-64-v3"); }
bool supports_v4() { return __builtin_cpu_supports("x86-64-v4") && __builtin_cpu_supports("avx512vnni"); }
#endif

// Linux gives a process the tile registers when it asks for them, and says so if it has them.
bool supports_amx() {
#if defined(__linux__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  constexpr unsigned kTileAndInt8 = 1u << 24 | 1u << 25;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return supports_v4() && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & kTileAndInt8) == kTileAndInt8 &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

// AMD's cores since Zen 4 add in four vector units and multiply in two, Intel's do both in the same two.
bool adds_beside_products() { return __builtin_cpu_is("amd"); }
#endif

#if defined(__aarch64__)
// Dot products exist from armv8.2 on, so what else -march=armv8.2-a allows comes with them.
#if defined(__linux__)
bool supports_dotprod() { return getauxval(AT_HWCAP) >> 20 & 1; }                        // HWCAP_ASIMDDP
bool supports_i8mm() { return supports_dotprod() && (getauxval(AT_HWCAP2) >> 13 & 1); }  // HWCAP2_I8MM
#elif defined(__APPLE__)
bool has_feature(const char* name) {
  int value = 0;
  std::size_t size = sizeof value;
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
}
bool supports_dotprod() { return has_feature("hw.optional.arm.FEAT_DotProd"); }
bool supports_i8mm() { return supports_dotprod() && has_feature("hw.optional.arm.FEAT_I8MM"); }
#else
bool supports_dotprod() { return false; }
bool supports_i8mm() { return false; }
#endif
#endif

bool is_everywhere() { return true; }

}  // namespace

std::vector<Isa> isas() {
#if defined(__x86_64__)
  std::vector<Isa> isas = {{"amx", supports_amx},
                           {"avx512_pairs", supports_v4},
                           {"avx512", supports_v4},
                           {"avx2", supports_v3},
                           {"baseline", is_everywhere}};
  if (!adds_beside_products()) std::swap(isas[1], isas[2]);
  return isas;
#elif defined(__aarch64__)
  return {{"i8mm", supports_i8mm}, {"dotprod", supports_dotprod}, {"baseline", is_everywhere}};
#else
  return {{"baseline", is_everywhere}};
#endif
}

}  // namespace lily::cpu
