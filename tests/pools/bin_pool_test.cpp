// SPDX-License-Identifier: Apache-2.0
// bin_pool: sizes, reuse, order, limits, and what it says to bad input.
#include "weir/pool/bin_pool.hpp"

#include <malloc.h>

#include <array>
#include <sstream>
#include <string>
#include <thread>

#include "base/hexadecimal.hpp"
#include "pools/pool_fixture.hpp"
#include "support/captures.hpp"
#include "weir/observe/tag.hpp"
#include "weir/resource/resource.hpp"

namespace weir::testing_support { namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

static_assert(stream_resource<bin_pool>);
static_assert(host_accessible(memory_kind::managed) && !host_accessible(memory_kind::device));

class bin_pool_test : public block_pool_test {
 protected:
  /// A kernel that writes the value into the first word.
  [[nodiscard]] result<void> launch_write(const stream_ref& on, void* where, int value) {
    const context_scope bound{gpu()};
    auto* const first = static_cast<int*>(where);
    return machine->launch(on.handle(), "write value",
                           {sim::writes(reinterpret_cast<driver::CUdeviceptr>(where), sizeof(int))},
                           [=] { *first = value; });
  }
};

// --- Sizes --------------------------------------------------------------------------------------

TEST_F(bin_pool_test, rounding_wastes_less_than_an_eighth_and_512_bytes) {
  std::uint64_t size = 1;
  while (size < std::uint64_t{1} << 50) {
    for (const std::uint64_t each : {size - 1, size, size + 1, size + size / 3}) {
      if (each == 0) continue;
      const auto rounded = block_pool::rounded_size(bytes{each}).value().count();
      ASSERT_GE(rounded, each);
      ASSERT_LT(rounded - each, std::max<std::uint64_t>(each / 8, 512)) << each;
      ASSERT_EQ(rounded % 512, 0u);
      ASSERT_EQ(block_pool::rounded_size(bytes{rounded}).value().count(), rounded);
    }
    size = size * 5 / 4 + 1;
  }
}

TEST_F(bin_pool_test, a_power_of_two_has_eight_sizes) {
  const std::pair<bytes, bytes> expected[] = {{0_B, 0_B},
                                              {1_B, 512_B},
                                              {512_B, 512_B},
                                              {513_B, 1024_B},
                                              {4095_B, 4096_B},
                                              {4097_B, 4608_B},
                                              {8192_B, 8192_B},
                                              {8193_B, 9216_B},
                                              {9216_B, 9216_B},
                                              {9217_B, 10240_B},
                                              {15361_B, 16384_B},
                                              {16385_B, 18432_B},
                                              {1_MiB, 1_MiB},
                                              {1_MiB + 1_B, 1152_KiB},
                                              {7_MiB + 1_B, 7680_KiB},
                                              {1_GiB + 1_B, 1152_MiB}};
  for (const auto& [size, rounded] : expected)
    EXPECT_EQ(block_pool::rounded_size(size).value(), rounded) << size.count();
}

TEST_F(bin_pool_test, an_alignment_costs_the_room_to_align_in) {
  const auto stream = new_stream();
  const auto pool = make_bins();
  const std::pair<bytes, bytes> expected[] = {
      {1_B, 1_KiB}, {256_B, 1_KiB}, {512_B, 1536_B}, {4_KiB, 5_KiB}, {2_MiB, 2_MiB + 256_KiB}};
  for (const auto& [alignment, size] : expected) {
    void* const p = pool.allocate(1000_B, stream, alignment);
    EXPECT_EQ(pool.stats().allocated.current, size) << alignment.count();
    EXPECT_EQ(pool.stats().requested.current, 1000_B);
    pool.deallocate(p, 1000_B, stream);
  }
}

TEST_F(bin_pool_test, a_size_that_cannot_be_rounded_is_refused) {
  EXPECT_EQ(code_of(block_pool::rounded_size(bytes::max())), errc::size_overflow);
  const auto stream = new_stream();
  const auto pool = make_bins();
  EXPECT_EQ(code_of(pool.try_allocate(bytes::max() - 1_B, stream)), errc::size_overflow);
  EXPECT_EQ(code_of(pool.try_allocate(bytes::max() - 1_MiB, stream, 2_MiB)), errc::size_overflow);
  EXPECT_EQ(pool.stats(), block_pool_stats{});
}

TEST_F(bin_pool_test, sizes_that_differ_a_little_share_a_bin) {
  const auto stream = new_stream();
  const auto pool = make_bins();
  for (std::uint64_t i = 0; i < 50; ++i)
    pool.deallocate(pool.allocate(bytes{100'000 + i}, stream), stream);
  EXPECT_EQ(machine->calls(call::mem_alloc), 1u);
}

TEST_F(bin_pool_test, alignments_are_kept) {
  const auto stream = new_stream();
  const auto pool = make_bins();
  for (std::uint64_t alignment = 1; alignment <= (2_MiB).count(); alignment *= 2) {
    std::vector<void*> all;
    for (int i = 0; i < 3; ++i) {
      all.push_back(pool.allocate(1000_B, stream, bytes{alignment}));
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(all.back()) % alignment, 0u);
      write(stream, all.back(), 1000_B);
    }
    for (void* const each : all) EXPECT_TRUE(pool.try_deallocate(each, 1000_B, stream));
    for (void* const each : all)
      EXPECT_EQ(code_of(pool.try_deallocate(each, stream)), errc::double_free);
  }
  // A block that was aligned for one request serves another with another alignment.
  const auto before = pool.stats();
  void* const again = pool.allocate(2_MiB + 1_B, stream);
  write(stream, again, 2_MiB + 1_B);
  pool.deallocate(again, stream);
  EXPECT_EQ(pool.stats().hits, before.hits + 1);
  EXPECT_EQ(contradiction(pool.stats()), "");
  EXPECT_EQ(code_of(pool.try_allocate(1_KiB, stream, 0_B)), errc::bad_alignment);
  EXPECT_EQ(code_of(pool.try_allocate(1_KiB, stream, 768_B)), errc::bad_alignment);
  EXPECT_EQ(code_of(pool.try_allocate(1_KiB, stream, 4_MiB)), errc::bad_alignment);
}

// --- Reuse and order ----------------------------------------------------------------------------

TEST_F(bin_pool_test, the_default_configuration_caches) {
  const auto stream = new_stream();
  const auto pool = make_bins();
  for (int i = 0; i < 100; ++i) {
    void* const p = pool.allocate(1_MiB, stream);
    write(stream, p, 1_MiB);
    pool.deallocate(p, 1_MiB, stream);
  }
  EXPECT_EQ(machine->calls(call::mem_alloc), 1u);
  EXPECT_EQ(machine->calls(call::mem_free), 0u);
  EXPECT_EQ(pool.stats().hits, 99u);
  EXPECT_EQ(pool.stats().misses, 1u);
}

TEST_F(bin_pool_test, a_hit_and_a_free_make_no_driver_call) {
  const auto stream = new_stream();
  const auto pool = make_bins();
  pool.deallocate(pool.allocate(1_MiB, stream), stream);
  const auto before = machine->calls();
  pool.deallocate(pool.allocate(1_MiB, stream), stream);
  pool.deallocate(pool.allocate(1_MiB, stream));
  EXPECT_EQ(machine->calls(), before);
}

TEST_F(bin_pool_test, another_stream_does_not_get_memory_that_is_in_use) {
  const auto one = new_stream();
  const auto two = new_stream();
  const auto pool = make_bins();
  void* const p = pool.allocate(1_MiB, one);
  write(one, p, 1_MiB);
  pool.deallocate(p, one);
  void* const q = pool.allocate(1_MiB, two);
  EXPECT_NE(q, p);
  write(two, q, 1_MiB);
  machine->run_until_idle();
  void* const r = pool.allocate(1_MiB, two);
  EXPECT_EQ(r, p);  // now the first stream has passed it
  write(two, r, 1_MiB);
  pool.deallocate(q, two);
  pool.deallocate(r, two);
}

TEST_F(bin_pool_test, a_stream_gets_what_it_freed_last_and_others_what_was_freed_first) {
  const auto one = new_stream();
  const auto two = new_stream();
  const auto pool = make_bins();
  std::vector<void*> all;
  for (int i = 0; i < 3; ++i) all.push_back(pool.allocate(1_MiB, one));
  for (void* const each : all) pool.deallocate(each, one);
  for (const int each : {2, 1, 0}) EXPECT_EQ(pool.allocate(1_MiB, one), all[each]);
  for (void* const each : all) pool.deallocate(each, one);
  machine->run_until_idle();
  for (void* const each : all) EXPECT_EQ(pool.allocate(1_MiB, two), each);
  for (void* const each : all) pool.deallocate(each, two);
}

TEST_F(bin_pool_test, one_event_on_each_stream_closes_many_frees) {
  const auto one = new_stream();
  const auto two = new_stream();
  const auto pool = make_bins();
  std::vector<void*> all;
  for (int i = 0; i < 100; ++i) all.push_back(pool.allocate(64_KiB, one));
  for (void* const each : all) {
    write(one, each, 64_KiB);
    pool.deallocate(each, one);
  }
  EXPECT_EQ(machine->calls(call::event_record), 0u);
  void* const fresh = pool.allocate(64_KiB, two);
  EXPECT_EQ(std::count(all.begin(), all.end(), fresh), 0);
  machine->run_until_idle();
  for (int i = 0; i < 100; ++i) write(two, pool.allocate(64_KiB, two), 64_KiB);
  EXPECT_EQ(machine->calls(call::event_record), 2u);
  EXPECT_EQ(pool.stats().misses, 101u);
  EXPECT_EQ(pool.stats().events, 2u);
  EXPECT_EQ(pool.stats().blocks.current, 101u);
  all.push_back(fresh);
  for (void* const each : all) pool.deallocate(each, two);
}

TEST_F(bin_pool_test, a_busy_stream_is_polled_a_few_times_before_new_memory_is_taken) {
  const auto one = new_stream();
  const auto two = new_stream();
  const auto pool = make_bins();
  void* const p = pool.allocate(1_MiB, one);
  write(one, p, 1_MiB);
  pool.deallocate(p, one);
  void* const fresh = pool.allocate(1_MiB, two);
  EXPECT_NE(fresh, p);
  EXPECT_EQ(machine->calls(call::event_query), 1u + 1u + 32u)
      << "an idle one once, the busy one on";
  EXPECT_EQ(machine->calls(call::event_synchronize), 0u);
  pool.deallocate(fresh, two);
  void* const own = pool.allocate(1_MiB, two);
  EXPECT_EQ(own, fresh);
  EXPECT_EQ(machine->calls(call::event_query), 34u) << "not for what is there";
  pool.deallocate(own, two);
}

TEST_F(bin_pool_test, a_recorded_stream_is_waited_for) {
  const auto one = new_stream();
  const auto two = new_stream();
  const auto pool = make_bins();
  void* const p = pool.allocate(1_MiB, one);
  ASSERT_TRUE(pool.record_stream(p, two));
  ASSERT_TRUE(pool.record_stream(p, two));  // no more than once
  read(two, p, 1_MiB);
  pool.deallocate(p, one);
  EXPECT_EQ(pool.stats().pending, 1_MiB);
  void* const q = pool.allocate(1_MiB, one);
  EXPECT_NE(q, p);
  machine->run_until_idle();
  void* const r = pool.allocate(1_MiB, one);
  EXPECT_EQ(r, p);
  write(one, r, 1_MiB);
  EXPECT_EQ(pool.stats().pending, 0_B);
  pool.deallocate(q);
  pool.deallocate(r);
}

TEST_F(bin_pool_test,
       what_waited_for_a_recorded_stream_is_kept_by_its_size_and_not_by_what_was_asked_for) {
  const auto one = new_stream();
  const auto two = new_stream();
  const auto pool = make_bins();
  void* const p = pool.allocate(1000_B, one);
  ASSERT_TRUE(pool.record_stream(p, two));
  read(two, p, 1000_B);
  pool.deallocate(p, one);
  void* const q = pool.allocate(1000_B, one);
  EXPECT_NE(q, p);
  machine->run_until_idle();
  EXPECT_EQ(pool.allocate(1024_B, one), p);
  pool.deallocate(p, one);
  pool.deallocate(q, one);
}

TEST_F(bin_pool_test, every_recorded_stream_is_waited_for) {
  const auto home = new_stream();
  const std::array<weir::stream, 3> users{new_stream(), new_stream(), new_stream()};
  const auto pool = make_bins();
  for (const weir::stream& busy : users) {
    void* const p = pool.allocate(1_MiB, home);
    for (const weir::stream& each : users) ASSERT_TRUE(pool.record_stream(p, each));
    for (const weir::stream& each : users) ASSERT_TRUE(pool.record_stream(p, each));
    read(busy, p, 1_MiB);  // and the others do nothing
    pool.deallocate(p, home);
    void* const q = pool.allocate(1_MiB, home);
    EXPECT_NE(q, p);
    EXPECT_EQ(pool.stats().pending, 1_MiB);
    machine->run_until_idle();
    void* const r = pool.allocate(1_MiB, home);
    EXPECT_EQ(r, p);
    EXPECT_EQ(pool.stats().pending, 0_B);
    pool.deallocate(q, home);
    pool.deallocate(r, home);
    ASSERT_TRUE(pool.empty_cache());
  }
}

TEST_F(bin_pool_test, a_stream_that_is_recorded_already_costs_no_memory) {
  const auto one = new_stream();
  const auto two = new_stream();
  const auto pool = make_bins();
  void* const p = pool.allocate(1_MiB, one);
  ASSERT_TRUE(pool.record_stream(p, two));
  const auto in_use = [] {
    const struct mallinfo2 now = ::mallinfo2();  // of the sanitizers' own heaps it knows nothing
    return now.uordblks + now.hblkhd;
  };
  const std::size_t before = in_use();
  for (int i = 0; i < 20'000; ++i) ASSERT_TRUE(pool.record_stream(p, two));
  EXPECT_LE(in_use(), before + (64 << 10));
  pool.deallocate(p, one);
}

TEST_F(bin_pool_test, a_busy_stream_is_polled_once_where_it_holds_nothing_that_would_do) {
  const auto one = new_stream();
  const auto two = new_stream();
  const auto pool = make_bins();
  void* const p = pool.allocate(1_MiB, one);
  ASSERT_TRUE(pool.record_stream(p, two));
  read(two, p, 1_MiB);
  pool.deallocate(p, one);
  void* const q = pool.allocate(1_MiB, one);
  EXPECT_NE(q, p);
  EXPECT_EQ(machine->calls(call::event_query), 2u) << "each of the streams";
  EXPECT_EQ(machine->calls(call::event_synchronize), 0u);
  pool.deallocate(q, one);
}

TEST_F(bin_pool_test, a_stream_recorded_on_its_own_block_makes_no_difference) {
  const auto one = new_stream();
  const auto pool = make_bins();
  void* const p = pool.allocate(1_MiB, one);
  ASSERT_TRUE(pool.record_stream(p, one));
  write(one, p, 1_MiB);
  pool.deallocate(p, one);
  void* const q = pool.allocate(1_MiB, one);
  EXPECT_EQ(q, p);
  pool.deallocate(q, one);
}

TEST_F(bin_pool_test, a_block_outlives_its_stream) {
  const auto pool = make_bins();
  auto one = new_stream();
  void* const p = pool.allocate(1_MiB, one);
  write(one, p, 1_MiB);
  ASSERT_TRUE(one.close());
  pool.deallocate(p);
  const auto two = new_stream();
  void* const q = pool.allocate(1_MiB, two);
  EXPECT_NE(q, p);  // its work is still queued
  machine->run_until_idle();
  void* const r = pool.allocate(1_MiB, two);
  EXPECT_EQ(r, p);
  write(two, r, 1_MiB);
  pool.deallocate(q);
  pool.deallocate(r);
}

TEST_F(bin_pool_test, what_is_freed_on_a_stream_long_gone_is_for_all) {
  const auto pool = make_bins();
  const auto two = new_stream();
  auto one = new_stream();
  void* const p = pool.allocate(1_MiB, one);
  void* const other = pool.allocate(1_MiB, one);
  ASSERT_TRUE(pool.record_stream(other, one));
  write(one, p, 1_MiB);
  ASSERT_TRUE(one.close());
  machine->run_until_idle();
  pool.deallocate(pool.allocate(2_MiB, two), two);
  ASSERT_TRUE(pool.trim());  // finds that the last event of the stream is reached
  pool.deallocate(p);
  pool.deallocate(other, two);
  const auto three = new_stream();
  void* const q = pool.allocate(1_MiB, three);
  void* const r = pool.allocate(1_MiB, three);
  EXPECT_EQ(pool.stats().misses, 3u);
  write(three, q, 1_MiB);
  pool.deallocate(q);
  pool.deallocate(r);
}

TEST_F(bin_pool_test, a_stream_of_the_driver_is_released_before_it_goes) {
  const auto pool = make_bins();
  const context_scope scope{gpu()};
  driver::CUstream raw = nullptr;
  ASSERT_EQ(scope.driver().stream_create(&raw, driver::CU_STREAM_NON_BLOCKING),
            driver::CUDA_SUCCESS);
  void* const p = pool.allocate(1_MiB, stream_ref{gpu(), raw});
  write({gpu(), raw}, p, 1_MiB);
  pool.deallocate(p, stream_ref{gpu(), raw});
  ASSERT_TRUE(pool.release_stream({gpu(), raw}));
  ASSERT_EQ(scope.driver().stream_destroy(raw), driver::CUDA_SUCCESS);
  const auto two = new_stream();
  machine->run_until_idle();
  void* const q = pool.allocate(1_MiB, two);
  EXPECT_EQ(q, p);
  write(two, q, 1_MiB);
  pool.deallocate(q);
}

TEST_F(bin_pool_test, streams_that_are_gone_or_elsewhere_are_refused) {
  const auto pool = make_bins();
  for (const stream_ref& each : {stream_ref::legacy(gpu()), stream_ref::per_thread(gpu())}) {
    void* const p = pool.allocate(1_MiB, each);
    ASSERT_TRUE(pool.release_stream(each)) << "they never end";
    pool.deallocate(p, each);
    EXPECT_EQ(pool.allocate(1_MiB, each), p);
    pool.deallocate(p, each);
    ASSERT_TRUE(pool.empty_cache());
  }
}

TEST_F(bin_pool_test, default_streams_are_streams) {
  const auto pool = make_bins();
  for (const stream_ref& each : {stream_ref::legacy(gpu()), stream_ref::per_thread(gpu())}) {
    void* const p = pool.allocate(1_MiB, each);
    write(each, p, 1_MiB);
    pool.deallocate(p, each);
    void* const q = pool.allocate(1_MiB, each);
    EXPECT_EQ(q, p);
    write(each, q, 1_MiB);
    pool.deallocate(q);
    ASSERT_TRUE(pool.trim());
  }
}

TEST_F(bin_pool_test, a_capture_is_not_broken) {
  const auto one = new_stream();
  const auto pool = make_bins();
  void* const kept = pool.allocate(1_MiB, one);
  pool.deallocate(kept, one);
  const context_scope scope{gpu()};
  const auto& cu = scope.driver();
  ASSERT_EQ(cu.stream_begin_capture(one.handle(), driver::CU_STREAM_CAPTURE_MODE_GLOBAL),
            driver::CUDA_SUCCESS);
  const auto two = new_stream();
  void* const hit = pool.allocate(1_MiB, one);
  void* const miss = pool.allocate(2_MiB, one);   // plain allocation
  void* const other = pool.allocate(1_MiB, two);  // asks nobody who is being captured
  write(one, hit, 1_MiB);
  driver::CUgraph graph = nullptr;
  ASSERT_EQ(cu.stream_end_capture(one.handle(), &graph), driver::CUDA_SUCCESS);
  EXPECT_EQ(cu.graph_destroy(graph), driver::CUDA_SUCCESS);
  for (void* const each : {hit, miss}) pool.deallocate(each, one);
  pool.deallocate(other, two);
}

// --- Devices and contexts -----------------------------------------------------------------------

TEST_F(bin_pool_test, memory_is_of_the_pools_device_whatever_is_current) {
  EXPECT_EQ(code_of(runtime_->device(device_id{99})), errc::no_device);
  const auto pool = bin_pool::create(gpu(1)).value();
  const auto stream = weir::stream::create(gpu(1)).value();
  const auto foreign = new_stream();
  const bytes first = used(0);
  const bytes second = used(1);
  std::thread{[&] {  // without a context
    pool.deallocate(pool.allocate(64_MiB, stream), stream);
    driver::CUcontext current = nullptr;
    EXPECT_EQ(machine->driver().ctx_get_current(&current), driver::CUDA_SUCCESS);
    EXPECT_EQ(current, nullptr);
  }}
      .join();
  {
    const context_scope elsewhere{gpu(0)};
    pool.deallocate(pool.allocate(128_MiB, stream), stream);
  }
  EXPECT_EQ(used(0), first);
  EXPECT_GE(used(1) - second, 192_MiB);
  EXPECT_EQ(code_of(pool.try_allocate(1_KiB, foreign)), errc::bad_stream);
}

TEST_F(bin_pool_test, nothing_is_allocated_where_it_might_break_a_capture) {
  const auto stream = new_stream();
  const auto pool = make_bins();
  pool.deallocate(pool.allocate(1_MiB, stream), stream);  // it is met
  const auto allocations = machine->calls(call::mem_alloc);
  machine->fail(call::thread_exchange_stream_capture_mode, 1, driver::CUDA_ERROR_NOT_PERMITTED);
  const auto refused = pool.try_allocate(2_MiB, stream);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().native(), static_cast<int>(driver::CUDA_ERROR_NOT_PERMITTED));
  EXPECT_EQ(refused.error().call(), "cuThreadExchangeStreamCaptureMode");
  EXPECT_EQ(machine->calls(call::mem_alloc), allocations);
  EXPECT_EQ(pool.stats().reserved.current, 1_MiB);
  EXPECT_EQ(pool.stats().failures, 0u) << "that is no want of memory";
  pool.deallocate(pool.allocate(2_MiB, stream), stream);
  EXPECT_EQ(machine->calls(call::mem_alloc), allocations + 1);
}

// --- Giving back --------------------------------------------------------------------------------

TEST_F(bin_pool_test, the_longest_unused_goes_first) {
  const auto stream = new_stream();
  const auto pool = make_bins();
  std::vector<void*> all;
  for (std::uint64_t i = 1; i <= 4; ++i) all.push_back(pool.allocate(i * 1_MiB, stream));
  for (const int each : {2, 0, 3, 1}) pool.deallocate(all[each], stream);
  EXPECT_EQ(pool.stats().cached, 10_MiB);
  EXPECT_EQ(pool.trim(7_MiB).value(), 3_MiB);  // freed first
  EXPECT_EQ(pool.trim(6_MiB).value(), 1_MiB);
  EXPECT_EQ(pool.trim(6_MiB).value(), 0_MiB);
  EXPECT_EQ(pool.trim(5_MiB).value(), 4_MiB);
  EXPECT_EQ(pool.trim().value(), 2_MiB);
  EXPECT_EQ(pool.stats().reserved.current, 0_B);
}

TEST_F(bin_pool_test, trim_keeps_at_most_so_much_reserved_live_blocks_included) {
  const auto stream = new_stream();
  const auto pool = make_bins();
  void* const live = pool.allocate(4_MiB, stream);
  std::vector<void*> all;
  for (std::uint64_t i = 1; i <= 3; ++i) all.push_back(pool.allocate(i * 1_MiB, stream));
  for (void* const each : all) pool.deallocate(each, stream);
  EXPECT_EQ(pool.stats().reserved.current, 10_MiB);
  EXPECT_EQ(pool.trim(10_MiB).value(), 0_MiB);
  EXPECT_EQ(pool.trim(8_MiB).value(), 3_MiB);  // the first two
  EXPECT_EQ(pool.stats().reserved.current, 7_MiB);
  EXPECT_EQ(pool.trim(1_MiB).value(), 3_MiB) << "what is live stays";
  EXPECT_EQ(pool.stats().reserved.current, 4_MiB);
  pool.deallocate(live, stream);
}

TEST_F(bin_pool_test, trim_waits_for_nothing) {
  const auto one = new_stream();
  const auto two = new_stream();
  const auto pool = make_bins();
  void* const busy = pool.allocate(4_MiB, one);
  void* const idle = pool.allocate(1_MiB, two);
  pool.deallocate(idle, two);
  machine->run_until_idle();
  ASSERT_EQ(pool.trim(5_MiB).value(), 0_MiB);
  write(one, busy, 4_MiB);
  pool.deallocate(busy, one);
  EXPECT_EQ(pool.trim().value(), 0_MiB) << "all work counts that was queued before it looked";
  EXPECT_EQ(machine->calls(call::event_synchronize), 0u);
  EXPECT_EQ(machine->calls(call::mem_free), 0u);
  machine->run_until_idle();
  EXPECT_EQ(pool.trim().value(), 5_MiB);
}

TEST_F(bin_pool_test, trim_enforces_the_threshold_in_any_case) {
  const auto stream = new_stream();
  const auto pool = make_bins(1_MiB);
  std::vector<void*> all;
  for (int i = 0; i < 4; ++i) all.push_back(pool.allocate(1_MiB, stream));
  for (void* const each : all) pool.deallocate(each, stream);
  EXPECT_EQ(pool.trim(bytes::max()).value(), 3_MiB);
  EXPECT_EQ(pool.stats().cached, 1_MiB);
}

TEST_F(bin_pool_test, a_threshold_that_is_kept_already_costs_no_driver_call) {
  const auto stream = new_stream();
  const auto pool = make_bins();
  void* const p = pool.allocate(1_MiB, stream);
  write(stream, p, 1_MiB);
  pool.deallocate(p, stream);
  const auto before = machine->calls();
  ASSERT_TRUE(pool.set_threshold(1_MiB));
  EXPECT_EQ(machine->calls(), before);
  EXPECT_EQ(pool.stats().cached, 1_MiB);
  ASSERT_TRUE(pool.set_threshold(1_MiB - 1_B));
  EXPECT_EQ(machine->calls(call::event_synchronize), 1u) << "who uses it is waited for";
  EXPECT_EQ(pool.stats().cached, 0_B);
  EXPECT_EQ(machine->calls(call::mem_free), 1u);
}

TEST_F(bin_pool_test, emptying_the_cache_waits_for_the_streams) {
  const auto one = new_stream();
  const auto pool = make_bins();
  void* const p = pool.allocate(4_MiB, one);
  write(one, p, 4_MiB);
  pool.deallocate(p, one);
  EXPECT_EQ(pool.trim().value(), 0_MiB);
  EXPECT_EQ(pool.empty_cache().value(), 4_MiB);
  EXPECT_EQ(pool.stats().cached, 0_B);
}

TEST_F(bin_pool_test, emptying_the_cache_waits_for_nobody_else) {
  const auto one = new_stream();
  const auto pool = make_bins();
  void* const p = pool.allocate(4_MiB, one);
  write(one, p, 4_MiB);
  // mem_free itself waits for the device; what the pool waits for shows in the calls.
  pool.deallocate(p, one);
  machine->fail(call::ctx_synchronize, 1, driver::CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(pool.empty_cache().value(), 4_MiB);
  EXPECT_EQ(machine->calls(call::event_synchronize), 1u);
  machine->clear_faults();
}

TEST_F(bin_pool_test, the_threshold_is_observed_with_requests_and_never_with_frees) {
  const auto stream = new_stream();
  const auto pool = make_bins(2_MiB);
  EXPECT_EQ(pool.threshold(), 2_MiB);
  std::vector<void*> all;
  for (int i = 0; i < 8; ++i) all.push_back(pool.allocate(1_MiB, stream));
  write(stream, all[0], 1_MiB);
  const auto before = machine->calls();
  for (void* const each : all) pool.deallocate(each, stream);
  EXPECT_EQ(machine->calls(), before);
  EXPECT_EQ(pool.stats().cached, 8_MiB);
  void* const hit = pool.allocate(1_MiB, stream);  // finds that the stream is not there yet
  EXPECT_EQ(hit, all.back());
  EXPECT_EQ(pool.stats().cached, 7_MiB);
  machine->run_until_idle();
  void* const next = pool.allocate(1_MiB, stream);
  EXPECT_EQ(pool.stats().cached, 2_MiB);
  EXPECT_EQ(machine->calls(call::mem_free), 4u);
  void* const miss = pool.allocate(3_MiB, stream);
  for (void* const each : {hit, next, miss}) pool.deallocate(each, stream);
  ASSERT_TRUE(pool.set_threshold({}));
  EXPECT_EQ(pool.stats().cached, 0_B);
  pool.deallocate(pool.allocate(3_MiB, stream), stream);
  pool.deallocate(pool.allocate(3_MiB, stream), stream);  // cached until the next request
  EXPECT_EQ(pool.stats().hits, 3u);
}

TEST_F(bin_pool_test, work_in_flight_is_not_waited_for_by_a_request) {
  const auto one = new_stream();
  const auto two = new_stream();
  const auto pool = make_bins({});
  void* const p = pool.allocate(1_MiB, one);
  write(one, p, 1_MiB);
  pool.deallocate(p, one);
  void* const q = pool.allocate(2_MiB, two);
  EXPECT_EQ(pool.stats().cached, 1_MiB);
  machine->run_until_idle();
  void* const r = pool.allocate(2_MiB, two);
  EXPECT_EQ(pool.stats().cached, 0_B);
  pool.deallocate(q, two);
  pool.deallocate(r, two);
}

TEST_F(bin_pool_test, a_free_that_the_driver_refuses_loses_nothing) {
  const auto stream = new_stream();
  const auto pool = make_bins();
  const bytes before = used();
  std::vector<void*> all;
  for (int i = 0; i < 3; ++i) all.push_back(pool.allocate(4_MiB, stream));
  for (void* const each : all) pool.deallocate(each, stream);
  machine->fail(call::mem_free, 2, driver::CUDA_ERROR_UNKNOWN);
  const auto failed = pool.trim();
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().native(), driver::CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(pool.stats().cached, 4_MiB);
  EXPECT_EQ(pool.stats().reserved.current, 4_MiB);
  EXPECT_EQ(contradiction(pool.stats()), "");
  EXPECT_EQ(pool.trim().value(), 4_MiB);
  EXPECT_EQ(used(), before);
}

TEST_F(bin_pool_test, a_request_is_served_though_what_is_over_the_threshold_stays) {
  const auto stream = new_stream();
  const auto pool = make_bins(0_B);
  pool.deallocate(pool.allocate(1_MiB, stream), stream);
  for (const call failing : {call::mem_free, call::event_record}) {
    machine->fail(failing, 1, driver::CUDA_ERROR_UNKNOWN);
    pool.deallocate(pool.allocate(2_MiB, stream), stream);
    const auto reports = heard.take();
    ASSERT_THAT(reports, SizeIs(1));
    EXPECT_EQ(reports[0].native(), driver::CUDA_ERROR_UNKNOWN);
    EXPECT_GE(pool.stats().cached, 2_MiB);
    EXPECT_EQ(contradiction(pool.stats()), "");
    machine->clear_faults();
  }
}

// --- Running out --------------------------------------------------------------------------------

TEST_F(bin_pool_test, a_full_device_releases_what_is_cached) {
  const auto stream = new_stream();
  const auto pool = make_bins();
  std::vector<void*> all;
  for (int i = 0; i < 8; ++i) all.push_back(pool.allocate(224_MiB, stream));
  for (void* const each : all) pool.deallocate(each, stream);
  void* const p = pool.allocate(1536_MiB, stream);
  ASSERT_NE(p, nullptr);
  EXPECT_EQ(pool.stats().reserved.current, 1536_MiB);
  pool.deallocate(p, stream);
}

TEST_F(bin_pool_test, a_full_device_releases_before_anybody_is_waited_for) {
  const auto one = new_stream();
  const auto two = new_stream();
  const auto pool = make_bins();
  void* const busy = pool.allocate(256_MiB, one);
  void* const a = pool.allocate(512_MiB, two);
  void* const b = pool.allocate(512_MiB, two);
  pool.deallocate(a, two);
  pool.deallocate(b, two);
  void* const held =
      pool.allocate(512_MiB, one);  // one of the two, and the other is seen to be free
  write(one, busy, 1_KiB);
  pool.deallocate(busy, one);
  void* const p = pool.allocate(768_MiB, two);
  EXPECT_EQ(machine->calls(call::event_synchronize), 0u);
  EXPECT_EQ(pool.stats().cached, 256_MiB);
  pool.deallocate(held, one);
  pool.deallocate(p, two);
}

TEST_F(bin_pool_test, on_a_full_device_no_wait_becomes_part_of_a_graph) {
  const auto one = new_stream();
  const auto two = new_stream();
  const auto pool = make_bins();
  void* const p = pool.allocate(1536_MiB, one);
  ASSERT_TRUE(launch_write(one, p, 7));
  pool.deallocate(p, one);
  checked_capture capture{two};
  // The captured stream cannot be made to wait, so the host waits for what uses the block.
  void* const q = pool.allocate(1536_MiB, two);
  EXPECT_EQ(q, p);
  EXPECT_EQ(*static_cast<int*>(q), 7) << "the old owner's work is done";
  EXPECT_EQ(pool.stats().waits, 0u);
  ASSERT_TRUE(launch_write(two, q, 9));
  EXPECT_EQ(capture.end(), 1u) << "the kernel, and no wait";
  EXPECT_EQ(*static_cast<int*>(q), 7) << "the graph was not launched";
  pool.deallocate(q, two);
}

TEST_F(bin_pool_test, a_full_device_waits_for_the_streams) {
  const auto one = new_stream();
  const auto two = new_stream();
  const auto pool = make_bins();
  void* const p = pool.allocate(1536_MiB, one);
  write(one, p, 1_MiB);
  pool.deallocate(p, one);
  void* const q = pool.allocate(1024_MiB, two);
  write(two, q, 1_MiB);
  pool.deallocate(q, two);
  EXPECT_EQ(pool.stats().misses, 2u);
}

TEST_F(bin_pool_test, on_a_full_device_a_wait_is_queued_rather_than_the_cache_emptied) {
  const auto one = new_stream();
  const auto two = new_stream();
  const auto pool = make_bins();
  void* const p = pool.allocate(1536_MiB, one);
  write(one, p, 1_MiB);
  pool.deallocate(p, one);
  void* const q = pool.allocate(1536_MiB, two);
  EXPECT_EQ(q, p);
  write(two, q, 1_MiB);
  pool.deallocate(q, two);
  EXPECT_EQ(pool.stats().waits, 1u);
  EXPECT_EQ(machine->calls(call::mem_free), 0u);
}

TEST_F(bin_pool_test, a_full_device_goes_on_where_the_driver_refuses_a_block) {
  const auto stream = new_stream();
  const auto pool = make_bins();
  std::vector<void*> all;
  for (int i = 0; i < 3; ++i) all.push_back(pool.allocate(512_MiB, stream));
  for (void* const each : all) pool.deallocate(each, stream);
  machine->fail(call::mem_free, 1, driver::CUDA_ERROR_UNKNOWN);
  void* const p = pool.allocate(1_GiB, stream);
  const auto reports = heard.take();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].call(), "cuMemFree");
  EXPECT_EQ(pool.stats().cached, 512_MiB) << "the one that it did not take";
  EXPECT_EQ(contradiction(pool.stats()), "");
  pool.deallocate(p, stream);
}

TEST_F(bin_pool_test, out_of_memory_comes_with_numbers_and_harms_nothing) {
  const auto stream = new_stream();
  const auto pool = make_bins();
  void* const p = pool.allocate(1_GiB, stream);
  const auto refused = pool.try_allocate(1536_MiB, stream);
  ASSERT_EQ(code_of(refused), errc::out_of_memory);
  EXPECT_EQ(refused.error().requested(), 1536_MiB);
  EXPECT_EQ(refused.error().detail(), "the pool holds 1 GiB in 1 live blocks and caches 0 B");
  EXPECT_THROW(static_cast<void>(pool.allocate(1536_MiB, stream)), out_of_memory);
  EXPECT_EQ(pool.stats().failures, 2u);
  EXPECT_EQ(contradiction(pool.stats()), "");
  pool.deallocate(p, stream);
  pool.deallocate(pool.allocate(1536_MiB, stream), stream);
}

// --- Bad input ----------------------------------------------------------------------------------

/// As misuse is told.
std::string words(const void* pointer, const std::string& what, const stream& on) {
  return detail::hexadecimal(reinterpret_cast<std::uintptr_t>(pointer)) + ", " + what +
         ", stream " + std::to_string(on.id().number());
}

TEST_F(bin_pool_test, misuse_is_told_with_the_block_it_concerns) {
  const auto stream = new_stream();
  const auto other = new_stream();
  const auto pool = make_bins();
  void* p = nullptr;
  {
    const tag_scope tagged{tag::named("scratch").value()};
    p = pool.allocate(1000_B, stream);
  }
  char* const inside = static_cast<char*>(p) + 256;
  const std::string there = detail::hexadecimal(reinterpret_cast<std::uintptr_t>(inside));
  EXPECT_EQ(pool.try_deallocate(inside, stream).error(),
            (error{{.code = errc::foreign_pointer,
                    .detail = there + " is inside a block, not its start: " +
                              words(p, "1000 B, tag \"scratch\"", stream)}}));
  char* const behind = static_cast<char*>(p) + (1_KiB).count();
  EXPECT_EQ(pool.try_deallocate(behind - 1, stream).error().detail(),
            detail::hexadecimal(reinterpret_cast<std::uintptr_t>(behind - 1)) +
                " is 24 bytes after a block: " + words(p, "1000 B, tag \"scratch\"", stream));
  EXPECT_EQ(pool.try_deallocate(behind, stream).error().detail(),
            detail::hexadecimal(reinterpret_cast<std::uintptr_t>(behind)) +
                " is not memory of this pool");
  int host = 0;
  EXPECT_EQ(pool.try_deallocate(&host, stream).error(),
            (error{{.code = errc::foreign_pointer,
                    .detail = detail::hexadecimal(reinterpret_cast<std::uintptr_t>(&host)) +
                              " is not memory of this pool"}}));
  ASSERT_TRUE(pool.try_deallocate(p, other));
  EXPECT_EQ(
      pool.try_deallocate(p, stream).error(),
      (error{{.code = errc::double_free, .detail = words(p, "1000 B, tag \"scratch\"", other)}}))
      << "the stream is that of the free";
  EXPECT_EQ(pool.try_deallocate(inside, stream).error(),
            (error{{.code = errc::double_free,
                    .detail = there + ", in the free memory " +
                              words(p, "1000 B, tag \"scratch\"", other)}}));
  pool.deallocate(p, stream);
  const auto reports = heard.take();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].detail(), words(p, "1000 B, tag \"scratch\"", other));
}

