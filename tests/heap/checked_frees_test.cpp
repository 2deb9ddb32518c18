// SPDX-License-Identifier: Apache-2.0
// Checked frees over a bare core, with a store that finds damage where a test says.
#include "heap/checked_frees.hpp"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "heap/bare_core.hpp"
#include "heap/heap_fixture.hpp"
#include "heap/inspector.hpp"

namespace weir::testing_support { namespace {

using heap::block;
using heap::block_index;
using heap::block_kind;
using heap::no_block;
using heap::pool_state;
using heap::stream_slot;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class inspecting_store final : public placement::backing_store {
 public:
  explicit inspecting_store(placement::placement_context& shared)
      : backing_store{shared, pool_id{}} {}

  [[nodiscard]] bool inspects() const noexcept override { return true; }
  result<void> inspect(const context_scope& /*bound*/) override {
    ++inspected;
    for (const placement::damage& each : std::exchange(found, {})) shared_.damaged->on_damage(each);
    if (trouble) return *trouble;
    return {};
  }

  block_index fit(const placement::request&) override { return no_block; }
  bool prefers_growth(const placement::request&) const override { return false; }
  result<block_index> rearrange(const placement::request&, reach, const context_scope&) override {
    return no_block;
  }
  result<block_index> grow(const placement::request&, const context_scope&) override {
    return no_block;
  }
  result<bytes> release(bytes, const context_scope&) override { return bytes{}; }
  void free(block_index, heap::stamp) noexcept override {}
  void retire(stream_slot) noexcept override {}
  result<void> grant(const vmm::access&, const context_scope&) override { return {}; }
  result<void> close(const context_scope&) override { return {}; }
  std::uint64_t bound_to(stream_slot) const noexcept override { return 0; }
  std::uint64_t longest_fit(stream_slot) const noexcept override { return 0; }
  std::uint64_t fragments() const noexcept override { return 0; }
  void describe(pool_snapshot&) const override {}
  block_index block_over(std::uint64_t) const noexcept override { return no_block; }
  std::size_t footprint() const noexcept override { return 0; }
  std::string check() const override { return {}; }

  int inspected = 0;
  std::vector<placement::damage> found;
  std::optional<errc> trouble;
};

class inspecting_host final : public heap::stream_progress_host,
                              public heap::inspector_host,
                              public heap::pool_registry_host {
 public:
  void free_waited(block_index index, heap::stamp /*freed*/) noexcept override {
    freed.push_back(index);
  }

  result<heap::identified_stream> identify(const stream_ref&) override { return errc::bad_stream; }
  void settle_caches() noexcept override {}
  result<block_index> find_live(const void*) override { return errc::double_free; }
  const pool_state* suspendable_pool(tag) const noexcept override { return nullptr; }

  std::vector<block_index> freed;
};

class checked_frees_test : public heap_test {
 protected:
  checked_frees_test() {
    const detail::mutex_lock lock{core.mutex_};
    EXPECT_TRUE(core.blocks_.prepare(10));
    static_cast<void>(core.accounts_.number_of(pool_id{}, tag{}).value());
    auto made = std::make_unique<inspecting_store>(core.placement_);
    store = made.get();
    core.pools_.front()->memory = std::move(made);
    slot = core.order_.meet(on, on.id());
    other_slot = core.order_.meet(other, other.id());
  }
  void work_on(const stream& busy) {
    const context_scope bound{gpu()};
    ASSERT_TRUE(machine->launch(busy.handle(), "kernel", {}));
  }

  // With the lock.

  [[nodiscard]] block_index live_block() {
    core.mutex_.assert_held();
    const block_index made = core.blocks_.make();
    block& record = core.blocks_[made];
    record.units = 1;
    record.address = std::uint64_t{made} << 20;
    record.stream = slot;
    record.become(block_kind::live);
    record.account = 0;
    record.out = {};
    return made;
  }
  [[nodiscard]] result<void> free(block_index index) {
    core.mutex_.assert_held();
    core.pending_.prepare(index);
    frees.prepare();
    return frees.free(index, slot, driver);
  }
  [[nodiscard]] placement::damage damage_of(block_index index) const {
    return {.block = core.blocks_[index].address, .requested = 512, .count = 1, .seen_count = 1};
  }

