// SPDX-License-Identifier: Apache-2.0
// Suspending and bringing back without waiting: the order, taking back, and what a failure leaves.
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <random>
#include <thread>

#include "heap/suspend_fixture.hpp"
#include "support/no_threads.hpp"
#include "support/sanitizers.hpp"

namespace weir::testing_support { namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class suspend_async_test : public suspend_test {
 protected:
  /// Keeps the stream from doing anything until the end of the scope.
  class busy {
   public:
    busy(sim::machine& machine, const stream_ref& stream) : machine_{machine}, stream_{stream} {
      machine_.hold(stream_.handle());
    }
    ~busy() { end(); }
    busy(const busy&) = delete;
    busy& operator=(const busy&) = delete;
    void end() {
      if (!std::exchange(over_, true)) machine_.release(stream_.handle());
    }

   private:
    sim::machine& machine_;
    stream_ref stream_;
    bool over_ = false;
  };

  /// Waits for what is on its way out; true if that is suspended then.
  static bool arrives(const caching_allocator& memory, tag of) {
    EXPECT_EQ(memory.suspend(of).value(), suspend_outcome{}) << "it was on its way";
    return memory.is_suspended(of);
  }
  [[nodiscard]] caching_allocator make_declared() const {
    auto memory = make();
    EXPECT_TRUE(memory.declare_suspendable(weights));
    return memory;
  }
};

TEST_F(suspend_async_test, streams_that_the_allocator_never_met_are_waited_for) {
  auto memory = make_declared();
  const filled block = make_filled(memory, weights, 4_MiB, 7);
  const context_scope bound{gpu()};
  driver::CUstream unknown = nullptr;
  ASSERT_EQ(cuda().stream_create(&unknown, driver::CU_STREAM_NON_BLOCKING), driver::CUDA_SUCCESS);
  auto ready = event::create(gpu()).value();
  ASSERT_TRUE(ready.record(on));
  ASSERT_EQ(cuda().stream_wait_event(unknown, ready.handle(), 0), driver::CUDA_SUCCESS);
  const filled written{block.at, block.size, 9};
  ASSERT_EQ(cuda().memset_d8_async(address(block.at), 9, block.size.count(), unknown),
            driver::CUDA_SUCCESS);
  ASSERT_TRUE(memory.suspend_async(weights));
  ASSERT_TRUE(arrives(memory, weights));
  ASSERT_TRUE(memory.resume(weights));
  expect_contents(written);
  EXPECT_THAT(machine->hazards(), IsEmpty());
  memory.deallocate(block.at, on);
  ASSERT_EQ(cuda().stream_destroy(unknown), driver::CUDA_SUCCESS);
}

TEST_F(suspend_async_test, memory_goes_when_the_work_of_before_is_done) {
  auto memory = make_declared();
  const auto stranger = new_stream();
  busy work{*machine, stranger};
  const filled block{allocate(memory, weights, 4_MiB), 4_MiB, 9};
  fill(block, stranger);  // nobody said so
  ASSERT_TRUE(memory.suspend_async(weights));
  EXPECT_FALSE(memory.is_suspended(weights));
  EXPECT_GE(used(), 4_MiB) << "the stranger writes to it";  // and a page of the wait, perhaps
  EXPECT_EQ(memory.stats().suspended, 0_B);
  ASSERT_TRUE(memory.suspend_async(weights)) << "twice is once, and does not wait";
  work.end();
  ASSERT_TRUE(arrives(memory, weights));
  EXPECT_EQ(used(), 0_B);
  EXPECT_EQ(memory.stats().suspended, 4_MiB);
  EXPECT_EQ(memory.stats(weights).backup.current, 4_MiB);
  ASSERT_TRUE(memory.suspend_async(weights)) << "of what is suspended it does nothing";
  EXPECT_EQ(memory.resume(weights).value(), (resume_outcome{4_MiB, 4_MiB}));
  expect_contents(block);
  EXPECT_EQ(check(memory), "");
  memory.deallocate(block.at, on);
}

TEST_F(suspend_async_test, of_known_streams_work_that_is_queued_later_is_not_waited_for) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 4_MiB, 3);
  ASSERT_TRUE(memory.suspend_async(weights, {.streams = awaited_streams::known}));
  const auto other = new_stream();
  const busy work{*machine, other};
  void* const plain = memory.allocate(1_MiB, other);
  write(other, plain, 1_MiB);
  ASSERT_TRUE(arrives(memory, weights)) << "though the other stream stands still";
  ASSERT_TRUE(memory.resume(weights));
  expect_contents(block);
  memory.deallocate(block.at, on);
  memory.deallocate(plain, other);
}

TEST_F(suspend_async_test, what_has_not_begun_is_taken_back_for_nothing) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 8_MiB, 5);
  busy work{*machine, on};
  fill(block, on);
  const auto unmapped = machine->calls(driver::call::mem_unmap);
  const auto copied = machine->calls(driver::call::memcpy_dtoh_async);
  ASSERT_TRUE(memory.suspend_async(weights));
  EXPECT_EQ(memory.resume_async(weights, on).value(), resume_outcome{});
  void* const more = allocate(memory, weights, 1_MiB);  // served at once
  EXPECT_EQ(memory.resume(weights).value(), resume_outcome{});
  work.end();
  write(on, more, 1_MiB);
  expect_contents(block);
  EXPECT_EQ(machine->calls(driver::call::mem_unmap), unmapped);
  EXPECT_EQ(machine->calls(driver::call::memcpy_dtoh_async), copied);
  EXPECT_EQ(check(memory), "");
  // The next one is a new one.
  ASSERT_TRUE(memory.suspend_async(weights));
  ASSERT_TRUE(arrives(memory, weights));
  ASSERT_TRUE(memory.resume(weights));
  expect_contents(block);
  for (void* const each : {block.at, more}) memory.deallocate(each, on);
}

/// The copies of a suspension stand still behind the first that has arrived, until go().
class copying {
 public:
  [[nodiscard]] suspend_progress progress() {
    return [this, going = go_.get_future().share()](bytes, bytes) {
      if (!std::exchange(begun_, true)) arrived_.set_value();
      going.wait();
    };
  }
  void wait() { arrived_.get_future().wait(); }
  void go() { go_.set_value(); }

