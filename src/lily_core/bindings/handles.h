// What Python holds of a runtime, its timelines and snapshots: each may outlive the engine, and then says that it is closed.
#pragma once

#include <nanobind/ndarray.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "bindings/gil.h"
#include "model/runtime.h"

namespace lily {

namespace nb = nanobind;

using Words = nb::ndarray<const std::uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

inline std::span<const std::uint32_t> span_of(const Words& words) { return {words.data(), words.size()}; }

// The result of `work`, for which this thread may have to wait.
auto without_gil(auto&& work) {
  const ReleasedGil released;
  return work();
}

// Where a runtime's Python objects find it, until it is closed. Read and changed with the GIL held.
struct Handle {
  std::shared_ptr<Runtime> runtime;
};

// A timeline and the runtime that it belongs to, which may be closed.
class BoundTimeline {
 public:
  BoundTimeline(std::shared_ptr<Handle> handle, Timeline timeline)
      : handle_(std::move(handle)), timeline_(std::make_shared<Timeline>(std::move(timeline))) {}
  ~BoundTimeline() { close(); }
  BoundTimeline(const BoundTimeline&) = delete;

  const std::shared_ptr<Handle>& handle() const { return handle_; }
  // Stays alive for a running call, should another thread close the timeline meanwhile.
  std::shared_ptr<Timeline> get() const {
    if (!handle_->runtime || !timeline_) throw_closed();
    return timeline_;
  }
  std::shared_ptr<Runtime> runtime() const {
    if (!handle_->runtime || !timeline_) throw_closed();
    return handle_->runtime;
  }
  // The result of `work` on the runtime and the timeline, for which this thread may have to wait.
  auto without_gil(auto&& work) const {
    const auto runtime = this->runtime();
    const auto timeline = get();
    return lily::without_gil([&] { return work(*runtime, *timeline); });
  }
  void close() {
    if (handle_->runtime && timeline_) handle_->runtime->close(std::move(timeline_));
    timeline_.reset();
  }

  [[noreturn]] static void throw_closed() { throw std::logic_error("the timeline or its engine is closed"); }

 private:
  std::shared_ptr<Handle> handle_;
  std::shared_ptr<Timeline> timeline_;
};

// A snapshot likewise. Dropped when Python drops it.
class BoundSnapshot {
 public:
  BoundSnapshot(const std::shared_ptr<Handle>& handle, Snapshot snapshot) : handle_(handle), snapshot_(std::move(snapshot)) {}
  ~BoundSnapshot() {
    if (handle_->runtime) handle_->runtime->release(std::move(snapshot_));
  }
  BoundSnapshot(const BoundSnapshot&) = delete;

  const Snapshot& get() const { return snapshot_; }
  std::shared_ptr<Runtime> runtime() const {
    if (!handle_->runtime) throw std::logic_error("the engine of the snapshot is closed");
    return handle_->runtime;
  }

 private:
  std::shared_ptr<Handle> handle_;
  Snapshot snapshot_;
};

class BoundRuntime {
 public:
  BoundRuntime(const std::string& folder, const ModelConfig& config, const RuntimeOptions& options,
               const std::optional<std::function<void(std::uint64_t, std::uint64_t)>>& progress) {
    // In the main thread Ctrl-C ends the load, too.
    const LoadProgress report = [&](std::uint64_t done, std::uint64_t total) {
      const AcquiredGil acquired;
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (progress) (*progress)(done, total);
    };
    const ReleasedGil released;
    handle_->runtime = std::make_shared<Runtime>(folder, config, options, report);
  }
  ~BoundRuntime() { close(); }
  BoundRuntime(const BoundRuntime&) = delete;

  std::shared_ptr<Runtime> get() const {
    if (!handle_->runtime) throw std::logic_error("the runtime is closed");
    return handle_->runtime;
  }
  const std::shared_ptr<Handle>& handle() const { return handle_; }
  void close() {
    std::shared_ptr<Runtime> last = std::move(handle_->runtime);
    const ReleasedGil released;
    last.reset();
  }

 private:
  std::shared_ptr<Handle> handle_ = std::make_shared<Handle>();
};

}  // namespace lily
