#include "fibers.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "caught_faults.h"
#include "stacks.h"

// What every switch goes through: the fewer frames, the fewer cache lines of each stack.
#define SOFTMETAL_INLINE inline __attribute__((always_inline))

namespace softmetal {
namespace {

constexpr unsigned kLanes = 32;

enum class State : std::uint8_t { kFresh, kReady, kSimdgroup, kBarrier, kDone };

// Where in the shader something was called.
struct Place {
  const char* file = "";
  int line = 0;
  bool operator==(const Place&) const = default;
};

struct Simdgroup;
struct Fiber {
  void* stack_pointer = nullptr;
  Simdgroup* simdgroup = nullptr;
  Place place;  // of the last call that synchronised
  State state = State::kFresh;
  std::uint8_t parity = 0;
  char* stack = nullptr;
  msl_call call;
  msl_thread ids;
};

// The lanes of a simdgroup as masks, and the operation that they meet at.
struct Simdgroup {
  Fiber* lanes;
  std::uint32_t all, runnable, parked, stopped;  // stopped: at a threadgroup barrier, or at their end
  Place place;
  msl_simd_function function;  // nullptr: a simdgroup barrier
  // Two sets in turn: a lane may reach the next operation before others have read the result of this one.
  msl_slots slots[2];
};

class Machine {
 public:
  Outcome run(const Launch& launch);

  // Called by kernels, on their fibers.
  void* simd(const void* in, unsigned size, msl_simd_function function, Place place);
  void simdgroup_barrier(Place place) { meet(nullptr, place); }
  void threadgroup_barrier(Place place);
  [[noreturn]] void fail(const std::string& what, std::uintptr_t address);
  std::string where() const;

  bool is_running_kernel() const { return current_ != nullptr; }
  Counts counts;

 private:
  void prepare(const Launch& launch);
  void run_group();
  void release_barrier();
  void meet(msl_simd_function function, Place place);
  void stop(State state);
  void park(Fiber& self);
  Fiber* next(Simdgroup& simdgroup);
  Fiber* finish_meeting(Simdgroup& simdgroup);
  Fiber* first_of(const Simdgroup& simdgroup, std::uint32_t lanes) const;
  void start(Fiber& fiber);
  void resume(Fiber& fiber, void** save);
  static void fiber_main();
  void body();
  [[noreturn]] void leave();
  void divergent(const char* what, const Fiber& a, const Fiber& b);

