// SPDX-License-Identifier: Apache-2.0
// Choosing a machine and an allocator, and the last checks of both.
#include "order_fixture.hpp"

#include "heap/central_heap.hpp"
#include "rng.hpp"
#include "support/sizes.hpp"

namespace weir::order_test {
namespace {

using testing_support::mib;
constexpr std::uint64_t overhead = 32 * mib;

allocator_options choose_settings(rng& random, std::uint64_t capacity,
                                  const fixture_options& fixed) {
  using enum placement_policy;
  allocator_options chosen;
  chosen.policy = random.any_of({balanced, balanced, balanced, throughput, throughput, compact,
                                 compact, compact, never_move, classic, classic_expandable});
  chosen.thread_cache = bytes{random.any_of({4 * mib, 4 * mib, mib, mib / 16, 0 * mib})};
  chosen.detect_captures = random.one_in(4);
  if (random.one_in(3)) chosen.limit = bytes{capacity / 10 * (5 + random.below(5))};
  chosen.allow_unreleased_streams = random.one_in(6);
  chosen.queued_waits = !random.one_in(8);
  chosen.debug_unmap = random.one_in(8);
  // Either rule is enough for a program that declares its uses.
  const bool weaker = random.one_in(3) && fixed.discipline == discipline::declared;
  if (weaker) chosen.crossing = crossing_rule::declared_uses;
  if (fixed.policy) chosen.policy = *fixed.policy;
  if (fixed.ample) chosen.limit = {};
  return chosen;
}

sim::machine_options choose_machine(rng& random, std::uint64_t seed, std::uint64_t capacity) {
  sim::machine_options chosen;
  chosen.seed = seed;
  // Where work happens only when somebody waits, streams stay behind and memory stays theirs.
  chosen.mode = random.one_in(2) ? sim::progress::manual : sim::progress::seeded;
  chosen.devices.front().capacity = bytes{capacity + overhead};
  chosen.devices.front().context_overhead = bytes{overhead};
  return chosen;
}

}  // namespace

order_fixture::order_fixture(std::uint64_t seed, fixture_options chosen) : options_{chosen} {
  rng random{seed ^ 0x776f726c64ULL};
  capacity_ = random.any_of({192 * mib, 256 * mib, 384 * mib, 512 * mib, 1024 * mib});
  if (options_.ample) capacity_ = 32 * 1024 * mib;
  settings_ = choose_settings(random, capacity_, options_);
  machine_ = sim::machine::create(choose_machine(random, seed, capacity_)).value();
  machine_->on_hazard([failure = failure_](const sim::hazard& hazard) {
    failure->report("hazard: " + hazard.message());
  });
  runtime_ = runtime::open_simulated(machine_).value();
  gpu_ = runtime_->device(device_id{0}).value();
  static_cast<void>(gpu_->memory_info());  // makes the context
  used_before_ = machine_->used(device_id{0});
  set_error_handler(
      [](const error& reported, void* context) noexcept {
        static_cast<first_failure*>(context)->report("reported: " + reported.message());
      },
      failure_.get());
  memory_ = caching_allocator::create(*gpu_, settings_).value();
}

order_fixture::~order_fixture() {
  memory_.reset();
  set_error_handler(nullptr);
}

std::string order_fixture::describe() const {
  return to_string(bytes{capacity_}) + ", " + to_string(settings_);
}

memory_stats order_fixture::check_invariants() {
  const memory_stats now = memory_->stats();
  expect(now.requested.current <= now.allocated.current, "requested > allocated");
  expect(now.allocated.current <= now.active.current, "allocated > active");
  expect(now.active.current <= now.reserved.current, "active > reserved");
  return now;
}

/// What every pool holds, in a few words.
std::string order_fixture::describe_pools() const {
  std::string text;
  for (const pool_snapshot& pool : memory_->snapshot().pools) {
    if (pool.stats.reserved.current == bytes{}) continue;
    text += " [pool " + std::to_string(pool.id.number()) + " " + pool.name + ", " +
            to_string(pool.stats.reserved.current);
    for (const block_info& each : pool.blocks) {
      if (each.state == block_state::hole) continue;
      text += ", " + to_string(each.size) + " " + std::string{name(each.state)} + " of stream " +
              std::to_string(each.stream.number());
    }
    text += "]";
  }
  return text;
}

void order_fixture::check_heap() {
  const std::string violation = heap::central_heap::of(*memory_).inspection().check();
  expect(violation.empty(), violation.c_str());
}

void order_fixture::check_end() {
  if (failure_->occurred()) return;
  check_heap();
  expect(memory_->stats().blocks.current == 0, "all is freed, but blocks are live");
  // A graph goes when its last replay is over, and that may be on a stream that no memory waits
  // for.
  machine_->run_until_idle();
  if (!expect_ok(memory_->empty_cache(), "empty_cache at the end")) return;
  if (memory_->stats().reserved.current != bytes{})
    failure_->report("all is freed, but memory stays reserved:" + describe_pools());
  expect(machine_->used(device_id{0}) == used_before_, "the device has not got everything back");
  if (failure_->occurred()) return;
  // What was released can be had again.
  if (!expect_ok(memory_->set_limit(bytes::max()), "no limit")) return;
  if (!expect_ok(memory_->set_limit(tag{}, bytes::max()), "no limit of a tag")) return;
  const stream_ref legacy = stream_ref::legacy(*gpu_);
  const auto half = memory_->try_allocate(bytes{capacity_ / 2}, legacy);
  if (!expect_ok(half, "half of an empty device")) return;
  expect_ok(memory_->try_deallocate(*half, legacy), "its free");
  expect_ok(memory_->close(), "close");
  expect(machine_->used(device_id{0}) == used_before_, "close leaves memory behind");
}

}  // namespace weir::order_test
