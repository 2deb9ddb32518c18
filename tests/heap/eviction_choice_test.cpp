// SPDX-License-Identifier: Apache-2.0
// Which pools are evicted, over a bare core whose stores only count.
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "heap/backup.hpp"
#include "heap/bare_core.hpp"
#include "heap/counted_store.hpp"
#include "heap/eviction.hpp"
#include "heap/heap_fixture.hpp"

namespace weir::testing_support { namespace {

using heap::pool_state;
using heap::residence;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Suspends a pool by taking its memory, and remembers which.
class evicting_host final : public heap::eviction_host {
 public:
  result<void> may_suspend(const pool_state& pool) const override {
    if (pool.handles_seen) return errc::not_supported;
    return {};
  }
  result<suspend_outcome> suspend_pools(const std::vector<pool_state*>& chosen,
                                        const suspend_options& options) override {
    EXPECT_EQ(chosen.size(), 1u);
    pool_state& pool = *chosen.front();
    evicted.push_back(pool.id.number());
    told = options;
    if (pool.name == "stays") return errc::no_host_memory;
    if (pool.name == "gives nothing") return suspend_outcome{};
    const bytes before{pool.reserved()};
    pool.memory->apply({}, true);
    pool.where = residence::suspended;
    return suspend_outcome{.released = before};
  }
  result<void> await_move() override {
    ++awaited;
    return moved;
  }
  result<bool> any_capturing(order::driver_access&) override { return captures; }
  void flush_caches() noexcept override {
    ++flushed;
    if (on_flush) on_flush();
  }

  std::vector<std::uint32_t> evicted;
  suspend_options told;
  int awaited = 0;
  int flushed = 0;
  bool captures = false;
  result<void> moved;
  std::function<void()> on_flush;
};

class eviction_choice_test : public heap_test {
 protected:
  /// An evictable pool with memory.
  pool_state& add_pool(int priority, bytes size = 8_MiB, const char* name = "evictable") {
    pool_state& added = add_plain_pool(size, name);
    added.suspendable = {.evictable = true, .priority = priority};
    return added;
  }
  pool_state& add_plain_pool(bytes size, const char* name = "plain") {
    const detail::mutex_lock lock{core.mutex_};
    pool_state& added = core.add_pool(name);
    added.memory = std::make_unique<counted_store>(core.placement_, added.id, size, record);
    return added;
  }
  static void hand_out(pool_state& of, bytes size) {
    static_cast<counted_store&>(*of.memory).hand_out(size);
  }
  [[nodiscard]] result<bool> evict(pool_state* asking, bytes needed = 1_MiB) {
    order::driver_access driver{gpu()};
    const detail::mutex_lock lock{core.mutex_};
    return part.evict(asking, needed, driver);
  }
  [[nodiscard]] bool could_fit(const pool_state& asking, bytes needed) {
    const detail::mutex_lock lock{core.mutex_};
    return part.could_fit(asking, needed.count());
  }
  [[nodiscard]] pool_state& own_pool() {
    const detail::mutex_lock lock{core.mutex_};
    return *core.pools_.front();
  }

