#include "softmetal.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "objc_runtime.h"

namespace softmetal {
namespace {

struct Controls {
  std::mutex mutex;
  Settings settings;
  std::vector<std::string> reports;
};
Controls& controls() {
  static Controls* const only = new Controls;  // queue threads may outlive statics
  return *only;
}

}  // namespace

void configure(const Settings& settings) {
  const std::lock_guard lock(controls().mutex);
  controls().settings = settings;
}

Settings settings() {
  const std::lock_guard lock(controls().mutex);
  return controls().settings;
}

void report(const std::string& message) {
  const std::lock_guard lock(controls().mutex);
  controls().reports.push_back(message);
  std::fprintf(stderr, "software Metal: %s\n", message.c_str());
}

std::vector<std::string> take_reports() {
  const std::lock_guard lock(controls().mutex);
  return std::exchange(controls().reports, {});
}

}  // namespace softmetal

// ---- For ctypes: control.py

#define EXPORT __attribute__((visibility("default")))

namespace {

// Text that stays valid until the thread asks again.
const char* keep(std::string text) {
  static thread_local std::string kept;
  kept = std::move(text);
  return kept.c_str();
}

}  // namespace

extern "C" {

EXPORT void softmetal_configure(int reverse, int has_metal4, std::uint64_t max_buffer_length, std::uint64_t working_set_size,
                                std::uint64_t fail_after, long fail_code, int stalls) {
  softmetal::configure({reverse ? softmetal::Order::kReverse : softmetal::Order::kForward, has_metal4 != 0, max_buffer_length,
                        working_set_size, fail_after, fail_code, stalls != 0});
}

// One report a line.
EXPORT const char* softmetal_take_reports() {
  std::string text;
  for (const std::string& report : softmetal::take_reports()) text += report + "\n";
  return keep(std::move(text));
}

// "CLASS COUNT" a line.
EXPORT const char* softmetal_live_objects() {
  std::string text;
  for (const auto& [name, count] : softmetal::live_objects()) text += name + " " + std::to_string(count) + "\n";
  return keep(std::move(text));
}
}
