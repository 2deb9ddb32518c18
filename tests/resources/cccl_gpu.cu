// SPDX-License-Identifier: Apache-2.0
// Thrust and CUB on a GPU, with their temporary memory from weir: by allocator and by cuda::mr.
#include <gtest/gtest.h>
#include <thrust/device_ptr.h>
#include <thrust/execution_policy.h>
#include <thrust/reduce.h>
#include <thrust/sort.h>

#include <cstdint>
#include <cstdlib>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_reduce.cuh>
#include <memory>
#include <numeric>
#include <vector>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/resource/cuda_mr.hpp"
#include "weir/resource/managed_resource.hpp"
#include "weir/device/runtime.hpp"
#include "weir/resource/statistics_resource.hpp"
#include "weir/resource/stream_allocator.hpp"

namespace {

using namespace weir::literals;

constexpr std::size_t count = std::size_t{1} << 20;

bool gpu_required() {
  const char* const value = std::getenv("WEIR_REQUIRE_GPU");
  return value != nullptr && std::string{value} == "1";
}

/// A GPU with counted memory. The numbers are a permutation of 0 … count-1.
class cccl : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = weir::runtime::open_cuda();
    if (!opened) {
      if (gpu_required()) FAIL() << opened.error().message();
      GTEST_SKIP() << "no machine: " << opened.error().message();
    }
    machine = *opened;
    const auto gpu = machine->device(weir::device_id{0}).value();
    ASSERT_EQ(cudaSuccess, cudaSetDevice(0));
    stream = std::make_unique<weir::stream>(weir::stream::create(gpu).value());
    counted = std::make_unique<weir::statistics_resource>(
        weir::statistics_resource::create(weir::caching_allocator::create(gpu).value()).value());
    values.resize(count);
    for (std::size_t i = 0; i < count; ++i)
      values[i] = static_cast<std::uint32_t>((i * 2654435761U) % count);
  }
  void TearDown() override {
    if (counted) EXPECT_EQ(counted->stats().allocations.current, 0);
  }

  [[nodiscard]] std::uint32_t* upload() {
    auto* const memory = static_cast<std::uint32_t*>(
        weir::any_resource{*counted}.allocate(4_B * count, *stream));
    EXPECT_EQ(cudaSuccess, cudaMemcpyAsync(memory, values.data(), 4 * count,
                                           cudaMemcpyHostToDevice, stream->handle()));
    return memory;
  }
  void expect_sorted(const std::uint32_t* memory) {
    std::vector<std::uint32_t> sorted(count);
    EXPECT_EQ(cudaSuccess, cudaMemcpyAsync(sorted.data(), memory, 4 * count,
                                           cudaMemcpyDeviceToHost, stream->handle()));
    ASSERT_TRUE(stream->synchronize());
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(sorted[i], i);
  }
  void give_back(std::uint32_t* memory) {
    weir::any_resource{*counted}.deallocate(memory, 4_B * count, *stream);
  }

  std::shared_ptr<weir::runtime> machine;
  std::unique_ptr<weir::stream> stream;
  std::unique_ptr<weir::statistics_resource> counted;
  std::vector<std::uint32_t> values;
  static constexpr std::uint64_t sum = std::uint64_t{count} * (count - 1) / 2;
};

TEST_F(cccl, thrust_sorts_and_reduces_with_temporaries_of_weir) {
  std::uint32_t* const numbers = upload();
  weir::stream_allocator<char> temporaries{*counted, *stream};
  const auto policy = thrust::cuda::par(temporaries).on(stream->handle());
  const thrust::device_ptr<std::uint32_t> first{numbers};
  for (int round = 0; round < 3; ++round) {
    const auto before = counted->stats().allocations.total;
    thrust::sort(policy, first, first + count);
    EXPECT_EQ(thrust::reduce(policy, first, first + count, std::uint64_t{0}), sum);
    EXPECT_GE(counted->stats().allocations.total - before, 2)
        << "the temporaries came from elsewhere";
  }
  expect_sorted(numbers);
  give_back(numbers);
}

TEST_F(cccl, cub_sorts_and_reduces_with_memory_of_cuda_mr) {
  auto memory = weir::cuda_resource::create(*counted).value();
  const cuda::stream_ref on{stream->handle()};
  std::uint32_t* const from = upload();
  auto* const to = static_cast<std::uint32_t*>(memory.allocate(on, 4 * count));

  std::size_t needed = 0;
  ASSERT_EQ(cudaSuccess, cub::DeviceRadixSort::SortKeys(nullptr, needed, from, to, count, 0, 32,
                                                        stream->handle()));
  void* temporary = memory.allocate(on, needed);
  ASSERT_EQ(cudaSuccess, cub::DeviceRadixSort::SortKeys(temporary, needed, from, to, count, 0, 32,
                                                        stream->handle()));
  memory.deallocate(on, temporary, needed);
  expect_sorted(to);

  auto* const total = static_cast<std::uint64_t*>(memory.allocate(on, 8));
  needed = 0;
  ASSERT_EQ(cudaSuccess, cub::DeviceReduce::Reduce(nullptr, needed, to, total, count,
                                                   cuda::std::plus<std::uint64_t>{},
                                                   std::uint64_t{0}, stream->handle()));
  temporary = memory.allocate(on, needed);
  ASSERT_EQ(cudaSuccess, cub::DeviceReduce::Reduce(temporary, needed, to, total, count,
                                                   cuda::std::plus<std::uint64_t>{},
                                                   std::uint64_t{0}, stream->handle()));
  std::uint64_t answer = 0;
  ASSERT_EQ(cudaSuccess, cudaMemcpyAsync(&answer, total, 8, cudaMemcpyDeviceToHost,
                                         stream->handle()));
  ASSERT_TRUE(stream->synchronize());
  EXPECT_EQ(answer, sum);
  memory.deallocate(on, temporary, needed);
  memory.deallocate(on, total, 8);
  memory.deallocate(on, to, 4 * count);
  give_back(from);
}

TEST_F(cccl, managed_memory_is_the_hosts_and_the_devices) {
  auto memory = weir::cuda_host_resource::create(
                    weir::managed_resource::create(stream->device()).value())
                    .value();
  auto* const numbers = static_cast<std::uint32_t*>(memory.allocate_sync(4 * count));
  std::copy(values.begin(), values.end(), numbers);
  weir::stream_allocator<char> temporaries{*counted, *stream};
  const auto policy = thrust::cuda::par(temporaries).on(stream->handle());
  const thrust::device_ptr<std::uint32_t> first{numbers};
  thrust::sort(policy, first, first + count);
  ASSERT_TRUE(stream->synchronize());
  for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(numbers[i], i);
  memory.deallocate_sync(numbers, 4 * count);
}

}  // namespace
