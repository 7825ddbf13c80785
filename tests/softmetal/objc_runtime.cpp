#include "objc_runtime.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

extern "C" {
void* _Block_copy(const void* block);
void _Block_release(const void* block);
}

// ---- What the compiler lays out. Names are ours, the order of the fields is the ABI's.

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
void* _objc_empty_cache[2];
extern void *_NSConcreteStackBlock[], *_NSConcreteGlobalBlock[], *_NSConcreteMallocBlock[];
extern ClassInfo OBJC_CLASS_$_NSBlock;
extern ClassInfo OBJC_CLASS_$_NSConstantString;
#define SECTION_BOUND __attribute__((weak, visibility("hidden")))
extern Selector __start_objc_selrefs[] SECTION_BOUND, __stop_objc_selrefs[] SECTION_BOUND;
extern ClassInfo *__start_objc_classlist[] SECTION_BOUND, *__stop_objc_classlist[] SECTION_BOUND;
extern CategoryInfo *__start_objc_catlist[] SECTION_BOUND, *__stop_objc_catlist[] SECTION_BOUND;
}

namespace {

// In front of every object.
struct Header {
  std::atomic<std::int64_t> references{1};
  std::int64_t padding = 0;
};
Header& header(Object* object) { return *(reinterpret_cast<Header*>(object) - 1); }

struct Registry {
  std::shared_mutex mutex;
  std::unordered_set<std::string> names;  // selectors are compared by address
  std::unordered_map<std::string, ClassInfo*> classes;
  std::unordered_map<const ClassInfo*, std::unordered_map<Selector, void*>> methods;

