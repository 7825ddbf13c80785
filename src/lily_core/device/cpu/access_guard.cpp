#include "device/cpu/access_guard.h"

#include <sys/mman.h>

#include <cerrno>
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <string>

namespace lily::cpu {
namespace {

// The kernel of this thread that may fault, if any.
struct Trap {
  sigjmp_buf landing;
  const std::byte* address = nullptr;
};
thread_local Trap* current_trap = nullptr;

struct sigaction previous_segv, previous_bus;

void on_fault(int signal, siginfo_t* info, void* context) {
  if (Trap* trap = current_trap) {
    trap->address = static_cast<const std::byte*>(info->si_addr);
    siglongjmp(trap->landing, 1);
  }
  // Not a kernel of ours: as if this handler were not there.
  const struct sigaction& previous = signal == SIGSEGV ? previous_segv : previous_bus;
  if (previous.sa_flags & SA_SIGINFO) return previous.sa_sigaction(signal, info, context);
  sigaction(signal, &previous, nullptr);
}

void install_handler() {
  static const bool installed = [] {
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    // SIGBUS is what macOS raises for a closed page.
    return sigaction(SIGSEGV, &action, &previous_segv) == 0 && sigaction(SIGBUS, &action, &previous_bus) == 0;
  }();
  if (!installed) throw DeviceError("cpu", "", "debug", "the checked mode cannot install its fault handler");
}

// sigsetjmp must be called in a frame that outlives the jump, and `body` must not own anything: kernels do not.
bool runs_without_fault(Trap& trap, const std::function<void()>& body) {
  current_trap = &trap;
  if (sigsetjmp(trap.landing, 1) == 0) {
    body();
    current_trap = nullptr;
    return true;
  }
  current_trap = nullptr;
  return false;
}

void protect_pages(std::byte* begin, std::byte* end, int protection) {
  const auto page = static_cast<std::uintptr_t>(page_size());
  const auto first = reinterpret_cast<std::uintptr_t>(begin) / page * page;
  const auto last = (reinterpret_cast<std::uintptr_t>(end) + page - 1) / page * page;
  if (first < last && mprotect(reinterpret_cast<void*>(first), last - first, protection) != 0)
    throw DeviceError("cpu", "", "debug",
                      "the checked mode cannot protect " + std::to_string(last - first) + " bytes: " + std::strerror(errno));
}

}  // namespace

AccessGuard::AccessGuard() { install_handler(); }

void AccessGuard::watch(CpuBuffer& buffer) { watched_.push_back(&buffer); }

void AccessGuard::drop(const CpuBuffer& buffer) { std::erase(watched_, &buffer); }

void AccessGuard::run(const Kernel& kernel, std::span<const Range> ranges, const std::function<void()>& body) {
  const auto protect_all = [&](int protection) {
    for (CpuBuffer* buffer : watched_) {
      // The host may look at shared memory at any time: a view of logits, while another timeline's step runs.
      const bool host_reads = protection == PROT_NONE && buffer->memory() == Memory::kShared;
      protect_pages(buffer->pages_begin(), buffer->pages_end(), host_reads ? PROT_READ : protection);
    }
  };
  const auto open = [&](bool writable) {
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      if ((kernel.accesses()[i] != Access::kRead) != writable) continue;
      auto* begin = static_cast<std::byte*>(ranges[i].buffer->contents()) + ranges[i].offset;
      protect_pages(begin, begin + ranges[i].length, writable ? PROT_READ | PROT_WRITE : PROT_READ);
    }
  };
  try {
    protect_all(PROT_NONE);
    open(false);
    open(true);  // after the readable ones: a page with both is writable
  } catch (const DeviceError&) {
    protect_all(PROT_READ | PROT_WRITE);
    throw;
  }
  Trap trap;
  const bool fine = runs_without_fault(trap, body);
  protect_all(PROT_READ | PROT_WRITE);
  if (fine) return;

  std::string where = "memory that is no buffer of this device";
  for (const CpuBuffer* buffer : watched_)
    if (trap.address >= buffer->pages_begin() && trap.address < buffer->pages_end() + page_size())
      where = "buffer " + buffer->name();
  throw DeviceError("cpu", std::string(kernel.name()), "undeclared_access",
                    std::string(kernel.name()) + " touched " + where + " outside of what its dispatch declares");
}

}  // namespace lily::cpu
