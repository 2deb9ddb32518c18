// SPDX-License-Identifier: Apache-2.0
// Suspended memory: what goes, what stays, what comes back, and what users of others asked for.
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "heap/suspend_fixture.hpp"

namespace weir::testing_support { namespace {

using ::testing::HasSubstr;

TEST_F(suspend_test, memory_goes_to_the_driver_and_comes_back_where_it_was) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  const auto large = make_filled(memory, weights, 40_MiB, 1);
  const auto small = make_filled(memory, weights, 1000_B, 2);
  void* const other = memory.allocate(8_MiB, on);
  const bytes others = memory.snapshot().pools[0].stats.reserved.current;
  const bytes reserved = memory.stats().reserved.current;

  const auto outcome = memory.suspend(weights).value();
  EXPECT_EQ(outcome.released, reserved - others);
  EXPECT_EQ(outcome.saved, 40_MiB + 1024_B);
  EXPECT_EQ(outcome.not_suspended, 0_B);
  EXPECT_TRUE(memory.is_suspended(weights));
  EXPECT_EQ(used(), others) << "at the moment that the call returned";
  const auto away = memory.stats();
  EXPECT_EQ(away.reserved.current, others);
  EXPECT_EQ(away.suspended, outcome.released);
  EXPECT_EQ(away.allocated.current, 48_MiB + 1024_B) << "blocks stay live";
  EXPECT_EQ(away.backup.current, 64_MiB) << "in whole segments";
  EXPECT_EQ(memory.stats(weights).suspended, outcome.released);
  EXPECT_EQ(memory.stats(weights).reserved.current, 0_B);
  EXPECT_EQ(memory.stats(weights).backup.current, outcome.saved);
  EXPECT_EQ(memory.size_of(small.at).value(), 1000_B);
  EXPECT_EQ(memory.block_at(static_cast<std::byte*>(large.at) + 77).value().address,
            address(large.at));
  EXPECT_EQ(check(memory), "");

  EXPECT_EQ(memory.resume(weights).value(), (resume_outcome{outcome.released, outcome.saved}));
  EXPECT_FALSE(memory.is_suspended(weights));
  expect_contents({large, small});
  EXPECT_EQ(memory.stats().reserved.current, reserved);
  EXPECT_EQ(memory.stats().suspended, 0_B);
  EXPECT_EQ(check(memory), "");
  for (void* const each : {large.at, small.at, other}) memory.deallocate(each, on);
}

TEST_F(suspend_test, an_address_says_that_its_memory_is_suspended) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  void* const tagged = allocate(memory, weights, 5_MiB);
  void* const plain = memory.allocate(1_MiB, on);
  const auto pool = memory.create_pool("apart").value();
  void* const pooled = pool.allocate(1_MiB, on);
  const auto inside = [](void* block) { return static_cast<std::byte*>(block) + 77; };
  const auto expect = [&](void* block, bool suspended) {
    for (const void* const at :
         {static_cast<const void*>(block), static_cast<const void*>(inside(block))}) {
      const block_info found = memory.block_at(at).value();
      EXPECT_EQ(found.suspended, suspended);
      EXPECT_EQ(found.address, address(block));
      EXPECT_EQ(to_string(found).ends_with(", suspended"), suspended);
    }
    EXPECT_THAT(memory.describe_address(inside(block)).value(),
                HasSubstr(suspended ? " is 77 bytes into a live block whose memory is suspended: "
                                    : " is 77 bytes into a live block: "));
  };
  ASSERT_TRUE(memory.suspend(weights));
  expect(tagged, true);
  expect(plain, false);
  expect(pooled, false);
  ASSERT_TRUE(memory.suspend());
  expect(plain, true);
  expect(pooled, true);
  ASSERT_TRUE(memory.resume());
  for (void* const each : {tagged, plain, pooled}) {
    expect(each, false);
    memory.deallocate(each, on);
  }
}

TEST_F(suspend_test, the_peak_of_host_memory_is_of_all_kinds_at_a_time) {
  auto memory = make();
  ASSERT_TRUE(memory.reserve_backup(64_MiB, host_memory_kind::pinned));
  ASSERT_EQ(memory.trim_backup().value(), 64_MiB);
  ASSERT_TRUE(memory.reserve_backup(32_MiB, host_memory_kind::pageable));
  EXPECT_EQ(memory.stats().backup, (byte_gauge{32_MiB, 64_MiB})) << "one after the other";
  ASSERT_TRUE(memory.reserve_backup(64_MiB, host_memory_kind::pinned));
  EXPECT_EQ(memory.stats().backup, (byte_gauge{96_MiB, 96_MiB})) << "both";
  ASSERT_EQ(memory.trim_backup().value(), 96_MiB);
  EXPECT_EQ(memory.stats().backup, (byte_gauge{0_B, 96_MiB}));
  memory.reset_peaks();
  EXPECT_EQ(memory.stats().backup, byte_gauge{});
}

