// Stream-ordered pools of the simulated machine: who may reuse what was freed, and what is a
// hazard.
//
// The expectations are what an H200 with driver 580 (CUDA 13.0) does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <utility>

#include "pool_fixture.hpp"

namespace weir::sim_tests {
namespace {

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
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::race));
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