TEST_F(bin_pool_test, bad_input_gets_a_typed_error) {
  const auto stream = new_stream();
  const auto pool = make_bins();
  EXPECT_EQ(pool.try_allocate(0_B, stream).value(), nullptr);
  EXPECT_TRUE(pool.try_deallocate(nullptr, stream));
  void* const p = pool.allocate(1_MiB, stream);
  int host = 0;
  EXPECT_EQ(code_of(pool.try_deallocate(&host, stream)), errc::foreign_pointer);
  EXPECT_EQ(code_of(pool.try_deallocate(static_cast<char*>(p) + 256, stream)),
            errc::foreign_pointer);
  EXPECT_EQ(code_of(pool.record_stream(&host, stream)), errc::foreign_pointer);
  const auto elsewhere = stream_ref::per_thread(gpu(1));
  EXPECT_EQ(code_of(pool.try_deallocate(p, elsewhere)), errc::bad_stream);
  EXPECT_EQ(code_of(pool.record_stream(p, elsewhere)), errc::bad_stream);
  EXPECT_EQ(code_of(pool.release_stream(elsewhere)), errc::bad_stream);
  const auto other_machine = sim::machine::create({}).value();
  const auto other_runtime = runtime::open_simulated(other_machine).value();
  const auto stranger = stream::create(other_runtime->device(device_id{0}).value()).value();
  EXPECT_EQ(code_of(pool.try_deallocate(p, stranger)), errc::bad_stream);
  EXPECT_EQ(code_of(pool.record_stream(p, stranger)), errc::bad_stream);
  EXPECT_EQ(pool.stats().frees, 0u);
  EXPECT_EQ(code_of(pool.try_deallocate(p, 2_MiB, stream)), errc::invalid_argument);
  EXPECT_EQ(pool.stats().frees, 1u);
  EXPECT_EQ(code_of(pool.try_deallocate(p, 1_MiB, stream)), errc::double_free);
  EXPECT_EQ(code_of(pool.record_stream(p, stream)), errc::double_free);
  const auto other = make_bins();
  void* const q = other.allocate(1_MiB, stream);
  EXPECT_EQ(code_of(pool.try_deallocate(q, stream)), errc::foreign_pointer);
  other.deallocate(q, stream);
  ASSERT_TRUE(pool.trim());
  EXPECT_EQ(code_of(pool.try_deallocate(p, stream)), errc::foreign_pointer);
  EXPECT_THAT(heard.take(), IsEmpty());
  pool.deallocate(p, stream);
  EXPECT_THAT(heard.take(), SizeIs(1));
  EXPECT_EQ(pool.stats().frees, 1u);
  EXPECT_NE(pool, other);
  EXPECT_EQ(pool, bin_pool{pool});
}

