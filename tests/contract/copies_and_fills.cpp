// SPDX-License-Identifier: Apache-2.0
// Contract: copies between all kinds of memory, and fills.
#include <algorithm>
#include <array>
#include <numeric>

#include "support/contract_test.hpp"

namespace weir::testing_support { namespace {

class copies_and_fills : public contract_test {};
WEIR_CONTRACT(copies_and_fills);

CUdeviceptr address_of(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

CUDA_MEMCPY2D rows(CUdeviceptr to, std::size_t to_pitch, CUdeviceptr from, std::size_t from_pitch,
                   std::size_t width, std::size_t height) {
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = from;
  copy.srcPitch = from_pitch;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = to;
  copy.dstPitch = to_pitch;
  copy.WidthInBytes = width;
  copy.Height = height;
  return copy;
}

std::array<char, 64> some_bytes{};

const refusal_list copies_and_fills_refusals{
    "copies_and_fills",
    {
        {"memcpy_sync to null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->memcpy_sync(0, b.new_memory(64), 64); }},
        {"memcpy_async to null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->memcpy_async(0, b.new_memory(64), 64, b.new_stream());
         }},
        {"memcpy_htod to null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->memcpy_htod(0, some_bytes.data(), 64); }},
        {"memcpy_htod from null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->memcpy_htod(b.new_memory(64), nullptr, 64); }},
        {"memcpy_htod past the end", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           static const std::vector<char> much(8 * mib);
           return b.cu->memcpy_htod(b.new_memory(4 * mib), much.data(), much.size());
         }},
        {"memcpy_dtoh from null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->memcpy_dtoh(some_bytes.data(), 0, 64); }},
        {"memcpy_dtoh to null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->memcpy_dtoh(nullptr, b.new_memory(64), 64); }},
        {"memcpy_dtod from null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->memcpy_dtod(b.new_memory(64), 0, 64); }},
        {"memcpy_htod_async from null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->memcpy_htod_async(b.new_memory(64), nullptr, 64, b.new_stream());
         }},
        {"memcpy_dtoh_async from null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->memcpy_dtoh_async(some_bytes.data(), 0, 64, b.new_stream());
         }},
        {"memcpy_dtod_async from null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->memcpy_dtod_async(b.new_memory(64), 0, 64, b.new_stream());
         }},
        {"memcpy_peer_async from null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->memcpy_peer_async(b.new_memory(64), b.context, 0, b.context, 64,
                                          b.new_stream());
         }},
        {"memcpy_2d_async of nothing", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->memcpy_2d_async(nullptr, b.new_stream()); }},
        {"memcpy_2d_async with a pitch below the width", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           const auto copy = rows(b.new_memory(4096), 32, b.new_memory(4096), 64, 64, 4);
           return b.cu->memcpy_2d_async(&copy, b.new_stream());
         }},
        {"memcpy_3d_async of nothing", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->memcpy_3d_async(nullptr, b.new_stream()); }},
        {"memcpy_3d_async of more rows than a plane has", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUDA_MEMCPY3D copy{};
           copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
           copy.srcDevice = b.new_memory(4096);
           copy.dstDevice = b.new_memory(4096);
           copy.srcPitch = copy.dstPitch = copy.WidthInBytes = 64;
           copy.srcHeight = 3;
           copy.dstHeight = copy.Height = 4;
           copy.Depth = 2;
           return b.cu->memcpy_3d_async(&copy, b.new_stream());
         }},
        {"memcpy_batch_async of nothing", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->memcpy_batch_async(nullptr, nullptr, nullptr, 1, nullptr, nullptr, 0,
                                           nullptr, b.new_stream());
         }},
        {"memset_d8 of null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->memset_d8(0, 1, 64); }},
        {"memset_d8 past the end", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->memset_d8(b.new_memory(4 * mib), 1, 64 * mib); }},
        {"memset_d32 of null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->memset_d32(0, 1, 16); }},
        {"memset_d32 at an odd address", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->memset_d32(b.new_memory(4096) + 2, 1, 16); }},
        {"memset_d8_async of null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->memset_d8_async(0, 1, 64, b.new_stream()); }},
        {"memset_d32_async at an odd address", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->memset_d32_async(b.new_memory(4096) + 2, 1, 16, b.new_stream());
         }},
        {"memset_d2d8_async with a pitch below the width", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->memset_d2d8_async(b.new_memory(4096), 32, 1, 64, 4, b.new_stream());
         }},
    }};

