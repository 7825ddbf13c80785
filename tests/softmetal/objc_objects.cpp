// Objects from their allocation to their end, and what refers to them.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "objc_abi.h"
#include "objc_runtime.h"

extern "C" {
void* _Block_copy(const void* block);
void _Block_release(const void* block);
}

namespace softmetal {
namespace {

// In front of every object.
struct Header {
  std::atomic<std::int64_t> references{1};
  std::int64_t padding = 0;
};
Header& header(Object* object) { return *(reinterpret_cast<Header*>(object) - 1); }

struct Living {
  std::mutex mutex;
  std::unordered_map<Object*, ClassInfo*> objects;
  std::unordered_map<Object*, std::unordered_set<Object**>> weak_references;
};
Living& living() {
  static Living* const only = new Living;  // objects may outlive everything else
  return *only;
}

bool is_heap_block(const Object* object) { return static_cast<const void*>(object->isa) == _NSConcreteMallocBlock; }
bool is_counted(const Object* object) { return object->isa != &OBJC_CLASS_$_NSConstantString && !object->isa->is_meta(); }

}  // namespace

extern "C" {

// ---- Objects

static void construct(Object* object, ClassInfo* type) {
  static const Selector selector = sel_registerName(".cxx_construct");
  if (!type) return;
  construct(object, type->superclass);
  if (void* function = own_method(type, selector))
    reinterpret_cast<Object* (*)(Object*, Selector)>(function)(object, selector);
}
static void destruct(Object* object) {
  static const Selector selector = sel_registerName(".cxx_destruct");
  for (ClassInfo* type = object->isa; type; type = type->superclass) {
    if (void* function = own_method(type, selector)) reinterpret_cast<void (*)(Object*, Selector)>(function)(object, selector);
  }
}
Object* objc_alloc(ClassInfo* type) {
  if (!type) return nullptr;
  auto* memory = static_cast<char*>(std::calloc(1, sizeof(Header) + type->data->instance_size));
  new (memory) Header;
  auto* object = reinterpret_cast<Object*>(memory + sizeof(Header));
  object->isa = type;
  {
    const std::lock_guard lock(living().mutex);
    living().objects[object] = type;
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
    const std::lock_guard lock(living().mutex);
    const auto weak = living().weak_references.find(object);
    if (weak != living().weak_references.end()) {
      for (Object** reference : weak->second) *reference = nullptr;
      living().weak_references.erase(weak);
    }
  }
  destruct(object);
  {
    const std::lock_guard lock(living().mutex);
    living().objects.erase(object);
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
  const std::lock_guard lock(living().mutex);
  if (*place) living().weak_references[*place].erase(place);
  if (object) living().weak_references[object].insert(place);
  return *place = object;
}
Object* objc_initWeak(Object** place, Object* object) {
  *place = nullptr;
  return objc_storeWeak(place, object);
}
void objc_destroyWeak(Object** place) { objc_storeWeak(place, nullptr); }
Object* objc_loadWeakRetained(Object** place) {
  const std::lock_guard lock(living().mutex);
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

// ---- Locks

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

std::map<std::string, long> live_objects() {
  const std::lock_guard lock(living().mutex);
  std::map<std::string, long> count;
  for (const auto& [object, type] : living().objects) ++count[type->data->name];
  return count;
}

}  // namespace softmetal
