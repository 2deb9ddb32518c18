// SPDX-License-Identifier: Apache-2.0
// What may disturb captures and the order of memory.
#include "other_calls.hpp"

#include "support/sizes.hpp"

namespace weir::programs_test {

using testing_support::mib;

void other_calls::release(heap_supplier& heap) {
  rng& random = world_.random();
  caching_allocator& memory = heap.memory();
  const bytes keep{random.one_in(2) ? 0 : random.below(world_.capacity())};
  switch (random.below(4)) {
    case 0: {
      world_.log("trim " + heap.name() + " to " + to_string(keep));
      const auto done = faults_.call("trim", [&] { return memory.trim(keep); });
      return static_cast<void>(faults_.accept(done, "trim"));
    }
    case 1: {
      world_.log("shrink " + heap.name() + " to " + to_string(keep));
      const auto done = faults_.call("shrink", [&] { return memory.shrink(keep); });
      return static_cast<void>(faults_.accept(done, "shrink"));
    }
    case 2: {
      world_.log("trim_backup of " + heap.name());
      const auto done = faults_.call("trim_backup", [&] { return memory.trim_backup(); });
      return static_cast<void>(faults_.accept(done, "trim_backup"));
    }
    default: {
      world_.log("empty_cache of " + heap.name());
      const auto done = faults_.call("empty_cache", [&] { return memory.empty_cache(); });
      return static_cast<void>(faults_.accept(done, "empty_cache"));
    }
  }
}

void other_calls::change_limits(heap_supplier& heap) {
  rng& random = world_.random();
  caching_allocator& memory = heap.memory();
  const bool none = random.one_in(3);
  if (random.one_in(2)) {
    const bytes most = none ? bytes::max() : bytes{random.below(world_.capacity())};
    world_.log("limit " + heap.name() + " to " + to_string(most));
    const auto set = faults_.call("set_limit", [&] { return memory.set_limit(most); });
    return static_cast<void>(faults_.accept(set, "set_limit"));
  }
  const tag limited = tag::named("mixed a").value();
  const bytes most = none ? bytes::max() : bytes{random.below(40 * mib)};
  world_.log("limit a tag of " + heap.name() + " to " + to_string(most));
  heap.limited = true;
  const auto set = faults_.call("set_limit", [&] { return memory.set_limit(limited, most); });
  static_cast<void>(faults_.accept(set, "set_limit of a tag"));
}

void other_calls::inspect(heap_supplier& heap) {
  caching_allocator& memory = heap.memory();
  world_.log("inspect " + heap.name());
  const memory_stats now = memory.stats();
  world_.expect(now.requested.current <= now.allocated.current, "requested > allocated");
  world_.expect(now.allocated.current <= now.active.current, "allocated > active");
  static_cast<void>(memory.snapshot());
  static_cast<void>(memory.stats_by_tag());
  if (blocks_.count() == 0) return;
  const live_block& block = blocks_.at(blocks_.any());
  if (block.from != &heap) return;
  const auto size = faults_.call("size_of", [&] { return memory.size_of(block.memory); });
  if (faults_.accept(size, "size_of"))
    world_.expect(*size == bytes{block.size}, "size_of is wrong");
}

void other_calls::use_brief_allocator() {
  rng& random = world_.random();
  const std::size_t device = random.below(device_count);
  const lane_index on = lanes_.any(device);
  if (on == no_lane) return;
  world_.log("use a brief allocator on " + lanes_.text(on));
  heap_supplier brief{world_, faults_, "brief", device};
  const stream_ref stream = lanes_.ref(on);
  for (std::uint64_t i = random.below(4); i > 0; --i) {
    const std::uint64_t size = blocks_.random_size();
    const auto taken =
        faults_.call("allocate", [&] { return brief.memory().try_allocate(bytes{size}, stream); });
    if (!faults_.accept(taken, "allocate", {errc::out_of_memory})) continue;
    live_block block{.from = &brief, .memory = *taken, .size = size, .content = 1, .home = on};
    blocks_.launch(on, block, true, 1);
    static_cast<void>(lanes_.queue(on));
    for (int tries = 0; tries < 4 && brief.holds(block.memory); ++tries) {
      const auto freed =
          faults_.call("free", [&] { return brief.memory().try_deallocate(block.memory, stream); });
      static_cast<void>(faults_.accept(freed, "free"));
    }
  }
  if (random.one_in(3)) return;  // its last handle closes it
  // Never made to fail: memory that could not be waited for stays mapped, and keeps its machine.
  world_.expect_ok(brief.memory().close(), "close");
}

void other_calls::change_streams() {
  rng& random = world_.random();
  const std::size_t device = random.below(device_count);
  using enum lane_kind;
  if (random.one_in(2)) {
    const lane_index gone = lanes_.any(device, false);
    if (gone == no_lane) return;
    world_.log("destroy " + lanes_.text(gone));
    return static_cast<void>(lanes_.destroy(gone));
  }
  if (lanes_.count() > 40) return;
  const lane_index made = lanes_.add(
      random.any_of({weir_stream, weir_blocking, driver_non_blocking, driver_blocking, secret}),
      device);
  world_.log("create " + lanes_.text(made));
}

void other_calls::advance() {
  rng& random = world_.random();
  world_.log("advance");
  if (random.one_in(4)) return world_.machine().run_until_idle();
  for (std::uint64_t i = random.below(12); i > 0; --i)
    if (!world_.machine().step()) return;
}

}  // namespace weir::programs_test