/// Contents of one tag may lie in two segments beside those of another.
TEST_F(suspend_test, host_memory_is_trimmed_by_whole_segments) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  ASSERT_TRUE(memory.declare_suspendable(cache));
  const auto first = make_filled(memory, weights, 30_MiB, 1);
  const auto second = make_filled(memory, cache, 40_MiB, 2);
  ASSERT_TRUE(memory.suspend(weights));
  ASSERT_TRUE(memory.suspend(cache));
  ASSERT_TRUE(memory.resume(weights));
  EXPECT_EQ(memory.stats(cache).backup.current, 40_MiB);
  EXPECT_EQ(memory.trim_backup().value(), 0_B) << "each segment has contents";
  EXPECT_EQ(memory.stats().backup.current, 96_MiB);
  ASSERT_TRUE(memory.resume(cache));
  expect_contents({first, second});
  EXPECT_EQ(memory.trim_backup().value(), 96_MiB);
  for (void* const each : {first.at, second.at}) memory.deallocate(each, on);
}

TEST_F(suspend_test, peaks_keep_their_order_with_what_is_suspended) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  void* const away = allocate(memory, weights, 60_MiB);
  ASSERT_TRUE(memory.suspend(weights));
  void* const here = memory.allocate(80_MiB, on);
  const auto expect = [&](bytes reserved, bytes both, bytes both_peak) {
    const auto now = memory.stats();
    EXPECT_EQ(now.reserved.current, reserved);
    EXPECT_EQ(now.reserved_and_suspended, (byte_gauge{both, both_peak}));
    EXPECT_LE(now.active.peak, now.reserved_and_suspended.peak);
    EXPECT_EQ(check(memory), "");
  };
  EXPECT_EQ(memory.stats().requested.peak, 140_MiB);
  EXPECT_EQ(memory.stats().reserved.peak, 80_MiB) << "no more was reserved at a time";
  expect(80_MiB, 140_MiB, 140_MiB);
  const auto apart = [&] { return memory.snapshot().pools[1].stats; };
  EXPECT_EQ(apart().reserved_and_suspended, (byte_gauge{60_MiB, 60_MiB}));
  EXPECT_EQ(memory.stats(weights).reserved_and_suspended, (byte_gauge{60_MiB, 60_MiB}));
  memory.deallocate(here, on);
  ASSERT_TRUE(memory.empty_cache());
  expect(0_B, 60_MiB, 140_MiB);
  memory.reset_peaks();
  expect(0_B, 60_MiB, 60_MiB);
  EXPECT_EQ(memory.stats().reserved.peak, 0_B);
  EXPECT_EQ(apart().reserved_and_suspended, (byte_gauge{60_MiB, 60_MiB}));
  EXPECT_EQ(apart().reserved, (byte_gauge{0_B, 0_B}));
  ASSERT_TRUE(memory.resume(weights));
  expect(60_MiB, 60_MiB, 60_MiB);
  memory.deallocate(away, on);
  ASSERT_TRUE(memory.empty_cache());
  expect(0_B, 0_B, 60_MiB);
}

/// With the record that stands for no handle they fill a word of flags to its last bit.
TEST_F(suspend_test, sixty_three_handles_come_back_as_they_were) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(cache));
  std::vector<void*> all;
  for (int i = 0; i < 63; ++i) all.push_back(allocate(memory, cache, 2_MiB));
  ASSERT_EQ(memory.stats().handles_created, 63u);
  ASSERT_TRUE(memory.suspend(cache, {.contents = suspended_contents::discard}));
  EXPECT_EQ(memory.resume(cache).value(), (resume_outcome{126_MiB, 0_B}));
  EXPECT_EQ(check(memory), "");
  for (void* const each : all) memory.deallocate(each, on);
}

TEST_F(suspend_test, twice_is_once) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  const auto block = make_filled(memory, weights, 4_MiB, 7);
  EXPECT_EQ(memory.resume(weights).value(), resume_outcome{});
  EXPECT_EQ(memory.suspend(weights).value().saved, 4_MiB);
  const auto calls = machine->calls();
  EXPECT_EQ(memory.suspend(weights, {.contents = suspended_contents::discard}).value(),
            suspend_outcome{});
  EXPECT_EQ(machine->calls(), calls) << "nothing is released twice";
  EXPECT_EQ(memory.resume(weights).value().restored, 4_MiB);
  EXPECT_EQ(memory.resume(weights).value(), resume_outcome{});
  expect_contents(block);
  memory.deallocate(block.at, on);
}

