#include "device/cpu/multiply_rate.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "device/cpu/cpu_device.h"
#include "device/cpu/debug_switches.h"
#include "device/cpu/kernel_table.h"
#include "device/cpu/thread_pool.h"

namespace lily::cpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPasses = 3;
constexpr auto kPassTime = std::chrono::milliseconds(80);  // the start of a thread and the end of a run of rounds are little
constexpr std::uint32_t kRounds = 1 << 14;                 // 0.1 ms or so

// Threads that multiply until the time is up.
struct Pass {
  MultiplyLoop loop;
  Operands operands;
  Clock::time_point start = Clock::now();
  std::atomic<std::uint64_t> multiplications = 0;

  void run() {
    std::uint64_t count = 0;
    while (Clock::now() - start < kPassTime) count += loop(operands, kRounds);
    multiplications += count;
  }
};

}  // namespace

double multiply_rate(std::string_view dtype, const std::string& debug) {
  const Operands operands = precision_of(dtype).suffix == "_i16" ? Operands::kInt16 : Operands::kFloat32;
  const DebugSwitches switches(debug);
  const MultiplyLoop loop = kernels_for(switches.isa).multiply_loop();
  ThreadPool pool(switches.threads);
  double fastest = 0;
  for (int i = 0; i < kPasses; ++i) {
    Pass pass{loop, operands};
    pool.run([](void* context, std::uint32_t) { static_cast<Pass*>(context)->run(); }, &pass);
    const std::chrono::duration<double> seconds = Clock::now() - pass.start;
    fastest = std::max(fastest, 2.0 * static_cast<double>(pass.multiplications.load()) / seconds.count());
  }
  return fastest;
}

}  // namespace lily::cpu
