// A file of a checkpoint, mapped for reading, that says when it is not what it was.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace lily {

struct WatchedMapping;  // what the signal handler knows of a mapping

// An open descriptor and a read-only mapping of a whole file. A file that another one replaces by rename lives on here. One that
// is written to or cut off in place does not: require_unchanged() finds that. Until then reading past a new end, or where the
// disk fails, gives zeros; without the handler that this class installs the system would end the process (SIGBUS).
class MappedFile {
 public:
  // The mapping starts at a multiple of this, and what lies behind it up to the next multiple belongs to it: a huge page, and a
  // multiple of the page of Apple silicon, in which Metal wraps memory.
  static constexpr std::uint64_t kAlignment = 2 << 20;

  explicit MappedFile(std::string path);  // throws CheckpointError
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  const std::byte* data() const { return data_; }
  std::uint64_t size() const { return size_; }

  // Reads `length` bytes from `offset` of the file and drops them from the page cache: memory must not hold them twice.
  // Throws CheckpointError when the file has become shorter or cannot be read.
  void read(void* to, std::uint64_t offset, std::uint64_t length) const;

  // Throws CheckpointError when size or time of the last change differ from those at opening, or when mapped bytes were lost.
  void require_unchanged() const;

 private:
  std::string path_;
  int descriptor_ = -1;
  const std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
  void* reserved_ = nullptr;  // the addresses that hold the mapping
  std::uint64_t reserved_size_ = 0;
  std::int64_t modified_ns_ = 0;
  WatchedMapping* watched_ = nullptr;
};

}  // namespace lily
