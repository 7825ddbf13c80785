// Classes, their methods, and messages.
#include "objc_runtime.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "objc_abi.h"

namespace softmetal {

extern "C" {
void* _objc_empty_cache[2];
#define SECTION_BOUND __attribute__((weak, visibility("hidden")))
extern Selector __start_objc_selrefs[] SECTION_BOUND, __stop_objc_selrefs[] SECTION_BOUND;
extern ClassInfo *__start_objc_classlist[] SECTION_BOUND, *__stop_objc_classlist[] SECTION_BOUND;
extern CategoryInfo *__start_objc_catlist[] SECTION_BOUND, *__stop_objc_catlist[] SECTION_BOUND;
}

namespace {

struct Registry {
  std::shared_mutex mutex;
  std::unordered_set<std::string> names;  // selectors are compared by address
  std::unordered_map<std::string, ClassInfo*> classes;
  std::unordered_map<const ClassInfo*, std::unordered_map<Selector, void*>> methods;

  // The caller holds the mutex.
  Selector intern(const char* name) { return names.emplace(name).first->c_str(); }

  void add(ClassInfo* type, MethodList* list) {
    auto& own = methods[type];
    for (std::uint32_t i = 0; list && i < list->count; ++i) {
      list->methods[i].selector = intern(list->methods[i].selector);
      own[list->methods[i].selector] = list->methods[i].function;
    }
  }