TEST_F(suspend_test, contents_that_nobody_wants_are_not_copied) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(cache));
  void* const block = allocate(memory, cache, 16_MiB);
  const auto copies = machine->calls(driver::call::memcpy_dtoh_async);
  const auto outcome = memory.suspend(cache, {.contents = suspended_contents::discard}).value();
  EXPECT_EQ(outcome, (suspend_outcome{16_MiB, 0_B, 0_B}));
  EXPECT_EQ(used(), 0_B);
  EXPECT_EQ(memory.stats().backup.current, 0_B);
  EXPECT_EQ(memory.resume(cache).value(), (resume_outcome{16_MiB, 0_B}));
  EXPECT_EQ(machine->calls(driver::call::memcpy_dtoh_async), copies);
  write(on, block, 16_MiB);
  memory.deallocate(block, on);
}

TEST_F(suspend_test, contents_can_be_kept_in_memory_that_is_not_pinned) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  std::vector<filled> blocks;
  for (unsigned char i = 1; i <= 3; ++i)
    blocks.push_back(make_filled(memory, weights, 11_MiB, i, /*whole=*/true));
  for (const bytes chunk : {32_MiB, 1_MiB, 300_KiB}) {
    ASSERT_TRUE(memory.suspend(weights, {.to = host_memory_kind::pageable, .chunk = chunk}));
    ASSERT_TRUE(memory.resume(weights));
    expect_contents(blocks);
  }
  for (const filled& each : blocks) memory.deallocate(each.at, on);
}

TEST_F(suspend_test, contents_are_copied_in_pieces_of_32_MiB) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  const auto block = make_filled(memory, weights, 40_MiB, 3, /*whole=*/true);
  EXPECT_EQ(suspend_options{}.chunk, 32_MiB);
  EXPECT_EQ(suspendable_options{}.eviction.chunk, 32_MiB);
  ASSERT_TRUE(memory.suspend(weights));
  EXPECT_EQ(machine->calls(driver::call::memcpy_dtoh_async), 2u);
  ASSERT_TRUE(memory.resume(weights));
  EXPECT_EQ(machine->calls(driver::call::memcpy_htod_async), 2u);
  expect_contents(block);
  memory.deallocate(block.at, on);
}

TEST_F(suspend_test, a_chunk_may_be_as_small_as_512_bytes) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights, {.eviction = {.chunk = 512_B}}));
  const auto block = make_filled(memory, weights, 1000_B, 3);
  EXPECT_EQ(memory.suspend(weights, {.chunk = 512_B}).value().saved, 1024_B);
  EXPECT_EQ(machine->calls(driver::call::memcpy_dtoh_async), 2u);
  ASSERT_TRUE(memory.resume(weights));
  EXPECT_EQ(machine->calls(driver::call::memcpy_htod_async), 2u);
  expect_contents(block);
  memory.deallocate(block.at, on);
}

TEST_F(suspend_test, without_contents_nothing_is_prepared_to_copy_them) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  memory.deallocate(allocate(memory, weights, 8_MiB), on);
  const auto streams = machine->calls(driver::call::stream_create_with_priority);
  ASSERT_TRUE(memory.suspend(weights, {.to = host_memory_kind::pageable}));
  ASSERT_TRUE(memory.resume(weights));
  EXPECT_EQ(machine->calls(driver::call::stream_create_with_priority), streams);
  EXPECT_EQ(machine->calls(driver::call::mem_host_alloc), 0u);
  EXPECT_EQ(memory.stats().backup, byte_gauge{});
}

TEST_F(suspend_test, contents_that_are_not_pinned_go_through_four_pieces_of_8_MiB) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  const auto block = make_filled(memory, weights, 20_MiB, 3, /*whole=*/true);
  ASSERT_TRUE(memory.suspend(weights, {.to = host_memory_kind::pageable}));
  EXPECT_EQ(machine->calls(driver::call::memcpy_dtoh_async), 3u);
  EXPECT_EQ(machine->calls(driver::call::mem_host_alloc), 1u);
  EXPECT_EQ(memory.stats().backup.current, 64_MiB) << "what is pinned and what is not";
  EXPECT_EQ(memory.trim_backup().value(), 32_MiB) << "what is pinned was for the copies only";
  ASSERT_TRUE(memory.resume(weights));
  EXPECT_EQ(memory.stats().backup.current, 64_MiB);
  EXPECT_EQ(memory.trim_backup().value(), 64_MiB) << "nothing of it is in use";
  expect_contents(block);
  memory.deallocate(block.at, on);
}

