// SPDX-License-Identifier: Apache-2.0
// Suspending and resuming while the driver fails, memory runs out and others do the same.
#include <sys/sysinfo.h>

#include <atomic>
#include <thread>

#include "heap/suspend_fixture.hpp"
#include "support/sanitizers.hpp"

namespace weir::testing_support { namespace {

using ::testing::IsEmpty;

class suspend_faults_test : public suspend_test {
 protected:
  /// Three blocks with contents and a gap, in several handles.
  std::vector<filled> make_blocks(const caching_allocator& memory) {
    std::vector<filled> blocks;
    for (unsigned char i = 1; i <= 4; ++i) blocks.push_back(make_filled(memory, weights, 3_MiB, i));
    memory.deallocate(blocks[1].at, on);
    blocks.erase(blocks.begin() + 1);
    EXPECT_TRUE(on.synchronize());
    return blocks;
  }
  void finish(caching_allocator& memory, const std::vector<filled>& blocks) {
    for (const filled& each : blocks) memory.deallocate(each.at, on);
    ASSERT_TRUE(memory.empty_cache());
    ASSERT_EQ(memory.stats().reserved.current, 0_B);
    ASSERT_EQ(check(memory), "");
    ASSERT_TRUE(memory.close());
    ASSERT_EQ(used(), 0_B);
  }
  [[nodiscard]] caching_allocator make_declared() const {
    allocator_options settings;
    settings.policy = placement_policy::compact;
    auto memory = make(settings);
    EXPECT_TRUE(memory.declare_suspendable(weights));
    return memory;
  }
  std::uint64_t count_calls(const suspend_options& with, bool of_resume) {
    auto memory = make_declared();
    const auto blocks = make_blocks(memory);
    const auto before = machine->calls();
    EXPECT_TRUE(memory.suspend(weights, with));
    const auto between = machine->calls();
    EXPECT_TRUE(memory.resume(weights, {.progress = with.progress}));
    const auto after = machine->calls();
    finish(memory, blocks);
    return of_resume ? after - between : between - before;
  }