TEST_P(copies_and_fills, refuses) { expect_refusals(copies_and_fills_refusals, machine); }

TEST_P(copies_and_fills, nothing_is_copied_without_complaint) {
  const CUdeviceptr memory = new_memory(64);
  const CUstream stream = new_stream();
  EXPECT_EQ(CUDA_SUCCESS, cu->memcpy_htod(memory, some_bytes.data(), 0));
  EXPECT_EQ(CUDA_SUCCESS, cu->memcpy_dtod_async(memory, memory + 32, 0, stream));
  EXPECT_EQ(CUDA_SUCCESS, cu->memset_d8_async(memory, 1, 0, stream));
}

TEST_P(copies_and_fills, bytes_go_there_and_back) {
  const CUdeviceptr first = new_memory(mib);
  const CUdeviceptr second = new_memory(mib);
  std::vector<word> sent(mib / sizeof(word));
  std::iota(sent.begin(), sent.end(), word{1});
  WEIR_OK(cu->memcpy_htod(first, sent.data(), mib));
  WEIR_OK(cu->memcpy_dtod(second, first, mib));
  std::vector<word> received(sent.size());
  WEIR_OK(cu->memcpy_dtoh(received.data(), second, mib));
  EXPECT_EQ(sent, received);
}

TEST_P(copies_and_fills, one_call_copies_between_all_kinds) {
  const CUstream stream = new_stream();
  const CUdeviceptr plain = new_memory(4 * kib);
  const CUdeviceptr managed = new_managed(4 * kib);
  const CUdeviceptr mapped = new_mapping(granularity());
  word* const pinned = new_pinned(4 * kib);
  std::fill_n(pinned, kib, word{81});
  WEIR_OK(cu->memcpy_async(plain, address_of(pinned), 4 * kib, stream));
  WEIR_OK(cu->memcpy_async(managed, plain, 4 * kib, stream));
  WEIR_OK(cu->memcpy_async(mapped, managed, 4 * kib, stream));
  WEIR_OK(increment(mapped, kib, stream));
  WEIR_OK(cu->memcpy_async(address_of(pinned), mapped, 4 * kib, stream));
  WEIR_OK(cu->stream_synchronize(stream));
  EXPECT_EQ(82u, pinned[0]);
  EXPECT_EQ(82u, pinned[kib - 1]);
  WEIR_OK(cu->memcpy_sync(plain, mapped, 4 * kib));
  EXPECT_EQ(0u, mismatches(plain, 82, kib));
}

TEST_P(copies_and_fills, async_copies_keep_stream_order) {
  const CUstream stream = new_stream();
  const CUdeviceptr memory = new_memory(mib);
  const CUdeviceptr other = new_memory(mib);
  word* const in = new_pinned(mib);
  word* const out = new_pinned(mib);
  std::fill_n(in, mib / sizeof(word), word{5});
  auto held = occupy(stream);
  WEIR_OK(cu->memcpy_htod_async(memory, in, mib, stream));
  WEIR_OK(increment(memory, mib / sizeof(word), stream));
  WEIR_OK(cu->memcpy_dtod_async(other, memory, mib, stream));
  WEIR_OK(cu->memcpy_dtoh_async(out, other, mib, stream));
  EXPECT_TRUE(stays_busy(stream));
  EXPECT_EQ(0u, out[0]);
  held->finish();
  WEIR_OK(cu->stream_synchronize(stream));
  EXPECT_EQ(6u, out[0]);
  EXPECT_EQ(6u, out[mib / sizeof(word) - 1]);
}

