// SPDX-License-Identifier: Apache-2.0
// The end of an allocator, of its threads, of the driver and of the process.
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <future>
#include <thread>
#include <utility>

#include "heap/heap_fixture.hpp"

namespace weir::testing_support { namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

using heap_lifetime_test = heap_test;

TEST_F(heap_lifetime_test, gives_everything_back_at_the_end) {
  const auto before = machine->used(device_id{0});
  const auto stream = new_stream();
  {
    auto memory = make();
    void* const p = memory.allocate(100_MiB, stream);
    write(stream, p, 100_MiB);
    memory.deallocate(p, stream);  // its work is not done: the end waits for it
    memory.deallocate(memory.allocate(1_KiB, stream), stream);
    EXPECT_GT(machine->used(device_id{0}), before);
  }
  EXPECT_LE(machine->used(device_id{0}).count(), before.count() + (64_MiB).count());
  EXPECT_THAT(machine->hazards(), IsEmpty());
}

TEST_F(heap_lifetime_test, what_is_still_live_is_reported_once) {
  const auto stream = new_stream();
  auto memory = make();
  static_cast<void>(memory.allocate(1000_B, stream));
  static_cast<void>(memory.allocate(3_MiB, stream));
  ASSERT_TRUE(memory.close());
  const auto found = heard.take();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].code(), errc::still_live);
  EXPECT_EQ(found[0].requested().count(), 1024 + (3_MiB).count());
  EXPECT_THAT(found[0].detail(), HasSubstr("2 live blocks"));
  ASSERT_TRUE(memory.close());
}

TEST_F(heap_lifetime_test, a_callback_may_own_what_registered_it) {
  struct registrations {
    callback_registration failure;
    callback_registration growth;
  };
  auto memory = make();
  auto own = std::make_shared<registrations>();
  own->failure = memory.on_out_of_memory([own](bytes) { return false; }).value();
  own->growth = memory.before_growth([own](bytes) { return false; }).value();
  const std::weak_ptr<registrations> left = own;
  own.reset();
  ASSERT_TRUE(memory.close());
  EXPECT_TRUE(left.expired());
}

TEST_F(heap_lifetime_test, calls_after_the_end_say_so) {
  const auto stream = new_stream();
  auto memory = make();
  auto copy = memory;
  EXPECT_EQ(copy, memory);
  void* const p = memory.allocate(1_KiB, stream);
  memory.deallocate(p, stream);
  auto claim = memory.begin_capture(stream).value();
  ASSERT_TRUE(memory.close());
  EXPECT_EQ(code_of(copy.try_allocate(1_KiB, stream)), errc::closed);
  EXPECT_EQ(code_of(copy.try_deallocate(p, stream)), errc::closed);
  EXPECT_EQ(code_of(copy.record_stream(p, stream)), errc::closed);
  EXPECT_EQ(code_of(copy.assume_joined(p)), errc::closed);
  EXPECT_EQ(code_of(copy.size_of(p)), errc::closed);
  EXPECT_EQ(code_of(copy.trim()), errc::closed);
  EXPECT_EQ(code_of(copy.empty_cache()), errc::closed);
  EXPECT_EQ(code_of(copy.release_stream(stream)), errc::closed);
  EXPECT_EQ(code_of(copy.set_limit(1_GiB)), errc::closed);
  EXPECT_EQ(code_of(copy.create_pool("x")), errc::closed);
  EXPECT_EQ(code_of(copy.begin_capture(stream)), errc::closed);
  EXPECT_EQ(copy.stats().allocations, 0u);
  EXPECT_THROW(static_cast<void>(copy.allocate(1_KiB, stream)), failure);
  copy.deallocate(p, stream);
  EXPECT_EQ(heard.take().size(), 1u);
  claim.end_capture();
  auto moved = std::move(copy);
  EXPECT_EQ(code_of(copy.try_allocate(1_KiB, stream)), errc::moved_from);  // NOLINT
  EXPECT_EQ(code_of(copy.close()), errc::moved_from);
  EXPECT_TRUE(moved.close()) << "idempotent";
}