TEST_F(bin_pool_test, the_counters_are_exact) {
  const auto stream = new_stream();
  const auto pool = make_bins();
  void* const p = pool.allocate(1000_B, stream);
  void* const q = pool.allocate(5000_B, stream);
  auto now = pool.stats();
  EXPECT_EQ(now.requested, (byte_gauge{6000_B, 6000_B}));
  EXPECT_EQ(now.allocated, (byte_gauge{6_KiB, 6_KiB}));
  EXPECT_EQ(now.reserved, now.allocated);
  EXPECT_EQ(now.blocks, (gauge{2, 2}));
  pool.deallocate(p, stream);
  now = pool.stats();
  EXPECT_EQ(now.requested, (byte_gauge{5000_B, 6000_B}));
  EXPECT_EQ(now.allocated, (byte_gauge{5_KiB, 6_KiB}));
  EXPECT_EQ(now.reserved, (byte_gauge{6_KiB, 6_KiB}));
  EXPECT_EQ(now.blocks, (gauge{1, 2}));
  EXPECT_EQ(now.cached, 1024_B);
  EXPECT_EQ(now.pending, 0_B);
  EXPECT_EQ(now.allocations, 2u);
  EXPECT_EQ(now.frees, 1u);
  EXPECT_EQ(now.hits, 0u);
  EXPECT_EQ(now.misses, 2u);
  EXPECT_EQ(contradiction(now), "");
  ASSERT_EQ(pool.trim(5_KiB).value(), 1_KiB);
  EXPECT_EQ(pool.stats().reserved, (byte_gauge{5_KiB, 6_KiB}));
  pool.deallocate(q, stream);
}

