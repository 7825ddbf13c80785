// Kernels, compilers and GPUs that fail.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <utility>

#include "device/device.h"
#include "tests/device/metal/conformance/checks.h"

namespace lily::conformance {
namespace {

struct Failure {
  std::string code, kernel, message;
  bool fatal = false;
};

// What `work` fails with.
Failure failure_of(auto&& work) {
  try {
    work();
  } catch (const DeviceError& error) {
    return {error.code, error.kernel, error.what(), error.fatal};
  }
  return {};
}

void expect_code(const Failure& failure, const std::string& code) {
  expect(failure.code == code, "the error's code is \"" + failure.code + "\"");
}

// A failed command buffer is an error with Metal's code, and the device goes on.
void check_failure() {
  Doubling doubling;
  change_settings([](softmetal::Settings& s) { s.fail_code = 2; });
  const Failure failure = failure_of([&] { doubling.run(); });
  expect_code(failure, "gpu_timeout");
  expect(!failure.fatal, "a timeout of the GPU is not fatal");
  expect(failure.kernel == "moe_combine_f16", "the error names the kernel, not \"" + failure.kernel + "\"");
  change_settings([](softmetal::Settings& s) { s.fail_code = 0; });
  doubling.run();
  doubling.chain.expect_all(doubling.chain.x, 3);
}

// Metal ignores what follows some errors: the device says so from then on.
void check_fatal_failure() {
  Doubling doubling;
  for (const auto& [fail_code, expected] : {std::pair(4, "access_revoked"), std::pair(0, "lost")}) {
    change_settings([&](softmetal::Settings& s) { s.fail_code = fail_code; });
    const Failure failure = failure_of([&] { doubling.run(); });
    expect_code(failure, expected);
    expect(failure.fatal, failure.code + " is fatal");
  }
}

// Waits last so long. The forms of matrix products are not compared: that is other work, which may take longer on a busy machine.
void set_patience(int seconds) {
  static const std::string given = debug.empty() ? "simdgroup" : debug;
  debug = given + ",timeout=" + std::to_string(seconds);
}

// A GPU that does not answer ends a wait.
void check_hang() {
  set_patience(1);
  Doubling doubling;
  change_settings([](softmetal::Settings& s) { s.stalls = true; });
  const auto begin = std::chrono::steady_clock::now();
  const Failure failure = failure_of([&] { doubling.run(); });
  const auto passed = std::chrono::steady_clock::now() - begin;
  change_settings([](softmetal::Settings& s) { s.stalls = false; });
  expect_code(failure, "timeout");
  expect(failure.message.find("still runs moe_combine_f16") != std::string::npos, failure.message);
  expect(passed < std::chrono::seconds(20), "the wait took too long");
}

// What a wait fails with during which the process is stopped, for half a second longer than a wait may last.
Failure failure_of_a_stop(int patience_seconds) {
  set_patience(patience_seconds);
  Doubling doubling;
  change_settings([](softmetal::Settings& s) { s.stalls = true; });
  if (const pid_t parent = getpid(); fork() == 0) {
    usleep(200'000), kill(parent, SIGSTOP), usleep(patience_seconds * 1'000'000 + 500'000), kill(parent, SIGCONT);
    _exit(0);
  }
  std::thread gpu([] {  // goes on when the stop is over, which shows in the time that passed
    using Clock = std::chrono::steady_clock;
    for (auto before = Clock::now(); Clock::now() - before < std::chrono::seconds(1);) {
      before = Clock::now();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    change_settings([](softmetal::Settings& s) { s.stalls = false; });
  });
  const Failure failure = failure_of([&] { doubling.run(); });
  gpu.join();
  ::wait(nullptr);
  return failure;
}

// A stop of the process, as by Ctrl-Z, is no hang. A busy machine may hold up the threads beside it: then again, with more time.
void check_stop() {
  Failure failure;
  for (const int patience_seconds : {2, 4, 8, 16})
    if (failure = failure_of_a_stop(patience_seconds); failure.message.empty()) return;
  expect(false, failure.message);
}

// A read behind the end of a buffer.
void check_overrun() {
  const auto device = make_device();
  Chain chain(*device);
  chain.program.dispatch(device->kernel("gated_norm_f16"), RowsArgs{kRows},
                         {Vectors::whole(chain.x), Vectors::whole(chain.d), Vectors::whole(chain.d), Vectors::whole(chain.y)},
                         {kRows});
  chain.run();
}

// What the compiler says reaches the caller, with the file's own line.
void check_compile_error() {
  const auto device = make_device();
  Chain chain(*device);
  const Failure failure = failure_of([&] {
    chain.program.dispatch(device->kernel("topk_f16"), RowsArgs{kRows},
                           {Vectors::whole(chain.x), Vectors::whole(chain.y), Vectors::whole(chain.y)}, {kRows});
    chain.run();
  });
  expect_code(failure, "compile");
  expect(failure.message.find("topk.metal:2") != std::string::npos, failure.message);
}

}  // namespace

const Checks& failure_checks() {
  static const Checks all = {
      {"failure", check_failure},
      {"fatal_failure", check_fatal_failure},
      {"hang", check_hang},
      {"stop", check_stop},
      {"overrun", check_overrun},
      {"compile_error", check_compile_error},
  };
  return all;
}

}  // namespace lily::conformance
