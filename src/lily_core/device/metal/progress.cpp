#include "device/metal/progress.h"

#include <algorithm>
#include <chrono>

namespace lily::metal {
namespace {

constexpr double kMinMeasuredSeconds = 1e-5;  // shorter ones say nothing
constexpr double kMinPace = 0.02, kMaxPace = 1e5;
// Of a wait. While the process is stopped, as by Ctrl-Z, time passes and nothing is noted: that ends one slice, not the wait.
constexpr int kSlices = 8;

}  // namespace

std::string Submission::content() const {
  if (num_kernels == 1) return std::string(first_kernel);
  return std::to_string(num_kernels) + " kernels from " + std::string(first_kernel) + " to " + std::string(last_kernel);
}

void Progress::submitted(Submission submission) {
  const std::lock_guard lock(mutex_);
  unfinished_.push_back(submission);
}

void Progress::finished(Ticket ticket, double seconds, std::optional<Failure> failure) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(unfinished_, ticket, &Submission::ticket);
    if (found == unfinished_.end()) return;
    is_hung_ = false;
    if (failure) {
      // Too long for macOS, and nothing was measured: cut finer the next time.
      if (failure->code == "gpu_timeout") pace_ = std::min(4 * pace_, kMaxPace);
      failures_.emplace_back(*found, std::move(*failure));
    } else if (seconds > kMinMeasuredSeconds && found->estimated_seconds > 0) {
      // Slower counts at once, faster half: too many command buffers cost little, one that is too long is killed.
      const double measured = std::clamp(seconds / found->estimated_seconds, kMinPace, kMaxPace);
      pace_ = std::max(measured, (pace_ + measured) / 2);
    }
    unfinished_.erase(found);
  }
  changed_.notify_all();
}

template <typename Condition>
bool Progress::wait_until(Condition condition, double patience_seconds) {
  std::unique_lock lock(mutex_);
  while (!condition()) {
    if (is_hung_) return false;
    const std::size_t before = unfinished_.size();
    const auto slice = std::chrono::duration<double>(patience_seconds / kSlices);
    bool moves = false;
    for (int n = 0; n < kSlices && !moves; ++n) {
      moves = changed_.wait_for(lock, slice, [&] { return unfinished_.size() != before || condition(); });
    }
    is_hung_ = !moves;
  }
  return true;
}

bool Progress::wait(Ticket ticket, double patience_seconds) {
  return wait_until([&] { return std::ranges::none_of(unfinished_, [&](const Submission& s) { return s.ticket <= ticket; }); },
                    patience_seconds);
}

bool Progress::wait_for_room(std::size_t count, double patience_seconds) {
  return wait_until([&] { return unfinished_.size() <= count; }, patience_seconds);
}

std::optional<std::pair<Submission, Failure>> Progress::take_failure(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  std::optional<std::pair<Submission, Failure>> first;
  std::erase_if(failures_, [&](auto& failure) {
    if (failure.first.ticket > ticket) return false;
    if (!first) first = std::move(failure);
    return true;
  });
  return first;
}

std::string Progress::unfinished() const {
  const std::lock_guard lock(mutex_);
  return unfinished_.empty() ? "nothing" : unfinished_.front().content();
}

double Progress::pace() const {
  const std::lock_guard lock(mutex_);
  return pace_;
}

}  // namespace lily::metal
