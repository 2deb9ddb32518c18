// Suspending and bringing back without waiting: the order, taking back, and what a failure leaves.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <random>
#include <thread>

#include "heap/suspend_fixture.hpp"
#include "support/sanitizers.hpp"

namespace weir::testing_support {
namespace {

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

TEST_F(suspend_async_test, memory_goes_when_the_work_of_before_is_done) {
  auto memory = make_declared();
  const auto stranger = new_stream();
  busy work{*machine, stranger};
  const filled block{allocate(memory, weights, 4_MiB), 4_MiB, 9};
  fill(block, stranger);  // nobody said so
  ASSERT_TRUE(memory.suspend_async(weights));
  EXPECT_FALSE(memory.is_suspended(weights));
  EXPECT_EQ(used(), 4_MiB) << "the stranger writes to it";
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

TEST_F(suspend_async_test, work_that_is_queued_later_is_not_waited_for) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 4_MiB, 3);
  ASSERT_TRUE(memory.suspend_async(weights));
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
  for (unsigned char i = 1; i <= 3; ++i) blocks.push_back(make_filled(memory, weights, 5_MiB, i));
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
    EXPECT_THAT(refused.error().detail, HasSubstr("weights"));
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

TEST_F(suspend_async_test, an_older_driver_waits_for_the_whole_context) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 4_MiB, 1);
  const auto waits = [&] { return machine->calls(driver::call::ctx_synchronize); };
  const auto before = waits();
  machine->fail(driver::call::ctx_record_event, 1, driver::CUDA_ERROR_NOT_SUPPORTED);
  ASSERT_TRUE(memory.suspend_async(weights));
  ASSERT_TRUE(arrives(memory, weights));
  EXPECT_EQ(waits(), before + 1);
  ASSERT_TRUE(memory.resume(weights));
  ASSERT_TRUE(memory.suspend_async(weights));
  ASSERT_TRUE(arrives(memory, weights));
  EXPECT_EQ(waits(), before + 1) << "an event serves where there is one";
  ASSERT_TRUE(memory.resume(weights));
  expect_contents(block);
  memory.deallocate(block.at, on);
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
  const auto told = heard.take();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].code, errc::no_host_memory);
  ASSERT_TRUE(memory.resume(weights));
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

/// Whatever call fails, on whichever thread: the memory is where it was or away, with its contents.
TEST_F(suspend_async_test, any_call_may_fail) {
  constexpr std::uint64_t stride = is_sanitized ? 5 : 1;
  bool reached_the_end = false;
  for (std::uint64_t nth = 1; !reached_the_end; nth += stride) {
    SCOPED_TRACE(nth);
    auto memory = make_declared();
    std::vector<filled> blocks;
    for (unsigned char i = 1; i <= 3; ++i) blocks.push_back(make_filled(memory, weights, 3_MiB, i));
    ASSERT_TRUE(on.synchronize());
    machine->fail_any(
        nth, nth / stride % 2 == 0 ? driver::CUDA_ERROR_UNKNOWN : driver::CUDA_ERROR_OUT_OF_MEMORY);
    const auto before = machine->calls();
    const auto going = memory.suspend_async(weights, {.chunk = 1_MiB});
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