TEST_F(bin_pool_test, every_peak_is_reset) { expect_peaks_to_be_reset(make_bins()); }

TEST_F(bin_pool_test, counters_begin_anew_and_amounts_stay) {
  const auto one = new_stream();
  const auto two = new_stream();
  const auto pool = make_bins();
  void* const live = pool.allocate(1_MiB, one);
  void* const large = pool.allocate(1536_MiB, one);
  write(one, large, 1_KiB);
  pool.deallocate(large, one);
  void* const crossed = pool.allocate(1536_MiB, two);  // behind a wait
  ASSERT_EQ(crossed, large);
  EXPECT_EQ(code_of(pool.try_allocate(1_GiB, two)), errc::out_of_memory);
  const auto before = pool.stats();
  EXPECT_EQ(before.waits, 1u);
  EXPECT_GT(before.events, 0u);
  EXPECT_EQ(before.failures, 1u);
  pool.reset_counters();
  auto expected = before;
  expected.allocations = expected.frees = expected.hits = expected.misses = 0;
  expected.failures = expected.waits = expected.events = 0;
  EXPECT_EQ(pool.stats(), expected);
  // blocks is what it was, 2, + allocations - frees.
  pool.deallocate(crossed, two);
  pool.deallocate(pool.allocate(1536_MiB, two), two);
  pool.deallocate(live, one);
  const auto after = pool.stats();
  EXPECT_EQ(after.allocations, 1u);
  EXPECT_EQ(after.hits, 1u);
  EXPECT_EQ(after.misses, 0u);
  EXPECT_EQ(after.frees, 3u);
  EXPECT_EQ(after.blocks.current, 2 + after.allocations - after.frees);
  EXPECT_EQ(after.blocks.peak, 2u);
}

