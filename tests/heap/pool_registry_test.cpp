// SPDX-License-Identifier: Apache-2.0
// Private pools of a bare core: handles, options, and when a pool ends.
#include "heap/pool_registry.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "heap/bare_core.hpp"
#include "heap/counted_store.hpp"
#include "heap/heap_fixture.hpp"

namespace weir::testing_support { namespace {

using heap::block_index;
using heap::pool_state;
using heap::residence;
using ::testing::ElementsAre;

/// Says which block is live. No block waits for streams.
class registry_host final : public heap::pool_registry_host, public heap::stream_progress_host {
 public:
  result<block_index> find_live(const void*) override { return live; }
  void free_waited(block_index, heap::stamp) noexcept override { ADD_FAILURE(); }

  result<block_index> live = errc::foreign_pointer;
};

/// There is one stream.
class pool_registry_test : public heap_test {
 protected:
  pool_registry_test() {
    const detail::mutex_lock lock{core.mutex_};
    slot = core.order_.meet(on, on.id());
  }
  ~pool_registry_test() override { core.closed_ = true; }

  [[nodiscard]] pool_state& state_of(const std::shared_ptr<heap::pool>& handle) {
    const detail::mutex_lock lock{core.mutex_};
    return *core.find_pool(handle->id());
  }
  /// The numbers of all pools.
  [[nodiscard]] std::vector<std::uint32_t> numbers() {
    const detail::mutex_lock lock{core.mutex_};
    std::vector<std::uint32_t> all;
    for (const auto& each : core.pools_) all.push_back(each->id.number());
    return all;
  }
  void give_memory(pool_state& pool, bytes size) {
    const detail::mutex_lock lock{core.mutex_};
    pool.memory = std::make_unique<counted_store>(core.placement_, pool.id, size, record);
  }
  /// The stream freed something, so that whoever polls it marks it.
  void free_on_stream() {
    const detail::mutex_lock lock{core.mutex_};
    static_cast<void>(core.order_.now(slot));
  }
  [[nodiscard]] std::uint64_t marks() {
    const detail::mutex_lock lock{core.mutex_};
    return core.order_.events_recorded();
  }
  void sweep() {
    order::driver_access driver{gpu()};
    const detail::mutex_lock lock{core.mutex_};
    part.sweep(driver);
    EXPECT_FALSE(core.pools_to_sweep_);
  }

