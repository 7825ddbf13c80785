// The GIL let go, or taken, for a scope. A Python that is ending gives it to no other thread: before 3.14 it ends one that asks
// by unwinding, and the first destructor or `catch (...)` on the way makes that an abort of the process. Such a thread waits here
// for the end instead, as Python 3.14 has it.
#pragma once

#include <Python.h>

#include <chrono>
#include <thread>

namespace lily {

inline void take_gil(auto&& take) {
  try {
    take();
  } catch (...) {  // the unwinding of a thread that is ended: never left
    for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
  }
}

class ReleasedGil {
 public:
  ReleasedGil() : state_(PyEval_SaveThread()) {}
  ~ReleasedGil() {
    take_gil([this] { PyEval_RestoreThread(state_); });
  }
  ReleasedGil(const ReleasedGil&) = delete;

 private:
  PyThreadState* state_;
};

class AcquiredGil {
 public:
  AcquiredGil() {
    take_gil([this] { state_ = PyGILState_Ensure(); });
  }
  ~AcquiredGil() { PyGILState_Release(state_); }
  AcquiredGil(const AcquiredGil&) = delete;

 private:
  PyGILState_STATE state_;
};

}  // namespace lily
