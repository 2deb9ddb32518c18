// SPDX-License-Identifier: Apache-2.0
// Memory without a stream: synchronous_resource, and std::pmr on top of it.
#include <memory_resource>
#include <string>

#include "resources/resources_fixture.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/event.hpp"
#include "weir/resource/managed_resource.hpp"
#include "weir/resource/plain_resource.hpp"
#include "weir/resource/pmr_resource.hpp"
#include "weir/resource/stream_allocator.hpp"
#include "weir/resource/synchronous_resource.hpp"

namespace weir::testing_support { namespace {

using pmr_test = resources_test;

TEST_F(pmr_test, containers_live_in_managed_memory) {
  auto managed = managed_resource::create(gpu).value();
  auto resource = pmr_resource::create(managed).value();
  EXPECT_EQ(resource.upstream(), any_resource{managed});
  {
    std::pmr::vector<int> numbers{&resource};
    for (int i = 0; i < 1000; ++i) numbers.push_back(i);
    std::pmr::string text{"a string that is too long to be kept inside the object", &resource};
    EXPECT_GE(managed.in_use().count(), 4000U);
    EXPECT_EQ(numbers[999], 999);
    EXPECT_EQ(text.back(), 't');
  }
  EXPECT_EQ(managed.in_use(), 0_B);
}

TEST_F(pmr_test, device_memory_is_refused) {
  EXPECT_EQ(code_of(pmr_resource::create(caching_allocator::create(gpu).value())),
            errc::invalid_argument);
  EXPECT_EQ(code_of(pmr_resource::create(any_resource{})), errc::invalid_argument);
}

TEST_F(pmr_test, equal_over_an_equal_upstream) {
  const any_resource managed = managed_resource::create(gpu).value();
  auto one = pmr_resource::create(managed).value();
  auto two = pmr_resource::create(managed).value();
  auto other = pmr_resource::create(managed_resource::create(gpu).value()).value();
  EXPECT_TRUE(one.is_equal(two));
  EXPECT_FALSE(one.is_equal(other));
  EXPECT_FALSE(one.is_equal(*std::pmr::new_delete_resource()));
  void* const p = one.allocate(100);
  two.deallocate(p, 100);
  void* const nothing = one.allocate(0);
  EXPECT_NE(nothing, nullptr);
  one.deallocate(nothing, 0);
}

TEST_F(pmr_test, nothing_costs_a_byte_and_alignments_are_passed_on) {
  ledger_resource pinned{gpu, memory_kind::pinned};
  auto resource = pmr_resource::create(pinned).value();
  void* const nothing = resource.allocate(0);
  EXPECT_EQ(pinned.used(), 1_B);
  void* const some = resource.allocate(100, 256);
  EXPECT_EQ(pinned.used(), 101_B);
  resource.deallocate(some, 100, 256);
  resource.deallocate(nothing, 0);
  EXPECT_EQ(pinned.live(), 0U);
}

TEST_F(pmr_test, what_cannot_be_had_is_thrown) {
  ledger_resource pinned{gpu, memory_kind::pinned};
  auto resource = pmr_resource::create(pinned).value();
  pinned.refuse({errc::out_of_memory});
  EXPECT_THROW(static_cast<void>(resource.allocate(100)), std::bad_alloc);
  EXPECT_THROW(static_cast<void>(resource.allocate(100, 4096)), failure) << "alignment";
  EXPECT_EQ(pinned.live(), 0U);
}

// Memory that a stream used before may be used by all streams when it comes without a stream.
TEST_F(pmr_test, memory_without_a_stream_is_safe_on_all) {
  auto allocator = caching_allocator::create(gpu).value();
  auto memory = synchronous_resource::create(allocator).value();
  const auto other = stream::create(gpu).value();
  void* const p = allocator.allocate(4_MiB, stream);
  const auto at = static_cast<driver::CUdeviceptr>(reinterpret_cast<std::uintptr_t>(p));
  ASSERT_TRUE(machine->launch(stream.handle(), "writes", {sim::writes(at, 4096)}));
  allocator.deallocate(p, stream);
  void* const q = memory.allocate(4_MiB);
  const auto there = static_cast<driver::CUdeviceptr>(reinterpret_cast<std::uintptr_t>(q));
  ASSERT_TRUE(machine->launch(other.handle(), "writes too", {sim::writes(there, 4096)}));
  ASSERT_TRUE(other.synchronize());
  memory.deallocate(q, 4_MiB);  // the hazard oracle judges at the end
}

TEST_F(pmr_test, a_wait_that_fails_loses_no_memory) {
  auto memory = synchronous_resource::create(ledger).value();
  machine->fail(driver::call::event_synchronize, 1, driver::CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(memory.try_allocate(1_KiB));
  EXPECT_EQ(ledger.live(), 0U);
  void* const p = memory.allocate(1_KiB);
  EXPECT_TRUE(memory.try_deallocate(p, 1_KiB));
  const auto waits = machine->calls(driver::call::event_synchronize);
  EXPECT_EQ(memory.try_allocate(0_B).value(), nullptr);
  EXPECT_EQ(machine->calls(driver::call::event_synchronize), waits) << "nothing to wait for";
  ledger.refuse_free({errc::bad_stream});
  EXPECT_EQ(code_of(memory.try_deallocate(p, 1_KiB)), errc::bad_stream);
}

TEST_F(pmr_test, an_allocator_counts_in_values) {
  stream_allocator<double> of_doubles{ledger, stream};
  double* const p = of_doubles.allocate(16);
  EXPECT_EQ(ledger.used(), 128_B);
  of_doubles.deallocate(p, 16);
  EXPECT_EQ(ledger.used(), 0_B);
  EXPECT_THROW(static_cast<void>(of_doubles.allocate(~std::size_t{0} / 4)), failure);
  const stream_allocator<char> of_bytes{of_doubles};
  EXPECT_EQ(stream_allocator<double>{of_bytes}, of_doubles);
  EXPECT_NE((stream_allocator<double>{ledger_resource{gpu}, stream}), of_doubles);
  EXPECT_NE((stream_allocator<double>{ledger, stream_ref::legacy(gpu)}), of_doubles);
}

}  // namespace
}  // namespace weir::testing_support
