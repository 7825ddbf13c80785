#include "stream.h"

#include <optional>

#include "memory.h"

namespace softmetal {
namespace {

std::string argument(const RecordedDispatch& dispatch, unsigned index) {
  return dispatch.name() + " argument " + std::to_string(index);
}

// Two dispatches that nothing orders, bound to one address through which one of them may write.
std::optional<std::string> find_conflict(const RecordedDispatch& a, const RecordedDispatch& b) {
  for (unsigned i = 0; i < kMaxBindings; ++i) {
    if (!a.has(i) || !a.bindings[i]) continue;
    for (unsigned j = 0; j < kMaxBindings; ++j) {
      if (b.has(j) && a.bindings[i] == b.bindings[j] && (a.may_write(i) || b.may_write(j)))
        return argument(a, i) + ", " + argument(b, j);
    }
  }
  return std::nullopt;
}

void check_order(const std::vector<RecordedDispatch>& epoch) {
  for (std::size_t i = 0; i < epoch.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (const auto conflict = find_conflict(epoch[j], epoch[i]))
        return report("no barrier between dispatches that share memory: " + *conflict);
    }
  }
}

}  // namespace

std::map<std::uintptr_t, bool> Stream::uses() const {
  std::map<std::uintptr_t, bool> uses;
  for (const auto& epoch : epochs_)
    for (const RecordedDispatch& dispatch : epoch)
      for (unsigned i = 0; i < kMaxBindings; ++i)
        if (dispatch.has(i) && dispatch.bindings[i]) uses[dispatch.bindings[i]] |= dispatch.may_write(i);
  return uses;
}

Stream::Result Stream::run(const std::function<bool(std::uintptr_t)>& is_resident) const {
  for (const auto& epoch : epochs_) {
    if (is_concurrent) check_order(epoch);
    const bool reversed = is_concurrent && settings().order == Order::kReverse;
    for (std::size_t i = 0; i < epoch.size(); ++i) {
      const Result result = run(epoch[reversed ? epoch.size() - 1 - i : i], is_resident);
      if (!result.error.empty()) {
        report(result.error);
        return result;
      }
    }
  }
  return {};
}

Stream::Result Stream::run(const RecordedDispatch& dispatch, const std::function<bool(std::uintptr_t)>& is_resident) const {
  std::array<void*, kMaxBindings> buffers{};
  for (unsigned i = 0; i < kMaxBindings; ++i) {
    if (!dispatch.has(i)) continue;
    const std::uintptr_t address = dispatch.bindings[i];
    if (!address) return {argument(dispatch, i) + ": no buffer is bound"};
    const auto allocation = find_allocation(address);
    if (!allocation) return {argument(dispatch, i) + ": the buffer was freed", true};
    if (address >= allocation->end())
      return {argument(dispatch, i) + ": bound past the end of '" + allocation->label + "'", true};
    if (!is_resident(allocation->begin)) return {argument(dispatch, i) + ": '" + allocation->label + "' is not resident", true};
    buffers[i] = reinterpret_cast<void*>(address);
  }
  const Outcome outcome = launch({&dispatch.pipeline.library->exports(), dispatch.pipeline.kernel, buffers.data(),
                                  dispatch.groups, dispatch.threads, settings().order});
  if (outcome.fault.empty()) return {};
  std::string error = dispatch.name() + ": " + outcome.fault;
  if (outcome.address) error += " (" + describe_address(outcome.address) + ")";
  return {std::move(error), outcome.address != 0};
}

}  // namespace softmetal
