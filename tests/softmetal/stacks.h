// Stacks of fibers, and the switch from one to another.
#pragma once

#include <cstddef>
#include <vector>

namespace softmetal {

// Each ends in a page that nobody may touch. Those given back are taken again; none is freed.
class Stacks {
 public:
  char* take();  // its upper end
  void give_back(char* stack) { free_.push_back(stack); }

 private:
  std::vector<char*> free_;
  std::size_t num_made_ = 0;
};

// What a switch to an unused stack continues with: `entry`, which must not return.
void* begin_of(char* stack, void (*entry)());

}  // namespace softmetal

// Saves the callee's registers and the stack pointer in *save and continues where `to` was saved.
extern "C" __attribute__((visibility("hidden"))) void softmetal_switch(void** save, void* to);
