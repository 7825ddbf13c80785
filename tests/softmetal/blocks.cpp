// The block runtime behind clang's -fblocks (the published Block ABI).
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

extern "C" {
void* objc_retain(void* object);
void objc_release(void* object);
void *_NSConcreteStackBlock[32], *_NSConcreteGlobalBlock[32], *_NSConcreteMallocBlock[32];
void* _Block_copy(const void* block);
void _Block_release(const void* block);
}

namespace {

enum Flags : std::int32_t { kCount = 0xffff, kOnHeap = 1 << 24, kHasCopy = 1 << 25, kIsGlobal = 1 << 28 };
enum Kind { kObject = 3, kBlock = 7, kByReference = 8, kByReferenceCaller = 128 };

struct Descriptor {
  unsigned long reserved, size;
  void (*copy)(void* to, const void* from);
  void (*dispose)(const void* block);
};
struct Block {
  void* isa;
  std::atomic<std::int32_t> flags;
  std::int32_t reserved;
  void (*invoke)();
  Descriptor* descriptor;
};
// A __block variable.
struct ByReference {
  void* isa;
  ByReference* forwarding;
  std::atomic<std::int32_t> flags;
  std::uint32_t size;
  void (*keep)(ByReference* to, ByReference* from);
  void (*destroy)(ByReference* variable);
};

bool drops_last(std::atomic<std::int32_t>& flags) { return ((flags.fetch_sub(1) - 1) & kCount) == 0; }

ByReference* copy(ByReference* variable) {
  if (variable->forwarding->flags & kOnHeap) {
    variable->forwarding->flags++;
    return variable->forwarding;
  }
  auto* moved = static_cast<ByReference*>(std::malloc(variable->size));
  std::memcpy(static_cast<void*>(moved), variable, variable->size);
  moved->flags = (variable->flags & ~kCount) | kOnHeap | 2;  // one for the block, one for the frame
  moved->forwarding = variable->forwarding = moved;
  if (variable->flags & kHasCopy) variable->keep(moved, variable);
  return moved;
}

void release(ByReference* variable) {
  variable = variable->forwarding;
  if (!(variable->flags & kOnHeap) || !drops_last(variable->flags)) return;
  if (variable->flags & kHasCopy) variable->destroy(variable);
  std::free(variable);
}

}  // namespace

extern "C" {

void* _Block_copy(const void* pointer) {
  auto* block = static_cast<Block*>(const_cast<void*>(pointer));
  if (!block || (block->flags & kIsGlobal)) return block;
  if (block->flags & kOnHeap) {
    block->flags++;
    return block;
  }
  auto* moved = static_cast<Block*>(std::malloc(block->descriptor->size));
  std::memcpy(static_cast<void*>(moved), block, block->descriptor->size);
  moved->isa = _NSConcreteMallocBlock;
  moved->flags = (block->flags & ~kCount) | kOnHeap | 1;
  if (moved->flags & kHasCopy) moved->descriptor->copy(moved, block);
  return moved;
}

void _Block_release(const void* pointer) {
  auto* block = static_cast<Block*>(const_cast<void*>(pointer));
  if (!block || (block->flags & kIsGlobal) || !(block->flags & kOnHeap) || !drops_last(block->flags)) return;
  if (block->flags & kHasCopy) block->descriptor->dispose(block);
  std::free(block);
}

void _Block_object_assign(void* place, const void* object, int kind) {
  void*& to = *static_cast<void**>(place);
  auto* from = const_cast<void*>(object);
  if (kind & kByReferenceCaller) to = from;
  else if (kind & kByReference) to = copy(static_cast<ByReference*>(from));
  else if (kind == kBlock) to = _Block_copy(from);
  else if (kind == kObject) to = objc_retain(from);
  else to = from;
}

void _Block_object_dispose(const void* object, int kind) {
  auto* from = const_cast<void*>(object);
  if (kind & kByReferenceCaller) return;
  if (kind & kByReference) release(static_cast<ByReference*>(from));
  else if (kind == kBlock) _Block_release(from);
  else if (kind == kObject) objc_release(from);
}
}