  std::mutex objects_mutex;
  std::unordered_map<Object*, ClassInfo*> objects;
  std::unordered_map<Object*, std::unordered_set<Object**>> weak_references;

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
  static Registry* const only = new Registry;  // objects may outlive everything else
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

bool is_block(const Object* object) {
  const void* isa = object->isa;
  return isa == _NSConcreteStackBlock || isa == _NSConcreteGlobalBlock || isa == _NSConcreteMallocBlock;
}
bool is_heap_block(const Object* object) { return static_cast<const void*>(object->isa) == _NSConcreteMallocBlock; }
bool is_counted(const Object* object) { return object->isa != &OBJC_CLASS_$_NSConstantString && !object->isa->is_meta(); }
ClassInfo* class_of(const Object* object) { return is_block(object) ? &OBJC_CLASS_$_NSBlock : object->isa; }

}  // namespace

extern "C" {

Selector sel_registerName(const char* name) {
  const std::unique_lock lock(registry().mutex);
  return registry().intern(name);
}

// ---- Messages

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

// ---- Classes

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

// ---- Objects

static void construct(Object* object, ClassInfo* type) {
  static const Selector selector = sel_registerName(".cxx_construct");
  if (!type) return;
  construct(object, type->superclass);
  void* function;
  {
    const std::shared_lock lock(registry().mutex);
    function = registry().find_own(type, selector);
  }
  if (function) reinterpret_cast<Object* (*)(Object*, Selector)>(function)(object, selector);
}
static void destruct(Object* object) {
  static const Selector selector = sel_registerName(".cxx_destruct");
  for (ClassInfo* type = object->isa; type; type = type->superclass) {
    void* function;
    {
      const std::shared_lock lock(registry().mutex);
      function = registry().find_own(type, selector);
    }
    if (function) reinterpret_cast<void (*)(Object*, Selector)>(function)(object, selector);
  }
}
Object* objc_alloc(ClassInfo* type) {
  if (!type) return nullptr;
  auto* memory = static_cast<char*>(std::calloc(1, sizeof(Header) + type->data->instance_size));
  new (memory) Header;
  auto* object = reinterpret_cast<Object*>(memory + sizeof(Header));
  object->isa = type;
  {
    const std::lock_guard lock(registry().objects_mutex);
    registry().objects[object] = type;
  }
  construct(object, type);
  return object;
}
Object* objc_allocWithZone(ClassInfo* type) { return objc_alloc(type); }
static Object* send(Object* object, const char* name) {
  const Selector selector = sel_registerName(name);
  return reinterpret_cast<Object* (*)(Object*, Selector)>(softmetal_method(class_of(object), selector, object))(object, selector);
}
Object* objc_alloc_init(ClassInfo* type) { return send(objc_alloc(type), "init"); }
Object* objc_opt_new(ClassInfo* type) { return objc_alloc_init(type); }

// -[NSObject dealloc]
void softmetal_free(Object* object) {
  {
    const std::lock_guard lock(registry().objects_mutex);
    const auto weak = registry().weak_references.find(object);
    if (weak != registry().weak_references.end()) {
      for (Object** reference : weak->second) *reference = nullptr;
      registry().weak_references.erase(weak);
    }
  }
  destruct(object);
  {
    const std::lock_guard lock(registry().objects_mutex);
    registry().objects.erase(object);
  }
  std::free(&header(object));
}

// ---- Reference counts

Object* objc_retain(Object* object) {
  if (!object) return nullptr;
  if (is_block(object)) return is_heap_block(object) ? static_cast<Object*>(_Block_copy(object)) : object;
  if (is_counted(object)) header(object).references.fetch_add(1, std::memory_order_relaxed);
  return object;
}
void objc_release(Object* object) {
  if (!object) return;
  if (is_block(object)) {
    if (is_heap_block(object)) _Block_release(object);
    return;
  }
  if (!is_counted(object)) return;
  const std::int64_t left = header(object).references.fetch_sub(1, std::memory_order_acq_rel) - 1;
  if (left == 0) send(object, "dealloc");
  if (left < 0) {
    std::fprintf(stderr, "%s was released too often\n", object->isa->data->name);
    std::abort();
  }
}
Object* objc_retainBlock(Object* object) { return object ? static_cast<Object*>(_Block_copy(object)) : nullptr; }

namespace {
thread_local std::vector<Object*> pools;  // nullptr: a pool begins
}
Object* objc_autorelease(Object* object) {
  if (object) pools.push_back(object);
  return object;
}
void* objc_autoreleasePoolPush() {
  pools.push_back(nullptr);
  return reinterpret_cast<void*>(pools.size());
}
void objc_autoreleasePoolPop(void* pool) {
  while (pools.size() >= reinterpret_cast<std::size_t>(pool)) {
    Object* object = pools.back();
    pools.pop_back();
    objc_release(object);
  }
}
Object* objc_autoreleaseReturnValue(Object* object) { return objc_autorelease(object); }
Object* objc_retainAutorelease(Object* object) { return objc_autorelease(objc_retain(object)); }
Object* objc_retainAutoreleaseReturnValue(Object* object) { return objc_retainAutorelease(object); }
Object* objc_retainAutoreleasedReturnValue(Object* object) { return objc_retain(object); }
Object* objc_claimAutoreleasedReturnValue(Object* object) { return objc_retain(object); }
Object* objc_unsafeClaimAutoreleasedReturnValue(Object* object) { return object; }

void objc_storeStrong(Object** place, Object* object) {
  objc_retain(object);
  Object* old = *place;
  *place = object;
  objc_release(old);
}

// ---- Weak references

Object* objc_storeWeak(Object** place, Object* object) {
  const std::lock_guard lock(registry().objects_mutex);
  if (*place) registry().weak_references[*place].erase(place);
  if (object) registry().weak_references[object].insert(place);
  return *place = object;
}
Object* objc_initWeak(Object** place, Object* object) {
  *place = nullptr;
  return objc_storeWeak(place, object);
}
void objc_destroyWeak(Object** place) { objc_storeWeak(place, nullptr); }
Object* objc_loadWeakRetained(Object** place) {
  const std::lock_guard lock(registry().objects_mutex);
  Object* object = *place;
  if (!object) return nullptr;
  auto& references = header(object).references;
  for (std::int64_t count = references; count > 0;) {
    if (references.compare_exchange_weak(count, count + 1)) return object;
  }
  return nullptr;
}
Object* objc_loadWeak(Object** place) { return objc_autorelease(objc_loadWeakRetained(place)); }
void objc_copyWeak(Object** to, Object** from) {
  Object* object = objc_loadWeakRetained(from);
  objc_initWeak(to, object);
  objc_release(object);
}
void objc_moveWeak(Object** to, Object** from) {
  objc_copyWeak(to, from);
  objc_destroyWeak(from);
}

// ---- Properties

namespace {
std::mutex property_mutex;
Object** property(Object* object, std::ptrdiff_t offset) {
  return reinterpret_cast<Object**>(reinterpret_cast<char*>(object) + offset);
}
Object* copied(Object* value) {
  if (!value || is_block(value)) return objc_retainBlock(value);
  return send(value, "copy");
}
void replace(Object* object, std::ptrdiff_t offset, Object* value) {
  {
    const std::lock_guard lock(property_mutex);
    std::swap(*property(object, offset), value);
  }
  objc_release(value);
}
}  // namespace
Object* objc_getProperty(Object* object, Selector, std::ptrdiff_t offset, bool) {
  const std::lock_guard lock(property_mutex);
  return objc_retainAutorelease(*property(object, offset));
}
void objc_setProperty(Object* object, Selector, std::ptrdiff_t offset, Object* value, bool, signed char copies) {
  replace(object, offset, copies ? copied(value) : objc_retain(value));
}
void objc_setProperty_atomic(Object* object, Selector, Object* value, std::ptrdiff_t offset) {
  replace(object, offset, objc_retain(value));
}
void objc_setProperty_nonatomic(Object* object, Selector, Object* value, std::ptrdiff_t offset) {
  replace(object, offset, objc_retain(value));
}
void objc_setProperty_atomic_copy(Object* object, Selector, Object* value, std::ptrdiff_t offset) {
  replace(object, offset, copied(value));
}
void objc_setProperty_nonatomic_copy(Object* object, Selector, Object* value, std::ptrdiff_t offset) {
  replace(object, offset, copied(value));
}
void objc_copyStruct(void* to, const void* from, std::ptrdiff_t size, bool, bool) {
  const std::lock_guard lock(property_mutex);
  std::memcpy(to, from, std::size_t(size));
}

// ---- The rest

namespace {
std::recursive_mutex synchronized_mutex;  // one for all objects: it guards little here
}
int objc_sync_enter(Object*) {
  synchronized_mutex.lock();
  return 0;
}
int objc_sync_exit(Object*) {
  synchronized_mutex.unlock();
  return 0;
}
}

std::map<std::string, long> softmetal::live_objects() {
  const std::lock_guard lock(registry().objects_mutex);
  std::map<std::string, long> count;
  for (const auto& [object, type] : registry().objects) ++count[type->data->name];
  return count;
}