  /// Which of the calls fail: all of them, one after the other, of the first of the ways, and some
  /// of the others, or where a program takes ten times as long. The two kinds of failure take
  /// turns.
  static std::uint64_t stride_of(const suspend_options& way) {
    if (is_sanitized) return 11;
    return &way == &ways[0] ? 1 : 3;
  }
  static constexpr driver::CUresult refusals[] = {driver::CUDA_ERROR_UNKNOWN,
                                                  driver::CUDA_ERROR_OUT_OF_MEMORY};
  inline static const suspend_options ways[] = {
      {.chunk = 1_MiB},
      {.to = host_memory_kind::pageable, .chunk = 1_MiB},
      {.contents = suspended_contents::discard},
      {.chunk = 1_MiB, .progress = [](bytes, bytes) { throw 1; }}};
};

TEST_F(suspend_faults_test, any_call_of_suspend_may_fail) {
  for (const suspend_options& way : ways) {
    const std::uint64_t calls = count_calls(way, false);
    ASSERT_GT(calls, 10u);
    const std::uint64_t stride = stride_of(way);
    for (std::uint64_t nth = 1; nth <= calls; nth += stride) {
      const auto with = refusals[nth / stride % 2];
      SCOPED_TRACE(to_string(way.contents) + " " + to_string(way.to) + " call " +
                   std::to_string(nth));
      auto memory = make_declared();
      const auto blocks = make_blocks(memory);
      const bytes before = used();
      machine->fail_any(nth, with);
      const auto outcome = memory.suspend(weights, way);
      machine->clear_faults();
      ASSERT_EQ(check(memory), "");
      ASSERT_EQ(memory.is_suspended(weights), outcome.has_value()) << "the old state or the new";
      ASSERT_EQ(used(), outcome ? 0_B : before);
      if (!outcome) expect_contents(blocks);
      ASSERT_TRUE(memory.resume(weights));
      if (!outcome || way.contents == suspended_contents::keep) expect_contents(blocks);
      ASSERT_TRUE(memory.suspend(weights));
      ASSERT_TRUE(memory.resume(weights));
      finish(memory, blocks);
      if (HasFatalFailure()) return;
      static_cast<void>(heard.take());
    }
  }
}

TEST_F(suspend_faults_test, any_call_of_resume_may_fail) {
  for (const suspend_options& way : ways) {
    const std::uint64_t calls = count_calls(way, true);
    ASSERT_GT(calls, 5u);
    const std::uint64_t stride = stride_of(way);
    for (std::uint64_t nth = 1; nth <= calls; nth += stride) {
      const auto with = refusals[nth / stride % 2];
      SCOPED_TRACE(to_string(way.contents) + " " + to_string(way.to) + " call " +
                   std::to_string(nth));
      auto memory = make_declared();
      const auto blocks = make_blocks(memory);
      ASSERT_TRUE(memory.suspend(weights, way));
      machine->fail_any(nth, with);
      const auto outcome = memory.resume(weights, {.progress = way.progress});
      machine->clear_faults();
      ASSERT_EQ(check(memory), "");
      ASSERT_EQ(memory.is_suspended(weights), !outcome.has_value());
      if (!outcome) {
        ASSERT_EQ(used(), 0_B);
        ASSERT_TRUE(memory.resume(weights));
      }
      if (way.contents == suspended_contents::keep) expect_contents(blocks);
      finish(memory, blocks);
      if (HasFatalFailure()) return;
      static_cast<void>(heard.take());
    }
  }
}

/// The driver neither unmaps one handle nor maps another again: what is left is suspended, with its
/// memory, and comes back whole.
TEST_F(suspend_faults_test, a_driver_that_refuses_every_wait_unmaps_nothing_under_a_copy) {
  for (const suspend_options& way : ways) {
    for (const bool other_waits : {true, false}) {
      auto memory = make_declared();
      const auto blocks = make_blocks(memory);
      ASSERT_TRUE(memory.suspend(weights, way));
      for (std::uint64_t nth = 1; nth <= 100; ++nth) {
        machine->fail(driver::call::stream_synchronize, nth, driver::CUDA_ERROR_UNKNOWN);
        if (other_waits) continue;
        machine->fail(driver::call::mem_free, nth, driver::CUDA_ERROR_UNKNOWN);
        machine->fail(driver::call::mem_free_host, nth, driver::CUDA_ERROR_UNKNOWN);
      }
      const auto refused = memory.resume(weights, {.progress = way.progress});
      machine->clear_faults();
      const bool copies = way.contents == suspended_contents::keep;
      EXPECT_EQ(refused.has_value(), !copies);
      EXPECT_EQ(memory.is_suspended(weights), copies);
      EXPECT_EQ(memory.stats().reserved.current, used());
      ASSERT_EQ(check(memory), "");
      ASSERT_THAT(machine->hazards(), IsEmpty());
      ASSERT_TRUE(memory.resume(weights));
      if (copies) expect_contents(blocks);
      ASSERT_TRUE(memory.suspend(weights));
      ASSERT_TRUE(memory.resume(weights));
      finish(memory, blocks);
      static_cast<void>(heard.take());
    }
  }
}

TEST_F(suspend_faults_test, two_failures_lose_nothing) {
  for (std::uint64_t unmap = 2; unmap <= 5; ++unmap) {
    for (const auto second : {driver::call::mem_map, driver::call::mem_set_access}) {
      SCOPED_TRACE(unmap);
      auto memory = make_declared();
      const auto blocks = make_blocks(memory);
      machine->fail(driver::call::mem_unmap, unmap, driver::CUDA_ERROR_UNKNOWN);
      machine->fail(second, 1, driver::CUDA_ERROR_UNKNOWN);
      EXPECT_FALSE(memory.suspend(weights));
      machine->clear_faults();
      EXPECT_TRUE(memory.is_suspended(weights));
      EXPECT_EQ(check(memory), "");
      ASSERT_TRUE(memory.suspend(weights)) << "tried again";
      EXPECT_EQ(used(), 0_B);
      ASSERT_TRUE(memory.resume(weights));
      expect_contents(blocks);
      EXPECT_FALSE(heard.take().empty());
      finish(memory, blocks);
    }
  }
}

TEST_F(suspend_faults_test, a_release_that_fails_twice_is_tried_by_the_next_call) {
  auto memory = make_declared();
  const auto blocks = make_blocks(memory);
  const bytes reserved = used();
  machine->fail(driver::call::mem_release, 1, driver::CUDA_ERROR_UNKNOWN);
  const std::uint64_t handles = reserved.count() / (2_MiB).count();
  machine->fail(driver::call::mem_release, handles,
                driver::CUDA_ERROR_UNKNOWN);  // behind the first
  EXPECT_EQ(code_of(memory.suspend(weights)), errc::driver_error);
  EXPECT_TRUE(memory.is_suspended(weights));
  EXPECT_EQ(memory.stats().reserved.current, 2_MiB) << "the books know that it is still here";
  EXPECT_EQ(memory.suspend(weights).value(), (suspend_outcome{2_MiB, 0_B, 0_B}));
  EXPECT_EQ(used(), 0_B);
  ASSERT_TRUE(memory.resume(weights));
  expect_contents(blocks);
  finish(memory, blocks);
}

TEST_F(suspend_faults_test, of_two_that_cannot_be_released_the_first_is_told) {
  auto memory = make_declared();
  ASSERT_TRUE(memory.declare_suspendable(cache));
  const auto first = make_filled(memory, weights, 2_MiB, 1);
  const auto second = make_filled(memory, cache, 2_MiB, 2);
  for (const auto answer : {driver::CUDA_ERROR_UNKNOWN, driver::CUDA_ERROR_INVALID_VALUE})
    for (int tries = 0; tries < 2; ++tries) machine->fail(driver::call::mem_release, 1, answer);
  const auto refused = memory.suspend();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().native(), driver::CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(used(), 4_MiB);
  ASSERT_TRUE(memory.suspend());
  EXPECT_EQ(used(), 0_B);
  ASSERT_TRUE(memory.resume());
  expect_contents({first, second});
  finish(memory, {first, second});
}

TEST_F(suspend_faults_test, without_host_memory_nothing_changes) {
  auto memory = make_declared();
  const auto blocks = make_blocks(memory);
  machine->fail(driver::call::mem_host_alloc, 1, driver::CUDA_ERROR_OUT_OF_MEMORY);
  const auto refused = memory.suspend(weights);
  ASSERT_EQ(code_of(refused), errc::no_host_memory);
  EXPECT_EQ(refused.error().detail(), "for contents of suspended memory, pinned");
  EXPECT_FALSE(memory.is_suspended(weights));
  expect_contents(blocks);
  finish(memory, blocks);
}

TEST_F(suspend_faults_test, more_than_the_host_has_is_refused_at_once) {
  const auto memory = make_declared();
  for (const auto kind : {host_memory_kind::pinned, host_memory_kind::pageable}) {
    const auto refused = memory.reserve_backup(bytes::max(), kind);
    ASSERT_EQ(code_of(refused), errc::no_host_memory);
    EXPECT_EQ(refused.error().requested(), bytes::max());
  }
  EXPECT_EQ(machine->calls(driver::call::mem_host_alloc), 0u);
  EXPECT_EQ(memory.stats().backup, byte_gauge{});
}

TEST_F(suspend_faults_test, as_much_as_the_host_has_is_asked_for) {
  const auto memory = make_declared();
  struct ::sysinfo host {};
  ASSERT_EQ(::sysinfo(&host), 0);
  const bytes all{(std::uint64_t{host.totalram} + host.totalswap) * host.mem_unit};
  EXPECT_EQ(code_of(memory.reserve_backup(all + 1_B)), errc::no_host_memory);
  EXPECT_EQ(machine->calls(driver::call::mem_host_alloc), 0u);
  machine->fail(driver::call::mem_host_alloc, 1, driver::CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code_of(memory.reserve_backup(all)), errc::driver_error) << "the driver was asked";
}

/// Of several pools all go or none.
TEST_F(suspend_faults_test, what_was_unmapped_of_other_pools_comes_back) {
  bool went = false;
  std::uint64_t nth = 0;
  while (!went) {
    ++nth;
    SCOPED_TRACE(nth);
    ASSERT_LT(nth, 100u) << "there must be an end";
    auto memory = make_declared();
    ASSERT_TRUE(memory.declare_suspendable(cache));
    auto blocks = make_blocks(memory);
    blocks.push_back(make_filled(memory, cache, 3_MiB, 7));
    blocks.push_back(make_filled(memory, tag{}, 3_MiB, 8));
    const bytes before = used();
    machine->fail(driver::call::mem_unmap, nth, driver::CUDA_ERROR_UNKNOWN);
    went = memory.suspend().has_value();
    machine->clear_faults();
    ASSERT_EQ(check(memory), "");
    EXPECT_EQ(used(), went ? 0_B : before);
    EXPECT_EQ(memory.is_suspended(weights), went);
    EXPECT_EQ(memory.is_suspended(cache), went);
    EXPECT_EQ(memory.trim_backup().value(), went ? 0_B : 32_MiB) << "what was saved is dropped";
    ASSERT_TRUE(memory.resume());
    expect_contents(blocks);
    finish(memory, blocks);
    if (HasFatalFailure()) return;
    static_cast<void>(heard.take());
  }
  EXPECT_GT(nth, 4u) << "each pool had something to unmap";
}

TEST_F(suspend_faults_test, what_never_had_memory_goes_and_stays_with_the_others) {
  auto memory = make_declared();
  ASSERT_TRUE(memory.declare_suspendable(cache));
  const auto blocks = make_blocks(memory);
  machine->fail(driver::call::mem_unmap, 1, driver::CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code_of(memory.suspend()), errc::driver_error);
  EXPECT_FALSE(memory.is_suspended(cache));
  ASSERT_TRUE(memory.suspend());
  EXPECT_TRUE(memory.is_suspended(cache));
  machine->fail(driver::call::mem_create, 1, driver::CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code_of(memory.resume()), errc::driver_error);
  EXPECT_TRUE(memory.is_suspended(cache));
  ASSERT_TRUE(memory.resume());
  EXPECT_FALSE(memory.is_suspended(cache));
  expect_contents(blocks);
  finish(memory, blocks);
}

TEST_F(suspend_faults_test, a_chunk_is_copied_back_before_more_memory_is_asked_for) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 4_MiB, 1);
  ASSERT_EQ(memory.stats().handles_created, 2u);
  ASSERT_TRUE(memory.suspend(weights, {.chunk = 2_MiB}));
  machine->fail(driver::call::mem_create, 2, driver::CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code_of(memory.resume(weights)), errc::driver_error);
  EXPECT_EQ(machine->calls(driver::call::memcpy_htod_async), 1u);
  ASSERT_TRUE(memory.resume(weights));
  EXPECT_EQ(machine->calls(driver::call::memcpy_htod_async), 3u);
  expect_contents(block);
  finish(memory, {block});
}

