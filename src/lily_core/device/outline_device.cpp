#include "device/outline_device.h"

#include <cstdlib>
#include <span>
#include <stdexcept>
#include <utility>

#include "device/contract.h"
#include "device/prepare.h"
#include "lily_args.h"

namespace lily {
namespace {

class OutlineBuffer final : public Buffer {
 public:
  OutlineBuffer(std::string name, std::uint64_t length, Memory memory)
      : Buffer(std::move(name), length), shared_(memory == Memory::kShared ? std::calloc(length, 1) : nullptr, std::free) {}
  void* contents() override { return shared_.get(); }

 private:
  std::unique_ptr<void, decltype(&std::free)> shared_;
};

class OutlineKernel final : public Kernel {
 public:
  OutlineKernel(std::string name, const Contract& contract)
      : name_(std::move(name)), accesses_(accesses_of(contract)), args_size_(contract.args_size) {}
  std::string_view name() const override { return name_; }
  std::span<const Access> accesses() const override { return accesses_; }
  std::uint32_t args_size() const override { return args_size_; }

 private:
  std::string name_;
  std::vector<Access> accesses_;
  std::uint32_t args_size_;
};

[[noreturn]] void throw_not_runnable() { throw std::logic_error("the outline device has no memory and runs nothing"); }

}  // namespace

std::unique_ptr<Buffer> OutlineDevice::allocate(std::string name, std::uint64_t length, Memory memory) {
  return std::make_unique<OutlineBuffer>(std::move(name), length, memory);
}

PreparedWeight OutlineDevice::prepare(const HostWeight& weight) {
  const WeightForm form = common_form(weight);
  PreparedWeight prepared;
  prepared.format = format_name(form);
  for (const std::span<const HostMatrix> parts : weight.matrices()) {
    std::uint64_t elements = 0;
    for (const HostMatrix& part : parts) elements += std::uint64_t{weight.experts} * part.rows * weight.columns;
    const std::uint64_t pairs = elements / LILY_GROUP_SIZE * (form.wide_pairs ? 4 : 2);
    for (const std::uint64_t length : {elements * form.bits / 8, pairs, pairs}) {
      prepared.owned.push_back(allocate(weight.name, length, Memory::kPrivate));
      prepared.ranges.push_back({prepared.owned.back().get(), 0, length});
    }
  }
  return prepared;
}

const Kernel& OutlineDevice::kernel(std::string_view name) {
  auto found = kernels_.find(name);
  if (found == kernels_.end()) {
    const Contract* contract = find_contract(name);
    if (!contract) throw DeviceError("outline", std::string(name), "kernel", "there is no kernel " + std::string(name));
    found = kernels_.emplace(name, std::make_unique<OutlineKernel>(std::string(name), *contract)).first;
  }
  return *found->second;
}

std::vector<std::string_view> OutlineDevice::kernel_names() const {
  std::vector<std::string_view> names;
  for (const auto& [name, kernel] : kernels_) names.push_back(name);
  return names;
}

void OutlineDevice::read(const Range&, void*) { throw_not_runnable(); }
std::unique_ptr<Executable> OutlineDevice::compile(Program&) { throw_not_runnable(); }
Device::Ticket OutlineDevice::commit(Executable&, std::uint32_t) { throw_not_runnable(); }
void OutlineDevice::wait(Ticket) { throw_not_runnable(); }

}  // namespace lily
