// SPDX-License-Identifier: Apache-2.0
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
#include "weir/device/memory_source.hpp"

namespace weir::testing_support { namespace {

using heap::block_index;
using heap::pool_state;
using heap::residence;
using ::testing::ElementsAre;

/// All that trimming and its parts ask for. Notes what they do: a flush by the block that a cache
/// has, a poll by the events that mark streams, a wait by the block that it frees.
class trimmed_heap final : public heap::cache_flusher_host,
                           public heap::stream_progress_host,
                           public heap::pool_registry_host,
                           public heap::residency_host {
 public:
  explicit trimmed_heap(bare_core& core) : core_{core} {}

  // With the lock.

  /// Something was done; before it, streams may have been marked.
  void note(const char* done) {
    core_.mutex_.assert_held();
    if (std::exchange(events_, core_.order_.events_recorded()) != core_.order_.events_recorded())
      asked.emplace_back("poll");
    if (done != nullptr) asked.emplace_back(done);
  }
  void put_in_cache(block_index index) {
    heap::block& freed = core_.blocks_[index];
    cache->bins_of(freed.stream)->push(index, freed);
    cache->units += freed.units;
  }

  void free_to_store(block_index index, heap::stamp) noexcept override {
    note("flush");
    put_in_cache(index);  // for the next flush
  }
  void free_waited(block_index, heap::stamp) noexcept override {
    note("wait");
    if (on_wait) on_wait();
  }
  void report_second_free(const heap::block&) noexcept override {}
  result<block_index> find_live(const void*) override { return errc::foreign_pointer; }
  void flush_caches() noexcept override {}
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
  std::function<void()> on_wait;
  heap::thread_cache* cache = nullptr;

 private:
  bare_core& core_;
  std::uint64_t events_ = 0;
};

class idle_source final : public memory_source {
 public:
  result<void*> allocate(bytes, const stream_ref&) override { return nullptr; }
  result<void> deallocate(void*, bytes) override { return {}; }
};

/// A cache has a block, so that to flush it is noticed.
class trimming_test : public heap_test {
 protected:
  trimming_test() {
    heap::asymmetric_barrier::prepare();
    const detail::mutex_lock lock{core.mutex_};
    EXPECT_TRUE(core.blocks_.prepare(2));
    static_cast<void>(core.accounts_.number_of(pool_id{}, tag{}).value());
    slot = core.order_.meet(on, on.id());
    other_slot = core.order_.meet(other, other.id());
    host.cache = core.caches_.open();
    EXPECT_NE(host.cache->add_bins(on.id(), slot), nullptr);
    const block_index cached = core.blocks_.make();
    core.blocks_[cached].units = 1;
    core.blocks_[cached].stream = slot;
    core.blocks_[cached].become(heap::block_kind::thread_cached);
    host.put_in_cache(cached);
  }
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
  /// A block waits for work that only a wait ends. Then `body` runs, without the lock.
  void have_pending_work(std::function<void()> body = {}) {
    const detail::mutex_lock lock{core.mutex_};
    constexpr block_index some = 7;
    core.pending_.prepare(some);
    const context_scope bound{gpu()};
    EXPECT_TRUE(machine->launch(other.handle(), "kernel", {}, std::move(body)));
    core.pending_.add({some, core.order_.now(slot), {core.order_.now(other_slot)}});
  }
  [[nodiscard]] std::vector<std::string> asked() {
    const detail::mutex_lock lock{core.mutex_};
    host.note(nullptr);
    return std::exchange(host.asked, {});
  }

