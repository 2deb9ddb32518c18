// SPDX-License-Identifier: Apache-2.0
// Contract: starting the driver, its error names, and what it says about devices.
#include <cstring>
#include <set>
#include <string>
#include <thread>

#include "support/contract_test.hpp"

namespace weir::testing_support { namespace {

class start_and_devices : public contract_test {};
WEIR_CONTRACT(start_and_devices);

const refusal_list start_and_devices_refusals{
    "start_and_devices",
    {
        {"init with flags", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->init(1); }},
        {"driver_get_version(null)", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->driver_get_version(nullptr); }},
        {"get_error_name of no error", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           const char* name = nullptr;
           return b.cu->get_error_name(static_cast<CUresult>(12345), &name);
         }},
        {"get_error_string of no error", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           const char* text = nullptr;
           return b.cu->get_error_string(static_cast<CUresult>(12345), &text);
         }},
        {"device_get_count(null)", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->device_get_count(nullptr); }},
        {"device_get(null)", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->device_get(nullptr, 0); }},
        {"device_get of ordinal -1", CUDA_ERROR_INVALID_DEVICE,
         [](driver_fixture& b) {
           CUdevice opened = 0;
           return b.cu->device_get(&opened, -1);
         }},
        {"device_get of ordinal 1000", CUDA_ERROR_INVALID_DEVICE,
         [](driver_fixture& b) {
           CUdevice opened = 0;
           return b.cu->device_get(&opened, 1000);
         }},
        {"device_get_name into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->device_get_name(nullptr, 16, b.device); }},
        {"device_get_name of no device", CUDA_ERROR_INVALID_DEVICE,
         [](driver_fixture& b) {
           char name[64];
           return b.cu->device_get_name(name, sizeof(name), 1000);
         }},
        {"device_get_uuid into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->device_get_uuid(nullptr, b.device); }},
        {"device_get_uuid of no device", CUDA_ERROR_INVALID_DEVICE,
         [](driver_fixture& b) {
           CUuuid uuid;
           return b.cu->device_get_uuid(&uuid, 1000);
         }},
        {"device_get_pci_bus_id into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->device_get_pci_bus_id(nullptr, 16, b.device); }},
        {"device_get_pci_bus_id of no device", CUDA_ERROR_INVALID_DEVICE,
         [](driver_fixture& b) {
           char id[64];
           return b.cu->device_get_pci_bus_id(id, sizeof(id), 1000);
         }},
        {"device_total_mem into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->device_total_mem(nullptr, b.device); }},
        {"device_total_mem of no device", CUDA_ERROR_INVALID_DEVICE,
         [](driver_fixture& b) {
           std::size_t bytes = 0;
           return b.cu->device_total_mem(&bytes, 1000);
         }},
        {"device_get_attribute into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->device_get_attribute(nullptr, CU_DEVICE_ATTRIBUTE_WARP_SIZE, b.device);
         }},
        {"device_get_attribute of no attribute", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           int value = 0;
           return b.cu->device_get_attribute(&value, static_cast<CUdevice_attribute>(9999),
                                             b.device);
         }},
        {"device_get_attribute of attribute 0", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           int value = 0;
           return b.cu->device_get_attribute(&value, static_cast<CUdevice_attribute>(0), b.device);
         }},
        {"device_get_attribute of no device", CUDA_ERROR_INVALID_DEVICE,
         [](driver_fixture& b) {
           int value = 0;
           return b.cu->device_get_attribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 1000);
         }},
        {"device_get_p2p_attribute of a device with itself", CUDA_ERROR_INVALID_DEVICE,
         [](driver_fixture& b) {
           int value = 0;
           return b.cu->device_get_p2p_attribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED,
                                                 b.device, b.device);
         }},
        {"device_get_p2p_attribute of no device", CUDA_ERROR_INVALID_DEVICE,
         [](driver_fixture& b) {
           int value = 0;
           return b.cu->device_get_p2p_attribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED,
                                                 b.device, 1000);
         }},
        {"device_can_access_peer into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->device_can_access_peer(nullptr, b.device, b.device);
         }},
        {"device_can_access_peer of no device", CUDA_ERROR_INVALID_DEVICE,
         [](driver_fixture& b) {
           int can = 0;
           return b.cu->device_can_access_peer(&can, b.device, 1000);
         }},
    }};

TEST_P(start_and_devices, refuses) { expect_refusals(start_and_devices_refusals, machine); }

TEST_P(start_and_devices, init_may_be_repeated_from_any_thread) {
  WEIR_OK(cu->init(0));
  CUresult elsewhere = CUDA_ERROR_UNKNOWN;
  std::thread{[&] { elsewhere = cu->init(0); }}.join();
  EXPECT_EQ(CUDA_SUCCESS, elsewhere);
}

