// SPDX-License-Identifier: Apache-2.0
// Copies between two places of the host that the machine knows nothing of.
#include <numeric>
#include <string>
#include <vector>

#include "memory_fixture.hpp"

namespace weir::sim_tests { namespace {

class host_copies : public memory_fixture {
 protected:
  host_copies() : memory_fixture{small_machine(64 * mib)} {
    std::iota(from.begin(), from.end(), std::uint8_t{1});
  }
  static CUdeviceptr address(std::vector<std::uint8_t>& memory) {
    return reinterpret_cast<std::uintptr_t>(memory.data());
  }

  std::vector<std::uint8_t> from = std::vector<std::uint8_t>(100);
  std::vector<std::uint8_t> to = std::vector<std::uint8_t>(100);
};

TEST_F(host_copies, are_done_when_the_call_returns) {
  EXPECT_EQ(cuda.memcpy_async(address(to), address(from), 100, stream()), CUDA_SUCCESS);
  EXPECT_EQ(to, from);
  EXPECT_EQ(hazards(), std::vector<hazard_kind>{});
}

TEST_F(host_copies, wait_for_the_stream) {
  const CUstream queue = stream();
  std::string order;
  work(queue, {}, [&] { order += std::to_string(to[0]); });
  EXPECT_EQ(cuda.memcpy_async(address(to), address(from), 100, queue), CUDA_SUCCESS);
  EXPECT_EQ(order, "0");
  EXPECT_EQ(to, from);
}

TEST_F(host_copies, of_rows_leave_what_lies_between_them) {
  CUDA_MEMCPY2D rows{};
  rows.srcMemoryType = rows.dstMemoryType = CU_MEMORYTYPE_HOST;
  rows.srcHost = from.data();
  rows.dstHost = to.data();
  rows.srcPitch = 10;
  rows.dstPitch = 20;
  rows.WidthInBytes = 3;
  rows.Height = 2;
  EXPECT_EQ(cuda.memcpy_2d_async(&rows, stream()), CUDA_SUCCESS);
  std::vector<std::uint8_t> expected(100);
  for (std::size_t i = 0; i < 3; ++i) {
    expected[i] = from[i];
    expected[20 + i] = from[10 + i];
  }
  EXPECT_EQ(to, expected);
}

TEST_F(host_copies, from_and_to_nowhere_are_refused) {
  EXPECT_EQ(cuda.memcpy_async(address(to), nowhere, 100, stream()), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.memcpy_async(nowhere, address(from), 100, stream()), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(to, std::vector<std::uint8_t>(100));
}

}  // namespace
}  // namespace weir::sim_tests
