#include "device/metal/time_budget.h"

namespace lily::metal {
namespace {

constexpr double kBudgetSeconds = 0.1;  // the limit is not documented

}  // namespace

std::vector<Cut> cut(std::span<const Cost> costs, double pace) {
  std::vector<Cut> cuts;
  for (std::size_t i = 0; i < costs.size(); ++i) {
    const double seconds = costs[i].now();
    const bool is_full = !cuts.empty() && seconds > 0 && cuts.back().seconds > 0 &&
                         (cuts.back().seconds + seconds) * pace > kBudgetSeconds;
    if (cuts.empty() || is_full) cuts.push_back({i, i, 0});
    cuts.back().end = i + 1;
    cuts.back().seconds += seconds;
  }
  return cuts;
}

}  // namespace lily::metal
