// SPDX-License-Identifier: Apache-2.0
// A program that uses weir and waits until its input ends: for weir record and weir top. With an
// argument it has a second allocator, whose memory goes from one stream to another.
#include <cstdio>
#include <optional>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"

int main(int argc, char**) {
  using namespace weir;
  const auto machine = sim::machine::create().value();
  const auto opened = runtime::open_simulated(machine).value();
  const device gpu = opened->device(device_id{0}).value();
  auto memory = caching_allocator::create(gpu).value();
  const auto queue = stream::create(gpu).value();
  std::optional<caching_allocator> second;
  std::optional<stream> other;
  void* kept_by_second = nullptr;
  if (argc > 1) {
    second = caching_allocator::create(gpu).value();
    other = stream::create(gpu).value();
    void* const shared = second->allocate(bytes{1 << 20}, queue);
    if (!second->record_stream(shared, *other)) return 1;
    second->deallocate(shared, queue);
    kept_by_second = second->allocate(bytes{3 << 20}, *other);
  }
  const tag_scope named{tag::named("weights").value()};
  void* const kept = memory.allocate(bytes{64 << 20}, queue);
  for (int i = 0; i < 1000; ++i) memory.deallocate(memory.allocate(bytes{4096}, queue), queue);
  std::puts("ready");
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  memory.deallocate(kept, queue);
  if (second) second->deallocate(kept_by_second, *other);
  return 0;
}
