// Trimming over a bare core whose stores only count.
#include "heap/trimming.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "heap/bare_core.hpp"
#include "heap/counted_store.hpp"
#include "heap/heap_fixture.hpp"
#include "weir/allocator/segment_source.hpp"

namespace weir::testing_support { namespace {

using heap::block_index;
using heap::pool_state;
using heap::residence;
using ::testing::ElementsAre;

/// All that trimming and its parts ask for: nothing is cached, nothing captured, and a wait does
/// what a test says.
class trimmed_heap final : public heap::trimming_host,
                           public heap::pool_registry_host,
                           public heap::residency_host {
 public:
  void flush_caches() noexcept override { asked.emplace_back("flush"); }
  result<bool> poll_streams(order::driver_access&, heap::stream_slot spared) override {
    EXPECT_EQ(spared, heap::no_stream);
    asked.emplace_back("poll");
    return false;
  }
  result<void> wait_for_streams(order::driver_access& driver) override {
    asked.emplace_back("wait");
    return on_wait ? on_wait(driver) : result<void>{};
  }
  void retire(pool_state&) noexcept override { asked.emplace_back("retire"); }
  result<block_index> find_live(const void*) override { return errc::foreign_pointer; }
  void settle_caches() noexcept override {}
  bool flush_all() noexcept override { return false; }
  void update_limits() noexcept override {}
  result<bool> any_capturing(order::driver_access&) override { return false; }
  result<bool> reclaim_cached(pool_state&, bytes, order::driver_access&) override { return false; }
  result<bool> wait_for_oldest(pool_state&, heap::wait_bound&, order::driver_access&) override {
    return false;
  }
  heap::store_traits traits_of(const pool_state&) const override { return {}; }
  std::string shortage_text(bytes) override { return {}; }

  std::vector<std::string> asked;
  std::function<result<void>(order::driver_access&)> on_wait;
};

class idle_source final : public segment_source {
 public:
  result<void*> allocate(bytes, const stream_ref&) override { return nullptr; }
  result<void> deallocate(void*, bytes) override { return {}; }
};

class trimming_test : public heap_test {
 protected:
  ~trimming_test() override {
    core.closed_ = true;
    const detail::mutex_lock lock{core.mutex_};
    suspended.end();
  }

  /// A pool that is held and has so much memory.
  pool_state& add_pool(bytes size, store_record& record) {
    const detail::mutex_lock lock{core.mutex_};
    return give_memory(core.add_pool("some"), size, record);
  }
  pool_state& own_pool(bytes size, store_record& record) {
    const detail::mutex_lock lock{core.mutex_};
    return give_memory(*core.pools_.front(), size, record);
  }
  [[nodiscard]] bytes reserved() {
    const detail::mutex_lock lock{core.mutex_};
    return bytes{core.placement_.reserved};
  }
  [[nodiscard]] std::vector<std::string> asked() { return std::exchange(host.asked, {}); }

  store_record own, first, second;
  bare_core core{gpu(), {}};
  trimmed_heap host;
  heap::heap_backup backup{core};
  heap::suspended_peak peak{core};
  heap::residency suspended{core, host, backup, peak};
  heap::pool_registry pools{core, host, backup};
  heap::trimming part{core, host, pools, suspended};