TEST_F(heap_lifetime_test, a_threads_cache_goes_back_with_the_thread) {
  auto memory = make();
  const auto stream = new_stream();
  std::thread{[&] {
    std::vector<void*> all;
    void* const large = memory.allocate(32_MiB, stream);
    for (int i = 0; i < 10; ++i) all.push_back(memory.allocate(64_KiB, stream));
    for (void* const p : all) memory.deallocate(p, stream);
    memory.deallocate(large, stream);
    EXPECT_EQ(memory.stats().thread_cached, 640_KiB + 32_MiB);
  }}.join();
  EXPECT_EQ(memory.stats().thread_cached, 0_B);
  EXPECT_EQ(memory.stats().blocks.current, 0u);
  EXPECT_EQ(check(memory), "");
}

TEST_F(heap_lifetime_test, what_others_freed_for_a_thread_goes_back_with_it) {
  auto memory = make();
  const auto stream = new_stream();
  std::vector<void*> all;
  std::atomic<int> stage{0};
  std::thread owner{[&] {
    for (int i = 0; i < 4; ++i) all.push_back(memory.allocate(64_KiB, stream));
    stage = 1;
    while (stage != 2) std::this_thread::yield();
  }};
  while (stage != 1) std::this_thread::yield();
  memory.deallocate(memory.allocate(4_KiB, stream), stream);
  for (void* const p : all) memory.deallocate(p, stream);  // on their way to the other's cache
  stage = 2;
  owner.join();
  EXPECT_EQ(memory.stats().blocks.current, 0u);
  EXPECT_EQ(memory.stats().frees, 5u);
  EXPECT_EQ(memory.stats().thread_cached, 4_KiB);
  EXPECT_EQ(check(memory), "");
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
}

TEST_F(heap_lifetime_test, threads_that_come_and_go_share_one_cache) {
  auto memory = make();
  const auto stream = new_stream();
  const auto work = [&] {
    std::thread{[&] { memory.deallocate(memory.allocate(64_KiB, stream), stream); }}.join();
  };
  work();
  const bytes metadata = memory.stats().metadata;
  for (int i = 0; i < 10; ++i) work();
  EXPECT_EQ(memory.stats().metadata, metadata);
}

/// Nobody can ask the default stream of a thread that is gone: its last mark tells.
TEST_F(heap_lifetime_test, a_thread_takes_its_default_stream_along) {
  auto memory = make();
  std::thread{[&] {
    const auto own = stream_ref::per_thread(gpu());
    void* const p = memory.allocate(8_MiB, own);
    write(own, p, 8_MiB);
    memory.deallocate(p, own);
  }}.join();
  EXPECT_EQ(memory.trim().value(), 0_B) << "its work is not done";
  const auto waits = machine->calls(driver::call::mem_free);
  EXPECT_EQ(memory.empty_cache().value(), 8_MiB);
  EXPECT_EQ(machine->calls(driver::call::mem_free), waits) << "its mark was waited for";
  EXPECT_EQ(check(memory), "");

  const auto stream = new_stream();
  memory.deallocate(memory.allocate(8_MiB, stream), stream);
  bytes released = memory.trim().value();
  machine->run_until_idle();
  released += memory.trim().value();
  EXPECT_EQ(released, 8_MiB) << "it holds up nobody any more";
  EXPECT_EQ(machine->calls(driver::call::mem_free), waits);
}

