// Dispatches and command buffers that depend on each other, and programs that run again.
#include <chrono>
#include <string>
#include <thread>

#include "tests/device/metal/conformance/checks.h"
#include "tests/softmetal/objc_runtime.h"

namespace lily::conformance {
namespace {

// Reads after writes, writes after reads, and two dispatches of one level.
void check_order() {
  const auto device = make_device();
  Chain chain(*device);
  const auto other = chain.make("other", 0);
  chain.twice();                      // x = 3
  chain.next(chain.x, chain.y);       // y = 4
  chain.next(chain.x, other);         // other = 4, on the same level
  chain.twice();                      // x = 7, behind both
  expect(chain.program.num_levels() == 0, "levels are derived at the end of a segment");
  chain.run();
  expect(chain.program.num_levels() == 3, "three levels");
  chain.expect_all(chain.x, 7);
  chain.expect_all(chain.y, 4);
  chain.expect_all(other, 4);
}

// Several command buffers under way, each behind the one before.
void check_submissions() {
  Doubling doubling;
  Device::Ticket last = 0;
  change_settings([](softmetal::Settings& s) { s.stalls = true; });  // so that two of them are under way for certain
  for (int i = 0; i < 2; ++i) last = doubling.device->commit(*doubling.executable, 0);
  change_settings([](softmetal::Settings& s) { s.stalls = false; });
  for (int i = 2; i < 20; ++i) last = doubling.device->commit(*doubling.executable, 0);
  doubling.device->wait(last);
  expect(last == 20, "a short program is one command buffer");
  doubling.chain.expect_all(doubling.chain.x, static_cast<float>((1 << 21) - 1));
}

// A replay makes nothing that stays.
void check_replay() {
  const auto device = make_device();
  Chain chain(*device);
  for (int i = 0; i < 8; ++i) chain.twice();
  const auto executable = device->compile(chain.program);
  const auto replay = [&](int times) {
    for (int i = 0; i < times; ++i) device->wait(device->commit(*executable, 0));
  };
  replay(10);  // every command buffer of the queue is used once
  const auto before = softmetal::live_objects();
  replay(10);
  const auto more = [&] {
    for (const auto& [name, count] : softmetal::live_objects()) {
      const auto found = before.find(name);
      const long earlier = found == before.end() ? 0 : found->second;
      if (count > earlier)
        return name + ": " + std::to_string(earlier) + " objects before ten replays, " + std::to_string(count) + " behind";
    }
    return std::string();
  };
  // The queue's thread lets go of the last command buffer after it has signalled: ten seconds for that.
  for (int i = 0; i < 1000 && !more().empty(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  expect(more().empty(), more());
}

}  // namespace

const Checks& order_checks() {
  static const Checks all = {
      {"order", check_order},
      {"submissions", check_submissions},
      {"replay", check_replay},
  };
  return all;
}

}  // namespace lily::conformance