TEST_F(suspend_faults_test, what_a_return_that_failed_cannot_release_is_told_and_stays) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 4_MiB, 1);
  ASSERT_TRUE(memory.suspend(weights));
  machine->fail(driver::call::mem_create, 2, driver::CUDA_ERROR_UNKNOWN);
  for (int tries = 0; tries < 2; ++tries)
    machine->fail(driver::call::mem_release, 1, driver::CUDA_ERROR_UNKNOWN);
  const auto refused = memory.resume(weights);
  ASSERT_EQ(code_of(refused), errc::driver_error);
  EXPECT_EQ(refused.error().call(), "cuMemCreate");
  const auto told = heard.take();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].call(), "cuMemRelease");
  EXPECT_TRUE(memory.is_suspended(weights));
  EXPECT_EQ(memory.stats().reserved.current, 2_MiB);
  EXPECT_EQ(used(), 2_MiB);
  EXPECT_EQ(check(memory), "");
  EXPECT_EQ(memory.resume(weights).value(), (resume_outcome{2_MiB, 4_MiB})) << "the rest";
  expect_contents(block);
  finish(memory, {block});
}

TEST_F(suspend_faults_test, copies_that_fail_leave_no_host_memory_in_use) {
  for (const auto kind : {host_memory_kind::pinned, host_memory_kind::pageable}) {
    SCOPED_TRACE(to_string(kind));
    const bytes staging = kind == host_memory_kind::pageable ? 32_MiB : 0_B;
    auto memory = make_declared();
    ASSERT_TRUE(memory.declare_suspendable(cache));
    auto blocks = make_blocks(memory);
    blocks.push_back(make_filled(memory, cache, 3_MiB, 7));
    const suspend_options way{.to = kind, .chunk = 1_MiB};
    for (const std::uint64_t nth : {1, 4, 12}) {
      machine->fail(driver::call::memcpy_dtoh_async, nth, driver::CUDA_ERROR_UNKNOWN);
      EXPECT_EQ(code_of(memory.suspend(way)), errc::driver_error);
      EXPECT_EQ(memory.stats(weights).backup.current, 0_B);
      EXPECT_EQ(memory.trim_backup().value(), 32_MiB + staging);
    }
    ASSERT_EQ(memory.suspend(way).value().saved, 12_MiB);
    EXPECT_EQ(memory.trim_backup().value(), staging);
    for (const std::uint64_t nth : {1, 4, 12}) {
      machine->fail(driver::call::memcpy_htod_async, nth, driver::CUDA_ERROR_UNKNOWN);
      EXPECT_EQ(code_of(memory.resume()), errc::driver_error);
      EXPECT_EQ(used(), 0_B);
      EXPECT_EQ(memory.trim_backup().value(), staging);
    }
    EXPECT_EQ(memory.resume().value().restored, 12_MiB);
    EXPECT_EQ(memory.trim_backup().value(), 32_MiB + staging);
    expect_contents(blocks);
    finish(memory, blocks);
  }
}

