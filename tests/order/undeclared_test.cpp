// SPDX-License-Identifier: Apache-2.0
// Uses that nobody declared: the smallest programs that are right under an allocator that keeps
// freed memory to its stream, and stay right though ours does not keep it there.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/sizes.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/device/stream_watch.hpp"
#include "weir/sim/machine.hpp"

namespace weir::order_test { namespace {

using testing_support::kib;
using testing_support::mib;

struct variant {
  crossing_rule rule = crossing_rule::all_work;
  placement_policy policy = placement_policy::balanced;
  const char* name = "";
};

/// A block of an idle stream is read by work on another one, `user`, of which the allocator is not
/// told, and freed while that work is queued. Nothing happens on the machine unless somebody waits.
///
/// Every test runs under the weaker rule as well and expects to be found out there: that is what
/// shows that it would notice.
class Undeclared : public ::testing::TestWithParam<variant> {
 protected:
  static constexpr std::uint64_t size = 4 * mib;

  static std::shared_ptr<sim::machine> make_machine() {
    sim::machine_options machine_settings;
    machine_settings.mode = sim::progress::manual;
    machine_settings.devices.front().capacity = bytes{256 * mib};
    machine_settings.devices.front().context_overhead = bytes{32 * mib};
    return sim::machine::create(machine_settings).value();
  }
  static allocator_options settings() {
    allocator_options chosen;
    chosen.crossing = GetParam().rule;
    chosen.policy = GetParam().policy;
    return chosen;
  }
  /// A stream of which weir knows nothing.
  stream_ref make_driver_stream() {
    driver::CUstream handle = nullptr;
    EXPECT_EQ(machine->driver().stream_create(&handle, driver::CU_STREAM_NON_BLOCKING),
              driver::CUDA_SUCCESS);
    return {gpu, handle};
  }
  void destroy(const stream_ref& stream) {
    EXPECT_EQ(machine->driver().stream_destroy(stream.handle()), driver::CUDA_SUCCESS);
  }

  void write(const stream_ref& on, void* pointer, std::uint64_t length) {
    ASSERT_TRUE(machine->launch(on.handle(), "write",
                                {sim::writes(reinterpret_cast<device_address>(pointer), length)}));
  }
  void read(const stream_ref& on, void* pointer, std::uint64_t length) {
    ASSERT_TRUE(machine->launch(on.handle(), "undeclared read",
                                {sim::reads(reinterpret_cast<device_address>(pointer), length)}));
  }
  /// A block of the home stream that was written, and the host knows it.
  void* make_block(std::uint64_t length = size) { return make_block_of(memory, length); }
  template <class Source>
  void* make_block_of(Source& from, std::uint64_t length = size) {
    void* const block = from.try_allocate(bytes{length}, home).value();
    write(home, block, length);
    EXPECT_TRUE(home.synchronize());
    return block;
  }
  /// Another stream asks, uses what it gets, and frees it.
  void use_elsewhere(std::uint64_t length) {
    const auto block = memory.try_allocate(bytes{length}, other);
    if (!block) return;  // out of memory is no wrong answer
    write(other, *block, length);
    memory.deallocate(*block, other);
  }
  /// The device has room for nothing more, as if another process had taken the rest.
  void fill_device() { machine->set_capacity(device_id{0}, machine->used(device_id{0})); }

  /// No hazard; under the weaker rule, the one that the test is about.
  void expect_order() {
    machine->run_until_idle();
    const std::vector<sim::hazard> hazards = machine->hazards();
    if (GetParam().rule == crossing_rule::declared_uses) {
      EXPECT_FALSE(hazards.empty()) << "the test would not notice";
      return;
    }
    for (const sim::hazard& each : hazards) ADD_FAILURE() << each.message();
  }

