// SPDX-License-Identifier: Apache-2.0
// The user's callbacks over a bare core.
#include "heap/heap_callbacks.hpp"

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

  bare_core core{gpu(), {}};
  heap::heap_callbacks all{core};
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
  all.clear();
  EXPECT_FALSE(all.any());
}

}}  // namespace weir::testing_support