 private:
  std::promise<void> arrived_;
  std::promise<void> go_;
  bool begun_ = false;
};

TEST_F(suspend_async_test, what_is_taken_back_while_it_is_copied_is_written_behind_the_copies) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 16_MiB, 5);
  const auto copied = machine->calls(driver::call::memcpy_dtoh_async);
  copying copies;
  ASSERT_TRUE(memory.suspend_async(weights, {.chunk = 1_MiB, .progress = copies.progress()}));
  copies.wait();
  EXPECT_EQ(memory.resume_async(weights, on).value(), resume_outcome{});
  const auto other = new_stream();
  EXPECT_EQ(memory.resume_async(weights, other).value(), resume_outcome{});
  const filled by_other{block.at, 8_MiB, 7};
  const filled rest{static_cast<std::byte*>(block.at) + (8 << 20), 8_MiB, 8};
  fill(by_other, other);
  fill(rest, on);
  copies.go();
  ASSERT_TRUE(other.synchronize());
  expect_contents(by_other);
  expect_contents(rest);
  EXPECT_EQ(machine->calls(driver::call::memcpy_dtoh_async) - copied, 4u) << "no more are queued";
  EXPECT_THAT(machine->hazards(), IsEmpty());
  EXPECT_EQ(memory.suspend(weights).value(), (suspend_outcome{16_MiB, 16_MiB, {}}));
  ASSERT_TRUE(memory.resume(weights));
  expect_contents(by_other);
  expect_contents(rest);
  memory.deallocate(block.at, on);
}

TEST_F(suspend_async_test, resume_waits_for_the_copies_of_what_it_takes_back) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 16_MiB, 5);
  const auto copied = machine->calls(driver::call::memcpy_dtoh_async);
  copying copies;
  ASSERT_TRUE(memory.suspend_async(weights, {.chunk = 1_MiB, .progress = copies.progress()}));
  copies.wait();
  other_caller resuming{[&] { EXPECT_EQ(memory.resume(weights).value(), resume_outcome{}); }};
  EXPECT_TRUE(resuming.waits());
  copies.go();
  resuming.join();
  const filled later{block.at, block.size, 9};
  fill(later, on);
  expect_contents(later);
  EXPECT_EQ(machine->calls(driver::call::memcpy_dtoh_async) - copied, 4u) << "no more are queued";
  EXPECT_THAT(machine->hazards(), IsEmpty());
  memory.deallocate(block.at, on);
}

/// The stream cannot wait for them, so the host does.
TEST_F(suspend_async_test, without_an_event_the_copies_of_what_is_taken_back_are_waited_for) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 16_MiB, 5);
  copying copies;
  ASSERT_TRUE(memory.suspend_async(weights, {.chunk = 1_MiB, .progress = copies.progress()}));
  copies.wait();
  machine->fail(driver::call::stream_wait_event, 1, driver::CUDA_ERROR_UNKNOWN);
  other_caller resuming{
      [&] { EXPECT_EQ(memory.resume_async(weights, on).value(), resume_outcome{}); }};
  EXPECT_TRUE(resuming.waits());
  copies.go();
  resuming.join();
  const filled later{block.at, block.size, 9};
  fill(later, on);
  expect_contents(later);
  EXPECT_THAT(machine->hazards(), IsEmpty());
  memory.deallocate(block.at, on);
}

TEST_F(suspend_async_test, one_of_several_that_go_together_is_not_taken_back) {
  auto memory = make_declared();
  ASSERT_TRUE(memory.declare_suspendable(cache));
  const auto first = make_filled(memory, weights, 4_MiB, 1);
  const auto second = make_filled(memory, cache, 4_MiB, 2);
  ASSERT_TRUE(memory.suspend_async());
  EXPECT_EQ(memory.resume(weights).value().restored, 4_MiB) << "once it has gone";
  EXPECT_TRUE(memory.is_suspended(cache));
  EXPECT_EQ(memory.resume_async(on).value().restored, 4_MiB);
  expect_contents({first, second});
  for (void* const each : {first.at, second.at}) memory.deallocate(each, on);
}

TEST_F(suspend_async_test, the_stream_waits_for_what_comes_back) {
  auto memory = make_declared();
  std::vector<filled> blocks;
  for (unsigned char i = 1; i <= 3; ++i)
    blocks.push_back(make_filled(memory, weights, 5_MiB, i, /*whole=*/true));
  ASSERT_TRUE(memory.suspend(weights, {.chunk = 1_MiB}));
  EXPECT_EQ(memory.resume_async(weights, on).value(), (resume_outcome{16_MiB, 15_MiB}));
  std::vector<unsigned char> seen(blocks[2].size.count());
  {
    const context_scope bound{gpu()};
    ASSERT_EQ(
        cuda().memcpy_dtoh_async(seen.data(), address(blocks[2].at), seen.size(), on.handle()),
        driver::CUDA_SUCCESS);
    ASSERT_TRUE(on.synchronize());
  }
  EXPECT_EQ(first_other(seen, 3), seen.size());
  expect_contents(blocks);
  EXPECT_EQ(memory.resume(weights).value(), resume_outcome{}) << "waits, and has nothing to do";
  EXPECT_EQ(memory.stats(weights).backup.current, 0_B);
  EXPECT_EQ(check(memory), "");
  for (const filled& each : blocks) memory.deallocate(each.at, on);
}

TEST_F(suspend_async_test, the_figures_have_memory_that_comes_back_from_the_call_on) {
  for (int round = 0; round < 10; ++round) {
    auto memory = make_declared();
    const auto block = make_filled(memory, weights, 4_MiB, 1, /*whole=*/true);
    ASSERT_TRUE(memory.suspend(weights, {.chunk = 16_KiB}));
    ASSERT_TRUE(memory.resume_async(weights, on));
    const auto stats = memory.stats();
    EXPECT_EQ(stats.reserved.current, 4_MiB);
    EXPECT_EQ(stats.suspended, 0_B);
    EXPECT_FALSE(memory.block_at(block.at).value().suspended);
    EXPECT_EQ(check(memory), "");
    expect_contents(block);
    memory.deallocate(block.at, on);
  }
}

