// SPDX-License-Identifier: Apache-2.0
// Suspending and bringing back at moments between driver calls: who waits, and what counts by then.
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <utility>

#include "heap/suspend_fixture.hpp"

namespace weir::testing_support { namespace {

/// A driver at whose calls somebody can be stopped.
class suspend_moments_test : public suspend_test {
 protected:
  using stop = std::function<void()>;
  suspend_moments_test() {
    beneath = machine->driver();
    driver::table watched = beneath;
    watched.mem_unmap = [](driver::CUdeviceptr address, std::size_t size) {
      come_by(before_unmap);
      return beneath.mem_unmap(address, size);
    };
    watched.event_synchronize = [](driver::CUevent event) {
      come_by(before_wait);
      return beneath.event_synchronize(event);
    };
    watched.event_create = [](driver::CUevent* made, unsigned flags) {
      last_flags = flags;
      return beneath.event_create(made, flags);
    };
    const auto before =
        std::exchange(runtime_, runtime::open_table(watched, "watched", machine).value());
    on = new_stream();
  }

  /// Stops the next one that comes there until the end of the scope.
  class moment {
   public:
    explicit moment(stop& where) : where_{where} {
      const std::lock_guard lock{guard};
      where_ = [about = about_] {
        about->reached.set_value();
        about->is_over.wait();
      };
    }
    ~moment() { end(); }
    moment(const moment&) = delete;
    moment& operator=(const moment&) = delete;
    /// Until somebody is stopped.
    void wait() { about_->reached.get_future().wait(); }
    void end() {
      if (!std::exchange(ended_, true)) about_->over.set_value();
      const std::lock_guard lock{guard};
      where_ = nullptr;
    }

   private:
    struct state {
      std::promise<void> reached;
      std::promise<void> over;
      std::shared_future<void> is_over = over.get_future().share();
    };
    stop& where_;
    std::shared_ptr<state> about_ = std::make_shared<state>();
    bool ended_ = false;
  };

  [[nodiscard]] caching_allocator make_declared() const {
    auto memory = make();
    EXPECT_TRUE(memory.declare_suspendable(weights));
    return memory;
  }
  void finish(caching_allocator& memory, const filled& block) {
    ASSERT_TRUE(memory.resume(weights));
    expect_contents(block);
    EXPECT_EQ(check(memory), "");
    memory.deallocate(block.at, on);
  }

  static inline stop before_unmap{};
  static inline stop before_wait{};
  static inline std::atomic<unsigned> last_flags{0};

 private:
  static void come_by(stop& where) {
    stop here;
    {
      const std::lock_guard lock{guard};
      here = std::exchange(where, nullptr);
    }
    if (here) here();
  }
  static inline driver::table beneath{};
  static inline std::mutex guard;
};

TEST_F(suspend_moments_test, what_is_being_unmapped_is_not_taken_back) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 4_MiB, 1);
  moment unmapping{before_unmap};
  ASSERT_TRUE(memory.suspend_async(weights));
  unmapping.wait();
  result<resume_outcome> back = errc::closed;
  other_caller coming{[&] { back = memory.resume(weights); }};
  EXPECT_TRUE(coming.waits());
  unmapping.end();
  coming.join();
  EXPECT_EQ(back.value(), (resume_outcome{4_MiB, 4_MiB}));
  finish(memory, block);
}

TEST_F(suspend_moments_test, a_request_to_what_is_being_unmapped_brings_it_back_afterwards) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 4_MiB, 1);
  moment unmapping{before_unmap};
  ASSERT_TRUE(memory.suspend_async(weights, {.requests = suspended_requests::resume}));
  unmapping.wait();
  void* more = nullptr;
  other_caller asking{[&] { more = allocate(memory, weights, 1_MiB); }};
  EXPECT_TRUE(asking.waits());
  unmapping.end();
  asking.join();
  EXPECT_FALSE(memory.is_suspended(weights));
  memory.deallocate(more, on);
  finish(memory, block);
}

/// Memory is there again, and its contents are being copied.
class suspend_return_test : public suspend_moments_test {
 protected:
  suspend_return_test() {
    EXPECT_TRUE(suspended);
    EXPECT_EQ(memory.resume_async(weights, on).value(), (resume_outcome{4_MiB, 4_MiB}));
    copying.wait();
  }
  caching_allocator memory = make_declared();
  const filled block = make_filled(memory, weights, 4_MiB, 1);
  const result<suspend_outcome> suspended = memory.suspend(weights);
  moment copying{before_wait};  // of the return: to suspend waits as well
};

TEST_F(suspend_return_test, what_comes_back_is_not_taken_back) {
  result<resume_outcome> back = errc::closed;
  other_caller coming{[&] { back = memory.resume(weights); }};
  EXPECT_TRUE(coming.waits());
  copying.end();
  coming.join();
  EXPECT_EQ(back.value(), resume_outcome{});
  finish(memory, block);
}

TEST_F(suspend_return_test, requests_wait_for_what_comes_back) {
  result<void*> more = errc::closed;
  other_caller asking{[&] {
    const tag_scope scope{weights};
    more = memory.try_allocate(1_MiB, on);
  }};
  EXPECT_TRUE(asking.waits());
  copying.end();
  asking.join();
  ASSERT_TRUE(more) << more.error().message();
  memory.deallocate(*more, on);
  finish(memory, block);
}

TEST_F(suspend_return_test, what_comes_back_goes_again_when_it_is_there) {
  other_caller going{[&] { EXPECT_TRUE(memory.suspend_async(weights)); }};
  EXPECT_TRUE(going.waits());
  copying.end();
  going.join();
  EXPECT_EQ(memory.suspend(weights).value(), suspend_outcome{}) << "it was on its way";
  EXPECT_TRUE(memory.is_suspended(weights));
  finish(memory, block);
}

TEST_F(suspend_moments_test, a_request_waits_for_what_another_thread_is_suspending) {
  auto memory = make({.limit = 64_MiB});
  ASSERT_TRUE(memory.declare_suspendable(weights, {.evictable = true}));
  const auto block = make_filled(memory, weights, 32_MiB, 1);
  moment unmapping{before_unmap};
  other_caller going{[&] { EXPECT_TRUE(memory.suspend(weights)); }};
  unmapping.wait();
  other_caller asking{[&] {
    void* const more = memory.allocate(50_MiB, on);
    memory.deallocate(more, on);
  }};
  unmapping.end();
  going.join();
  asking.join();
  EXPECT_TRUE(memory.is_suspended(weights));
  EXPECT_EQ(memory.stats().failures, 0u);
  finish(memory, block);
}

/// Whoever waits for a queue that may be long leaves the processor to others.
TEST_F(suspend_moments_test, the_work_of_before_is_waited_for_asleep) {
  auto memory = make_declared();
  const auto block = make_filled(memory, weights, 4_MiB, 1);
  auto held = hold(on);
  fill(block, on);
  ASSERT_TRUE(memory.suspend_async(weights));
  EXPECT_EQ(last_flags & driver::CU_EVENT_BLOCKING_SYNC, unsigned{driver::CU_EVENT_BLOCKING_SYNC});
  held.release();
  finish(memory, block);
}

}  // namespace
}  // namespace weir::testing_support
