// SPDX-License-Identifier: Apache-2.0
// Which copies and fills the host waits for: NVIDIA's "API synchronization behavior", case by case.
#include <cstring>
#include <string>
#include <vector>

#include "memory_fixture.hpp"

namespace weir::sim_tests { namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

enum class place { device, managed, pinned, registered, pageable };

std::string name_of(place where) {
  switch (where) {
    case place::device:
      return "device";
    case place::managed:
      return "managed";
    case place::pinned:
      return "pinned";
    case place::registered:
      return "registered";
    case place::pageable:
      return "pageable";
  }
  return "?";
}

/// What has happened when a call returns.
enum class waits_for {
  nothing,
  work_before,  ///< what was queued on the stream before, but not the copy itself
  the_copy
};

std::string name_of(waits_for expected) {
  switch (expected) {
    case waits_for::nothing:
      return "nothing";
    case waits_for::work_before:
      return "the work before it";
    case waits_for::the_copy:
      return "itself";
  }
  return "?";
}

class copy_waits : public memory_fixture {
 protected:
  static constexpr std::size_t size = 64;

  copy_waits() : memory_fixture{small_machine(64 * mib)} {
    EXPECT_EQ(cuda.mem_host_register(own.data(), 4096, 0), CUDA_SUCCESS);
  }

  /// Memory of its own for each side, which holds `content`.
  CUdeviceptr memory_at(place where, bool is_source) {
    CUdeviceptr made = 0;
    switch (where) {
      case place::device:
        made = plain(size);
        break;
      case place::managed:
        made = managed(size);
        break;
      case place::pinned:
        made = reinterpret_cast<std::uintptr_t>(pinned(size));
        break;
      case place::registered:
        made = reinterpret_cast<std::uintptr_t>(own.data()) + (is_source ? 0 : size);
        break;
      case place::pageable:
        made = reinterpret_cast<std::uintptr_t>(is_source ? from.data() : to.data());
        break;
    }
    std::memset(at<void>(made), is_source ? 7 : 0, size);
    return made;
  }

  /// What the host has waited for when `call` returns, with work queued ahead on `queue`.
  template <class Call>
  waits_for waited_for(CUstream queue, CUdeviceptr target, Call call) {
    bool before = false;
    work(queue, {}, [&] { before = true; });
    EXPECT_EQ(call(), CUDA_SUCCESS);
    const bool written = *at<volatile unsigned char>(target) == 7;
    const waits_for answer = written  ? waits_for::the_copy
                             : before ? waits_for::work_before
                                      : waits_for::nothing;
    EXPECT_EQ(cuda.ctx_synchronize(), CUDA_SUCCESS);
    EXPECT_EQ(*at<volatile unsigned char>(target), 7) << "in the end it is there";
    return answer;
  }

