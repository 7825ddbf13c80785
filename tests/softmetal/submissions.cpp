#include "submissions.h"

#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "softmetal.h"

namespace softmetal {
namespace {

struct Submission {
  const void* queue;
  std::map<std::uintptr_t, bool> uses;
  std::vector<std::pair<const void*, std::uint64_t>> signals;
};
struct Submissions {
  std::mutex mutex;
  std::deque<Submission> unordered;  // oldest first
};
Submissions& submissions() {
  static Submissions* const only = new Submissions;
  return *only;
}

bool overlaps(const Submission& earlier, const std::map<std::uintptr_t, bool>& uses) {
  for (const auto& [address, writes] : uses) {
    const auto found = earlier.uses.find(address);
    if (found != earlier.uses.end() && (writes || found->second)) return true;
  }
  return false;
}

}  // namespace

void submitted(const void* queue, std::map<std::uintptr_t, bool> uses) {
  bool overlap = false;
  {
    const std::lock_guard lock(submissions().mutex);
    for (const Submission& earlier : submissions().unordered) overlap |= overlaps(earlier, uses);
    submissions().unordered.push_back({queue, std::move(uses), {}});
  }
  if (overlap) report("a submission shares an untracked buffer with an earlier one that was not waited for");
}

void signals(const void* queue, const void* event, std::uint64_t value) {
  const std::lock_guard lock(submissions().mutex);
  auto& unordered = submissions().unordered;
  for (auto s = unordered.rbegin(); s != unordered.rend(); ++s) {
    if (s->queue != queue) continue;
    s->signals.emplace_back(event, value);
    return;
  }
}

void ordered_after(const void* event, std::uint64_t value) {
  const std::lock_guard lock(submissions().mutex);
  auto& unordered = submissions().unordered;
  std::map<const void*, std::size_t> settled;  // per queue, how many from the front
  for (std::size_t i = 0; i < unordered.size(); ++i)
    for (const auto& [signal, signalled] : unordered[i].signals)
      if (signal == event && signalled <= value) settled[unordered[i].queue] = i + 1;
  std::deque<Submission> left;
  for (std::size_t i = 0; i < unordered.size(); ++i) {
    const auto found = settled.find(unordered[i].queue);
    if (found == settled.end() || i >= found->second) left.push_back(std::move(unordered[i]));
  }
  unordered = std::move(left);
}

void ordered_after_queue(const void* queue) {
  const std::lock_guard lock(submissions().mutex);
  std::erase_if(submissions().unordered, [&](const Submission& s) { return s.queue == queue; });
}

void forget_memory(std::uintptr_t begin, std::uint64_t length) {
  const std::lock_guard lock(submissions().mutex);
  for (Submission& s : submissions().unordered)
    std::erase_if(s.uses, [&](const auto& use) { return use.first >= begin && use.first < begin + length; });
}

}  // namespace softmetal