  const Launch* launch_ = nullptr;
  bool is_forward_ = true;
  msl_group group_{};
  std::vector<Fiber> fibers_;
  std::vector<Simdgroup> simdgroups_;
  Stacks stacks_;
  Fiber* current_ = nullptr;
  void* scheduler_ = nullptr;
  Outcome outcome_;
};

std::mutex machine_mutex;
Machine& machine = *new Machine;  // queue threads may outlive statics

msl_runtime runtime = {
    nullptr,
    [](const void* in, unsigned size, msl_simd_function f, const char* file, int line) {
      return machine.simd(in, size, f, {file, line});
    },
    [](const char* file, int line) { machine.simdgroup_barrier({file, line}); },
    [](const char* file, int line) { machine.threadgroup_barrier({file, line}); },
    [](const char* what, const char* file, int line) {
      machine.fail(std::string(what) + " at " + file + ":" + std::to_string(line) + ": " + machine.where(), 0);
    },
};

// Continues the thread whose access failed: it gives up the launch.
void faulted(const Fault& fault) { machine.fail(std::string(fault.what) + ": " + machine.where(), fault.address); }

std::string text(const Place& place) { return std::string(place.file) + ":" + std::to_string(place.line); }

std::string text(msl_uint3 v) {
  return "(" + std::to_string(v.x) + ", " + std::to_string(v.y) + ", " + std::to_string(v.z) + ")";
}

void Machine::start(Fiber& fiber) {
  fiber.stack = stacks_.take();
  fiber.stack_pointer = begin_of(fiber.stack, &fiber_main);
}

// Continues `fiber`; comes back when somebody continues *save.
SOFTMETAL_INLINE void Machine::resume(Fiber& fiber, void** save) {
  current_ = &fiber;
  runtime.call = &fiber.call;
  if (fiber.state == State::kFresh) [[unlikely]] start(fiber);
  fiber.state = State::kReady;
  softmetal_switch(save, fiber.stack_pointer);
}

void Machine::fiber_main() { machine.body(); }

// Threads that never park run one after another on this stack.
void Machine::body() {
  for (;;) {
    launch_->kernel->entry(&current_->call);
    Fiber& done = *current_;
    stop(State::kDone);
    Fiber* follower = next(*done.simdgroup);
    if (follower && follower->state == State::kFresh) {
      follower->stack = done.stack;
      follower->state = State::kReady;
      current_ = follower;
      runtime.call = &follower->call;
      continue;
    }
    stacks_.give_back(done.stack);
    if (follower) {
      resume(*follower, &done.stack_pointer);
    } else {
      softmetal_switch(&done.stack_pointer, scheduler_);
    }
  }
}

SOFTMETAL_INLINE Fiber* Machine::first_of(const Simdgroup& simdgroup, std::uint32_t lanes) const {
  return simdgroup.lanes + (is_forward_ ? __builtin_ctz(lanes) : 31 - __builtin_clz(lanes));
}

// The thread of the simdgroup to run next; nullptr when all wait at a threadgroup barrier, are done, or have failed.
SOFTMETAL_INLINE Fiber* Machine::next(Simdgroup& simdgroup) {
  if (simdgroup.runnable) [[likely]] return first_of(simdgroup, simdgroup.runnable);
  return simdgroup.parked ? finish_meeting(simdgroup) : nullptr;
}

// Does what the lanes have met for, when all have come.
Fiber* Machine::finish_meeting(Simdgroup& simdgroup) {
  Fiber* first = simdgroup.lanes;
  if (simdgroup.parked != simdgroup.all) {
    Fiber& waiting = first[__builtin_ctz(simdgroup.parked)];
    Fiber& missing = first[__builtin_ctz(simdgroup.all & ~simdgroup.parked)];
    divergent(missing.state == State::kDone ? "simdgroup operation after a lane returned"
                                            : "simdgroup operation while a lane waits at a threadgroup barrier",
              waiting, missing);
    return nullptr;
  }
  if (simdgroup.function) {
    ++counts.simdgroup_operations;
    simdgroup.function(&simdgroup.slots[first->parity], simdgroup.all);
  }
  simdgroup.runnable = simdgroup.parked;
  simdgroup.parked = 0;
  return first_of(simdgroup, simdgroup.runnable);
}

// Lets others run until this thread is due again.
SOFTMETAL_INLINE void Machine::park(Fiber& self) {
  ++counts.parks;
  Fiber* follower = next(*self.simdgroup);
  if (follower == &self) {
    self.state = State::kReady;
  } else if (follower) [[likely]] {
    resume(*follower, &self.stack_pointer);
  } else {
    softmetal_switch(&self.stack_pointer, scheduler_);
  }
}

SOFTMETAL_INLINE void Machine::meet(msl_simd_function function, Place place) {
  Fiber& self = *current_;
  Simdgroup& simdgroup = *self.simdgroup;
  self.place = place;
  self.state = State::kSimdgroup;
  if (!simdgroup.parked) {
    simdgroup.place = place;
    simdgroup.function = function;
  } else if (simdgroup.place != place || simdgroup.function != function) [[unlikely]] {
    divergent("simdgroup operation in divergent control flow", simdgroup.lanes[__builtin_ctz(simdgroup.parked)], self);
    leave();
  }
  const std::uint32_t bit = 1u << self.ids.lane;
  simdgroup.runnable &= ~bit;
  simdgroup.parked |= bit;
  park(self);
}

void* Machine::simd(const void* in, unsigned size, msl_simd_function function, Place place) {
  Fiber& self = *current_;
  self.parity ^= 1;
  char* slot = self.simdgroup->slots[self.parity].bytes + self.ids.lane * size;
  // In words: a call of memcpy would cost as much as the switch.
  const char* from = static_cast<const char*>(in);
  unsigned at = 0;
  for (; at + 4 <= size; at += 4) std::memcpy(slot + at, from + at, 4);
  if (size & 2) std::memcpy(slot + at, from + at, 2);
  if (size & 1) slot[size - 1] = from[size - 1];
  meet(function, place);
  return slot;
}

// At a threadgroup barrier or the end: from the way there, all lanes must have met the same operations on matrices.
inline void Machine::stop(State state) {
  Fiber& self = *current_;
  Simdgroup& simdgroup = *self.simdgroup;
  self.state = state;
  const std::uint32_t bit = 1u << self.ids.lane;
  if (simdgroup.stopped) {
    const Fiber& other = simdgroup.lanes[__builtin_ctz(simdgroup.stopped)];
    if (other.call.trail.sum != self.call.trail.sum) [[unlikely]] {
      const auto at = [](const Fiber& f) {
        const msl_trail& trail = f.call.trail;
        return "thread " + std::to_string(f.ids.index) + (trail.line ? " last at " + text({trail.file, trail.line}) : " at none");
      };
      outcome_.fault = "simdgroup matrices in divergent control flow: " + at(other) + ", " + at(self);
      leave();
    }
  }
  simdgroup.runnable &= ~bit;
  simdgroup.stopped |= bit;
}

void Machine::threadgroup_barrier(Place place) {
  Fiber& self = *current_;
  self.place = place;
  stop(State::kBarrier);
  park(self);
}

std::string Machine::where() const {
  const Fiber& self = *current_;
  std::string message = "thread " + text(self.ids.position) + " of threadgroup " + text(group_.position);
  return self.place.line ? message + ", last synchronised at " + text(self.place) : message;
}

void Machine::divergent(const char* what, const Fiber& a, const Fiber& b) {
  const auto at = [](const Fiber& f) {
    return "thread " + std::to_string(f.ids.index) + (f.state == State::kDone ? " has returned" : " at " + text(f.place));
  };
  outcome_.fault = std::string(what) + ": " + at(a) + ", " + at(b);
}

void Machine::fail(const std::string& what, std::uintptr_t address) {
  outcome_ = {what, address};
  leave();
}

void Machine::leave() {
  void* nowhere;
  softmetal_switch(&nowhere, scheduler_);
  std::abort();
}

void Machine::prepare(const Launch& launch) {
  const msl_uint3 size = launch.threads;
  const unsigned count = size.x * size.y * size.z;
  group_ = {{}, size, launch.groups, (count + kLanes - 1) / kLanes};
  fibers_.resize(count);
  simdgroups_.resize(group_.simdgroups);
  for (unsigned i = 0; i < count; ++i) {
    Fiber& fiber = fibers_[i];
    fiber.ids = {{i % size.x, i / size.x % size.y, i / (size.x * size.y)}, i, i % kLanes, i / kLanes};
    fiber.call = {launch.buffers, &group_, &fiber.ids, {}};
    fiber.simdgroup = &simdgroups_[i / kLanes];
  }
  for (unsigned i = 0; i < group_.simdgroups; ++i) {
    const unsigned lanes = std::min(kLanes, count - i * kLanes);
    simdgroups_[i].lanes = &fibers_[i * kLanes];
    simdgroups_[i].all = lanes == kLanes ? ~0u : (1u << lanes) - 1;
  }
}

void Machine::release_barrier() {
  const Fiber* waiting = nullptr;
  const Fiber* other = nullptr;
  for (const Fiber& fiber : fibers_) (fiber.state == State::kBarrier ? waiting : other) = &fiber;
  if (!waiting) return;  // all are done
  if (other) {
    for (const Fiber& fiber : fibers_)
      if (fiber.state == State::kBarrier) return divergent("threadgroup_barrier not reached by every thread", fiber, *other);
  }
  for (Fiber& fiber : fibers_) {
    if (fiber.place != fibers_[0].place) return divergent("threads wait at different barriers", fibers_[0], fiber);
    fiber.state = State::kReady;
  }
  ++counts.barriers;
  for (Simdgroup& simdgroup : simdgroups_) {
    simdgroup.runnable = simdgroup.all;
    simdgroup.stopped = 0;
  }
}

void Machine::run_group() {
  for (Fiber& fiber : fibers_) {
    fiber.state = State::kFresh;
    fiber.parity = 0;
    fiber.place = {};
    fiber.call.trail = {0, "", 0};
  }
  for (Simdgroup& simdgroup : simdgroups_) {
    simdgroup.runnable = simdgroup.all;
    simdgroup.parked = simdgroup.stopped = 0;
  }
  const unsigned count = group_.simdgroups;
  for (bool open = true; open && outcome_.fault.empty();) {
    for (unsigned i = 0; i < count && outcome_.fault.empty(); ++i) {
      const Simdgroup& simdgroup = simdgroups_[is_forward_ ? i : count - 1 - i];
      if (simdgroup.runnable) resume(*first_of(simdgroup, simdgroup.runnable), &scheduler_);
    }
    if (!outcome_.fault.empty()) break;
    release_barrier();
    open = simdgroups_[0].runnable != 0;
  }
}

Outcome Machine::run(const Launch& launch) {
  launch_ = &launch;
  is_forward_ = launch.order == Order::kForward;
  outcome_ = {};
  prepare(launch);
  const msl_kernel& kernel = *launch.kernel;
  const unsigned long long groups = 1ull * launch.groups.x * launch.groups.y * launch.groups.z;
  const std::uint64_t total = fibers_.empty() ? 0 : groups;
  for (std::uint64_t i = 0; i < total && outcome_.fault.empty(); ++i) {
    const std::uint64_t at = is_forward_ ? i : total - 1 - i;
    group_.position = {unsigned(at % launch.groups.x), unsigned(at / launch.groups.x % launch.groups.y),
                       unsigned(at / launch.groups.x / launch.groups.y)};
    // Threadgroup memory starts undefined: as floats, NaN.
    if (kernel.static_begin) std::memset(kernel.static_begin, 0xff, std::size_t(kernel.static_end - kernel.static_begin));
    run_group();
  }
  current_ = nullptr;
  if (!outcome_.fault.empty()) {  // stacks of threads that were left where they stood
    for (Fiber& fiber : fibers_)
      if (fiber.state != State::kFresh && fiber.state != State::kDone) stacks_.give_back(fiber.stack);
  }
  return outcome_;
}

}  // namespace

Outcome launch(const Launch& launch) {
  const std::lock_guard lock(machine_mutex);
  const CaughtFaults caught([] { return machine.is_running_kernel(); }, faulted);
  *launch.library->runtime = &runtime;
  return machine.run(launch);
}

Counts counts() {
  const std::lock_guard lock(machine_mutex);
  return machine.counts;
}

}  // namespace softmetal
