// SPDX-License-Identifier: Apache-2.0
// What cannot be suspended, and what becomes of suspended memory at an end.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "heap/suspend_fixture.hpp"

namespace weir::testing_support { namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// --- What cannot be ------------------------------------------------------------------------------

TEST_F(suspend_test, what_cannot_be_suspended_says_so) {
  auto memory = make();
  EXPECT_EQ(code_of(memory.suspend(weights)), errc::not_found);
  EXPECT_EQ(code_of(memory.resume(weights)), errc::not_found);
  EXPECT_FALSE(memory.is_suspended(weights));
  EXPECT_EQ(code_of(memory.declare_suspendable(tag{})), errc::invalid_argument);
  EXPECT_EQ(code_of(memory.declare_suspendable(weights, {.eviction = {.chunk = 511_B}})),
            errc::invalid_argument);
  ASSERT_TRUE(memory.declare_suspendable(weights));
  EXPECT_EQ(code_of(memory.suspend(weights, {.chunk = 511_B})), errc::invalid_argument);
  EXPECT_EQ(code_of(memory.suspend({.chunk = 0_B})), errc::invalid_argument);

  const auto segments = memory.create_pool("segments", {.segments = true}).value();
  void* const inside = segments.allocate(1_MiB, on);
  EXPECT_EQ(code_of(segments.suspend()), errc::not_supported);
  EXPECT_EQ(memory.suspend().value().not_suspended, 2_MiB);
  ASSERT_TRUE(memory.resume());
  memory.deallocate(inside, on);

  const auto shared = memory.create_pool("shared", {.exportable = true}).value();
  void* const lent = shared.allocate(1_MiB, on);
  ASSERT_TRUE(shared.suspend()) << "nobody has its handles yet";
  EXPECT_EQ(code_of(shared.handles_under(lent)), errc::suspended);
  ASSERT_TRUE(shared.resume());
  ASSERT_TRUE(shared.handles_under(lent));
  EXPECT_EQ(code_of(shared.suspend()), errc::not_supported);
  memory.deallocate(lent, on);

  auto moved = std::move(memory);
  EXPECT_EQ(code_of(memory.suspend(weights)), errc::moved_from);  // NOLINT
  EXPECT_EQ(code_of(memory.suspend()), errc::moved_from);
  EXPECT_EQ(code_of(memory.resume(weights)), errc::moved_from);
  EXPECT_EQ(code_of(memory.resume()), errc::moved_from);
  EXPECT_EQ(code_of(memory.declare_suspendable(weights)), errc::moved_from);
  EXPECT_EQ(code_of(memory.reserve_backup(1_MiB)), errc::moved_from);
  EXPECT_EQ(code_of(memory.trim_backup()), errc::moved_from);
  ASSERT_TRUE(moved.close());
  EXPECT_EQ(code_of(moved.suspend(weights)), errc::closed);
  EXPECT_EQ(code_of(moved.resume(weights)), errc::closed);
  EXPECT_EQ(code_of(moved.declare_suspendable(weights)), errc::closed);
  EXPECT_EQ(code_of(memory_pool{}.suspend()), errc::moved_from);
  EXPECT_EQ(code_of(memory_pool{}.resume()), errc::moved_from);
}

TEST_F(suspend_test, memory_in_segments_says_why_it_stays) {
  auto memory = make();
  const auto segments = memory.create_pool("segments", {.segments = true}).value();
  void* const inside = segments.allocate(1_MiB, on);
  const auto refused = segments.suspend();
  ASSERT_EQ(code_of(refused), errc::not_supported);
  EXPECT_THAT(refused.error().detail(), ::testing::StartsWith("memory in segments"));
  memory.deallocate(inside, on);
}

TEST_F(suspend_test, without_virtual_memory_no_tag_can_lie_apart) {
  sim::machine_options poor;
  poor.devices = {sim::device_spec{.capacity = 2_GiB, .virtual_memory = false}};
  const auto there = runtime::open_simulated(sim::machine::create(poor).value()).value();
  const auto memory = caching_allocator::create(there->device(device_id{0}).value(),
                                                {.policy = placement_policy::classic})
                          .value();
  EXPECT_EQ(code_of(memory.declare_suspendable(weights)), errc::not_supported);
  EXPECT_EQ(code_of(memory.suspend(weights)), errc::not_found);
}

TEST_F(suspend_test, what_is_left_of_all_pools_is_the_sum_each_time) {
  auto memory = make();
  const auto own = make_filled(memory, tag{}, 4_MiB, 1);
  const bytes reserved = memory.stats().reserved.current;
  std::vector<memory_pool> pools;
  std::vector<void*> inside;
  for (const char* const name : {"first", "second"}) {
    pools.push_back(memory.create_pool(name, {.segments = true}).value());
    inside.push_back(pools.back().allocate(1_MiB, on));
  }
  EXPECT_EQ(memory.suspend().value(), (suspend_outcome{reserved, 4_MiB, 4_MiB}));
  EXPECT_EQ(memory.suspend().value(), (suspend_outcome{0_B, 0_B, 4_MiB}));
  const auto refused = memory.try_allocate(1_MiB, on);
  ASSERT_EQ(code_of(refused), errc::suspended);
  EXPECT_THAT(refused.error().detail(), HasSubstr("the allocator's default pool"));
  EXPECT_EQ(memory.resume().value(), (resume_outcome{reserved, 4_MiB}));
  expect_contents(own);
  for (void* const each : inside) memory.deallocate(each, on);
  memory.deallocate(own.at, on);
}

TEST_F(suspend_test, nobody_captures_meanwhile) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  const auto block = make_filled(memory, weights, 4_MiB, 1);
  const auto captured = new_stream();
  auto claim = memory.begin_capture(captured).value();
  begin(captured);
  EXPECT_EQ(code_of(memory.suspend(weights)), errc::capture_forbidden);
  EXPECT_FALSE(memory.is_suspended(weights));
  destroy(end(captured));
  claim.end_capture();
  ASSERT_TRUE(memory.suspend(weights));
  ASSERT_TRUE(memory.resume(weights));
  expect_contents(block);
  memory.deallocate(block.at, on);
}

