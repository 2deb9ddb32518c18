// SPDX-License-Identifier: Apache-2.0
// The device layer on a real GPU: what only a real driver can confirm.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <optional>
#include <set>
#include <vector>

#include "device/device_fixture.hpp"

namespace weir::testing_support { namespace {

using namespace weir::literals;
using ::testing::IsEmpty;

/// Lives longer than the driver: constructed before main(), hence destroyed after everything that
/// main() and libcuda registered for the end of the process.
struct until_the_end {
  ~until_the_end() {
    const auto before = reported_errors();
    own.reset();
    opened.reset();
    if (reported_errors() != before) ::_exit(70);
  }
  std::shared_ptr<runtime> opened;
  std::optional<possessions> own;
};
until_the_end survivors;

class gpu_test : public ::testing::Test {
 protected:
  void SetUp() override {
    if (survivors.opened == nullptr) survivors.opened = runtime::open_cuda().value();
    where_ = survivors.opened->device(device_id{0}).value();
  }
  void TearDown() override { EXPECT_THAT(heard.errors, IsEmpty()); }

  [[nodiscard]] device where() const { return *where_; }
  [[nodiscard]] const driver::table& cuda() const { return where_->driver(); }

  reported heard;

 private:
  std::optional<device> where_;
};

TEST_F(gpu_test, KnowsItsDevice) {
  EXPECT_FALSE(where().name().empty());
  EXPECT_EQ(where().pci_bus_id().size(), std::string_view{"0000:18:00.0"}.size());
  EXPECT_TRUE(where().uuid());
  const auto& can = where().capabilities();
  EXPECT_GE(can.compute_major, 5);
  EXPECT_GT(can.multiprocessors, 0);
  const auto info = where().memory_info().value();
  EXPECT_GT(info.free, 0_B);
  EXPECT_LE(info.free, info.total);
  EXPECT_EQ(info.total, where().total_memory());
  const auto priorities = where().stream_priorities().value();
  EXPECT_LE(priorities.greatest, priorities.least);
}

TEST_F(gpu_test, EveryCallWorksAndLeavesNothingCurrent) {
  possessions own{where()};
  for (const auto& each : operations()) {
    if (each.name == "handle import" || each.name == "event import") continue;  // nothing to import
    EXPECT_TRUE(each.run(where(), own)) << each.name;
    driver::CUcontext current = nullptr;
    ASSERT_EQ(cuda().ctx_get_current(&current), driver::CUDA_SUCCESS);
    EXPECT_EQ(current, nullptr) << each.name;
  }
}

TEST_F(gpu_test, StreamIdsAreNeverUsedTwice) {
  std::set<stream_id> seen;
  for (int i = 0; i < 100; ++i) {
    const auto own = stream::create(where()).value();
    EXPECT_TRUE(own.ref().validate());
    EXPECT_TRUE(seen.insert(own.id()).second);
  }
  const auto legacy = stream_ref::legacy(where()).id().value();
  EXPECT_EQ(stream_ref(where(), nullptr).id().value(), legacy);
  EXPECT_TRUE(seen.insert(legacy).second);
  EXPECT_TRUE(seen.insert(stream_ref::per_thread(where()).id().value()).second);
}

TEST_F(gpu_test, TheGuardKeepsACaptureWhole) {
  const auto own = stream::create(where(), {.non_blocking = false}).value();
  auto mark = event::create(where()).value();
  ASSERT_TRUE(mark.record(own));
  const context_scope bound{where()};
  ASSERT_EQ(cuda().stream_begin_capture(own.handle(), driver::CU_STREAM_CAPTURE_MODE_GLOBAL),
            driver::CUDA_SUCCESS);
  EXPECT_EQ(own.ref().capture().value().status, capture_status::active);
  const auto legacy = stream_ref::legacy(where());
  EXPECT_EQ(legacy.capture().value().status, capture_status::implicit);
  EXPECT_FALSE(legacy.is_capturing().value());
  {
    const thread_capture_mode_guard relaxed{where()};
    ASSERT_TRUE(relaxed);
    EXPECT_TRUE(mark.is_complete());
    const auto plain = allocate_plain(bound, 2_MiB).value();
    EXPECT_TRUE(free_plain(bound, plain));
    const auto range = address_range::reserve(where(), 8_MiB).value();
    const auto handle = physical_handle::create(where(), 2_MiB).value();
    const auto mapped = mapping::create(range, 2_MiB, handle).value();
    EXPECT_TRUE(mapped.set_access(where()));
  }
  EXPECT_EQ(own.ref().capture().value().status, capture_status::active);
  driver::CUgraph graph = nullptr;
  ASSERT_EQ(cuda().stream_end_capture(own.handle(), &graph), driver::CUDA_SUCCESS);
  EXPECT_EQ(cuda().graph_destroy(graph), driver::CUDA_SUCCESS);
}

TEST_F(gpu_test, OneHandleAtTwoAddressesIsTheSameMemory) {
  const auto range = address_range::reserve(where(), 1_TiB).value();
  const auto handle = physical_handle::create(where(), 2_MiB, {.posix_descriptor = true}).value();
  const auto sent = handle.export_descriptor().value();
  const auto received = physical_handle::import_descriptor(where(), sent.get(), 2_MiB).value();
  const auto low = mapping::create(range, 0_B, handle).value();
  const auto high = mapping::create(range, 1_TiB - 2_MiB, handle).value();
  const auto imported = mapping::create(range, 2_MiB, received).value();
  const context_scope bound{where()};
  ASSERT_EQ(imported.address(), low.address() + 2 * 1024 * 1024);
  const auto rights = vmm::access_for(where());
  ASSERT_TRUE(vmm::set_access(bound, low.address(), 4_MiB, {&rights, 1}));
  ASSERT_TRUE(high.set_access(where()));
  ASSERT_EQ(cuda().memset_d32(low.address(), 0xfeed, 1), driver::CUDA_SUCCESS);
  for (const auto address : {high.address(), imported.address()}) {
    std::uint32_t read = 0;
    ASSERT_EQ(cuda().memcpy_dtoh(&read, address, sizeof read), driver::CUDA_SUCCESS);
    EXPECT_EQ(read, 0xfeedu);
  }
}

TEST_F(gpu_test, AForkedChildIsSafe) {
  std::optional<possessions> own{where()};
  const auto found = in_child([&] {
    int number = 1;
    for (const auto& each : operations()) {
      if (const auto outcome = each.run(where(), *own);
          outcome || outcome.code() != errc::driver_gone) {
        return number;
      }
      ++number;
    }
    own.reset();
    if (!heard.errors.empty()) return 100;
    // The driver itself refuses to start again in a child.
    return code_of(runtime::open(options{})) == errc::driver_gone ? 0 : 101;
  });
  EXPECT_EQ(found, 0);
  EXPECT_TRUE(own->event.is_complete()) << "the parent goes on";
}

TEST_F(gpu_test, SomeThingsOutliveTheDriver) { survivors.own.emplace(where()); }

}  // namespace
}  // namespace weir::testing_support
