// The GPU of a queue: a thread that does what it is given, in order.
#pragma once

#include <functional>
#include <memory>

namespace softmetal {

class Worker {
 public:
  Worker();
  ~Worker();  // what was given is still done
  void give(std::function<void()> work);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace softmetal
