#include "caught_faults.h"

#include <signal.h>
#include <ucontext.h>

#include <cstdlib>

namespace softmetal {
namespace {

constexpr int kNumbers[] = {SIGSEGV, SIGBUS, SIGFPE};

struct sigaction previous_actions[NSIG];
bool (*is_running)();
void (*continue_in)(const Fault& fault);
Fault fault;
thread_local bool is_catching = false;

[[noreturn]] void faulted() {
  continue_in(fault);
  std::abort();
}

Fault fault_of(int number, const siginfo_t& info) {
  if (number == SIGFPE) return {"integer division by zero or overflow", 0};
  // What the processor refuses without looking at the page tables: a vector that is not aligned to its size.
  if (info.si_code == SI_KERNEL) return {"access that is not aligned to its type", 0};
  return {"access outside a buffer", reinterpret_cast<std::uintptr_t>(info.si_addr)};
}

void on_signal(int number, siginfo_t* info, void* context) {
  if (is_catching && is_running()) {
    fault = fault_of(number, *info);
    auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    registers[REG_RSP] = ((registers[REG_RSP] - 256) & ~std::int64_t{15}) - 8;  // below the red zone, as a call leaves it
    registers[REG_RIP] = reinterpret_cast<std::int64_t>(&faulted);
    return;
  }
  const struct sigaction& previous = previous_actions[number];
  if (previous.sa_flags & SA_SIGINFO) return previous.sa_sigaction(number, info, context);
  if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) return previous.sa_handler(number);
  sigaction(number, &previous, nullptr);
}

}  // namespace

CaughtFaults::CaughtFaults(bool (*is_running_kernel)(), void (*faulted)(const Fault& fault)) {
  is_running = is_running_kernel;
  continue_in = faulted;
  is_catching = true;
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (const int number : kNumbers) sigaction(number, &action, &previous_actions[number]);
  // A fiber that overruns its stack has none left for the handler.
  static thread_local char alternate[64 << 10];
  stack_t stack{};
  stack.ss_sp = alternate;
  stack.ss_size = sizeof alternate;
  sigaltstack(&stack, nullptr);
}

CaughtFaults::~CaughtFaults() {
  is_catching = false;
  for (const int number : kNumbers) {
    struct sigaction now;
    sigaction(number, nullptr, &now);
    if (now.sa_sigaction == on_signal) sigaction(number, &previous_actions[number], nullptr);
  }
}

}  // namespace softmetal