  std::vector<char> own = std::vector<char>(4096);
  std::vector<char> from = std::vector<char>(size);
  std::vector<char> to = std::vector<char>(size);
};

struct copy_case {
  place to;
  place from;
  waits_for synchronous;
  waits_for asynchronous;
};

constexpr auto nothing = waits_for::nothing;
constexpr auto work_before = waits_for::work_before;
constexpr auto the_copy = waits_for::the_copy;

const std::vector<copy_case> copy_cases{
    // "For transfers from device memory to device memory, no host-side synchronization is
    // performed."
    {place::device, place::device, nothing, nothing},
    {place::device, place::managed, nothing, nothing},
    {place::managed, place::device, nothing, nothing},
    {place::managed, place::managed, nothing, nothing},
    // "For transfers from pinned host memory to device memory, the function is synchronous with
    // respect to the host."
    {place::device, place::pinned, the_copy, nothing},
    {place::device, place::registered, the_copy, nothing},
    {place::managed, place::pinned, the_copy, nothing},
    // "For transfers from pageable host memory to device memory, a stream sync is performed before
    // the copy is initiated. The function will return once the pageable buffer has been copied to
    // the staging memory [...], but the DMA to final destination may not have completed."
    {place::device, place::pageable, work_before, nothing},
    {place::managed, place::pageable, work_before, nothing},
    // "For transfers from device to either pageable or pinned host memory, the function returns
    // only once the copy has completed." With a stream, a copy to pageable memory "might be
    // synchronous": here it is.
    {place::pinned, place::device, the_copy, nothing},
    {place::registered, place::device, the_copy, nothing},
    {place::pinned, place::managed, the_copy, nothing},
    {place::pageable, place::device, the_copy, the_copy},
    {place::pageable, place::managed, the_copy, the_copy},
    // "For transfers from any host memory to any host memory, the function is fully synchronous
    // with respect to the host", with a stream and without.
    {place::pinned, place::pinned, the_copy, the_copy},
    {place::pinned, place::registered, the_copy, the_copy},
    {place::registered, place::pinned, the_copy, the_copy},
    {place::pinned, place::pageable, the_copy, the_copy},
    {place::pageable, place::pinned, the_copy, the_copy},
    {place::pageable, place::pageable, the_copy, the_copy},
};

TEST_F(copy_waits, WithoutAStreamAsTheKindsOfMemorySay) {
  for (const copy_case& each : copy_cases) {
    SCOPED_TRACE("from " + name_of(each.from) + " to " + name_of(each.to));
    const CUdeviceptr target = memory_at(each.to, false);
    const CUdeviceptr source = memory_at(each.from, true);
    const waits_for answer =
        waited_for(nullptr, target, [&] { return cuda.memcpy_sync(target, source, size); });
    EXPECT_EQ(name_of(answer), name_of(each.synchronous));
  }
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(copy_waits, WithAStreamAsTheKindsOfMemorySay) {
  for (const copy_case& each : copy_cases) {
    SCOPED_TRACE("from " + name_of(each.from) + " to " + name_of(each.to));
    const CUstream queue = stream();
    const CUdeviceptr target = memory_at(each.to, false);
    const CUdeviceptr source = memory_at(each.from, true);
    const waits_for answer =
        waited_for(queue, target, [&] { return cuda.memcpy_async(target, source, size, queue); });
    EXPECT_EQ(name_of(answer), name_of(each.asynchronous));
  }
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(copy_waits, UnderTheNamesOfTheirDirection) {
  const CUdeviceptr device = memory_at(place::device, false);
  const CUdeviceptr second = memory_at(place::device, true);
  const CUdeviceptr host = memory_at(place::pinned, true);
  const CUdeviceptr host_target = memory_at(place::pinned, false);
  EXPECT_EQ(
      name_of(waited_for(nullptr, device, [&] { return cuda.memcpy_dtod(device, second, size); })),
      "nothing");
  std::memset(at<void>(device), 0, size);
  EXPECT_EQ(name_of(waited_for(nullptr, device,
                               [&] { return cuda.memcpy_htod(device, at<void>(host), size); })),
            "itself");
  EXPECT_EQ(
      name_of(waited_for(nullptr, host_target,
                         [&] { return cuda.memcpy_dtoh(at<void>(host_target), device, size); })),
      "itself");
  // Unified addresses: what kind of memory it is decides, not the name of the call.
  std::memset(at<void>(host_target), 0, size);
  EXPECT_EQ(name_of(waited_for(nullptr, host_target,
                               [&] { return cuda.memcpy_dtod(host_target, device, size); })),
            "itself");
}

// --- What the hazard check makes of it -----------------------------------------------------------

TEST_F(copy_waits, BetweenDeviceMemoryRacesWithALaterWriteOfANonBlockingStream) {
  const CUdeviceptr target = plain(size);
  const CUdeviceptr source = plain(size);
  ASSERT_EQ(cuda.memcpy_sync(target, source, size), CUDA_SUCCESS);
  work(stream(), {writes(target, size)});
  ASSERT_THAT(hazards(), ElementsAre(hazard_kind::race));
  EXPECT_EQ(machine->hazards()[0].first.label, "copy");
}

TEST_F(copy_waits, BetweenDeviceMemoryIsOrderedWithBlockingStreams) {
  const CUdeviceptr target = plain(size);
  const CUdeviceptr source = plain(size);
  CUstream blocking = nullptr;
  ASSERT_EQ(cuda.stream_create(&blocking, CU_STREAM_DEFAULT), CUDA_SUCCESS);
  work(blocking, {writes(source, size)});
  ASSERT_EQ(cuda.memcpy_sync(target, source, size), CUDA_SUCCESS);
  work(blocking, {writes(target, size)});
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(copy_waits, FromPageableMemoryRacesWithALaterReadOfANonBlockingStream) {
  const CUdeviceptr target = plain(size);
  ASSERT_EQ(cuda.memcpy_htod(target, from.data(), size), CUDA_SUCCESS);
  work(stream(), {reads(target, size)});
  ASSERT_THAT(hazards(), ElementsAre(hazard_kind::race));
  EXPECT_EQ(machine->hazards()[0].first.label, "copy to device");
}

TEST_F(copy_waits, FromPinnedMemoryIsSeenByANonBlockingStream) {
  const CUdeviceptr target = plain(size);
  ASSERT_EQ(cuda.memcpy_htod(target, pinned(size), size), CUDA_SUCCESS);
  work(stream(), {reads(target, size)});
  EXPECT_THAT(hazards(), IsEmpty());
}

// --- Fills ---------------------------------------------------------------------------------------

TEST_F(copy_waits, FillsOfHostAndManagedMemoryAreSynchronousAndOthersAreNot) {
  // "The synchronous memset functions are asynchronous with respect to the host except when the
  // target is pinned host memory or a Unified Memory region, in which case they are fully
  // synchronous. The Async versions are always asynchronous with respect to the host."
  for (const place where : {place::device, place::managed, place::pinned, place::registered}) {
    SCOPED_TRACE(name_of(where));
    const std::string expected = where == place::device ? "nothing" : "itself";
    const CUdeviceptr target = memory_at(where, false);
    EXPECT_EQ(name_of(waited_for(nullptr, target, [&] { return cuda.memset_d8(target, 7, size); })),
              expected);
    std::memset(at<void>(target), 0, size);
    EXPECT_EQ(name_of(waited_for(nullptr, target,
                                 [&] { return cuda.memset_d32(target, 0x07070707, size / 4); })),
              expected);
    std::memset(at<void>(target), 0, size);
    const CUstream queue = stream();
    EXPECT_EQ(name_of(waited_for(queue, target,
                                 [&] { return cuda.memset_d8_async(target, 7, size, queue); })),
              "nothing");
    std::memset(at<void>(target), 0, size);
    EXPECT_EQ(name_of(waited_for(
                  queue, target,
                  [&] { return cuda.memset_d32_async(target, 0x07070707, size / 4, queue); })),
              "nothing");
    std::memset(at<void>(target), 0, size);
    EXPECT_EQ(name_of(waited_for(
                  queue, target,
                  [&] { return cuda.memset_d2d8_async(target, size, 7, size, 1, queue); })),
              "nothing");
  }
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(copy_waits, AHostReadAfterAFillOfPinnedMemoryIsInOrder) {
  void* const memory = pinned(size);
  ASSERT_EQ(cuda.memset_d8(reinterpret_cast<std::uintptr_t>(memory), 1, size), CUDA_SUCCESS);
  machine->host_read(memory, size);
  EXPECT_THAT(hazards(), IsEmpty());
  EXPECT_EQ(*static_cast<unsigned char*>(memory), 1);
}

}  // namespace
}  // namespace weir::sim_tests
