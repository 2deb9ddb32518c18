// SPDX-License-Identifier: Apache-2.0
// Stream-ordered pools of the simulated machine in two processes.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "pool_fixture.hpp"
#include "sim/pool_import.hpp"

namespace weir::sim_tests { namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class pool_exports : public pool_fixture {
 protected:
  using pool_fixture::pool_fixture;

  int export_pool(CUmemoryPool of) {
    int descriptor = -1;
    EXPECT_EQ(cuda.mem_pool_export_to_shareable_handle(&descriptor, of,
                                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
              CUDA_SUCCESS);
    return descriptor;
  }
  CUresult try_import_descriptor(CUmemoryPool* imported, int descriptor) {
    return cuda.mem_pool_import_from_shareable_handle(
        imported, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)),
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  }
  CUmemoryPool import_descriptor(int descriptor) {
    CUmemoryPool imported = nullptr;
    EXPECT_EQ(try_import_descriptor(&imported, descriptor), CUDA_SUCCESS);
    return imported;
  }
  /// A pool's file as an exporter could send it that says any size.
  int export_with_size(std::uint64_t size) {
    const int real = export_pool(make(device_pool(0, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)));
    std::vector<char> trailer(4096);
    EXPECT_EQ(::pread(real, trailer.data(), 4096, ::lseek(real, 0, SEEK_END) - 4096), 4096);
    ::close(real);
    std::memcpy(trailer.data() + 16, &size, sizeof(size));
    const int forged = ::memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    EXPECT_EQ(::pwrite(forged, trailer.data(), 4096, static_cast<off_t>(size)), 4096);
    EXPECT_EQ(::fcntl(forged, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    return forged;
  }
  /// The same pool once more, as another process would get it.
  CUmemoryPool import_own(CUmemoryPool of) {
    const int descriptor = export_pool(of);
    CUmemoryPool own = import_descriptor(descriptor);
    ::close(descriptor);
    return own;
  }
  /// Of the addresses of an exported pool: its file is one page longer.
  std::uint64_t length_of(CUmemoryPool of) {
    const int descriptor = export_pool(of);
    const auto end = static_cast<std::uint64_t>(::lseek(descriptor, 0, SEEK_END));
    ::close(descriptor);
    return end - 4096;
  }
  CUdeviceptr import_pointer(CUmemoryPool into, CUdeviceptr made) {
    CUmemPoolPtrExportData data{};
    EXPECT_EQ(cuda.mem_pool_export_pointer(&data, made), CUDA_SUCCESS);
    CUdeviceptr alias = 0;
    EXPECT_EQ(cuda.mem_pool_import_pointer(&alias, into, &data), CUDA_SUCCESS);
    return alias;
  }
};

void send_descriptor(int socket, int descriptor) {
  char byte = 'd';
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))]{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const head = CMSG_FIRSTHDR(&message);
  ASSERT_NE(head, nullptr);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(head), &descriptor, sizeof(descriptor));
  ASSERT_EQ(::sendmsg(socket, &message, 0), 1);
}

int receive_descriptor(int socket) {
  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))]{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) return -1;
  int descriptor = -1;
  const cmsghdr* const head = CMSG_FIRSTHDR(&message);
  if (head == nullptr) return -1;
  std::memcpy(&descriptor, CMSG_DATA(head), sizeof(descriptor));
  return descriptor;
}

struct exported_pointers {
  CUmemPoolPtrExportData first;
  CUmemPoolPtrExportData second;
};

