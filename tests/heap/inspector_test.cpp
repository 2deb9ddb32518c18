// SPDX-License-Identifier: Apache-2.0
// The inspector over a bare core and a host that only answers.
#include "heap/inspector.hpp"

#include "heap/bare_core.hpp"
#include "heap/heap_fixture.hpp"

namespace weir::testing_support { namespace {

using heap::block_index;
using heap::pool_state;

constexpr std::size_t heap_size = 4321;

class answering_host final : public heap::inspector_host {
 public:
  result<heap::identified_stream> identify(const stream_ref&) override {
    ++identified;
    return errc::bad_stream;
  }
  void settle_caches() noexcept override { ++settled; }
  result<block_index> find_live(const void*) override { return errc::double_free; }
  const pool_state* suspendable_pool(tag) const noexcept override { return nullptr; }

  int identified = 0;
  int settled = 0;
};

class inspector_test : public heap_test {
 protected:
  void reserve(bytes size) {
    const detail::mutex_lock lock{core.mutex_};
    core.placement_.reserved = core.placement_.reserved_peak = size.count();
  }
  /// So much was reserved and suspended at one time.
  void reach(bytes most) {
    const detail::mutex_lock lock{core.mutex_};
    const std::uint64_t before = std::exchange(core.placement_.reserved, most.count());
    peak.begin();
    peak.note_growth();
    core.placement_.reserved = before;
  }

  bare_core core{gpu(), {}};
  answering_host host;
  heap::suspended_peak peak{core};
  heap::heap_backup backup{core};
  heap::inspector inside{core, host, peak, backup, heap_size};
};

TEST_F(inspector_test, figures_are_those_of_the_core_and_of_the_host) {
  const memory_stats empty = inside.stats();
  EXPECT_EQ(host.settled, 1);
  EXPECT_EQ(empty.reserved, (byte_gauge{0_B, 0_B}));
  EXPECT_GE(empty.metadata, bytes{heap_size});
  EXPECT_LT(empty.metadata, bytes{heap_size} + 4_MiB);
  EXPECT_EQ(inside.check(), "");

  reserve(6_MiB);
  reach(9_MiB);
  ASSERT_TRUE(backup.reserve(1_MiB, host_memory_kind::pageable));
  const memory_stats now = inside.stats();
  EXPECT_EQ(inside.reserved(), 6_MiB);
  EXPECT_EQ(now.cached, 6_MiB);
  EXPECT_EQ(now.reserved_and_suspended, (byte_gauge{6_MiB, 9_MiB}));
  EXPECT_EQ(now.backup, (byte_gauge{32_MiB, 32_MiB}));
  EXPECT_EQ(inside.check(), "pools do not add up to reserved\n");
}

TEST_F(inspector_test, counters_and_peaks_begin_again) {
  reserve(6_MiB);
  {
    const detail::mutex_lock lock{core.mutex_};
    core.placement_.reserved = (2_MiB).count();
    core.placement_.handles_created = 3;
  }
  reach(9_MiB);
  ASSERT_TRUE(backup.reserve(1_MiB, host_memory_kind::pageable));
  ASSERT_TRUE(backup.trim());
  EXPECT_EQ(inside.stats().handles_created, 3u);
  inside.reset_counters();
  inside.reset_peaks();
  const memory_stats now = inside.stats();
  EXPECT_EQ(now.handles_created, 0u);
  EXPECT_EQ(now.reserved, (byte_gauge{2_MiB, 2_MiB}));
  EXPECT_EQ(now.reserved_and_suspended, (byte_gauge{2_MiB, 2_MiB}));
  EXPECT_EQ(now.backup, (byte_gauge{0_B, 0_B}));
}

TEST_F(inspector_test, a_failure_is_remembered_until_something_changes) {
  const stream on = new_stream();
  EXPECT_EQ(inside.explain(1_MiB, on).advice, "The request fits.");
  const auto fail = [&] {
    const detail::mutex_lock lock{core.mutex_};
    return inside.no_room(heap::inspector::refusal::no_memory, 1_MiB, tag{}, heap::no_stream);
  };
  const error failed = fail();
  EXPECT_EQ(failed.code(), errc::out_of_memory);
  EXPECT_EQ(failed.requested(), 1_MiB);
  EXPECT_NE(inside.explain(1_MiB, on).advice, "The request fits.");
  EXPECT_EQ(inside.explain(2_MiB, on).advice, "The request fits.");
  {
    const detail::mutex_lock lock{core.mutex_};
    core.placement_.reserved_limit = (1_GiB).count();
  }
  EXPECT_EQ(inside.explain(1_MiB, on).advice, "The request fits.");
  EXPECT_EQ(host.identified, 4);
}

TEST_F(inspector_test, addresses_are_looked_up_by_the_host_and_among_the_pools) {
  int local = 0;
  EXPECT_EQ(code_of(inside.size_of(&local)), errc::double_free);
  EXPECT_EQ(code_of(inside.block_at(&local)), errc::foreign_pointer);
  EXPECT_EQ(code_of(inside.describe_address(&local)), errc::foreign_pointer);
  const detail::mutex_lock lock{core.mutex_};
  EXPECT_EQ(inside.why_not_live(512).code(), errc::foreign_pointer);
  EXPECT_EQ(inside.life_of(512), "");
}

TEST_F(inspector_test, of_a_closed_heap_nothing_is_said_and_nothing_is_asked) {
  const stream on = new_stream();
  reserve(6_MiB);
  core.closed_ = true;
  EXPECT_EQ(inside.stats().reserved.current, 0_B);
  EXPECT_EQ(inside.explain(1_MiB, on).advice, "");
  EXPECT_TRUE(inside.snapshot().pools.empty());
  EXPECT_EQ(code_of(inside.block_at(nullptr)), errc::closed);
  EXPECT_EQ(code_of(inside.size_of(nullptr)), errc::closed);
  EXPECT_EQ(host.settled + host.identified, 0);
}

TEST_F(inspector_test, who_waited_for_the_lock_while_the_heap_was_closed_learns_nothing) {
  reserve(6_MiB);
  EXPECT_EQ(behind_the_end(core, [&] { return inside.stats(); }), memory_stats{});
  EXPECT_EQ(behind_the_end(core, [&] { return inside.stats(tag{}); }), memory_stats{});
  EXPECT_EQ(behind_the_end(core, [&] { return inside.stats(pool_id{}); }), memory_stats{});
  EXPECT_EQ(behind_the_end(core, [&] { return inside.snapshot().pools.size(); }), 0u);
  EXPECT_EQ(behind_the_end(core, [&] { return inside.snapshot(pool_id{}).stats; }), memory_stats{});
  EXPECT_EQ(behind_the_end(core, [&] { return code_of(inside.size_of(nullptr)); }), errc::closed);
  EXPECT_EQ(host.settled, 0);
  EXPECT_TRUE(behind_the_end(core, [&] {
    inside.reset_peaks();
    inside.reset_counters();
    return inside.stats_by_tag().empty();
  }));
  EXPECT_EQ(host.settled, 0);
}

}}  // namespace weir::testing_support