TEST_F(suspend_async_test, another_stream_must_be_ordered_by_its_user) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 4_MiB, 1);
  const auto other = new_stream();
  // Whether it comes before the thread that waits for the copies is up to the processor.
  for (int tries = 0; tries < 100 && machine->hazards().empty(); ++tries) {
    ASSERT_TRUE(memory.suspend(weights));
    ASSERT_TRUE(memory.resume_async(weights, on));
    write(other, block.at, 1_MiB);
    ASSERT_TRUE(other.synchronize());
    ASSERT_TRUE(memory.resume(weights));
  }
  EXPECT_FALSE(machine->hazards().empty()) << "it does not wait for the copies";
  machine->clear_hazards();
  memory.deallocate(block.at, on);
}

TEST_F(suspend_async_test, a_block_that_is_freed_while_it_comes_back_is_not_reused_under_a_copy) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 16_MiB, 1);
  ASSERT_TRUE(memory.suspend(weights, {.chunk = 1_MiB}));
  ASSERT_TRUE(memory.resume_async(weights, on));
  const auto other = new_stream();
  memory.deallocate(block.at, other);
  const tag_scope scope{weights};
  void* const again = memory.allocate(16_MiB, other);  // a hazard, if it did not wait
  write(other, again, 16_MiB);
  EXPECT_EQ(check(memory), "");
  memory.deallocate(again, other);
}

TEST_F(suspend_async_test, contents_that_are_not_pinned_are_waited_for) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 4_MiB, 8);
  ASSERT_TRUE(memory.suspend_async(weights, {.to = host_memory_kind::pageable}));
  ASSERT_TRUE(arrives(memory, weights));
  EXPECT_EQ(memory.resume_async(weights, on).value(), (resume_outcome{4_MiB, 4_MiB}));
  EXPECT_EQ(memory.stats(weights).backup.current, 0_B) << "nothing is under way";
  expect_contents(block);
  memory.deallocate(block.at, on);
}

TEST_F(suspend_async_test, requests_meanwhile_do_as_they_are_told) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 4_MiB, 1);
  busy work{*machine, on};
  fill(block, on);
  {
    ASSERT_TRUE(memory.suspend_async(weights));
    const tag_scope scope{weights};
    const auto refused = memory.try_allocate(1_MiB, on);
    ASSERT_EQ(code_of(refused), errc::suspended) << "at once";
    EXPECT_THAT(refused.error().detail(), HasSubstr("weights"));
    ASSERT_TRUE(memory.resume(weights));
  }
  ASSERT_TRUE(memory.suspend_async(weights, {.requests = suspended_requests::resume}));
  void* const taken = allocate(memory, weights, 1_MiB);  // takes it back
  ASSERT_TRUE(memory.suspend_async(weights, {.requests = suspended_requests::wait}));
  std::atomic<void*> got{nullptr};
  std::thread waiter{[&] { got = allocate(memory, weights, 1_MiB); }};
  work.end();
  ASSERT_TRUE(arrives(memory, weights));
  EXPECT_EQ(got.load(), nullptr);
  ASSERT_TRUE(memory.resume_async(weights, on));
  waiter.join();
  expect_contents(block);
  for (void* const each : {block.at, taken, got.load()}) memory.deallocate(each, on);
}

TEST_F(suspend_async_test, whoever_finds_no_memory_waits_for_what_is_going) {
  auto memory = make_declared();
  const filled block{allocate(memory, weights, 1200_MiB), 1_MiB, 1};
  busy work{*machine, on};
  fill(block, on);
  ASSERT_TRUE(memory.suspend_async(weights, {.contents = suspended_contents::discard}));
  std::atomic<void*> got{nullptr};
  const auto other = new_stream();
  std::thread asking{[&] { got = memory.allocate(1_GiB, other); }};
  std::this_thread::sleep_for(std::chrono::milliseconds{30});
  EXPECT_EQ(got.load(), nullptr);
  work.end();
  asking.join();
  EXPECT_NE(got.load(), nullptr);
  EXPECT_TRUE(memory.is_suspended(weights));
  memory.deallocate(got.load(), other);
  ASSERT_TRUE(memory.resume_async(weights, on)) << "what others cache goes for it";
  memory.deallocate(block.at, on);
}

TEST_F(suspend_async_test, a_return_waits_for_memory_that_streams_still_use) {
  auto memory = make_declared();
  void* const block = allocate(memory, weights, 1200_MiB);
  ASSERT_TRUE(memory.suspend(weights, {.contents = suspended_contents::discard}));
  const auto other = new_stream();
  void* const large = memory.allocate(1_GiB, other);
  busy work{*machine, other};
  write(other, large, 1_MiB);
  memory.deallocate(large, other);
  std::atomic<bool> is_back{false};
  std::thread coming{[&] {
    EXPECT_TRUE(memory.resume(weights));
    is_back = true;
  }};
  std::this_thread::sleep_for(std::chrono::milliseconds{30});
  EXPECT_FALSE(is_back);
  work.end();
  coming.join();
  EXPECT_EQ(memory.stats(weights).reserved.current, 1200_MiB);
  memory.deallocate(block, on);
}

TEST_F(suspend_async_test, captures_are_left_alone) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 4_MiB, 1);
  ASSERT_TRUE(on.synchronize());
  {
    begin(on);
    EXPECT_EQ(code_of(memory.suspend_async(weights)), errc::capture_forbidden);
    destroy(end(on));
  }
  ASSERT_TRUE(memory.suspend(weights));
  {
    begin(on);
    EXPECT_EQ(code_of(memory.resume_async(weights, on)), errc::capture_forbidden);
    destroy(end(on));
  }
  EXPECT_TRUE(memory.is_suspended(weights));
  ASSERT_TRUE(memory.resume_async(weights, on));
  expect_contents(block);
  memory.deallocate(block.at, on);
}

