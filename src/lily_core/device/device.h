// The narrow waist: buffers, kernels by name, and the execution of recorded programs.
// Everything above exists once for all devices.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "device/buffer.h"
#include "device/weight.h"
#include "lily_args.h"

namespace lily {

class Program;

enum class Access : std::uint8_t { kRead, kWrite, kReadWrite };

// A problem size in elements. Each device cuts it into tiles of its own.
struct Extent {
  std::uint32_t x = 1;
  std::uint32_t y = 1;
  std::uint32_t z = 1;
};

// How a device carries out a dtype (docs/design/kernels.md, "Precision").
struct Precision {
  std::string dtype = "float32";
  std::string suffix = "_f32";         // the activation part of its kernels' names
  std::uint32_t activation_bytes = 4;  // an element of what only matrix products and attention read
  std::uint32_t kv_bytes = 4;          // an element of the KV pool
};

// What holds for every model on a device and is known before one is made: its memory, and how programs are cut for it.
struct DeviceTraits {
  std::uint64_t memory_bytes = 0;                   // that it can hold at once; 0: what the machine has
  std::uint32_t chunk_tokens = 1024;                // of a prefill chunk, at most
  std::uint32_t keys_per_split = LILY_PAGE_TOKENS;  // of decode attention over a long context, at least
  double attention_flops = std::numeric_limits<double>::infinity();  // of one dispatch of attn_prefill, at most
};

// A kernel of a device: its contract is the same on every device (docs/design/kernels.md).
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual std::string_view name() const = 0;
  virtual std::span<const Access> accesses() const = 0;  // one per bound range, in order
  virtual std::uint32_t args_size() const = 0;
};

// A program made ready for one device, replayed by Device::commit. Owns nothing that the program binds.
class Executable {
 public:
  virtual ~Executable() = default;
  virtual std::uint32_t num_segments() const = 0;
};

class DeviceError : public std::runtime_error {
 public:
  DeviceError(std::string device_name, std::string kernel_name, std::string error_code, const std::string& message,
              bool is_fatal = false)
      : std::runtime_error(message),
        device(std::move(device_name)),
        kernel(std::move(kernel_name)),
        code(std::move(error_code)),
        fatal(is_fatal) {}
  std::string device;
  std::string kernel;  // empty when no kernel is at fault
  std::string code;
  bool fatal;  // the device cannot be used any more
};

class Device {
 public:
  using Ticket = std::uint64_t;

  virtual ~Device() = default;
  virtual std::string_view name() const = 0;
  virtual std::string description() const = 0;  // for people: instruction set and threads, or chip
  virtual std::string notes() const { return ""; }  // for people: what it chose to do at its start, and why

  virtual std::unique_ptr<Buffer> allocate(std::string name, std::uint64_t length, Memory memory) = 0;
  virtual void read(const Range& from, void* to) = 0;
  virtual void write(const Range& to, const void* from) = 0;
  virtual void copy(const Range& to, const Range& from) = 0;
  virtual void fill(const Range& range, std::uint8_t value) = 0;
  // Nobody will read what `range` holds: where the device can, its memory goes back to the system until it is written again.
  virtual void discard(const Range&) {}

  // Puts `weight` into the form that this device's kernels of its role read.
  virtual PreparedWeight prepare(const HostWeight& weight) = 0;

  // The kernel of that name for the model given at creation; DeviceError when this device has none.
  virtual const Kernel& kernel(std::string_view name) = 0;
  virtual std::vector<std::string_view> kernel_names() const = 0;

  virtual std::unique_ptr<Executable> compile(Program& program) = 0;
  // Starts one segment. Work of earlier tickets is finished before it reads or writes anything that they touch.
  virtual Ticket commit(Executable& executable, std::uint32_t segment) = 0;
  // Returns when the work is done; throws DeviceError if it failed.
  virtual void wait(Ticket ticket) = 0;
};

// What "auto" means to users: the GPU of a Mac, else the CPU.
#ifdef __APPLE__
constexpr const char* kDefaultDevice = "metal";
#else
constexpr const char* kDefaultDevice = "cpu";
#endif

// The precision of `dtype` ("float32", "float16" or "auto": the device's fastest) on a device. DeviceError when this build or
// machine has no such device, std::invalid_argument when it does not support the dtype.
Precision precision_of(std::string_view device_name, std::string_view dtype);

// DeviceError when this build or machine has no such device.
DeviceTraits traits_of(std::string_view device_name);

// A device by name ("cpu") for a model of these sizes. debug: its switches, separated by commas (CONTRIBUTING.md). DeviceError
// for one that it does not know, and when this build or machine has no such device.
std::unique_ptr<Device> make_device(std::string_view name, const ModelConstants& model, std::string_view debug);

}  // namespace lily