TEST_P(copies_and_fills, pageable_memory_may_be_changed_once_the_call_returns) {
  const CUstream stream = new_stream();
  const CUdeviceptr memory = new_memory(64 * kib);
  std::vector<word> host(16 * kib, 9);
  WEIR_OK(cu->memcpy_htod_async(memory, host.data(), 64 * kib, stream));
  std::fill(host.begin(), host.end(), word{10});
  WEIR_OK(cu->stream_synchronize(stream));
  EXPECT_EQ(0u, mismatches(memory, 9, 16 * kib));
}

TEST_P(copies_and_fills, a_blocking_copy_waits_for_the_blocking_streams) {
  const CUstream stream = new_stream(CU_STREAM_DEFAULT);
  const CUdeviceptr memory = new_memory(4 * kib);
  WEIR_OK(spin(std::chrono::milliseconds{5}, stream));
  WEIR_OK(fill(memory, 3, kib, stream));
  std::vector<word> host(kib);
  WEIR_OK(cu->memcpy_dtoh(host.data(), memory, 4 * kib));
  EXPECT_EQ(kib, static_cast<std::size_t>(std::count(host.begin(), host.end(), 3u)));
}

TEST_P(copies_and_fills, peer_copies_work_within_one_device) {
  const CUstream stream = new_stream();
  const CUdeviceptr from = new_memory(4 * kib);
  const CUdeviceptr to = new_memory(4 * kib);
  WEIR_OK(fill(from, 14, kib, stream));
  WEIR_OK(cu->memcpy_peer_async(to, context, from, context, 4 * kib, stream));
  WEIR_OK(cu->stream_synchronize(stream));
  EXPECT_EQ(0u, mismatches(to, 14, kib));
}

TEST_P(copies_and_fills, rows_are_copied_by_pitch) {
  const CUstream stream = new_stream();
  constexpr std::size_t wide = 512;
  constexpr std::size_t narrow = 256;
  const CUdeviceptr from = new_memory(wide * 8);
  const CUdeviceptr to = new_memory(narrow * 8);
  WEIR_OK(cu->memset_d8_async(from, 1, wide * 8, stream));
  WEIR_OK(cu->memset_d2d8_async(from, wide, 2, narrow, 8, stream));
  const auto copy = rows(to, narrow, from, wide, narrow, 8);
  WEIR_OK(cu->memcpy_2d_async(&copy, stream));
  WEIR_OK(cu->stream_synchronize(stream));
  EXPECT_EQ(0u, mismatches(to, 0x02020202, narrow * 8 / sizeof(word)));
  for (std::size_t row = 0; row < 8; ++row) {
    EXPECT_EQ(0u, mismatches(from + row * wide, 0x02020202, narrow / sizeof(word)));
    EXPECT_EQ(0u, mismatches(from + row * wide + narrow, 0x01010101, narrow / sizeof(word)));
  }
}

TEST_P(copies_and_fills, rows_go_to_host_memory_with_an_offset) {
  const CUstream stream = new_stream();
  const CUdeviceptr from = new_memory(64 * 64);
  word* const host = new_pinned(64 * 64);
  WEIR_OK(fill(from, 7, 16 * 64, stream));
  auto copy = rows(0, 64, from, 64, 32, 10);
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = host;
  copy.dstXInBytes = 16;
  copy.dstY = 2;
  copy.srcY = 1;
  WEIR_OK(cu->memcpy_2d_async(&copy, stream));
  WEIR_OK(cu->stream_synchronize(stream));
  for (std::size_t row = 0; row < 64; ++row)
    for (std::size_t column = 0; column < 16; ++column) {
      const bool inside = row >= 2 && row < 12 && column >= 4 && column < 12;
      EXPECT_EQ(inside ? 7u : 0u, host[row * 16 + column]) << row << ", " << column;
    }
}

