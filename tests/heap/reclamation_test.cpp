// SPDX-License-Identifier: Apache-2.0
// Reclamation over a bare core with real stores, and a host that notes what becomes free.
#include "heap/reclamation.hpp"

#include <utility>
#include <vector>

#include "heap/bare_core.hpp"
#include "heap/graph_fixture.hpp"

namespace weir::testing_support { namespace {

using heap::block_index;
using heap::block_kind;
using heap::no_block;
using heap::pool_state;
using heap::request;
using heap::stream_slot;
using heap::thread_cache;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class reclaiming_host final : public heap::cache_flusher_host,
                              public heap::stream_progress_host,
                              public heap::reclamation_host,
                              public heap::inspector_host,
                              public heap::pool_registry_host,
                              public heap::capture_pools_host {
 public:
  void free_to_store(block_index index, heap::stamp) noexcept override { stored.push_back(index); }
  void report_second_free(const heap::block&) noexcept override {}
  void free_waited(block_index index, heap::stamp freed) noexcept override {
    waited.push_back(index);
    last = freed;
  }

  void update_limits() noexcept override { ++limits_updated; }

  result<heap::identified_stream> identify(const stream_ref&) override { return errc::bad_stream; }
  void settle_caches() noexcept override {}
  result<block_index> find_live(const void*) override { return errc::double_free; }
  const pool_state* suspendable_pool(tag) const noexcept override { return nullptr; }

  std::vector<block_index> stored;
  std::vector<block_index> waited;
  heap::stamp last;
  int limits_updated = 0;
};

/// 1 GiB may be reserved. Two pools: the allocator's own, and another one.
class reclamation_test : public graph_test {
 protected:
  reclamation_test() {
    heap::asymmetric_barrier::prepare();
    const detail::mutex_lock lock{core.mutex_};
    static_cast<void>(core.accounts_.number_of(pool_id{}, tag{}).value());
    own = core.pools_.front().get();
    other = &core.add_pool("other");
    slot = core.order_.meet(on, on.id());
    other_slot = core.order_.meet(elsewhere, elsewhere.id());
  }
  void TearDown() override {
    {
      const detail::mutex_lock lock{core.mutex_};
      for (const auto& each : core.pools_)
        if (each->memory != nullptr) {
          EXPECT_TRUE(each->memory->close(driver.enter()));
        }
    }
    graph_test::TearDown();
  }
  [[nodiscard]] request request_for(bytes size) const {
    return {.units = static_cast<std::uint32_t>(size.count() / heap::unit),
            .alignment = 1,
            .stream = slot};
  }

  // With the lock.

  /// A block of the pool, from new memory.
  [[nodiscard]] block_index grow(pool_state& pool, bytes size) {
    core.mutex_.assert_held();
    EXPECT_TRUE(part.prepare(pool, size, driver));
    pool.memory->prepare_free(slot);
    return pool.memory->grow(request_for(size), driver.enter()).value();
  }
  /// A pool that nobody holds, which the next sweep ends.
  void have_ended_pool() {
    core.mutex_.assert_held();
    core.add_pool("over").holders = 0;
  }
  [[nodiscard]] bool was_swept() {
    core.mutex_.assert_held();
    return core.pools_.size() == 2;
  }
  /// The pool has so much free memory, which any stream may use.
  void have_free(pool_state& pool, bytes size) {
    core.mutex_.assert_held();
    const block_index index = grow(pool, size);
    pool.memory->free(index, {});
  }
  /// A block of the allocator's own pool that `on` freed while the other stream uses it.
  [[nodiscard]] block_index add_pending(bytes size) {
    core.mutex_.assert_held();
    const block_index index = grow(*own, size);
    core.blocks_[index].account = 0;
    core.blocks_[index].become(block_kind::pending);
    core.pending_.prepare(index);
    const context_scope bound{gpu()};
    EXPECT_TRUE(machine->launch(elsewhere.handle(), "kernel", {}));
    core.pending_.add({index, core.order_.now(slot), {core.order_.now(other_slot)}});
    return index;
  }

