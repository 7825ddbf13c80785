#include "worker.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "objc_runtime.h"

namespace softmetal {

struct Worker::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  bool stopped = false;

  void run() {
    for (;;) {
      std::function<void()> next;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return stopped || !work.empty(); });
        if (work.empty()) return;
        next = std::move(work.front());
        work.pop_front();
      }
      void* pool = objc_autoreleasePoolPush();
      next();
      next = nullptr;  // what it holds goes before the next piece of work is looked at
      objc_autoreleasePoolPop(pool);
    }
  }
};

// Detached: the last reference to a queue may be dropped by its own thread.
Worker::Worker() : state_(std::make_shared<State>()) {
  std::thread([state = state_] { state->run(); }).detach();
}

Worker::~Worker() {
  const std::lock_guard lock(state_->mutex);
  state_->stopped = true;
  state_->changed.notify_one();
}

void Worker::give(std::function<void()> work) {
  const std::lock_guard lock(state_->mutex);
  state_->work.push_back(std::move(work));
  state_->changed.notify_one();
}

}  // namespace softmetal