TEST_F(suspend_async_test, unknown_tags_and_bad_options_are_refused) {
  auto memory = make();
  EXPECT_EQ(code_of(memory.suspend_async(weights)), errc::not_found);
  EXPECT_EQ(code_of(memory.resume_async(weights, on)), errc::not_found);
  ASSERT_TRUE(memory.declare_suspendable(weights));
  EXPECT_EQ(code_of(memory.suspend_async(weights, {.chunk = 511_B})), errc::invalid_argument);
  auto pool = memory.create_pool("own", {.segments = true}).value();
  memory.deallocate(pool.allocate(1_MiB, on), on);
  EXPECT_EQ(code_of(pool.suspend_async()), errc::not_supported);
  ASSERT_TRUE(memory.close());
  EXPECT_EQ(code_of(memory.suspend_async(weights)), errc::closed);
  EXPECT_EQ(code_of(memory.resume_async(on)), errc::closed);
  const caching_allocator empty = std::move(memory);
  EXPECT_EQ(code_of(memory.suspend_async()), errc::moved_from);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(code_of(memory.suspend_async(weights)), errc::moved_from);
  EXPECT_EQ(code_of(memory.resume_async(on)), errc::moved_from);
  EXPECT_EQ(code_of(memory.resume_async(weights, on)), errc::moved_from);
}

TEST_F(suspend_async_test, pools_go_and_come_the_same_way) {
  auto memory = make();
  auto pool = memory.create_pool("own").value();
  const filled block{pool.allocate(4_MiB, on), 4_MiB, 4};
  fill(block, on);
  ASSERT_TRUE(pool.suspend_async());
  EXPECT_EQ(pool.suspend().value(), suspend_outcome{});
  EXPECT_TRUE(pool.is_suspended());
  EXPECT_EQ(pool.resume_async(on).value().restored, 4_MiB);
  expect_contents(block);
  memory.deallocate(block.at, on);
  const auto gone = std::exchange(pool, memory_pool{});
  EXPECT_EQ(code_of(pool.suspend_async()), errc::moved_from);
  EXPECT_EQ(code_of(pool.resume_async(on)), errc::moved_from);
}

TEST_F(suspend_async_test, work_of_a_stream_that_cannot_be_marked_is_waited_for) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 4_MiB, 1);
  machine->fail(driver::call::event_record, 1, driver::CUDA_ERROR_UNKNOWN);
  fill(block, on);
  ASSERT_TRUE(memory.suspend_async(weights));
  ASSERT_TRUE(arrives(memory, weights));
  ASSERT_TRUE(memory.resume(weights));
  expect_contents(block);
  memory.deallocate(block.at, on);
}

TEST_F(suspend_async_test, a_capture_of_a_stream_that_weir_does_not_know_stays_valid) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 4_MiB, 1);
  const context_scope bound{gpu()};
  driver::CUstream foreign = nullptr;
  ASSERT_EQ(machine->driver().stream_create(&foreign, driver::CU_STREAM_NON_BLOCKING), 0);
  ASSERT_EQ(machine->driver().stream_begin_capture(foreign, driver::CU_STREAM_CAPTURE_MODE_GLOBAL),
            0);
  ASSERT_TRUE(memory.suspend_async(weights));
  ASSERT_TRUE(arrives(memory, weights));
  ASSERT_TRUE(memory.resume(weights));
  ASSERT_TRUE(memory.suspend(weights));
  driver::CUgraph graph = nullptr;
  EXPECT_EQ(machine->driver().stream_end_capture(foreign, &graph), driver::CUDA_SUCCESS);
  EXPECT_EQ(machine->driver().graph_destroy(graph), 0);
  EXPECT_EQ(machine->driver().stream_destroy(foreign), 0);
  ASSERT_TRUE(memory.resume(weights));
  expect_contents(block);
  memory.deallocate(block.at, on);
}

TEST_F(suspend_async_test, each_is_taken_back_by_itself) {
  auto memory = make_declared();
  ASSERT_TRUE(memory.declare_suspendable(cache));
  const auto first = make_filled(memory, weights, 4_MiB, 1);
  const auto second = make_filled(memory, cache, 4_MiB, 2);
  const auto request = [&](tag with) {
    const tag_scope scope{with};
    const auto got = memory.try_allocate(1_MiB, on);
    if (got) memory.deallocate(*got, on);
    return code_of(got);
  };
  busy work{*machine, on};
  for (const filled& each : {first, second}) fill(each, on);
  ASSERT_TRUE(memory.suspend_async(weights));
  ASSERT_TRUE(memory.suspend_async(cache));
  EXPECT_EQ(memory.resume().value(), resume_outcome{});
  EXPECT_EQ(request(weights), std::nullopt);
  EXPECT_EQ(request(cache), std::nullopt);
  ASSERT_TRUE(memory.suspend_async(weights));
  ASSERT_TRUE(memory.suspend_async(cache));
  EXPECT_EQ(memory.resume(cache).value(), resume_outcome{});
  EXPECT_EQ(request(weights), errc::suspended);
  EXPECT_EQ(request(cache), std::nullopt);
  work.end();
  ASSERT_TRUE(arrives(memory, weights));
  EXPECT_FALSE(memory.is_suspended(cache));
  EXPECT_EQ(memory.resume().value(), (resume_outcome{4_MiB, 4_MiB}));
  expect_contents({first, second});
  for (void* const each : {first.at, second.at}) memory.deallocate(each, on);
}

TEST_F(suspend_async_test, requests_that_wait_take_nothing_back) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 4_MiB, 1);
  busy work{*machine, on};
  fill(block, on);
  ASSERT_TRUE(memory.suspend_async(weights, {.requests = suspended_requests::wait}));
  void* more = nullptr;
  other_caller asking{[&] { more = allocate(memory, weights, 1_MiB); }};
  EXPECT_TRUE(asking.waits());
  work.end();
  EXPECT_TRUE(arrives(memory, weights));
  EXPECT_TRUE(memory.resume(weights));
  asking.join();
  expect_contents(block);
  for (void* const each : {block.at, more}) memory.deallocate(each, on);
}

