// SPDX-License-Identifier: Apache-2.0
// Copies of memory that nobody wrote: what they hold, and that they touch no page.
#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "memory_fixture.hpp"

namespace weir::sim_tests { namespace {

class sparse_copies : public memory_fixture {
 protected:
  sparse_copies() : memory_fixture{small_machine(64 * mib)} {}

  /// How many pages of [address, address + size) there are.
  std::size_t pages(CUdeviceptr address, std::size_t size) {
    std::vector<unsigned char> there(size / 4096);
    EXPECT_EQ(::mincore(at<void>(address), size, there.data()), 0);
    return static_cast<std::size_t>(
        std::count_if(there.begin(), there.end(), [](unsigned char each) { return each & 1U; }));
  }
  void copy(CUdeviceptr to, CUdeviceptr from, std::size_t size) {
    ASSERT_EQ(cuda.memcpy_dtod_async(to, from, size, nullptr), CUDA_SUCCESS);
    ASSERT_EQ(cuda.ctx_synchronize(), CUDA_SUCCESS);
  }
  /// Writes `value` to each byte of a range.
  void write(CUdeviceptr address, std::size_t size, std::uint8_t value) {
    std::fill_n(at<std::uint8_t>(address), size, value);
  }
  /// Where the first byte of a range is that is not `value`; its size if there is none.
  std::size_t first_other(CUdeviceptr address, std::size_t size, std::uint8_t value) {
    const auto* const begin = at<std::uint8_t>(address);
    return static_cast<std::size_t>(
        std::find_if(begin, begin + size, [=](std::uint8_t each) { return each != value; }) -
        begin);
  }

  const CUdeviceptr from = plain(4 * mib);
  const CUdeviceptr to = plain(4 * mib);
};

TEST_F(sparse_copies, of_what_nobody_wrote_touch_no_page) {
  copy(to, from, 4 * mib);
  EXPECT_EQ(pages(from, 4 * mib), 0U);
  EXPECT_EQ(pages(to, 4 * mib), 0U);
}

TEST_F(sparse_copies, touch_the_pages_that_were_written) {
  write(from + mib + 5, 1, 7);
  write(from + 3 * mib - 1, 2, 8);
  copy(to, from, 4 * mib);
  EXPECT_EQ(pages(from, 4 * mib), 3U);
  EXPECT_EQ(pages(to, 4 * mib), 3U);
  EXPECT_EQ(first_other(to, 4 * mib, 0), mib + 5);
  EXPECT_EQ(*at<std::uint8_t>(to + mib + 5), 7);
  EXPECT_EQ(first_other(to + mib + 6, 3 * mib - 6, 0), 2 * mib - 7);
  EXPECT_EQ(first_other(to + 3 * mib - 1, 2, 8), 2U);
  EXPECT_EQ(first_other(to + 3 * mib + 1, mib - 1, 0), mib - 1);
}

TEST_F(sparse_copies, clear_what_the_destination_held) {
  write(to, 4 * mib, 9);
  write(from + mib, 1, 7);
  copy(to + 100, from + 100, 3 * mib);
  EXPECT_EQ(first_other(to, 100, 9), 100U);
  EXPECT_EQ(first_other(to + 100, mib - 100, 0), mib - 100);
  EXPECT_EQ(*at<std::uint8_t>(to + mib), 7);
  EXPECT_EQ(first_other(to + mib + 1, 2 * mib + 99, 0), 2 * mib + 99);
  EXPECT_EQ(first_other(to + 3 * mib + 100, mib - 100, 9), mib - 100);
}

TEST_F(sparse_copies, may_overlap) {
  write(from + mib, mib, 7);
  copy(from + mib / 2, from, 3 * mib);
  EXPECT_EQ(first_other(from, 3 * mib / 2, 0), 3 * mib / 2);
  EXPECT_EQ(first_other(from + 3 * mib / 2, mib, 7), mib);
  EXPECT_EQ(first_other(from + 5 * mib / 2, 3 * mib / 2, 0), 3 * mib / 2);
}

TEST_F(sparse_copies, go_across_handles) {
  CUdeviceptr address = 0;
  ASSERT_EQ(cuda.mem_address_reserve(&address, 2 * unit, 0, 0, 0), CUDA_SUCCESS);
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  for (const CUdeviceptr part :
       {address + unit, address}) {  // the later one lies first in the file
    CUmemGenericAllocationHandle handle = 0;
    ASSERT_EQ(cuda.mem_create(&handle, unit, &wanted, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuda.mem_map(part, unit, 0, handle, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuda.mem_release(handle), CUDA_SUCCESS);
  }
  const CUmemAccessDesc access{wanted.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  ASSERT_EQ(cuda.mem_set_access(address, 2 * unit, &access, 1), CUDA_SUCCESS);
  write(address + unit - 1, 2, 7);
  write(to, 4 * mib, 9);
  copy(to, address, 2 * unit);
  EXPECT_EQ(first_other(to, unit - 1, 0), unit - 1);
  EXPECT_EQ(first_other(to + unit - 1, 2, 7), 2U);
  EXPECT_EQ(first_other(to + unit + 1, unit - 1, 0), unit - 1);
  EXPECT_EQ(pages(address, 2 * unit), 2U);
}

TEST_F(sparse_copies, go_to_pinned_memory_and_back) {
  const auto host = reinterpret_cast<CUdeviceptr>(pinned(4 * mib));
  write(from + 2 * mib, 1, 7);
  copy(host, from, 4 * mib);
  copy(to, host, 4 * mib);
  EXPECT_EQ(pages(host, 4 * mib), 1U);
  EXPECT_EQ(pages(to, 4 * mib), 1U);
  EXPECT_EQ(*at<std::uint8_t>(to + 2 * mib), 7);
}

}}  // namespace weir::sim_tests