  void* find(const ClassInfo* type, Selector selector) {
    const std::shared_lock lock(mutex);
    for (; type; type = type->superclass) {
      if (void* function = find_own(type, selector)) return function;
    }
    return nullptr;
  }
  void* find_own(const ClassInfo* type, Selector selector) {
    const auto own = methods.find(type);
    if (own == methods.end()) return nullptr;
    const auto found = own->second.find(selector);
    return found == own->second.end() ? nullptr : found->second;
  }
};
Registry& registry() {
  static Registry* const only = new Registry;  // objects, and messages to them, may outlive everything else
  return *only;
}

// Instance variables begin where those of the superclass end, which the compiler does not know.
void slide_ivars(ClassInfo* type, std::unordered_set<ClassInfo*>& done) {
  if (!type || !type->superclass || !done.insert(type).second) return;
  slide_ivars(type->superclass, done);
  const std::uint32_t needed = type->superclass->data->instance_size;
  if (type->data->instance_start >= needed) return;
  const std::uint32_t by = (needed - type->data->instance_start + 7) & ~7u;
  for (std::uint32_t i = 0; type->data->ivars && i < type->data->ivars->count; ++i) {
    if (std::int32_t* offset = type->data->ivars->ivars[i].offset) *offset += std::int32_t(by);
  }
  type->data->instance_start += by;
  type->data->instance_size += by;
}

__attribute__((constructor(101))) void register_image() {
  Registry& r = registry();
  const std::unique_lock lock(r.mutex);
  for (Selector* s = __start_objc_selrefs; s != __stop_objc_selrefs; ++s) *s = r.intern(*s);
  for (ClassInfo** c = __start_objc_classlist; c != __stop_objc_classlist; ++c) {
    r.classes[(*c)->data->name] = *c;
    r.add(*c, (*c)->data->methods);
    r.add((*c)->isa, (*c)->isa->data->methods);
  }
  for (CategoryInfo** c = __start_objc_catlist; c != __stop_objc_catlist; ++c) {
    r.add((*c)->extended, (*c)->instance_methods);
    r.add((*c)->extended->isa, (*c)->class_methods);
  }
  std::unordered_set<ClassInfo*> done;
  for (ClassInfo** c = __start_objc_classlist; c != __stop_objc_classlist; ++c) slide_ivars(*c, done);
}

}  // namespace

void* own_method(const ClassInfo* type, Selector selector) {
  const std::shared_lock lock(registry().mutex);
  return registry().find_own(type, selector);
}

extern "C" {

Selector sel_registerName(const char* name) {
  const std::unique_lock lock(registry().mutex);
  return registry().intern(name);
}

void* softmetal_method(ClassInfo* type, Selector selector, Object* object) {
  if (object && is_block(object)) type = &OBJC_CLASS_$_NSBlock;
  if (void* function = registry().find(type, selector)) return function;
  std::fprintf(stderr, "unrecognised selector %c[%s %s] sent to %p\n", type->is_meta() ? '+' : '-', type->data->name, selector,
               static_cast<void*>(object));
  std::abort();
}

// The arguments are kept while the method is looked up, which then is jumped to. A message to nil is 0.
#define SAVE_ARGUMENTS \
  "push %rbp\n mov %rsp, %rbp\n sub $208, %rsp\n" \
  "mov %rdi, 0(%rsp)\n mov %rsi, 8(%rsp)\n mov %rdx, 16(%rsp)\n mov %rcx, 24(%rsp)\n mov %r8, 32(%rsp)\n mov %r9, 40(%rsp)\n" \
  "mov %rax, 48(%rsp)\n movups %xmm0, 64(%rsp)\n movups %xmm1, 80(%rsp)\n movups %xmm2, 96(%rsp)\n movups %xmm3, 112(%rsp)\n" \
  "movups %xmm4, 128(%rsp)\n movups %xmm5, 144(%rsp)\n movups %xmm6, 160(%rsp)\n movups %xmm7, 176(%rsp)\n"
#define JUMP_TO_METHOD \
  "mov %rax, %r11\n" \
  "mov 0(%rsp), %rdi\n mov 8(%rsp), %rsi\n mov 16(%rsp), %rdx\n mov 24(%rsp), %rcx\n mov 32(%rsp), %r8\n mov 40(%rsp), %r9\n" \
  "mov 48(%rsp), %rax\n movups 64(%rsp), %xmm0\n movups 80(%rsp), %xmm1\n movups 96(%rsp), %xmm2\n movups 112(%rsp), %xmm3\n" \
  "movups 128(%rsp), %xmm4\n movups 144(%rsp), %xmm5\n movups 160(%rsp), %xmm6\n movups 176(%rsp), %xmm7\n" \
  "leave\n jmp *%r11\n"
#define FUNCTION(name) ".globl " #name "\n .hidden " #name "\n .type " #name ", @function\n" #name ":\n"
asm(".text\n"
    FUNCTION(objc_msgSend)
    "test %rdi, %rdi\n jz 1f\n" SAVE_ARGUMENTS
    "mov %rdi, %rdx\n mov (%rdi), %rdi\n call softmetal_method\n" JUMP_TO_METHOD
    "1: xor %eax, %eax\n xor %edx, %edx\n xorps %xmm0, %xmm0\n xorps %xmm1, %xmm1\n ret\n"
    FUNCTION(objc_msgSend_stret)
    "test %rsi, %rsi\n jz 1f\n" SAVE_ARGUMENTS
    "mov %rdx, %rax\n mov %rsi, %rdx\n mov (%rsi), %rdi\n mov %rax, %rsi\n call softmetal_method\n" JUMP_TO_METHOD
    "1: mov %rdi, %rax\n ret\n"
    FUNCTION(objc_msgSendSuper2)
    "mov 8(%rdi), %r10\n mov (%rdi), %rdi\n" SAVE_ARGUMENTS
    "mov %rdi, %rdx\n mov 8(%r10), %rdi\n call softmetal_method\n" JUMP_TO_METHOD);

ClassInfo* objc_getClass(const char* name) {
  const std::shared_lock lock(registry().mutex);
  const auto found = registry().classes.find(name);
  return found == registry().classes.end() ? nullptr : found->second;
}
ClassInfo* object_getClass(Object* object) { return object ? class_of(object) : nullptr; }
const char* class_getName(ClassInfo* type) { return type ? type->data->name : "nil"; }
bool class_respondsToSelector(ClassInfo* type, Selector selector) { return registry().find(type, selector) != nullptr; }
bool class_conformsToProtocol(ClassInfo* type, ProtocolInfo* protocol) {
  for (; type; type = type->superclass) {
    std::vector<ProtocolList*> lists{type->data->protocols};
    while (!lists.empty()) {
      const ProtocolList* list = lists.back();
      lists.pop_back();
      for (std::uintptr_t i = 0; list && i < list->count; ++i) {
        if (std::strcmp(list->protocols[i]->name, protocol->name) == 0) return true;
        lists.push_back(list->protocols[i]->adopted);
      }
    }
  }
  return false;
}
bool objc_opt_isKindOfClass(Object* object, ClassInfo* type) {
  for (ClassInfo* c = object_getClass(object); c; c = c->superclass)
    if (c == type) return true;
  return false;
}
bool objc_opt_respondsToSelector(Object* object, Selector selector) {
  return object && class_respondsToSelector(class_of(object), selector);
}
Object* objc_opt_class(Object* object) { return object && object->isa->is_meta() ? object : (Object*)object_getClass(object); }
Object* objc_opt_self(Object* object) { return object; }

}

}  // namespace softmetal