/// The importer. Returns 0, or the number of the first step that went wrong.
int import_in_another_process(int socket) {
  int step = 0;
#define STEP(condition) \
  ++step;               \
  if (!(condition)) return step
  exported_pointers sent{};
  STEP(::read(socket, &sent, sizeof(sent)) == static_cast<ssize_t>(sizeof(sent)));
  const int descriptor = receive_descriptor(socket);
  STEP(descriptor >= 0);
  const auto machine = sim::machine::create(by_hand()).value();
  const driver::table& cuda = machine->driver();
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  STEP(cuda.init(0) == CUDA_SUCCESS);
  STEP(cuda.device_primary_ctx_retain(&context, 0) == CUDA_SUCCESS);
  STEP(cuda.ctx_set_current(context) == CUDA_SUCCESS);
  STEP(cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);

  const auto import = [&](CUmemoryPool* into, int from, CUmemAllocationHandleType type,
                          unsigned long long flags = 0) {
    return cuda.mem_pool_import_from_shareable_handle(
        into, reinterpret_cast<void*>(static_cast<std::intptr_t>(from)), type, flags);
  };
  constexpr auto as_descriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemoryPool pool = nullptr;
  CUmemoryPool again = nullptr;
  STEP(import(&pool, descriptor, CU_MEM_HANDLE_TYPE_NONE) == CUDA_ERROR_INVALID_VALUE);
  STEP(import(&pool, descriptor, as_descriptor, 1) == CUDA_ERROR_INVALID_VALUE);
  STEP(import(&pool, socket, as_descriptor) == CUDA_ERROR_UNKNOWN);
  STEP(import(&pool, 999, as_descriptor) == CUDA_ERROR_UNKNOWN);
  STEP(import(&pool, descriptor, as_descriptor) == CUDA_SUCCESS);
  STEP(import(&again, descriptor, as_descriptor) == CUDA_SUCCESS);
  STEP(again == pool);
  STEP(cuda.mem_pool_destroy(again) == CUDA_SUCCESS);
  ::close(descriptor);

  std::uint64_t figure = 0;
  CUdeviceptr address = 0;
  STEP(cuda.mem_pool_get_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &figure) ==
       CUDA_ERROR_INVALID_VALUE);
  STEP(cuda.mem_pool_set_attribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &figure) ==
       CUDA_ERROR_INVALID_VALUE);
  STEP(cuda.mem_pool_trim_to(pool, 0) == CUDA_ERROR_INVALID_VALUE);
  STEP(cuda.mem_alloc_from_pool_async(&address, 512, pool, stream) == CUDA_ERROR_INVALID_VALUE);
  STEP(cuda.device_set_mem_pool(0, pool) == CUDA_ERROR_INVALID_VALUE);
  int unused = -1;
  STEP(cuda.mem_pool_export_to_shareable_handle(&unused, pool, as_descriptor, 0) ==
       CUDA_ERROR_INVALID_VALUE);
  CUmemAccess_flags access{};
  CUmemLocation here{CU_MEM_LOCATION_TYPE_DEVICE, 0};
  STEP(cuda.mem_pool_get_access(&access, pool, &here) == CUDA_SUCCESS);
  STEP(access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);

  CUdeviceptr first = 0;
  CUdeviceptr second = 0;
  STEP(cuda.mem_pool_import_pointer(&first, pool, &sent.first) == CUDA_SUCCESS);
  STEP(cuda.mem_pool_import_pointer(&address, pool, &sent.first) == CUDA_SUCCESS);
  STEP(address == first);
  STEP(cuda.mem_pool_import_pointer(&second, pool, &sent.second) == CUDA_SUCCESS);
  STEP(second - first == 3 * mib + 512);
  for (std::size_t at = 0; at < sizeof(sent.first.reserved); ++at) {
    CUmemPoolPtrExportData damaged = sent.first;
    damaged.reserved[at] = static_cast<unsigned char>(damaged.reserved[at] ^ 0x55);
    if (cuda.mem_pool_import_pointer(&address, pool, &damaged) == CUDA_SUCCESS) {
      return 1000 + static_cast<int>(at);
    }
  }
  CUmemoryPool standard = nullptr;
  STEP(cuda.device_get_default_mem_pool(&standard, 0) == CUDA_SUCCESS);
  STEP(cuda.mem_pool_import_pointer(&address, standard, &sent.first) == CUDA_ERROR_INVALID_VALUE);

  CUdeviceptr start = 0;
  std::size_t size = 0;
  STEP(cuda.mem_get_address_range(&start, &size, first + 100) == CUDA_SUCCESS);
  STEP(start == first && size == 3 * mib + 5);
  STEP(*reinterpret_cast<const unsigned char*>(first) == 0x42);
  STEP(*reinterpret_cast<const unsigned char*>(second) == 0x43);
  STEP(cuda.memset_d8_async(first, 0x77, 64, stream) == CUDA_SUCCESS);
  CUmemPoolPtrExportData data{};
  STEP(cuda.mem_pool_export_pointer(&data, first) == CUDA_ERROR_INVALID_VALUE);
  STEP(cuda.mem_free_async(first + 512, stream) == CUDA_ERROR_INVALID_VALUE);
  STEP(cuda.mem_free_async(first, stream) == CUDA_SUCCESS);
  STEP(cuda.mem_free_async(first, stream) == CUDA_ERROR_INVALID_VALUE);
  STEP(machine->hazards().empty());
  STEP(cuda.stream_synchronize(stream) == CUDA_SUCCESS);
  // Only what is imported can be reached.
  STEP(machine->launch(stream, "outside", {writes(first, 16)}).has_value());
  STEP(machine->hazards().size() == 1);
  STEP(machine->hazards()[0].kind == hazard_kind::bad_access);
  STEP(cuda.mem_pool_destroy(pool) == CUDA_ERROR_INVALID_VALUE);
  STEP(cuda.mem_free(second) == CUDA_SUCCESS);
  STEP(cuda.mem_pool_destroy(pool) == CUDA_SUCCESS);
  STEP(cuda.mem_pool_destroy(pool) == CUDA_ERROR_INVALID_VALUE);
