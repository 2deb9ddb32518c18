// SPDX-License-Identifier: Apache-2.0
// Fills: which bytes they change, what they refuse, and when they are done.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "memory_fixture.hpp"

namespace weir::sim_tests { namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class fills : public memory_fixture {
 protected:
  explicit fills(sim::machine_options options = small_machine(64 * mib))
      : memory_fixture{std::move(options)} {}

  std::vector<int> bytes_at(CUdeviceptr address, std::size_t count) {
    EXPECT_EQ(cuda.ctx_synchronize(), CUDA_SUCCESS);
    const auto* const first = at<const unsigned char>(address);
    return {first, first + count};
  }

  CUstream on = stream();
};

TEST_F(fills, change_their_own_bytes_and_no_others) {
  const CUdeviceptr memory = plain(64);
  std::memset(at<void>(memory), 0, 64);
  ASSERT_EQ(cuda.memset_d8_async(memory + 1, 0xab, 3, on), CUDA_SUCCESS);
  EXPECT_EQ(at<unsigned char>(memory)[1], 0) << "not before its turn";
  EXPECT_THAT(bytes_at(memory, 6), ElementsAre(0, 0xab, 0xab, 0xab, 0, 0));
  ASSERT_EQ(cuda.memset_d8(memory, 7, 1), CUDA_SUCCESS);
  EXPECT_THAT(bytes_at(memory, 2), ElementsAre(7, 0xab));
  ASSERT_EQ(cuda.memset_d32_async(memory + 8, 0x01020304, 2, on), CUDA_SUCCESS);
  EXPECT_THAT(bytes_at(memory + 4, 16),
              ElementsAre(0, 0, 0, 0, 4, 3, 2, 1, 4, 3, 2, 1, 0, 0, 0, 0));
  ASSERT_EQ(cuda.memset_d32(memory + 60, 0x05060708, 1), CUDA_SUCCESS);
  EXPECT_THAT(bytes_at(memory + 56, 8), ElementsAre(0, 0, 0, 0, 8, 7, 6, 5));
}

TEST_F(fills, of_rows_leave_the_gaps_between_them_alone) {
  const CUdeviceptr memory = plain(16);
  std::memset(at<void>(memory), 0, 16);
  ASSERT_EQ(cuda.memset_d2d8_async(memory + 1, 5, 9, 2, 3, on), CUDA_SUCCESS);
  EXPECT_THAT(bytes_at(memory, 16), ElementsAre(0, 9, 9, 0, 0, 0, 9, 9, 0, 0, 0, 9, 9, 0, 0, 0));
  // One row needs no pitch, and rows may touch each other and the end.
  ASSERT_EQ(cuda.memset_d2d8_async(memory, 0, 1, 3, 1, on), CUDA_SUCCESS);
  ASSERT_EQ(cuda.memset_d2d8_async(memory + 12, 2, 2, 2, 2, on), CUDA_SUCCESS);
  EXPECT_THAT(bytes_at(memory, 16), ElementsAre(1, 1, 1, 0, 0, 0, 9, 9, 0, 0, 0, 9, 2, 2, 2, 2));
}

TEST_F(fills, race_with_what_they_touch_only) {
  const CUdeviceptr memory = plain(64);
  work(stream(), {writes(memory + 16, 16), writes(memory + 48, 16)});
  ASSERT_EQ(cuda.memset_d2d8_async(memory, 32, 1, 16, 2, on), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), IsEmpty());
  work(stream(), {reads(memory + 47, 1)});
  ASSERT_THAT(hazards(), ElementsAre(hazard_kind::race));
  EXPECT_EQ(machine->hazards()[0].first.label, "fill");
  EXPECT_TRUE(machine->hazards()[0].first.writes);
}

TEST_F(fills, of_nothing_are_no_work) {
  const CUdeviceptr memory = plain(64);
  EXPECT_EQ(cuda.memset_d8_async(memory, 1, 0, on), CUDA_SUCCESS);
  EXPECT_EQ(cuda.memset_d32_async(memory, 1, 0, on), CUDA_SUCCESS);
  EXPECT_EQ(cuda.memset_d2d8_async(memory, 32, 1, 0, 2, on), CUDA_SUCCESS);
  EXPECT_EQ(cuda.memset_d2d8_async(memory, 32, 1, 16, 0, on), CUDA_SUCCESS);
  EXPECT_EQ(cuda.stream_query(on), CUDA_SUCCESS);
  EXPECT_EQ(cuda.memset_d8_async(memory, 1, 1, on), CUDA_SUCCESS);
  EXPECT_EQ(cuda.stream_query(on), CUDA_ERROR_NOT_READY);
}

TEST_F(fills, are_refused_where_they_do_not_fit) {
  const CUdeviceptr memory = plain(64);
  const auto nobody = reinterpret_cast<CUstream>(std::uintptr_t{0xdead0});
  EXPECT_EQ(cuda.memset_d8_async(memory, 1, 1, nobody), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuda.memset_d8_async(nowhere, 1, 1, on), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.memset_d8_async(memory, 1, 65, on), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.memset_d32_async(memory, 1, 17, on), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.memset_d32_async(memory + 2, 1, 1, on), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.memset_d2d8_async(memory, 15, 1, 16, 2, on), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.memset_d2d8_async(memory, 49, 1, 16, 2, on), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.stream_query(on), CUDA_SUCCESS) << "nothing was queued";
  EXPECT_EQ(cuda.memset_d2d8_async(memory, 48, 1, 16, 2, on), CUDA_SUCCESS);
}

TEST_F(fills, of_more_than_there_are_addresses_are_refused) {
  const CUdeviceptr memory = plain(64);
  for (const std::size_t count : {std::size_t{1} << 62, (std::size_t{1} << 62) + 1}) {
    EXPECT_EQ(cuda.memset_d32_async(memory, 1, count, on), CUDA_ERROR_INVALID_VALUE) << count;
  }
  EXPECT_EQ(cuda.memset_d2d8_async(memory, 16, 1, 16, std::size_t{1} << 60, on),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.stream_query(on), CUDA_SUCCESS);
}

class fills_in_time : public fills {
 protected:
  fills_in_time() : fills{timed_machine()} {}
};

TEST_F(fills_in_time, take_what_the_bytes_of_all_rows_take) {
  const CUdeviceptr memory = plain(8 * mib);
  const auto start = machine->now();
  ASSERT_EQ(cuda.memset_d2d8_async(memory, 2 * mib, 1, 2'000'000, 4, on), CUDA_SUCCESS);
  ASSERT_EQ(cuda.stream_synchronize(on), CUDA_SUCCESS);
  EXPECT_EQ(machine->now() - start, 4000ns) << "2 us, and 4000 bytes a nanosecond";
}

}  // namespace
}  // namespace weir::sim_tests