TEST_F(bin_pool_test, a_reported_free_names_the_memory) {
  const auto stream = new_stream();
  const auto pool = make_bins();
  void* const memory = pool.allocate(1_MiB, stream);
  pool.deallocate(memory, stream);
  pool.deallocate(memory, 1_MiB, stream);
  const auto reports = heard.take();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].code(), errc::double_free);
  EXPECT_EQ(reports[0].requested(), 1_MiB);
  std::ostringstream address;
  address << memory;
  EXPECT_EQ(reports[0].detail(), words(memory, "1 MiB", stream));
  void* const again = pool.allocate(1_MiB, stream);
  ASSERT_EQ(again, memory);
  pool.deallocate(again, 2_MiB, stream);
  pool.deallocate(again, stream);
  pool.deallocate(again);
  const auto more = heard.take();
  ASSERT_THAT(more, SizeIs(3));
  EXPECT_EQ(more[0].code(), errc::invalid_argument);
  EXPECT_EQ(more[0].detail(),
            "the block was freed with 2 MiB, but it was allocated with 1 MiB; freeing " +
                address.str() + " of 2 MiB");
  for (const int each : {1, 2}) {
    EXPECT_EQ(more[each].code(), errc::double_free);
    EXPECT_EQ(more[each].requested(), 0_B);
    EXPECT_EQ(more[each].detail(), words(memory, "1 MiB", stream));
  }
}

