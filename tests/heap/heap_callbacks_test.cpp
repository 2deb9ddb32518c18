// SPDX-License-Identifier: Apache-2.0
// The user's callbacks over a bare core.
#include "heap/heap_callbacks.hpp"

#include <memory>
#include <stdexcept>

#include "heap/bare_core.hpp"
#include "heap/heap_fixture.hpp"
#include "heap/reclaimer.hpp"

namespace weir::testing_support { namespace {

class heap_callbacks_test : public heap_test {
 protected:
  /// Runs them as a search for room does.
  [[nodiscard]] result<bool> run(bytes needed) {
    const detail::mutex_lock lock{core.mutex_};
    if (!all.any()) return false;
    return all.run(*core.pools_.front(), needed);
  }
  [[nodiscard]] result<bool> run_before_growth(bytes needed) {
    const detail::mutex_lock lock{core.mutex_};
    return all.run_before_growth(*core.pools_.front(), needed);
  }

  /// What a callback may hold: when it ends, it counts whether the lock was free.
  [[nodiscard]] std::shared_ptr<void> held_object() {
    return {nullptr, [this](void*) {
              if (!core.mutex_.try_lock()) return;
              core.mutex_.unlock();
              ++ended_without_lock;
            }};
  }

  bare_core core{gpu(), {}};
  heap::heap_callbacks all{core};
  int ended_without_lock = 0;
};

TEST_F(heap_callbacks_test, each_kind_is_run_for_itself_until_it_is_removed) {
  bytes before_failure;
  bytes before_growth;
  EXPECT_FALSE(run_before_growth(1_MiB).value());
  const auto one = all.add([&](bytes needed) {
    before_failure = needed;
    return true;
  });
  const auto two = all.add_before_growth([&](bytes needed) {
    before_growth = needed;
    return true;
  });
  EXPECT_NE(one, two);
  EXPECT_TRUE(run(2_MiB).value());
  EXPECT_EQ(before_failure, 2_MiB);
  EXPECT_EQ(before_growth, 0_B);
  EXPECT_TRUE(run_before_growth(3_MiB).value());
  EXPECT_EQ(before_growth, 3_MiB);
  all.remove(one);
  all.remove(two);
  all.remove(two);
  EXPECT_FALSE(run(4_MiB).value());
  EXPECT_FALSE(run_before_growth(4_MiB).value());
  EXPECT_EQ(before_failure, 2_MiB);
}

TEST_F(heap_callbacks_test, they_run_without_the_lock_and_not_inside_one_another) {
  int runs = 0;
  const auto key = all.add([&](bytes needed) {
    ++runs;
    EXPECT_FALSE(run(needed).value()) << "takes the lock";
    EXPECT_FALSE(run_before_growth(needed).value());
    return false;
  });
  EXPECT_FALSE(run(1_MiB).value());
  EXPECT_EQ(runs, 1);
  EXPECT_FALSE(run(1_MiB).value());
  EXPECT_EQ(runs, 2);
  all.remove(key);
}

TEST_F(heap_callbacks_test, what_one_throws_is_carried_to_the_caller) {
  static_cast<void>(all.add([](bytes) -> bool { throw std::runtime_error{"mine"}; }));
  EXPECT_THROW(static_cast<void>(run(1_MiB)), heap::callback_exception);
  EXPECT_THROW(static_cast<void>(run(1_MiB)), heap::callback_exception) << "it is outside again";
  const detail::mutex_lock lock{core.mutex_};
  EXPECT_EQ(core.pools_.front()->holders, 1u);
}

TEST_F(heap_callbacks_test, a_heap_that_is_closed_meanwhile_says_so_and_takes_no_more) {
  static_cast<void>(all.add([&](bytes) {
    core.closed_ = true;
    return true;
  }));
  EXPECT_EQ(code_of(run(1_MiB)), errc::closed);
  EXPECT_EQ(all.add([](bytes) { return true; }), 0u);
  EXPECT_EQ(all.add_before_growth([](bytes) { return true; }), 0u);
  const detail::mutex_lock lock{core.mutex_};
  static_cast<void>(all.take_all());
  EXPECT_FALSE(all.any());
}

TEST_F(heap_callbacks_test, what_one_holds_that_removes_itself_ends_without_the_lock) {
  std::uint64_t key = 0;
  key = all.add([this, &key, held = held_object()](bytes) {
    all.remove(key);
    return true;
  });
  EXPECT_TRUE(run(1_MiB).value());
  EXPECT_EQ(ended_without_lock, 1);
  key = all.add_before_growth([this, &key, held = held_object()](bytes) -> bool {
    all.remove(key);
    throw std::runtime_error{"mine"};
  });
  EXPECT_THROW(static_cast<void>(run_before_growth(1_MiB)), heap::callback_exception);
  EXPECT_EQ(ended_without_lock, 2);
  EXPECT_FALSE(run_before_growth(1_MiB).value());
}

TEST_F(heap_callbacks_test, what_those_of_a_closed_heap_hold_ends_when_its_owner_says) {
  static_cast<void>(all.add([held = held_object()](bytes) { return true; }));
  static_cast<void>(all.add_before_growth([held = held_object()](bytes) { return true; }));
  heap::heap_callbacks::taken left;
  {
    const detail::mutex_lock lock{core.mutex_};
    left = all.take_all();
    EXPECT_FALSE(all.any());
  }
  EXPECT_EQ(ended_without_lock, 0);
  left = {};
  EXPECT_EQ(ended_without_lock, 2);
  EXPECT_FALSE(run_before_growth(1_MiB).value());
}

TEST_F(heap_callbacks_test, one_that_waited_for_the_lock_while_the_heap_was_closed_is_not_kept) {
  EXPECT_EQ(behind_the_end(core, [&] { return all.add([](bytes) { return true; }); }), 0u);
  EXPECT_EQ(behind_the_end(core, [&] { return all.add_before_growth([](bytes) { return true; }); }),
            0u);
}

}}  // namespace weir::testing_support
