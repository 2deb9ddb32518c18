// Stream-ordered pools of the simulated machine: reuse, growth, release, errors, sharing, hazards.
//
// The expectations are what an H200 with driver 580 (CUDA 13.0) does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "sim/dispatch.hpp"
#include "sim/pools.hpp"
#include "sim/state.hpp"
#include "weir/driver.hpp"
#include "weir/sim.hpp"

namespace weir::sim_tests {
namespace {

using namespace driver;  // NOLINT(google-build-using-namespace): the calls under test
using sim::hazard_kind;
using sim::reads;
using sim::writes;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::uint64_t page = 32 * mib;
constexpr std::uint64_t everything = ~std::uint64_t{0};

CUmemPoolProps device_pool(int device = 0, std::uint64_t most = 0,
                           CUmemAllocationHandleType types = CU_MEM_HANDLE_TYPE_NONE) {
  CUmemPoolProps wanted{};
  wanted.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.handleTypes = types;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  wanted.maxSize = most;
  return wanted;
}

/// Nothing happens on the device unless a test makes it happen.
sim::machine_options by_hand(std::size_t devices = 1) {
  sim::machine_options options;
  options.mode = sim::progress::manual;
  options.devices.resize(devices);
  return options;
}

class pools : public ::testing::Test {
 protected:
  explicit pools(sim::machine_options options = by_hand())
      : machine{sim::machine::create(std::move(options)).value()}, cuda{machine->driver()} {
    EXPECT_EQ(cuda.init(0), CUDA_SUCCESS);
    EXPECT_EQ(cuda.device_primary_ctx_retain(&context, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuda.ctx_set_current(context), CUDA_SUCCESS);
    a = stream();
    b = stream();
  }

  CUstream stream() {
    CUstream made = nullptr;
    EXPECT_EQ(cuda.stream_create(&made, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    return made;
  }
  CUmemoryPool make(const CUmemPoolProps& wanted) {
    CUmemoryPool made = nullptr;
    EXPECT_EQ(cuda.mem_pool_create(&made, &wanted), CUDA_SUCCESS);
    return made;
  }
  /// A pool that gives nothing back by itself.
  CUmemoryPool keeping(std::uint64_t most = 0) {
    CUmemoryPool made = make(device_pool(0, most));
    threshold(made, everything);
    return made;
  }
  void threshold(CUmemoryPool of, std::uint64_t bytes) {
    EXPECT_EQ(cuda.mem_pool_set_attribute(of, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes),
              CUDA_SUCCESS);
  }
  void rules(CUmemoryPool of, int follow, int opportunistic, int internal) {
    EXPECT_EQ(cuda.mem_pool_set_attribute(of, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
                                          &follow),
              CUDA_SUCCESS);
    EXPECT_EQ(cuda.mem_pool_set_attribute(of, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
                                          &opportunistic),
              CUDA_SUCCESS);
    EXPECT_EQ(cuda.mem_pool_set_attribute(of, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
                                          &internal),
              CUDA_SUCCESS);
  }
  std::uint64_t figure(CUmemoryPool of, CUmemPool_attribute which) {
    std::uint64_t found = 0;
    EXPECT_EQ(cuda.mem_pool_get_attribute(of, which, &found), CUDA_SUCCESS);
    return found;
  }
  std::uint64_t reserved(CUmemoryPool of) {
    return figure(of, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
  }
  std::uint64_t used(CUmemoryPool of) { return figure(of, CU_MEMPOOL_ATTR_USED_MEM_CURRENT); }

  CUdeviceptr take(CUmemoryPool from, std::uint64_t bytes, CUstream on) {
    CUdeviceptr made = 0;
    EXPECT_EQ(cuda.mem_alloc_from_pool_async(&made, bytes, from, on), CUDA_SUCCESS);
    return made;
  }
  CUresult try_take(CUmemoryPool from, std::uint64_t bytes, CUstream on) {
    CUdeviceptr made = 0;
    return cuda.mem_alloc_from_pool_async(&made, bytes, from, on);
  }
  void give(CUdeviceptr address, CUstream on) {
    EXPECT_EQ(cuda.mem_free_async(address, on), CUDA_SUCCESS);
  }
  void wait_for(CUstream on) { EXPECT_EQ(cuda.stream_synchronize(on), CUDA_SUCCESS); }
  void wait_for_all() { EXPECT_EQ(cuda.ctx_synchronize(), CUDA_SUCCESS); }
  /// What `on` does from now on comes after what `other` has been given so far.
  void order(CUstream on, CUstream other) {
    CUevent mark = nullptr;
    EXPECT_EQ(cuda.event_create(&mark, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    EXPECT_EQ(cuda.event_record(mark, other), CUDA_SUCCESS);
    EXPECT_EQ(cuda.stream_wait_event(on, mark, 0), CUDA_SUCCESS);
  }
  void kernel(CUstream on, std::vector<sim::access> touches) {
    EXPECT_TRUE(machine->launch(on, "kernel", std::move(touches)).has_value());
  }
  std::vector<hazard_kind> hazards() {
    std::vector<hazard_kind> kinds;
    for (const auto& found : machine->hazards()) kinds.push_back(found.kind);
    return kinds;
  }

  std::shared_ptr<sim::machine> machine;
  const driver::table& cuda;
  CUcontext context = nullptr;
  CUstream a = nullptr;
  CUstream b = nullptr;
};

// --- Which pool ------------------------------------------------------------------------------------

TEST_F(pools, every_device_has_a_default_pool_with_default_attributes) {
  CUmemoryPool standard = nullptr;
  CUmemoryPool current = nullptr;
  ASSERT_EQ(cuda.device_get_default_mem_pool(&standard, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuda.device_get_mem_pool(&current, 0), CUDA_SUCCESS);
  EXPECT_EQ(standard, current);
  for (const auto rule : {CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
                          CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
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

// --- Growth ------------------------------------------------------------------------------------------

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

TEST_F(pools, a_synchronised_stream_hands_its_frees_over_youngest_first) {
  CUmemoryPool of = keeping();
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

TEST_F(pools, plain_allocations_take_what_pools_do_not_use) {
  machine->set_capacity(device_id{0}, bytes{machine->used(device_id{0}).count() + 4 * page});
  CUmemoryPool of = keeping();
  give(take(of, 4 * page, a), a);
  wait_for(a);
  CUdeviceptr plain = 0;
  EXPECT_EQ(cuda.mem_alloc(&plain, 3 * page), CUDA_SUCCESS);
  EXPECT_EQ(reserved(of), 0U);
}

// --- Reuse -------------------------------------------------------------------------------------------

TEST_F(pools, own_stream_reuses_at_once_even_with_every_rule_off) {
  CUmemoryPool of = keeping();
  rules(of, 0, 0, 0);
  const CUdeviceptr made = take(of, 4 * mib, a);
  give(made, a);
  EXPECT_EQ(take(of, 4 * mib, a), made);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(pools, neighbours_freed_by_one_stream_serve_it_together) {
  CUmemoryPool of = keeping();
  const CUdeviceptr first = take(of, 16 * mib, a);
  const CUdeviceptr second = take(of, 16 * mib, a);
  give(first, a);
  give(second, a);
  EXPECT_EQ(take(of, 32 * mib, a), first);
  EXPECT_EQ(reserved(of), page);
}

TEST_F(pools, own_frees_come_before_a_better_fit_of_others) {
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

class pool_reuse : public pools, public ::testing::WithParamInterface<reuse_case> {};

TEST_P(pool_reuse, on_another_stream) {
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
    rules, pool_reuse,
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

TEST_F(pools, a_wait_is_inserted_only_where_no_memory_can_be_had) {
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

TEST_F(pools, frees_of_two_streams_are_not_joined_by_a_wait) {
  CUmemoryPool of = keeping(2 * page);
  CUstream c = stream();
  const CUdeviceptr first = take(of, page, a);
  const CUdeviceptr second = take(of, page, c);
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

TEST_F(pools, what_is_complete_serves_a_stream_that_is_gone) {
  CUmemoryPool of = keeping();
  const CUdeviceptr made = take(of, mib, a);
  give(made, a);
  ASSERT_EQ(cuda.stream_destroy(a), CUDA_SUCCESS);
  machine->run_until_idle();
  EXPECT_EQ(take(of, mib, b), made);
  wait_for(b);
  EXPECT_THAT(hazards(), IsEmpty());
}

// --- Release -----------------------------------------------------------------------------------------

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
                                   {500 * mib, 5 * page}}) {
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
  CUmemoryPool of = keeping();
  const CUdeviceptr made = take(of, 4 * mib, a);
  ASSERT_EQ(cuda.mem_pool_destroy(of), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_pool_destroy(of), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(try_take(of, 512, a), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.memset_d8_async(made, 1, 4 * mib, a), CUDA_SUCCESS);
  wait_for(a);
  EXPECT_EQ(machine->used(device_id{0}).count(), before + page);
  give(made, a);
  EXPECT_EQ(machine->used(device_id{0}).count(), before + page);
  wait_for(a);
  EXPECT_EQ(machine->used(device_id{0}).count(), before);
  EXPECT_EQ(cuda.mem_free_async(made, a), CUDA_ERROR_INVALID_VALUE);

  CUmemoryPool unused = keeping();
  give(take(unused, page, a), a);
  wait_for(a);
  EXPECT_EQ(machine->used(device_id{0}).count(), before + page);
  ASSERT_EQ(cuda.mem_pool_destroy(unused), CUDA_SUCCESS);
  EXPECT_EQ(machine->used(device_id{0}).count(), before);
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
  EXPECT_LE(machine->used(device_id{0}).count(), before);
  EXPECT_EQ(reserved(standard), 0U);
  EXPECT_EQ(used(standard), 0U);
  CUdeviceptr start = 0;
  std::size_t size = 0;
  EXPECT_NE(cuda.mem_get_address_range(&start, &size, made), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_pool_trim_to(of, 0), CUDA_ERROR_INVALID_VALUE);
}

// --- Errors --------------------------------------------------------------------------------------------

TEST_F(pools, bad_frees_are_told_apart) {
  CUmemoryPool of = keeping();
  const CUdeviceptr made = take(of, 4096, a);
  EXPECT_EQ(cuda.mem_free_async(0, a), CUDA_SUCCESS);
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

// --- Hazards -------------------------------------------------------------------------------------------

TEST_F(pools, use_after_a_free_is_reported) {
  CUmemoryPool of = keeping();
  const CUdeviceptr made = take(of, 4096, a);
  kernel(a, {writes(made, 4096)});
  give(made, a);
  EXPECT_THAT(hazards(), IsEmpty());
  kernel(a, {reads(made, 16)});
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::use_after_free));
}

TEST_F(pools, use_after_the_block_was_given_to_another_stream_is_reported) {
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

TEST_F(pools, opportunistic_reuse_does_not_order_anything_else) {
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

TEST_F(pools, use_on_another_stream_without_a_wait_is_reported) {
  CUmemoryPool of = keeping();
  const CUdeviceptr made = take(of, 4096, a);
  kernel(b, {writes(made, 4096)});
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::race));
}

TEST_F(pools, a_free_beside_work_of_another_stream_is_reported) {
  CUmemoryPool of = keeping();
  const CUdeviceptr made = take(of, 4096, a);
  order(b, a);
  kernel(b, {reads(made, 4096)});
  EXPECT_THAT(hazards(), IsEmpty());
  give(made, a);
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::freed_in_use));
}

TEST_F(pools, memory_that_is_not_allocated_is_out_of_bounds) {
  CUmemoryPool of = keeping();
  const CUdeviceptr made = take(of, 1000, a);
  kernel(a, {writes(made, 1000)});
  EXPECT_THAT(hazards(), IsEmpty());
  kernel(a, {writes(made, 1001)});
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::use_after_free));
}

// --- Several devices -------------------------------------------------------------------------------------

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

// --- Other processes ---------------------------------------------------------------------------------------

void send_descriptor(int socket, int descriptor) {
  char byte = 'd';
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))]{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(head), &descriptor, sizeof(descriptor));
  ASSERT_EQ(::sendmsg(socket, &message, 0), 1);
}

int receive_descriptor(int socket) {
  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))]{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) return -1;
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(descriptor));
  return descriptor;
}

struct exported_pointers {
  CUmemPoolPtrExportData first;
  CUmemPoolPtrExportData second;
};

/// The importer. Returns 0, or the number of the first step that went wrong.
int import_in_another_process(int socket) {
  int step = 0;
#define STEP(condition) \
  ++step;               \
  if (!(condition)) return step
  exported_pointers sent{};
  STEP(::read(socket, &sent, sizeof(sent)) == static_cast<ssize_t>(sizeof(sent)));
  const int descriptor = receive_descriptor(socket);
  STEP(descriptor >= 0);
  const auto machine = sim::machine::create(by_hand()).value();
  const driver::table& cuda = machine->driver();
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  STEP(cuda.init(0) == CUDA_SUCCESS);
  STEP(cuda.device_primary_ctx_retain(&context, 0) == CUDA_SUCCESS);
  STEP(cuda.ctx_set_current(context) == CUDA_SUCCESS);
  STEP(cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);

  const auto import = [&](CUmemoryPool* into, int from, CUmemAllocationHandleType type,
                          unsigned long long flags = 0) {
    return cuda.mem_pool_import_from_shareable_handle(
        into, reinterpret_cast<void*>(static_cast<std::intptr_t>(from)), type, flags);
  };
  constexpr auto as_descriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemoryPool pool = nullptr;
  CUmemoryPool again = nullptr;
  STEP(import(&pool, descriptor, CU_MEM_HANDLE_TYPE_NONE) == CUDA_ERROR_INVALID_VALUE);
  STEP(import(&pool, descriptor, as_descriptor, 1) == CUDA_ERROR_INVALID_VALUE);
  STEP(import(&pool, socket, as_descriptor) == CUDA_ERROR_UNKNOWN);
  STEP(import(&pool, 999, as_descriptor) == CUDA_ERROR_UNKNOWN);
  STEP(import(&pool, descriptor, as_descriptor) == CUDA_SUCCESS);
  STEP(import(&again, descriptor, as_descriptor) == CUDA_SUCCESS);
  STEP(again == pool);
  STEP(cuda.mem_pool_destroy(again) == CUDA_SUCCESS);
  ::close(descriptor);

  std::uint64_t figure = 0;
  CUdeviceptr address = 0;
  STEP(cuda.mem_pool_get_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &figure) ==
       CUDA_ERROR_INVALID_VALUE);
  STEP(cuda.mem_pool_set_attribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &figure) ==
       CUDA_ERROR_INVALID_VALUE);
  STEP(cuda.mem_pool_trim_to(pool, 0) == CUDA_ERROR_INVALID_VALUE);
  STEP(cuda.mem_alloc_from_pool_async(&address, 512, pool, stream) == CUDA_ERROR_INVALID_VALUE);
  STEP(cuda.device_set_mem_pool(0, pool) == CUDA_ERROR_INVALID_VALUE);
  int unused = -1;
  STEP(cuda.mem_pool_export_to_shareable_handle(&unused, pool, as_descriptor, 0) ==
       CUDA_ERROR_INVALID_VALUE);
  CUmemAccess_flags access{};
  CUmemLocation here{CU_MEM_LOCATION_TYPE_DEVICE, 0};
  STEP(cuda.mem_pool_get_access(&access, pool, &here) == CUDA_SUCCESS);
  STEP(access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);

  CUdeviceptr first = 0;
  CUdeviceptr second = 0;
  STEP(cuda.mem_pool_import_pointer(&first, pool, &sent.first) == CUDA_SUCCESS);
  STEP(cuda.mem_pool_import_pointer(&address, pool, &sent.first) == CUDA_SUCCESS);
  STEP(address == first);
  STEP(cuda.mem_pool_import_pointer(&second, pool, &sent.second) == CUDA_SUCCESS);
  STEP(second - first == 3 * mib + 512);
  for (std::size_t at = 0; at < sizeof(sent.first.reserved); ++at) {
    CUmemPoolPtrExportData damaged = sent.first;
    damaged.reserved[at] = static_cast<unsigned char>(damaged.reserved[at] ^ 0x55);
    if (cuda.mem_pool_import_pointer(&address, pool, &damaged) == CUDA_SUCCESS) {
      return 1000 + static_cast<int>(at);
    }
  }
  CUmemoryPool standard = nullptr;
  STEP(cuda.device_get_default_mem_pool(&standard, 0) == CUDA_SUCCESS);
  STEP(cuda.mem_pool_import_pointer(&address, standard, &sent.first) == CUDA_ERROR_INVALID_VALUE);

  CUdeviceptr start = 0;
  std::size_t size = 0;
  STEP(cuda.mem_get_address_range(&start, &size, first + 100) == CUDA_SUCCESS);
  STEP(start == first && size == 3 * mib + 5);
  STEP(*reinterpret_cast<const unsigned char*>(first) == 0x42);
  STEP(*reinterpret_cast<const unsigned char*>(second) == 0x43);
  STEP(cuda.memset_d8_async(first, 0x77, 64, stream) == CUDA_SUCCESS);
  CUmemPoolPtrExportData data{};
  STEP(cuda.mem_pool_export_pointer(&data, first) == CUDA_ERROR_INVALID_VALUE);
  STEP(cuda.mem_free_async(first + 512, stream) == CUDA_ERROR_INVALID_VALUE);
  STEP(cuda.mem_free_async(first, stream) == CUDA_SUCCESS);
  STEP(cuda.mem_free_async(first, stream) == CUDA_ERROR_INVALID_VALUE);
  STEP(machine->hazards().empty());
  STEP(cuda.stream_synchronize(stream) == CUDA_SUCCESS);
  // Only what is imported can be reached.
  STEP(machine->launch(stream, "outside", {writes(first, 16)}).has_value());
  STEP(machine->hazards().size() == 1);
  STEP(machine->hazards()[0].kind == hazard_kind::bad_access);
  STEP(cuda.mem_pool_destroy(pool) == CUDA_ERROR_INVALID_VALUE);
  STEP(cuda.mem_free(second) == CUDA_SUCCESS);
  STEP(cuda.mem_pool_destroy(pool) == CUDA_SUCCESS);
  STEP(cuda.mem_pool_destroy(pool) == CUDA_ERROR_INVALID_VALUE);
#undef STEP
  return 0;
}

TEST(pool_sharing, between_two_processes) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    const int failed = import_in_another_process(ends[1]);
    const bool told = ::write(ends[1], &failed, sizeof(failed)) == ssize_t{sizeof(failed)};
    ::_exit(failed == 0 && told ? 0 : 1);
  }
  ::close(ends[1]);

