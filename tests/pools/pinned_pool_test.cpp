// SPDX-License-Identifier: Apache-2.0
// pinned_pool: what the host may do with memory that streams have used.
#include "weir/pool/pinned_pool.hpp"

#include <cstring>

#include "pools/pool_fixture.hpp"
#include "weir/resource/resource.hpp"

namespace weir::testing_support { namespace {

static_assert(stream_resource<pinned_pool>);
static_assert(pinned_pool::kind == memory_kind::pinned);

class pinned_pool_test : public block_pool_test {
 protected:
  [[nodiscard]] pinned_pool make(block_pool_options options = {}) const {
    return pinned_pool::create(gpu(), options).value();
  }
  /// The host writes; the machine is told, since it cannot see plain stores.
  void host_writes(void* memory, bytes size) {
    machine->host_write(memory, size.count());
    std::memset(memory, 7, size.count());
  }
};

TEST_F(pinned_pool_test, the_host_may_write_what_it_gets) {
  const auto stream = new_stream();
  const auto pool = make();
  void* const p = pool.allocate(1_MiB, stream);
  host_writes(p, 1_MiB);
  read(stream, p, 1_MiB);  // as a copy to the device does
  pool.deallocate(p, 1_MiB, stream);
  // The read is still queued: the host must not get that memory, on the same stream either.
  void* const q = pool.allocate(1_MiB, stream);
  EXPECT_NE(q, p);
  host_writes(q, 1_MiB);
  read(stream, q, 1_MiB);
  pool.deallocate(q, 1_MiB, stream);
  machine->run_until_idle();
  void* const r = pool.allocate(1_MiB, stream);
  EXPECT_TRUE(r == p || r == q);
  host_writes(r, 1_MiB);
  pool.deallocate(r, 1_MiB, stream);
  EXPECT_EQ(machine->calls(call::mem_host_alloc), 2u);
  EXPECT_EQ(machine->calls(call::mem_free_host), 0u);
}

TEST_F(pinned_pool_test, memory_that_another_stream_freed_is_reused_when_that_has_passed) {
  const auto one = new_stream();
  const auto two = new_stream();
  const auto pool = make();
  void* const p = pool.allocate(3_MiB, one);
  write(one, p, 3_MiB);
  pool.deallocate(p, 3_MiB, one);
  ASSERT_TRUE(one.synchronize());
  void* const q = pool.allocate(3_MiB, two);
  EXPECT_EQ(q, p);
  host_writes(q, 3_MiB);
  pool.deallocate(q, 3_MiB, two);
}

TEST_F(pinned_pool_test, a_block_is_reused_on_a_stream_at_rest) {
  const auto stream = new_stream();
  const auto pool = make();
  for (int i = 0; i < 10; ++i) {
    void* const p = pool.allocate(1_MiB, stream);
    host_writes(p, 1_MiB);
    read(stream, p, 1_MiB);
    ASSERT_TRUE(stream.synchronize());
    pool.deallocate(p, 1_MiB, stream);
  }
  EXPECT_EQ(machine->calls(call::mem_host_alloc), 1u);
  EXPECT_EQ(pool.stats().hits, 9u);
  EXPECT_EQ(pool.stats().events, 9u);  // one for each look, none for a free
}

TEST_F(pinned_pool_test, every_peak_is_reset) { expect_peaks_to_be_reset(make()); }

TEST_F(pinned_pool_test, options_are_kept_and_memory_is_every_devices) {
  EXPECT_EQ(make({.threshold = 3_MiB}).threshold(), 3_MiB);
  EXPECT_EQ(make().threshold(), bytes::max());
  const auto stream = new_stream();
  const auto pool = make();
  void* const p = pool.allocate(1_MiB, stream);
  unsigned flags = 0;
  ASSERT_EQ(machine->driver().mem_host_get_flags(&flags, p), driver::CUDA_SUCCESS);
  EXPECT_EQ(flags, driver::host_alloc_portable | driver::host_alloc_device_map);
  pool.deallocate(p, stream);
}

TEST_F(pinned_pool_test, no_power_of_two_is_wasted) {
  const auto stream = new_stream();
  const auto pool = make();
  const bytes size = 4_MiB + 1_B;
  void* const p = pool.allocate(size, stream);
  EXPECT_EQ(pool.stats().reserved.current, 4608_KiB);
  pool.deallocate(p, size, stream);
}

TEST_F(pinned_pool_test, memory_the_host_does_not_have_is_given_back_and_asked_for_again) {
  const auto stream = new_stream();
  const auto pool = make();
  void* const p = pool.allocate(1_MiB, stream);
  read(stream, p, 1_MiB);
  pool.deallocate(p, 1_MiB, stream);
  machine->run_until_idle();
  machine->fail(call::mem_host_alloc, 1, driver::CUDA_ERROR_OUT_OF_MEMORY);
  void* const q = pool.allocate(2_MiB, stream);
  EXPECT_EQ(machine->calls(call::mem_free_host), 1u);
  EXPECT_EQ(pool.stats().reserved.current, 2_MiB);
  pool.deallocate(q, 2_MiB, stream);
}

TEST_F(pinned_pool_test, every_device_reaches_it) {
  const auto pool = make();
  const auto stream = new_stream();
  const auto elsewhere = weir::stream::create(gpu(1)).value();
  void* const p = pool.allocate(1_MiB, stream);
  read(elsewhere, p, 1_MiB);
  ASSERT_TRUE(elsewhere.synchronize());
  pool.deallocate(p, 1_MiB, stream);
  EXPECT_EQ(any_resource{pool}.kind(), memory_kind::pinned);
  EXPECT_EQ(name(any_resource{pool}.kind()), "pinned");
}

}  // namespace
}  // namespace weir::testing_support
