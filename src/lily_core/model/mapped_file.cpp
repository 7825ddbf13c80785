#include "model/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <mutex>
#include <system_error>
#include <utility>

#include "error.h"

namespace lily {

// Entries of a list that only grows, so that a signal handler may walk it: those of closed files are used again.
struct WatchedMapping {
  std::atomic<std::byte*> begin = nullptr;  // nullptr: free
  std::atomic<std::uint64_t> length = 0;
  std::atomic<bool> lost = false;
  WatchedMapping* next = nullptr;
};

namespace {

constexpr std::uint64_t kReadBytes = 8 << 20;  // per pread: what the page cache may hold of a read at a time
constexpr const char* kLoadAgain = "Load the model again";

std::string error_text(int code) { return std::generic_category().message(code); }

std::int64_t modified_ns(const struct stat& status) {
#ifdef __APPLE__
  const timespec& time = status.st_mtimespec;
#else
  const timespec& time = status.st_mtim;
#endif
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

std::mutex watch_mutex;
std::atomic<WatchedMapping*> watched_mappings = nullptr;
struct sigaction previous_action;

// Puts zeros in place of a mapping of ours that cannot be read any more, and goes on: what is computed from them is thrown away
// by require_unchanged(). Jumping out of a kernel instead would leave the other threads of its step waiting.
void on_bus_error(int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  const auto* address = static_cast<const std::byte*>(info->si_addr);
  for (WatchedMapping* w = watched_mappings.load(std::memory_order_acquire); w; w = w->next) {
    std::byte* const begin = w->begin.load(std::memory_order_acquire);
    const std::uint64_t length = w->length.load(std::memory_order_relaxed);
    if (!begin || address < begin || address >= begin + length) continue;
    w->lost.store(true, std::memory_order_release);
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (mmap(begin, length, PROT_READ, flags, -1, 0) == MAP_FAILED) break;
    errno = saved_errno;
    return;
  }
  errno = saved_errno;
  // Not ours: as if this handler were not there.
  if (previous_action.sa_flags & SA_SIGINFO) return previous_action.sa_sigaction(signal, info, context);
  if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) return previous_action.sa_handler(signal);
  sigaction(signal, &previous_action, nullptr);
}

void install_handler() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action = {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGBUS, &action, &previous_action);  // cannot fail: signal and pointers are valid
  });
}

WatchedMapping* watch(std::byte* begin, std::uint64_t length) {
  install_handler();
  const std::lock_guard lock(watch_mutex);
  WatchedMapping* w = watched_mappings.load();
  while (w && w->begin.load()) w = w->next;
  if (!w) {
    w = new WatchedMapping;
    w->next = watched_mappings.load();
    watched_mappings.store(w, std::memory_order_release);
  }
  w->lost = false;
  w->length = length;
  w->begin.store(begin, std::memory_order_release);
  return w;
}

void unwatch(WatchedMapping* w) {
  const std::lock_guard lock(watch_mutex);
  w->begin.store(nullptr, std::memory_order_release);
}

}  // namespace

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  auto fail = [&](const std::string& problem) {
    if (descriptor_ >= 0) close(descriptor_);
    throw CheckpointError(problem, {.path = path_});
  };
  // Without O_NONBLOCK opening a pipe would wait for its writer.
  descriptor_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) fail("cannot open the file: " + error_text(errno));
  struct stat status = {};
  if (fstat(descriptor_, &status) != 0) fail("cannot read the file's size: " + error_text(errno));
  if (!S_ISREG(status.st_mode)) fail("not a regular file");
  size_ = static_cast<std::uint64_t>(status.st_size);
  modified_ns_ = modified_ns(status);
  if (size_ == 0) return;  // an empty range cannot be mapped
  reserved_size_ = size_ + 2 * kAlignment;
  reserved_ = mmap(nullptr, reserved_size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved_ == MAP_FAILED) fail("cannot map the file: " + error_text(errno));
  const std::uintptr_t start = (reinterpret_cast<std::uintptr_t>(reserved_) + kAlignment - 1) / kAlignment * kAlignment;
  void* address = mmap(reinterpret_cast<void*>(start), size_, PROT_READ, MAP_SHARED | MAP_FIXED, descriptor_, 0);
  if (address == MAP_FAILED) {
    const int error = errno;
    munmap(reserved_, reserved_size_);
    fail("cannot map the file: " + error_text(error));
  }
#ifdef MADV_HUGEPAGE
  madvise(address, size_, MADV_HUGEPAGE);  // only advice: newer kernels then keep what they read of the file in huge pages
#endif
  data_ = static_cast<const std::byte*>(address);
  watched_ = watch(static_cast<std::byte*>(address), size_);
#ifdef __APPLE__
  fcntl(descriptor_, F_NOCACHE, 1);  // for pread; the mapping stays cached
#endif
}

MappedFile::~MappedFile() {
  if (watched_) unwatch(watched_);
  if (data_) munmap(reserved_, reserved_size_);
  close(descriptor_);
}

void MappedFile::read(void* to, std::uint64_t offset, std::uint64_t length) const {
  std::byte* out = static_cast<std::byte*>(to);
  while (length > 0) {
    const ssize_t got = pread(descriptor_, out, std::min(length, kReadBytes), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw CheckpointError("cannot read the file: " + error_text(errno), {.path = path_});
    if (got == 0)
      throw CheckpointError(
          "the file became shorter while it was read",
          {.path = path_, .expected = std::to_string(size_) + " bytes", .found = std::to_string(offset), .fix = kLoadAgain});
#ifdef POSIX_FADV_DONTNEED
    // From the read before on: the cache keeps blocks of megabytes, and drops none of which only a part is named.
    const std::uint64_t begin = offset - std::min(offset, kReadBytes);
    posix_fadvise(descriptor_, static_cast<off_t>(begin), static_cast<off_t>(offset - begin) + got, POSIX_FADV_DONTNEED);
#endif
    out += got;
    offset += static_cast<std::uint64_t>(got);
    length -= static_cast<std::uint64_t>(got);
  }
}

void MappedFile::require_unchanged() const {
  struct stat status = {};
  if (fstat(descriptor_, &status) != 0)
    throw CheckpointError("cannot look at the file: " + error_text(errno), {.path = path_});
  if (static_cast<std::uint64_t>(status.st_size) != size_)
    throw CheckpointError("the file's size changed while it was in use", {.path = path_,
                                                                          .expected = std::to_string(size_) + " bytes",
                                                                          .found = std::to_string(status.st_size),
                                                                          .fix = kLoadAgain});
  if (modified_ns(status) != modified_ns_)
    throw CheckpointError("the file was written to while it was in use", {.path = path_,
                                                                          .expected = "no change since it was opened",
                                                                          .fix = kLoadAgain});
  if (watched_ && watched_->lost.load(std::memory_order_acquire))
    throw CheckpointError("a part of the file could not be read from its disk", {.path = path_, .fix = kLoadAgain});
}

}  // namespace lily
