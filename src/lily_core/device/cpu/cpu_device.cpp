#include "device/cpu/cpu_device.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <random>
#include <stdexcept>

#include "device/cpu/access_guard.h"
#include "device/cpu/cpu_buffer.h"
#include "device/cpu/cpu_executable.h"
#include "device/cpu/debug_switches.h"
#include "device/cpu/float_mode.h"
#include "device/cpu/kernel_table.h"
#include "device/cpu/thread_pool.h"
#include "device/cpu/tile_scheduler.h"
#include "device/prepare.h"
#include "model/tensor_source.h"

namespace lily::cpu {
namespace {

class CpuDevice final : public Device {
 public:
  CpuDevice(const ModelConstants& model, std::string_view debug)
      : model_(model),
        debug_(debug),
        kernels_(kernels_for(debug_.isa)),
        guard_(debug_.checked ? std::make_unique<AccessGuard>() : nullptr),
        pool_(debug_.threads),
        scheduler_(pool_.size()),
        scratch_(pool_.size()) {}

  std::string_view name() const override { return "cpu"; }
  std::string description() const override { return debug_.isa + ", " + std::to_string(pool_.size()) + " threads"; }

  std::unique_ptr<Buffer> allocate(std::string name, std::uint64_t length, Memory memory) override {
    return std::make_unique<CpuBuffer>(std::move(name), length, memory, guard_.get());
  }
  void read(const Range& from, void* to) override { std::memcpy(to, address(from), from.length); }
  void write(const Range& to, const void* from) override { std::memcpy(address(to), from, to.length); }
  void copy(const Range& to, const Range& from) override { std::memmove(address(to), address(from), to.length); }
  void fill(const Range& range, std::uint8_t value) override { std::memset(address(range), value, range.length); }
  void discard(const Range& range) override { give_back(address(range), range.length); }

  PreparedWeight prepare(const HostWeight& weight) override {
    const auto map = [this](const TensorSource& tensor) -> std::unique_ptr<Buffer> {
      // A mapped file shares pages between tensors, so the checked mode could not close them one by one.
      const std::byte* address = guard_ ? nullptr : tensor.mapped(size_of(tensor.dtype()));
      return address ? std::make_unique<MappedBuffer>(tensor.name(), address, tensor.length()) : nullptr;
    };
    return prepare_weight(weight, map, [this](std::string buffer_name, std::uint64_t length) {
      return allocate(std::move(buffer_name), length, Memory::kPrivate);
    });
  }

  const Kernel& kernel(std::string_view name) override {
    if (const CpuKernel* kernel = kernels_.find(name)) return *kernel;
    throw DeviceError("cpu", std::string(name), "unknown_kernel", "the cpu device has no kernel " + std::string(name));
  }
  std::vector<std::string_view> kernel_names() const override { return kernels_.names(); }

  std::unique_ptr<Executable> compile(Program& program) override {
    return std::make_unique<CpuExecutable>(program, model_, pool_.size());
  }

  // Runs at once, so wait() has nothing left to do.
  Ticket commit(Executable& executable, std::uint32_t segment) override {
    auto& cpu_executable = static_cast<CpuExecutable&>(executable);
    for (Scratch& scratch : scratch_) scratch.reserve(cpu_executable.scratch_bytes());
    auto& levels = cpu_executable.levels(segment);
    if (debug_.is_one_thread()) {
      run_one_by_one(levels);
    } else {
      scheduler_.start(static_cast<std::uint32_t>(levels.size()));
      Job job{this, &levels};
      pool_.run([](void* context, std::uint32_t worker) { static_cast<Job*>(context)->run(worker); }, &job);
    }
    return ++last_ticket_;
  }
  void wait(Ticket) override {}

 private:
  using Levels = std::vector<std::unique_ptr<Level>>;