  store_record record;
  bare_core core{gpu(), {.limit = 64_MiB}};
  evicting_host host;
  heap::eviction part{core, host};
};

TEST_F(eviction_choice_test, the_lowest_priority_goes_first) {
  add_plain_pool(8_MiB);
  add_pool(3);
  add_pool(1).suspendable->eviction.requests = suspended_requests::resume;
  add_pool(2);
  add_pool(-5, 0_B);
  add_pool(-5).where = residence::suspended;
  EXPECT_TRUE(evict(&own_pool()).value());
  EXPECT_THAT(host.evicted, ElementsAre(3));
  EXPECT_EQ(host.told.requests, suspended_requests::resume) << "as it was declared";
  EXPECT_TRUE(evict(nullptr).value());
  EXPECT_TRUE(evict(&own_pool()).value());
  EXPECT_THAT(host.evicted, ElementsAre(3, 4, 2));
  EXPECT_FALSE(evict(nullptr).value());
  EXPECT_EQ(host.awaited, 0);
}

TEST_F(eviction_choice_test, a_pool_that_is_evictable_evicts_lower_priorities_only) {
  pool_state& asking = add_pool(2);
  add_pool(2);
  pool_state& low = add_pool(1);
  EXPECT_TRUE(evict(&asking).value());
  EXPECT_EQ(low.where, residence::suspended);
  EXPECT_FALSE(evict(&asking).value());
  EXPECT_EQ(asking.holders, 1u);
  asking.suspendable->evictable = false;
  EXPECT_TRUE(evict(&asking).value()) << "it has no priority then";
}

TEST_F(eviction_choice_test, a_pool_that_gives_nothing_makes_way_for_the_next) {
  add_pool(1, 8_MiB, "stays");
  add_pool(2, 8_MiB, "gives nothing");
  add_pool(3).handles_seen = true;
  EXPECT_FALSE(evict(nullptr).value());
  EXPECT_THAT(host.evicted, ElementsAre(1, 2)) << "each once";
  host.evicted.clear();
  add_pool(4);
  EXPECT_TRUE(evict(nullptr).value());
  EXPECT_THAT(host.evicted, ElementsAre(1, 2, 4));
}

TEST_F(eviction_choice_test, nothing_goes_while_a_stream_is_captured) {
  add_pool(1);
  host.captures = true;
  EXPECT_FALSE(evict(nullptr).value());
  EXPECT_THAT(host.evicted, IsEmpty());
}

TEST_F(eviction_choice_test, nothing_goes_that_would_not_make_room) {
  pool_state& live = add_plain_pool(40_MiB);
  hand_out(live, 40_MiB);
  hand_out(add_pool(1, 16_MiB), 16_MiB);
  EXPECT_FALSE(evict(&own_pool(), 25_MiB).value());
  EXPECT_THAT(host.evicted, IsEmpty());
  EXPECT_EQ(host.flushed, 1) << "what threads cache counts as live until then";
  EXPECT_TRUE(could_fit(own_pool(), 24_MiB));
  EXPECT_EQ(host.flushed, 1);
  host.on_flush = [&] { hand_out(live, 30_MiB); };
  EXPECT_TRUE(could_fit(own_pool(), 25_MiB));
  live.for_graphs = true;
  EXPECT_FALSE(could_fit(own_pool(), 25_MiB)) << "graphs keep what is free as well";
  live.source = {};
  live.where = residence::suspending;
  EXPECT_TRUE(could_fit(own_pool(), 64_MiB)) << "what is on its way counts as gone";
  EXPECT_FALSE(could_fit(own_pool(), 65_MiB));
}

TEST_F(eviction_choice_test, what_leaves_anyway_is_waited_for) {
  pool_state& other = add_plain_pool(8_MiB);
  add_pool(1);
  other.where = residence::suspending;
  EXPECT_TRUE(evict(&own_pool()).value());
  EXPECT_EQ(host.awaited, 1);
  EXPECT_THAT(host.evicted, IsEmpty());
  host.moved = errc::closed;
  EXPECT_EQ(code_of(evict(&own_pool())), errc::closed);
  EXPECT_EQ(host.awaited, 2);
  EXPECT_TRUE(evict(&other).value()) << "nobody waits for itself";
  other.moved_by = std::this_thread::get_id();
  EXPECT_FALSE(evict(&own_pool()).value());
  other.moved_by = {};
  other.taken_back = true;
  EXPECT_FALSE(evict(&own_pool()).value()) << "it stays";
  EXPECT_EQ(host.awaited, 2);
  other.queued = true;
  EXPECT_EQ(code_of(evict(&own_pool())), errc::closed) << "some of it may be free when it is back";
  EXPECT_EQ(host.awaited, 3);
  heap::heap_of_progress = &core;
  EXPECT_FALSE(evict(&own_pool()).value()) << "a progress callback cannot wait";
  heap::heap_of_progress = nullptr;
  EXPECT_EQ(host.awaited, 3);
}

}}  // namespace weir::testing_support