 private:
  pool_state& give_memory(pool_state& pool, bytes size, store_record& record)
      WEIR_REQUIRES(core.mutex_) {
    pool.memory = std::make_unique<counted_store>(core.placement_, pool.id, size, record);
    return pool;
  }
};

TEST_F(trimming_test, a_trim_goes_from_pool_to_pool_until_little_enough_is_left) {
  own_pool(4_MiB, own);
  pool_state& kept = add_pool(6_MiB, first);
  kept.retains = true;
  add_pool(8_MiB, second);
  EXPECT_EQ(part.trim(18_MiB).value(), 0_B);
  EXPECT_EQ(own.released + second.released, 0);
  EXPECT_THAT(asked(), ElementsAre("flush", "poll"));
  EXPECT_EQ(part.trim(17_MiB).value(), 1_MiB);
  EXPECT_EQ(own.released, 1);
  EXPECT_EQ(second.released, 0) << "the allocator's own first";
  EXPECT_EQ(part.trim(10_MiB).value(), 7_MiB);
  EXPECT_EQ(reserved(), 10_MiB);
  EXPECT_EQ(part.trim(0_B).value(), 4_MiB);
  EXPECT_EQ(first.released, 0) << "a pool of graphs that is held keeps its memory";
  EXPECT_EQ(reserved(), 6_MiB);
}

TEST_F(trimming_test, trouble_of_a_source_keeps_no_other_pool_back) {
  own_pool(4_MiB, own);
  pool_state& sourced = add_pool(6_MiB, first);
  sourced.source = std::make_shared<idle_source>();
  first.refuses = errc::invalid_argument;
  add_pool(8_MiB, second);
  EXPECT_EQ(code_of(part.trim(0_B)), errc::invalid_argument);
  EXPECT_EQ(reserved(), 6_MiB);
  own_pool(4_MiB, own);
  own.refuses = errc::driver_error;
  EXPECT_EQ(code_of(part.trim(0_B)), errc::driver_error) << "the device's own trouble ends it";
  EXPECT_EQ(first.released, 1);
}

TEST_F(trimming_test, pools_that_ended_go_first) {
  own_pool(4_MiB, own);
  pool_state& over = add_pool(6_MiB, first);
  {
    const detail::mutex_lock lock{core.mutex_};
    core.drop_holder(over);
  }
  EXPECT_EQ(part.trim(4_MiB).value(), 6_MiB);
  EXPECT_EQ(first.closed, 1);
  EXPECT_EQ(own.released, 0);
}

TEST_F(trimming_test, a_shrink_waits_and_evicts_only_if_it_must) {
  own_pool(4_MiB, own);
  pool_state& low = add_pool(6_MiB, first);
  low.retains = true;  // so that a trim leaves it alone
  low.suspendable = {.evictable = true, .priority = 1};
  pool_state& high = add_pool(8_MiB, second);
  high.retains = true;
  high.suspendable = {.evictable = true, .priority = 2};
  EXPECT_EQ(part.shrink(14_MiB).value(), 4_MiB);
  EXPECT_THAT(asked(), ElementsAre("flush", "poll"));
  EXPECT_EQ(part.shrink(10_MiB).value(), 6_MiB);
  EXPECT_THAT(asked(), ElementsAre("flush", "poll", "wait", "flush", "poll"));
  EXPECT_EQ(low.where, residence::suspended) << "the lowest priority";
  EXPECT_EQ(high.where, residence::resident);
  high.suspendable->evictable = false;
  EXPECT_EQ(part.shrink(0_B).value(), 0_B);
  EXPECT_EQ(reserved(), 8_MiB) << "nothing more can go";
  host.on_wait = [](order::driver_access&) { return errc::device_lost; };
  EXPECT_EQ(code_of(part.shrink(0_B)), errc::device_lost);
}

TEST_F(trimming_test, what_is_suspended_during_the_wait_is_not_released) {
  pool_state& pool = add_pool(8_MiB, first);
  host.on_wait = [&](order::driver_access&) -> result<void> {
    core.mutex_.assert_held();
    pool.where = heap::residence::suspending;
    return {};
  };
  EXPECT_EQ(part.empty_cache(pool.id).value(), 0_B);
  EXPECT_EQ(first.released, 0);
  EXPECT_EQ(reserved(), 8_MiB);
  pool.where = heap::residence::resident;
}

TEST_F(trimming_test, empty_cache_waits_and_releases_all) {
  own_pool(4_MiB, own);
  add_pool(8_MiB, first);
  EXPECT_EQ(part.empty_cache().value(), 12_MiB);
  EXPECT_THAT(asked(), ElementsAre("flush", "wait"));
  EXPECT_EQ(reserved(), 0_B);
}

TEST_F(trimming_test, the_cache_of_one_pool_is_emptied_alone) {
  own_pool(4_MiB, own);
  pool_state& pool = add_pool(8_MiB, first);
  EXPECT_EQ(code_of(part.empty_cache(pool_id{17})), errc::closed);
  pool.where = residence::suspended;
  EXPECT_EQ(part.empty_cache(pool.id).value(), 0_B);
  pool.where = residence::resident;
  pool.of_capture = true;
  EXPECT_EQ(part.empty_cache(pool.id).value(), 0_B);
  pool.of_capture = false;
  EXPECT_THAT(asked(), ElementsAre());
  EXPECT_EQ(part.empty_cache(pool.id).value(), 8_MiB);
  EXPECT_THAT(asked(), ElementsAre("wait", "retire"));
  EXPECT_EQ(reserved(), 4_MiB);
  pool.memory.reset();
  EXPECT_EQ(part.empty_cache(pool.id).value(), 0_B) << "it was never used";
}

TEST_F(trimming_test, a_pool_that_retains_gives_nothing_while_replays_may_be_under_way) {
  const stream on = new_stream();
  pool_state& pool = add_pool(8_MiB, first);
  pool.retains = true;
  {
    const detail::mutex_lock lock{core.mutex_};
    static_cast<void>(core.order_.meet(on, on.id()));
  }
  EXPECT_EQ(part.empty_cache(pool.id).value(), 0_B) << "the wait completed nothing";
  EXPECT_EQ(first.released, 0);
  host.on_wait = [&](order::driver_access& driver) -> result<void> {
    core.mutex_.assert_held();
    EXPECT_TRUE(core.order_.close_others(heap::no_stream, driver.enter()));
    EXPECT_TRUE(core.order_.poll(driver.enter()));
    return {};
  };
  EXPECT_EQ(part.empty_cache(pool.id).value(), 8_MiB);
}

TEST_F(trimming_test, a_pool_may_end_while_its_cache_is_emptied) {
  pool_state& pool = add_pool(8_MiB, first);
  const pool_id id = pool.id;
  host.on_wait = [&](order::driver_access&) -> result<void> {
    core.mutex_.assert_held();
    core.drop_holder(pool);
    return {};
  };
  EXPECT_EQ(part.empty_cache(id).value(), 8_MiB);
  EXPECT_EQ(first.closed, 1) << "that was all of it";
  const pool_id other = add_pool(8_MiB, second).id;
  host.on_wait = [&](order::driver_access&) -> result<void> {
    core.mutex_.assert_held();
    core.pools_.pop_back();
    return {};
  };
  EXPECT_EQ(part.empty_cache(other).value(), 0_B);
}

TEST_F(trimming_test, a_closed_heap_releases_nothing) {
  own_pool(4_MiB, own);
  host.on_wait = [&](order::driver_access&) -> result<void> {
    core.closed_ = true;
    return errc::closed;
  };
  EXPECT_EQ(code_of(part.empty_cache()), errc::closed);
  EXPECT_EQ(code_of(part.trim(0_B)), errc::closed);
  EXPECT_EQ(code_of(part.shrink(0_B)), errc::closed);
  EXPECT_EQ(code_of(part.empty_cache()), errc::closed);
  EXPECT_EQ(code_of(part.empty_cache(pool_id{})), errc::closed);
  EXPECT_EQ(own.released, 0);
}

}}  // namespace weir::testing_support
