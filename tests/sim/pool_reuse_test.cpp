// SPDX-License-Identifier: Apache-2.0
// Stream-ordered pools of the simulated machine: who may reuse what was freed, and what is a
// hazard.
//
// The expectations are what an H200 with driver 580 (CUDA 13.0) does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <tuple>
#include <utility>

#include "pool_fixture.hpp"

namespace weir::sim_tests { namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class pool_reuse : public pool_fixture {};

TEST_F(pool_reuse, own_stream_reuses_at_once_even_with_every_rule_off) {
  CUmemoryPool of = keeping();
  rules(of, 0, 0, 0);
  const CUdeviceptr made = take(of, 4 * mib, a);
  give(made, a);
  EXPECT_EQ(take(of, 4 * mib, a), made);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(pool_reuse, neighbours_freed_by_one_stream_serve_it_together) {
  CUmemoryPool of = keeping();
  const CUdeviceptr first = take(of, 16 * mib, a);
  const CUdeviceptr second = take(of, 16 * mib, a);
  give(first, a);
  give(second, a);
  EXPECT_EQ(take(of, 32 * mib, a), first);
  EXPECT_EQ(reserved(of), page);
}

TEST_F(pool_reuse, neighbours_freed_by_one_stream_are_as_pending_as_the_later_of_them) {
  for (const bool front_first : {true, false}) {
    CUmemoryPool of = keeping();
    rules(of, 0, 1, 0);
    const CUstream on = stream();
    const CUdeviceptr front = take(of, mib, on);
    const CUdeviceptr back = take(of, mib, on);
    take(of, 512, on);
    give(front_first ? front : back, on);  // complete at once
    kernel(on, {});
    give(front_first ? back : front, on);
    EXPECT_EQ(take(of, mib, b), front + 2 * mib + 512);
    machine->run_until_idle();
    EXPECT_EQ(take(of, 2 * mib, b), front);
  }
}

TEST_F(pool_reuse, a_wait_for_one_of_two_neighbours_that_a_stream_freed_is_for_neither) {
  for (const bool front_first : {true, false}) {
    CUmemoryPool of = keeping();
    rules(of, 1, 0, 0);
    const CUdeviceptr front = take(of, mib, a);
    const CUdeviceptr back = take(of, mib, a);
    take(of, 512, a);
    give(front_first ? front : back, a);
    order(b, a);
    give(front_first ? back : front, a);
    EXPECT_EQ(take(of, mib, b), front + 2 * mib + 512);
    order(b, a);
    EXPECT_EQ(take(of, 2 * mib, b), front);
  }
}

TEST_F(pool_reuse, what_is_left_of_a_run_is_as_pending_as_the_run_was) {
  CUmemoryPool of = keeping();
  const CUdeviceptr made = take(of, page, a);
  take(of, 512, a);
  give(take(of, 512, a), a);  // complete at once: the stream has something to settle
  kernel(a, {writes(made, page)});
  give(made, a);
  EXPECT_EQ(take(of, page / 2, a), made);
  EXPECT_EQ(take(of, page / 2, b), made + page + 512);
  EXPECT_EQ(take(of, page / 2, a), made + page / 2);
}

TEST_F(pool_reuse, own_frees_come_before_a_better_fit_of_others) {
  CUmemoryPool of = keeping();
  const CUdeviceptr own = take(of, 4 * mib, a);
  take(of, mib, a);
  const CUdeviceptr exact = take(of, 2 * mib, a);
  take(of, mib, a);
  give(exact, a);
  wait_for(a);
  give(own, a);
  EXPECT_EQ(take(of, 2 * mib, a), own);
}

struct reuse_case {
  const char* name;
  int follow, opportunistic, internal;
  enum { pending, complete, synchronised, waited_for, waited_before } freed;
  bool reused;
};

class pool_reuse_rules : public pool_fixture, public ::testing::WithParamInterface<reuse_case> {};

TEST_P(pool_reuse_rules, on_another_stream) {
  const reuse_case& rule = GetParam();
  for (const std::uint64_t size : {4 * mib, page}) {
    CUmemoryPool of = keeping();
    rules(of, rule.follow, rule.opportunistic, rule.internal);
    const CUdeviceptr made = take(of, size, a);
    kernel(a, {writes(made, size)});
    if (rule.freed == reuse_case::waited_before) order(b, a);
    give(made, a);
    if (rule.freed == reuse_case::complete) machine->run_until_idle();
    if (rule.freed == reuse_case::synchronised) wait_for(a);
    if (rule.freed == reuse_case::waited_for) order(b, a);
    const CUdeviceptr again = take(of, size, b);
    EXPECT_EQ(again == made, rule.reused) << size;
    EXPECT_EQ(reserved(of), rule.reused || size < page ? page : 2 * page);
    kernel(b, {writes(again, size)});
    wait_for_all();
    EXPECT_THAT(hazards(), IsEmpty());
    EXPECT_EQ(cuda.mem_pool_destroy(of), CUDA_SUCCESS);
  }
}

INSTANTIATE_TEST_SUITE_P(
    each, pool_reuse_rules,
    ::testing::Values(
        reuse_case{"none_pending", 0, 0, 0, reuse_case::pending, false},
        reuse_case{"all_pending", 1, 1, 1, reuse_case::pending, false},
        reuse_case{"none_complete", 0, 0, 0, reuse_case::complete, false},
        reuse_case{"follow_complete", 1, 0, 0, reuse_case::complete, false},
        reuse_case{"internal_complete", 0, 0, 1, reuse_case::complete, false},
        reuse_case{"opportunistic_complete", 0, 1, 0, reuse_case::complete, true},
        reuse_case{"none_synchronised", 0, 0, 0, reuse_case::synchronised, true},
        reuse_case{"none_waited_for", 0, 0, 0, reuse_case::waited_for, false},
        reuse_case{"opportunistic_waited_for", 0, 1, 0, reuse_case::waited_for, false},
        reuse_case{"internal_waited_for", 0, 0, 1, reuse_case::waited_for, false},
        reuse_case{"follow_waited_for", 1, 0, 0, reuse_case::waited_for, true},
        reuse_case{"follow_waited_before_free", 1, 0, 0, reuse_case::waited_before, false}),
    [](const auto& named) { return named.param.name; });

TEST_F(pool_reuse, of_what_several_streams_freed_before_a_wait_the_best_fit_is_taken) {
  const CUstream c = stream();
  for (const auto& [frees_small, frees_large] : {std::pair{a, b}, std::pair{b, a}}) {
    CUmemoryPool of = keeping();
    rules(of, 1, 0, 0);
    const CUdeviceptr small = take(of, 2 * mib, a);
    take(of, 512, a);
    const CUdeviceptr large = take(of, 4 * mib, a);
    take(of, 512, a);
    order(b, a);
    give(small, frees_small);
    give(large, frees_large);
    order(c, a);
    order(c, b);
    EXPECT_EQ(take(of, mib, c), small);
    EXPECT_EQ(take(of, 3 * mib, c), large);
  }
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(pool_reuse, of_equal_ones_that_several_streams_freed_the_older_streams_comes_first) {
  const CUstream c = stream();
  for (const bool older_frees_first : {true, false}) {
    CUmemoryPool of = keeping();
    rules(of, 1, 0, 0);
    const CUdeviceptr of_older = take(of, mib, a);
    take(of, 512, a);
    const CUdeviceptr of_younger = take(of, mib, a);
    take(of, 512, a);
    order(b, a);
    if (older_frees_first) give(of_older, a);
    give(of_younger, b);
    if (!older_frees_first) give(of_older, a);
    order(c, a);
    order(c, b);
    EXPECT_EQ(take(of, mib, c), of_older);
    EXPECT_EQ(take(of, mib, c), of_younger);
  }
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(pool_reuse, what_was_freed_before_a_wait_comes_first_only_where_it_fits_better) {
  for (const auto& [settled_size, followed_size, takes_followed] :
       {std::tuple{mib, mib, false}, {mib, 2 * mib, false}, {2 * mib, mib, true}}) {
    CUmemoryPool of = keeping();
    rules(of, 1, 0, 0);
    const CUdeviceptr settled = take(of, settled_size, a);
    take(of, 512, a);
    const CUdeviceptr followed = take(of, followed_size, a);
    take(of, 512, a);
    give(settled, a);
    wait_for(a);
    give(followed, a);
    order(b, a);
    EXPECT_EQ(take(of, mib, b), takes_followed ? followed : settled);
    EXPECT_EQ(take(of, mib, b), takes_followed ? settled : followed);
  }
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(pool_reuse, what_was_freed_before_a_wait_will_do_where_a_better_fit_has_no_memory) {
  CUmemoryPool of = keeping();
  rules(of, 1, 0, 0);
  const CUdeviceptr better = take(of, 2 * page, a);
  const CUdeviceptr followed = take(of, 3 * page, a);
  take(of, 512, a);
  give(better, a);
  wait_for(a);
  ASSERT_EQ(cuda.mem_pool_trim_to(of, 0), CUDA_SUCCESS);
  ASSERT_EQ(reserved(of), 4 * page);
  machine->set_capacity(device_id{0}, machine->used(device_id{0}));
  give(followed, a);
  EXPECT_EQ(try_take(of, 2 * page, b), CUDA_ERROR_OUT_OF_MEMORY);
  order(b, a);
  EXPECT_EQ(take(of, 2 * page, b), followed);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(pool_reuse, of_what_several_streams_freed_a_wait_is_for_the_best_fit) {
  const CUstream c = stream();
  for (const auto& [frees_small, frees_large] : {std::pair{a, b}, std::pair{b, a}}) {
    CUmemoryPool of = keeping(page);
    rules(of, 0, 0, 1);
    const CUdeviceptr small = take(of, 8 * mib, a);
    take(of, 512, a);
    const CUdeviceptr large = take(of, 16 * mib, a);
    take(of, 8 * mib - 512, a);
    order(b, a);
    give(small, frees_small);
    give(large, frees_large);
    EXPECT_EQ(take(of, mib, c), small);
    EXPECT_EQ(take(of, 12 * mib, c), large);
  }
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(pool_reuse, of_equal_ones_that_several_streams_freed_a_wait_is_for_the_older_streams) {
  const CUstream c = stream();
  CUmemoryPool of = keeping(3 * page);
  rules(of, 0, 0, 1);
  const CUdeviceptr of_younger = take(of, page, a);
  take(of, page, a);
  const CUdeviceptr of_older = take(of, page, a);
  order(b, a);
  give(of_younger, b);
  give(of_older, a);
  EXPECT_EQ(take(of, page, c), of_older);
  EXPECT_EQ(take(of, page, c), of_younger);
  EXPECT_THAT(hazards(), IsEmpty());
}

/// Two runs of 4 MiB that a stream completes one after the other, each by the free of what is left
/// of it: 1 MiB of the first, 2 MiB of the second. They are equal, so the one that became free for
/// all streams first is taken first.
class pool_settling : public pool_fixture, public ::testing::WithParamInterface<bool> {
 protected:
  struct runs {
    CUmemoryPool of;
    CUstream freed_on;
    CUdeviceptr older;
    CUdeviceptr younger;
  };
  runs make_runs(int opportunistic, int work_before) {
    CUmemoryPool of = keeping();
    rules(of, 0, opportunistic, 0);
    const CUstream on = stream();
    for (int i = 0; i < work_before; ++i) kernel(on, {});
    const CUdeviceptr first = take(of, 3 * mib, on);
    const CUdeviceptr rest_of_first = take(of, mib, on);
    take(of, 512, on);
    const CUdeviceptr second = take(of, 2 * mib, on);
    const CUdeviceptr rest_of_second = take(of, 2 * mib, on);
    take(of, 512, on);
    give(first, on);
    give(second, on);
    wait_for(on);
    const bool smaller_first = GetParam();
    give(smaller_first ? rest_of_first : rest_of_second, on);
    give(smaller_first ? rest_of_second : rest_of_first, on);
    return {of, on, smaller_first ? first : second, smaller_first ? second : first};
  }
};

TEST_P(pool_settling, after_a_synchronisation_is_from_the_youngest_to_the_oldest) {
  for (const int work_before : {0, 64}) {
    const runs made = make_runs(0, work_before);
    wait_for(made.freed_on);
    EXPECT_EQ(take(made.of, 4 * mib, a), made.younger) << work_before;
    EXPECT_EQ(take(made.of, 4 * mib, a), made.older) << work_before;
  }
}

TEST_P(pool_settling, of_what_is_complete_is_from_the_oldest_to_the_youngest) {
  for (const int work_before : {0, 64}) {
    const runs made = make_runs(1, work_before);
    machine->run_until_idle();
    EXPECT_EQ(take(made.of, 4 * mib, a), made.older) << work_before;
    EXPECT_EQ(take(made.of, 4 * mib, a), made.younger) << work_before;
  }
}

INSTANTIATE_TEST_SUITE_P(each, pool_settling, ::testing::Bool(), [](const auto& named) {
  return named.param ? "smaller_first" : "larger_first";
});

TEST_F(pool_reuse, a_wait_is_inserted_only_where_no_memory_can_be_had) {
  for (const int internal : {0, 1}) {
    CUmemoryPool of = keeping(page);
    rules(of, 1, 1, internal);
    const CUdeviceptr made = take(of, page, a);
    kernel(a, {writes(made, page)});
    give(made, a);
    if (internal == 0) {
      EXPECT_EQ(try_take(of, 8 * mib, b), CUDA_ERROR_OUT_OF_MEMORY);
      continue;
    }
    machine->hold(a);
    EXPECT_EQ(take(of, 8 * mib, b), made);
    kernel(b, {writes(made, 8 * mib)});
    machine->run_until_idle();
    EXPECT_EQ(cuda.stream_query(b), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(take(of, 8 * mib, b), made + 8 * mib);
    EXPECT_EQ(take(of, 8 * mib, a), made + 16 * mib);
    machine->release(a);
    machine->run_until_idle();
    EXPECT_EQ(cuda.stream_query(b), CUDA_SUCCESS);
  }
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(pool_reuse, frees_of_two_streams_are_not_joined_by_a_wait) {
  CUmemoryPool of = keeping(2 * page);
  CUstream c = stream();
  const CUdeviceptr first = take(of, page, a);
  const CUdeviceptr second = take(of, page, c);
  kernel(a, {});
  kernel(c, {});
  give(first, a);
  give(second, c);
  EXPECT_EQ(try_take(of, 2 * page, b), CUDA_ERROR_OUT_OF_MEMORY);
  CUmemoryPool other = keeping(2 * page);
  const CUdeviceptr third = take(other, page, a);
  const CUdeviceptr fourth = take(other, page, a);
  give(third, a);
  give(fourth, a);
  EXPECT_EQ(take(other, 2 * page, b), third);
}

TEST_F(pool_reuse, what_is_complete_serves_a_stream_that_is_gone) {
  CUmemoryPool of = keeping();
  const CUdeviceptr made = take(of, mib, a);
  give(made, a);
  ASSERT_EQ(cuda.stream_destroy(a), CUDA_SUCCESS);
  machine->run_until_idle();
  EXPECT_EQ(take(of, mib, b), made);
  wait_for(b);
  EXPECT_THAT(hazards(), IsEmpty());
}

class pool_reuse_in_time : public pool_fixture {
 protected:
  static sim::machine_options with_lag() {
    sim::machine_options options;
    options.mode = sim::progress::timed;
    options.lag = std::chrono::milliseconds{1};
    options.costs = sim::cost_table::free();
    return options;
  }
  pool_reuse_in_time() : pool_fixture{with_lag()} {}
};

TEST_F(pool_reuse_in_time, a_free_is_complete_after_the_lag) {
  CUmemoryPool of = keeping();
  const CUdeviceptr made = take(of, page, a);
  give(made, a);
  machine->advance(std::chrono::microseconds{999});
  EXPECT_NE(take(of, page, b), made);
  machine->advance(std::chrono::microseconds{1});
  EXPECT_EQ(take(of, page, b), made);
  EXPECT_THAT(hazards(), IsEmpty());
}

// --- Hazards -------------------------------------------------------------------------------------

TEST_F(pool_reuse, use_after_a_free_is_reported) {
  CUmemoryPool of = keeping();
  const CUdeviceptr made = take(of, 4096, a);
  kernel(a, {writes(made, 4096)});
  give(made, a);
  EXPECT_THAT(hazards(), IsEmpty());
  kernel(a, {reads(made, 16)});
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::use_after_free));
}

TEST_F(pool_reuse, a_use_after_a_free_names_the_last_free_of_the_block) {
  CUmemoryPool of = keeping();
  const CUdeviceptr made = take(of, 1000, a);
  give(made, a);
  ASSERT_EQ(take(of, 900, a), made);
  kernel(a, {});
  kernel(a, {});
  give(made, a);
  kernel(a, {reads(made, 16)});
  ASSERT_THAT(hazards(), ElementsAre(hazard_kind::use_after_free));
  const sim::hazard reported = machine->hazards().front();
  EXPECT_EQ(reported.first.label, "free");
  EXPECT_EQ(reported.first.stream, reported.second.stream);
  EXPECT_EQ(reported.first.order, 2U) << "behind two kernels";
  EXPECT_EQ(reported.first.extent.address, made);
  EXPECT_EQ(reported.first.extent.size, 900U);
  EXPECT_TRUE(reported.first.writes);
  EXPECT_EQ(reported.first.action, sim::party_action::lifetime);
  EXPECT_EQ(reported.second.step, reported.first.step + 1);
}

TEST_F(pool_reuse, a_use_of_what_has_become_free_for_all_names_the_host) {
  CUmemoryPool of = keeping();
  const CUdeviceptr made = take(of, 1000, a);
  take(of, 512, a);
  give(made, a);
  take(of, mib, b);  // finds out that the free is complete
  kernel(b, {reads(made, 16)});
  ASSERT_THAT(hazards(), ElementsAre(hazard_kind::use_after_free));
  const sim::hazard reported = machine->hazards().front();
  EXPECT_EQ(reported.first.label, "free");
  EXPECT_EQ(reported.first.stream, stream_id{});
  EXPECT_EQ(reported.first.extent.address, made);
  EXPECT_EQ(reported.first.extent.size, 1024U);
  EXPECT_TRUE(reported.first.writes);
  EXPECT_EQ(reported.first.action, sim::party_action::lifetime);
  EXPECT_EQ(reported.second.step, reported.first.step + 2) << "the allocation, and the kernel";
}

TEST_F(pool_reuse_in_time, a_use_after_a_free_says_when_the_free_was_queued) {
  CUmemoryPool of = keeping();
  const CUdeviceptr made = take(of, 4096, a);
  machine->advance(std::chrono::milliseconds{5});
  const sim::time_point when = machine->now();
  give(made, a);
  machine->advance(std::chrono::milliseconds{5});
  kernel(a, {reads(made, 16)});
  ASSERT_THAT(hazards(), ElementsAre(hazard_kind::use_after_free));
  EXPECT_EQ(machine->hazards().front().first.queued, when);
}

TEST_F(pool_reuse, use_after_the_block_was_given_to_another_stream_is_reported) {
  CUmemoryPool of = keeping();
  const CUdeviceptr made = take(of, 4096, a);
  give(made, a);
  machine->run_until_idle();
  ASSERT_EQ(take(of, 4096, b), made);
  kernel(b, {writes(made, 4096)});
  EXPECT_THAT(hazards(), IsEmpty());
  kernel(a, {writes(made, 4096)});
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::race));
}

TEST_F(pool_reuse, opportunistic_reuse_does_not_order_anything_else) {
  CUmemoryPool of = keeping();
  const CUdeviceptr kept = take(of, 4096, a);
  const CUdeviceptr made = take(of, mib, a);
  kernel(a, {writes(kept, 4096)});
  give(made, a);
  machine->run_until_idle();
  ASSERT_EQ(take(of, mib, b), made);
  EXPECT_THAT(hazards(), IsEmpty());
  kernel(b, {reads(kept, 4096)});
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::race));
}

TEST_F(pool_reuse, use_on_another_stream_without_a_wait_is_reported) {
  CUmemoryPool of = keeping();
  const CUdeviceptr made = take(of, 4096, a);
  kernel(b, {writes(made, 4096)});
  ASSERT_THAT(hazards(), ElementsAre(hazard_kind::race));
  const sim::hazard reported = machine->hazards().front();
  EXPECT_EQ(reported.first.label, "alloc");
  EXPECT_NE(reported.first.stream, stream_id{});
  EXPECT_NE(reported.first.stream, reported.second.stream);
  EXPECT_EQ(reported.first.extent.address, made);
  EXPECT_EQ(reported.first.extent.size, 4096U);
}

TEST_F(pool_reuse, a_free_beside_work_of_another_stream_is_reported) {
  CUmemoryPool of = keeping();
  const CUdeviceptr made = take(of, 4096, a);
  order(b, a);
  kernel(b, {reads(made, 4096)});
  EXPECT_THAT(hazards(), IsEmpty());
  give(made, a);
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::freed_in_use));
}

TEST_F(pool_reuse, a_free_of_a_blocking_stream_is_behind_the_legacy_stream_even_where_it_is_held) {
  CUmemoryPool of = keeping();
  CUstream blocking = nullptr;
  ASSERT_EQ(cuda.stream_create(&blocking, CU_STREAM_DEFAULT), CUDA_SUCCESS);
  const CUdeviceptr made = take(of, 4096, blocking);
  kernel(legacy_stream(), {writes(made, 4096)});
  machine->hold(blocking);
  give(made, blocking);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(pool_reuse, memory_that_is_not_allocated_is_out_of_bounds) {
  CUmemoryPool of = keeping();
  const CUdeviceptr made = take(of, 1000, a);
  kernel(a, {writes(made, 1000)});
  EXPECT_THAT(hazards(), IsEmpty());
  kernel(a, {writes(made, 1001)});
  ASSERT_THAT(hazards(), ElementsAre(hazard_kind::use_after_free));
  const auto reported = machine->hazards().front();
  EXPECT_EQ(reported.first.label, "pool keeps memory unallocated");
  EXPECT_EQ(reported.second.step, reported.first.step + 3) << "the allocation, and two kernels";
}

}  // namespace
}  // namespace weir::sim_tests
