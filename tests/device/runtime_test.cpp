// SPDX-License-Identifier: Apache-2.0
// Opening a runtime: what is asked, how often, and what is said when it cannot be opened.
#include "weir/device/runtime.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/device_fixture.hpp"
#include "device/state.hpp"

namespace weir::testing_support { namespace {

using driver::call;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(runtime_open, AsksEverythingOnceAndCreatesNoContext) {
  fake_driver fake{2};
  const auto opened = runtime::open_table(fake.table, "fake").value();
  EXPECT_EQ(fake.count(call::init), 1u);
  EXPECT_EQ(fake.count(call::device_primary_ctx_retain), 0u);
  EXPECT_EQ(opened->device_count(), 2);
  EXPECT_EQ(opened->driver_version(), 13000);
  EXPECT_EQ(opened->describe().driver, "fake");

  fake.clear_log();
  const auto second = opened->device(device_id{1}).value();
  EXPECT_EQ(second.id(), device_id{1});
  EXPECT_EQ(second.name(), "fake");
  EXPECT_EQ(second.pci_bus_id(), "0000:18:00.0");
  EXPECT_EQ(second.total_memory(), bytes{std::uint64_t{8} << 30});
  EXPECT_EQ(second.driver_version(), 13000);
  ASSERT_TRUE(second.uuid());
  EXPECT_EQ(second.uuid()->at(15), 0x41);
  EXPECT_TRUE(second.capabilities().virtual_memory);
  EXPECT_THAT(fake.calls(), IsEmpty());
}

TEST(runtime_open, ReadsEachCapabilityFromItsAttribute) {
  const std::pair<driver::CUdevice_attribute, bool device_capabilities::*> flags[] = {
      {driver::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED,
       &device_capabilities::virtual_memory},
      {driver::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, &device_capabilities::memory_pools},
      {driver::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, &device_capabilities::managed_memory},
      {driver::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
       &device_capabilities::concurrent_managed_access},
      {driver::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
       &device_capabilities::posix_descriptors},
      {driver::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
       &device_capabilities::fabric_handles},
      {driver::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, &device_capabilities::multicast},
      {driver::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, &device_capabilities::rdma},
      {driver::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
       &device_capabilities::rdma_with_virtual_memory},
      {driver::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, &device_capabilities::dma_buf},
      {driver::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
       &device_capabilities::pageable_memory_access},
      {driver::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, &device_capabilities::host_register},
      {driver::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1,
       &device_capabilities::stream_memory_operations},
      {driver::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, &device_capabilities::unified_addressing},
      {driver::CU_DEVICE_ATTRIBUTE_INTEGRATED, &device_capabilities::integrated},
      {driver::CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED,
       &device_capabilities::stream_priorities},
      {driver::CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED,
       &device_capabilities::host_memory_pools},
      {driver::CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED,
       &device_capabilities::host_numa_memory_pools},
      {driver::CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST,
       &device_capabilities::managed_access_from_host},
      {driver::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
       &device_capabilities::host_page_tables},
      {driver::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
       &device_capabilities::host_pointer_for_registered},
      {driver::CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
       &device_capabilities::host_virtual_memory},
      {driver::CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
       &device_capabilities::host_numa_virtual_memory},
  };
  for (const auto& [on, expected] : flags) {
    fake_driver fake{1};
    fake.attributes = {{on, 1}};
    const auto opened = runtime::open_table(fake.table, "fake").value();
    const auto& can = opened->device(device_id{0}).value().capabilities();
    for (const auto& [attribute, member] : flags) {
      EXPECT_EQ(can.*member, attribute == on) << "attribute " << attribute << " with " << on;
    }
  }
}

TEST(runtime_open, ReadsNumbers) {
  fake_driver fake{1};
  fake.attributes[driver::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] = 9;
  fake.attributes[driver::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR] = 3;
  fake.attributes[driver::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT] = 132;
  fake.attributes[driver::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT] = 4;
  fake.attributes[driver::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE] = 1 << 20;
  fake.attributes[driver::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES] = 9;
  fake.attributes[driver::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID] = 3;
  const auto opened = runtime::open_table(fake.table, "fake").value();
  const auto& can = opened->device(device_id{0}).value().capabilities();
  EXPECT_EQ(can.compute_major, 9);
  EXPECT_EQ(can.compute_minor, 3);
  EXPECT_EQ(can.multiprocessors, 132);
  EXPECT_EQ(can.copy_engines, 4);
  EXPECT_EQ(can.l2_cache, bytes{1 << 20});
  EXPECT_EQ(can.pool_handle_types, 9u);
  EXPECT_EQ(can.host_numa_node, 3);
  EXPECT_EQ(can.granularity, bytes{fake_driver::granularity});
  EXPECT_EQ(can.recommended_granularity, bytes{fake_driver::recommended_granularity});
}

TEST(device_capabilities, AreNoneUntilAsked) {
  const device_capabilities none;
  EXPECT_EQ(to_string(none),
            "compute 0.0, multiprocessors 0, copy_engines 0, l2_cache 0 B, granularity 0 B, "
            "recommended_granularity 0 B, pool_handle_types 0, host_numa_node -1");
}

TEST(runtime_open, TakesAQuestionThatTheDriverDoesNotUnderstandForNo) {
  fake_driver fake{1};
  fake.attributes.clear();
  const auto opened = runtime::open_table(fake.table, "fake").value();
  EXPECT_EQ(to_string(opened->device(device_id{0}).value().capabilities()),
            to_string(device_capabilities{}));
}

TEST(runtime_open, WithoutVirtualMemoryThereIsNoGranularity) {
  fake_driver fake{1};
  fake.attributes.clear();
  const auto opened = runtime::open_table(fake.table, "fake").value();
  const auto where = opened->device(device_id{0}).value();
  EXPECT_EQ(where.capabilities().granularity, bytes{});
  EXPECT_EQ(fake.count(call::mem_get_allocation_granularity), 0u);
  EXPECT_EQ(code_of(address_range::reserve(where, bytes{fake_driver::granularity})),
            errc::not_supported);
  EXPECT_EQ(code_of(round_to_granularity(where, bytes{1})), errc::not_supported);
}

TEST(runtime_open, NamesEveryRequiredCallThatIsMissing) {
  fake_driver fake;
  fake.table.mem_create = nullptr;
  fake.table.event_query = nullptr;
  fake.table.stream_get_id = nullptr;  // optional
  const auto refused = runtime::open_table(fake.table, "fake");
  ASSERT_FALSE(refused);
  EXPECT_EQ(code_of(refused), errc::symbol_missing);
  EXPECT_THAT(refused.error().detail(), AllOf(HasSubstr("cuMemCreate"), HasSubstr("cuEventQuery"),
                                              Not(HasSubstr("cuStreamGetId"))));
  EXPECT_THAT(fake.calls(), IsEmpty());
}

TEST(runtime_open, ListsOptionalCallsThatAreMissing) {
  fake_driver fake;
  fake.table.stream_get_id = nullptr;
  const auto opened = runtime::open_table(fake.table, "fake").value();
  EXPECT_THAT(opened->describe().missing_calls, ::testing::ElementsAre("cuStreamGetId"));
}

TEST(runtime_open, EveryCallOfOpeningMayFail) {
  std::size_t calls = 0;
  {
    fake_driver fake{1};
    ASSERT_TRUE(runtime::open_table(fake.table, "fake"));
    calls = fake.calls().size();
  }
  for (std::size_t nth = 1; nth <= calls; ++nth) {
    fake_driver fake{1};
    fake.fail_nth(nth, driver::CUDA_ERROR_UNKNOWN);
    const auto refused = runtime::open_table(fake.table, "fake");
    ASSERT_FALSE(refused) << nth;
    EXPECT_EQ(refused.error().call(), driver::info(fake.calls().back()).symbol);
    EXPECT_EQ(fake.calls().size(), nth);
  }
}

TEST(runtime_open, WithoutDevicesThereIsNoRuntime) {
  fake_driver fake{0};
  EXPECT_EQ(code_of(runtime::open_table(fake.table, "fake")), errc::no_device);
}

TEST(runtime_open, KeepsWhatItWasGiven) {
  fake_driver fake{1};
  auto kept = std::make_shared<int>(1);
  auto opened = runtime::open_table(fake.table, "fake", kept).value();
  EXPECT_EQ(kept.use_count(), 2);
  opened.reset();
  EXPECT_EQ(kept.use_count(), 1);
}

TEST(runtime_open, ALibraryThatIsNotThereIsDriverUnavailable) {
  EXPECT_EQ(code_of(runtime::open_cuda("libweir_no_such_driver.so")), errc::driver_unavailable);
  options settings;
  settings.runtime = runtime_choice::cuda;
  settings.driver_path = "libweir_no_such_driver.so";
  EXPECT_EQ(code_of(runtime::open(settings)), errc::driver_unavailable);
}

TEST(runtime_open, ANullMachineIsRefused) {
  EXPECT_EQ(code_of(runtime::open_simulated(nullptr)), errc::invalid_argument);
}

TEST(runtime_number, IsTheLowestThatIsFreeAsLongAsThereIsOne) {
  using detail::runtime_number;
  std::vector<std::shared_ptr<const runtime_number>> taken;
  for (std::uint64_t number = 0; number < runtime_number::most; ++number) {
    taken.push_back(runtime_number::take().value());
    ASSERT_EQ(taken.back()->with(7), number << 48 | 7);
  }
  const auto refused = runtime_number::take();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error(),
            (error{{.code = errc::limit_exceeded,
                    .detail = "a process can have 4096 open runtimes; close one"}}));
  fake_driver fake{1};
  EXPECT_EQ(code_of(runtime::open_table(fake.table, "fake")), errc::limit_exceeded);
  taken[9].reset();
  taken[8].reset();
  EXPECT_EQ(runtime_number::take().value()->with(0), std::uint64_t{8} << 48);
}

using runtime_test = device_test;

TEST_F(runtime_test, KnowsWhichDevicesExist) {
  EXPECT_EQ(code_of(runtime_->device(device_id{2})), errc::no_device);
  EXPECT_EQ(code_of(runtime_->device(device_id{-1})), errc::no_device);
  EXPECT_EQ(device_at(1), device_at(1));
  EXPECT_NE(device_at(0), device_at(1));
}

TEST_F(runtime_test, ContextsAreRetainedWhenNeededAndReleasedWithTheRuntime) {
  ASSERT_TRUE(device_at(1).memory_info());
  ASSERT_TRUE(device_at(1).memory_info());
  EXPECT_EQ(device_at(1).context().value(), fake_driver::context_of(1));
  EXPECT_EQ(fake.retained(1), 1);
  EXPECT_EQ(fake.count(call::device_primary_ctx_retain), 1u);
  runtime_.reset();
  EXPECT_EQ(fake.retained(1), 0);
  EXPECT_EQ(fake.count(call::device_primary_ctx_release), 1u);
}

TEST_F(runtime_test, AContextThatCannotBeHadIsAskedForAgain) {
  fake.always[call::device_primary_ctx_retain] = driver::CUDA_ERROR_OUT_OF_MEMORY;
  const auto refused = device_at(0).memory_info();
  ASSERT_FALSE(refused);
  EXPECT_EQ(code_of(refused), errc::out_of_memory);
  EXPECT_EQ(refused.error().call(), "cuDevicePrimaryCtxRetain");
  fake.always.clear();
  EXPECT_TRUE(device_at(0).memory_info());
}

TEST_F(runtime_test, MemoryInfoSaysWhatTheDriverSays) {
  const auto info = device_at(0).memory_info().value();
  EXPECT_EQ(info.free, bytes{std::uint64_t{7} << 30});
  EXPECT_EQ(info.total, bytes{std::uint64_t{8} << 30});
  EXPECT_EQ(to_string(info), "7 GiB of 8 GiB free");
}

TEST_F(runtime_test, IsDescribed) {
  EXPECT_EQ(to_string(runtime_->describe()), "fake, CUDA 13.0");
  runtime_description described;
  EXPECT_EQ(described.driver_version, 0) << "until somebody asked";
  EXPECT_EQ(to_string(described), ", CUDA 0.0");
  described.driver = "libcuda.so.1";
  described.driver_version = 12080;
  described.missing_calls = {"cuMemCreate", "cuStreamGetId"};
  described.no_real_driver = error{{.code = errc::no_device}};
  EXPECT_EQ(to_string(described),
            "libcuda.so.1, CUDA 12.8; lacks cuMemCreate, cuStreamGetId; no real driver: no_device: "
            "the device does not exist");
  EXPECT_EQ(to_string(device_at(1)), "device 1: fake, 8 GiB");
}

TEST(device_capabilities, AreDescribedInFull) {
  device_capabilities can;
  EXPECT_EQ(to_string(can),
            "compute 0.0, multiprocessors 0, copy_engines 0, l2_cache 0 B, granularity 0 B, "
            "recommended_granularity 0 B, pool_handle_types 0, host_numa_node -1");
  can.compute_major = 9;
  can.compute_minor = 1;
  can.multiprocessors = 132;
  can.copy_engines = 3;
  can.l2_cache = bytes{60 << 20};
  can.granularity = bytes{2 << 20};
  can.recommended_granularity = bytes{4 << 20};
  can.pool_handle_types = 8;
  can.host_numa_node = 5;
  const std::string numbers =
      "compute 9.1, multiprocessors 132, copy_engines 3, l2_cache 60 MiB, granularity 2 MiB, "
      "recommended_granularity 4 MiB, pool_handle_types 8, host_numa_node 5";
  EXPECT_EQ(to_string(can), numbers);
  using all = device_capabilities;
  const std::pair<bool all::*, const char*> flags[] = {
      {&all::unified_addressing, "unified_addressing"},
      {&all::integrated, "integrated"},
      {&all::stream_priorities, "stream_priorities"},
      {&all::stream_memory_operations, "stream_memory_operations"},
      {&all::virtual_memory, "virtual_memory"},
      {&all::posix_descriptors, "posix_descriptors"},
      {&all::fabric_handles, "fabric_handles"},
      {&all::multicast, "multicast"},
      {&all::memory_pools, "memory_pools"},
      {&all::host_memory_pools, "host_memory_pools"},
      {&all::host_numa_memory_pools, "host_numa_memory_pools"},
      {&all::managed_memory, "managed_memory"},
      {&all::concurrent_managed_access, "concurrent_managed_access"},
      {&all::managed_access_from_host, "managed_access_from_host"},
      {&all::pageable_memory_access, "pageable_memory_access"},
      {&all::host_page_tables, "host_page_tables"},
      {&all::host_register, "host_register"},
      {&all::host_pointer_for_registered, "host_pointer_for_registered"},
      {&all::host_virtual_memory, "host_virtual_memory"},
      {&all::host_numa_virtual_memory, "host_numa_virtual_memory"},
      {&all::rdma, "rdma"},
      {&all::rdma_with_virtual_memory, "rdma_with_virtual_memory"},
      {&all::dma_buf, "dma_buf"},
  };
  std::string expected = numbers;
  for (const auto& [member, name] : flags) {
    EXPECT_FALSE(can.*member) << name;
    can.*member = true;
    expected += (expected == numbers ? "\n" : ", ") + std::string{name};
    EXPECT_EQ(to_string(can), expected);
  }
}

TEST_F(runtime_test, PrioritiesAreWhatTheDriverSays) {
  const auto range = device_at(0).stream_priorities().value();
  EXPECT_EQ(range.least, 0);
  EXPECT_EQ(range.greatest, -5);
  EXPECT_EQ(priority_range{}.least, 0);
  EXPECT_EQ(priority_range{}.greatest, 0);
}

TEST_F(runtime_test, ADeviceReachesAnother) {
  EXPECT_TRUE(device_at(0).can_access_peer(device_at(1)).value());
  EXPECT_EQ(fake.last_peers, std::pair(0, 1));
  fake.reaches_peers = 0;
  EXPECT_FALSE(device_at(1).can_access_peer(device_at(0)).value());
  EXPECT_EQ(fake.last_peers, std::pair(1, 0));

  ASSERT_TRUE(device_at(0).enable_peer_access(device_at(1)));
  EXPECT_EQ(fake.last_peer_context, fake_driver::context_of(1));
  ASSERT_TRUE(device_at(1).disable_peer_access(device_at(0)));
  EXPECT_EQ(fake.last_peer_context, fake_driver::context_of(0));
  const auto who = [this](call which) {
    for (const auto& made : fake.log())
      if (made.which == which) return made.current;
    return driver::CUcontext{};
  };
  EXPECT_EQ(who(call::ctx_enable_peer_access), fake_driver::context_of(0));
  EXPECT_EQ(who(call::ctx_disable_peer_access), fake_driver::context_of(1));
}

TEST_F(runtime_test, EnablingPeersTwiceIsNoError) {
  EXPECT_TRUE(device_at(0).enable_peer_access(device_at(1)));
  fake.always[call::ctx_enable_peer_access] = driver::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  EXPECT_TRUE(device_at(0).enable_peer_access(device_at(1)));
  fake.always[call::ctx_enable_peer_access] = driver::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  EXPECT_EQ(code_of(device_at(0).enable_peer_access(device_at(1))), errc::not_supported);
  fake.always[call::ctx_disable_peer_access] = driver::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
  EXPECT_TRUE(device_at(0).disable_peer_access(device_at(1)));
  fake.always[call::ctx_disable_peer_access] = driver::CUDA_ERROR_UNKNOWN;
  const auto refused = device_at(0).disable_peer_access(device_at(1));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().call(), "cuCtxDisablePeerAccess");
  fake.always[call::device_can_access_peer] = driver::CUDA_ERROR_UNKNOWN;
  const auto unanswered = device_at(0).can_access_peer(device_at(1));
  ASSERT_FALSE(unanswered);
  EXPECT_EQ(unanswered.error().call(), "cuDeviceCanAccessPeer");
}

TEST_F(runtime_test, ADeviceIsItsOwnPeer) {
  fake.clear_log();
  EXPECT_TRUE(device_at(0).can_access_peer(device_at(0)).value());
  EXPECT_TRUE(device_at(0).enable_peer_access(device_at(0)));
  EXPECT_TRUE(device_at(0).disable_peer_access(device_at(0)));
  EXPECT_THAT(fake.calls(), IsEmpty());
}

TEST_F(runtime_test, DevicesOfTwoRuntimesAreNoPeers) {
  const auto other = runtime::open_table(fake.table, "another").value();
  const auto theirs = other->device(device_id{1}).value();
  EXPECT_EQ(code_of(device_at(0).can_access_peer(theirs)), errc::invalid_argument);
  EXPECT_EQ(code_of(device_at(0).enable_peer_access(theirs)), errc::invalid_argument);
  EXPECT_EQ(code_of(device_at(0).disable_peer_access(theirs)), errc::invalid_argument);
}

}  // namespace
}  // namespace weir::testing_support