/// The host has room in two places, and what lies across both is freed before it comes back.
TEST_F(suspend_test, contents_can_be_kept_in_several_places) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  ASSERT_TRUE(memory.declare_suspendable(cache));
  ASSERT_TRUE(memory.reserve_backup(64_MiB));
  std::vector<filled> blocks;
  for (unsigned char i = 1; i <= 3; ++i) blocks.push_back(make_filled(memory, weights, 16_MiB, i));
  std::byte* const across = static_cast<std::byte*>(allocate(memory, cache, 32_MiB));
  const std::vector<filled> parts = {{across, 15_MiB, 4},
                                     {across + (15_MiB).count(), 2_MiB, 5},
                                     {across + (17_MiB).count(), 15_MiB, 6}};
  for (const filled& each : parts) fill(each, on);
  ASSERT_TRUE(memory.suspend(weights));
  memory.deallocate(blocks[1].at, on);
  for (const bool comes_back : {true, false}) {
    ASSERT_EQ(memory.suspend(cache).value().saved, 32_MiB);
    EXPECT_EQ(memory.stats().backup.current, 64_MiB) << "there was room for it";
    EXPECT_EQ(memory.trim_backup().value(), 0_B);
    if (!comes_back) continue;
    EXPECT_EQ(memory.resume(cache).value().restored, 32_MiB);
    expect_contents(parts);
  }
  memory.deallocate(across, on);
  EXPECT_EQ(memory.stats(cache).backup.current, 0_B);
  EXPECT_EQ(memory.resume(cache).value(), resume_outcome{});
  EXPECT_EQ(memory.resume(weights).value().restored, 32_MiB);
  expect_contents({blocks[0], blocks[2]});
  EXPECT_EQ(memory.trim_backup().value(), 64_MiB) << "all of it joined again";
  for (void* const each : {blocks[0].at, blocks[2].at}) memory.deallocate(each, on);
}

/// What the host keeps of each of two neighbours lies apart, and ends where the other begins.
TEST_F(suspend_test, what_is_kept_of_a_neighbour_stays_when_a_block_is_freed) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  ASSERT_TRUE(memory.declare_suspendable(cache));
  ASSERT_TRUE(memory.reserve_backup(64_MiB));
  std::vector<filled> around;
  for (unsigned char i = 1; i <= 3; ++i) around.push_back(make_filled(memory, weights, 16_MiB, i));
  ASSERT_TRUE(memory.suspend(weights));
  memory.deallocate(around[1].at, on);
  for (const std::size_t freed : {std::size_t{0}, std::size_t{1}}) {
    SCOPED_TRACE(freed);
    const std::vector<filled> pair = {make_filled(memory, cache, 16_MiB, 4),
                                      make_filled(memory, cache, 16_MiB, 5)};
    ASSERT_EQ(address(pair[1].at), address(pair[0].at) + (16_MiB).count());
    ASSERT_EQ(memory.suspend(cache).value().saved, 32_MiB);
    memory.deallocate(pair[freed].at, on);
    EXPECT_EQ(memory.stats(cache).backup.current, 16_MiB);
    EXPECT_EQ(memory.resume(cache).value(), (resume_outcome{16_MiB, 16_MiB}));
    expect_contents(pair[1 - freed]);
    memory.deallocate(pair[1 - freed].at, on);
    ASSERT_TRUE(memory.empty_cache());
  }
  EXPECT_EQ(memory.resume(weights).value().restored, 32_MiB);
  expect_contents({around[0], around[2]});
  EXPECT_EQ(memory.trim_backup().value(), 64_MiB) << "all of it joined again";
  for (void* const each : {around[0].at, around[2].at}) memory.deallocate(each, on);
}

// --- How far it is -------------------------------------------------------------------------------

class suspend_progress_test : public suspend_test {
 protected:
  using steps = std::vector<std::pair<bytes, bytes>>;
  suspend_progress into(steps& told) {
    return [&told](bytes done, bytes total) { told.emplace_back(done, total); };
  }
};

TEST_F(suspend_progress_test, every_chunk_that_has_arrived_is_told) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  const auto block = make_filled(memory, weights, 11_MiB, 5);
  const steps expected = {{2_MiB, 11_MiB}, {4_MiB, 11_MiB},  {6_MiB, 11_MiB},
                          {8_MiB, 11_MiB}, {10_MiB, 11_MiB}, {11_MiB, 11_MiB}};
  for (const auto kind : {host_memory_kind::pinned, host_memory_kind::pageable}) {
    SCOPED_TRACE(to_string(kind));
    steps out;
    steps back;
    ASSERT_TRUE(memory.suspend(weights, {.to = kind, .chunk = 2_MiB, .progress = into(out)}));
    EXPECT_EQ(out, expected);
    ASSERT_TRUE(memory.resume(weights, {.progress = into(back)}));
    EXPECT_EQ(back, expected);
    expect_contents(block);
  }
  memory.deallocate(block.at, on);
}