  bare_core core{gpu(), {}};
  inspecting_host host;
  heap::stream_progress progress{core, host};
  heap::heap_backup backup{core};
  heap::suspended_peak peak{core};
  heap::inspector inside{core, host, peak, backup, 0};
  heap::pool_registry pools{core, progress, backup, host};
  heap::checked_frees frees{core, progress, inside, pools};
  order::driver_access driver{gpu()};
  inspecting_store* store = nullptr;
  const stream on = new_stream();
  const stream other = new_stream();
  stream_slot slot{};
  stream_slot other_slot{};
};

TEST_F(checked_frees_test, a_block_is_inspected_once_its_streams_are_done) {
  const detail::mutex_lock lock{core.mutex_};
  core.add_pool("over").holders = 0;
  const block_index index = live_block();
  core.pending_.record(index, other_slot);
  core.blocks_[index].out.home = heap::block::recorded;
  work_on(on);
  work_on(other);
  ASSERT_TRUE(free(index));
  EXPECT_TRUE(on.is_complete().value());
  EXPECT_TRUE(other.is_complete().value());
  EXPECT_EQ(store->inspected, 1);
  EXPECT_THAT(host.freed, ElementsAre(index));
  EXPECT_FALSE(core.blocks_[index].is_recorded());
  EXPECT_TRUE(core.pending_.empty());
  EXPECT_EQ(core.pools_.size(), 2u) << "nobody said that a pool is over";
}

TEST_F(checked_frees_test, damage_of_the_block_is_the_error_of_its_free) {
  const detail::mutex_lock lock{core.mutex_};
  const block_index index = live_block();
  const block_index before = live_block();
  store->found = {damage_of(index), damage_of(index), damage_of(before)};
  EXPECT_EQ(code_of(free(index)), errc::memory_damaged);
  const auto told = heard.take();
  ASSERT_EQ(told.size(), 2u) << "its other end, and the other block";
  EXPECT_EQ(told[0].code(), errc::memory_damaged);
  EXPECT_THAT(host.freed, ElementsAre(index)) << "it is freed all the same";
}

TEST_F(checked_frees_test, a_use_after_the_free_is_no_error_of_the_free) {
  const detail::mutex_lock lock{core.mutex_};
  const block_index index = live_block();
  store->found = {damage_of(index)};
  store->found[0].after_free = true;
  EXPECT_TRUE(free(index));
  EXPECT_EQ(heard.take().size(), 1u);
}

TEST_F(checked_frees_test, what_cannot_be_waited_for_is_inspected_later) {
  const detail::mutex_lock lock{core.mutex_};
  const block_index index = live_block();
  work_on(on);
  core.order_.pause();  // captures may be under way
  ASSERT_TRUE(free(index));
  EXPECT_THAT(host.freed, IsEmpty());
  EXPECT_EQ(core.pending_.all().size(), 1u);
  core.order_.resume();
  machine->run_until_idle();
  ASSERT_TRUE(frees.inspect_freed(driver)) << "marks the streams";
  machine->run_until_idle();
  ASSERT_TRUE(frees.inspect_freed(driver));
  EXPECT_THAT(host.freed, ElementsAre(index));
}

TEST_F(checked_frees_test, trouble_of_the_inspection_is_told_where_it_is_final) {
  const detail::mutex_lock lock{core.mutex_};
  store->trouble = errc::out_of_memory;
  EXPECT_TRUE(free(live_block()));
  EXPECT_EQ(code_of(frees.inspect_freed(driver)), errc::out_of_memory);
  store->trouble = errc::device_lost;
  EXPECT_EQ(code_of(free(live_block())), errc::device_lost);
}

TEST_F(checked_frees_test, a_heap_that_is_closed_meanwhile_is_told_so) {
  const detail::mutex_lock lock{core.mutex_};
  const block_index index = live_block();
  work_on(on);
  auto held_up = hold(on);
  std::thread closing{[&] {
    const detail::mutex_lock held{core.mutex_};  // free while the other thread waits
    core.closed_ = true;
    held_up.release();
  }};
  EXPECT_EQ(code_of(free(index)), errc::closed);
  closing.join();
  EXPECT_EQ(store->inspected, 0);
}

TEST_F(checked_frees_test, pools_that_lost_their_last_block_are_swept) {
  const detail::mutex_lock lock{core.mutex_};
  core.add_pool("over").holders = 0;
  core.pools_to_sweep_ = true;
  ASSERT_TRUE(free(live_block()));
  EXPECT_EQ(core.pools_.size(), 1u);
}

TEST_F(checked_frees_test, without_it_nobody_is_told_of_damage) {
  bare_core another{gpu(), {}};
  const detail::mutex_lock lock{another.mutex_};
  {
    const heap::checked_frees some{another, progress, inside, pools};
    EXPECT_NE(another.placement_.damaged, nullptr);
  }
  EXPECT_EQ(another.placement_.damaged, nullptr);
}

}}  // namespace weir::testing_support
