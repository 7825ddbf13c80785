// What becomes of submitted command buffers: told by Metal's handlers on threads of its own, asked by the thread that waits.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace lily::metal {

using Ticket = std::uint64_t;

struct Failure {
  std::string code;
  std::string message;
  bool is_fatal = false;
};

// A submitted command buffer. Tickets count up by one.
struct Submission {
  Ticket ticket = 0;
  double estimated_seconds = 0;
  std::size_t num_kernels = 0;
  std::string_view first_kernel, last_kernel;  // names, which live as long as the device

  std::string content() const;  // for messages
};

class Progress {
 public:
  void submitted(Submission submission);
  // `seconds` is the time that the GPU worked; not positive when it is not known.
  void finished(Ticket ticket, double seconds, std::optional<Failure> failure);

  // Waits until everything up to `ticket` is finished. False when nothing at all finishes for `patience_seconds`; then later
  // calls do not wait either, until something does: a GPU that hangs costs one wait, not one for each buffer that is freed.
  bool wait(Ticket ticket, double patience_seconds);
  // Waits until at most `count` submissions are unfinished. False as above.
  bool wait_for_room(std::size_t count, double patience_seconds);

  // The first failure among those up to `ticket`, once, and its submission.
  std::optional<std::pair<Submission, Failure>> take_failure(Ticket ticket);

  std::string unfinished() const;  // for messages: what the oldest unfinished submission holds

  // Measured seconds per estimated second; follows the measurements.
  double pace() const;

 private:
  template <typename Condition>
  bool wait_until(Condition condition, double patience_seconds);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Submission> unfinished_;
  std::deque<std::pair<Submission, Failure>> failures_;
  bool is_hung_ = false;
  double pace_ = 1;
};

}  // namespace lily::metal