TEST_F(suspend_progress_test, what_would_wait_for_itself_is_refused) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  const auto block = make_filled(memory, weights, 8_MiB, 5);
  std::vector<errc> answers;
  const auto act = [&](bytes, bytes) {
    answers.push_back(memory.suspend(weights).code());
    answers.push_back(memory.resume(weights).code());
    answers.push_back(memory.close().code());
  };
  const auto refused =
      testing::ElementsAre(errc::not_permitted, errc::not_permitted, errc::not_permitted);
  ASSERT_TRUE(memory.suspend(weights, {.chunk = 8_MiB, .progress = act}));
  EXPECT_THAT(answers, refused);
  answers.clear();
  ASSERT_TRUE(memory.resume(weights, {.progress = act}));
  EXPECT_THAT(answers, refused);
  expect_contents(block);
  memory.deallocate(block.at, on);
}

TEST_F(suspend_progress_test, of_several_pools_it_is_the_sum) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  ASSERT_TRUE(memory.declare_suspendable(cache));
  const auto first = make_filled(memory, weights, 3_MiB, 1);
  const auto second = make_filled(memory, cache, 2_MiB, 2);
  steps out;
  steps back;
  ASSERT_TRUE(memory.suspend({.progress = into(out)}));
  EXPECT_EQ(out, (steps{{3_MiB, 5_MiB}, {5_MiB, 5_MiB}}));
  ASSERT_TRUE(memory.resume({.progress = into(back)}));
  EXPECT_EQ(back, out);
  expect_contents({first, second});
  for (const filled& each : {first, second}) memory.deallocate(each.at, on);
}

TEST_F(suspend_progress_test, where_nothing_is_copied_nothing_is_told) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(cache));
  void* const block = allocate(memory, cache, 3_MiB);
  steps told;
  ASSERT_TRUE(
      memory.suspend(cache, {.contents = suspended_contents::discard, .progress = into(told)}));
  ASSERT_TRUE(memory.suspend(cache, {.progress = into(told)})) << "twice is once";
  ASSERT_TRUE(memory.resume(cache, {.progress = into(told)}));
  EXPECT_EQ(told, steps{});
  memory.deallocate(block, on);
}

/// It is called without the lock, and what is copied is there.
TEST_F(suspend_progress_test, whoever_is_told_may_use_the_allocator) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  const auto block = make_filled(memory, weights, 3_MiB, 1);
  int calls = 0;
  ASSERT_TRUE(memory.suspend(weights, {.progress = [&](bytes, bytes) {
                               void* const other = memory.allocate(1_MiB, on);
                               EXPECT_EQ(memory.stats().blocks.current, 2u);
                               memory.deallocate(other, on);
                               ++calls;
                             }}));
  EXPECT_EQ(calls, 1);
  ASSERT_TRUE(memory.resume(weights));
  expect_contents(block);
  memory.deallocate(block.at, on);
}

TEST_F(suspend_progress_test, what_it_throws_changes_nothing) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  const auto block = make_filled(memory, weights, 3_MiB, 1);
  int calls = 0;
  const suspend_progress angry = [&](bytes, bytes) {
    ++calls;
    throw std::runtime_error{"no"};
  };
  EXPECT_EQ(memory.suspend(weights, {.chunk = 1_MiB, .progress = angry}).value(),
            (suspend_outcome{4_MiB, 3_MiB, 0_B}));
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(memory.resume(weights, {.progress = angry}).value(), (resume_outcome{4_MiB, 3_MiB}));
  EXPECT_EQ(calls, 6);
  expect_contents(block);
  memory.deallocate(block.at, on);
}

// --- What users of other allocators ask for ------------------------------------------------------

TEST_F(suspend_test, a_resume_that_runs_out_of_memory_says_why_and_can_be_tried_again) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  std::vector<filled> blocks;
  for (unsigned char i = 1; i <= 6; ++i) blocks.push_back(make_filled(memory, weights, 8_MiB, i));
  const bytes released = memory.suspend(weights).value().released;
  machine->set_capacity(device_id{0}, 64_MiB + 20_MiB);  // somebody else took the rest
  for (int attempt = 0; attempt < 2; ++attempt) {
    const auto refused = memory.resume(weights);
    ASSERT_EQ(code_of(refused), errc::out_of_memory);
    EXPECT_EQ(refused.error().requested(), released);
    EXPECT_THAT(refused.error().detail(), HasSubstr("are needed to resume it"));
    EXPECT_THAT(refused.error().detail(), HasSubstr("tag \"weights\": 48 MiB"));
    EXPECT_THAT(refused.error().detail(), HasSubstr("suspended: 48 MiB"));
    EXPECT_EQ(used(), 0_B) << "nothing of it stays half-way";
    EXPECT_TRUE(memory.is_suspended(weights));
    EXPECT_EQ(check(memory), "");
  }
  machine->set_capacity(device_id{0}, 2_GiB);
  ASSERT_TRUE(memory.resume(weights));
  expect_contents(blocks);
  for (const filled& each : blocks) memory.deallocate(each.at, on);
}

