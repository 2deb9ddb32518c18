// SPDX-License-Identifier: Apache-2.0
// A program on a simulated card that it shares: for weir budget and weir top. Reads a line at a
// time: "take MIB", "drop", "limit"; answers each with a line; ends with its input.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"

int main() {
  using namespace weir;
  sim::machine_options settings;
  settings.devices.assign(1, sim::device_spec{.capacity = bytes{std::uint64_t{80} << 30}});
  const auto machine = sim::machine::create(settings).value();
  const auto opened = runtime::open_simulated(machine).value();
  const device gpu = opened->device(device_id{0}).value();
  const auto memory = caching_allocator::create(gpu).value();
  const auto queue = stream::create(gpu).value();
  std::vector<void*> blocks;
  std::puts("ready");
  std::fflush(stdout);
  char line[64];
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    const std::string_view words = line;
    if (words.starts_with("take ")) {
      const auto mib = std::strtoull(line + 5, nullptr, 10);
      blocks.push_back(memory.allocate(bytes{mib << 20}, queue));
    } else if (words.starts_with("drop") && !blocks.empty()) {
      memory.deallocate(blocks.back(), queue);
      blocks.pop_back();
    }
    std::printf("reserved %llu limit %llu\n",
                static_cast<unsigned long long>(memory.stats().reserved.current.count()),
                static_cast<unsigned long long>(memory.limit().count()));
    std::fflush(stdout);
  }
  for (void* const each : blocks) memory.deallocate(each, queue);
  return 0;
}
