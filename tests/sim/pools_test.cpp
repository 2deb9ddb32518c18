// SPDX-License-Identifier: Apache-2.0
// Stream-ordered pools of the simulated machine: growth, release, errors, several devices.
//
// The expectations are what an H200 with driver 580 (CUDA 13.0) does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>
#include <utility>
#include <vector>

#include "pool_fixture.hpp"
#include "sim/pool_blocks.hpp"

namespace weir::sim_tests { namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class pools : public pool_fixture {
 public:
  using pool_fixture::pool_fixture;
};

TEST(block_map, knows_of_no_block_on_the_page_behind_the_last_start) {
  constexpr std::uint64_t base = 4 * sim::pool_page;
  sim::block_map map{base, 4 * sim::pool_page};
  EXPECT_EQ(map.starting_at(base), &map.first());
  EXPECT_EQ(map.starting_at(base + sim::pool_page), nullptr);
  EXPECT_EQ(&map.containing(base + sim::pool_page), &map.first());
}

// --- Which pool ----------------------------------------------------------------------------------

TEST_F(pools, every_device_has_a_default_pool_with_default_attributes) {
  CUmemoryPool standard = nullptr;
  CUmemoryPool current = nullptr;
  ASSERT_EQ(cuda.device_get_default_mem_pool(&standard, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuda.device_get_mem_pool(&current, 0), CUDA_SUCCESS);
  EXPECT_EQ(standard, current);
  for (const auto rule :
       {CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
        CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES}) {
    int on = 0;
    EXPECT_EQ(cuda.mem_pool_get_attribute(standard, rule, &on), CUDA_SUCCESS);
    EXPECT_EQ(on, 1);
  }
  EXPECT_EQ(figure(standard, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0U);
  EXPECT_EQ(reserved(standard), 0U);
  EXPECT_EQ(cuda.mem_pool_destroy(standard), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.device_get_default_mem_pool(&standard, 7), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuda.device_get_mem_pool(&standard, 7), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.device_set_mem_pool(0, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(pools, mem_alloc_async_takes_from_the_current_pool) {
  CUmemoryPool mine = keeping();
  ASSERT_EQ(cuda.device_set_mem_pool(0, mine), CUDA_SUCCESS);
  CUdeviceptr made = 0;
  ASSERT_EQ(cuda.mem_alloc_async(&made, 1000, a), CUDA_SUCCESS);
  EXPECT_EQ(used(mine), 1000U);
  give(made, a);
  ASSERT_EQ(cuda.mem_pool_destroy(mine), CUDA_SUCCESS);
  CUmemoryPool current = nullptr;
  CUmemoryPool standard = nullptr;
  ASSERT_EQ(cuda.device_get_mem_pool(&current, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuda.device_get_default_mem_pool(&standard, 0), CUDA_SUCCESS);
  EXPECT_EQ(current, standard);
}

TEST_F(pools, properties_are_validated) {
  CUmemoryPool made = nullptr;
  const auto create = [&](const CUmemPoolProps& wanted) {
    return cuda.mem_pool_create(&made, &wanted);
  };
  CUmemPoolProps wanted = device_pool();
  wanted.allocType = CU_MEM_ALLOCATION_TYPE_INVALID;
  EXPECT_EQ(create(wanted), CUDA_ERROR_INVALID_VALUE);
  for (const int bad : {-1, 1, 5}) {
    EXPECT_EQ(create(device_pool(bad)), CUDA_ERROR_INVALID_VALUE);
  }
  EXPECT_EQ(create(device_pool(0, 0, CU_MEM_HANDLE_TYPE_WIN32)), CUDA_ERROR_INVALID_VALUE);
  wanted = device_pool();
  wanted.reserved[53] = 1;
  EXPECT_EQ(create(wanted), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(create(device_pool(0, std::uint64_t{1} << 50)), CUDA_ERROR_OUT_OF_MEMORY);
  wanted = device_pool();
  wanted.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
  EXPECT_EQ(create(wanted), CUDA_ERROR_INVALID_VALUE);
  wanted.location.type = CU_MEM_LOCATION_TYPE_HOST;
  wanted.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  EXPECT_EQ(create(wanted), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_pool_create(nullptr, &wanted), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_pool_create(&made, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(create(device_pool(0, 0, CU_MEM_HANDLE_TYPE_FABRIC)), CUDA_SUCCESS);
}

// --- Growth --------------------------------------------------------------------------------------

TEST_F(pools, memory_is_reserved_in_pages_and_used_counts_what_was_asked_for) {
  for (const auto& [bytes, expected] : {std::pair{std::uint64_t{1}, page},
                                        {page, page},
                                        {page + 1, 2 * page},
                                        {100 * mib, 4 * page},
                                        {1001 * mib, 32 * page}}) {
    CUmemoryPool of = make(device_pool());
    const std::uint64_t before = machine->used(device_id{0}).count();
    const CUdeviceptr made = take(of, bytes, a);
    EXPECT_EQ(made % 512, 0U);
    EXPECT_EQ(reserved(of), expected);
    EXPECT_EQ(machine->used(device_id{0}).count() - before, expected);
    EXPECT_EQ(used(of), bytes);
    CUdeviceptr start = 0;
    std::size_t size = 0;
    EXPECT_EQ(cuda.mem_get_address_range(&start, &size, made + bytes / 2), CUDA_SUCCESS);
    EXPECT_EQ(start, made);
    EXPECT_EQ(size, bytes);
    EXPECT_NE(cuda.mem_get_address_range(&start, &size, made + bytes), CUDA_SUCCESS);
    give(made, a);
    EXPECT_EQ(used(of), 0U);
  }
}

TEST_F(pools, allocations_lie_one_after_the_other_across_pages) {
  CUmemoryPool of = keeping();
  const CUdeviceptr first = take(of, 20 * mib, a);
  EXPECT_EQ(take(of, 20 * mib, a), first + 20 * mib);
  EXPECT_EQ(reserved(of), 2 * page);
  EXPECT_EQ(take(of, 12 * mib, a), first + 40 * mib);
  EXPECT_EQ(take(of, 12 * mib, a), first + 52 * mib);
  EXPECT_EQ(reserved(of), 2 * page);
  EXPECT_EQ(take(of, 1, a), first + 64 * mib);
  EXPECT_EQ(take(of, 513, a), first + 64 * mib + 512);
  EXPECT_EQ(take(of, 100 * mib, a), first + 64 * mib + 512 + 1024);
  EXPECT_EQ(reserved(of), 6 * page);
}

TEST_F(pools, best_fit_and_of_equal_ones_the_first_freed) {
  CUmemoryPool of = keeping();
  std::vector<CUdeviceptr> v;
  for (int i = 0; i < 8; ++i) v.push_back(take(of, mib, a));
  for (const std::size_t i : {1U, 5U, 3U}) give(v[i], a);
  EXPECT_EQ(take(of, mib, a), v[1]);
  EXPECT_EQ(take(of, mib, a), v[5]);
  EXPECT_EQ(take(of, mib, a), v[3]);
  EXPECT_EQ(take(of, mib, a), v[7] + mib);
  const CUdeviceptr four = take(of, 4 * mib, a);
  take(of, mib, a);
  const CUdeviceptr two = take(of, 2 * mib, a);
  take(of, mib, a);
  give(four, a);
  give(two, a);
  EXPECT_EQ(take(of, 2 * mib, a), two);
  EXPECT_EQ(take(of, mib / 2, a), four);
}

TEST_F(pools, of_equal_ones_what_was_never_used_comes_before_what_was_freed) {
  const bytes few = machine->used(device_id{0}) + bytes{page};
  machine->set_capacity(device_id{0}, few);
  CUmemoryPool of = keeping();
  const CUdeviceptr first = take(of, page, a);
  // The pool has its addresses now, four times those of the device; there is memory for all of
  // them.
  machine->set_capacity(device_id{0}, bytes{capacity()});
  const std::uint64_t addresses = 4 * (few.count() / page + 1) * page;
  EXPECT_EQ(take(of, addresses - 2 * page, a), first + page);
  ASSERT_EQ(cuda.mem_free(first), CUDA_SUCCESS);
  EXPECT_EQ(take(of, page, a), first + addresses - page);
  EXPECT_EQ(take(of, page, a), first);
}

TEST_F(pools, a_synchronised_stream_hands_its_frees_over_youngest_first) {
  for (const int work_before : {0, 64}) {
    CUmemoryPool of = keeping();
    for (int i = 0; i < work_before; ++i) kernel(a, {});
    std::vector<CUdeviceptr> v;
    for (int i = 0; i < 8; ++i) v.push_back(take(of, mib, a));
    give(v[5], a);
    give(v[1], b);
    give(v[3], a);
    wait_for_all();
    EXPECT_EQ(take(of, mib, a), v[3]);
    EXPECT_EQ(take(of, mib, a), v[5]);
    EXPECT_EQ(take(of, mib, a), v[1]);
  }
}

TEST_F(pools, free_pages_move_where_contiguous_addresses_need_them) {
  CUmemoryPool of = keeping();
  std::vector<CUdeviceptr> v;
  for (int i = 0; i < 6; ++i) v.push_back(take(of, page, a));
  give(v[1], a);
  give(v[3], a);
  wait_for(a);
  const CUdeviceptr large = take(of, 2 * page, a);
  EXPECT_EQ(large, v[5] + page);
  EXPECT_EQ(reserved(of), 6 * page);
  EXPECT_EQ(take(of, 20 * mib, a), v[3]);
  EXPECT_EQ(reserved(of), 7 * page);
}

TEST_F(pools, pages_of_frees_that_are_not_complete_do_not_move) {
  CUmemoryPool of = keeping();
  std::vector<CUdeviceptr> v;
  for (int i = 0; i < 6; ++i) v.push_back(take(of, page, a));
  kernel(a, {});
  give(v[1], a);
  give(v[3], a);
  take(of, 2 * page, a);
  EXPECT_EQ(reserved(of), 8 * page);
}

TEST_F(pools, a_maximum_is_rounded_up_and_kept) {
  CUmemoryPool of = keeping(33 * mib);
  take(of, 32 * mib, a);
  const CUdeviceptr last = take(of, 32 * mib, a);
  EXPECT_EQ(try_take(of, 512, a), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(reserved(of), 2 * page);
  EXPECT_EQ(used(of), 2 * page);
  give(last, a);
  EXPECT_EQ(take(of, 512, a), last);
}

TEST_F(pools, without_room_the_unused_memory_of_other_pools_goes_first) {
  machine->set_capacity(device_id{0}, bytes{machine->used(device_id{0}).count() + 10 * page});
  CUmemoryPool first = keeping();
  CUmemoryPool second = keeping();
  const CUdeviceptr most = take(first, 8 * page, a);
  kernel(a, {});
  EXPECT_EQ(try_take(second, 4 * page, a), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(reserved(second), 2 * page);  // what could be had stays, as with the driver
  EXPECT_EQ(used(second), 0U);
  give(most, a);
  EXPECT_EQ(try_take(second, 4 * page, a), CUDA_ERROR_OUT_OF_MEMORY);  // not known to be complete
  wait_for(a);
  take(second, 4 * page, a);
  EXPECT_EQ(reserved(first), 0U);
  EXPECT_EQ(reserved(second), 4 * page);
}

TEST_F(pools, without_another_page_a_looser_fit_that_needs_none_will_do) {
  CUmemoryPool of = keeping();
  const CUdeviceptr start = take(of, page, a);
  const CUdeviceptr best = take(of, page, a);  // all of page 1
  take(of, 42 * mib, a);
  const CUdeviceptr half = take(of, 54 * mib, a);  // 22 MiB of page 3, and all of page 4
  take(of, mib, a);
  const CUdeviceptr whole = take(of, 62 * mib, a);  // of pages 5 and 6, without their ends
  take(of, mib, a);
  ASSERT_EQ(half, start + 106 * mib);
  ASSERT_EQ(whole, start + 161 * mib);
  for (const CUdeviceptr each : {best, half, whole}) give(each, a);
  wait_for(a);
  ASSERT_EQ(cuda.mem_pool_trim_to(of, 0), CUDA_SUCCESS);
  ASSERT_EQ(reserved(of), 5 * page) << "without pages 1 and 4";
  machine->set_capacity(device_id{0}, machine->used(device_id{0}));

  const CUdeviceptr up_to_the_page = take(of, 22 * mib, a);
  EXPECT_EQ(up_to_the_page, half);
  give(up_to_the_page, a);
  wait_for(a);
  EXPECT_EQ(try_take(of, 62 * mib + 512, a), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(take(of, 22 * mib + 512, a), whole);
  EXPECT_EQ(try_take(of, 54 * mib, a), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(take(of, 39 * mib, a), whole + 22 * mib + 512);
  EXPECT_EQ(reserved(of), 5 * page);
}

TEST_F(pools, plain_allocations_take_what_pools_do_not_use) {
  machine->set_capacity(device_id{0}, bytes{machine->used(device_id{0}).count() + 4 * page});
  CUmemoryPool of = keeping();
  give(take(of, 4 * page, a), a);
  wait_for(a);
  CUdeviceptr plain = 0;
  EXPECT_EQ(cuda.mem_alloc(&plain, 3 * page), CUDA_SUCCESS);
  EXPECT_EQ(reserved(of), 0U);
}

// --- Release -------------------------------------------------------------------------------------

TEST_F(pools, above_the_threshold_memory_goes_at_a_synchronisation_that_covers_the_free) {
  const auto after = [&](const auto& synchronise) {
    CUmemoryPool of = make(device_pool());
    const CUdeviceptr made = take(of, 4 * mib, a);
    wait_for_all();
    give(made, a);
    machine->run_until_idle();
    EXPECT_EQ(reserved(of), page);
    synchronise();
    return reserved(of);
  };
  CUevent event = nullptr;
  ASSERT_EQ(cuda.event_create(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  EXPECT_EQ(after([&] { wait_for(a); }), 0U);
  EXPECT_EQ(after([&] { wait_for_all(); }), 0U);
  EXPECT_EQ(after([&] {
              cuda.event_record(event, a);
              cuda.event_synchronize(event);
            }),
            0U);
  EXPECT_EQ(after([&] {
              order(b, a);
              wait_for(b);
            }),
            0U);
  EXPECT_EQ(after([&] { wait_for(b); }), page);
  EXPECT_EQ(after([&] { cuda.stream_query(a); }), page);
}

TEST_F(pools, the_threshold_is_how_much_may_stay) {
  for (const auto& [limit, live, rest] : {std::tuple{std::uint64_t{0}, page, std::uint64_t{0}},
                                          {16 * mib, page, std::uint64_t{0}},
                                          {32 * mib, page, page},
                                          {63 * mib, page, page},
                                          {64 * mib, 2 * page, 2 * page},
                                          {200 * mib, 5 * page, 5 * page}}) {
    CUmemoryPool of = make(device_pool());
    threshold(of, limit);
    std::vector<CUdeviceptr> v;
    for (int i = 0; i < 4; ++i) v.push_back(take(of, page, a));
    const CUdeviceptr one = take(of, 1, a);
    for (const CUdeviceptr each : v) give(each, a);
    EXPECT_EQ(reserved(of), 5 * page);
    wait_for(a);
    EXPECT_EQ(reserved(of), live) << limit;
    give(one, a);
    wait_for(a);
    EXPECT_EQ(reserved(of), rest) << limit;
  }
}

TEST_F(pools, trim_keeps_at_least_what_it_is_told) {
  for (const auto& [keep, rest] : {std::pair{std::uint64_t{0}, page},
                                   {page, page},
                                   {33 * mib, 2 * page},
                                   {96 * mib, 3 * page},
                                   {500 * mib, 5 * page},
                                   {everything, 5 * page}}) {
    CUmemoryPool of = keeping();
    std::vector<CUdeviceptr> v;
    for (int i = 0; i < 4; ++i) v.push_back(take(of, page, a));
    take(of, 1, a);
    for (const CUdeviceptr each : v) give(each, a);
    wait_for(a);
    EXPECT_EQ(cuda.mem_pool_trim_to(of, keep), CUDA_SUCCESS);
    EXPECT_EQ(reserved(of), rest) << keep;
  }
}

TEST_F(pools, trim_spares_frees_that_nobody_has_synchronised_with) {
  CUmemoryPool of = keeping();
  kernel(a, {});
  give(take(of, 4 * mib, a), a);
  EXPECT_EQ(cuda.mem_pool_trim_to(of, 0), CUDA_SUCCESS);
  EXPECT_EQ(reserved(of), page);
  machine->run_until_idle();
  EXPECT_EQ(cuda.mem_pool_trim_to(of, 0), CUDA_SUCCESS);
  EXPECT_EQ(reserved(of), page);
  wait_for(a);
  EXPECT_EQ(reserved(of), page);
  EXPECT_EQ(cuda.mem_pool_trim_to(of, 0), CUDA_SUCCESS);
  EXPECT_EQ(reserved(of), 0U);
}

TEST_F(pools, pages_inside_a_large_free_run_can_go) {
  CUmemoryPool of = keeping();
  const CUdeviceptr large = take(of, 100 * mib, a);
  take(of, 1, a);
  give(large, a);
  wait_for(a);
  EXPECT_EQ(cuda.mem_pool_trim_to(of, 40 * mib), CUDA_SUCCESS);
  EXPECT_EQ(reserved(of), 2 * page);
  EXPECT_EQ(cuda.mem_pool_trim_to(of, 0), CUDA_SUCCESS);
  EXPECT_EQ(reserved(of), page);
  EXPECT_EQ(take(of, 100 * mib, a), large);
  EXPECT_EQ(reserved(of), 4 * page);
}

TEST_F(pools, memory_that_came_back_is_as_good_as_new) {
  CUmemoryPool of = make(device_pool());
  const CUdeviceptr made = take(of, mib, a);
  kernel(a, {writes(made, mib)});
  give(made, a);
  wait_for(a);
  EXPECT_EQ(reserved(of), 0U);
  const CUdeviceptr again = take(of, mib, b);
  EXPECT_EQ(again, made);
  EXPECT_EQ(cuda.memset_d8_async(again, 7, mib, b), CUDA_SUCCESS);
  wait_for(b);
  EXPECT_EQ(*reinterpret_cast<const unsigned char*>(again), 7);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(pools, high_marks_can_only_be_set_back) {
  CUmemoryPool of = keeping();
  const CUdeviceptr made = take(of, 40 * mib, a);
  take(of, mib, a);
  give(made, a);
  wait_for(a);
  EXPECT_EQ(figure(of, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 41 * mib);
  const auto set = [&](CUmemPool_attribute which, std::uint64_t value) {
    return cuda.mem_pool_set_attribute(of, which, &value);
  };
  EXPECT_EQ(set(CU_MEMPOOL_ATTR_USED_MEM_HIGH, 5), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(set(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(set(CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(set(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(set(static_cast<CUmemPool_attribute>(13), 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_pool_trim_to(of, 0), CUDA_SUCCESS);
  EXPECT_EQ(set(CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0), CUDA_SUCCESS);
  EXPECT_EQ(set(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0), CUDA_SUCCESS);
  EXPECT_EQ(figure(of, CU_MEMPOOL_ATTR_USED_MEM_HIGH), mib);
  EXPECT_EQ(figure(of, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), page);
  EXPECT_EQ(cuda.mem_pool_set_attribute(of, CU_MEMPOOL_ATTR_USED_MEM_HIGH, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  int given = -1;
  EXPECT_EQ(cuda.mem_pool_set_attribute(of, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &given),
            CUDA_SUCCESS);
  int read = 0;
  EXPECT_EQ(cuda.mem_pool_get_attribute(of, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &read),
            CUDA_SUCCESS);
  EXPECT_EQ(read, 1);
}

TEST_F(pools, destroying_a_pool_waits_for_its_last_allocation) {
  const std::uint64_t before = machine->used(device_id{0}).count();
  const std::uint64_t mapped_before = testing_support::mapped_bytes();
  CUmemoryPool of = keeping();
  const CUdeviceptr made = take(of, 4 * mib, a);
  ASSERT_EQ(cuda.mem_pool_destroy(of), CUDA_SUCCESS);
  EXPECT_GT(testing_support::mapped_bytes(), mapped_before + capacity())
      << "a pool takes a device's addresses";
  EXPECT_LT(testing_support::mapped_bytes(), mapped_before + 5 * capacity());
  EXPECT_EQ(cuda.mem_pool_destroy(of), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(try_take(of, 512, a), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.memset_d8_async(made, 1, 4 * mib, a), CUDA_SUCCESS);
  wait_for(a);
  EXPECT_EQ(machine->used(device_id{0}).count(), before + page);
  give(made, a);
  EXPECT_EQ(machine->used(device_id{0}).count(), before + page);
  wait_for(a);
  EXPECT_EQ(machine->used(device_id{0}).count(), before);
  EXPECT_LT(testing_support::mapped_bytes(), mapped_before + capacity())
      << "its addresses are gone, too";
  EXPECT_EQ(cuda.mem_free_async(made, a), CUDA_ERROR_INVALID_VALUE);

  CUmemoryPool unused = keeping();
  give(take(unused, page, a), a);
  wait_for(a);
  EXPECT_EQ(machine->used(device_id{0}).count(), before + page);
  ASSERT_EQ(cuda.mem_pool_destroy(unused), CUDA_SUCCESS);
  EXPECT_EQ(machine->used(device_id{0}).count(), before);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(pools, a_destroyed_pool_whose_frees_are_done_makes_room_before_anybody_waits) {
  machine->set_capacity(device_id{0}, machine->used(device_id{0}) + bytes{4 * page});
  CUmemoryPool of = keeping();
  const CUdeviceptr made = take(of, 3 * page, a);
  EXPECT_EQ(cuda.memset_d8_async(made, 1, mib, a), CUDA_SUCCESS);
  give(made, a);
  ASSERT_EQ(cuda.mem_pool_destroy(of), CUDA_SUCCESS);
  CUdeviceptr other = 0;
  EXPECT_EQ(cuda.mem_alloc(&other, 2 * page), CUDA_ERROR_OUT_OF_MEMORY) << "the free is not done";
  machine->run_until_idle();
  EXPECT_EQ(cuda.mem_alloc(&other, 2 * page), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(pools, a_reset_context_takes_everything_along) {
  const std::uint64_t before = machine->used(device_id{0}).count();
  CUmemoryPool of = keeping();
  CUmemoryPool standard = nullptr;
  ASSERT_EQ(cuda.device_get_default_mem_pool(&standard, 0), CUDA_SUCCESS);
  take(of, page, a);
  const CUdeviceptr made = take(standard, page, a);
  ASSERT_EQ(cuda.device_primary_ctx_reset(0), CUDA_SUCCESS);
  ASSERT_EQ(cuda.device_primary_ctx_retain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuda.ctx_set_current(context), CUDA_SUCCESS);
  EXPECT_LE(machine->used(device_id{0}).count(), before);
  EXPECT_EQ(reserved(standard), 0U);
  EXPECT_EQ(used(standard), 0U);
  CUdeviceptr start = 0;
  std::size_t size = 0;
  EXPECT_NE(cuda.mem_get_address_range(&start, &size, made), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_pool_trim_to(of, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(take(standard, 2 * page, stream()), made) << "all its addresses are free again";
}

// --- Errors --------------------------------------------------------------------------------------

TEST_F(pools, bad_frees_are_told_apart) {
  CUmemoryPool of = keeping();
  const CUdeviceptr made = take(of, 4096, a);
  EXPECT_EQ(cuda.mem_free_async(0, a), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_free_async(made + 1, a), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_free_async(made + 512, a), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_free_async(made + 4096, a), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_free_async(made + 64 * page, a), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_free_async(0x1234000, a), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_free_async(made, reinterpret_cast<CUstream>(std::uintptr_t{0x99})),
            CUDA_ERROR_INVALID_HANDLE);
  void* pinned = nullptr;
  ASSERT_EQ(cuda.mem_host_alloc(&pinned, 4096, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_free_async(reinterpret_cast<CUdeviceptr>(pinned), a),
            CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr managed = 0;
  ASSERT_EQ(cuda.mem_alloc_managed(&managed, 4096, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_free_async(managed, a), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(used(of), 4096U);
  give(made, a);
  EXPECT_EQ(cuda.mem_free_async(made, a), CUDA_ERROR_INVALID_VALUE);
  wait_for(a);
  EXPECT_EQ(cuda.mem_free_async(made, a), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_free(made), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(used(of), 0U);
}

TEST_F(pools, bad_allocations_change_nothing) {
  CUmemoryPool of = keeping();
  CUdeviceptr made = 77;
  EXPECT_EQ(cuda.mem_alloc_from_pool_async(&made, 0, of, a), CUDA_SUCCESS);
  EXPECT_EQ(made, 0U);
  EXPECT_EQ(cuda.mem_alloc_from_pool_async(nullptr, 8, of, a), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_alloc_from_pool_async(&made, 8, nullptr, a), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(try_take(of, everything, a), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(try_take(of, std::uint64_t{1} << 62, a), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(try_take(of, std::uint64_t{1} << 45, a), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(used(of), 0U);
  EXPECT_EQ(reserved(of), 0U);
}

TEST_F(pools, streams_that_do_not_exist_are_told_apart) {
  const auto nobody = reinterpret_cast<CUstream>(std::uintptr_t{0xdead0});
  const CUmemoryPool of = make(device_pool());
  CUdeviceptr made = 0;
  const auto expect_all = [&](CUstream on, CUresult answer) {
    EXPECT_EQ(cuda.mem_alloc_from_pool_async(&made, 512, of, on), answer);
    EXPECT_EQ(cuda.mem_alloc_async(&made, 512, on), answer);
    EXPECT_EQ(cuda.mem_free_async(0, on), answer);
  };
  expect_all(nobody, CUDA_ERROR_INVALID_HANDLE);
  ASSERT_EQ(cuda.ctx_set_current(nullptr), CUDA_SUCCESS);
  expect_all(nullptr, CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(made, 0u);
}

TEST(pools_of_a_device_without_them, are_the_hosts_alone) {
  sim::machine_options options = by_hand();
  options.devices[0].memory_pools = false;
  const auto machine = sim::machine::create(options).value();
  const table& cuda = machine->driver();
  ASSERT_EQ(cuda.init(0), CUDA_SUCCESS);
  CUmemPoolProps wanted = device_pool();
  CUmemoryPool made = nullptr;
  EXPECT_EQ(cuda.mem_pool_create(&made, &wanted), CUDA_ERROR_NOT_SUPPORTED);
  wanted.location = {CU_MEM_LOCATION_TYPE_HOST, 0};
  EXPECT_EQ(cuda.mem_pool_create(&made, &wanted), CUDA_SUCCESS);
  EXPECT_NE(made, nullptr);
  for (const CUmemoryPool chosen : {made, CUmemoryPool{nullptr}})
    EXPECT_EQ(cuda.device_set_mem_pool(0, chosen), CUDA_ERROR_NOT_SUPPORTED);
}

TEST_F(pools, a_plain_free_waits_for_nothing_and_serves_everybody) {
  CUmemoryPool of = keeping();
  const CUdeviceptr made = take(of, 4096, a);
  wait_for(a);
  EXPECT_EQ(cuda.mem_free(made + 512), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_free(made), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_free(made), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(used(of), 4096U);  // the driver does not count such frees
  EXPECT_EQ(take(of, 4096, b), made);
  wait_for(b);
  EXPECT_THAT(hazards(), IsEmpty());
  kernel(b, {writes(made, 4096)});
  EXPECT_EQ(cuda.mem_free(made), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::freed_in_use));
}

TEST_F(pools, plain_memory_can_be_freed_in_stream_order) {
  const std::uint64_t before = machine->used(device_id{0}).count();
  CUdeviceptr made = 0;
  ASSERT_EQ(cuda.mem_alloc(&made, 64 * mib), CUDA_SUCCESS);
  kernel(a, {writes(made, 64 * mib)});
  give(made, a);
  EXPECT_EQ(cuda.mem_free_async(made, a), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_free(made), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(machine->used(device_id{0}).count(), before + 64 * mib);
  wait_for(a);
  EXPECT_EQ(machine->used(device_id{0}).count(), before);
  EXPECT_THAT(hazards(), IsEmpty());
  ASSERT_EQ(cuda.mem_alloc(&made, 64 * mib), CUDA_SUCCESS);
  kernel(b, {writes(made, 64 * mib)});
  give(made, a);
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::freed_in_use));
}

// --- Several devices -----------------------------------------------------------------------------

class pools_of_two_devices : public pools {
 protected:
  pools_of_two_devices() : pools{by_hand(2)} {
    EXPECT_EQ(cuda.device_primary_ctx_retain(&other, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuda.ctx_set_current(other), CUDA_SUCCESS);
    there = stream();
    EXPECT_EQ(cuda.ctx_set_current(context), CUDA_SUCCESS);
  }
  CUresult set(CUmemoryPool of, CUmemLocation where, CUmemAccess_flags flags) {
    const CUmemAccessDesc wanted{where, flags};
    return cuda.mem_pool_set_access(of, &wanted, 1);
  }
  CUmemAccess_flags get(CUmemoryPool of, CUmemLocation where) {
    CUmemAccess_flags found{};
    EXPECT_EQ(cuda.mem_pool_get_access(&found, of, &where), CUDA_SUCCESS);
    return found;
  }
  CUcontext other = nullptr;
  CUstream there = nullptr;
  static constexpr CUmemLocation device_0{CU_MEM_LOCATION_TYPE_DEVICE, 0};
  static constexpr CUmemLocation device_1{CU_MEM_LOCATION_TYPE_DEVICE, 1};
  static constexpr CUmemLocation host{CU_MEM_LOCATION_TYPE_HOST, 0};
};

TEST_F(pools_of_two_devices, a_peer_needs_access) {
  CUmemoryPool of = keeping();
  EXPECT_EQ(get(of, device_0), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  EXPECT_EQ(get(of, device_1), CU_MEM_ACCESS_FLAGS_PROT_NONE);
  const CUdeviceptr made = take(of, 4096, there);  // a pool serves streams of any device
  EXPECT_EQ(set(of, device_1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_SUCCESS);
  EXPECT_EQ(get(of, device_1), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  kernel(there, {writes(made, 4096)});
  const CUdeviceptr large = take(of, 2 * page, there);  // memory that comes later is granted too
  kernel(there, {writes(large, 2 * page)});
  EXPECT_THAT(hazards(), IsEmpty());
  wait_for(there);
  EXPECT_EQ(set(of, device_1, CU_MEM_ACCESS_FLAGS_PROT_NONE), CUDA_SUCCESS);
  kernel(there, {writes(made, 4096)});
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::bad_access));
}

TEST_F(pools_of_two_devices, access_is_validated) {
  CUmemoryPool of = keeping();
  EXPECT_EQ(set(of, device_0, CU_MEM_ACCESS_FLAGS_PROT_NONE), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(set(of, device_0, CU_MEM_ACCESS_FLAGS_PROT_READ), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(set(of, device_0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_SUCCESS);
  EXPECT_EQ(set(of, device_1, static_cast<CUmemAccess_flags>(2)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(set(of, {CU_MEM_LOCATION_TYPE_DEVICE, 2}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
            CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(set(of, host, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(get(of, host), CU_MEM_ACCESS_FLAGS_PROT_NONE);
  EXPECT_EQ(cuda.mem_pool_set_access(of, nullptr, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_pool_set_access(of, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
  CUmemAccess_flags found{};
  CUmemLocation nowhere{CU_MEM_LOCATION_TYPE_DEVICE, 2};
  EXPECT_EQ(cuda.mem_pool_get_access(&found, of, &nowhere), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.device_set_mem_pool(1, of), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(pools_of_two_devices, go_with_the_context_of_their_own_device_only) {
  const CUmemoryPool here = make(device_pool(0));
  const CUmemoryPool elsewhere = make(device_pool(1));
  ASSERT_EQ(cuda.device_set_mem_pool(0, here), CUDA_SUCCESS);
  ASSERT_EQ(cuda.device_set_mem_pool(1, elsewhere), CUDA_SUCCESS);
  take(here, 4096, a);
  take(elsewhere, 4096, there);
  ASSERT_EQ(cuda.ctx_set_current(other), CUDA_SUCCESS);
  ASSERT_EQ(cuda.device_primary_ctx_reset(0), CUDA_SUCCESS);
  std::uint64_t in_use = 0;
  EXPECT_EQ(cuda.mem_pool_get_attribute(here, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &in_use),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(used(elsewhere), 4096U);
  const auto current_of = [&](int device) {
    CUmemoryPool current = nullptr;
    EXPECT_EQ(cuda.device_get_mem_pool(&current, device), CUDA_SUCCESS);
    return current;
  };
  CUmemoryPool standard = nullptr;
  ASSERT_EQ(cuda.device_get_default_mem_pool(&standard, 0), CUDA_SUCCESS);
  EXPECT_EQ(current_of(0), standard);
  EXPECT_EQ(current_of(1), elsewhere);
}

TEST_F(pools_of_two_devices, host_memory_has_pools_too) {
  CUmemPoolProps wanted = device_pool();
  wanted.location = host;
  CUmemoryPool of = make(wanted);
  const std::uint64_t before = machine->used(device_id{0}).count();
  EXPECT_EQ(get(of, host), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  EXPECT_EQ(get(of, device_0), CU_MEM_ACCESS_FLAGS_PROT_NONE);
  const CUdeviceptr made = take(of, 4096, a);
  EXPECT_EQ(reserved(of), page);
  EXPECT_EQ(machine->used(device_id{0}).count(), before);
  EXPECT_EQ(set(of, device_0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_SUCCESS);
  kernel(a, {writes(made, 4096)});
  wait_for(a);
  *reinterpret_cast<char*>(made) = 5;
  EXPECT_THAT(hazards(), IsEmpty());
  EXPECT_EQ(cuda.device_set_mem_pool(0, of), CUDA_ERROR_INVALID_VALUE);
  give(made, a);
}

}  // namespace
}  // namespace weir::sim_tests