TEST_F(suspend_test, work_that_was_queued_anywhere_is_finished_first) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  const auto stranger = new_stream();
  filled block{allocate(memory, weights, 4_MiB), 4_MiB, 9};
  fill(block, stranger);  // nobody said so
  const auto outcome = memory.suspend(weights).value();
  EXPECT_EQ(outcome.saved, 4_MiB);
  ASSERT_TRUE(memory.resume(weights));
  expect_contents(block);
  memory.deallocate(block.at, on);
}

TEST_F(suspend_test, a_tags_memory_is_nobody_elses) {
  auto memory = make();
  void* const before = allocate(memory, weights, 4_MiB);
  ASSERT_TRUE(memory.declare_suspendable(weights));
  ASSERT_TRUE(memory.declare_suspendable(cache));
  void* const freed = allocate(memory, weights, 1_MiB);
  memory.deallocate(freed, on);
  const auto other = make_filled(memory, cache, 1_MiB, 3);
  const auto plain = make_filled(memory, tag{}, 1_MiB, 4);
  EXPECT_NE(other.at, freed);
  EXPECT_NE(plain.at, freed);
  void* const again = allocate(memory, weights, 1_MiB);
  EXPECT_EQ(again, freed);
  ASSERT_TRUE(memory.suspend(weights, {.contents = suspended_contents::discard}));
  write(on, before, 4_MiB);  // allocated before the declaration: it stays
  expect_contents({other, plain});
  EXPECT_EQ(memory.block_at(before).value().pool, pool_id{});
  EXPECT_EQ(memory.block_at(again).value().pool, pool_id{1});
  EXPECT_EQ(memory.block_at(again).value().tag, weights);
  for (void* const each : {before, other.at, plain.at, again}) memory.deallocate(each, on);
}

TEST_F(suspend_test, from_its_declaration_on_no_threads_cache_serves_a_tag) {
  auto memory = make();
  void* const before = allocate(memory, weights, 4_KiB);
  memory.deallocate(before, on);
  ASSERT_EQ(memory.stats().thread_cached, 4_KiB);
  ASSERT_TRUE(memory.declare_suspendable(weights));
  void* const after = allocate(memory, weights, 4_KiB);
  EXPECT_NE(after, before);
  EXPECT_EQ(memory.block_at(after).value().pool, pool_id{1});
  memory.deallocate(after, on);
}

TEST_F(suspend_test, host_memory_is_used_again_and_goes_back_when_asked) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  const auto block = make_filled(memory, weights, 40_MiB, 1);
  for (int cycle = 0; cycle < 3; ++cycle) {
    ASSERT_TRUE(memory.suspend(weights));
    EXPECT_EQ(memory.trim_backup().value(), 0_B) << "it is in use";
    ASSERT_TRUE(memory.resume(weights));
  }
  EXPECT_EQ(machine->calls(driver::call::mem_host_alloc), 1u);
  EXPECT_EQ(memory.stats().backup, (byte_gauge{64_MiB, 64_MiB}));
  EXPECT_EQ(memory.trim_backup().value(), 64_MiB);
  EXPECT_EQ(memory.stats().backup, (byte_gauge{0_B, 64_MiB}));
  memory.reset_peaks();
  EXPECT_EQ(memory.stats().backup, byte_gauge{});
  ASSERT_TRUE(memory.reserve_backup(100_MiB));
  EXPECT_EQ(memory.stats().backup.current, 128_MiB);
  ASSERT_TRUE(memory.reserve_backup(100_MiB, host_memory_kind::pageable));
  EXPECT_EQ(memory.stats().backup.current, 256_MiB);
  EXPECT_EQ(memory.trim_backup().value(), 256_MiB);
  memory.deallocate(block.at, on);
}

TEST_F(suspend_test, what_others_cache_does_not_keep_it_away) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  void* const block = allocate(memory, weights, 600_MiB);
  ASSERT_TRUE(memory.suspend(weights, {.contents = suspended_contents::discard}));
  memory.deallocate(memory.allocate(1800_MiB, on), on);
  EXPECT_GE(used(), 1800_MiB);
  ASSERT_TRUE(memory.resume(weights));
  EXPECT_GE(memory.stats(weights).reserved.current, 600_MiB);
  memory.deallocate(block, on);
}

