// Metal source to code for the CPU: runs `python -m tools.msl`, keeps what it made by content.
#pragma once

#include <map>
#include <memory>
#include <stdexcept>
#include <string>

#include "tools/msl/include/msl/runtime.h"

namespace softmetal {

// A loaded shader; stays loaded as long as anybody holds it.
class ShaderLibrary {
 public:
  explicit ShaderLibrary(const std::string& path);
  ~ShaderLibrary();
  ShaderLibrary(const ShaderLibrary&) = delete;
  ShaderLibrary& operator=(const ShaderLibrary&) = delete;

  const msl_library& exports() const { return *exports_; }
  const msl_kernel* find(const std::string& name) const;  // nullptr: no such kernel

 private:
  void* handle_;
  const msl_library* exports_;
};

class CompileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws CompileError with the compiler's text. `math` is safe, relaxed or fast.
std::shared_ptr<ShaderLibrary> compile_shader(const std::string& source, const std::map<std::string, std::string>& macros,
                                              const std::string& math);

}  // namespace softmetal