  store_record own, first, second;
  bare_core core{gpu(), {}};
  trimmed_heap host{core};
  heap::cache_flusher flusher{core, host};
  heap::stream_progress progress{core, host};
  heap::heap_backup backup{core};
  heap::suspended_peak peak{core};
  heap::residency suspended{core, host, backup, peak};
  heap::pool_registry pools{core, progress, backup, host};
  heap::trimming part{core, flusher, progress, pools, suspended};
  const stream on = new_stream();
  const stream other = new_stream();
  heap::stream_slot slot{};
  heap::stream_slot other_slot{};

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
  kept.for_graphs = true;
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
  low.for_graphs = true;  // so that a trim leaves it alone
  low.suspendable = {.evictable = true, .priority = 1};
  pool_state& high = add_pool(8_MiB, second);
  high.for_graphs = true;
  high.suspendable = {.evictable = true, .priority = 2};
  EXPECT_EQ(part.shrink(14_MiB).value(), 4_MiB);
  EXPECT_THAT(asked(), ElementsAre("flush", "poll"));
  have_pending_work();
  EXPECT_EQ(part.shrink(10_MiB).value(), 6_MiB);
  EXPECT_THAT(asked(), ElementsAre("flush", "poll", "wait", "flush", "poll"));
  EXPECT_EQ(low.where, residence::suspended) << "the lowest priority";
  EXPECT_EQ(high.where, residence::resident);
  high.suspendable->evictable = false;
  EXPECT_EQ(part.shrink(0_B).value(), 0_B);
  EXPECT_EQ(reserved(), 8_MiB) << "nothing more can go";
  have_pending_work();
  machine->fail(driver::call::event_synchronize, 1, driver::CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(code_of(part.shrink(0_B)), errc::device_lost);
}

TEST_F(trimming_test, what_is_suspended_during_the_wait_is_not_released) {
  pool_state& pool = add_pool(8_MiB, first);
  have_pending_work();
  host.on_wait = [&] { pool.where = heap::residence::suspending; };
  EXPECT_EQ(part.empty_cache(pool.id).value(), 0_B);
  EXPECT_EQ(first.released, 0);
  EXPECT_EQ(reserved(), 8_MiB);
  pool.where = heap::residence::resident;
}

TEST_F(trimming_test, empty_cache_waits_and_releases_all) {
  own_pool(4_MiB, own);
  add_pool(8_MiB, first);
  have_pending_work();
  EXPECT_EQ(part.empty_cache().value(), 12_MiB);
  EXPECT_THAT(asked(), ElementsAre("flush", "poll", "wait"));
  EXPECT_EQ(reserved(), 0_B);
}

TEST_F(trimming_test, the_cache_of_one_pool_is_emptied_alone) {
  own_pool(4_MiB, own);
  pool_state& pool = add_pool(8_MiB, first);
  have_pending_work();
  EXPECT_EQ(code_of(part.empty_cache(pool_id{17})), errc::closed);
  pool.where = residence::suspended;
  EXPECT_EQ(part.empty_cache(pool.id).value(), 0_B);
  pool.where = residence::resident;
  pool.of_capture = true;
  EXPECT_EQ(part.empty_cache(pool.id).value(), 0_B);
  pool.of_capture = false;
  EXPECT_THAT(asked(), ElementsAre());
  EXPECT_EQ(part.empty_cache(pool.id).value(), 8_MiB);
  EXPECT_THAT(asked(), ElementsAre("poll", "wait"));
  EXPECT_EQ(first.retired, own.retired + 2) << "once more for each stream than the wait did";
  EXPECT_EQ(reserved(), 4_MiB);
  pool.memory.reset();
  EXPECT_EQ(part.empty_cache(pool.id).value(), 0_B) << "it was never used";
}

TEST_F(trimming_test, a_pool_that_retains_gives_nothing_while_replays_may_be_under_way) {
  pool_state& pool = add_pool(8_MiB, first);
  pool.for_graphs = true;
  {
    const detail::mutex_lock lock{core.mutex_};
    core.order_.pause();  // captures may be under way: nobody waits
  }
  EXPECT_EQ(part.empty_cache(pool.id).value(), 0_B) << "the wait completed nothing";
  EXPECT_EQ(first.released, 0);
  EXPECT_EQ(first.retired, 0);
  {
    const detail::mutex_lock lock{core.mutex_};
    core.order_.resume();
  }
  EXPECT_EQ(part.empty_cache(pool.id).value(), 8_MiB);
  EXPECT_EQ(first.retired, 2) << "what streams freed in a pool of graphs stays theirs until then";
}

TEST_F(trimming_test, a_pool_may_end_while_its_cache_is_emptied) {
  pool_state& pool = add_pool(8_MiB, first);
  const pool_id id = pool.id;
  have_pending_work();
  host.on_wait = [&] {
    core.mutex_.assert_held();
    core.drop_holder(pool);
  };
  EXPECT_EQ(part.empty_cache(id).value(), 8_MiB);
  EXPECT_EQ(first.closed, 1) << "that was all of it";
  const pool_id other = add_pool(8_MiB, second).id;
  have_pending_work();
  host.on_wait = [&] {
    core.mutex_.assert_held();
    core.pools_.pop_back();
  };
  EXPECT_EQ(part.empty_cache(other).value(), 0_B);
}

TEST_F(trimming_test, a_closed_heap_releases_nothing) {
  own_pool(4_MiB, own);
  have_pending_work([&] { core.closed_ = true; });
  EXPECT_EQ(code_of(part.empty_cache()), errc::closed);
  EXPECT_EQ(code_of(part.trim(0_B)), errc::closed);
  EXPECT_EQ(code_of(part.shrink(0_B)), errc::closed);
  EXPECT_EQ(code_of(part.empty_cache()), errc::closed);
  EXPECT_EQ(code_of(part.empty_cache(pool_id{})), errc::closed);
  EXPECT_EQ(own.released, 0);
}

}}  // namespace weir::testing_support