TEST_P(start_and_devices, version_is_recent_enough) {
  int version = 0;
  WEIR_OK(cu->driver_get_version(&version));
  EXPECT_GE(version, oldest_driver);
}

TEST_P(start_and_devices, errors_have_the_names_we_know) {
  for (const CUresult value :
       {CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY,
        CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_NOT_READY,
        CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        CUDA_ERROR_CAPTURED_EVENT, CUDA_ERROR_UNKNOWN}) {
    const char* name = nullptr;
    const char* text = nullptr;
    WEIR_OK(cu->get_error_name(value, &name));
    WEIR_OK(cu->get_error_string(value, &text));
    EXPECT_EQ(result_name(value), name);
    EXPECT_GT(std::strlen(text), 0u);
  }
}

TEST_P(start_and_devices, an_unknown_error_has_no_name) {
  const char* name = "something";
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cu->get_error_name(static_cast<CUresult>(12345), &name));
  EXPECT_EQ(nullptr, name);
}

TEST_P(start_and_devices, devices_are_counted_from_zero) {
  int count = 0;
  WEIR_OK(cu->device_get_count(&count));
  ASSERT_GE(count, 1);
  std::set<CUdevice> devices;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CUdevice opened = -1;
    WEIR_OK(cu->device_get(&opened, ordinal));
    devices.insert(opened);
  }
  EXPECT_EQ(static_cast<std::size_t>(count), devices.size());
  CUdevice beyond = -1;
  EXPECT_EQ(CUDA_ERROR_INVALID_DEVICE, cu->device_get(&beyond, count));
}

TEST_P(start_and_devices, a_name_is_cut_to_its_buffer) {
  char whole[128];
  WEIR_OK(cu->device_get_name(whole, sizeof(whole), device));
  ASSERT_GT(std::strlen(whole), 4u);
  char cut[5] = {'x', 'x', 'x', 'x', 'x'};
  WEIR_OK(cu->device_get_name(cut, sizeof(cut), device));
  EXPECT_EQ(std::string(whole, 4), std::string(cut, 4));
}

TEST_P(start_and_devices, each_device_has_its_uuid_and_bus_id) {
  WEIR_NEEDS(device_get_uuid);
  int count = 0;
  WEIR_OK(cu->device_get_count(&count));
  std::set<std::string> uuids;
  std::set<std::string> buses;
  for (CUdevice one = 0; one < count; ++one) {
    CUuuid uuid{};
    WEIR_OK(cu->device_get_uuid(&uuid, one));
    uuids.insert(std::string(uuid.bytes, sizeof(uuid.bytes)));
    char bus[32] = {};
    WEIR_OK(cu->device_get_pci_bus_id(bus, sizeof(bus), one));
    // "0000:3b:00.0": domain, bus, device, function.
    EXPECT_EQ(12u, std::strlen(bus)) << bus;
    buses.insert(bus);
  }
  EXPECT_EQ(static_cast<std::size_t>(count), uuids.size());
  EXPECT_EQ(static_cast<std::size_t>(count), buses.size());
  EXPECT_EQ(0u, uuids.count(std::string(16, '\0')));
}

TEST_P(start_and_devices, total_memory_is_what_mem_get_info_says) {
  std::size_t of_device = 0;
  WEIR_OK(cu->device_total_mem(&of_device, device));
  std::size_t free = 0;
  std::size_t total = 0;
  WEIR_OK(cu->mem_get_info(&free, &total));
  EXPECT_EQ(of_device, total);
}

TEST_P(start_and_devices, attributes_say_what_weir_relies_on) {
  const auto attribute = [&](CUdevice_attribute name) {
    int value = -1;
    EXPECT_EQ(CUDA_SUCCESS, cu->device_get_attribute(&value, name, device));
    return value;
  };
  EXPECT_EQ(32, attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE));
  EXPECT_EQ(1, attribute(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING));
  EXPECT_EQ(1, attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED));
  EXPECT_EQ(1, attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED));
  EXPECT_EQ(1, attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED));
  EXPECT_EQ(1, attribute(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY));
  EXPECT_EQ(1, attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS));
  EXPECT_GE(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR), 5);
  EXPECT_GT(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT), 0);
  EXPECT_EQ(1, attribute(CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES) & 1);
}

TEST_P(start_and_devices, no_device_is_its_own_peer) {
  int can = -1;
  WEIR_OK(cu->device_can_access_peer(&can, device, device));
  EXPECT_EQ(0, can);
}

}  // namespace
}  // namespace weir::testing_support