  const auto machine = sim::machine::create(by_hand()).value();
  const driver::table& cuda = machine->driver();
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  ASSERT_EQ(cuda.init(0), CUDA_SUCCESS);
  ASSERT_EQ(cuda.device_primary_ctx_retain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuda.ctx_set_current(context), CUDA_SUCCESS);
  ASSERT_EQ(cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  const CUmemPoolProps wanted = device_pool(0, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(cuda.mem_pool_create(&pool, &wanted), CUDA_SUCCESS);
  CUdeviceptr first = 0;
  CUdeviceptr second = 0;
  ASSERT_EQ(cuda.mem_alloc_from_pool_async(&first, 3 * mib + 5, pool, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuda.mem_alloc_from_pool_async(&second, 40 * mib, pool, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuda.memset_d8_async(first, 0x42, 3 * mib, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuda.memset_d8_async(second, 0x43, 40 * mib, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuda.stream_synchronize(stream), CUDA_SUCCESS);

  exported_pointers sent{};
  EXPECT_EQ(cuda.mem_pool_export_pointer(&sent.first, first), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_pool_export_pointer(&sent.second, second), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_pool_export_pointer(&sent.second, second + 512), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_pool_export_pointer(nullptr, second), CUDA_ERROR_INVALID_VALUE);
  int descriptor = -1;
  ASSERT_EQ(cuda.mem_pool_export_to_shareable_handle(
                &descriptor, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_SUCCESS);
  ASSERT_EQ(::write(ends[0], &sent, sizeof(sent)), static_cast<ssize_t>(sizeof(sent)));
  send_descriptor(ends[0], descriptor);
  ::close(descriptor);

  int failed = -1;
  EXPECT_EQ(::read(ends[0], &failed, sizeof(failed)), static_cast<ssize_t>(sizeof(failed)));
  EXPECT_EQ(failed, 0) << "step of the importer";
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(*reinterpret_cast<const unsigned char*>(first + 63), 0x77);
  EXPECT_EQ(*reinterpret_cast<const unsigned char*>(first + 64), 0x42);
  EXPECT_TRUE(machine->hazards().empty());
  ::close(ends[0]);
}

TEST_F(pools, exports_are_validated) {
  int descriptor = -1;
  const auto as = [&](CUmemoryPool of, CUmemAllocationHandleType type,
                      unsigned long long flags = 0) {
    return cuda.mem_pool_export_to_shareable_handle(&descriptor, of, type, flags);
  };
  constexpr auto as_descriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemoryPool standard = nullptr;
  ASSERT_EQ(cuda.device_get_default_mem_pool(&standard, 0), CUDA_SUCCESS);
  EXPECT_EQ(as(standard, as_descriptor), CUDA_ERROR_INVALID_VALUE);
  CUmemoryPool of = make(device_pool(0, 0, as_descriptor));
  EXPECT_EQ(as(of, CU_MEM_HANDLE_TYPE_NONE), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(as(of, CU_MEM_HANDLE_TYPE_FABRIC), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(as(of, as_descriptor, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_pool_export_to_shareable_handle(nullptr, of, as_descriptor, 0),
            CUDA_ERROR_INVALID_VALUE);
  CUmemoryPool fabric = make(device_pool(0, 0, CU_MEM_HANDLE_TYPE_FABRIC));
  EXPECT_EQ(as(fabric, CU_MEM_HANDLE_TYPE_FABRIC), CUDA_ERROR_NOT_PERMITTED);
  CUmemPoolPtrExportData data{};
  EXPECT_EQ(cuda.mem_pool_export_pointer(&data, take(standard, 512, a)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_pool_export_pointer(&data, 0x1000), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(pools, the_exporting_process_can_import_its_own_pool) {
  CUmemoryPool of = make(device_pool(0, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  const CUdeviceptr made = take(of, 4096, a);
  ASSERT_EQ(cuda.memset_d8_async(made, 9, 4096, a), CUDA_SUCCESS);
  wait_for(a);
  int descriptor = -1;
  ASSERT_EQ(cuda.mem_pool_export_to_shareable_handle(
                &descriptor, of, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_SUCCESS);
  CUmemoryPool own = nullptr;
  ASSERT_EQ(cuda.mem_pool_import_from_shareable_handle(
                &own, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)),
                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_SUCCESS);
  ::close(descriptor);
  EXPECT_NE(own, of);
  CUmemPoolPtrExportData data{};
  ASSERT_EQ(cuda.mem_pool_export_pointer(&data, made), CUDA_SUCCESS);
  CUdeviceptr alias = 0;
  EXPECT_EQ(cuda.mem_pool_import_pointer(&alias, of, &data), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuda.mem_pool_import_pointer(&alias, own, &data), CUDA_SUCCESS);
  EXPECT_NE(alias, made);
  EXPECT_EQ(*reinterpret_cast<const unsigned char*>(alias), 9);
  EXPECT_EQ(cuda.mem_pool_destroy(own), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_free_async(alias, a), CUDA_SUCCESS);
  ASSERT_EQ(cuda.mem_pool_import_pointer(&alias, own, &data), CUDA_SUCCESS);  // before it went
  wait_for(a);
  kernel(a, {reads(alias, 4096)});
  EXPECT_THAT(hazards(), IsEmpty());
  EXPECT_EQ(cuda.mem_free(alias), CUDA_SUCCESS);
}

// --- Random programs -----------------------------------------------------------------------------------------

/// A machine from the inside: calls go straight to it, so that its pools can be looked at.
class inside_machine {
 public:
  explicit inside_machine(sim::machine_options options) : machine{std::move(options)} {
    machine.slot = sim::take_slot(&machine);
    here = std::make_unique<sim::entered>(machine);
    CUcontext context = nullptr;
    EXPECT_EQ(machine.init(0), CUDA_SUCCESS);
    EXPECT_EQ(machine.device_primary_ctx_retain(&context, 0), CUDA_SUCCESS);
    EXPECT_EQ(machine.ctx_set_current(context), CUDA_SUCCESS);
  }
  ~inside_machine() {
    here.reset();
    sim::leave_slot(machine.slot);
  }
  sim::state machine;
  std::unique_ptr<sim::entered> here;
};

/// Random allocations, frees, kernels, waits and releases over several streams, all of them correct:
/// every kernel checks that its block still holds what the last one wrote.
class random_program {
 public:
  explicit random_program(std::uint64_t seed) : random{seed}, inside{{.seed = seed}} {
    for (int i = 0; i < 4; ++i) {
      CUstream made = nullptr;
      EXPECT_EQ(machine().stream_create(&made, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
      streams.push_back(made);
    }
    for (const std::uint64_t most : {std::uint64_t{0}, 6 * page}) {
      const CUmemPoolProps wanted = device_pool(0, most);
      CUmemoryPool made = nullptr;
      EXPECT_EQ(machine().mem_pool_create(&made, &wanted), CUDA_SUCCESS);
      pools.push_back(made);
    }
  }

  void step() {
    switch (pick(12)) {
      case 0:
      case 1:
      case 2:
      case 3: allocate(); break;
      case 4:
      case 5:
      case 6: free(); break;
      case 7:
      case 8: use(); break;
      case 9: machine().stream_synchronize(streams[pick(streams.size())]); break;
      case 10: change_rules(); break;
      case 11:
        for (std::size_t i = pick(6); i > 0; --i) machine().flow.step(inside.here->lock());
        break;
    }
  }
  void finish() {
    while (!live.empty()) free();
    for (CUstream each : streams) machine().stream_synchronize(each);
  }

  sim::state& machine() { return inside.machine; }
  bool intact = true;

 private:
  struct buffer {
    CUdeviceptr address;
    std::size_t size;
    std::shared_ptr<unsigned> mark;  // what the bytes hold once the last queued kernel is done
    CUstream last;
  };

  std::size_t pick(std::size_t below) { return static_cast<std::size_t>(random() % below); }

  void order(CUstream on, CUstream other) {
    if (on == other) return;
    CUevent mark = nullptr;
    machine().event_create(&mark, CU_EVENT_DISABLE_TIMING);
    machine().event_record(mark, other);
    machine().stream_wait_event(on, mark, 0);
    machine().event_destroy(mark);
  }
  void launch(buffer& on, CUstream stream) {
    const unsigned before = *on.mark;
    const unsigned after = ++next_mark;
    on.mark = std::make_shared<unsigned>(after);
    on.last = stream;
    // The first and the last byte of a block tell enough and touch little memory.
    auto* const first = reinterpret_cast<unsigned char*>(on.address);
    auto* const last = first + on.size - 1;
    sim::work kernel{.type = CU_GRAPH_NODE_TYPE_KERNEL,
                     .label = "kernel",
                     .accesses = {writes(on.address, on.size)}};
    kernel.body = [this, before, after, first, last] {
      if (before != 0 && (*first != before % 256 || *last != before % 256)) intact = false;
      *first = static_cast<unsigned char>(after % 256);
      *last = static_cast<unsigned char>(after % 256);
      return CUDA_SUCCESS;
    };
    EXPECT_EQ(machine().submit(machine().stream(stream), std::move(kernel)), CUDA_SUCCESS);
  }
  void allocate() {
    if (live.size() > 60) return;
    const std::size_t size = std::size_t{1} << pick(26);
    CUstream on = streams[pick(streams.size())];
    buffer made{0, size + pick(size), std::make_shared<unsigned>(0), on};
    const CUresult answer =
        machine().mem_alloc_from_pool_async(&made.address, made.size, pools[pick(2)], on);
    if (answer == CUDA_ERROR_OUT_OF_MEMORY) return;
    ASSERT_EQ(answer, CUDA_SUCCESS);
    launch(made, on);
    live.push_back(std::move(made));
  }
  void use() {
    if (live.empty()) return;
    buffer& which = live[pick(live.size())];
    CUstream on = streams[pick(streams.size())];
    order(on, which.last);
    launch(which, on);
  }
  void free() {
    if (live.empty()) return;
    std::swap(live[pick(live.size())], live.back());
    CUstream on = streams[pick(streams.size())];
    order(on, live.back().last);
    EXPECT_EQ(machine().mem_free_async(live.back().address, on), CUDA_SUCCESS);
    live.pop_back();
  }
  void change_rules() {
    CUmemoryPool of = pools[pick(2)];
    int on = static_cast<int>(pick(2));
    machine().mem_pool_set_attribute(of, static_cast<CUmemPool_attribute>(1 + pick(3)), &on);
    std::uint64_t limit = pick(3) * 2 * page;
    machine().mem_pool_set_attribute(of, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &limit);
    if (pick(4) == 0) machine().mem_pool_trim_to(of, pick(4) * page);
  }

  std::mt19937_64 random;
  inside_machine inside;
  std::vector<CUstream> streams;
  std::vector<CUmemoryPool> pools;
  std::vector<buffer> live;
  unsigned next_mark = 0;
};

TEST(pool_fuzz, correct_programs_keep_their_data_and_are_not_reported) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    random_program program{seed};
    for (int i = 0; i < 1500; ++i) {
      program.step();
      const std::string wrong = program.machine().pools->inconsistency();
      ASSERT_EQ(wrong, "") << "seed " << seed << ", step " << i;
    }
    program.finish();
    ASSERT_TRUE(program.intact) << "seed " << seed;
    for (const auto& found : program.machine().hazards.all()) {
      FAIL() << "seed " << seed << "\n" << found.story();
    }
    EXPECT_EQ(program.machine().pools->inconsistency(), "");
  }
}

}  // namespace
}  // namespace weir::sim_tests