TEST_F(suspend_faults_test, host_memory_that_is_not_enough_goes_back) {
  const auto memory = make_declared();
  machine->fail(driver::call::mem_host_alloc, 3, driver::CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(code_of(memory.reserve_backup(3_GiB)), errc::no_host_memory);
  EXPECT_EQ(memory.stats().backup, (byte_gauge{0_B, 2_GiB}));
  ASSERT_TRUE(memory.reserve_backup(3_GiB));
  EXPECT_EQ(memory.stats().backup.current, 3_GiB);
}

// --- Threads -------------------------------------------------------------------------------------

/// Whoever suspends waits for the device without the allocator's lock.
TEST_F(suspend_faults_test, others_go_on_while_one_waits_for_work) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 3_MiB, 1);
  const auto busy = new_stream();
  void* const used_by_busy = memory.allocate(1_MiB, busy);
  std::atomic<bool> done{false};
  auto held = hold(busy);
  write(busy, used_by_busy, 1_MiB);
  std::thread suspender{[&] {
    EXPECT_TRUE(memory.suspend(weights));
    done = true;
  }};
  std::this_thread::sleep_for(std::chrono::milliseconds{20});
  for (int i = 0; i < 10; ++i) memory.deallocate(memory.allocate(5_MiB, on), on);
  EXPECT_EQ(memory.stats().blocks.current, 2u);
  EXPECT_FALSE(done.load());
  EXPECT_EQ(check(memory), "");
  held.release();
  suspender.join();
  ASSERT_TRUE(memory.resume(weights));
  expect_contents(block);
  memory.deallocate(block.at, on);
  memory.deallocate(used_by_busy, busy);
}