#undef STEP
  return 0;
}

TEST(pool_sharing, between_two_processes) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    const int failed = import_in_another_process(ends[1]);
    const bool told = ::write(ends[1], &failed, sizeof(failed)) == ssize_t{sizeof(failed)};
    ::_exit(failed == 0 && told ? 0 : 1);
  }
  ::close(ends[1]);

  const auto machine = sim::machine::create(by_hand()).value();
  const driver::table& cuda = machine->driver();
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  ASSERT_EQ(cuda.init(0), CUDA_SUCCESS);
  ASSERT_EQ(cuda.device_primary_ctx_retain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuda.ctx_set_current(context), CUDA_SUCCESS);
  ASSERT_EQ(cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  const CUmemPoolProps wanted = device_pool(0, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(cuda.mem_pool_create(&pool, &wanted), CUDA_SUCCESS);
  CUdeviceptr first = 0;
  CUdeviceptr second = 0;
  ASSERT_EQ(cuda.mem_alloc_from_pool_async(&first, 3 * mib + 5, pool, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuda.mem_alloc_from_pool_async(&second, 40 * mib, pool, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuda.memset_d8_async(first, 0x42, 3 * mib, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuda.memset_d8_async(second, 0x43, 40 * mib, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuda.stream_synchronize(stream), CUDA_SUCCESS);

  exported_pointers sent{};
  EXPECT_EQ(cuda.mem_pool_export_pointer(&sent.first, first), CUDA_ERROR_INVALID_VALUE)
      << "the pool was not exported yet";
  int descriptor = -1;
  ASSERT_EQ(cuda.mem_pool_export_to_shareable_handle(&descriptor, pool,
                                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_pool_export_pointer(&sent.first, first), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_pool_export_pointer(&sent.second, second), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_pool_export_pointer(&sent.second, second + 512), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_pool_export_pointer(nullptr, second), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(::write(ends[0], &sent, sizeof(sent)), static_cast<ssize_t>(sizeof(sent)));
  send_descriptor(ends[0], descriptor);
  ::close(descriptor);

  int failed = -1;
  EXPECT_EQ(::read(ends[0], &failed, sizeof(failed)), static_cast<ssize_t>(sizeof(failed)));
  EXPECT_EQ(failed, 0) << "step of the importer";
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(*reinterpret_cast<const unsigned char*>(first + 63), 0x77);
  EXPECT_EQ(*reinterpret_cast<const unsigned char*>(first + 64), 0x42);
  EXPECT_TRUE(machine->hazards().empty());
  ::close(ends[0]);
}

TEST_F(pool_exports, exports_are_validated) {
  int descriptor = -1;
  const auto as = [&](CUmemoryPool of, CUmemAllocationHandleType type,
                      unsigned long long flags = 0) {
    return cuda.mem_pool_export_to_shareable_handle(&descriptor, of, type, flags);
  };
  constexpr auto as_descriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemoryPool standard = nullptr;
  ASSERT_EQ(cuda.device_get_default_mem_pool(&standard, 0), CUDA_SUCCESS);
  EXPECT_EQ(as(standard, as_descriptor), CUDA_ERROR_INVALID_VALUE);
  CUmemoryPool of = make(device_pool(0, 0, as_descriptor));
  EXPECT_EQ(as(of, CU_MEM_HANDLE_TYPE_NONE), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(as(of, CU_MEM_HANDLE_TYPE_FABRIC), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(as(of, as_descriptor, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_pool_export_to_shareable_handle(nullptr, of, as_descriptor, 0),
            CUDA_ERROR_INVALID_VALUE);
  CUmemoryPool fabric = make(device_pool(0, 0, CU_MEM_HANDLE_TYPE_FABRIC));
  EXPECT_EQ(as(fabric, CU_MEM_HANDLE_TYPE_FABRIC), CUDA_ERROR_NOT_PERMITTED);
  CUmemPoolPtrExportData data{};
  EXPECT_EQ(cuda.mem_pool_export_pointer(&data, take(standard, 512, a)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_pool_export_pointer(&data, 0x1000), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(pool_exports, an_import_needs_a_place_for_its_answer_and_what_was_exported) {
  constexpr auto as_descriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemoryPool of = make(device_pool(0, 0, as_descriptor));
  int descriptor = -1;
  ASSERT_EQ(cuda.mem_pool_export_to_shareable_handle(&descriptor, of, as_descriptor, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_pool_import_from_shareable_handle(
                nullptr, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)),
                as_descriptor, 0),
            CUDA_ERROR_INVALID_VALUE);
  ::close(descriptor);
  CUmemPoolPtrExportData data{};
  ASSERT_EQ(cuda.mem_pool_export_pointer(&data, take(of, 512, a)), CUDA_SUCCESS);
  CUdeviceptr address = 0;
  CUmemoryPool own = import_own(of);
  EXPECT_EQ(cuda.mem_pool_import_pointer(&address, own, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_pool_import_pointer(nullptr, own, &data), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(pool_exports, an_import_without_a_descriptor_to_spare_is_refused) {
  CUmemoryPool of = make(device_pool(0, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  int descriptor = -1;
  ASSERT_EQ(cuda.mem_pool_export_to_shareable_handle(&descriptor, of,
                                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_SUCCESS);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(descriptor) + 1;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<int> taken;
  for (int each = ::dup(descriptor); each >= 0; each = ::dup(descriptor)) taken.push_back(each);
  CUmemoryPool own = nullptr;
  // Called outright: a sanitizer that looks at the fixture's type needs a descriptor for it.
  EXPECT_EQ(cuda.mem_pool_import_from_shareable_handle(
                &own, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)),
                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_ERROR_OPERATING_SYSTEM);
  for (const int each : taken) ::close(each);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ::close(descriptor);
}

/// In a process that closed its input. Returns 0, or the number of the first step that went wrong.
int export_as_number_zero() {
  ::close(0);
  if (::open("/dev/null", O_RDONLY) != 0) return 1;
  const auto machine = sim::machine::create(by_hand()).value();
  const driver::table& cuda = machine->driver();
  if (cuda.init(0) != CUDA_SUCCESS) return 2;
  const CUmemPoolProps wanted = device_pool(0, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  CUmemoryPool pool = nullptr;
  if (cuda.mem_pool_create(&pool, &wanted) != CUDA_SUCCESS) return 3;
  int descriptor = -1;
  const auto export_pool = [&] {
    return cuda.mem_pool_export_to_shareable_handle(&descriptor, pool,
                                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  };
  if (export_pool() != CUDA_SUCCESS || descriptor == 0) return 4;
  ::close(0);
  return export_pool() == CUDA_SUCCESS && descriptor == 0 ? 0 : 5;
}

TEST(pool_sharing, number_zero_is_a_descriptor_like_any_other) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(export_as_number_zero());
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(pool_exports, the_exporting_process_can_import_its_own_pool) {
  CUmemoryPool of = make(device_pool(0, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  const CUdeviceptr made = take(of, 4096, a);
  ASSERT_EQ(cuda.memset_d8_async(made, 9, 4096, a), CUDA_SUCCESS);
  wait_for(a);
  const CUmemoryPool own = import_own(of);
  EXPECT_NE(own, of);
  CUmemPoolPtrExportData data{};
  ASSERT_EQ(cuda.mem_pool_export_pointer(&data, made), CUDA_SUCCESS);
  CUdeviceptr alias = 0;
  EXPECT_EQ(cuda.mem_pool_import_pointer(&alias, of, &data), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuda.mem_pool_import_pointer(&alias, own, &data), CUDA_SUCCESS);
  EXPECT_NE(alias, made);
  EXPECT_EQ(*reinterpret_cast<const unsigned char*>(alias), 9);
  EXPECT_EQ(cuda.mem_pool_destroy(own), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_free_async(alias, a), CUDA_SUCCESS);
  ASSERT_EQ(cuda.mem_pool_import_pointer(&alias, own, &data), CUDA_SUCCESS);  // before it went
  wait_for(a);
  kernel(a, {reads(alias, 4096)});
  EXPECT_THAT(hazards(), IsEmpty());
  EXPECT_EQ(cuda.mem_free(alias), CUDA_SUCCESS);
  const std::uint64_t mapped_before = testing_support::mapped_bytes();
  EXPECT_EQ(cuda.mem_pool_destroy(own), CUDA_SUCCESS);
  EXPECT_LT(testing_support::mapped_bytes(), mapped_before - capacity())
      << "its addresses go with it";
}

// What is taken of the address space are whole pages all the same.
TEST_F(pool_exports, all_addresses_go_with_an_imported_pool_that_ends_within_a_page) {
  const std::uint64_t size = 1024 * mib + 100;
  const int forged = export_with_size(size);
  const std::uint64_t before = testing_support::mapped_bytes();
  CUmemoryPool imported = nullptr;
  ASSERT_EQ(try_import_descriptor(&imported, forged), CUDA_SUCCESS);
  ::close(forged);
  EXPECT_GE(testing_support::mapped_bytes(), before + size);
  EXPECT_EQ(cuda.mem_pool_destroy(imported), CUDA_SUCCESS);
  EXPECT_LT(testing_support::mapped_bytes(), before + size / 2);
}

TEST_F(pool_exports, a_pointer_is_imported_into_its_own_pool_and_lies_within_it) {
  const CUmemoryPool of = make(device_pool(0, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  const CUmemoryPool own = import_own(of);
  CUmemPoolPtrExportData data{};
  ASSERT_EQ(cuda.mem_pool_export_pointer(&data, take(of, 4096, a)), CUDA_SUCCESS);
  sim::pool_pointer made;
  ASSERT_TRUE(sim::pool_pointer::decode(data, made));
  CUdeviceptr alias = 0;
  const auto import = [&](const sim::pool_pointer& pointer) {
    CUmemPoolPtrExportData bytes = pointer.encode();
    return cuda.mem_pool_import_pointer(&alias, own, &bytes);
  };
  const std::uint64_t end = length_of(of);
  EXPECT_EQ(import({made.nonce ^ 1, made.offset, made.size}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(import({made.nonce, made.offset, 0}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(import({made.nonce, end - 512, 513}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(import({made.nonce, everything - 511, 1024}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(alias, 0U);
  ASSERT_EQ(import({made.nonce, 0, 1}), CUDA_SUCCESS);
  const CUdeviceptr first = alias;
  ASSERT_EQ(import({made.nonce, end - 512, 512}), CUDA_SUCCESS);
  EXPECT_EQ(alias - first, end - 512);
}

/// The exporter may use memory anew that the importer has not let go yet.
TEST_F(pool_exports, an_imported_allocation_is_in_the_way_of_others_that_overlap_it) {
  const CUmemoryPool of = make(device_pool(0, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  threshold(of, everything);
  const CUmemoryPool own = import_own(of);
  const auto try_import = [&](CUdeviceptr made) {
    CUmemPoolPtrExportData data{};
    EXPECT_EQ(cuda.mem_pool_export_pointer(&data, made), CUDA_SUCCESS);
    CUdeviceptr alias = 0;
    return cuda.mem_pool_import_pointer(&alias, own, &data);
  };
  const CUdeviceptr whole = take(of, 1024, a);
  const CUdeviceptr alias = import_pointer(own, whole);
  give(whole, a);
  const CUdeviceptr front = take(of, 512, a);
  const CUdeviceptr back = take(of, 512, a);
  ASSERT_EQ(front, whole);
  ASSERT_EQ(back, whole + 512);
  EXPECT_EQ(try_import(front), CUDA_ERROR_INVALID_VALUE) << "a part, with the same beginning";
  EXPECT_EQ(try_import(back), CUDA_ERROR_INVALID_VALUE) << "a part, with the same end";
  give(alias, a);
  wait_for(a);
  EXPECT_EQ(import_pointer(own, back), alias + 512);
  give(front, a);
  give(back, a);
  wait_for(a);
  ASSERT_EQ(take(of, 1024, a), whole);
  EXPECT_EQ(try_import(whole), CUDA_ERROR_INVALID_VALUE) << "more, with the same end";
}

/// How the exporter's own work ordered the two uses, nobody knows here.
TEST_F(pool_exports, an_allocation_imported_again_has_no_past_and_its_neighbour_has) {
  const CUmemoryPool of = make(device_pool(0, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  const CUmemoryPool own = import_own(of);
  const CUdeviceptr before = import_pointer(own, take(of, 512, a));
  const CUdeviceptr made = take(of, 4096, a);
  const CUdeviceptr alias = import_pointer(own, made);
  const CUdeviceptr behind = import_pointer(own, take(of, 512, a));
  ASSERT_EQ(alias, before + 512);
  ASSERT_EQ(behind, alias + 4096);
  kernel(a, {writes(before, 512), writes(alias, 4096), writes(behind, 512)});
  give(alias, a);
  ASSERT_EQ(import_pointer(own, made), alias);
  kernel(b, {writes(alias, 4096)});
  EXPECT_THAT(hazards(), IsEmpty());
  kernel(b, {writes(before, 512), writes(behind, 512)});
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::race, hazard_kind::race));
}

TEST_F(pool_exports, an_imported_pool_that_went_with_its_context_can_be_imported_again) {
  const CUmemoryPool of = make(device_pool(0, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  CUmemPoolPtrExportData data{};
  const CUdeviceptr made = take(of, 4096, a);
  const int descriptor = export_pool(of);
  ASSERT_EQ(cuda.mem_pool_export_pointer(&data, made), CUDA_SUCCESS);
  ASSERT_NE(import_descriptor(descriptor), nullptr);
  ASSERT_EQ(cuda.device_primary_ctx_reset(0), CUDA_SUCCESS);
  ASSERT_EQ(cuda.device_primary_ctx_retain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuda.ctx_set_current(context), CUDA_SUCCESS);
  const CUmemoryPool again = import_descriptor(descriptor);
  ::close(descriptor);
  CUdeviceptr alias = 0;
  ASSERT_EQ(cuda.mem_pool_import_pointer(&alias, again, &data), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_free(alias), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_pool_destroy(again), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_pool_destroy(again), CUDA_ERROR_INVALID_VALUE) << "it was imported once";
}

TEST_F(pool_exports, a_pool_for_which_there_are_no_addresses_is_not_imported) {
  const int forged = export_with_size(std::uint64_t{1} << 60);
  const std::size_t before = testing_support::open_descriptors();
  CUmemoryPool imported = nullptr;
  EXPECT_EQ(try_import_descriptor(&imported, forged), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(imported, nullptr);
  EXPECT_EQ(testing_support::open_descriptors(), before);
  ::close(forged);
}

void renew_checksum(CUmemPoolPtrExportData& data) {
  constexpr std::size_t checksum_at = 12;
  std::uint32_t hash = 0;
  std::memcpy(data.reserved + checksum_at, &hash, sizeof(hash));
  hash = 2166136261U;
  for (const unsigned char byte : data.reserved) hash = (hash ^ byte) * 16777619U;
  std::memcpy(data.reserved + checksum_at, &hash, sizeof(hash));
}

TEST(pool_pointer, of_another_kind_or_version_is_refused_whatever_its_checksum) {
  const CUmemPoolPtrExportData good =
      sim::pool_pointer{.nonce = 7, .offset = 512, .size = 1000}.encode();
  sim::pool_pointer decoded;
  ASSERT_TRUE(sim::pool_pointer::decode(good, decoded));
  EXPECT_EQ(decoded.nonce, 7U);
  EXPECT_EQ(decoded.offset, 512U);
  EXPECT_EQ(decoded.size, 1000U);
  const auto decodes_if_bent_at = [&](std::size_t at) {
    CUmemPoolPtrExportData bent = good;
    bent.reserved[at] = static_cast<unsigned char>(bent.reserved[at] ^ 1);
    EXPECT_FALSE(sim::pool_pointer::decode(bent, decoded)) << at;
    renew_checksum(bent);
    return sim::pool_pointer::decode(bent, decoded);
  };
  for (std::size_t at = 0; at < 12; ++at) EXPECT_FALSE(decodes_if_bent_at(at)) << at;
  for (std::size_t at = 16; at < 40; ++at) EXPECT_TRUE(decodes_if_bent_at(at)) << at;
  for (std::size_t at = 40; at < 64; ++at) EXPECT_FALSE(decodes_if_bent_at(at)) << at << ": unused";
}

TEST(pool_note, of_another_kind_version_or_length_is_refused) {
  const std::string good = sim::pool_note{.nonce = 7, .device = 3}.encode();
  sim::pool_note decoded;
  ASSERT_TRUE(sim::pool_note::decode(good, decoded));
  EXPECT_EQ(decoded.nonce, 7U);
  EXPECT_EQ(decoded.device, 3);
  const std::size_t magic_and_version = 12;
  for (std::size_t at = 0; at < magic_and_version; ++at) {
    std::string bent = good;
    bent[at] = static_cast<char>(bent[at] ^ 1);
    EXPECT_FALSE(sim::pool_note::decode(bent, decoded)) << at;
  }
  EXPECT_FALSE(sim::pool_note::decode(good + '\0', decoded));
  EXPECT_FALSE(sim::pool_note::decode(good.substr(0, good.size() - 1), decoded));
}

/// Work that was queued before the free still reaches the memory.
TEST_F(pool_exports, an_imported_pool_may_be_destroyed_before_its_last_free_happened) {
  CUmemoryPool of = make(device_pool(0, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  const CUdeviceptr made = take(of, 4096, a);
  wait_for(a);
  const CUmemoryPool own = import_own(of);
  const CUdeviceptr alias = import_pointer(own, made);
  ASSERT_EQ(cuda.memset_d8_async(alias, 7, 4096, a), CUDA_SUCCESS);
  give(alias, a);
  EXPECT_EQ(cuda.mem_pool_destroy(own), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_pool_destroy(own), CUDA_ERROR_INVALID_VALUE) << "its handle is gone";
  wait_for(b);
  EXPECT_EQ(cuda.mem_free_async(alias, a), CUDA_ERROR_INVALID_VALUE);
  wait_for(a);
  EXPECT_EQ(*reinterpret_cast<const unsigned char*>(made), 7);
  EXPECT_EQ(*reinterpret_cast<const unsigned char*>(made + 4095), 7);
  EXPECT_THAT(hazards(), IsEmpty());
  kernel(a, {reads(alias, 1)});
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::bad_access));
}

TEST_F(pool_exports, an_imported_allocation_freed_at_once_under_queued_work_is_reported) {
  CUmemoryPool of = make(device_pool(0, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  const CUdeviceptr made = take(of, 4096, a);
  wait_for(a);
  const CUdeviceptr alias = import_pointer(import_own(of), made);
  kernel(a, {reads(alias, 4096)});
  EXPECT_THAT(hazards(), IsEmpty());
  EXPECT_EQ(cuda.mem_free(alias), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::freed_in_use));
}

TEST_F(pool_exports, an_imported_pool_takes_nothing_along_that_lies_around_it) {
  const auto plain = [&] {
    CUdeviceptr taken = 0;
    EXPECT_EQ(cuda.mem_alloc(&taken, capacity() / 4), CUDA_SUCCESS);
    return taken;
  };
  CUmemoryPool of = make(device_pool(0, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  const CUdeviceptr before = plain();
  const CUmemoryPool own = import_own(of);
  const CUdeviceptr after = plain();  // the system hands addresses out in one direction
  ASSERT_EQ(cuda.mem_pool_destroy(own), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_get_address_range(nullptr, nullptr, before), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_get_address_range(nullptr, nullptr, after), CUDA_SUCCESS);
}

class pool_exports_of_two : public pool_exports {
 protected:
  pool_exports_of_two() : pool_exports{by_hand(2)} {}
};

TEST_F(pool_exports_of_two, an_imported_pool_goes_with_its_own_device_only) {
  CUcontext other = nullptr;
  ASSERT_EQ(cuda.device_primary_ctx_retain(&other, 1), CUDA_SUCCESS);
  const CUmemoryPool of = make(device_pool(0, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  const CUdeviceptr made = take(of, 4096, a);
  const CUmemoryPool own = import_own(of);
  CUmemPoolPtrExportData data{};
  ASSERT_EQ(cuda.mem_pool_export_pointer(&data, made), CUDA_SUCCESS);
  CUdeviceptr alias = 0;
  ASSERT_EQ(cuda.device_primary_ctx_reset(1), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_pool_import_pointer(&alias, own, &data), CUDA_SUCCESS);
  kernel(a, {reads(alias, 4096)});
  EXPECT_THAT(hazards(), IsEmpty());
  ASSERT_EQ(cuda.device_primary_ctx_retain(&other, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuda.ctx_set_current(other), CUDA_SUCCESS);
  ASSERT_EQ(cuda.device_primary_ctx_reset(0), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_pool_import_pointer(&alias, own, &data), CUDA_ERROR_INVALID_VALUE);
}

/// A stream of another device may have work for the memory that is left: it finds nothing there.
TEST_F(pool_exports_of_two, what_an_imported_pool_had_freed_goes_with_its_device_too) {
  for (const bool destroyed : {false, true}) {
    SCOPED_TRACE(destroyed);
    CUcontext contexts[2] = {};
    for (const int device : {0, 1}) {
      ASSERT_EQ(cuda.device_primary_ctx_retain(&contexts[device], device), CUDA_SUCCESS);
    }
    ASSERT_EQ(cuda.ctx_set_current(contexts[0]), CUDA_SUCCESS);
    const CUmemoryPool of = make(device_pool(0, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    const CUstream here = stream();
    const CUdeviceptr made = take(of, 4096, here);
    wait_for(here);
    const CUmemoryPool own = import_own(of);
    const CUdeviceptr alias = import_pointer(own, made);
    CUmemAccessDesc access{};
    access.location = {CU_MEM_LOCATION_TYPE_DEVICE, 1};
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    ASSERT_EQ(cuda.mem_pool_set_access(own, &access, 1), CUDA_SUCCESS);
    ASSERT_EQ(cuda.ctx_set_current(contexts[1]), CUDA_SUCCESS);
    const CUstream there = stream();
    ASSERT_EQ(cuda.memset_d8_async(alias, 7, 4096, there), CUDA_SUCCESS);
    give(alias, there);
    if (destroyed) {
      ASSERT_EQ(cuda.mem_pool_destroy(own), CUDA_SUCCESS);
    }
    ASSERT_EQ(cuda.device_primary_ctx_reset(0), CUDA_SUCCESS);
    EXPECT_EQ(cuda.stream_synchronize(there), CUDA_ERROR_ILLEGAL_ADDRESS);
    ASSERT_EQ(cuda.device_primary_ctx_reset(1), CUDA_SUCCESS);
  }
}

TEST_F(pool_exports_of_two, what_an_imported_pool_had_freed_stays_when_another_device_is_reset) {
  CUcontext other = nullptr;
  ASSERT_EQ(cuda.device_primary_ctx_retain(&other, 1), CUDA_SUCCESS);
  const CUmemoryPool of = make(device_pool(0, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  const CUdeviceptr made = take(of, 4096, a);
  wait_for(a);
  const CUmemoryPool own = import_own(of);
  const CUdeviceptr alias = import_pointer(own, made);
  ASSERT_EQ(cuda.memset_d8_async(alias, 7, 4096, a), CUDA_SUCCESS);
  give(alias, a);
  ASSERT_EQ(cuda.mem_pool_destroy(own), CUDA_SUCCESS);
  ASSERT_EQ(cuda.device_primary_ctx_reset(1), CUDA_SUCCESS);
  wait_for(a);
  EXPECT_EQ(*reinterpret_cast<const unsigned char*>(made + 4095), 7);
}

TEST_F(pool_exports_of_two, access_to_an_imported_pool_that_is_revoked_in_use_is_reported) {
  CUcontext other = nullptr;
  ASSERT_EQ(cuda.device_primary_ctx_retain(&other, 1), CUDA_SUCCESS);
  const CUmemoryPool of = make(device_pool(0, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  const CUdeviceptr made = take(of, 4096, a);
  wait_for(a);
  const CUmemoryPool own = import_own(of);
  const CUdeviceptr alias = import_pointer(own, made);
  const auto set_access = [&](CUmemAccess_flags flags) {
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 1}, flags};
    EXPECT_EQ(cuda.mem_pool_set_access(own, &access, 1), CUDA_SUCCESS);
  };
  set_access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  ASSERT_EQ(cuda.ctx_set_current(other), CUDA_SUCCESS);
  const CUstream there = stream();
  kernel(there, {writes(alias, 64)});
  wait_for(there);
  set_access(CU_MEM_ACCESS_FLAGS_PROT_NONE);
  EXPECT_THAT(hazards(), IsEmpty());
  set_access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  kernel(there, {writes(alias, 64)});
  set_access(CU_MEM_ACCESS_FLAGS_PROT_NONE);
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::freed_in_use));
}

}  // namespace
}  // namespace weir::sim_tests
