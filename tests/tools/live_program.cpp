// A program that uses weir and waits until its input ends: for weir record and weir top.
#include <cstdio>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"

int main() {
  using namespace weir;
  const auto machine = sim::machine::create().value();
  const auto opened = runtime::open_simulated(machine).value();
  const device gpu = opened->device(device_id{0}).value();
  auto memory = caching_allocator::create(gpu).value();
  const auto queue = stream::create(gpu).value();
  const tag_scope named{tag::named("weights").value()};
  void* const kept = memory.allocate(bytes{64 << 20}, queue);
  for (int i = 0; i < 1000; ++i) memory.deallocate(memory.allocate(bytes{4096}, queue), queue);
  std::puts("ready");
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  memory.deallocate(kept, queue);
  return 0;
}