TEST_F(suspend_test, tags_come_back_one_at_a_time) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  ASSERT_TRUE(memory.declare_suspendable(cache));
  const auto first = make_filled(memory, weights, 8_MiB, 1);
  const auto second = make_filled(memory, cache, 16_MiB, 2);
  EXPECT_EQ(memory.suspend().value().saved, 24_MiB);
  EXPECT_EQ(used(), 0_B);
  ASSERT_TRUE(memory.resume(weights));
  EXPECT_EQ(used(), 8_MiB);
  expect_contents(first);
  EXPECT_TRUE(memory.is_suspended(cache));
  EXPECT_EQ(memory.resume().value().restored, 16_MiB);
  expect_contents({first, second});
  for (void* const each : {first.at, second.at}) memory.deallocate(each, on);
}

TEST_F(suspend_test, a_limit_holds_when_it_comes_back) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  const auto block = make_filled(memory, weights, 64_MiB, 1);
  ASSERT_TRUE(memory.suspend(weights));
  ASSERT_TRUE(memory.set_limit(32_MiB));
  EXPECT_EQ(code_of(memory.resume(weights)), errc::out_of_memory);
  EXPECT_EQ(used(), 0_B);
  ASSERT_TRUE(memory.set_limit(64_MiB));
  ASSERT_TRUE(memory.resume(weights));
  expect_contents(block);
  memory.deallocate(block.at, on);
}

TEST_F(suspend_test, what_comes_back_counts_before_it_is_there) {
  auto memory = make();
  ASSERT_TRUE(memory.set_limit(64_MiB));
  ASSERT_TRUE(memory.declare_suspendable(weights));
  const auto block = make_filled(memory, weights, 40_MiB, 1);
  ASSERT_TRUE(memory.suspend(weights));
  void* beside = nullptr;
  const auto ask = [&](bytes done, bytes total) {
    if (done != total) return;
    EXPECT_EQ(code_of(memory.try_allocate(26_MiB, on)), errc::out_of_memory);
    beside = memory.allocate(24_MiB, on);
  };
  EXPECT_EQ(memory.resume(weights, {.progress = ask}).value(), (resume_outcome{40_MiB, 40_MiB}));
  EXPECT_EQ(memory.stats().reserved.current, 64_MiB);
  expect_contents(block);
  memory.deallocate(block.at, on);
  memory.deallocate(beside, on);
  ASSERT_TRUE(memory.empty_cache());
  memory.deallocate(memory.allocate(64_MiB, on), on);  // nothing is set aside any more
}

TEST_F(suspend_test, what_threads_cache_does_not_keep_it_away) {
  auto memory = make();
  ASSERT_TRUE(memory.set_limit(64_MiB));
  ASSERT_TRUE(memory.declare_suspendable(weights));
  const auto block = make_filled(memory, weights, 64_MiB, 1);
  ASSERT_TRUE(memory.suspend(weights));
  memory.deallocate(memory.allocate(4_KiB, on), on);
  ASSERT_EQ(memory.stats().thread_cached, 4_KiB);
  EXPECT_EQ(memory.resume(weights).value(), (resume_outcome{64_MiB, 64_MiB}));
  EXPECT_EQ(memory.stats().reserved.current, 64_MiB);
  expect_contents(block);
  memory.deallocate(block.at, on);
}

/// Other processes are asked for all that has to come back, before any of it is created, and
/// without the lock.
TEST_F(suspend_test, neighbours_are_asked_for_what_has_to_come_back) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  std::vector<filled> blocks;
  for (unsigned char i = 1; i <= 6; ++i) blocks.push_back(make_filled(memory, weights, 8_MiB, i));
  ASSERT_TRUE(memory.suspend(weights));
  std::vector<bytes> asked;
  bool give_way = false;
  const auto ask = [&](bytes missing) {
    asked.push_back(missing);
    EXPECT_EQ(memory.stats().blocks.current, 6u);
    if (give_way) machine->set_capacity(device_id{0}, 2_GiB);
    return give_way;
  };
  auto& inside = heap::central_heap::of(memory);
  ASSERT_TRUE(inside.limits().add_share(&asked, bytes::max(), {.ask = ask}));
  ASSERT_TRUE(memory.set_limit(32_MiB));
  EXPECT_EQ(code_of(memory.resume(weights)), errc::out_of_memory);
  EXPECT_EQ(asked, (std::vector<bytes>{48_MiB})) << "all of it";
  ASSERT_TRUE(memory.set_limit(bytes::max()));
  machine->set_capacity(device_id{0}, 64_MiB + 20_MiB);
  const auto released = machine->calls(driver::call::mem_release);
  EXPECT_EQ(code_of(memory.resume(weights)), errc::out_of_memory);
  EXPECT_EQ(asked, (std::vector<bytes>{48_MiB, 48_MiB}));
  EXPECT_EQ(machine->calls(driver::call::mem_release), released) << "no handle was created";
  give_way = true;
  EXPECT_EQ(memory.resume(weights).value(), (resume_outcome{48_MiB, 48_MiB}));
  EXPECT_EQ(asked, (std::vector<bytes>{48_MiB, 48_MiB, 48_MiB}));
  inside.limits().remove_share(&asked);
  expect_contents(blocks);
  for (const filled& each : blocks) memory.deallocate(each.at, on);
}