TEST_F(bin_pool_test, a_handle_that_was_moved_from_says_so) {
  const auto stream = new_stream();
  auto pool = make_bins(1_MiB);
  const auto moved = std::move(pool);
  int host = 0;
  EXPECT_EQ(code_of(pool.try_allocate(1_KiB, stream)), errc::moved_from);  // NOLINT
  EXPECT_EQ(code_of(pool.try_deallocate(&host, stream)), errc::moved_from);
  EXPECT_EQ(code_of(pool.try_deallocate(&host)), errc::moved_from);
  EXPECT_EQ(code_of(pool.record_stream(&host, stream)), errc::moved_from);
  EXPECT_EQ(code_of(pool.release_stream(stream)), errc::moved_from);
  EXPECT_EQ(code_of(pool.trim()), errc::moved_from);
  EXPECT_EQ(code_of(pool.empty_cache()), errc::moved_from);
  EXPECT_EQ(code_of(pool.set_threshold(1_MiB)), errc::moved_from);
  EXPECT_EQ(code_of(pool.close()), errc::moved_from);
  EXPECT_EQ(code_of(pooled_buffer<int>::create(pool, 1, stream)), errc::moved_from);
  EXPECT_THROW(static_cast<void>(pool.device()), failure);
  EXPECT_THROW(static_cast<void>(pool.threshold()), failure);
  EXPECT_THROW(static_cast<void>(pool.stats()), failure);
  EXPECT_THROW(pool.reset_peaks(), failure);
  EXPECT_THROW(pool.reset_counters(), failure);
  EXPECT_FALSE(pool);
  EXPECT_EQ(to_string(pool), "pool, moved from");
  EXPECT_TRUE(moved);
  EXPECT_EQ(to_string(moved),
            "pool of device 0: requested 0 B (peak 0 B), reserved 0 B (peak 0 B), cached 0 B");
  EXPECT_EQ(moved.threshold(), 1_MiB);
  EXPECT_EQ(moved.device(), gpu());
  ASSERT_TRUE(moved.set_threshold(3_MiB));
  EXPECT_EQ(moved.threshold(), 3_MiB);
}