TEST_F(heap_lifetime_test, an_end_that_fails_attempts_all_and_returns_the_first_failure) {
  const auto stream = new_stream();
  auto memory = make();
  const auto pool = memory.create_pool("apart").value();
  memory.deallocate(memory.allocate(2_MiB, stream), stream);
  memory.deallocate(pool.allocate(4_MiB, stream), stream);
  const auto taken = machine->used(device_id{0});
  for (int tries = 0; tries < 2; ++tries)
    machine->fail(driver::call::mem_release, 1, driver::CUDA_ERROR_ILLEGAL_STATE);
  const auto closed = memory.close();
  ASSERT_FALSE(closed);
  EXPECT_EQ(closed.error().native(), driver::CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_LT(machine->used(device_id{0}), taken);
  EXPECT_TRUE(memory.close()) << "it is closed all the same";
}

TEST_F(heap_lifetime_test, a_release_that_fails_once_loses_nothing) {
  const auto stream = new_stream();
  const auto before = machine->used(device_id{0});
  for (const auto segments : {false, true}) {
    auto memory = make();
    {
      const auto pool = memory.create_pool("apart", {.segments = segments}).value();
      memory.deallocate(pool.allocate(20_MiB, stream), stream);
      machine->fail(driver::call::mem_release, 1, driver::CUDA_ERROR_UNKNOWN);
      ASSERT_TRUE(pool.empty_cache());
      EXPECT_EQ(machine->used(device_id{0}), before);
    }
    ASSERT_TRUE(memory.close());
  }
  machine->clear_faults();
}

/// Work that cannot be waited for may still use the memory.
TEST_F(heap_lifetime_test, an_end_that_cannot_wait_keeps_the_memory_mapped) {
  for (const auto policy : {placement_policy::balanced, placement_policy::classic}) {
    SCOPED_TRACE(to_string(policy));
    const auto stream = new_stream();
    const auto before = machine->used(device_id{0});
    auto memory = make({.policy = policy});
    void* const p = memory.allocate(40_MiB, stream);
    write(stream, p, 40_MiB);
    memory.deallocate(p, stream);
    machine->fail(driver::call::mem_free, 1, driver::CUDA_ERROR_UNKNOWN);
    const auto closed = memory.close();
    ASSERT_EQ(code_of(closed), errc::driver_error);
    EXPECT_EQ(closed.error().detail().find("40 MiB stay mapped"), 0u) << closed.error().detail();
    EXPECT_EQ(machine->used(device_id{0}), before + 40_MiB);
    machine->clear_faults();
  }
}

TEST_F(heap_lifetime_test, an_end_that_cannot_return_host_memory_says_so) {
  const auto stream = new_stream();
  for (const bool pools_fail : {false, true}) {
    auto memory = make();
    memory.deallocate(memory.allocate(2_MiB, stream), stream);
    ASSERT_TRUE(memory.reserve_backup(1_MiB));
    for (int tries = 0; pools_fail && tries < 2; ++tries)
      machine->fail(driver::call::mem_release, 1, driver::CUDA_ERROR_ILLEGAL_STATE);
    machine->fail(driver::call::mem_free_host, 1, driver::CUDA_ERROR_UNKNOWN);
    const auto closed = memory.close();
    ASSERT_FALSE(closed);
    EXPECT_EQ(closed.error().native(),
              pools_fail ? driver::CUDA_ERROR_ILLEGAL_STATE : driver::CUDA_ERROR_UNKNOWN);
  }
}

TEST_F(heap_lifetime_test, mappings_are_undone_at_once_where_that_was_asked_for) {
  const auto unmapped = [&](allocator_options settings) {
    settings.policy = placement_policy::compact;
    settings.limit = 16_MiB;
    settings.thread_cache = {};
    auto memory = make(settings);
    const auto stream = new_stream();
    std::vector<void*> all;
    for (int i = 0; i < 8; ++i) all.push_back(memory.allocate(2_MiB, stream));
    for (const std::size_t i : {1u, 3u}) memory.deallocate(std::exchange(all[i], nullptr), stream);
    machine->run_until_idle();
    EXPECT_TRUE(memory.trim(bytes::max()));
    const auto before = machine->calls(driver::call::mem_unmap);
    all.push_back(memory.allocate(4_MiB, stream));
    EXPECT_EQ(memory.stats().handles_moved, 2u);
    const auto calls = machine->calls(driver::call::mem_unmap) - before;
    for (void* const p : all) memory.deallocate(p, stream);
    return calls;
  };
  EXPECT_EQ(unmapped({.exportable = true}), 0u);
  EXPECT_EQ(unmapped({.debug_unmap = true}), 2u);
}

TEST_F(heap_lifetime_test, an_allocator_may_go_before_its_threads) {
  const auto stream = new_stream();
  auto memory = std::make_optional(make());
  std::atomic<int> stage{0};
  std::thread other{[&] {
    memory->deallocate(memory->allocate(64_KiB, stream), stream);
    stage = 1;
    while (stage != 2) std::this_thread::yield();
    memory->deallocate(memory->allocate(64_KiB, stream),
                       stream);  // another one, maybe at its place
  }};
  while (stage != 1) std::this_thread::yield();
  memory.reset();
  memory.emplace(make());
  stage = 2;
  other.join();
  EXPECT_EQ(memory->stats().allocations, 1u);
  EXPECT_EQ(check(*memory), "");
}

TEST_F(heap_lifetime_test, many_allocators_on_one_thread) {
  const auto stream = new_stream();
  std::vector<caching_allocator> all;
  for (int i = 0; i < 5; ++i) all.push_back(make());
  for (int round = 0; round < 50; ++round)
    for (auto& each : all) each.deallocate(each.allocate(64_KiB, stream), stream);
  for (auto& each : all) {
    EXPECT_EQ(each.stats().hits, 49u);
    EXPECT_EQ(check(each), "");
  }
}

TEST_F(heap_lifetime_test, is_silent_when_the_driver_is_gone) {
  const auto stream = new_stream();
  {
    auto memory = make();
    static_cast<void>(memory.allocate(1_MiB, stream));
    memory.deallocate(memory.allocate(2_MiB, stream), stream);
    machine->shut_down();
    EXPECT_EQ(code_of(memory.try_allocate(64_MiB, stream)), errc::driver_gone);
  }
  EXPECT_THAT(heard.take(), IsEmpty());
}

/// Forks when it is first told something, with the allocator's lock held.
class forking_sink final : public event_sink {
 public:
  explicit forking_sink(std::function<void()> in_child) : in_child_{std::move(in_child)} {}
  void on_event(const memory_event& /*event*/) noexcept override {
    if (child >= 0) return;
    child = ::fork();
    if (child != 0) return;
    ::alarm(10);  // the end of a child that waits
    in_child_();
    ::_exit(0);
  }
  pid_t child = -1;

 private:
  std::function<void()> in_child_;
};

TEST_F(heap_lifetime_test, a_child_that_is_forked_under_the_lock_waits_for_nobody) {
  const auto stream = new_stream();
  auto memory = make();
  forking_sink ear{[&] {
    memory.reset_counters();
    memory.reset_peaks();
    static_cast<void>(memory.stats());
    static_cast<void>(memory.stats(tag{}));
    static_cast<void>(memory.stats_by_tag());
    static_cast<void>(memory.snapshot());
    static_cast<void>(memory.explain(64_KiB, stream));
    static_cast<void>(memory.try_allocate(64_KiB, stream));
  }};
  auto observation = memory.add_observer(ear).value();
  memory.deallocate(memory.allocate(64_KiB, stream), stream);
  observation.close();
  ASSERT_GT(ear.child, 0);
  int status = -1;
  ASSERT_EQ(::waitpid(ear.child, &status, 0), ear.child);
  EXPECT_EQ(status, 0);
}

/// Ends a forked process behind the thread's own memory, before anything that comes with exit().
struct silent_end {
  ~silent_end() {
    if (is_child) ::_exit(0);
  }
  bool is_child = false;
};

TEST_F(heap_lifetime_test, a_thread_that_forked_ends_in_the_child_though_another_has_the_lock) {
  const auto stream = new_stream();
  auto memory = make();
  std::promise<void> ready, locked, forked;
  pid_t child = -1;
  std::thread forking{[&] {
    thread_local silent_end end;
    end.is_child = false;  // made before the thread's cache, so that it ends later
    memory.deallocate(memory.allocate(4_KiB, stream), stream);
    ready.set_value();
    locked.get_future().wait();
    child = ::fork();
    if (child == 0) {
      end.is_child = true;
      ::alarm(10);  // the end of a child that waits
      return;
    }
    forked.set_value();
  }};
  class : public event_sink {
   public:
    void on_event(const memory_event& /*event*/) noexcept override {
      if (std::exchange(first, false)) under_lock();
    }
    bool first = true;
    std::function<void()> under_lock;
  } ear;
  ear.under_lock = [&] {
    locked.set_value();
    forked.get_future().wait();
  };
  ready.get_future().wait();
  auto observation = memory.add_observer(ear).value();
  memory.deallocate(memory.allocate(64_MiB, stream), stream);
  forking.join();
  observation.close();
  ASSERT_GT(child, 0);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(heap_lifetime_test, every_call_of_a_child_that_is_forked_under_the_lock_says_so) {
  const auto stream = new_stream();
  const auto captured = new_stream();
  auto memory = make();
  auto pool = memory.create_pool("apart").value();
  void* const p = pool.allocate(64_KiB, stream);
  auto claim = memory.begin_capture(captured).value();
  auto registration = memory.on_out_of_memory([](bytes) { return false; }).value();
  listener second;
  auto listening = memory.add_observer(second).value();
  auto notice = std::make_optional(memory.guard_captures().value());
  forking_sink ear{[&] {
    int number = 0;
    const auto gone = [&](const auto& outcome) {
      ++number;
      if (outcome || outcome.code() != errc::driver_gone) ::_exit(number);
    };
    gone(memory.try_allocate(64_KiB, stream, 4_KiB));
    gone(memory.try_deallocate(p, stream));
    gone(memory.try_deallocate(p, 64_KiB, stream));
    gone(memory.try_deallocate(p));
    gone(memory.record_stream(p, stream));
    gone(memory.assume_joined(p));
    gone(memory.size_of(p));
    gone(memory.block_at(p));
    gone(memory.describe_address(p));
    gone(memory.handles_under(p));
    gone(memory.enable_peer(gpu(1)));
    gone(memory.trim());
    gone(memory.shrink(0_B));
    gone(memory.empty_cache());
    gone(memory.empty_cache(pool.id()));
    gone(memory.release_stream(stream));
    gone(memory.set_limit(1_GiB));
    gone(memory.set_limit(tag{}, 1_GiB));
    gone(memory.create_pool("x"));
    gone(memory.begin_capture(stream));
    gone(claim.tie_to_graph(reinterpret_cast<driver::CUgraph>(p)));
    gone(memory.declare_suspendable(tag{}));
    gone(memory.suspend());
    gone(memory.resume());
    gone(memory.suspend_async());
    gone(memory.resume_async(stream));
    gone(memory.reserve_backup(1_MiB));
    gone(memory.trim_backup());
    gone(pool.try_allocate(64_KiB, stream));
    gone(pool.allocate_at(p, 64_KiB, stream));
    gone(pool.set_fallback(true));
    gone(memory.close());
    if (memory.is_suspended(tag{})) ::_exit(101);
    if (pool.stats() != memory_stats{}) ::_exit(102);
    if (!pool.snapshot().name.empty()) ::_exit(103);
    if (claim.pool()) ::_exit(104);
    if (heap::central_heap::of(memory).inspection().reserved() != 0_B) ::_exit(105);
    gone(heap::central_heap::of(memory).limits().add_share(&memory, bytes::max(), {}));
    gone(heap::central_heap::of(memory).limits().set_ceiling(&memory, 1_MiB));
    heap::central_heap::of(memory).limits().remove_share(&memory);
    static_cast<void>(memory.on_out_of_memory([](bytes) { return true; }));
    listener third;
    static_cast<void>(memory.add_observer(third));
    registration = {};
    listening.close();
    notice.reset();
    static_cast<void>(memory.guard_captures());
    claim.end_capture();
    pool = {};
  }};
  auto observation = memory.add_observer(ear).value();
  memory.deallocate(memory.allocate(64_KiB, stream), stream);
  ASSERT_GT(ear.child, 0);
  int status = -1;
  ASSERT_EQ(::waitpid(ear.child, &status, 0), ear.child);
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
  observation.close();
  memory.deallocate(p, stream);
}

TEST_F(heap_lifetime_test, a_forked_child_is_told_and_touches_nothing) {
  const auto stream = new_stream();
  auto memory = std::make_optional(make());
  void* const p = memory->allocate(64_KiB, stream);
  memory->deallocate(memory->allocate(128_KiB, stream), stream);
  const pid_t child = ::fork();
  if (child == 0) {
    int wrong = 0;
    const auto gone = [&](const auto& outcome, int number) {
      if (wrong == 0 && (outcome || outcome.code() != errc::driver_gone)) wrong = number;
    };
    gone(memory->try_allocate(128_KiB, stream), 1);  // a hit in the parent
    gone(memory->try_allocate(64_MiB, stream), 2);
    gone(memory->try_deallocate(p, stream), 3);
    gone(memory->try_deallocate(p), 4);
    gone(memory->record_stream(p, stream), 5);
    gone(memory->trim(), 6);
    gone(memory->empty_cache(), 7);
    gone(memory->close(), 8);
    gone(memory->create_pool("x"), 9);
    if (memory->stats().allocations != 0) wrong = 10;
    memory->deallocate(p, stream);
    memory.reset();
    if (!heard.take().empty()) wrong = 11;
    ::_exit(wrong);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
  memory->deallocate(p, stream);
  EXPECT_EQ(check(*memory), "");
}

}  // namespace
}  // namespace weir::testing_support