  // A thread's scratch memory, on cache lines of its own.
  class Scratch {
   public:
    void reserve(std::size_t bytes) {
      if (bytes <= bytes_) return;
      bytes = (bytes + kCacheLineBytes - 1) / kCacheLineBytes * kCacheLineBytes;
      memory_.reset(static_cast<std::byte*>(::operator new(bytes, kAlignment)));
      bytes_ = bytes;
    }
    std::byte* data() const { return memory_.get(); }

   private:
    static constexpr std::align_val_t kAlignment{kCacheLineBytes};
    struct Free {
      void operator()(std::byte* memory) const { ::operator delete(memory, kAlignment); }
    };
    std::unique_ptr<std::byte, Free> memory_;
    std::size_t bytes_ = 0;
  };

  // A thread's memory, and for which call it was used last.
  struct Worker {
    std::byte* scratch;
    const PreparedCall* last = nullptr;
    std::uint32_t ready = 0;

    void run(const PreparedCall& prepared, std::uint32_t begin, std::uint32_t end) {
      if (last != &prepared) ready = 0;
      last = &prepared;
      KernelCall call = prepared.call;
      call.scratch = scratch;
      call.ready = &ready;
      prepared.kernel->entry().run(call, begin, end);
    }
  };

  struct Job {
    CpuDevice* device;
    Levels* levels;

    void run(std::uint32_t thread) {
      const FloatMode mode;
      for (std::uint32_t i = 0; i < levels->size(); ++i) {
        const Level& level = *(*levels)[i];
        Worker worker{device->scratch_[thread].data()};
        device->scheduler_.run_level(thread, i, level.num_tiles,
                                     [&](std::uint32_t begin, std::uint32_t end) { run_tiles(level, begin, end, worker); });
      }
    }

    static void run_tiles(const Level& level, std::uint32_t begin, std::uint32_t end, Worker& worker) {
      for (const auto& prepared : level.calls) {
        const std::uint32_t last = std::min(end, prepared->num_tiles);
        if (begin < last) worker.run(*prepared, begin, last);
        // Tiles of the following calls are counted from this one's end.
        begin = begin > prepared->num_tiles ? begin - prepared->num_tiles : 0;
        if (end <= prepared->num_tiles) return;
        end -= prepared->num_tiles;
      }
    }
  };

  void run_one_by_one(Levels& levels) {
    const FloatMode mode;
    for (const auto& level : levels) {
      std::vector<const PreparedCall*> calls;
      for (const auto& prepared : level->calls) calls.push_back(prepared.get());
      if (debug_.shuffled) std::ranges::shuffle(calls, random_);
      for (const PreparedCall* prepared : calls) {
        const auto body = [&] { Worker{scratch_[0].data()}.run(*prepared, 0, prepared->num_tiles); };
        if (guard_) {
          guard_->run(*prepared->kernel, prepared->ranges, body);
        } else {
          body();
        }
      }
    }
  }

  static std::byte* address(const Range& range) { return static_cast<std::byte*>(range.buffer->contents()) + range.offset; }

  const ModelConstants model_;
  const DebugSwitches debug_;
  const KernelTable kernels_;
  const std::unique_ptr<AccessGuard> guard_;
  ThreadPool pool_;
  TileScheduler scheduler_;
  std::vector<Scratch> scratch_;
  std::mt19937 random_{std::random_device{}()};
  Ticket last_ticket_ = 0;
};

}  // namespace

Precision precision_of(std::string_view dtype) {
  if (dtype == "float32") return {};
  // Activations stay in float32 between kernels; as operands of matrix products they become 16-bit integers.
  if (dtype == "float16" || dtype == "auto")
    return {.dtype = "float16", .suffix = "_i16", .activation_bytes = 4, .kv_bytes = 2};
  throw std::invalid_argument("dtype \"" + std::string(dtype) +
                              "\" is not supported by the cpu device; use \"float16\", \"float32\" or \"auto\"");
}

std::unique_ptr<Device> make_cpu_device(const ModelConstants& model, std::string_view debug) {
  return std::make_unique<CpuDevice>(model, debug);
}

}  // namespace lily::cpu
