// SPDX-License-Identifier: Apache-2.0
// Copies on the device and over the bus: which bytes of boxes, which accesses, and how long.
#include <algorithm>
#include <numeric>
#include <vector>

#include "memory_fixture.hpp"

namespace weir::sim_tests { namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class box_copies : public memory_fixture {
 protected:
  explicit box_copies(sim::machine_options options = small_machine(64 * mib))
      : memory_fixture{std::move(options)} {
    std::iota(at<std::uint8_t>(from), at<std::uint8_t>(from) + 120, std::uint8_t{1});
    std::fill_n(at<std::uint8_t>(to), 120, std::uint8_t{0});
  }

  /// Two rows of three bytes, from rows of 10 to rows of 20.
  CUDA_MEMCPY2D rows() {
    CUDA_MEMCPY2D box{};
    box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    box.srcDevice = from;
    box.dstDevice = to;
    box.srcPitch = 10;
    box.dstPitch = 20;
    box.WidthInBytes = 3;
    box.Height = 2;
    return box;
  }
  /// Two planes of such rows, from planes of 3 rows to planes of 2.
  CUDA_MEMCPY3D planes() {
    CUDA_MEMCPY3D box{};
    box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    box.srcDevice = from;
    box.dstDevice = to;
    box.srcPitch = 10;
    box.srcHeight = 3;
    box.dstPitch = 20;
    box.dstHeight = 2;
    box.WidthInBytes = 3;
    box.Height = 2;
    box.Depth = 2;
    return box;
  }
  /// Where the destination is not zero, and what it holds there, once all is done.
  std::vector<std::pair<int, int>> copied() {
    EXPECT_EQ(cuda.ctx_synchronize(), CUDA_SUCCESS);
    std::vector<std::pair<int, int>> found;
    for (int i = 0; i < 120; ++i)
      if (const int value = at<std::uint8_t>(to)[i]; value != 0) found.emplace_back(i, value);
    return found;
  }
  static std::pair<int, int> byte(int place, int value) { return {place, value}; }