TEST_F(suspend_faults_test, many_threads_suspend_and_resume_and_free) {
  auto memory = make_declared();
  ASSERT_TRUE(memory.declare_suspendable(cache));
  const auto lasting = make_filled(memory, weights, 3_MiB, 1);
  const auto other = make_filled(memory, cache, 3_MiB, 2);
  std::vector<void*> passing;
  for (int i = 0; i < 64; ++i) passing.push_back(allocate(memory, weights, 64_KiB));
  ASSERT_TRUE(on.synchronize());
  const suspend_options way{.requests = suspended_requests::resume};
  const auto work = [&](int seed) {
    for (int i = 0; i < 25; ++i) {
      switch ((i + seed) % 5) {
        case 0:
          EXPECT_TRUE(memory.suspend(weights, way));
          break;
        case 1:
          EXPECT_TRUE(memory.resume(weights));
          break;
        case 2:
          EXPECT_TRUE(memory.suspend(way));
          break;
        case 3:
          EXPECT_TRUE(memory.resume());
          break;
        default:
          memory.deallocate(allocate(memory, cache, 1_MiB), on);
          static_cast<void>(memory.stats());
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back(work, i);
  threads.emplace_back([&] {
    for (void* const each : passing) memory.deallocate(each, on);
  });
  for (std::thread& each : threads) each.join();
  ASSERT_TRUE(memory.resume());
  EXPECT_EQ(check(memory), "");
  expect_contents({lasting, other});
  EXPECT_EQ(memory.stats().blocks.current, 2u);
  finish(memory, {lasting, other});
}

TEST_F(suspend_faults_test, the_end_waits_for_a_suspend_that_is_under_way) {
  auto memory = make_declared();
  static_cast<void>(make_filled(memory, weights, 3_MiB, 1));
  const auto busy = new_stream();
  void* const used_by_busy = memory.allocate(1_MiB, busy);
  auto held = hold(busy);
  write(busy, used_by_busy, 1_MiB);
  std::thread suspender{[&] { EXPECT_TRUE(memory.suspend(weights)); }};
  std::this_thread::sleep_for(std::chrono::milliseconds{20});
  std::thread closer{[&] { EXPECT_TRUE(memory.close()); }};
  std::this_thread::sleep_for(std::chrono::milliseconds{20});
  held.release();
  suspender.join();
  closer.join();
  EXPECT_EQ(used(), 0_B);
  ASSERT_EQ(heard.take().size(), 1u) << "what is still live";
}

}  // namespace
}  // namespace weir::testing_support
