// SPDX-License-Identifier: Apache-2.0
// The limits of a bare core.
#include "heap/heap_limits.hpp"

#include "heap/bare_core.hpp"
#include "heap/heap_fixture.hpp"

namespace weir::testing_support { namespace {

class counting_host final : public heap::heap_limits_host {
 public:
  void settle_caches() noexcept override { ++settled; }
  void update_limits() noexcept override { ++updated; }

  int settled = 0;
  int updated = 0;
};

class heap_limits_test : public heap_test {
 protected:
  heap_limits_test() {
    const detail::mutex_lock lock{core.mutex_};
    core.placement_.observer = &told;
  }
  [[nodiscard]] bytes in_force() {
    const detail::mutex_lock lock{core.mutex_};
    EXPECT_EQ(core.placement_.reserved_limit, limits.limit().count());
    return limits.limit();
  }

  bare_core core{gpu(), {.limit = 512_MiB}};
  counting_host host;
  listener told;
  heap::heap_limits limits{core, host};
};

TEST_F(heap_limits_test, the_lowest_of_the_users_limit_and_the_ceilings_is_in_force) {
  const int first = 0;
  const int second = 0;
  EXPECT_EQ(in_force(), 512_MiB);
  ASSERT_TRUE(limits.add_share(&first, 256_MiB, {}));
  EXPECT_EQ(in_force(), 256_MiB);
  ASSERT_TRUE(limits.add_share(&second, 300_MiB, {}));
  EXPECT_EQ(in_force(), 256_MiB);
  EXPECT_EQ(told.take().size(), 1u) << "what changes nothing is not told";
  ASSERT_TRUE(limits.set_limit(1_GiB));
  ASSERT_TRUE(limits.set_ceiling(&first, 400_MiB));
  EXPECT_EQ(in_force(), 300_MiB);
  limits.remove_share(&second);
  EXPECT_EQ(in_force(), 400_MiB);
  limits.remove_share(&first);
  EXPECT_EQ(in_force(), 1_GiB);
  const auto events = told.take();
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events.front().size, (256_MiB).count()) << "the user's limit is always told";
  EXPECT_EQ(events.back().size, (1_GiB).count());
}

TEST_F(heap_limits_test, the_neighbours_are_those_of_the_latest_share) {
  const int first = 0;
  const int second = 0;
  const auto names = [&] {
    const detail::mutex_lock lock{core.mutex_};
    std::string all;
    if (core.neighbours_.list)
      for (const auto& each : core.neighbours_.list()) all += each.name;
    return all;
  };
  const auto knows = [](const char* name) {
    return heap::neighbourhood{.member = name[0], .list = [name] {
                                 return std::vector<observe::neighbour>{{.name = name}};
                               }};
  };
  EXPECT_EQ(names(), "");
  ASSERT_TRUE(limits.add_share(&first, 256_MiB, knows("one")));
  ASSERT_TRUE(limits.add_share(&second, 256_MiB, knows("two")));
  EXPECT_EQ(names(), "two");
  EXPECT_THAT(limits.members(), ::testing::ElementsAre('o', 't'));
  limits.remove_share(&second);
  EXPECT_EQ(names(), "one");
  limits.remove_share(&first);
  EXPECT_EQ(names(), "");
}

TEST_F(heap_limits_test, a_limit_of_a_tag_is_told_to_the_caches) {
  const tag some = tag::named("heap limits test").value();
  ASSERT_TRUE(limits.set_limit(some, 5_MiB));
  EXPECT_EQ(host.settled, 1);
  EXPECT_EQ(host.updated, 1);
  EXPECT_EQ(in_force(), 512_MiB);
  static_cast<void>(told.take());
  const detail::mutex_lock lock{core.mutex_};
  EXPECT_EQ(core.accounts_.limit(some), (5_MiB).count());
  limits.tell(told);
  const auto events = told.take();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].size, (512_MiB).count());
  EXPECT_EQ(events[1].size, (5_MiB).count());
  EXPECT_EQ(events[1].tag, some.number());
}

TEST_F(heap_limits_test, of_a_closed_heap_nothing_is_changed) {
  const int holder = 0;
  core.closed_ = true;
  EXPECT_EQ(code_of(limits.set_limit(1_MiB)), errc::closed);
  EXPECT_EQ(code_of(limits.set_limit(tag{}, 1_MiB)), errc::closed);
  EXPECT_EQ(code_of(limits.add_share(&holder, 1_MiB, {})), errc::closed);
  EXPECT_EQ(code_of(limits.set_ceiling(&holder, 1_MiB)), errc::closed);
  EXPECT_EQ(in_force(), 512_MiB);
}

}}  // namespace weir::testing_support
