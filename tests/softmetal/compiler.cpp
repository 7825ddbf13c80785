#include "compiler.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

#if !defined(LILY_SOFTMETAL_PYTHON) || !defined(LILY_SOFTMETAL_ROOT)
#error "LILY_SOFTMETAL_PYTHON is the interpreter that has ziglang, LILY_SOFTMETAL_ROOT the source tree"
#endif

extern char** environ;
namespace fs = std::filesystem;

namespace softmetal {
namespace {

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

// Two FNV-1a sums with different starts: enough for a cache of some thousand files.
class Digest {
 public:
  void add(std::string_view text) {
    for (std::uint64_t& sum : sums_) {
      for (const char byte : text) sum = (sum ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
      sum = (sum ^ 0x100) * 0x100000001b3u;
    }
  }
  std::string text() const {
    char out[33];
    std::snprintf(out, sizeof out, "%016llx%016llx", static_cast<unsigned long long>(sums_[0]),
                  static_cast<unsigned long long>(sums_[1]));
    return out;
  }

 private:
  std::uint64_t sums_[2] = {0xcbf29ce484222325u, 0x84222325cbf29ce4u};
};

// Of the translator: what it made before is made again when it changes.
const std::string& translator_digest() {
  static const std::string text = [] {
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(LILY_SOFTMETAL_ROOT) / "tools" / "msl")) {
      if (entry.is_regular_file() && entry.path().extension() != ".pyc") files.push_back(entry.path());
    }
    std::ranges::sort(files);
    Digest digest;
    for (const fs::path& file : files) digest.add(read_file(file));
    return digest.text();
  }();
  return text;
}

// Runs a command in the source tree with its messages in `log`; returns its status.
int run(const std::vector<std::string>& command, const fs::path& log) {
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  posix_spawn_file_actions_addchdir_np(&actions, LILY_SOFTMETAL_ROOT);
  pid_t process;
  const int failed = posix_spawnp(&process, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed) throw CompileError(std::string("cannot start ") + arguments[0] + ": " + std::strerror(failed));
  int status = 0;
  while (waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

// A folder of its own for the files of one compilation.
class Workspace {
 public:
  explicit Workspace(const fs::path& cache) {
    std::string pattern = (cache / "work.XXXXXX").string();
    if (!mkdtemp(pattern.data())) throw CompileError("cannot make a folder in " + cache.string());
    path_ = pattern;
  }
  ~Workspace() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

}  // namespace

ShaderLibrary::ShaderLibrary(const std::string& path) {
  // The mathematics that a shader calls; it is not linked against anything.
  static void* const mathematics = dlopen("libm.so.6", RTLD_NOW | RTLD_GLOBAL);
  if (!mathematics) throw CompileError(dlerror());
  handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle_) throw CompileError(dlerror());
  exports_ = static_cast<const msl_library*>(dlsym(handle_, "msl_exports"));
  if (!exports_) {
    dlclose(handle_);
    throw CompileError(path + " is no shader library");
  }
}

ShaderLibrary::~ShaderLibrary() { dlclose(handle_); }

const msl_kernel* ShaderLibrary::find(const std::string& name) const {
  for (unsigned i = 0; i < exports_->num_kernels; ++i)
    if (name == exports_->kernels[i].name) return &exports_->kernels[i];
  return nullptr;
}

std::shared_ptr<ShaderLibrary> compile_shader(const std::string& source, const std::map<std::string, std::string>& macros,
                                              const std::string& math) {
  Digest digest;
  digest.add(translator_digest());
  digest.add(source);
  digest.add(math);
  std::vector<std::string> command{LILY_SOFTMETAL_PYTHON, "-m", "tools.msl", "cpp", "--plain"};
  for (const auto& [name, value] : macros) {
    command.push_back("-D" + name + "=" + value);
    digest.add(command.back());
  }
  const fs::path cache = fs::path(LILY_SOFTMETAL_ROOT) / "build" / "softmetal";
  const fs::path library = cache / (digest.text() + ".so");
  if (!fs::exists(library)) {
    fs::create_directories(cache);
    const Workspace workspace(cache);
    const fs::path input = workspace.path() / "program_source.metal", log = workspace.path() / "log";
    const fs::path output = workspace.path() / "program_source.so";
    std::ofstream(input, std::ios::binary) << source;
    command.insert(command.end(), {"--math", math, "--name", "program_source", "-o", output.string(), input.string()});
    if (run(command, log) != 0) throw CompileError(read_file(log));
    fs::rename(output, library);  // other processes see all of it or nothing
  }
  return std::make_shared<ShaderLibrary>(library.string());
}

}  // namespace softmetal
