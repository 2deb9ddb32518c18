// SPDX-License-Identifier: Apache-2.0
// Threads that carry a suspension or a return: an allocator that ends on one of them.
#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "heap/heap_view.hpp"
#include "heap/suspend_fixture.hpp"
#include "support/no_threads.hpp"

namespace weir::testing_support { namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

/// An allocator whose memory is on its way while the test lets go of it.
class suspend_carriers_test : public suspend_test {
 protected:
  suspend_carriers_test() { EXPECT_TRUE(memory->declare_suspendable(weights)); }

  /// What is copied out stands still until the test has let go of the allocator. Then the last
  /// handle goes, by `end`.
  template <class End>
  [[nodiscard]] suspend_progress standing_until_gone(End end) {
    return [this, end = std::move(end), last = std::make_shared<caching_allocator>(*memory)](
               bytes, bytes) mutable {
      ++calls;
      if (last == nullptr) return;
      copying.set_value();
      is_gone.wait();
      end(std::move(last));
    };
  }
  /// The test's handle is gone; a handle of somebody else's may be left.
  void let_go() {
    memory.reset();
    gone.set_value();
  }
  template <class Condition>
  [[nodiscard]] static bool comes(Condition condition) {
    for (int i = 0; i < 10'000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(1ms);
    }
    return false;
  }
  /// Until the allocator has ended, and has told its last event.
  [[nodiscard]] bool ends() const {
    return comes([&] { return events.expired(); });
  }

  std::unique_ptr<caching_allocator> memory = std::make_unique<caching_allocator>(make());
  const std::weak_ptr<const void> events = heap::heap_view{*memory}.events();
  std::atomic<int> calls{0};
  std::promise<void> copying;
  std::promise<void> gone;
  const std::shared_future<void> is_gone = gone.get_future().share();
};

constexpr auto here = [](std::shared_ptr<caching_allocator> last) { last.reset(); };

TEST_F(suspend_carriers_test, the_last_handle_may_end_in_a_progress_callback) {
  void* const block = allocate(*memory, weights, 4_MiB);
  ASSERT_TRUE(
      memory->suspend_async(weights, {.chunk = 1_MiB, .progress = standing_until_gone(here)}));
  copying.get_future().wait();
  memory->deallocate(block, on);
  let_go();
  EXPECT_TRUE(ends());
  EXPECT_EQ(used(), 0_B);
  EXPECT_EQ(calls, 4) << "what was under way was finished";
}

TEST_F(suspend_carriers_test, no_thread_is_needed_to_end_it_there) {
  void* const block = allocate(*memory, weights, 4_MiB);
  ASSERT_TRUE(memory->suspend_async(weights, {.progress = standing_until_gone(here)}));
  copying.get_future().wait();
  memory->deallocate(block, on);
  const no_threads none;
  let_go();
  EXPECT_TRUE(ends());
  EXPECT_EQ(used(), 0_B);
  if (!none) GTEST_SKIP() << "threads cannot be refused here";
}

TEST_F(suspend_carriers_test, the_end_on_one_thread_waits_for_the_others) {
  ASSERT_TRUE(memory->declare_suspendable(cache));
  void* const first = allocate(*memory, weights, 4_MiB);
  void* const second = allocate(*memory, cache, 4_MiB);
  std::promise<void> other_copying;
  std::promise<void> over;
  std::atomic<bool> was_there = false;
  const auto stands = [&, is_over = over.get_future().share()](bytes, bytes) {
    other_copying.set_value();
    is_over.wait();
    std::this_thread::sleep_for(10ms);
    was_there = !events.expired();
  };
  ASSERT_TRUE(memory->suspend_async(cache, {.progress = stands}));
  const auto end = [&](std::shared_ptr<caching_allocator> last) {
    last.reset();
    over.set_value();
  };
  ASSERT_TRUE(memory->suspend_async(weights, {.progress = standing_until_gone(end)}));
  copying.get_future().wait();
  other_copying.get_future().wait();
  for (void* const each : {first, second}) memory->deallocate(each, on);
  let_go();
  EXPECT_TRUE(ends());
  EXPECT_TRUE(was_there);
  EXPECT_EQ(used(), 0_B);
}

/// As with a thread's cache, which holds the allocator while it is handed back.
TEST_F(suspend_carriers_test, the_last_handle_may_end_with_the_thread) {
  void* const block = allocate(*memory, weights, 4_MiB);
  const auto end = [](std::shared_ptr<caching_allocator> last) {
    thread_local std::shared_ptr<caching_allocator> kept;
    kept = std::move(last);
  };
  ASSERT_TRUE(memory->suspend_async(weights, {.progress = standing_until_gone(end)}));
  copying.get_future().wait();
  memory->deallocate(block, on);
  let_go();
  EXPECT_TRUE(ends());
  EXPECT_EQ(used(), 0_B);
}

// --- The callback of a suspension ----------------------------------------------------------------

/// A callback that does nothing, and knows whether anybody has it.
class held_callback {
 public:
  [[nodiscard]] suspend_progress progress(const caching_allocator& memory) {
    return [memory, held = std::exchange(held_, nullptr)](bytes, bytes) {};
  }
  [[nodiscard]] bool is_gone() const noexcept { return seen_.expired(); }

