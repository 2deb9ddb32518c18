// SPDX-License-Identifier: Apache-2.0
// Residency through its own interface: pools without a store, and a host that counts what it is
// asked for.
#include "heap/residency.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "heap/bare_core.hpp"
#include "heap/suspend_fixture.hpp"

namespace weir::testing_support { namespace {

using heap::move_progress;
using heap::move_stage;
using heap::pool_state;
using heap::residence;
using heap::residency;

/// Has nothing in caches and nothing to reclaim.
class fake_host final : public heap::residency_host {
 public:
  void settle_caches() noexcept override { ++settled; }
  bool flush_all() noexcept override {
    ++flushed;
    return false;
  }
  void flush_caches() noexcept override { ++flushed; }
  void update_limits() noexcept override { ++limits_updated; }
  result<bool> any_capturing(order::driver_access& /*driver*/) override { return captures; }
  result<bool> reclaim_cached(pool_state& /*asking*/, bytes /*needed*/,
                              order::driver_access& /*driver*/) override {
    return false;
  }
  result<bool> wait_for_oldest(pool_state& /*asking*/, heap::wait_bound& /*bound*/,
                               order::driver_access& /*driver*/) override {
    return false;
  }
  [[nodiscard]] heap::store_traits traits_of(const pool_state& pool) const override {
    return {.segments = pool.segments, .suspendable = pool.suspendable.has_value()};
  }
  [[nodiscard]] std::string shortage_text(bytes needed) override { return to_string(needed); }

  int settled = 0;
  int flushed = 0;
  int limits_updated = 0;
  bool captures = false;
};

class residency_test : public suspend_test {
 protected:
  ~residency_test() override {
    core.closed_ = true;
    const detail::mutex_lock lock{core.mutex_};
    part.end();
    static_cast<void>(backup.release());
  }
  [[nodiscard]] pool_state& pool_of(tag of) {
    const detail::mutex_lock lock{core.mutex_};
    return *part.suspendable_pool(of);
  }
  [[nodiscard]] residence where(tag of) {
    const pool_state& pool = pool_of(of);
    const detail::mutex_lock lock{core.mutex_};
    return pool.where;
  }
  [[nodiscard]] result<void> request(tag of, bytes size = 1_MiB) {
    pool_state& pool = pool_of(of);
    const detail::mutex_lock lock{core.mutex_};
    return part.await_residence(pool, size.count());
  }

