// Runs a check of the Metal device as a whole, over software Metal.
// usage: conformance CHECK [metal3] [reverse] [FOLDER]; FOLDER holds the headers of the 35B. Prints what went wrong, software
// Metal's reports and objects left alive; silence is success.
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>

#include "tests/device/metal/conformance/checks.h"
#include "tests/softmetal/objc_runtime.h"
#include "tests/softmetal/softmetal.h"

namespace {

void run(const std::string& name) {
  using namespace lily::conformance;
  for (const Checks* checks : {&order_checks(), &time_budget_checks(), &failure_checks(), &matrix_form_checks()})
    if (const auto found = checks->find(name); found != checks->end()) return found->second();
  throw std::out_of_range("no check " + name);
}

}  // namespace

int main(int argc, char** argv) {
  softmetal::Settings settings;
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "reverse") settings.order = softmetal::Order::kReverse;
    if (word == "metal3") lily::conformance::debug = "metal3";
    if (word.find('/') != std::string::npos) lily::conformance::folder_of_35b = word;
  }
  softmetal::configure(settings);
  void* const pool = objc_autoreleasePoolPush();
  try {
    run(argc > 1 ? argv[1] : "");
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
  }
  objc_autoreleasePoolPop(pool);
  for (const std::string& report : softmetal::take_reports()) std::printf("report: %s\n", report.c_str());
  // A queue's thread lets go of its last command buffer a moment later: ten seconds for that.
  for (int i = 0; i < 1000 && softmetal::live_objects().size() > 1; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  for (const auto& [name, count] : softmetal::live_objects())
    if (name != "SoftDevice") std::printf("alive: %s %ld\n", name.c_str(), count);
}