  store_record record;
  bare_core core{gpu(), {}};
  registry_host host;
  heap::stream_progress progress{core, host};
  heap::heap_backup backup{core};
  heap::pool_registry part{core, progress, backup, host};
  const stream on = new_stream();
  heap::stream_slot slot{};
};

TEST_F(pool_registry_test, a_pool_is_as_its_options_say) {
  const auto plain = part.create("plain", {}).value();
  EXPECT_EQ(plain->id(), pool_id{1});
  EXPECT_EQ(plain->name(), "plain");
  const pool_state& as_usual = state_of(plain);
  EXPECT_EQ(as_usual.name, "plain");
  EXPECT_EQ(as_usual.holders, 1u);
  EXPECT_FALSE(as_usual.exportable || as_usual.for_graphs || as_usual.segments);
  EXPECT_TRUE(as_usual.splits && as_usual.takes_requests);
  EXPECT_FALSE(as_usual.suspendable);
  const auto other =
      part.create("other",
                  {.exportable = true, .for_graphs = true, .suspendable = {{.priority = 3}}})
          .value();
  EXPECT_EQ(other->id(), pool_id{2});
  EXPECT_TRUE(state_of(other).exportable && state_of(other).for_graphs);
  EXPECT_EQ(state_of(other).suspendable->priority, 3);
  const auto whole = part.create("whole", {.one_block_per_segment = true}).value();
  EXPECT_TRUE(state_of(whole).segments) << "what is not divided comes in segments";
  EXPECT_FALSE(state_of(whole).splits);
  EXPECT_EQ(code_of(part.create("both", {.exportable = true, .segments = true})),
            errc::not_supported);
  EXPECT_THAT(numbers(), ElementsAre(0, 1, 2, 3));
}

TEST_F(pool_registry_test, a_pool_ends_with_its_last_holder) {
  const auto pool = part.create("some", {}).value();
  const auto shared = part.share(pool->id());
  ASSERT_NE(shared, nullptr);
  EXPECT_EQ(shared->id(), pool->id());
  EXPECT_EQ(shared->name(), "some");
  EXPECT_EQ(state_of(pool).holders, 2u);
  free_on_stream();
  part.release(pool->id());
  EXPECT_THAT(numbers(), ElementsAre(0, 1));
  EXPECT_EQ(marks(), 0u) << "nothing is over";
  part.release(pool->id());
  EXPECT_THAT(numbers(), ElementsAre(0));
  EXPECT_EQ(marks(), 1u) << "the stream is polled";
  EXPECT_EQ(part.share(pool->id()), nullptr);
  part.release(pool->id());
}

TEST_F(pool_registry_test, only_a_pool_that_is_held_helps_out) {
  const auto pool = part.create("some", {}).value();
  ASSERT_TRUE(part.set_fallback(pool->id(), true));
  EXPECT_TRUE(state_of(pool).is_fallback);
  ASSERT_TRUE(part.set_fallback(pool->id(), false));
  EXPECT_FALSE(state_of(pool).is_fallback);
  EXPECT_EQ(code_of(part.set_fallback(pool_id{7}, true)), errc::closed);
  state_of(pool).blocks = 1;
  part.release(pool->id());
  EXPECT_EQ(code_of(part.set_fallback(pool->id(), true)), errc::closed);
}

TEST_F(pool_registry_test, memory_goes_before_its_pool) {
  const auto pool = part.create("some", {}).value();
  give_memory(state_of(pool), 6_MiB);
  part.release(pool->id());
  EXPECT_EQ(record.retired, 1) << "for the one stream";
  EXPECT_EQ(record.released, 1);
  EXPECT_EQ(record.closed, 1);
  EXPECT_THAT(numbers(), ElementsAre(0));
  const detail::mutex_lock lock{core.mutex_};
  EXPECT_EQ(core.placement_.reserved, 0u);
}

TEST_F(pool_registry_test, a_pool_stays_while_anything_of_it_is_in_use) {
  const auto pool = part.create("some", {}).value();
  pool_state& state = state_of(pool);
  give_memory(state, 6_MiB);
  state.blocks = 1;
  part.release(pool->id());
  sweep();
  EXPECT_EQ(record.released, 0) << "a block is out";
  state.blocks = 0;
  state.where = residence::resuming;
  sweep();
  EXPECT_EQ(record.released, 0) << "it is on its way";
  state.where = residence::resident;
  free_on_stream();
  machine->fail(driver::call::event_query, 1, driver::CUDA_ERROR_ILLEGAL_ADDRESS);
  sweep();
  EXPECT_EQ(record.released, 0) << "no stream could be asked";
  record.refuses = errc::driver_error;
  sweep();
  EXPECT_EQ(record.released, 1);
  EXPECT_EQ(record.closed, 0) << "its memory could not go";
  record.refuses.reset();
  sweep();
  EXPECT_EQ(record.closed, 1);
  EXPECT_THAT(numbers(), ElementsAre(0));
}

TEST_F(pool_registry_test, a_pool_of_graphs_stays_until_replays_are_done) {
  const auto pool = part.create("graphs", {.for_graphs = true}).value();
  pool_state& state = state_of(pool);
  {
    const context_scope bound{gpu()};
    ASSERT_TRUE(machine->launch(on.handle(), "replay", {}));
  }
  {
    const detail::mutex_lock lock{core.mutex_};
    EXPECT_TRUE(core.captures_.keeps_memory(state));
    EXPECT_FALSE(state.may_release(core.order_));
  }
  part.release(pool->id());
  ASSERT_EQ(state.guards.size(), 1u);
  sweep();
  EXPECT_THAT(numbers(), ElementsAre(0, 1));
  machine->run_until_idle();
  sweep();
  EXPECT_THAT(numbers(), ElementsAre(0));
}

TEST_F(pool_registry_test, a_suspended_pool_goes_with_its_contents) {
  const auto pool = part.create("some", {}).value();
  pool_state& state = state_of(pool);
  give_memory(state, 6_MiB);
  state.where = residence::suspended;
  state.saved = {{1 << 20, backup.of(host_memory_kind::pageable).take_whole(4096).value()}};
  state.saved_in = host_memory_kind::pageable;
  part.release(pool->id());
  EXPECT_EQ(record.released, 0) << "nothing of it is in use";
  EXPECT_EQ(record.closed, 1);
  EXPECT_THAT(numbers(), ElementsAre(0));
  EXPECT_EQ(backup.trim().value(), 32_MiB);
}

TEST_F(pool_registry_test, a_request_keeps_its_pool_while_others_end) {
  const auto asking = part.create("asking", {}).value();
  const auto other = part.create("other", {}).value();
  state_of(other).blocks = state_of(asking).blocks = 1;
  part.release(asking->id());
  part.release(other->id());
  state_of(other).blocks = state_of(asking).blocks = 0;
  order::driver_access driver{gpu()};
  {
    const detail::mutex_lock lock{core.mutex_};
    ASSERT_TRUE(part.sweep(*core.find_pool(asking->id()), driver));
    EXPECT_TRUE(core.pools_to_sweep_) << "for the pool that was kept";
  }
  EXPECT_THAT(numbers(), ElementsAre(0, 1));
  sweep();
  EXPECT_THAT(numbers(), ElementsAre(0));
}

TEST_F(pool_registry_test, handles_are_told_of_exportable_memory_alone) {
  const auto plain = part.create("plain", {}).value();
  const auto exported = part.create("exported", {.exportable = true}).value();
  give_memory(state_of(exported), 2_MiB);
  EXPECT_EQ(code_of(part.handles_under(nullptr)), errc::foreign_pointer);
  block_index index = 0;
  {
    const detail::mutex_lock lock{core.mutex_};
    ASSERT_TRUE(core.blocks_.prepare(1));
    index = core.blocks_.make();
    core.blocks_[index].account = core.accounts_.number_of(exported->id(), {}).value();
  }
  host.live = index;
  EXPECT_EQ(part.handles_under(nullptr)->offset, bytes{index});
  EXPECT_TRUE(state_of(exported).handles_seen);
  EXPECT_TRUE(part.handles_under(nullptr, exported->id()));
  EXPECT_EQ(code_of(part.handles_under(nullptr, plain->id())), errc::foreign_pointer);
  state_of(exported).where = residence::suspended;
  EXPECT_EQ(code_of(part.handles_under(nullptr)), errc::suspended);
  state_of(exported).exportable = false;
  EXPECT_EQ(code_of(part.handles_under(nullptr)), errc::not_supported);
}

TEST_F(pool_registry_test, of_a_closed_heap_there_are_no_pools) {
  const auto pool = part.create("some", {}).value();
  core.closed_ = true;
  EXPECT_EQ(code_of(part.create("other", {})), errc::closed);
  EXPECT_EQ(part.share(pool->id()), nullptr);
  EXPECT_EQ(code_of(part.set_fallback(pool->id(), true)), errc::closed);
  EXPECT_EQ(code_of(part.handles_under(nullptr)), errc::closed);
  part.release(pool->id());
  EXPECT_THAT(numbers(), ElementsAre(0, 1));
}

}}  // namespace weir::testing_support