TEST_P(copies_and_fills, boxes_are_copied_by_pitch_and_height) {
  const CUstream stream = new_stream();
  constexpr std::size_t pitch = 64;
  constexpr std::size_t height = 8;
  constexpr std::size_t depth = 4;
  const CUdeviceptr from = new_memory(pitch * height * depth);
  const CUdeviceptr to = new_memory(pitch * height * depth);
  WEIR_OK(fill(from, 5, pitch * height * depth / sizeof(word), stream));
  WEIR_OK(cu->memset_d32_async(to, 0, pitch * height * depth / sizeof(word), stream));
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = from;
  copy.srcPitch = pitch;
  copy.srcHeight = height;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = to;
  copy.dstPitch = pitch;
  copy.dstHeight = height;
  copy.dstXInBytes = 16;
  copy.dstY = 1;
  copy.dstZ = 2;
  copy.WidthInBytes = 32;
  copy.Height = 3;
  copy.Depth = 2;
  WEIR_OK(cu->memcpy_3d_async(&copy, stream));
  WEIR_OK(cu->stream_synchronize(stream));
  const auto host = words(to, pitch * height * depth / sizeof(word));
  for (std::size_t z = 0; z < depth; ++z)
    for (std::size_t y = 0; y < height; ++y)
      for (std::size_t x = 0; x < pitch / sizeof(word); ++x) {
        const bool inside = z >= 2 && y >= 1 && y < 4 && x >= 4 && x < 12;
        EXPECT_EQ(inside ? 5u : 0u, host[(z * height + y) * pitch / sizeof(word) + x]);
      }
}

TEST_P(copies_and_fills, a_batch_is_many_copies) {
  WEIR_NEEDS(memcpy_batch_async);
  const CUstream stream = new_stream();
  constexpr std::size_t count = 5;
  const CUdeviceptr from = new_memory(count * 4 * kib);
  const CUdeviceptr to = new_memory(count * 4 * kib);
  std::array<CUdeviceptr, count> sources{};
  std::array<CUdeviceptr, count> destinations{};
  std::array<std::size_t, count> sizes{};
  for (std::size_t i = 0; i < count; ++i) {
    sources[i] = from + i * 4 * kib;
    destinations[i] = to + (count - 1 - i) * 4 * kib;
    sizes[i] = 4 * kib;
    WEIR_OK(fill(sources[i], static_cast<word>(i), kib, stream));
  }
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  std::size_t first = 0;
  std::size_t failed = 99;
  WEIR_OK(cu->memcpy_batch_async(destinations.data(), sources.data(), sizes.data(), count,
                                 &attributes, &first, 1, &failed, stream));
  WEIR_OK(cu->stream_synchronize(stream));
  for (std::size_t i = 0; i < count; ++i)
    EXPECT_EQ(0u, mismatches(destinations[i], static_cast<word>(i), kib));
}

TEST_P(copies_and_fills, fills_touch_exactly_their_bytes) {
  const CUstream stream = new_stream();
  const CUdeviceptr memory = new_memory(64);
  WEIR_OK(cu->memset_d32(memory, 0, 16));
  WEIR_OK(cu->memset_d8(memory + 5, 0xab, 6));
  WEIR_OK(cu->memset_d32_async(memory + 16, 0x12345678, 2, nullptr));
  WEIR_OK(cu->stream_synchronize(nullptr));
  WEIR_OK(cu->memset_d8_async(memory + 63, 0xff, 1, stream));
  const auto host = words(memory, 16);
  EXPECT_EQ((std::vector<word>{0, 0xababab00, 0x00ababab, 0, 0x12345678, 0x12345678, 0, 0, 0, 0, 0,
                               0, 0, 0, 0, 0xff000000}),
            host);
}

}  // namespace
}  // namespace weir::testing_support