  const CUdeviceptr from = plain(120);
  const CUdeviceptr to = plain(120);
  const CUstream on = stream();
};

TEST_F(box_copies, of_rows_go_from_the_place_of_one_side_to_that_of_the_other) {
  CUDA_MEMCPY2D box = rows();
  box.srcXInBytes = 1;
  box.srcY = 3;
  box.dstXInBytes = 2;
  box.dstY = 4;
  ASSERT_EQ(cuda.memcpy_2d_async(&box, on), CUDA_SUCCESS);
  EXPECT_THAT(copied(), ElementsAre(byte(82, 32), byte(83, 33), byte(84, 34), byte(102, 42),
                                    byte(103, 43), byte(104, 44)));
}

TEST_F(box_copies, of_planes_go_from_the_place_of_one_side_to_that_of_the_other) {
  CUDA_MEMCPY3D box = planes();
  box.srcXInBytes = 1;
  box.srcY = 1;
  box.srcZ = 1;
  box.dstXInBytes = 2;
  box.dstZ = 1;
  ASSERT_EQ(cuda.memcpy_3d_async(&box, on), CUDA_SUCCESS);
  EXPECT_THAT(copied(), ElementsAre(byte(42, 42), byte(43, 43), byte(44, 44), byte(62, 52),
                                    byte(63, 53), byte(64, 54), byte(82, 72), byte(83, 73),
                                    byte(84, 74), byte(102, 82), byte(103, 83), byte(104, 84)));
}

TEST_F(box_copies, take_rows_that_touch_and_a_single_one_without_a_pitch) {
  CUDA_MEMCPY2D box = rows();
  box.srcPitch = box.dstPitch = 3;
  ASSERT_EQ(cuda.memcpy_2d_async(&box, on), CUDA_SUCCESS);
  box.srcPitch = box.dstPitch = 0;
  box.Height = 1;
  box.dstDevice = to + 10;
  ASSERT_EQ(cuda.memcpy_2d_async(&box, on), CUDA_SUCCESS);
  EXPECT_THAT(copied(), ElementsAre(byte(0, 1), byte(1, 2), byte(2, 3), byte(3, 4), byte(4, 5),
                                    byte(5, 6), byte(10, 1), byte(11, 2), byte(12, 3)));
}

TEST_F(box_copies, of_nothing_are_no_work) {
  for (const auto member :
       {&CUDA_MEMCPY3D::WidthInBytes, &CUDA_MEMCPY3D::Height, &CUDA_MEMCPY3D::Depth}) {
    CUDA_MEMCPY3D box = planes();
    box.*member = 0;
    EXPECT_EQ(cuda.memcpy_3d_async(&box, on), CUDA_SUCCESS);
  }
  EXPECT_EQ(cuda.memcpy_dtod_async(to, from, 0, on), CUDA_SUCCESS);
  EXPECT_EQ(cuda.stream_query(on), CUDA_SUCCESS);
}

TEST_F(box_copies, of_one_plane_need_no_height) {
  CUDA_MEMCPY3D box = planes();
  box.Depth = 1;
  box.srcHeight = box.dstHeight = 0;
  EXPECT_EQ(cuda.memcpy_3d_async(&box, on), CUDA_SUCCESS);
  EXPECT_EQ(copied().size(), 6u);
}

TEST_F(box_copies, that_cannot_be_are_refused) {
  const auto answer = [&](auto&& change) {
    CUDA_MEMCPY3D box = planes();
    change(box);
    return cuda.memcpy_3d_async(&box, on);
  };
  using box_type = CUDA_MEMCPY3D;
  EXPECT_EQ(answer([](box_type& box) { box.srcPitch = 2; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(answer([](box_type& box) { box.dstPitch = 2; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(answer([](box_type& box) { box.srcDevice = 0; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(answer([](box_type& box) { box.dstDevice = 0; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(answer([](box_type& box) { box.srcLOD = 1; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(answer([](box_type& box) { box.dstLOD = 1; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(answer([](box_type& box) { box.dstZ = 3; }), CUDA_ERROR_INVALID_VALUE) << "the end";
  EXPECT_EQ(answer([](box_type& box) { box.srcHeight = 1; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(answer([](box_type& box) { box.dstHeight = 1; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(answer([](box_type& box) { box.srcY = 2; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(answer([](box_type& box) { box.dstY = 1; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(answer([](box_type& box) { box.dstY = 3; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(answer([](box_type& box) { box.srcMemoryType = CU_MEMORYTYPE_ARRAY; }),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.memcpy_3d_async(nullptr, on), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.memcpy_2d_async(nullptr, on), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.stream_query(on), CUDA_SUCCESS) << "nothing was queued";
}

TEST_F(box_copies, on_the_device_need_memory_of_a_device) {
  std::vector<std::uint8_t> own(120);
  const auto pageable = reinterpret_cast<CUdeviceptr>(own.data());
  for (const CUdeviceptr wrong : {pageable, nowhere, to + 120}) {
    CUDA_MEMCPY2D box = rows();
    box.dstDevice = wrong;
    EXPECT_EQ(cuda.memcpy_2d_async(&box, on), CUDA_ERROR_INVALID_VALUE) << wrong;
    box = rows();
    box.srcDevice = wrong;
    EXPECT_EQ(cuda.memcpy_2d_async(&box, on), CUDA_ERROR_INVALID_VALUE) << wrong;
  }
  CUDA_MEMCPY3D outside = planes();
  outside.dstZ = 3;
  EXPECT_EQ(cuda.memcpy_3d_async(&outside, on), CUDA_ERROR_INVALID_VALUE);
  CUDA_MEMCPY2D box = rows();
  box.dstMemoryType = CU_MEMORYTYPE_UNIFIED;  // whoever's it is
  box.dstDevice = pageable;
  EXPECT_EQ(cuda.memcpy_2d_async(&box, on), CUDA_SUCCESS);
  EXPECT_EQ(own[21], 12);
}

TEST_F(box_copies, write_one_side_and_read_the_other) {
  const CUdeviceptr both = plain(128);
  ASSERT_EQ(cuda.memcpy_dtod_async(both, both + 64, 64, on), CUDA_SUCCESS);
  work(stream(), {reads(both + 64, 64)});
  EXPECT_THAT(hazards(), IsEmpty());
  work(stream(), {reads(both + 63, 1)});
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::race));
}

TEST_F(box_copies, touch_nothing_between_their_rows) {
  const CUDA_MEMCPY2D box = rows();
  ASSERT_EQ(cuda.memcpy_2d_async(&box, on), CUDA_SUCCESS);
  work(stream(), {writes(to + 3, 17), writes(to + 23, 97), writes(from + 3, 7)});
  EXPECT_THAT(hazards(), IsEmpty());
  work(stream(), {writes(from + 12, 1)});
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::race));
}

TEST_F(box_copies, in_a_capture_read_pageable_memory_when_they_are_launched) {
  std::vector<std::uint8_t> own(3, 7);
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  ASSERT_EQ(cuda.stream_begin_capture(on, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(cuda.memcpy_htod_async(to, own.data(), 3, on), CUDA_SUCCESS);
  ASSERT_EQ(cuda.stream_end_capture(on, &graph), CUDA_SUCCESS);
  ASSERT_EQ(cuda.graph_instantiate(&executable, graph, 0), CUDA_SUCCESS);
  own = {8, 9, 10};
  ASSERT_EQ(cuda.graph_launch(executable, on), CUDA_SUCCESS);
  EXPECT_THAT(copied(), ElementsAre(byte(0, 8), byte(1, 9), byte(2, 10)));
}

class copies_in_time : public box_copies {
 protected:
  copies_in_time() : box_copies{timed_machine()} {}
};

TEST_F(copies_in_time, go_at_the_rate_of_the_device_or_of_the_bus) {
  const CUdeviceptr one = plain(8 * mib);
  const CUdeviceptr other = plain(8 * mib);
  const auto host = reinterpret_cast<CUdeviceptr>(pinned(mib));
  std::vector<char> own(mib);
  const auto time_of = [&](const auto& copy) {
    const auto start = machine->now();
    EXPECT_EQ(copy(), CUDA_SUCCESS);
    EXPECT_EQ(cuda.stream_synchronize(on), CUDA_SUCCESS);
    return machine->now() - start;
  };
  // Two microseconds to begin with; 2150 bytes a nanosecond on the device, 55 over the bus.
  EXPECT_EQ(time_of([&] { return cuda.memcpy_dtod_async(one, other, 2'150'000, on); }), 3000ns);
  EXPECT_EQ(time_of([&] { return cuda.memcpy_async(one, host, 55'000, on); }), 3000ns);
  EXPECT_EQ(time_of([&] { return cuda.memcpy_async(host, one, 110'000, on); }), 4000ns);
  EXPECT_EQ(time_of([&] { return cuda.memcpy_htod_async(one, own.data(), 55'000, on); }), 3000ns);
  EXPECT_EQ(time_of([&] { return cuda.memcpy_dtoh_async(own.data(), one, 110'000, on); }), 4000ns);
}

}  // namespace
}  // namespace weir::sim_tests