/// What a thread of the allocator's did before says nothing of what another thread does now.
TEST_F(suspend_async_test, a_request_waits_for_a_caller_that_suspends_by_itself) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 4_MiB, 1);
  ASSERT_TRUE(memory.suspend_async(weights));
  ASSERT_TRUE(arrives(memory, weights));
  ASSERT_TRUE(memory.resume(weights));
  busy work{*machine, on};
  fill(block, on);
  other_caller going{[&] { EXPECT_TRUE(memory.suspend(weights)); }};
  EXPECT_TRUE(going.waits());
  std::optional<errc> answer;
  other_caller asking{[&] {
    const tag_scope scope{weights};
    answer = code_of(memory.try_allocate(1_MiB, on));
  }};
  EXPECT_TRUE(asking.waits());
  work.end();
  going.join();
  asking.join();
  EXPECT_EQ(answer, errc::suspended);
  ASSERT_TRUE(memory.resume(weights));
  expect_contents(block);
  memory.deallocate(block.at, on);
}

TEST_F(suspend_async_test, where_nothing_has_to_go_or_come_the_driver_is_not_asked) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 4_MiB, 1);
  const auto calls = machine->calls();
  EXPECT_EQ(memory.resume(weights).value(), resume_outcome{});
  EXPECT_EQ(machine->calls(), calls);
  ASSERT_TRUE(memory.suspend(weights));
  const auto later = machine->calls();
  EXPECT_TRUE(memory.suspend_async(weights));
  EXPECT_EQ(machine->calls(), later);
  ASSERT_TRUE(memory.resume(weights));
  expect_contents(block);
  memory.deallocate(block.at, on);
}

TEST_F(suspend_async_test, streams_of_another_device_cannot_wait_for_it) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 4_MiB, 1);
  ASSERT_TRUE(memory.suspend(weights));
  const auto foreign = stream::create(gpu(1)).value();
  EXPECT_EQ(code_of(memory.resume_async(weights, foreign)), errc::bad_stream);
  EXPECT_TRUE(memory.is_suspended(weights));
  ASSERT_TRUE(memory.resume(weights));
  expect_contents(block);
  memory.deallocate(block.at, on);
  ASSERT_TRUE(memory.close());
  EXPECT_EQ(code_of(memory.resume_async(weights, foreign)), errc::closed) << "that comes first";
}

TEST_F(suspend_async_test, copies_back_are_waited_for_once) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 4_MiB, 1);
  const auto waits_of = [&](const std::function<void()>& bring_back) {
    EXPECT_TRUE(memory.suspend(weights));
    const auto before = machine->calls(driver::call::event_synchronize);
    bring_back();
    return machine->calls(driver::call::event_synchronize) - before;
  };
  const auto by_caller = waits_of([&] { EXPECT_TRUE(memory.resume(weights)); });
  EXPECT_GT(by_caller, 0u);
  EXPECT_EQ(waits_of([&] {
              EXPECT_TRUE(memory.resume_async(weights, on));
              EXPECT_TRUE(memory.resume(weights)) << "it is on its way";
            }),
            by_caller);
  expect_contents(block);
  memory.deallocate(block.at, on);
}

TEST_F(suspend_async_test, the_streams_that_copy_are_made_once) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 4_MiB, 1);
  const auto made = [&] { return machine->calls(driver::call::stream_create_with_priority); };
  const auto before = made();
  ASSERT_TRUE(memory.suspend(weights));
  const auto lanes = made() - before;
  ASSERT_GT(lanes, 0u);
  ASSERT_TRUE(memory.resume(weights));
  const auto threads = running_threads();
  {
    const busy work{*machine, on};
    fill(block, on);
    ASSERT_TRUE(memory.suspend_async(weights));
    ASSERT_TRUE(memory.resume(weights)) << "taken back";
  }
  while (running_threads() != threads) std::this_thread::yield();
  ASSERT_TRUE(memory.suspend_async(weights));
  ASSERT_TRUE(arrives(memory, weights));
  ASSERT_TRUE(memory.resume_async(weights, on));
  ASSERT_TRUE(memory.resume(weights)) << "it is on its way";
  ASSERT_TRUE(memory.suspend(weights));
  ASSERT_TRUE(memory.resume(weights));
  EXPECT_EQ(made() - before, lanes);
  expect_contents(block);
  memory.deallocate(block.at, on);
}

/// A thread that ended keeps its stack until somebody joins it.
TEST_F(suspend_async_test, threads_that_are_done_are_joined_by_the_next_call) {
  if (is_sanitized) GTEST_SKIP() << "a sanitizer keeps memory of its own for threads";
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 4_KiB, 1);
  pthread_attr_t usual;
  std::size_t stack = 0;
  ASSERT_EQ(pthread_getattr_default_np(&usual), 0);
  ASSERT_EQ(pthread_attr_getstacksize(&usual, &stack), 0);
  pthread_attr_destroy(&usual);
  const auto threads = running_threads();
  const auto cycle = [&](bool goes_async) {
    ASSERT_TRUE(goes_async ? memory.suspend_async(weights).has_value()
                           : memory.suspend(weights).has_value());
    ASSERT_TRUE(arrives(memory, weights));
    ASSERT_TRUE(goes_async ? memory.resume(weights) : memory.resume_async(weights, on));
    while (running_threads() != threads) std::this_thread::yield();
  };
  constexpr int rounds = 32;
  for (const bool goes_async : {true, false}) {
    SCOPED_TRACE(goes_async);
    for (int i = 0; i < 2; ++i) cycle(goes_async);
    const auto before = mapped_bytes();
    for (int i = 0; i < rounds; ++i) cycle(goes_async);
    EXPECT_LT(mapped_bytes(), before + rounds / 4 * stack);
  }
  expect_contents(block);
  memory.deallocate(block.at, on);
}

TEST_F(suspend_async_test, graphs_that_ended_are_noticed_first) {
  for (const bool waits : {true, false}) {
    SCOPED_TRACE(waits);
    auto memory = make_declared();
    begin(on);
    memory.deallocate(memory.allocate(1_MiB, on), on);
    const auto graph = end(on);
    listener ear;
    const auto observation = memory.add_observer(ear).value();
    destroy(graph);
    EXPECT_EQ(ear.count(memory_event_kind::pool_released), 0u);
    ASSERT_TRUE(waits ? memory.suspend(weights).has_value()
                      : memory.suspend_async(weights).has_value());
    EXPECT_EQ(ear.count(memory_event_kind::pool_released), 1u);
    ASSERT_TRUE(memory.resume(weights));
  }
}

