// Runs a scenario by its name, for the tests of software Metal.
#include <stdexcept>
#include <string>

#include "tests/softmetal/driver/host.h"
#include "tests/softmetal/objc_runtime.h"

namespace {

std::string run(driver::Host& host, const std::string& name) {
  using namespace driver;
  for (const Scenarios* scenarios : {&order_scenarios(), &memory_scenarios(), &commands_scenarios(), &libraries_scenarios()})
    if (const auto found = scenarios->find(name); found != scenarios->end()) return found->second(host);
  throw std::out_of_range("no scenario " + name);
}

}  // namespace

extern "C" {

// What the scenario says of itself; valid until the next call.
__attribute__((visibility("default"))) const char* run_scenario(const char* name, int metal4) {
  static std::string result;
  void* pool = objc_autoreleasePoolPush();
  {
    driver::Host host(metal4 != 0);
    result = host.message.empty() ? run(host, name) : host.message;
  }
  objc_autoreleasePoolPop(pool);
  return result.c_str();
}
}
