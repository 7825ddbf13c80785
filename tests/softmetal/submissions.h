// Submissions that nothing orders yet: on a Mac, work that shares untracked buffers may overlap.
#pragma once

#include <cstdint>
#include <map>

namespace softmetal {

// Queues and events are known by address.
// A queue was given work that uses these addresses; reported when an earlier submission may still be writing or reading one.
void submitted(const void* queue, std::map<std::uintptr_t, bool> uses);
// The queue will set the event to `value` when all that it was given before is done.
void signals(const void* queue, const void* event, std::uint64_t value);
// What follows comes after everything that the event's `value` stands for.
void ordered_after(const void* event, std::uint64_t value);
// What follows comes after everything that the queue was given.
void ordered_after_queue(const void* queue);
// The memory is gone, a new buffer may get its address.
void forget_memory(std::uintptr_t begin, std::uint64_t length);

}  // namespace softmetal