// --- Ends ----------------------------------------------------------------------------------------

TEST_F(suspend_async_test, the_end_calls_off_what_has_not_begun) {
  for (const bool by_close : {true, false}) {
    auto memory = make_declared();
    const auto block = make_filled(memory, weights, 4_MiB, 1);
    auto work = std::make_unique<busy>(*machine, on);
    fill(block, on);
    memory.deallocate(block.at, on);
    ASSERT_TRUE(memory.suspend_async(weights));
    std::thread later{[&] {
      std::this_thread::sleep_for(std::chrono::milliseconds{20});
      work->end();
    }};
    if (by_close) {
      EXPECT_TRUE(memory.close());
    } else {
      const auto last = std::move(memory);
    }
    later.join();
    EXPECT_EQ(used(), 0_B);
  }
}

TEST_F(suspend_async_test, the_end_waits_for_copies_that_come_back) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 32_MiB, 1);
  ASSERT_TRUE(memory.suspend(weights, {.chunk = 1_MiB}));
  memory.deallocate(block.at, on);
  const auto kept = make_filled(memory, tag{}, 1_MiB, 2);
  memory.deallocate(kept.at, on);
  ASSERT_TRUE(memory.resume_async(weights, on));
  ASSERT_TRUE(memory.close());
  EXPECT_EQ(used(), 0_B);
}

TEST_F(suspend_async_test, a_forked_child_ends_without_the_carriers) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 4_MiB, 1);
  busy work{*machine, on};
  fill(block, on);
  ASSERT_TRUE(memory.suspend_async(weights));
  const pid_t child = ::fork();
  if (child == 0) {
    const bool refused = code_of(memory.resume_async(weights, on)) == errc::driver_gone &&
                         code_of(memory.suspend_async(weights)) == errc::driver_gone;
    { const auto last = std::move(memory); }
    ::_exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  work.end();
  ASSERT_TRUE(arrives(memory, weights));
  ASSERT_TRUE(memory.resume(weights));
  expect_contents(block);
  memory.deallocate(block.at, on);
}

TEST_F(suspend_async_test, a_pool_that_ended_on_its_way_goes_once_it_has_arrived) {
  auto memory = make_declared();
  void* const other = allocate(memory, weights, 1_MiB);
  auto pool = memory.create_pool("own").value();
  const filled block{pool.allocate(4_MiB, on), 4_MiB, 1};
  const auto threads = running_threads();
  {
    const busy work{*machine, on};
    fill(block, on);
    ASSERT_TRUE(pool.suspend_async());
    memory.deallocate(block.at, on);
    pool = {};
    EXPECT_EQ(memory.snapshot().pools.size(), 3u) << "it is on its way";
  }
  while (running_threads() != threads) std::this_thread::yield();
  memory.deallocate(other, on);  // looks for what can go
  EXPECT_EQ(memory.snapshot().pools.size(), 2u);
}

TEST_F(suspend_async_test, whoever_waits_to_bring_it_back_learns_of_the_end) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 4_MiB, 1);
  busy work{*machine, on};
  fill(block, on);
  memory.deallocate(block.at, on);
  other_caller going{[&] { EXPECT_TRUE(memory.suspend(weights)); }};
  EXPECT_TRUE(going.waits());
  std::optional<errc> answer;
  other_caller coming{[&] { answer = code_of(memory.resume(weights)); }};
  EXPECT_TRUE(coming.waits());
  other_caller closing{[&] { EXPECT_TRUE(memory.close()); }};
  EXPECT_TRUE(closing.waits());
  work.end();
  going.join();
  coming.join();
  closing.join();
  EXPECT_EQ(answer, errc::closed);
  EXPECT_EQ(used(), 0_B);
}

// --- Failures ------------------------------------------------------------------------------------

TEST_F(suspend_async_test, what_fails_later_is_told_and_leaves_the_memory) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 4_MiB, 1);
  busy work{*machine, on};
  fill(block, on);
  ASSERT_TRUE(memory.suspend_async(weights));
  machine->fail(driver::call::mem_host_alloc, 1, driver::CUDA_ERROR_OUT_OF_MEMORY);
  work.end();
  EXPECT_EQ(memory.suspend(weights).value().saved, 4_MiB) << "it had to be tried again";
  ASSERT_TRUE(memory.resume(weights));
  expect_contents(block);
  memory.deallocate(block.at, on);
  ASSERT_TRUE(memory.close());  // after which nobody is telling
  const auto told = heard.take();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].code(), errc::no_host_memory);
}

TEST_F(suspend_async_test, a_thread_that_does_not_reach_the_device_says_so) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 4_MiB, 1);
  machine->fail(driver::call::ctx_push_current, 2, driver::CUDA_ERROR_UNKNOWN);  // not the caller's
  ASSERT_TRUE(memory.suspend_async(weights));
  EXPECT_EQ(memory.suspend(weights).value().saved, 4_MiB) << "it had to be tried again";
  ASSERT_TRUE(memory.resume(weights));
  expect_contents(block);
  memory.deallocate(block.at, on);
  ASSERT_TRUE(memory.close());
  const auto told = heard.take();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].call(), "cuCtxPushCurrent");
  EXPECT_EQ(told[0].native(), driver::CUDA_ERROR_UNKNOWN);
}

TEST_F(suspend_async_test, what_fails_while_it_comes_back_is_told) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 4_MiB, 1);
  ASSERT_TRUE(memory.suspend(weights));
  machine->fail(driver::call::event_synchronize, 1, driver::CUDA_ERROR_UNKNOWN);
  ASSERT_TRUE(memory.resume_async(weights, on));
  EXPECT_EQ(memory.resume(weights).value(), resume_outcome{}) << "the memory is there";
  expect_contents(block);
  memory.deallocate(block.at, on);
  ASSERT_TRUE(memory.close());
  const auto told = heard.take();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].code(), errc::driver_error);
}