  bare_core core{gpu(), {.limit = 1_GiB, .thread_cache = 1_MiB}};
  reclaiming_host host;
  heap::cache_flusher flusher{core, host};
  heap::stream_progress progress{core, host};
  heap::heap_callbacks callbacks{core};
  heap::heap_backup backup{core};
  heap::suspended_peak peak{core};
  heap::inspector inside{core, host, peak, backup, 0};
  heap::pool_registry pools{core, progress, backup, host};
  heap::capture_pools captures{core, progress, host};
  heap::reclamation part{core,  flusher,  progress, callbacks, residency,
                         pools, captures, inside,   host};
  heap::residency residency{core, part, backup, peak};
  order::driver_access driver{gpu()};
  const stream on = new_stream();
  const stream elsewhere = new_stream();
  pool_state* own = nullptr;
  pool_state* other = nullptr;
  stream_slot slot{};
  stream_slot other_slot{};
};

TEST_F(reclamation_test, a_pool_has_a_store_once_it_is_prepared) {
  const detail::mutex_lock lock{core.mutex_};
  EXPECT_EQ(own->memory, nullptr);
  EXPECT_EQ(part.prepare(*own, 1_MiB, driver).value(), 0u);
  const auto* const made = own->memory.get();
  ASSERT_NE(made, nullptr);
  EXPECT_EQ(part.prepare(*own, 1_MiB, driver).value(), 0u);
  EXPECT_EQ(own->memory.get(), made);
  EXPECT_TRUE(heap::is_private(part.prepare(*other, 1_MiB, driver).value()));
}

TEST_F(reclamation_test, a_store_is_what_its_pool_is_for) {
  const detail::mutex_lock lock{core.mutex_};
  other->exportable = true;
  EXPECT_TRUE(part.traits_of(*other).exportable);
  EXPECT_TRUE(part.traits_of(*other).one_slot_handles);
  EXPECT_TRUE(part.traits_of(*other).moves);
  EXPECT_FALSE(part.traits_of(*own).exportable);
  other->for_graphs = true;
  EXPECT_FALSE(part.traits_of(*other).moves);
  EXPECT_TRUE(part.traits_of(*other).takes_addresses);
  EXPECT_TRUE(part.traits_of(*other).of_graphs);
}

TEST_F(reclamation_test, beside_the_bins_a_cache_is_flushed) {
  const detail::mutex_lock lock{core.mutex_};
  ASSERT_TRUE(core.blocks_.prepare(10));
  thread_cache& mine = *core.caches_.open();
  ASSERT_TRUE(mine.make_room(0));
  ASSERT_NE(mine.add_bins(on.id(), slot), nullptr);
  const auto record = [&](std::uint32_t units) {
    core.mutex_.assert_held();
    const block_index made = core.blocks_.make();
    core.blocks_[made].units = units;
    core.blocks_[made].stream = slot;
    core.blocks_[made].account = 0;
    core.blocks_[made].out = {};
    core.blocks_[made].become(heap::block_kind::live);
    core.accounts_.allocated(0, units * heap::unit, units * heap::unit);
    return made;
  };
  const auto given = [&](std::uint32_t units) {
    core.mutex_.assert_held();
    const block_index made = record(units);
    EXPECT_TRUE(heap::claim(core.blocks_[made], core.blocks_[made].address));
    core.blocks_[made].out.given_on = static_cast<std::uint16_t>(slot);
    return made;
  };
  const block_index unplaced = given(1);
  mine.leave_unplaced(unplaced, core.blocks_[unplaced]);
  const block_index remote = given(2);
  ASSERT_TRUE(mine.push_remote(remote, core.blocks_[remote], 2));
  const block_index large = record(4096);
  mine.large = large;
  mine.large_units = 4096;
  part.flush_unbinned(mine);
  EXPECT_THAT(host.stored, ElementsAre(unplaced, large));
  EXPECT_EQ(mine.bins_of(slot)->heads[2], remote);
  host.stored.clear();
  EXPECT_TRUE(part.flush(mine));
  EXPECT_THAT(host.stored, ElementsAre(remote));
  EXPECT_FALSE(part.flush_others(&mine));
}

TEST_F(reclamation_test, a_pool_that_helps_out_gives_what_it_has_free) {
  const detail::mutex_lock lock{core.mutex_};
  have_free(*other, 4_MiB);
  EXPECT_EQ(part.fit_in_fallback(request_for(4_MiB)).value().pool, nullptr);
  other->is_fallback = true;
  const auto found = part.fit_in_fallback(request_for(4_MiB)).value();
  EXPECT_EQ(found.pool, other);
  EXPECT_EQ(core.accounts_.pool_of(found.account), other->id);
  ASSERT_NE(found.block, no_block);
  EXPECT_EQ(part.fit_in_fallback(request_for(8_MiB)).value().pool, nullptr);
  other->memory->free(found.block, {});
  other->where = heap::residence::suspended;
  EXPECT_EQ(part.fit_in_fallback(request_for(4_MiB)).value().pool, nullptr);
  other->where = heap::residence::resident;
}

TEST_F(reclamation_test, others_release_what_they_may) {
  const detail::mutex_lock lock{core.mutex_};
  have_free(*own, 4_MiB);
  have_free(*other, 4_MiB);
  other->where = heap::residence::suspended;
  EXPECT_EQ(part.release_from_others(*own, 2_MiB, driver).value(), 0_B);
  other->where = heap::residence::resident;
  EXPECT_EQ(part.release_from_others(*own, 2_MiB, driver).value(), 2_MiB);
  EXPECT_EQ(other->reserved(), (2_MiB).count());
  EXPECT_EQ(own->reserved(), (4_MiB).count());
  EXPECT_EQ(part.release_own(*own, driver).value(), 4_MiB);
  have_ended_pool();
  EXPECT_TRUE(part.reclaim_cached(*own, 1_MiB, driver).value());
  EXPECT_EQ(other->reserved(), 0u);
  EXPECT_TRUE(was_swept());
  have_ended_pool();
  EXPECT_FALSE(part.reclaim_cached(*own, 1_MiB, driver).value());
  EXPECT_TRUE(was_swept());
  EXPECT_FALSE(part.await_releases(*own).value());
}

TEST_F(reclamation_test, what_cannot_help_is_not_tried) {
  const detail::mutex_lock lock{core.mutex_};
  have_free(*other, 200_MiB);
  core.placement_.reserved_limit = (200_MiB).count();
  const auto helps = [&](bytes size) {
    return part.release_can_help(request_for(size), *own, driver).value();
  };
  EXPECT_TRUE(helps(200_MiB));
  EXPECT_FALSE(helps(300_MiB)) << "beyond the limit";
  other->of_capture = true;
  EXPECT_FALSE(helps(200_MiB)) << "the other pool keeps what it has";
  EXPECT_FALSE(part.wait_can_help(request_for(200_MiB), *own, driver).value());
  core.accounts_.allocated(0, (200_MiB).count(), (200_MiB).count());
  core.accounts_.pending(0, (200_MiB).count(), (200_MiB).count());
  EXPECT_TRUE(part.wait_can_help(request_for(200_MiB), *own, driver).value());
}

TEST_F(reclamation_test, pending_blocks_are_taken_behind_waits) {
  const detail::mutex_lock lock{core.mutex_};
  const block_index small = add_pending(2_MiB);
  const block_index large = add_pending(6_MiB);
  EXPECT_TRUE(part.any_pending_like(request_for(2_MiB), *own));
  EXPECT_FALSE(part.any_pending_like(request_for(4_MiB), *own));
  EXPECT_FALSE(part.any_pending_like(request_for(2_MiB), *other));
  EXPECT_FALSE(part.take_pending_behind_waits(request_for(8_MiB), *own, driver).value());
  static_cast<void>(progress.poll_streams(driver, heap::no_stream).value());
  const auto waits = core.order_.waits_queued();
  EXPECT_TRUE(part.take_pending_behind_waits(request_for(1_MiB), *own, driver).value());
  EXPECT_THAT(host.waited, ElementsAre(small)) << "the smallest that is large enough";
  EXPECT_EQ(host.last, core.order_.now(slot));
  EXPECT_GT(core.order_.waits_queued(), waits);
  EXPECT_TRUE(part.take_pending_behind_waits(request_for(1_MiB), *own, driver).value());
  EXPECT_THAT(host.waited, ElementsAre(small, large));
  for (const block_index each : host.waited) own->memory->free(each, {});
}

TEST_F(reclamation_test, the_host_waits_for_the_oldest_work_and_no_longer_than_its_bound) {
  const detail::mutex_lock lock{core.mutex_};
  have_ended_pool();
  heap::wait_bound bound;
  EXPECT_FALSE(part.wait_for_oldest(*own, bound, driver).value()) << "nothing is bound";
  for (int i = 0; i < heap::wait_bound::most_cuts; ++i) {
    const block_index index = add_pending(2_MiB);
    EXPECT_TRUE(part.wait_for_oldest(*own, bound, driver).value());
    static_cast<void>(part.wait_for_oldest(*own, bound, driver).value());
    ASSERT_THAT(std::exchange(host.waited, {}), ElementsAre(index));
    own->memory->free(index, {});
  }
  EXPECT_FALSE(was_swept());
}

TEST_F(reclamation_test, a_capture_has_a_pool_and_the_end_of_its_graph_is_waited_for) {
  const stream captured = new_stream();
  begin(captured);
  heap::wait_bound bound;
  driver::CUgraph graph = nullptr;
  {
    const detail::mutex_lock lock{core.mutex_};
    const stream_slot met = core.order_.meet(captured, captured.id());
    EXPECT_TRUE(part.capture_pool(captured, met, driver).value()->of_capture);
    graph = end(captured);
    const auto waits = machine->calls(driver::call::mem_free);
    EXPECT_FALSE(part.wait_for_oldest(*own, bound, driver).value()) << "the graph is there";
    EXPECT_EQ(machine->calls(driver::call::mem_free), waits + 1) << "for all work";
    EXPECT_FALSE(part.wait_for_oldest(*own, bound, driver).value());
    EXPECT_EQ(machine->calls(driver::call::mem_free), waits + 1) << "it waited before";
  }
  destroy(graph);
  machine->run_until_idle();
  const detail::mutex_lock lock{core.mutex_};
  EXPECT_TRUE(part.wait_for_oldest(*own, bound, driver).value());
}

TEST_F(reclamation_test, what_callbacks_freed_is_noticed) {
  {
    const detail::mutex_lock lock{core.mutex_};
    EXPECT_FALSE(part.ask_callbacks(*own, nullptr, 1_MiB).value().asked);
    EXPECT_FALSE(part.ask_before_growth(*own, 1_MiB).value());
  }
  bool frees = false;
  bool claims = false;
  ASSERT_NE(callbacks.add([&](bytes) {
    const detail::mutex_lock lock{core.mutex_};
    if (frees) core.accounts_.allocated(0, 512, 512);
    if (frees) core.accounts_.freed(0, 512, 512);
    return claims;
  }),
            0u);
  const detail::mutex_lock lock{core.mutex_};
  auto answer = part.ask_callbacks(*own, nullptr, 1_MiB).value();
  EXPECT_TRUE(answer.asked);
  EXPECT_FALSE(answer.claimed);
  EXPECT_FALSE(answer.freed);
  frees = true;
  answer = part.ask_callbacks(*own, nullptr, 1_MiB).value();
  EXPECT_FALSE(answer.claimed);
  EXPECT_TRUE(answer.freed);
  frees = false;
  claims = true;
  answer = part.ask_callbacks(*own, nullptr, 1_MiB).value();
  EXPECT_TRUE(answer.claimed);
  EXPECT_FALSE(answer.freed);
}

TEST_F(reclamation_test, completed_work_is_retired_and_pools_are_swept_where_that_is_due) {
  const detail::mutex_lock lock{core.mutex_};
  const block_index index = add_pending(2_MiB);
  static_cast<void>(part.retire_completed(slot, *own, driver).value());
  EXPECT_THAT(host.waited, IsEmpty());
  have_ended_pool();
  machine->run_until_idle();
  core.pools_to_sweep_ = true;
  part.retire_pending(driver);
  EXPECT_THAT(host.waited, ElementsAre(index));
  EXPECT_FALSE(was_swept());
  static_cast<void>(part.retire_completed(slot, *own, driver).value());
  EXPECT_TRUE(was_swept());
  own->memory->free(index, {});
}

TEST_F(reclamation_test, of_a_closed_heap_nothing_is_released) {
  const detail::mutex_lock lock{core.mutex_};
  have_free(*own, 2_MiB);
  core.closed_ = true;
  EXPECT_EQ(code_of(part.release_own(*own, driver)), errc::closed);
  EXPECT_EQ(code_of(part.await_releases(*own)), errc::closed);
}

}}  // namespace weir::testing_support
