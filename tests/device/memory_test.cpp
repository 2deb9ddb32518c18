// SPDX-License-Identifier: Apache-2.0
// Virtual memory: the rules are checked before the driver sees a call, and owners give things back.
#include "weir/device/virtual_memory.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "device/device_fixture.hpp"

namespace weir::testing_support { namespace {

using driver::call;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr bytes granule{fake_driver::granularity};

class memory_test : public device_test {
 protected:
  /// Calls besides binding the context.
  [[nodiscard]] std::vector<call> memory_calls() const {
    auto all = fake.calls();
    std::erase_if(all, [](call each) {
      return each == call::ctx_get_current || each == call::ctx_push_current ||
             each == call::ctx_pop_current || each == call::device_primary_ctx_retain;
    });
    return all;
  }
};

TEST_F(memory_test, RoundsToTheDevicesUnits) {
  EXPECT_EQ(round_to_granularity(device_at(0), bytes{1}).value(), granule);
  EXPECT_EQ(round_to_granularity(device_at(0), granule).value(), granule);
  EXPECT_EQ(round_to_granularity(device_at(0), granule + bytes{1}).value(), granule * 2);
  EXPECT_EQ(round_to_recommended(device_at(0), granule).value(),
            bytes{fake_driver::recommended_granularity});
  EXPECT_EQ(code_of(round_to_granularity(device_at(0), bytes{})), errc::invalid_argument);
  EXPECT_EQ(code_of(round_to_granularity(device_at(0), bytes::max())), errc::size_overflow);
}

TEST_F(memory_test, BadSizesAndAddressesNeverReachTheDriver) {
  const auto where = device_at(0);
  const context_scope bound{where};
  const auto access = vmm::access_for(where);
  const std::span<const vmm::access> rights{&access, 1};
  const vmm::physical whole{.handle = 1, .size = granule};
  const vmm::physical part{.handle = 1, .size = granule / 2};
  const vmm::physical huge{.handle = 1, .size = bytes{~std::uint64_t{0} - granule.count() + 1}};
  const device_address base = 64 * granule.count();
  fake.clear_log();

  EXPECT_EQ(code_of(vmm::reserve(bound, bytes{})), errc::invalid_argument);
  EXPECT_EQ(code_of(vmm::reserve(bound, granule + bytes{1})), errc::invalid_argument);
  EXPECT_EQ(code_of(vmm::reserve(bound, granule, bytes{3})), errc::bad_alignment);
  EXPECT_EQ(code_of(vmm::reserve(bound, granule, bytes{}, 1)), errc::bad_alignment);
  EXPECT_EQ(code_of(vmm::free(bound, 0, granule)), errc::invalid_argument);
  EXPECT_EQ(code_of(vmm::create(bound, bytes{})), errc::invalid_argument);
  EXPECT_EQ(code_of(vmm::create(bound, granule / 2)), errc::invalid_argument);
  EXPECT_EQ(code_of(vmm::map(bound, base, part)), errc::invalid_argument);
  EXPECT_EQ(code_of(vmm::map(bound, base + 1, whole)), errc::bad_alignment);
  EXPECT_EQ(code_of(vmm::map(bound, 0, whole)), errc::invalid_argument);
  EXPECT_EQ(code_of(vmm::map(bound, base, huge)), errc::size_overflow);
  EXPECT_EQ(code_of(vmm::map(bound, base, std::vector{whole, part})), errc::invalid_argument);
  EXPECT_EQ(code_of(vmm::map(bound, base, std::vector{huge, huge})), errc::size_overflow);
  EXPECT_EQ(code_of(vmm::map(bound, base, std::span<const vmm::physical>{})),
            errc::invalid_argument);
  EXPECT_EQ(code_of(vmm::unmap(bound, base, granule / 2)), errc::invalid_argument);
  EXPECT_EQ(code_of(vmm::unmap(bound, base + granule.count() / 2, granule)), errc::bad_alignment);
  EXPECT_EQ(code_of(vmm::set_access(bound, base, bytes{}, rights)), errc::invalid_argument);
  EXPECT_EQ(code_of(vmm::set_access(bound, base, granule, {})), errc::invalid_argument);
  EXPECT_EQ(code_of(vmm::import_descriptor(bound, -1, granule)), errc::invalid_argument);
  EXPECT_EQ(code_of(vmm::import_descriptor(bound, 3, bytes{1})), errc::invalid_argument);
  EXPECT_EQ(code_of(allocate_plain(bound, bytes{})), errc::invalid_argument);
  EXPECT_TRUE(free_plain(bound, 0));
  EXPECT_THAT(fake.calls(), IsEmpty());
}

TEST_F(memory_test, ReservationsAreAlignedToTheGranularityAtLeast) {
  const auto small = address_range::reserve(device_at(0), granule, bytes{4096}).value();
  EXPECT_EQ(small.base(), 64 * granule.count()) << "the fake answers 64 times the alignment it got";
  const auto large = address_range::reserve(device_at(0), granule, granule * 8).value();
  EXPECT_EQ(large.base(), 64 * 8 * granule.count());
}

TEST_F(memory_test, ARangeKnowsWhatLiesInside) {
  const auto range = address_range::reserve(device_at(0), granule * 4).value();
  const auto base = range.base();
  EXPECT_TRUE(range.contains(base, granule * 4));
  EXPECT_TRUE(range.contains(base + 3 * granule.count(), granule));
  EXPECT_FALSE(range.contains(base + 3 * granule.count(), granule * 2));
  EXPECT_FALSE(range.contains(base - 1, bytes{1}));
  EXPECT_FALSE(range.contains(base, bytes::max()));
  EXPECT_FALSE(range.contains(base + 4 * granule.count(), bytes{1}));
}

TEST_F(memory_test, PropertiesReachTheDriverAndAreCheckedFirst) {
  ASSERT_TRUE(
      physical_handle::create(device_at(1), granule, {.posix_descriptor = true, .rdma = true}));
  EXPECT_EQ(fake.last_properties.type, driver::CU_MEM_ALLOCATION_TYPE_PINNED);
  EXPECT_EQ(fake.last_properties.location.type, driver::CU_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(fake.last_properties.location.id, 1);
  EXPECT_EQ(fake.last_properties.requestedHandleTypes,
            driver::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  EXPECT_EQ(fake.last_properties.allocFlags.gpuDirectRDMACapable, 1);
  ASSERT_TRUE(physical_handle::create(device_at(0), granule));
  EXPECT_EQ(fake.last_properties.requestedHandleTypes, driver::CU_MEM_HANDLE_TYPE_NONE);
  EXPECT_EQ(fake.last_properties.allocFlags.gpuDirectRDMACapable, 0);
  const auto created = fake.count(call::mem_create);
  const auto fabric = physical_handle::create(device_at(0), granule, {.fabric = true});
  ASSERT_EQ(code_of(fabric), errc::not_supported);
  EXPECT_EQ(fabric.error().detail(),
            "fabric handles cannot be exported or imported yet; use posix_descriptor");
  EXPECT_EQ(fake.count(call::mem_create), created);
}

TEST(handle_properties, AreRefusedWhereTheDeviceHasThemNot) {
  const std::pair<physical_properties, driver::CUdevice_attribute> properties[] = {
      {{.posix_descriptor = true},
       driver::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED},
      {{.rdma = true}, driver::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED},
  };
  for (const auto& [one, its_attribute] : properties) {
    fake_driver fake{1};
    fake.attributes = {{driver::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED, 1},
                       {its_attribute, 1}};
    const auto opened = runtime::open_table(fake.table, "fake").value();
    const auto where = opened->device(device_id{0}).value();
    EXPECT_TRUE(physical_handle::create(where, granule));
    for (const auto& [wanted, attribute] : properties) {
      SCOPED_TRACE(to_string(one) + " has, " + to_string(wanted) + " wants");
      const auto created = physical_handle::create(where, granule, wanted);
      if (wanted == one) {
        ASSERT_TRUE(created);
        EXPECT_EQ(created->properties(), wanted);
        int types = driver::CU_MEM_HANDLE_TYPE_NONE;
        if (wanted.posix_descriptor) types = driver::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        EXPECT_EQ(static_cast<int>(fake.last_properties.requestedHandleTypes), types);
        EXPECT_EQ(fake.last_properties.allocFlags.gpuDirectRDMACapable, wanted.rdma ? 1 : 0);
      } else {
        ASSERT_FALSE(created);
        EXPECT_EQ(
            created.error(),
            (error{{.code = errc::not_supported,
                    .detail = "the device does not support handles with " + to_string(wanted)}}));
      }
    }
    EXPECT_EQ(fake.count(call::mem_create), 2u);
  }
}

TEST_F(memory_test, OutOfMemoryCarriesTheSize) {
  fake.always[call::mem_create] = driver::CUDA_ERROR_OUT_OF_MEMORY;
  const auto refused = physical_handle::create(device_at(0), granule * 3);
  ASSERT_FALSE(refused);
  EXPECT_EQ(code_of(refused), errc::out_of_memory);
  EXPECT_EQ(refused.error().requested(), granule * 3);
  EXPECT_EQ(refused.error().call(), "cuMemCreate");
}

TEST_F(memory_test, OnlyExportableHandlesAreExported) {
  const auto plain = physical_handle::create(device_at(0), granule).value();
  EXPECT_EQ(code_of(plain.export_descriptor()), errc::not_supported);
  EXPECT_EQ(fake.count(call::mem_export_to_shareable_handle), 0u);
}

TEST_F(memory_test, TheDescriptorsNumberStandsForThePointer) {
  const auto imported = physical_handle::import_descriptor(device_at(0), 42, granule).value();
  EXPECT_EQ(fake.last_imported, 42u);
  EXPECT_EQ(imported.size(), granule);
  EXPECT_EQ(imported.properties(), physical_properties{.posix_descriptor = true});
  ASSERT_TRUE(physical_handle::import_descriptor(device_at(0), 0, granule));
  EXPECT_EQ(fake.last_imported, 0u);
}

TEST_F(memory_test, AMappingCoversTheWholeHandle) {
  const auto range = address_range::reserve(device_at(0), granule * 4).value();
  const auto handle = physical_handle::create(device_at(0), granule * 2).value();
  const auto mapped = mapping::create(range, granule, handle).value();
  ASSERT_EQ(fake.mappings().size(), 1u);
  EXPECT_EQ(fake.mappings()[0].address, range.base() + granule.count());
  EXPECT_EQ(fake.mappings()[0].size, handle.size().count());
  EXPECT_EQ(fake.mappings()[0].offset, 0u);
  EXPECT_EQ(mapped.address(), range.base() + granule.count());
  ASSERT_TRUE(mapped.set_access(device_at(1), access_rights::read));
  ASSERT_EQ(fake.last_access.size(), 1u);
  EXPECT_EQ(fake.last_access[0].location.id, 1);
  EXPECT_EQ(fake.last_access[0].flags, driver::CU_MEM_ACCESS_FLAGS_PROT_READ);
  ASSERT_TRUE(mapped.set_access(device_at(0)));
  EXPECT_EQ(fake.last_access[0].location.id, 0);
  EXPECT_EQ(fake.last_access[0].flags, driver::CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

TEST_F(memory_test, RightsAreWhatTheDriverCallsThem) {
  const auto expect_flags = [](const vmm::access& rights, driver::CUmemAccess_flags flags) {
    EXPECT_EQ(rights.location.type, driver::CU_MEM_LOCATION_TYPE_DEVICE);
    EXPECT_EQ(rights.location.id, 1);
    EXPECT_EQ(rights.flags, flags);
  };
  const auto where = device_at(1);
  expect_flags(vmm::access_for(where, access_rights::none), driver::CU_MEM_ACCESS_FLAGS_PROT_NONE);
  expect_flags(vmm::access_for(where, access_rights::read), driver::CU_MEM_ACCESS_FLAGS_PROT_READ);
  expect_flags(vmm::access_for(where, access_rights::read_write),
               driver::CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  expect_flags(vmm::access_for(where), driver::CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

TEST_F(memory_test, AMappingMustFitIntoItsRange) {
  const auto range = address_range::reserve(device_at(0), granule * 4).value();
  auto handle = physical_handle::create(device_at(0), granule * 2).value();
  ASSERT_TRUE(mapping::create(range, granule * 2, handle)) << "it just fits";
  ASSERT_EQ(fake.count(call::mem_map), 1u);
  fake.clear_log();
  const auto refused = mapping::create(range, granule * 3, handle);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.code(), errc::invalid_argument);
  EXPECT_EQ(refused.error().requested(), granule * 2);
  EXPECT_EQ(refused.error().detail(), "the handle exceeds the end of the range");
  EXPECT_EQ(code_of(mapping::create(range, bytes::max(), handle)), errc::invalid_argument);
  EXPECT_EQ(code_of(mapping::create(range, granule / 2, handle)), errc::bad_alignment);
  EXPECT_EQ(fake.count(call::mem_map), 0u);
  ASSERT_TRUE(handle.close());
  EXPECT_EQ(code_of(mapping::create(range, granule, handle)), errc::closed);
}

TEST_F(memory_test, ManyHandlesTakeOneGrant) {
  const auto range = address_range::reserve(device_at(0), granule * 8).value();
  const context_scope bound{device_at(0)};
  std::vector<vmm::physical> handles;
  for (int i = 0; i < 3; ++i) handles.push_back(vmm::create(bound, granule).value());
  const vmm::access rights[] = {vmm::access_for(device_at(0)),
                                vmm::access_for(device_at(1), access_rights::read)};
  fake.clear_log();
  ASSERT_TRUE(vmm::map(bound, range.base(), handles));
  ASSERT_TRUE(vmm::set_access(bound, range.base(), granule * 3, rights));
  EXPECT_THAT(fake.calls(),
              ElementsAre(call::mem_map, call::mem_map, call::mem_map, call::mem_set_access));
  EXPECT_EQ(fake.last_access.size(), 2u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(fake.mappings()[i].address, range.base() + i * granule.count());
    EXPECT_EQ(fake.mappings()[i].handle, handles[i].handle);
  }
  ASSERT_TRUE(vmm::unmap(bound, range.base(), granule * 3));
  for (const auto& each : handles) ASSERT_TRUE(vmm::release(bound, each));
}

TEST_F(memory_test, WhatWasMappedBeforeAFailureIsUnmapped) {
  const auto range = address_range::reserve(device_at(0), granule * 8).value();
  const context_scope bound{device_at(0)};
  const std::vector<vmm::physical> handles(3, {.handle = 9, .size = granule});
  fake.fail_nth(3, driver::CUDA_ERROR_ALREADY_MAPPED);
  const auto refused = vmm::map(bound, range.base(), handles);
  ASSERT_FALSE(refused);
  EXPECT_EQ(code_of(refused), errc::already_mapped);
  EXPECT_THAT(fake.mappings(), IsEmpty());
}

TEST_F(memory_test, OwnersMoveAndGiveBackOnce) {
  {
    auto range = address_range::reserve(device_at(0), granule * 4).value();
    auto handle = physical_handle::create(device_at(0), granule).value();
    auto mapped = mapping::create(range, bytes{}, handle).value();
    address_range range_again{std::move(range)};
    physical_handle handle_again{std::move(handle)};
    mapping mapped_again{std::move(mapped)};
    EXPECT_FALSE(range);  // NOLINT(bugprone-use-after-move)
    EXPECT_FALSE(range || handle || mapped);
    EXPECT_TRUE(range_again && handle_again && mapped_again);
    EXPECT_FALSE(handle);  // NOLINT(bugprone-use-after-move)
    EXPECT_FALSE(mapped);  // NOLINT(bugprone-use-after-move)
    EXPECT_EQ(code_of(mapped.set_access(device_at(0))), errc::moved_from);
    EXPECT_EQ(code_of(handle.export_descriptor()), errc::moved_from);
    EXPECT_EQ(fake.live(), 3u);
    handle_again = physical_handle::create(device_at(0), granule).value();
    mapped_again = mapping::create(range_again, granule, handle_again).value();
    EXPECT_EQ(fake.live(), 3u);
    fake.clear_log();
  }
  EXPECT_THAT(memory_calls(),
              ElementsAre(call::mem_unmap, call::mem_release, call::mem_address_free));
  EXPECT_EQ(fake.live(), 0u);
}

TEST_F(memory_test, AssigningOwnersToThemselvesKeepsWhatTheyOwn) {
  auto range = address_range::reserve(device_at(0), granule * 4).value();
  auto handle = physical_handle::create(device_at(0), granule).value();
  auto mapped = mapping::create(range, granule, handle).value();
  const auto base = range.base();
  const auto memory = handle.get();
  fake.clear_log();
  auto& same_range = range;
  range = std::move(same_range);
  auto& same_handle = handle;
  handle = std::move(same_handle);
  auto& same_mapping = mapped;
  mapped = std::move(same_mapping);
  EXPECT_THAT(fake.calls(), IsEmpty());
  EXPECT_TRUE(range && handle && mapped);
  EXPECT_EQ(range.base(), base);
  EXPECT_EQ(range.size(), granule * 4);
  EXPECT_EQ(handle.get(), memory);
  EXPECT_EQ(mapped.address(), base + granule.count());
  EXPECT_EQ(mapped.size(), granule);
}

TEST_F(memory_test, AnAssignedOwnerHasAllOfTheOther) {
  auto range = address_range::reserve(device_at(0), granule * 4).value();
  auto large = address_range::reserve(device_at(0), granule * 16, granule * 16).value();
  const auto base = large.base();
  range = std::move(large);
  EXPECT_EQ(range.base(), base);
  EXPECT_EQ(range.size(), granule * 16);
  EXPECT_EQ(large.base(), 0u);       // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(large.size(), bytes{});  // NOLINT(bugprone-use-after-move)

  auto handle = physical_handle::create(device_at(0), granule).value();
  auto other =
      physical_handle::create(device_at(0), granule * 2, {.posix_descriptor = true}).value();
  const auto memory = other.get();
  handle = std::move(other);
  EXPECT_EQ(handle.get(), memory);
  EXPECT_EQ(handle.size(), granule * 2);
  EXPECT_EQ(handle.properties(), physical_properties{.posix_descriptor = true});
  EXPECT_EQ(other.get(), vmm::physical{});  // NOLINT(bugprone-use-after-move)

  auto mapped = mapping::create(range, bytes{}, handle).value();
  auto second = mapping::create(range, granule * 4, handle).value();
  mapped = std::move(second);
  EXPECT_EQ(mapped.address(), base + 4 * granule.count());
  EXPECT_EQ(mapped.size(), granule * 2);
  EXPECT_EQ(second.address(), 0u);    // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(second.size(), bytes{});  // NOLINT(bugprone-use-after-move)
  ASSERT_EQ(fake.mappings().size(), 1u);
  EXPECT_EQ(fake.mappings()[0].address, mapped.address());
  EXPECT_EQ(fake.live(), 3u);
}

// What was closed stays closed wherever it is moved; what it was moved from is only that.
TEST_F(memory_test, BeingClosedMovesToo) {
  auto range = address_range::reserve(device_at(0), granule * 4).value();
  auto handle = physical_handle::create(device_at(0), granule).value();
  auto mapped = mapping::create(range, bytes{}, handle).value();
  const auto other = address_range::reserve(device_at(0), granule * 4, granule * 4).value();
  const auto spare = physical_handle::create(device_at(0), granule).value();
  ASSERT_TRUE(mapped.close());
  ASSERT_TRUE(handle.close());
  ASSERT_TRUE(range.close());
  EXPECT_EQ(range.base(), 0u);
  EXPECT_EQ(range.size(), bytes{});
  const auto map_into = [&](const address_range& into) {
    return code_of(mapping::create(into, bytes{}, spare));
  };

  address_range range_made{std::move(range)};
  physical_handle handle_made{std::move(handle)};
  mapping mapped_made{std::move(mapped)};
  EXPECT_EQ(map_into(range_made), errc::closed);
  EXPECT_EQ(map_into(range), errc::moved_from);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(code_of(mapping::create(other, granule, handle_made)), errc::closed);
  EXPECT_EQ(code_of(mapping::create(other, granule, handle)), errc::moved_from);
  EXPECT_EQ(code_of(handle_made.export_descriptor()), errc::closed);
  EXPECT_EQ(code_of(handle.export_descriptor()), errc::moved_from);
  EXPECT_EQ(code_of(mapped_made.set_access(device_at(0))), errc::closed);
  EXPECT_EQ(code_of(mapped.set_access(device_at(0))), errc::moved_from);

  range = std::move(range_made);
  handle = std::move(handle_made);
  mapped = std::move(mapped_made);
  EXPECT_EQ(map_into(range), errc::closed);
  EXPECT_EQ(map_into(range_made), errc::moved_from);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(code_of(handle.export_descriptor()), errc::closed);
  EXPECT_EQ(code_of(handle_made.export_descriptor()), errc::moved_from);
  EXPECT_EQ(code_of(mapped.set_access(device_at(0))), errc::closed);
  EXPECT_EQ(code_of(mapped_made.set_access(device_at(0))), errc::moved_from);
}

TEST_F(memory_test, AHandleMayGoBeforeItsMapping) {
  const auto range = address_range::reserve(device_at(0), granule * 4).value();
  auto handle = physical_handle::create(device_at(0), granule).value();
  auto mapped = mapping::create(range, bytes{}, handle).value();
  EXPECT_TRUE(handle.close());
  EXPECT_TRUE(mapped.set_access(device_at(0)));
  EXPECT_TRUE(mapped.close());
  EXPECT_EQ(code_of(mapped.set_access(device_at(0))), errc::closed);
  EXPECT_EQ(code_of(handle.export_descriptor()), errc::closed);
}

TEST(descriptor, ClosesWhatItOwnsAndNothingElse) {
  const auto is_open = [](int number) { return ::fcntl(number, F_GETFD) != -1; };
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe(ends), 0);
  {
    descriptor reader{ends[0]};
    descriptor moved{std::move(reader)};
    EXPECT_FALSE(reader);  // NOLINT(bugprone-use-after-move)
    EXPECT_EQ(reader.get(), -1);
    EXPECT_EQ(moved.get(), ends[0]);
    descriptor writer{ends[1]};
    moved = std::move(writer);
    EXPECT_EQ(writer.get(), -1);  // NOLINT(bugprone-use-after-move)
    EXPECT_EQ(moved.get(), ends[1]);
    EXPECT_FALSE(is_open(ends[0]));
    EXPECT_EQ(moved.release(), ends[1]);
    EXPECT_EQ(moved.get(), -1);
    EXPECT_EQ(descriptor{}.get(), -1);
  }
  EXPECT_TRUE(is_open(ends[1]));
  { const descriptor writer{ends[1]}; }
  EXPECT_FALSE(is_open(ends[1]));
}

TEST(descriptor, AssignedToItselfStaysOpen) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe(ends), 0);
  const descriptor writer{ends[1]};
  descriptor reader{ends[0]};
  auto& same = reader;
  reader = std::move(same);
  EXPECT_EQ(reader.get(), ends[0]);
  EXPECT_NE(::fcntl(ends[0], F_GETFD), -1);
}

// Number 0 is one like any other, in a process that closed its input. A child can do without it.
TEST(descriptor, ZeroIsClosedToo) {
  const auto found = in_child([] {
    const auto is_open = [](int number) { return ::fcntl(number, F_GETFD) != -1; };
    const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null < 0) return 1;
    if (null != 0 && ::dup2(null, 0) != 0) return 2;
    { const descriptor zero{0}; }
    if (is_open(0)) return 3;
    if (::open("/dev/null", O_RDONLY | O_CLOEXEC) != 0) return 4;
    descriptor zero{0};
    if (!zero) return 5;
    zero = descriptor{};
    if (zero || zero.get() != -1) return 6;
    return is_open(0) ? 7 : 0;
  });
  EXPECT_EQ(found, 0);
}

}  // namespace
}  // namespace weir::testing_support