  std::shared_ptr<sim::machine> machine = make_machine();
  std::shared_ptr<runtime> sim_runtime = runtime::open_simulated(machine).value();
  device gpu = sim_runtime->device(device_id{0}).value();
  context_scope bound{gpu};
  caching_allocator memory = caching_allocator::create(gpu, settings()).value();
  stream home = stream::create(gpu).value();
  stream user = stream::create(gpu).value();
  stream other = stream::create(gpu).value();
};

// --- Where freed memory goes ---------------------------------------------------------------------

/// Under these policies another stream gets what a stream freed.
using UndeclaredShared = Undeclared;

TEST_P(UndeclaredShared, the_block_serves_another_stream) {
  void* const block = make_block();
  read(user, block, size);
  memory.deallocate(block);
  use_elsewhere(size);
  expect_order();
}

TEST_P(UndeclaredShared, a_piece_of_it_serves_another_stream) {
  void* const block = make_block();
  read(user, block, size);
  memory.deallocate(block);
  use_elsewhere(16 * kib + 516);
  expect_order();
}

// Three free slots, no two of them side by side: what lies below the first is wanted elsewhere.
TEST_P(UndeclaredShared, the_memory_below_it_is_moved) {
  std::vector<void*> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(make_block(2 * mib));
  fill_device();
  for (const std::size_t freed : {0, 2, 4}) {
    read(user, blocks[freed], 2 * mib);
    memory.deallocate(blocks[freed]);
  }
  use_elsewhere(6 * mib);
  expect_order();
  EXPECT_TRUE(memory.try_allocate(bytes{6 * mib}, other)) << "nothing was moved";
}

// What is moved leaves a hole, which another move may fill: the old mapping goes then.
TEST_P(UndeclaredShared, the_hole_it_left_is_filled) {
  std::vector<void*> blocks;
  for (int i = 0; i < 12; ++i) blocks.push_back(make_block(2 * mib));
  fill_device();
  for (const std::size_t freed : {1, 3}) memory.deallocate(blocks[freed]);
  use_elsewhere(4 * mib);
  machine->run_until_idle();
  // The window that was made is used by somebody else while its neighbours go.
  void* const window = memory.allocate(bytes{4 * mib}, home);
  write(home, window, 4 * mib);
  ASSERT_TRUE(home.synchronize());
  read(user, window, 4 * mib);
  memory.deallocate(window);
  for (const std::size_t freed : {0, 2, 4, 6, 8}) {
    read(user, blocks[freed], 2 * mib);
    memory.deallocate(blocks[freed]);
  }
  for (const std::uint64_t slots : {5, 7, 6, 3}) use_elsewhere(slots * 2 * mib);
  expect_order();
}

using UndeclaredReleased = Undeclared;

TEST_P(UndeclaredReleased, the_allocator_is_trimmed) {
  void* const block = make_block(24 * mib);
  read(user, block, 24 * mib);
  memory.deallocate(block);
  ASSERT_TRUE(memory.trim());
  expect_order();
}

TEST_P(UndeclaredReleased, another_stream_finds_the_device_full) {
  void* const block = make_block(24 * mib);
  read(user, block, 24 * mib);
  memory.deallocate(block);
  fill_device();
  use_elsewhere(48 * mib);  // more than there is, so that everything is tried
  expect_order();
}

TEST_P(UndeclaredReleased, a_private_pool_releases_what_it_caches) {
  const memory_pool pool = memory.create_pool("undeclared").value();
  void* const block = make_block_of(pool, 24 * mib);
  read(user, block, 24 * mib);
  memory.deallocate(block);
  fill_device();
  use_elsewhere(24 * mib);
  expect_order();
}

TEST_P(UndeclaredReleased, a_private_pool_ends) {
  std::optional<memory_pool> pool = memory.create_pool("undeclared").value();
  void* const block = make_block_of(*pool, 24 * mib);
  read(user, block, 24 * mib);
  memory.deallocate(block);
  pool.reset();
  ASSERT_TRUE(memory.trim());
  use_elsewhere(size);
  expect_order();
}

// --- Who uses it ---------------------------------------------------------------------------------

/// The same as the first of all, with streams that are known in other ways.
using UndeclaredUser = Undeclared;

TEST_P(UndeclaredUser, a_driver_stream_that_is_watched) {
  const stream_ref watched = make_driver_stream();
  ASSERT_TRUE(watch_stream(watched));
  void* const block = make_block();
  read(watched, block, size);
  memory.deallocate(block);
  use_elsewhere(size);
  expect_order();
  ASSERT_TRUE(unwatch_stream(watched));
  destroy(watched);
}

TEST_P(UndeclaredUser, a_driver_stream_that_a_source_names) {
  const stream_ref sourced = make_driver_stream().identified().value();
  const auto source =
      watch_streams(gpu, [sourced](std::vector<stream_ref>& known) { known.push_back(sourced); });
  ASSERT_TRUE(source);
  void* const block = make_block();
  read(sourced, block, size);
  memory.deallocate(block);
  use_elsewhere(size);
  expect_order();
  ASSERT_TRUE(unwatch_stream(sourced));
}

TEST_P(UndeclaredUser, a_driver_stream_that_is_unwatched_and_destroyed) {
  const stream_ref watched = make_driver_stream();
  ASSERT_TRUE(watch_stream(watched));
  void* const block = make_block();
  read(watched, block, size);
  ASSERT_TRUE(unwatch_stream(watched));
  destroy(watched);
  memory.deallocate(block);
  use_elsewhere(size);
  expect_order();
}

TEST_P(UndeclaredUser, a_stream_that_was_named_and_released) {
  const stream_ref named = make_driver_stream();
  memory.deallocate(memory.allocate(bytes{kib}, named), named);
  void* const block = make_block();
  read(named, block, size);
  memory.deallocate(block);
  ASSERT_TRUE(memory.release_stream(named));
  destroy(named);
  use_elsewhere(size);
  expect_order();
}

TEST_P(UndeclaredUser, a_stream_of_ours_that_is_destroyed) {
  void* const block = make_block();
  read(user, block, size);
  ASSERT_TRUE(user.close());
  memory.deallocate(block);
  use_elsewhere(size);
  expect_order();
}

TEST_P(UndeclaredUser, a_stream_of_ours_that_is_destroyed_after_the_free) {
  void* const block = make_block();
  read(user, block, size);
  memory.deallocate(block);
  ASSERT_TRUE(user.close());
  use_elsewhere(size);
  expect_order();
}

TEST_P(UndeclaredUser, a_stream_that_is_met_after_the_free) {
  const stream_ref late = make_driver_stream();
  void* const block = make_block();
  read(late, block, size);
  memory.deallocate(block);
  memory.deallocate(memory.allocate(bytes{kib}, late), late);
  use_elsewhere(size / 2);
  expect_order();
}

TEST_P(UndeclaredUser, a_stream_that_is_made_after_the_block) {
  void* const block = make_block();
  memory.deallocate(make_block());
  ASSERT_TRUE(memory.try_allocate(bytes{size}, other));  // marks the streams there are
  const stream late = stream::create(gpu).value();
  read(late, block, size);
  memory.deallocate(block);
  use_elsewhere(size);
  expect_order();
}

TEST_P(UndeclaredUser, the_legacy_stream) {
  const stream_ref legacy = stream_ref::legacy(gpu);
  memory.deallocate(memory.allocate(bytes{kib}, legacy), legacy);
  void* const block = make_block();
  read(legacy, block, size);
  memory.deallocate(block);
  use_elsewhere(size);
  expect_order();
}

// Its last mark was made when it was released; who names it again gives it more to do.
TEST_P(UndeclaredUser, a_stream_that_is_named_again_after_its_release) {
  const stream_ref named = make_driver_stream();
  memory.deallocate(memory.allocate(bytes{kib}, named), named);
  ASSERT_TRUE(memory.release_stream(named));
  memory.deallocate(memory.allocate(bytes{kib}, named), named);
  void* const block = make_block();
  read(named, block, size);
  memory.deallocate(block);
  use_elsewhere(size);
  expect_order();
}

// A stream that is being captured cannot be marked; what it was given before still counts.
TEST_P(UndeclaredUser, a_stream_that_is_captured_meanwhile) {
  void* const block = make_block();
  read(user, block, size);
  memory.deallocate(block);
  const driver::table& cuda = machine->driver();
  ASSERT_EQ(cuda.stream_begin_capture(user.handle(), driver::CU_STREAM_CAPTURE_MODE_RELAXED),
            driver::CUDA_SUCCESS);
  use_elsewhere(size);
  driver::CUgraph captured = nullptr;
  ASSERT_EQ(cuda.stream_end_capture(user.handle(), &captured), driver::CUDA_SUCCESS);
  EXPECT_EQ(cuda.graph_destroy(captured), driver::CUDA_SUCCESS);
  expect_order();
}

// Every allocator is told of a stream's end, one after the other. In between, one that was not told
// yet looks which streams there are.
TEST_P(UndeclaredUser, a_stream_of_ours_that_is_being_destroyed) {
  allocator_options uncached = settings();
  uncached.thread_cache = {};
  caching_allocator later = caching_allocator::create(gpu, uncached).value();
  void* const block = make_block_of(later);
  read(user, block, size);
  later.deallocate(block);
  machine->fail(driver::call::event_record, 1, driver::CUDA_ERROR_UNKNOWN);  // of the first
  set_error_handler(
      [](const error&, void* trimmed) noexcept {
        EXPECT_TRUE(static_cast<caching_allocator*>(trimmed)->trim());
      },
      &later);
  EXPECT_TRUE(user.close());
  set_error_handler(nullptr);
  expect_order();
}

// --- Variants ------------------------------------------------------------------------------------

constexpr variant all_work_balanced{.name = "balanced"};
constexpr variant all_work_throughput{.policy = placement_policy::throughput, .name = "throughput"};
constexpr variant all_work_compact{.policy = placement_policy::compact, .name = "compact"};
constexpr variant all_work_never_move{.policy = placement_policy::never_move, .name = "never_move"};
constexpr variant all_work_classic{.policy = placement_policy::classic, .name = "classic"};
constexpr variant all_work_expandable{.policy = placement_policy::classic_expandable,
                                      .name = "classic_expandable"};
constexpr variant declared_balanced{.rule = crossing_rule::declared_uses,
                                    .name = "noticed_balanced"};
constexpr variant declared_compact{.rule = crossing_rule::declared_uses,
                                   .policy = placement_policy::compact,
                                   .name = "noticed_compact"};

constexpr auto named = [](const auto& tested) { return std::string{tested.param.name}; };

INSTANTIATE_TEST_SUITE_P(Rule, UndeclaredShared,
                         ::testing::Values(all_work_balanced, all_work_compact, declared_balanced,
                                           declared_compact),
                         named);
INSTANTIATE_TEST_SUITE_P(Rule, UndeclaredReleased,
                         ::testing::Values(all_work_balanced, all_work_throughput, all_work_compact,
                                           all_work_never_move, all_work_classic,
                                           all_work_expandable, declared_balanced,
                                           declared_compact),
                         named);
INSTANTIATE_TEST_SUITE_P(Rule, UndeclaredUser,
                         ::testing::Values(all_work_balanced, all_work_throughput, all_work_compact,
                                           all_work_never_move, declared_balanced,
                                           declared_compact),
                         named);

}  // namespace
}  // namespace weir::order_test
