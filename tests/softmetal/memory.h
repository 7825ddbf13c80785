// The memory of all buffers of the process, by address.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace softmetal {

struct Allocation {
  std::uintptr_t begin = 0;
  std::uint64_t length = 0;
  bool is_untracked = false;
  std::string label;

  std::uintptr_t end() const { return begin + length; }
};

// Memory whose end, rounded up to 16 bytes, is a page that nobody may touch; all ones, which as floats are NaN.
// nullptr when there is none.
void* allocate_guarded(std::uint64_t length);
void free_guarded(void* memory, std::uint64_t length);

void add_allocation(Allocation allocation);
void remove_allocation(std::uintptr_t begin);
void label_allocation(std::uintptr_t begin, std::string label);
// The live buffer that this address lies in; one of length n also has the address begin + n.
std::optional<Allocation> find_allocation(std::uintptr_t address);

// "12 bytes past the end of 'kv' (4096 bytes)", for the message about an access that faulted.
std::string describe_address(std::uintptr_t address);

}  // namespace softmetal
