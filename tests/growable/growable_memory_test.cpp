// SPDX-License-Identifier: Apache-2.0
// What growable memory promises to who commits and decommits.
#include "weir/growable/growable_memory.hpp"

#include "growable/growable_fixture.hpp"

namespace weir::testing_support { namespace {

using ::testing::HasSubstr;

class growing : public growable_test {};

TEST_F(growing, reserves_addresses_and_no_memory) {
  const auto memory = make();
  const bytes before = machine->used(device_id{0});
  const auto cache = growable_memory::reserve(memory, 1_GiB + 1_B, {.name = "kv"}).value();
  EXPECT_EQ(machine->used(device_id{0}), before);
  EXPECT_EQ(cache.size(), 1_GiB + 16_MiB);
  EXPECT_EQ(cache.page_size(), 16_MiB);
  EXPECT_NE(cache.data(), nullptr);
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
  EXPECT_EQ(to_string(cache), "growable \"kv\": 0 B committed of 1.02 GiB in pages of 16 MiB");
  EXPECT_FALSE(cache.is_committed(0_B, 1_B));
}

TEST_F(growing, commits_whole_pages_that_count_as_memory_of_the_allocator) {
  const auto memory = make();
  const auto on = new_stream();
  const auto cache = reserve_from(memory, 64_MiB);
  ASSERT_TRUE(cache.commit(1_MiB, 4_MiB, on));  // touches two pages
  EXPECT_TRUE(cache.is_committed(0_B, 8_MiB));
  EXPECT_FALSE(cache.is_committed(0_B, 8_MiB + 1_B));
  const auto stats = memory.stats();
  EXPECT_EQ(stats.reserved.current, 8_MiB);
  EXPECT_EQ(stats.allocated.current, 8_MiB);
  EXPECT_EQ(stats.blocks.current, 2u);
  EXPECT_EQ(machine->used(device_id{0}), 64_MiB + 8_MiB);
  use(on, cache, 0_B, 8_MiB);
  ASSERT_TRUE(cache.commit(0_B, 12_MiB, on));  // two of the three are committed already
  EXPECT_EQ(cache.stats().committed, 12_MiB);
  EXPECT_EQ(cache.stats().commits, 3u);
  use(on, cache, 6_MiB, 6_MiB);
  machine->run_until_idle();
}

TEST_F(growing, decommits_pages_that_lie_in_the_range_as_a_whole) {
  const auto memory = make();
  const auto on = new_stream();
  const auto cache = reserve_from(memory, 64_MiB);
  ASSERT_TRUE(cache.commit(0_B, 16_MiB, on));
  ASSERT_TRUE(cache.decommit(3_MiB, 10_MiB, on));  // pages 1 and 2
  EXPECT_TRUE(cache.is_committed(0_B, 4_MiB));
  EXPECT_FALSE(cache.is_committed(4_MiB, 1_B));
  EXPECT_FALSE(cache.is_committed(8_MiB, 1_B));
  EXPECT_TRUE(cache.is_committed(12_MiB, 4_MiB));
  EXPECT_EQ(memory.stats().allocated.current, 8_MiB);
  EXPECT_EQ(memory.stats().reserved.current, 16_MiB);
  ASSERT_TRUE(cache.decommit(4_MiB, 8_MiB, on));  // nothing is left to decommit
  EXPECT_EQ(cache.stats().decommits, 2u);
}

TEST_F(growing, commits_parked_pages_without_a_driver_call) {
  const auto memory = make();
  const auto on = new_stream();
  const auto cache = reserve_from(memory, 64_MiB);
  ASSERT_TRUE(cache.commit(0_B, 16_MiB, on));
  use(on, cache, 0_B, 16_MiB);
  const auto before = machine->calls();
  ASSERT_TRUE(cache.decommit(0_B, 16_MiB, on));
  EXPECT_EQ(machine->calls(), before);
  ASSERT_TRUE(cache.commit(0_B, 16_MiB, on));
  EXPECT_EQ(machine->calls(), before);
  use(on, cache, 0_B, 16_MiB);
  machine->run_until_idle();
}

TEST_F(growing, creates_no_handle_where_one_is_free) {
  const auto memory = make();
  const auto on = new_stream();
  const auto one = reserve_from(memory, 64_MiB);
  const auto two = reserve_from(memory, 64_MiB);
  ASSERT_TRUE(one.commit(0_B, 32_MiB, on));
  ASSERT_TRUE(one.decommit(0_B, 32_MiB, on));
  const auto created = machine->calls(driver::call::mem_create);
  const auto mapped = machine->calls(driver::call::mem_map);
  const auto granted = machine->calls(driver::call::mem_set_access);
  ASSERT_TRUE(two.commit(8_MiB, 32_MiB, on));
  EXPECT_EQ(machine->calls(driver::call::mem_create), created);
  EXPECT_EQ(machine->calls(driver::call::mem_map), mapped + 8);
  EXPECT_EQ(machine->calls(driver::call::mem_set_access), granted + 1);  // side by side
  EXPECT_EQ(memory.stats().reserved.current, 32_MiB);
  use(on, two, 8_MiB, 32_MiB);
  machine->run_until_idle();
}

TEST_F(growing, assembles_a_page_of_smaller_free_handles) {
  const auto memory = make();
  const auto on = new_stream();
  const auto small = reserve_from(memory, 64_MiB, 2_MiB);
  ASSERT_TRUE(small.commit(0_B, 8_MiB, on));
  ASSERT_TRUE(small.decommit(0_B, 8_MiB, on));
  const auto created = machine->calls(driver::call::mem_create);
  const auto large = reserve_from(memory, 64_MiB, 8_MiB);
  ASSERT_TRUE(large.commit(0_B, 8_MiB, on));
  EXPECT_EQ(machine->calls(driver::call::mem_create), created);
  EXPECT_EQ(memory.stats().reserved.current, 8_MiB);
  use(on, large, 0_B, 8_MiB);
  ASSERT_TRUE(large.decommit(0_B, 8_MiB, on));
  const auto calls = memory_calls();
  ASSERT_TRUE(large.commit(0_B, 8_MiB, on));
  EXPECT_EQ(memory_calls(), calls);
  machine->run_until_idle();
}

TEST_F(growing, serves_other_requests_with_decommitted_pages) {
  const auto memory = make();
  const auto on = new_stream();
  const auto cache = reserve_from(memory, 64_MiB);
  ASSERT_TRUE(cache.commit(0_B, 32_MiB, on));
  use(on, cache, 0_B, 32_MiB);
  ASSERT_TRUE(cache.decommit(0_B, 32_MiB, on));
  void* const p = memory.allocate(24_MiB, on);
  EXPECT_EQ(memory.stats().reserved.current, 32_MiB);
  write(on, p, 24_MiB);
  ASSERT_TRUE(cache.commit(0_B, 32_MiB, on));  // waits for the kernels: other memory is mapped
  use(on, cache, 0_B, 32_MiB);
  write(on, p, 24_MiB);
  memory.deallocate(p, on);
  machine->run_until_idle();
}

TEST_F(growing, gives_decommitted_pages_to_another_stream_after_all_work) {
  const auto memory = make();
  const auto one = new_stream();
  const auto two = new_stream();
  const auto third = new_stream();
  const auto cache = reserve_from(memory, 64_MiB);
  ASSERT_TRUE(cache.commit(0_B, 16_MiB, one));
  use(one, cache, 0_B, 16_MiB);
  event joined = event::create(gpu()).value();
  ASSERT_TRUE(joined.record(one));
  ASSERT_TRUE(third.ref().wait(joined));
  use(third, cache, 0_B, 16_MiB);  // an undeclared use
  ASSERT_TRUE(cache.decommit(0_B, 16_MiB, one));
  ASSERT_TRUE(memory.set_limit(16_MiB));
  void* const p = memory.allocate(12_MiB, two);  // behind waits, or after the work
  write(two, p, 12_MiB);
  memory.deallocate(p, two);
  machine->run_until_idle();
}

TEST_F(growing, commits_all_pages_of_a_batch_or_none) {
  const auto memory = make();
  const auto on = new_stream();
  const auto cache = reserve_from(memory, 64_MiB);
  ASSERT_TRUE(memory.set_limit(24_MiB));
  ASSERT_TRUE(cache.commit(0_B, 4_MiB, on));
  const std::vector<byte_range> batch{{8_MiB, 8_MiB}, {32_MiB, 16_MiB}};
  const auto refused = cache.commit(batch, on);
  EXPECT_EQ(code_of(refused), errc::out_of_memory);
  EXPECT_EQ(cache.stats().committed, 4_MiB);
  EXPECT_FALSE(cache.is_committed(8_MiB, 1_B));
  EXPECT_EQ(memory.stats().allocated.current, 4_MiB);
  EXPECT_LE(memory.stats().reserved.current, 24_MiB);
  ASSERT_TRUE(memory.set_limit(bytes::max()));
  ASSERT_TRUE(cache.commit(batch, on));
  EXPECT_EQ(cache.stats().committed, 28_MiB);
  use(on, cache, 32_MiB, 16_MiB);
  machine->run_until_idle();
}

TEST_F(growing, counts_pages_with_their_tag_and_keeps_its_limit) {
  const auto memory = make();
  const auto on = new_stream();
  const tag kv = tag::named("kv cache").value();
  const auto cache = growable_memory::reserve(memory, 64_MiB, {.page = 4_MiB, .tag = kv}).value();
  ASSERT_TRUE(memory.set_limit(kv, 8_MiB));
  ASSERT_TRUE(cache.commit(0_B, 8_MiB, on));
  EXPECT_EQ(memory.stats(kv).allocated.current, 8_MiB);
  EXPECT_EQ(code_of(cache.commit(8_MiB, 4_MiB, on)), errc::out_of_memory);
  ASSERT_TRUE(cache.decommit(0_B, 4_MiB, on));
  EXPECT_EQ(memory.stats(kv).allocated.current, 4_MiB);
  ASSERT_TRUE(cache.commit(8_MiB, 4_MiB, on));
}

TEST_F(growing, keeps_the_memory_of_a_plan_until_it_is_committed) {
  const auto memory = make();
  const auto on = new_stream();
  const auto cache = reserve_from(memory, 64_MiB);
  ASSERT_TRUE(cache.commit(0_B, 8_MiB, on));
  const std::vector<byte_range> in{{16_MiB, 8_MiB}};
  const std::vector<byte_range> out{{0_B, 4_MiB}};
  auto plan = cache.prepare(in, out, on).value();
  EXPECT_TRUE(plan);
  EXPECT_FALSE(cache.is_committed(16_MiB, 1_B));
  EXPECT_TRUE(cache.is_committed(0_B, 8_MiB));
  EXPECT_EQ(memory.stats().allocated.current, 16_MiB);
  EXPECT_EQ(code_of(cache.commit(16_MiB, 1_B, on)), errc::not_ready);
  const auto before = machine->calls();
  plan.commit();
  EXPECT_EQ(machine->calls(), before);
  EXPECT_FALSE(plan);
  plan.commit();  // does nothing
  EXPECT_TRUE(cache.is_committed(16_MiB, 8_MiB));
  EXPECT_FALSE(cache.is_committed(0_B, 1_B));
  EXPECT_EQ(memory.stats().allocated.current, 12_MiB);
}

TEST_F(growing, gives_back_what_a_plan_had_that_ends_without_a_commit) {
  const auto memory = make();
  const auto on = new_stream();
  const auto cache = reserve_from(memory, 64_MiB);
  ASSERT_TRUE(cache.commit(0_B, 4_MiB, on));
  const std::vector<byte_range> in{{16_MiB, 8_MiB}};
  const std::vector<byte_range> out{{0_B, 4_MiB}};
  {
    const auto plan = cache.prepare(in, out, on).value();
    EXPECT_EQ(memory.stats().allocated.current, 12_MiB);
  }
  EXPECT_EQ(memory.stats().allocated.current, 4_MiB);
  EXPECT_TRUE(cache.is_committed(0_B, 4_MiB));
  EXPECT_FALSE(cache.is_committed(16_MiB, 1_B));
  const std::vector<byte_range> both{{0_B, 8_MiB}};
  EXPECT_EQ(code_of(cache.prepare(both, out, on)), errc::invalid_argument);
}

TEST_F(growing, has_pages_ready_ahead_that_cost_no_driver_call) {
  const auto memory = make();
  const auto on = new_stream();
  const auto cache = reserve_from(memory, 64_MiB);
  ASSERT_TRUE(cache.commit(0_B, 4_MiB, on));
  ASSERT_TRUE(cache.commit_ahead(10_MiB, on));
  EXPECT_EQ(cache.stats().ahead, 12_MiB);
  EXPECT_EQ(memory.stats().allocated.current, 16_MiB);
  EXPECT_FALSE(cache.is_committed(4_MiB, 1_B));
  const auto before = machine->calls();
  ASSERT_TRUE(cache.commit(4_MiB, 8_MiB, on));
  EXPECT_EQ(machine->calls(), before);
  EXPECT_EQ(cache.stats().ahead, 4_MiB);
  use(on, cache, 0_B, 12_MiB);
  EXPECT_EQ(cache.trim().value(), 4_MiB);
  EXPECT_EQ(cache.stats().ahead, 0_B);
  EXPECT_EQ(memory.stats().allocated.current, 12_MiB);
  machine->run_until_idle();
}

TEST_F(growing, makes_another_stream_wait_that_commits_pages_which_are_ready) {
  const auto memory = make();
  const auto one = new_stream();
  const auto two = new_stream();
  const auto cache = reserve_from(memory, 64_MiB);
  ASSERT_TRUE(cache.commit(0_B, 8_MiB, one));
  use(one, cache, 0_B, 8_MiB);
  ASSERT_TRUE(cache.decommit(0_B, 8_MiB, one));
  ASSERT_TRUE(cache.commit_ahead(8_MiB, one));  // memory that kernels of `one` still use
  ASSERT_TRUE(cache.commit(0_B, 8_MiB, two));
  use(two, cache, 0_B, 8_MiB);
  machine->run_until_idle();
}

TEST_F(growing, can_be_resized_within_its_addresses) {
  const auto memory = make();
  const auto on = new_stream();
  const auto cache = reserve_from(memory, 64_MiB);
  ASSERT_TRUE(cache.commit(0_B, 16_MiB, on));
  ASSERT_TRUE(cache.commit_ahead(4_MiB, on));
  ASSERT_TRUE(cache.resize(7_MiB, on));
  EXPECT_EQ(cache.size(), 8_MiB);
  EXPECT_EQ(cache.stats().committed, 8_MiB);
  EXPECT_EQ(cache.stats().ahead, 0_B);
  EXPECT_EQ(memory.stats().allocated.current, 8_MiB);
  EXPECT_EQ(code_of(cache.commit(8_MiB, 1_B, on)), errc::invalid_argument);
  ASSERT_TRUE(cache.resize(64_MiB, on));
  ASSERT_TRUE(cache.commit(8_MiB, 1_B, on));
  const auto refused = cache.resize(64_MiB + 1_B, on);
  EXPECT_EQ(code_of(refused), errc::invalid_argument);
  EXPECT_THAT(refused.error().detail(), HasSubstr("expected at most the reserved 64 MiB"));
}

TEST_F(growing, releases_parked_pages_to_the_driver) {
  const auto memory = make();
  const auto on = new_stream();
  const auto cache = reserve_from(memory, 64_MiB);
  ASSERT_TRUE(cache.commit(0_B, 16_MiB, on));
  use(on, cache, 0_B, 16_MiB);
  ASSERT_TRUE(cache.decommit(0_B, 16_MiB, on));
  machine->run_until_idle();
  EXPECT_EQ(memory.empty_cache().value(), 16_MiB);
  EXPECT_EQ(machine->used(device_id{0}), 64_MiB);  // the context alone
  ASSERT_TRUE(cache.commit(0_B, 4_MiB, on));
  use(on, cache, 0_B, 4_MiB);
  machine->run_until_idle();
}

TEST_F(growing, explains_addresses_of_its_pages) {
  const auto memory = make();
  const auto on = new_stream();
  const auto cache =
      growable_memory::reserve(memory, 64_MiB, {.page = 4_MiB, .name = "kv"}).value();
  ASSERT_TRUE(cache.commit(0_B, 8_MiB, on));
  ASSERT_TRUE(cache.decommit(4_MiB, 4_MiB, on));
  const auto words = [&](bytes offset) {
    return memory.describe_address(at(cache, offset)).value();
  };
  EXPECT_THAT(words(1_MiB), HasSubstr("page 0 of growable memory \"kv\", at offset 1 MiB: the page "
                                      "is committed"));
  EXPECT_THAT(words(5_MiB), HasSubstr("page 1 of growable memory \"kv\", at offset 5 MiB: the page "
                                      "was decommitted"));
  EXPECT_THAT(words(8_MiB), HasSubstr("page 2 of growable memory \"kv\", at offset 8 MiB: the page "
                                      "is not committed"));
  const void* const behind = at(cache, 64_MiB);
  EXPECT_EQ(code_of(memory.describe_address(behind)), errc::foreign_pointer);
}

TEST_F(growing, reports_uses_of_pages_that_are_not_committed) {
  const auto memory = make();
  const auto on = new_stream();
  const auto cache = reserve_from(memory, 64_MiB);
  ASSERT_TRUE(cache.commit(0_B, 12_MiB, on));
  ASSERT_TRUE(cache.decommit(4_MiB, 4_MiB, on));
  use(on, cache, 0_B, 4_MiB);
  EXPECT_THAT(take_hazards(), ::testing::IsEmpty());
  use(on, cache, 2_MiB, 4_MiB);  // into the decommitted page, which is mapped still
  const auto found = take_hazards();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found.front().kind, sim::hazard_kind::use_after_free);
  ASSERT_TRUE(cache.commit(4_MiB, 4_MiB, on));
  use(on, cache, 0_B, 12_MiB);  // a use may go from page to page
  EXPECT_THAT(take_hazards(), ::testing::IsEmpty());
  machine->run_until_idle();
}

TEST_F(growing, ends_with_its_last_handle_after_the_work) {
  const auto memory = make();
  const auto on = new_stream();
  {
    const auto cache = reserve_from(memory, 64_MiB);
    ASSERT_TRUE(cache.commit(0_B, 16_MiB, on));
    use(on, cache, 0_B, 16_MiB);
  }
  EXPECT_EQ(memory.stats().allocated.current, 0_B);
  EXPECT_EQ(memory.stats().reserved.current, 16_MiB);
  const auto closed = reserve_from(memory, 64_MiB);
  const auto copy = closed;
  ASSERT_TRUE(closed.close());
  ASSERT_TRUE(closed.close());
  EXPECT_EQ(code_of(copy.commit(0_B, 1_B, on)), errc::closed);
  machine->run_until_idle();
}

TEST_F(growing, outlives_a_closed_allocator) {
  const auto on = new_stream();
  auto memory = make();
  const auto cache = reserve_from(memory, 64_MiB);
  ASSERT_TRUE(cache.commit(0_B, 8_MiB, on));
  use(on, cache, 0_B, 8_MiB);
  ASSERT_TRUE(memory.close());
  EXPECT_EQ(machine->used(device_id{0}), 64_MiB);
  const auto leaked = heard.take();
  ASSERT_EQ(leaked.size(), 1u);
  EXPECT_EQ(leaked.front().code(), errc::still_live);
  EXPECT_EQ(code_of(cache.commit(8_MiB, 1_B, on)), errc::closed);
  ASSERT_TRUE(cache.close());
}

TEST_F(growing, needs_an_arena_and_sensible_numbers) {
  const auto memory = make();
  const auto refused = [&](bytes size, bytes page) {
    return code_of(growable_memory::reserve(memory, size, {.page = page}));
  };
  EXPECT_EQ(refused(0_B, 4_MiB), errc::invalid_argument);
  EXPECT_EQ(refused(64_MiB, 1_MiB), errc::invalid_argument);
  EXPECT_EQ(refused(64_MiB, 6_MiB), errc::invalid_argument);
  EXPECT_EQ(refused(64_MiB, 2_GiB), errc::invalid_argument);
  EXPECT_EQ(refused(bytes::max(), 4_MiB), errc::size_overflow);
  allocator_options classic;
  classic.policy = placement_policy::classic;
  EXPECT_EQ(code_of(growable_memory::reserve(make(classic), 64_MiB)), errc::not_supported);
  const growable_memory empty;
  const auto on = new_stream();
  EXPECT_FALSE(empty);
  EXPECT_EQ(empty.data(), nullptr);
  EXPECT_EQ(code_of(empty.commit(0_B, 1_B, on)), errc::moved_from);
  EXPECT_EQ(to_string(empty), "growable memory, moved from");
}

TEST_F(growing, is_not_suspended_with_the_allocator_while_it_has_pages) {
  const auto memory = make();
  const auto on = new_stream();
  const auto cache = reserve_from(memory, 64_MiB);
  ASSERT_TRUE(cache.commit(0_B, 8_MiB, on));
  const auto refused = memory.suspend();
  EXPECT_EQ(code_of(refused), errc::not_supported);
  EXPECT_THAT(refused.error().detail(), HasSubstr("growable memory holds pages"));
  ASSERT_TRUE(cache.decommit(0_B, 8_MiB, on));
  ASSERT_TRUE(memory.suspend());  // parked pages go with it
  EXPECT_EQ(machine->used(device_id{0}), 64_MiB);
  ASSERT_TRUE(memory.resume());
  ASSERT_TRUE(cache.commit(0_B, 8_MiB, on));
  use(on, cache, 0_B, 8_MiB);
  machine->run_until_idle();
}

TEST_F(growing, can_be_reached_by_peers_that_come_later) {
  const auto memory = make();
  const auto on = new_stream();
  const auto cache = reserve_from(memory, 64_MiB);
  ASSERT_TRUE(cache.commit(0_B, 8_MiB, on));
  const auto granted = machine->calls(driver::call::mem_set_access);
  ASSERT_TRUE(memory.enable_peer(gpu(1)));
  // Two handles, each mapped in the allocator and in the reservation.
  EXPECT_EQ(machine->calls(driver::call::mem_set_access), granted + 4);
}

TEST_F(growing, tells_the_handles_of_a_page_if_they_can_be_exported) {
  allocator_options exportable;
  exportable.exportable = true;
  const auto memory = make(exportable);
  const auto on = new_stream();
  const auto cache = reserve_from(memory, 64_MiB);
  ASSERT_TRUE(cache.commit(4_MiB, 4_MiB, on));
  const auto under = cache.handles_under(5_MiB).value();
  ASSERT_EQ(under.handles.size(), 1u);
  EXPECT_EQ(under.handles.front().size, 4_MiB);
  EXPECT_EQ(under.offset, 1_MiB);
  EXPECT_EQ(code_of(cache.handles_under(0_B)), errc::not_mapped);
  const auto plain = make();
  const auto other = reserve_from(plain, 64_MiB);
  ASSERT_TRUE(other.commit(0_B, 4_MiB, on));
  EXPECT_EQ(code_of(other.handles_under(0_B)), errc::not_supported);
}

}}  // namespace weir::testing_support