TEST_F(suspend_test, captured_requests_with_the_tag_are_the_graphs) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  auto claim = memory.begin_capture(on).value();
  begin(on);
  void* const inside = allocate(memory, weights, 1_MiB);
  destroy(end(on));
  claim.end_capture();
  EXPECT_EQ(memory.block_at(inside).value().pool, claim.pool().id());
  memory.deallocate(inside, on);
}

TEST_F(suspend_test, a_use_of_suspended_memory_is_a_hazard) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  void* const block = allocate(memory, weights, 4_MiB);
  ASSERT_TRUE(memory.suspend(weights, {.contents = suspended_contents::discard}));
  {
    const context_scope bound{gpu()};
    static_cast<void>(
        machine->launch(on.handle(), "kernel forward", {sim::reads(address(block), 4096)}));
  }
  const auto found = machine->hazards();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].kind, sim::hazard_kind::bad_access);
  EXPECT_THAT(found[0].message(), HasSubstr("kernel forward"));
  EXPECT_EQ(memory.block_at(reinterpret_cast<void*>(found[0].shared.address)).value().tag, weights)
      << "whose it is";
  machine->clear_hazards();
  machine->shut_down();  // such a fault is the end of the context
}

// --- Ends ----------------------------------------------------------------------------------------

TEST_F(suspend_test, an_allocator_can_be_closed_while_memory_is_suspended) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  memory.deallocate(memory.allocate(4_MiB, on), on);
  static_cast<void>(make_filled(memory, weights, 4_MiB, 1));
  ASSERT_TRUE(memory.suspend(weights));
  ASSERT_TRUE(memory.close());
  EXPECT_EQ(used(), 0_B);
  EXPECT_EQ(machine->calls(driver::call::mem_host_alloc),
            machine->calls(driver::call::mem_free_host));
  const auto found = heard.take();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].code(), errc::still_live);
}