  bare_core core{gpu(), {}};
  fake_host host;
  heap::heap_backup backup{core};
  heap::suspended_peak peak{core};
  residency part{core, host, backup, peak};
};

TEST(move_stages, change_as_the_header_draws_it) {
  using enum move_stage;
  constexpr move_stage all[] = {waiting, reading, stopping, committed, returning, settled, ended};
  const std::vector<std::pair<move_stage, move_stage>> drawn = {
      {waiting, reading},   {waiting, settled},   {reading, stopping},
      {reading, committed}, {reading, settled},   {stopping, settled},
      {committed, settled}, {returning, settled}, {settled, ended}};
  for (const move_stage from : all) {
    for (const move_stage to : all) {
      const bool is_drawn =
          std::find(drawn.begin(), drawn.end(), std::pair{from, to}) != drawn.end();
      EXPECT_EQ(may_follow(from, to), is_drawn)
          << "from " << static_cast<int>(from) << " to " << static_cast<int>(to);
    }
  }
  move_progress progress{waiting};
  for (const move_stage next : {reading, stopping, settled, ended}) {
    EXPECT_EQ(progress.is_revocable(), next != ended);
    progress.advance(next);
    EXPECT_TRUE(progress.is(next));
  }
  EXPECT_FALSE(move_progress{committed}.is_revocable());
  EXPECT_FALSE(move_progress{returning}.is_revocable());
}

TEST_F(residency_test, a_tag_has_a_pool_once_it_is_declared) {
  const auto has_pool = [&](tag of) {
    const detail::mutex_lock lock{core.mutex_};
    EXPECT_EQ(part.has_tag_pool(of.number()), part.suspendable_pool(of) != nullptr);
    return part.any_tag_pool() && part.has_tag_pool(of.number());
  };
  EXPECT_FALSE(has_pool(weights));
  EXPECT_EQ(code_of(part.declare_suspendable(tag{}, {})), errc::invalid_argument);
  EXPECT_EQ(code_of(part.suspend(weights, {})), errc::not_found);
  ASSERT_TRUE(part.declare_suspendable(weights, {}));
  EXPECT_TRUE(has_pool(weights));
  EXPECT_FALSE(has_pool(cache));
  EXPECT_EQ(host.limits_updated, 1) << "the caches serve the tag no more";
  const pool_state* const before = &pool_of(weights);
  ASSERT_TRUE(part.declare_suspendable(weights, {.priority = 3}));
  EXPECT_EQ(&pool_of(weights), before);
  EXPECT_EQ(before->suspendable->priority, 3);
  EXPECT_EQ(host.limits_updated, 1);
}

TEST_F(residency_test, a_pool_goes_and_comes_back) {
  ASSERT_TRUE(part.declare_suspendable(weights, {}));
  ASSERT_TRUE(part.declare_suspendable(cache, {}));
  ASSERT_TRUE(part.suspend(weights, {}));
  EXPECT_EQ(where(weights), residence::suspended);
  EXPECT_EQ(where(cache), residence::resident);
  EXPECT_TRUE(part.is_suspended(weights).value());
  EXPECT_FALSE(part.is_suspended(residency::all_pools{}).value());
  EXPECT_EQ(host.flushed, 0) << "the allocator's own memory stays";
  ASSERT_TRUE(part.suspend(residency::all_pools{}, {}));
  EXPECT_TRUE(part.is_suspended(residency::all_pools{}).value());
  EXPECT_EQ(host.flushed, 2) << "when it begins to go, and when it is away";
  ASSERT_TRUE(part.resume(residency::all_pools{}, {}));
  EXPECT_EQ(where(weights), residence::resident);
  EXPECT_EQ(where(cache), residence::resident);
}

TEST_F(residency_test, nothing_goes_while_a_stream_is_captured) {
  ASSERT_TRUE(part.declare_suspendable(weights, {}));
  host.captures = true;
  EXPECT_EQ(code_of(part.suspend(weights, {})), errc::capture_forbidden);
  EXPECT_EQ(code_of(part.suspend_async(weights, {})), errc::capture_forbidden);
  EXPECT_EQ(where(weights), residence::resident);
}

TEST_F(residency_test, requests_to_a_pool_that_is_away_do_what_the_suspension_said) {
  ASSERT_TRUE(part.declare_suspendable(weights, {}));
  ASSERT_TRUE(request(weights));
  ASSERT_TRUE(part.suspend(weights, {}));
  EXPECT_EQ(code_of(request(weights)), errc::suspended);
  ASSERT_TRUE(part.resume(weights, {}));
  ASSERT_TRUE(part.suspend(weights, {.requests = suspended_requests::resume}));
  EXPECT_EQ(code_of(request(weights, 1_TiB)), errc::out_of_memory) << "the device is smaller";
  EXPECT_EQ(where(weights), residence::suspended);
  ASSERT_TRUE(request(weights));
  EXPECT_EQ(where(weights), residence::resident);
}

TEST_F(residency_test, a_suspension_that_waits_is_called_off_at_once) {
  ASSERT_TRUE(part.declare_suspendable(weights, {}));
  auto held_up = hold(on);
  {
    const context_scope bound{gpu()};
    ASSERT_TRUE(machine->launch(on.handle(), "kernel", {}));
  }
  ASSERT_TRUE(part.suspend_async(weights, {}));
  EXPECT_TRUE(pool_of(weights).is_leaving());
  ASSERT_TRUE(part.resume(weights, {}));
  EXPECT_EQ(where(weights), residence::resident);
  held_up.release();
}

TEST_F(residency_test, what_has_no_memory_is_not_evicted) {
  ASSERT_TRUE(part.declare_suspendable(weights, {.evictable = true}));
  order::driver_access driver{gpu()};
  const detail::mutex_lock lock{core.mutex_};
  EXPECT_FALSE(part.evictions().evict(nullptr, {}, driver).value());
}

TEST_F(residency_test, the_peak_of_reserved_and_suspended_begins_with_the_first_suspension) {
  ASSERT_TRUE(part.declare_suspendable(weights, {}));
  const auto peak_at = [&](std::uint64_t reserved) {
    const detail::mutex_lock lock{core.mutex_};
    core.placement_.reserved = reserved;
    peak.note_growth();
    core.placement_.reserved = 0;
    return peak.read();
  };
  EXPECT_EQ(peak_at(5), 0u) << "until then it is that of what is reserved";
  ASSERT_TRUE(part.suspend(weights, {}));
  EXPECT_EQ(peak_at(5), 5u);
  EXPECT_EQ(peak_at(3), 5u);
}

}}  // namespace weir::testing_support