TEST_F(suspend_async_test, without_a_thread_nothing_goes) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 4_MiB, 1);
  {
    const no_threads none;
    if (!none) GTEST_SKIP() << "threads cannot be refused here";
    const auto refused = memory.suspend_async(weights);
    ASSERT_EQ(code_of(refused), errc::no_host_memory);
    EXPECT_EQ(refused.error().detail(), "the background thread could not be started");
    void* const more = allocate(memory, weights, 1_MiB);
    memory.deallocate(more, on);
    EXPECT_EQ(memory.resume(weights).value(), resume_outcome{});
  }
  ASSERT_TRUE(memory.suspend_async(weights));
  ASSERT_TRUE(arrives(memory, weights));
  ASSERT_TRUE(memory.resume(weights));
  expect_contents(block);
  memory.deallocate(block.at, on);
}

TEST_F(suspend_async_test, without_a_thread_the_caller_waits_for_what_comes_back) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 4_MiB, 1);
  const no_threads none;
  if (!none) GTEST_SKIP() << "threads cannot be refused here";
  ASSERT_TRUE(memory.suspend(weights));
  EXPECT_EQ(memory.resume_async(weights, on).value(), (resume_outcome{4_MiB, 4_MiB}));
  EXPECT_EQ(memory.stats(weights).backup.current, 0_B) << "nothing is under way";
  expect_contents(block);
  ASSERT_TRUE(memory.suspend(weights));
  machine->fail(driver::call::event_synchronize, 1, driver::CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code_of(memory.resume_async(weights, on)), errc::driver_error);
  EXPECT_FALSE(memory.is_suspended(weights)) << "only the wait failed";
  expect_contents(block);
  memory.deallocate(block.at, on);
}

/// Whoever reports an error waits until the end of the scope.
class slow_telling {
 public:
  slow_telling() {
    set_error_handler([told = told_, heard = heard_.get_future().share()](const error&) {
      told->set_value();
      heard.wait();
    });
  }
  ~slow_telling() {
    set_error_handler(nullptr);
    end();
  }
  slow_telling(const slow_telling&) = delete;
  slow_telling& operator=(const slow_telling&) = delete;
  /// Until somebody reports one.
  void wait() { told_->get_future().wait(); }
  void end() {
    if (!std::exchange(over_, true)) heard_.set_value();
  }

 private:
  std::shared_ptr<std::promise<void>> told_ = std::make_shared<std::promise<void>>();
  std::promise<void> heard_;
  bool over_ = false;
};

TEST_F(suspend_async_test, a_pool_may_go_while_its_failure_is_told) {
  auto memory = make_declared();
  auto pool = memory.create_pool("own").value();
  const filled block{pool.allocate(4_MiB, on), 4_MiB, 1};
  fill(block, on);
  slow_telling telling;
  machine->fail(driver::call::mem_host_alloc, 1, driver::CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_TRUE(pool.suspend_async());
  telling.wait();
  memory.deallocate(block.at, on);
  ASSERT_TRUE(on.synchronize());
  pool = memory_pool{};
  EXPECT_EQ(used(), 0_B) << "nobody needs it any more";
  EXPECT_EQ(memory.resume().value(), resume_outcome{}) << "looks at what could be taken back";
  telling.end();
  EXPECT_TRUE(memory.close());
}

TEST_F(suspend_async_test, the_next_one_may_come_while_a_failure_is_told) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 4_MiB, 1);
  slow_telling telling;
  machine->fail(driver::call::mem_host_alloc, 1, driver::CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_TRUE(memory.suspend_async(weights));
  telling.wait();
  std::optional<held_stream> work{std::in_place, *machine, on.handle()};
  fill(block, on);
  ASSERT_TRUE(memory.suspend_async(weights));
  EXPECT_EQ(memory.resume(weights).value(), resume_outcome{})
      << "that is taken back, and only that";
  ASSERT_TRUE(memory.suspend_async(weights));
  telling.end();
  work.reset();
  ASSERT_TRUE(arrives(memory, weights));
  ASSERT_TRUE(memory.resume(weights));
  expect_contents(block);
  memory.deallocate(block.at, on);
  EXPECT_TRUE(memory.close());
}