TEST_F(suspend_test, a_tag_has_memory_of_its_own_under_every_policy) {
  for (const auto policy :
       {placement_policy::throughput, placement_policy::compact, placement_policy::never_move,
        placement_policy::classic, placement_policy::classic_expandable}) {
    allocator_options settings;
    settings.policy = policy;
    auto memory = make(settings);
    ASSERT_TRUE(memory.declare_suspendable(weights));
    const auto block = make_filled(memory, weights, 6_MiB, 1);
    const auto plain = make_filled(memory, tag{}, 6_MiB, 2);
    ASSERT_TRUE(memory.suspend(weights));
    ASSERT_TRUE(memory.resume(weights));
    expect_contents({block, plain});
    const bool classic = placement::is_classic(policy);
    EXPECT_EQ(code_of(memory.suspend()),
              classic ? std::optional{errc::not_supported} : std::nullopt);
    ASSERT_TRUE(memory.resume());
    expect_contents({block, plain});
    for (void* const each : {block.at, plain.at}) memory.deallocate(each, on);
  }
}

TEST_F(suspend_test, a_captured_graph_replays_as_before) {
  auto memory = make();
  auto claim = memory.begin_capture(on).value();
  begin(on);
  filled block{memory.allocate(4_MiB, on), 4_MiB, 6};
  fill(block, on);
  const auto graph = end(on);
  claim.end_capture();
  const auto replay = instantiate(graph);
  launch(replay, on);
  expect_contents(block);
  EXPECT_EQ(memory.suspend().value().saved, 4_MiB);
  EXPECT_EQ(used(), 0_B);
  ASSERT_TRUE(memory.resume());
  expect_contents(block);
  fill({block.at, block.size, 1}, on);
  launch(replay, on);
  expect_contents(block);
  memory.deallocate(block.at, on);
  destroy(replay);
  destroy(graph);
}

/// What was freed inside the capture is free to everybody but the graph, which writes to it again.
TEST_F(suspend_test, a_graph_finds_the_memory_that_its_capture_freed) {
  for (const bool declared : {true, false}) {
    SCOPED_TRACE(declared ? "begin_capture" : "a pool for graphs");
    auto memory = make();
    graph_memory claim;
    memory_pool pool;
    if (declared) {
      claim = memory.begin_capture(on).value();
      pool = claim.pool();
    } else {
      pool = memory.create_pool("graphs", {.for_graphs = true}).value();
      ASSERT_TRUE(memory.suspend()) << "before it has memory";
      ASSERT_TRUE(memory.resume());
    }
    begin(on);
    const auto get = [&](bytes size) {
      return declared ? memory.allocate(size, on) : pool.allocate(size, on);
    };
    const filled passing{get(32_MiB), 32_MiB, 3};
    fill(passing, on);
    const filled kept{get(4_MiB), 4_MiB, 6};
    fill(kept, on);
    memory.deallocate(passing.at, on);
    const auto graph = end(on);
    if (declared) claim.end_capture();
    const auto replay = instantiate(graph);
    launch(replay, on);
    const auto expect_written = [&] {
      const sim::segment_owner_scope looking;  // into what only the graph may use
      expect_contents({passing, kept});
    };
    expect_written();
    const bytes held = used();
    const auto gone = memory.suspend().value();
    EXPECT_EQ(gone.released, held);
    EXPECT_EQ(gone.saved, 4_MiB) << "what is free has no contents";
    EXPECT_EQ(memory.stats().suspended, held);
    EXPECT_EQ(check(memory), "");
    EXPECT_EQ(memory.resume().value(), (resume_outcome{held, 4_MiB}));
    EXPECT_EQ(used(), held);
    EXPECT_EQ(check(memory), "");
    expect_contents(kept);
    fill({kept.at, kept.size, 1}, on);
    launch(replay, on);
    expect_written();
    memory.deallocate(kept.at, on);
    destroy(replay);
    destroy(graph);
  }
}

}  // namespace
}  // namespace weir::testing_support