TEST_F(bin_pool_test, the_end_releases_all_and_tells_what_failed) {
  const auto stream = new_stream();
  const bytes before = used();
  void* small = nullptr;
  void* large = nullptr;
  {
    const auto pool = make_bins();
    const tag_scope tagged{tag::named("scratch").value()};
    small = pool.allocate(1_MiB, stream);
    large = pool.allocate(2_MiB, stream);
    pool.deallocate(pool.allocate(4_MiB, stream), stream);
    machine->fail(call::mem_free, 1, driver::CUDA_ERROR_UNKNOWN);
  }
  EXPECT_EQ(machine->calls(call::mem_free), 3u) << "one that fails does not keep the others";
  EXPECT_GT(used(), before);
  const auto reports = heard.take();
  ASSERT_THAT(reports, SizeIs(2));
  EXPECT_EQ(reports[0], (error{{.code = errc::still_live,
                                .requested = 3_MiB,
                                .detail = "a pool was closed with 2 live blocks of 3 MiB\n  " +
                                          words(large, "2 MiB, tag \"scratch\"", stream) + "\n  " +
                                          words(small, "1 MiB, tag \"scratch\"", stream)}}));
  EXPECT_EQ(reports[1].native(), driver::CUDA_ERROR_UNKNOWN);
}

}  // namespace
}  // namespace weir::testing_support
