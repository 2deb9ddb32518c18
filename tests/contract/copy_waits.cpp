// SPDX-License-Identifier: Apache-2.0
// Contract: which copies and fills the host waits for (NVIDIA's "API synchronization behavior").
#include <chrono>

#include "support/contract_test.hpp"

namespace weir::testing_support { namespace {

using std::chrono::milliseconds;

CUdeviceptr address_of(const volatile word* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

class copy_waits : public contract_test {
 protected:
  static constexpr std::size_t size = 4 * kib;

  /// Work that is still running when a call behind it would return at once.
  void delay(CUstream stream) { EXPECT_EQ(CUDA_SUCCESS, spin(milliseconds{20}, stream)); }
};
WEIR_CONTRACT(copy_waits);

TEST_P(copy_waits, BetweenDeviceMemoryNothingIsWaitedFor) {
  const CUdeviceptr from = new_memory(size);
  const CUdeviceptr to = new_memory(size);
  WEIR_OK(cu->ctx_synchronize());
  auto held = occupy(nullptr);
  WEIR_OK(cu->memcpy_sync(to, from, size));
  WEIR_OK(cu->memcpy_dtod(to, from, size));
  EXPECT_TRUE(stays_busy(nullptr));
  held->finish();
  WEIR_OK(cu->stream_synchronize(nullptr));
}

TEST_P(copy_waits, AFillOfDeviceMemoryIsNotWaitedFor) {
  const CUdeviceptr memory = new_memory(size);
  WEIR_OK(cu->ctx_synchronize());
  auto held = occupy(nullptr);
  WEIR_OK(cu->memset_d8(memory, 1, size));
  WEIR_OK(cu->memset_d32(memory, 1, size / 4));
  EXPECT_TRUE(stays_busy(nullptr));
  held->finish();
  WEIR_OK(cu->stream_synchronize(nullptr));
}

TEST_P(copy_waits, AFillOfPinnedMemoryIsDoneWhenTheCallReturns) {
  volatile word* const memory = new_pinned(size);
  delay(nullptr);
  WEIR_OK(cu->memset_d8(address_of(memory), 3, size));
  EXPECT_EQ(0x03030303u, memory[size / 4 - 1]);
  delay(nullptr);
  WEIR_OK(cu->memset_d32(address_of(memory), 17, size / 4));
  EXPECT_EQ(17u, memory[size / 4 - 1]);
}

TEST_P(copy_waits, AFillOfManagedMemoryIsDoneWhenTheCallReturns) {
  const CUdeviceptr memory = new_managed(size);
  delay(nullptr);
  WEIR_OK(cu->memset_d32(memory, 19, size / 4));
  const auto* const words_there = reinterpret_cast<volatile word*>(memory);
  EXPECT_EQ(19u, words_there[size / 4 - 1]);
}

TEST_P(copy_waits, FromPinnedMemoryToTheDeviceTheCallReturnsWhenItIsDone) {
  word* const from = new_pinned(size);
  const CUdeviceptr to = new_memory(size);
  delay(nullptr);
  WEIR_OK(cu->memcpy_htod(to, from, size));
  EXPECT_EQ(CUDA_SUCCESS, cu->stream_query(nullptr));
}

TEST_P(copy_waits, FromTheDeviceToPinnedMemoryTheCallReturnsWhenItIsDone) {
  const CUdeviceptr from = new_memory(size);
  volatile word* const to = new_pinned(size);
  delay(nullptr);
  WEIR_OK(fill(from, 23, size / 4, nullptr));
  WEIR_OK(cu->memcpy_dtoh(const_cast<word*>(to), from, size));
  EXPECT_EQ(23u, to[size / 4 - 1]);
}

TEST_P(copy_waits, BetweenHostMemoryTheCallReturnsWhenItIsDoneAlsoWithAStream) {
  const CUstream stream = new_stream();
  word* const from = new_pinned(size);
  volatile word* const to = new_pinned(size);
  from[size / 4 - 1] = 29;
  delay(nullptr);
  WEIR_OK(cu->memcpy_sync(address_of(to), address_of(from), size));
  EXPECT_EQ(29u, to[size / 4 - 1]);
  from[size / 4 - 1] = 31;
  delay(stream);
  WEIR_OK(cu->memcpy_async(address_of(to), address_of(from), size, stream));
  EXPECT_EQ(31u, to[size / 4 - 1]);
}

TEST_P(copy_waits, APageableSourceMayBeOverwrittenWhenTheCallReturns) {
  std::vector<word> from(size / 4, 37);
  const CUdeviceptr to = new_memory(size);
  delay(nullptr);
  WEIR_OK(cu->memcpy_htod(to, from.data(), size));
  std::fill(from.begin(), from.end(), word{0});
  EXPECT_EQ(0u, mismatches(to, 37, size / 4));
}

}  // namespace
}  // namespace weir::testing_support