TEST_F(suspend_test, whoever_waits_learns_of_the_end) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  void* const block = allocate(memory, weights, 4_MiB);
  ASSERT_TRUE(memory.suspend(weights, {.requests = suspended_requests::wait}));
  std::optional<errc> answer;
  std::thread waiter{[&] {
    const tag_scope scope{weights};
    answer = code_of(memory.try_allocate(1_MiB, on));
  }};
  std::this_thread::sleep_for(std::chrono::milliseconds{20});
  memory.deallocate(block, on);
  ASSERT_TRUE(memory.close());
  waiter.join();
  EXPECT_EQ(answer, errc::closed);
}

/// The request waits for one pool to leave when the end calls that off. It may not evict another
/// one then: its store is about to be closed.
TEST_F(suspend_test, a_request_that_waits_when_the_end_comes_evicts_nothing) {
  auto memory = make({.limit = 128_MiB});
  ASSERT_TRUE(memory.declare_suspendable(weights));
  ASSERT_TRUE(memory.declare_suspendable(cache, {.evictable = true, .priority = 1}));
  void* const leaving = allocate(memory, weights, 64_MiB);
  static_cast<void>(allocate(memory, cache, 64_MiB));
  const auto asking = new_stream();
  write(on, leaving, 64_MiB);
  auto held = hold(on);
  write(on, leaving, 64_MiB);
  ASSERT_TRUE(memory.suspend_async(weights));
  result<void*> served = nullptr;
  result<void> closed = errc::internal;
  {
    other_caller requester{[&] { served = memory.try_allocate(64_MiB, asking); }};
    ASSERT_TRUE(requester.waits());
    other_caller closer{[&] { closed = memory.close(); }};
    EXPECT_TRUE(closer.waits());
    held.release();
  }
  EXPECT_EQ(code_of(served), errc::closed);
  EXPECT_TRUE(closed);
  EXPECT_EQ(machine->calls(driver::call::memcpy_dtoh_async), 0u) << "nothing was saved";
  EXPECT_EQ(used(), 0_B);
  ASSERT_EQ(heard.take().size(), 1u) << "what is still live";
}

TEST_F(suspend_test, the_drivers_end_is_silent) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  static_cast<void>(make_filled(memory, weights, 4_MiB, 1));
  ASSERT_TRUE(memory.suspend(weights));
  machine->shut_down();
  static_cast<void>(memory.close());
  EXPECT_THAT(heard.take(), IsEmpty());
}

TEST(suspend_names, are_those_of_the_choices_and_fields) {
  EXPECT_EQ(to_string(suspended_contents::keep), "keep");
  EXPECT_EQ(to_string(suspended_contents::discard), "discard");
  EXPECT_EQ(to_string(host_memory_kind::pinned), "pinned");
  EXPECT_EQ(to_string(host_memory_kind::pageable), "pageable");
  EXPECT_EQ(to_string(suspended_requests::fail), "fail");
  EXPECT_EQ(to_string(suspended_requests::wait), "wait");
  EXPECT_EQ(to_string(suspended_requests::resume), "resume");
  EXPECT_EQ(to_string(awaited_streams::all), "all");
  EXPECT_EQ(to_string(awaited_streams::known), "known");
  EXPECT_EQ(to_string(suspend_outcome{64_MiB, 60_MiB, 2_MiB}),
            "released 64 MiB, saved 60 MiB, not_suspended 2 MiB");
  EXPECT_EQ(to_string(resume_outcome{64_MiB, 60_MiB}), "reserved 64 MiB, restored 60 MiB");
}

TEST_F(suspend_test, a_child_process_has_nothing_to_do_with_it) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  const auto block = make_filled(memory, weights, 4_MiB, 5);
  ASSERT_TRUE(memory.suspend(weights));
  const pid_t child = ::fork();
  if (child == 0) {
    const bool refused = code_of(memory.resume(weights)) == errc::driver_gone &&
                         code_of(memory.suspend(weights)) == errc::driver_gone &&
                         code_of(memory.trim_backup()) == errc::driver_gone;
    { const auto last = std::move(memory); }  // its end touches nothing
    ::_exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_TRUE(memory.resume(weights));
  expect_contents(block);
  memory.deallocate(block.at, on);
}

}  // namespace
}  // namespace weir::testing_support
