// What the compiler lays out. Names are ours, the order of the fields is the ABI's.
#pragma once

#include <cstdint>

namespace softmetal {

struct Method {
  const char *selector, *types;
  void* function;
};
struct MethodList {
  std::uint32_t entry_size, count;
  Method methods[];
};
struct Ivar {
  std::int32_t* offset;
  const char *name, *type;
  std::uint32_t alignment, size;
};
struct IvarList {
  std::uint32_t entry_size, count;
  Ivar ivars[];
};
struct ProtocolList;
struct ProtocolInfo {
  void* isa;
  const char* name;
  ProtocolList* adopted;
};
struct ProtocolList {
  std::uintptr_t count;
  ProtocolInfo* protocols[];
};
struct ClassData {
  std::uint32_t flags, instance_start, instance_size, reserved;
  const std::uint8_t* strong_layout;
  const char* name;
  MethodList* methods;
  ProtocolList* protocols;
  IvarList* ivars;
};
struct ClassInfo {
  ClassInfo *isa, *superclass;
  void *cache, *vtable;
  ClassData* data;
  bool is_meta() const { return data->flags & 1; }
};
struct CategoryInfo {
  const char* name;
  ClassInfo* extended;
  MethodList *instance_methods, *class_methods;
};
struct Object {
  ClassInfo* isa;
};
using Selector = const char*;

extern "C" {
extern void *_NSConcreteStackBlock[], *_NSConcreteGlobalBlock[], *_NSConcreteMallocBlock[];
extern ClassInfo OBJC_CLASS_$_NSBlock;
extern ClassInfo OBJC_CLASS_$_NSConstantString;
}

inline bool is_block(const Object* object) {
  const void* isa = object->isa;
  return isa == _NSConcreteStackBlock || isa == _NSConcreteGlobalBlock || isa == _NSConcreteMallocBlock;
}
inline ClassInfo* class_of(const Object* object) { return is_block(object) ? &OBJC_CLASS_$_NSBlock : object->isa; }

// The method of a class or of one above it, for a message to `object` or, nullptr, to the class; aborts where there is none.
extern "C" void* softmetal_method(ClassInfo* type, Selector selector, Object* object);
// nullptr: the class has none of its own.
void* own_method(const ClassInfo* type, Selector selector);
extern "C" Selector sel_registerName(const char* name);

}  // namespace softmetal