 private:
  std::shared_ptr<int> held_ = std::make_shared<int>();
  const std::weak_ptr<int> seen_ = held_;
};

TEST_F(suspend_carriers_test, a_callback_that_holds_the_allocator_goes_with_the_suspension) {
  void* const block = allocate(*memory, weights, 4_MiB);
  held_callback holding;
  ASSERT_TRUE(memory->suspend_async(weights, {.progress = holding.progress(*memory)}));
  EXPECT_EQ(memory->suspend(weights).value(), suspend_outcome{}) << "waits for it";
  EXPECT_TRUE(holding.is_gone());
  ASSERT_TRUE(memory->resume(weights));
  memory->deallocate(block, on);
  memory.reset();
  EXPECT_TRUE(ends());
  EXPECT_EQ(used(), 0_B);
}

TEST_F(suspend_carriers_test, a_callback_of_what_is_called_off_or_fails_goes_as_well) {
  const auto block = make_filled(*memory, weights, 4_MiB, 1);
  held_callback holding;
  held_stream work{*machine, on.handle()};
  ASSERT_TRUE(memory->suspend_async(weights, {.progress = holding.progress(*memory)}));
  EXPECT_EQ(memory->resume(weights).value(), resume_outcome{});
  EXPECT_FALSE(holding.is_gone()) << "its thread still waits for the stream";
  work.release();
  EXPECT_TRUE(comes([&] { return holding.is_gone(); }));

  held_callback failing;
  machine->fail(driver::call::mem_host_alloc, 1, driver::CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_TRUE(memory->suspend_async(weights, {.progress = failing.progress(*memory)}));
  EXPECT_TRUE(comes([&] { return failing.is_gone(); }));
  EXPECT_TRUE(comes([&] { return !heard.take().empty(); }));
  {
    const no_threads none;
    held_callback refused;
    const auto begun = memory->suspend_async(weights, {.progress = refused.progress(*memory)});
    EXPECT_TRUE(begun || refused.is_gone());
  }
  memory->deallocate(block.at, on);
  memory.reset();
  EXPECT_TRUE(ends());
  EXPECT_EQ(used(), 0_B);
}

/// What the callback holds may use the allocator at its end.
TEST_F(suspend_carriers_test, an_eviction_that_is_declared_anew_lets_go_of_its_callback) {
  auto pool = std::make_shared<memory_pool>(memory->create_pool("held").value());
  ASSERT_TRUE(memory->declare_suspendable(
      weights, {.eviction = {.progress = [held = std::exchange(pool, nullptr)](bytes, bytes) {}}}));
  EXPECT_EQ(memory->snapshot().pools.size(), 3u);
  ASSERT_TRUE(memory->declare_suspendable(weights));
  EXPECT_EQ(memory->snapshot().pools.size(), 2u);
}

TEST_F(suspend_carriers_test, the_error_handler_of_one_cannot_close_it) {
  void* const block = allocate(*memory, weights, 4_MiB);
  std::promise<error> told;
  set_error_handler([this, &told](const error&) { told.set_value(memory->close().error()); });
  machine->fail(driver::call::mem_host_alloc, 1, driver::CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_TRUE(memory->suspend_async(weights));
  const error refused = told.get_future().get();
  EXPECT_EQ(refused.code(), errc::not_permitted);
  EXPECT_THAT(refused.detail(), HasSubstr("cannot close the allocator"));
  set_error_handler(nullptr);
  memory->deallocate(block, on);
  EXPECT_TRUE(memory->close());
}

}  // namespace
}  // namespace weir::testing_support
