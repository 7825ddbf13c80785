#include "stacks.h"

#include <sys/mman.h>

#include <stdexcept>

#ifndef __x86_64__
#error "the switch between fibers is written for x86-64"
#endif

asm(R"(
.text
.hidden softmetal_switch
.globl softmetal_switch
.type softmetal_switch, @function
softmetal_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size softmetal_switch, .-softmetal_switch
)");

namespace softmetal {
namespace {

constexpr std::size_t kStackBytes = 256 << 10;
constexpr std::size_t kGuardBytes = 4096;
constexpr std::size_t kStaggerBytes = 704, kStaggers = 64;  // else the tops of all stacks fall into one set of the cache
constexpr std::size_t kSwitchSlots = 7;                     // registers and the address to return to

}  // namespace

char* Stacks::take() {
  if (free_.empty()) {
    void* memory = mmap(nullptr, kStackBytes + kGuardBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                        -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("no memory for the stack of a fiber");
    mprotect(memory, kGuardBytes, PROT_NONE);
    const std::size_t stagger = num_made_++ % kStaggers * kStaggerBytes;
    return static_cast<char*>(memory) + kGuardBytes + kStackBytes - stagger;
  }
  char* stack = free_.back();
  free_.pop_back();
  return stack;
}

void* begin_of(char* stack, void (*entry)()) {
  void** top = reinterpret_cast<void**>(stack) - 1;  // where a call would have put its return address
  *top = nullptr;
  top[-1] = reinterpret_cast<void*>(entry);
  return top - kSwitchSlots;
}

}  // namespace softmetal