/// What that thread carried can no longer be taken back: whoever asks waits for what is going.
TEST_F(suspend_async_test, requests_wait_while_the_failure_of_others_is_told) {
  auto memory = make_declared();
  ASSERT_TRUE(memory.declare_suspendable(cache));
  const auto block = make_filled(memory, weights, 4_MiB, 1);
  const auto failing = make_filled(memory, cache, 4_MiB, 2);
  slow_telling telling;
  machine->fail(driver::call::mem_host_alloc, 1, driver::CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_TRUE(memory.suspend_async(cache));
  telling.wait();
  busy work{*machine, on};
  fill(block, on);
  other_caller going{
      [&] { EXPECT_TRUE(memory.suspend(weights, {.requests = suspended_requests::resume})); }};
  EXPECT_TRUE(going.waits());
  void* more = nullptr;
  other_caller asking{[&] { more = allocate(memory, weights, 1_MiB); }};
  EXPECT_TRUE(asking.waits());
  work.end();
  going.join();
  asking.join();
  telling.end();
  EXPECT_FALSE(memory.is_suspended(weights)) << "the request brought it back";
  expect_contents({block, failing});
  for (void* const each : {block.at, failing.at, more}) memory.deallocate(each, on);
}

/// Whatever call fails, on whichever thread: the memory is where it was or away, with its contents.
TEST_F(suspend_async_test, any_call_may_fail) {
  constexpr std::uint64_t stride = is_sanitized ? 11 : 1;
  bool reached_the_end = false;
  for (std::uint64_t nth = 1; !reached_the_end; nth += stride) {
    SCOPED_TRACE(nth);
    auto memory = make_declared();
    std::vector<filled> blocks;
    for (unsigned char i = 1; i <= 3; ++i) blocks.push_back(make_filled(memory, weights, 1_MiB, i));
    ASSERT_TRUE(on.synchronize());
    machine->fail_any(
        nth, nth / stride % 2 == 0 ? driver::CUDA_ERROR_UNKNOWN : driver::CUDA_ERROR_OUT_OF_MEMORY);
    const auto before = machine->calls();
    const auto going = memory.suspend_async(weights, {.chunk = 512_KiB});
    static_cast<void>(memory.suspend(weights));
    const bool went = memory.is_suspended(weights);
    const auto coming = memory.resume_async(weights, on);
    static_cast<void>(memory.resume(weights));
    reached_the_end = machine->calls() - before < nth;
    machine->clear_faults();
    ASSERT_EQ(check(memory), "");
    const bool all_went_well = going && went && coming;
    ASSERT_FALSE(all_went_well && memory.is_suspended(weights));
    ASSERT_TRUE(memory.resume(weights));
    expect_contents(blocks);
    ASSERT_TRUE(memory.suspend_async(weights));
    ASSERT_TRUE(arrives(memory, weights));
    EXPECT_EQ(used(), 0_B);
    ASSERT_TRUE(memory.resume_async(weights, on));
    expect_contents(blocks);
    for (const filled& each : blocks) memory.deallocate(each.at, on);
    ASSERT_TRUE(memory.close());
    ASSERT_EQ(used(), 0_B);
    static_cast<void>(heard.take());
    ASSERT_LT(nth, 2000u) << "there must be an end";
  }
}

/// Nothing is live any more: the memory that comes back, or never left, serves the request.
TEST_F(suspend_async_test, a_request_finds_what_is_freed_on_its_way_back) {
  for (int round = 0; round < (is_sanitized ? 10 : 40); ++round) {
    SCOPED_TRACE(round);
    auto memory = make_declared();
    machine->set_capacity(device_id{0}, 64_MiB + 12_MiB);
    const filled block = make_filled(memory, weights, 8_MiB, 3);
    ASSERT_TRUE(memory.suspend_async(weights));
    if (round % 2 == 0) {
      ASSERT_TRUE(arrives(memory, weights));
    }
    ASSERT_TRUE(memory.resume_async(weights, on));
    memory.deallocate(block.at, on);
    const auto served = memory.try_allocate(10_MiB, on);
    ASSERT_TRUE(served) << served.error().message();
    memory.deallocate(*served, on);
    ASSERT_TRUE(memory.empty_cache());
    EXPECT_EQ(memory.stats().reserved.current, 0_B);
    ASSERT_TRUE(memory.close());  // ends the wait of a suspension that was called off
    EXPECT_EQ(used(), 0_B);
  }
}

TEST_F(suspend_async_test, emptying_the_cache_waits_for_what_is_on_its_way_back) {
  for (int round = 0; round < (is_sanitized ? 10 : 40); ++round) {
    SCOPED_TRACE(round);
    auto memory = make_declared();
    const filled block = make_filled(memory, weights, 4_MiB, 3);
    ASSERT_TRUE(memory.suspend_async(weights));
    ASSERT_TRUE(memory.resume_async(weights, on));
    memory.deallocate(block.at, on);
    ASSERT_TRUE(memory.empty_cache());
    EXPECT_EQ(memory.stats().reserved.current, 0_B);
  }
}

/// A wait for all work of the device takes a page of it, and returns it with the wait.
TEST_F(suspend_async_test, a_suspension_that_was_called_off_keeps_no_memory_once_its_wait_ends) {
  auto memory = make_declared();
  driver::CUstream unknown = nullptr;
  {
    const context_scope bound{gpu()};
    ASSERT_EQ(cuda().stream_create(&unknown, driver::CU_STREAM_NON_BLOCKING), driver::CUDA_SUCCESS);
  }
  const stream_ref elsewhere{gpu(), unknown};
  busy work{*machine, elsewhere};
  const filled block{allocate(memory, weights, 4_MiB), 4_MiB, 9};
  fill(block, elsewhere);
  auto filled_by_then = event::create(gpu()).value();
  ASSERT_TRUE(filled_by_then.record(elsewhere));
  ASSERT_TRUE(memory.suspend_async(weights));
  constexpr int patience = 1000;  // of 10 ms
  for (int i = 0; i < patience && used() == 4_MiB; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds{10});
  ASSERT_EQ(used(), 6_MiB);
  ASSERT_TRUE(memory.resume_async(weights, on));
  ASSERT_EQ(cuda().stream_wait_event(on.handle(), filled_by_then.handle(), 0),
            driver::CUDA_SUCCESS);
  memory.deallocate(block.at, on);
  work.end();
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
  ASSERT_TRUE(memory.close());  // ends the wait
  EXPECT_EQ(used(), 0_B);
  EXPECT_THAT(machine->hazards(), IsEmpty());
  EXPECT_EQ(cuda().stream_destroy(unknown), driver::CUDA_SUCCESS);
}

/// Threads that send the same memory out and back, while others allocate and free there.
TEST_F(suspend_async_test, callers_may_come_from_everywhere) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 2_MiB, 6);
  ASSERT_TRUE(on.synchronize());
  constexpr int rounds = is_sanitized ? 30 : 150;
  std::vector<std::thread> callers;
  for (unsigned seed = 1; seed <= 4; ++seed) {
    callers.emplace_back([&, seed] {
      std::minstd_rand random{seed};
      const auto own = new_stream();
      for (int i = 0; i < rounds; ++i) {
        switch (random() % 5) {
          case 0:
            EXPECT_TRUE(memory.suspend_async(weights, {.requests = suspended_requests::resume}));
            break;
          case 1:
            EXPECT_TRUE(memory.resume_async(weights, own));
            break;
          case 2:
            EXPECT_TRUE(memory.resume(weights));
            break;
          case 3: {
            void* const plain = memory.allocate(64_KiB, own);
            memory.deallocate(plain, own);
            break;
          }
          default: {
            const tag_scope scope{weights};
            const auto more = memory.try_allocate(512_KiB, own);
            EXPECT_TRUE(more);
            if (more) memory.deallocate(*more, own);
          }
        }
      }
    });
  }
  for (std::thread& each : callers) each.join();
  ASSERT_TRUE(memory.resume(weights));
  EXPECT_EQ(check(memory), "");
  expect_contents(block);
  memory.deallocate(block.at, on);
}

}  // namespace
}  // namespace weir::testing_support
