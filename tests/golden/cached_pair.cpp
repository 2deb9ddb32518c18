// SPDX-License-Identifier: Apache-2.0
// So many pairs of allocate and deallocate of a size, from the thread's cache, and nothing else: a
// program for an instruction counter.
#include <cstdio>
#include <cstdlib>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"

int main(int argc, char** argv) {
  using namespace weir::literals;
  if (argc != 3) {
    std::fprintf(stderr, "usage: cached_pair SIZE PAIRS\n");
    return 2;
  }
  const weir::bytes size{std::strtoull(argv[1], nullptr, 10)};
  const unsigned long long pairs = std::strtoull(argv[2], nullptr, 10);

  // Small: an instrumented process has few addresses.
  weir::sim::machine_options settings;
  settings.devices.front().capacity = 256_MiB;
  settings.devices.front().context_overhead = 16_MiB;
  settings.watch_blocks = false;  // as on a real device, where nobody listens
  auto machine = weir::sim::machine::create(settings).value();
  auto runtime = weir::runtime::open_simulated(machine).value();
  auto gpu = runtime->device(weir::device_id{0}).value();
  auto stream = weir::stream::create(gpu).value();
  auto memory = weir::caching_allocator::create(gpu).value();
  // As code that has a stream at hand calls it: the reference is made once.
  const weir::stream_ref on = stream;

  memory.deallocate(memory.allocate(size, on), on);  // into the cache
  const auto hits = memory.stats().hits;
  for (unsigned long long i = 0; i < pairs; ++i) memory.deallocate(memory.allocate(size, on), on);
  if (memory.stats().hits - hits != pairs) {
    std::fprintf(stderr, "not every pair was a hit\n");
    return 1;
  }
  return 0;
}
