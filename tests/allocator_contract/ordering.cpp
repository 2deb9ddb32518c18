// SPDX-License-Identifier: Apache-2.0
// Contract of the allocator: memory passes from stream to stream only behind the work that used it.
#include "allocator_contract/allocator_test.hpp"

namespace weir::testing_support { namespace {

class ordering : public allocator_test {
 protected:
  /// Takes and fills `count` blocks of a size on a lane: one of them lies where a block was that
  /// was given away too early.
  std::vector<filled_block> crowd(bytes size, const lane& on, int count = 6) {
    std::vector<filled_block> made;
    for (int i = 0; i < count; ++i) made.push_back(make(size, on));
    return made;
  }
  /// Lets the lane's work happen if it can: it may have to wait for work that is held.
  void let_run(const lane& which) { static_cast<void>(stays_busy(which.handle())); }
  void finish_all(const std::vector<filled_block>& blocks, const lane& on) {
    for (const auto& each : blocks) finish(each, on);
  }
};
WEIR_ALLOCATOR_CONTRACT(ordering);

const bytes sizes[] = {8_KiB, 700_KiB, 4_MiB};

TEST_P(ordering, a_stream_gets_back_at_once_what_it_freed) {
  lane& on = new_lane();
  for (const bytes size : sizes) {
    finish(make(size, on), on);  // the memory is there
    WEIR_OK(cu->ctx_synchronize());
    const auto busy = occupy(on.handle());
    const bytes reserved = memory().stats().reserved.current;
    for (int i = 0; i < 10; ++i) finish(make(size, on), on);
    EXPECT_EQ(memory().stats().reserved.current, reserved);
    EXPECT_EQ(memory().stats().waits, 0U);
    expect_books();
  }
}

TEST_P(ordering, another_stream_gets_it_only_behind_the_work) {
  lane& first = new_lane();
  lane& second = new_lane();
  for (const bytes size : sizes) {
    const filled_block block = make(size, first);
    WEIR_OK(cu->ctx_synchronize());
    auto busy = occupy(first.handle());
    // The write happens late. Should it land in the second stream's memory, that shows.
    first.fill(block.memory, block.size, new_value());
    memory().deallocate(block.memory, first);
    const auto others = crowd(size, second);
    let_run(second);
    busy->finish();
    EXPECT_TRUE(first.stream().synchronize());
    finish_all(others, second);
    expect_books();
  }
}

TEST_P(ordering, a_recorded_stream_keeps_the_block) {
  lane& owner = new_lane();
  lane& reader = new_lane();
  for (const bytes size : sizes) {
    const filled_block block = make(size, owner);
    WEIR_OK(cu->ctx_synchronize());
    auto busy = occupy(reader.handle());
    reader.check(block.memory, block.size, block.value);
    EXPECT_TRUE(memory().record_stream(block.memory, reader));
    memory().deallocate(block.memory, owner);
    expect_books();
    const auto others = crowd(size, owner);
    let_run(owner);
    busy->finish();
    finish_all(others, owner);
    EXPECT_TRUE(reader.stream().synchronize());
  }
}

/// A table goes out on one stream and comes back on another, into what a third one gets meanwhile.
TEST_P(ordering, a_stream_that_waited_before_the_request_may_use_the_block) {
  lane& asking = new_lane();
  lane& out = new_lane();
  lane& back = new_lane();
  for (const bytes size : {700_KiB, 4_MiB, 64_MiB}) {
    const filled_block table = make(size, asking);
    out.wait_for(asking);
    auto busy = occupy(out.handle());
    out.check(table.memory, table.size, table.value);
    EXPECT_TRUE(memory().record_stream(table.memory, out));
    memory().deallocate(table.memory, asking);
    back.wait_for(asking);
    const filled_block again{memory().allocate(size, asking), size, new_value()};
    back.fill(again.memory, again.size, again.value);
    EXPECT_TRUE(memory().record_stream(again.memory, back));
    let_run(back);
    busy->finish();
    asking.wait_for(back);
    finish(again, asking);
    EXPECT_TRUE(out.stream().synchronize());
    expect_books();
  }
}

TEST_P(ordering, a_block_freed_on_another_stream_is_that_streams) {
  lane& owner = new_lane();
  lane& reader = new_lane();
  for (const bytes size : sizes) {
    const filled_block block = make(size, owner);
    WEIR_OK(cu->ctx_synchronize());
    auto busy = occupy(reader.handle());
    finish(block, reader);
    expect_books();
    const auto others = crowd(size, owner);
    let_run(owner);
    busy->finish();
    finish_all(others, owner);
    EXPECT_TRUE(reader.stream().synchronize());
  }
}

TEST_P(ordering, without_a_stream_a_block_is_freed_on_its_own) {
  lane& owner = new_lane();
  lane& other = new_lane();
  const filled_block block = make(4_MiB, owner);
  WEIR_OK(cu->ctx_synchronize());
  auto busy = occupy(owner.handle());
  owner.check(block.memory, block.size, block.value);
  EXPECT_TRUE(memory().try_deallocate(block.memory));
  const auto others = crowd(4_MiB, other);
  let_run(other);
  busy->finish();
  finish_all(others, other);
}

TEST_P(ordering, memory_of_a_destroyed_stream_serves_others) {
  lane& lasting = new_lane();
  for (const bool announced : {true, false}) {
    lane& passing = new_lane();
    ASSERT_TRUE(memory().empty_cache());
    ASSERT_TRUE(memory().set_limit(40_MiB));
    const filled_block block = make(36_MiB, passing);
    finish(block, passing);
    if (announced) {
      EXPECT_TRUE(memory().release_stream(passing));
    }
    passing.close();
    const filled_block next = make(36_MiB, lasting);  // there is no room beside the first
    expect_books();
    finish(next, lasting);
  }
}

TEST_P(ordering, a_live_block_outlives_its_stream) {
  lane& passing = new_lane();
  lane& lasting = new_lane();
  const filled_block block = make(4_MiB, passing);
  lasting.wait_for(passing);
  passing.close();
  finish(block, lasting);
  const filled_block small = make(4_KiB, lasting);
  lane& brief = new_lane();
  const filled_block orphan = make(4_KiB, brief);
  WEIR_OK(cu->ctx_synchronize());
  brief.close();
  EXPECT_TRUE(memory().try_deallocate(orphan.memory));
  finish(small, lasting);
  expect_books();
}

}  // namespace
}  // namespace weir::testing_support
