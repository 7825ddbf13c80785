// A temporary folder for files made of a fuzzer's input.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace lily::fuzz {

class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "lily-fuzz-XXXXXX").string();
    if (!mkdtemp(pattern.data())) std::abort();
    path_ = pattern;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  std::string path(const std::string& name) const { return path_ + "/" + name; }

  // Writes a whole file; returns its path.
  std::string write(const std::string& name, const std::uint8_t* data, std::size_t size) const {
    std::string file = path(name);
    const int descriptor = open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (descriptor < 0 || ::write(descriptor, data, size) != static_cast<ssize_t>(size) || close(descriptor) != 0) std::abort();
    return file;
  }
  void remove(const std::string& name) const { unlink(path(name).c_str()); }

 private:
  std::string path_;
};

}  // namespace lily::fuzz
