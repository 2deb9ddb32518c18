// SPDX-License-Identifier: Apache-2.0
// cuda::mr: the concepts hold (static_asserts of the header), and the calls do what they say.
#include "weir/resource/cuda_mr.hpp"

#include <cstdint>
#include <set>

#include "resources/resources_fixture.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/resource/managed_resource.hpp"

namespace weir::testing_support { namespace {

using cuda_mr_test = resources_test;

#if CCCL_VERSION < 3001000
using stream_resource_ref = ::cuda::mr::async_resource_ref<::cuda::mr::device_accessible>;
#elif CCCL_VERSION >= 3002000
using stream_resource_ref = ::cuda::mr::resource_ref<::cuda::mr::device_accessible>;
#endif

TEST_F(cuda_mr_test, both_spellings_reach_the_resource) {
  auto allocator = caching_allocator::create(gpu).value();
  auto memory = cuda_resource::create(allocator).value();
  const ::cuda::stream_ref on{stream.handle()};
  void* const a = memory.allocate(on, 1 << 20);
  void* const b = memory.allocate_async(1 << 20, 256, on);
  void* const c = memory.allocate_sync(1 << 20);
  void* const d = memory.allocate(1 << 20);
  EXPECT_EQ(allocator.stats().blocks.current, 4U);
  memory.deallocate(on, a, 1 << 20);
  memory.deallocate_async(b, 1 << 20, 256, on);
  memory.deallocate_sync(c, 1 << 20);
  memory.deallocate(d, 1 << 20);
  EXPECT_EQ(allocator.stats().blocks.current, 0U);
  EXPECT_EQ(memory.resource(), any_resource{allocator});
}

template <class Memory>
void expect_calls(const Memory& memory, const ::cuda::stream_ref& stream) {
  void* const a = memory.allocate(stream, 1 << 20);
  void* const b = memory.allocate(stream, 1000, 512);
  void* const c = memory.allocate_async(1 << 20, 256, stream);
  void* const d = memory.allocate_sync(std::size_t{1} << 20);
  void* const e = memory.allocate(std::size_t{1} << 20, 256);
  const std::set<void*> addresses{a, b, c, d, e};
  EXPECT_EQ(addresses.size(), 5U);
  EXPECT_FALSE(addresses.contains(nullptr));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b) % 512, 0U);
  memory.deallocate(stream, a, 1 << 20);
  memory.deallocate(stream, b, 1000, 512);
  memory.deallocate_async(c, 1 << 20, 256, stream);
  memory.deallocate_sync(d, std::size_t{1} << 20);
  memory.deallocate(e, std::size_t{1} << 20, 256);
  EXPECT_EQ(memory.allocate_sync(std::size_t{0}), nullptr);
  EXPECT_THROW(static_cast<void>(memory.allocate(stream, std::size_t{1} << 40)), std::bad_alloc);
}

TEST_F(cuda_mr_test, allocators_and_pools_are_resources_themselves) {
  const ::cuda::stream_ref on{stream.handle()};
  const auto allocator = caching_allocator::create(gpu).value();
  expect_calls(allocator, on);
  EXPECT_EQ(allocator.stats().blocks.current, 0U);
  EXPECT_EQ(allocator.stats().blocks.peak, 5U);
  const auto bins = bin_pool::create(gpu).value();
  expect_calls(bins, on);
  EXPECT_EQ(bins.stats().blocks.current, 0U);
  const auto pinned = pinned_pool::create(gpu).value();
  auto* const number = static_cast<int*>(pinned.allocate_sync(sizeof(int)));
  *number = 42;
  EXPECT_EQ(*number, 42);
  pinned.deallocate_sync(number, sizeof(int));
  EXPECT_EQ(pinned.stats().blocks.current, 0U);
  const auto pool = stream_pool::create(gpu).value();
  expect_calls(pool, on);
  EXPECT_EQ(pool.stats().value().active_allocations, 0U);
}

#if CCCL_VERSION < 3001000 || CCCL_VERSION >= 3002000
TEST_F(cuda_mr_test, an_erased_reference_to_an_allocator_works) {
  auto allocator = caching_allocator::create(gpu).value();
  stream_resource_ref ref = allocator;
#if CCCL_VERSION < 3001000
  void* const p = ref.allocate_async(1000, 256, ::cuda::stream_ref{stream.handle()});
  EXPECT_EQ(allocator.stats().blocks.current, 1U);
  ref.deallocate_async(p, 1000, 256, ::cuda::stream_ref{stream.handle()});
#else
  void* const p = ref.allocate(::cuda::stream_ref{stream.handle()}, 1000, 256);
  EXPECT_EQ(allocator.stats().blocks.current, 1U);
  ref.deallocate(::cuda::stream_ref{stream.handle()}, p, 1000, 256);
#endif
  EXPECT_EQ(allocator.stats().blocks.current, 0U);
}

TEST_F(cuda_mr_test, an_erased_reference_works) {
  auto memory = cuda_resource::create(ledger).value();
  stream_resource_ref ref = memory;
#if CCCL_VERSION < 3001000
  void* const p = ref.allocate_async(1000, 16, ::cuda::stream_ref{stream.handle()});
  ref.deallocate_async(p, 1000, 16, ::cuda::stream_ref{stream.handle()});
#else
  void* const p = ref.allocate(::cuda::stream_ref{stream.handle()}, 1000, 16);
  ref.deallocate(::cuda::stream_ref{stream.handle()}, p, 1000, 16);
#endif
  EXPECT_NE(p, nullptr);
  EXPECT_EQ(ledger.live(), 0U);
}
#endif

TEST_F(cuda_mr_test, host_access_is_promised_only_where_it_is_kept) {
  EXPECT_EQ(code_of(cuda_host_resource::create(ledger)), errc::invalid_argument);
  EXPECT_EQ(code_of(cuda_resource::create(any_resource{})), errc::invalid_argument);
  auto managed = cuda_host_resource::create(managed_resource::create(gpu).value()).value();
  auto* const number = static_cast<int*>(managed.allocate_sync(sizeof(int)));
  *number = 42;
  EXPECT_EQ(*number, 42);
  managed.deallocate_sync(number, sizeof(int));
}

TEST_F(cuda_mr_test, equal_if_the_resources_are) {
  const auto one = cuda_resource::create(ledger).value();
  EXPECT_EQ(one, cuda_resource::create(ledger).value());
  EXPECT_NE(one, cuda_resource::create(ledger_resource(gpu)).value());
}

TEST_F(cuda_mr_test, shortage_is_a_bad_alloc_and_a_bad_free_is_reported) {
  auto memory = cuda_resource::create(caching_allocator::create(gpu).value()).value();
  EXPECT_THROW(static_cast<void>(memory.allocate(std::size_t{1} << 40)), std::bad_alloc);
  int local = 0;
  memory.deallocate_sync(&local, 4);
  const auto reported = take_reports();
  ASSERT_EQ(reported.size(), 1U);
  EXPECT_EQ(reported.front().code(), errc::foreign_pointer);
}

}  // namespace
}  // namespace weir::testing_support
