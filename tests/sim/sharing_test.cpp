// SPDX-License-Identifier: Apache-2.0
// Sharing between two real processes: memory handles and events.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>

#include "memory_fixture.hpp"
#include "support/sanitizers.hpp"
#include "support/this_process.hpp"

namespace weir::sim_tests { namespace {

using ::testing::IsEmpty;

/// One end of the talk between two processes.
class line {
 public:
  explicit line(int descriptor) : descriptor_{descriptor} {}
  ~line() { ::close(descriptor_); }
  line(const line&) = delete;
  line& operator=(const line&) = delete;

  template <class T>
  void say(const T& what) {
    if (::write(descriptor_, &what, sizeof(what)) != static_cast<ssize_t>(sizeof(what))) hang_up();
  }
  template <class T>
  T hear() {
    T what{};
    if (::read(descriptor_, &what, sizeof(what)) != static_cast<ssize_t>(sizeof(what))) hang_up();
    return what;
  }

 private:
  static void hang_up() { ADD_FAILURE() << "the other process is gone"; }
  int descriptor_;
};

/// A machine of one's own, as each of the processes has.
struct side {
  std::shared_ptr<sim::machine> machine;
  const table& cuda = machine->driver();
  CUcontext context = nullptr;

  explicit side(std::size_t devices = 1)
      : machine{sim::machine::create(small_machine(64 * mib, devices)).value()} {
    EXPECT_EQ(cuda.init(0), CUDA_SUCCESS);
    EXPECT_EQ(cuda.device_primary_ctx_retain(&context, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuda.ctx_set_current(context), CUDA_SUCCESS);
  }
  CUdeviceptr plain(std::size_t size) {
    CUdeviceptr made = 0;
    EXPECT_EQ(cuda.mem_alloc(&made, size), CUDA_SUCCESS);
    return made;
  }
  CUipcMemHandle share(CUdeviceptr address) {
    CUipcMemHandle handle{};
    EXPECT_EQ(cuda.ipc_get_mem_handle(&handle, address), CUDA_SUCCESS);
    return handle;
  }
  CUresult open(CUdeviceptr* address, const CUipcMemHandle& handle) {
    return cuda.ipc_open_mem_handle(address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  }
};

/// Runs `theirs` in a second process and `ours` in this one. What fails there fails the test here.
void in_two_processes(const std::function<void(line&)>& ours,
                      const std::function<void(line&)>& theirs) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::close(ends[0]);
    {
      line to_parent{ends[1]};
      theirs(to_parent);
    }
    std::fflush(nullptr);
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  ::close(ends[1]);
  {
    line to_child{ends[0]};
    ours(to_child);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the other process failed";
}

constexpr bool ready = true;

/// Where the parts of a handle are: of memory and of events, and of memory alone.
constexpr std::size_t descriptor_at = 16;  // of the process that made it
constexpr std::size_t device_at = 20;
constexpr std::size_t nonce_at = 24;
constexpr std::size_t offset_at = 32;
constexpr std::size_t size_at = 40;

template <class Handle>
int descriptor_in(const Handle& handle) {
  int descriptor = -1;
  std::memcpy(&descriptor, handle.reserved + descriptor_at, sizeof(descriptor));
  return descriptor;
}
template <class Handle, class Part>
Handle with(Handle handle, std::size_t where, Part part) {
  std::memcpy(handle.reserved + where, &part, sizeof(part));
  return handle;
}

TEST(shared_memory, is_seen_on_both_sides) {
  in_two_processes(
      [](line& other) {
        side here;
        const CUdeviceptr address = here.plain(4 * mib);
        std::memset(at<void>(address), 1, 4 * mib);
        other.say(here.share(address));
        EXPECT_EQ(other.hear<int>(), 0x01010101);
        EXPECT_EQ(*at<int>(address + 4 * mib - 4), 42);
        other.say(ready);
      },
      [](line& other) {
        side here;
        CUdeviceptr address = 0;
        ASSERT_EQ(here.open(&address, other.hear<CUipcMemHandle>()), CUDA_SUCCESS);
        *at<int>(address + 4 * mib - 4) = 42;
        other.say(*at<int>(address));
        EXPECT_EQ(here.machine->used(device_id{0}).count(), 0U);  // the other side pays
        std::size_t size = 0;
        EXPECT_EQ(here.cuda.mem_get_address_range(nullptr, &size, address), CUDA_SUCCESS);
        EXPECT_EQ(size, 4 * mib);
        EXPECT_EQ(here.cuda.mem_free(address), CUDA_ERROR_INVALID_VALUE);
        EXPECT_EQ(here.cuda.memset_d8(address, 0, 64), CUDA_SUCCESS);
        EXPECT_THAT(here.machine->hazards(), IsEmpty());
        other.hear<bool>();
      });
}

TEST(shared_memory, is_opened_and_closed_as_often) {
  in_two_processes(
      [](line& other) {
        side here;
        const CUdeviceptr address = here.plain(4 * mib);
        other.say(here.share(address));
        other.say(here.share(address + 512));
        other.hear<bool>();
      },
      [](line& other) {
        side here;
        const auto handle = other.hear<CUipcMemHandle>();
        const auto inside = other.hear<CUipcMemHandle>();
        CUdeviceptr first = 0;
        CUdeviceptr second = 0;
        ASSERT_EQ(here.open(&first, handle), CUDA_SUCCESS);
        ASSERT_EQ(here.open(&second, inside), CUDA_SUCCESS);
        EXPECT_EQ(first, second);  // a handle means the whole allocation
        EXPECT_EQ(here.cuda.ipc_close_mem_handle(first + 512), CUDA_ERROR_INVALID_VALUE);
        EXPECT_EQ(here.cuda.ipc_close_mem_handle(first), CUDA_SUCCESS);
        EXPECT_TRUE(readable(first));
        EXPECT_EQ(here.cuda.ipc_close_mem_handle(first), CUDA_SUCCESS);
        EXPECT_FALSE(readable(first));
        EXPECT_EQ(here.cuda.ipc_close_mem_handle(first), CUDA_ERROR_INVALID_VALUE);
        other.say(ready);
      });
}

TEST(shared_memory, small_allocations_keep_their_exact_range) {
  in_two_processes(
      [](line& other) {
        side here;
        const CUdeviceptr first = here.plain(1000);
        const CUdeviceptr second = here.plain(2000);
        *at<int>(first) = 1;
        *at<int>(second) = 2;
        other.say(here.share(second));
        other.say(here.share(first));
        EXPECT_EQ(*at<int>(first), 1);  // sharing has not disturbed what was there
        other.hear<bool>();
      },
      [](line& other) {
        side here;
        CUdeviceptr second = 0;
        CUdeviceptr first = 0;
        ASSERT_EQ(here.open(&second, other.hear<CUipcMemHandle>()), CUDA_SUCCESS);
        ASSERT_EQ(here.open(&first, other.hear<CUipcMemHandle>()), CUDA_SUCCESS);
        EXPECT_EQ(*at<int>(first), 1);
        EXPECT_EQ(*at<int>(second), 2);
        EXPECT_EQ(second - first, 1024U);
        std::size_t size = 0;
        EXPECT_EQ(here.cuda.mem_get_address_range(nullptr, &size, second), CUDA_SUCCESS);
        EXPECT_EQ(size, 2000U);
        EXPECT_EQ(here.cuda.ipc_close_mem_handle(first), CUDA_SUCCESS);
        EXPECT_EQ(*at<int>(second), 2);
        other.say(ready);
      });
}

TEST(shared_memory, outlives_the_exporters_free) {
  in_two_processes(
      [](line& other) {
        side here;
        const CUdeviceptr address = here.plain(4 * mib);
        *at<int>(address) = 42;
        const auto handle = here.share(address);
        other.say(handle);
        other.hear<bool>();
        EXPECT_EQ(here.cuda.mem_free(address), CUDA_SUCCESS);
        here.plain(4 * mib);
        other.say(ready);
        other.hear<bool>();
      },
      [](line& other) {
        side here;
        const auto handle = other.hear<CUipcMemHandle>();
        CUdeviceptr address = 0;
        ASSERT_EQ(here.open(&address, handle), CUDA_SUCCESS);
        other.say(ready);
        other.hear<bool>();
        EXPECT_EQ(*at<int>(address), 42);
        EXPECT_EQ(here.cuda.ipc_close_mem_handle(address), CUDA_SUCCESS);
        EXPECT_EQ(here.open(&address, handle), CUDA_ERROR_INVALID_VALUE);
        other.say(ready);
      });
}

TEST(shared_memory, hostile_handles_are_refused) {
  in_two_processes(
      [](line& other) {
        side here;
        other.say(here.share(here.plain(4 * mib)));
        other.hear<bool>();
      },
      [](line& other) {
        side here;
        const auto good = other.hear<CUipcMemHandle>();
        CUdeviceptr address = 0;
        EXPECT_EQ(here.cuda.ipc_open_mem_handle(&address, good, 0), CUDA_ERROR_INVALID_VALUE);
        EXPECT_EQ(here.cuda.ipc_open_mem_handle(nullptr, good, 1), CUDA_ERROR_INVALID_VALUE);
        CUipcMemHandle bad{};
        EXPECT_EQ(here.open(&address, bad), CUDA_ERROR_INVALID_VALUE);
        std::memset(&bad, 0x5a, sizeof(bad));
        EXPECT_EQ(here.open(&address, bad), CUDA_ERROR_INVALID_VALUE);
        const std::size_t before = testing_support::open_descriptors();
        // Each byte of a good one, bent: refused, or it did not matter; never anything worse.
        for (std::size_t i = 0; i < sizeof(good); ++i) {
          for (const int bend : {0x01, 0x80, 0xff}) {
            bad = good;
            bad.reserved[i] = static_cast<char>(bad.reserved[i] ^ bend);
            if (here.open(&address, bad) == CUDA_SUCCESS) {
              EXPECT_TRUE(readable(address));
              EXPECT_EQ(here.cuda.ipc_close_mem_handle(address), CUDA_SUCCESS);
            }
            EXPECT_EQ(testing_support::open_descriptors(), before)
                << "byte " << i << ", bend " << bend;
          }
        }
        EXPECT_EQ(here.open(&address, good), CUDA_SUCCESS);
        other.say(ready);
      });
}

TEST(shared_memory, says_what_is_wrong_with_a_handle) {
  in_two_processes(
      [](line& other) {
        side here;
        other.say(here.share(here.plain(4 * mib)));
        other.hear<bool>();
      },
      [](line& other) {
        side here;
        const auto good = other.hear<CUipcMemHandle>();
        const std::uint64_t mapped_before = testing_support::mapped_bytes();
        CUdeviceptr address = 0;
        constexpr std::size_t process_at = 12;  // behind what the handle is, and of which version
        for (std::size_t i = 0; i < process_at; ++i) {
          const auto bent = static_cast<char>(good.reserved[i] ^ 1);
          EXPECT_EQ(here.open(&address, with(good, i, bent)), CUDA_ERROR_INVALID_VALUE) << i;
        }
        for (const int none : {-1, 1}) {
          EXPECT_EQ(here.open(&address, with(good, device_at, none)), CUDA_ERROR_INVALID_DEVICE);
        }
        EXPECT_EQ(here.open(&address, with(good, descriptor_at, -1)), CUDA_ERROR_INVALID_VALUE);
        const auto bent = static_cast<char>(good.reserved[nonce_at] ^ 1);
        EXPECT_EQ(here.open(&address, with(good, nonce_at, bent)), CUDA_ERROR_INVALID_VALUE);
        const auto refuses_what_lies_outside = [&] {
          for (const std::uint64_t size : {std::uint64_t{0}, 4 * mib + 1, ~std::uint64_t{0}}) {
            EXPECT_EQ(here.open(&address, with(good, size_at, size)), CUDA_ERROR_INVALID_VALUE)
                << size;
          }
          for (const std::uint64_t offset : {std::uint64_t{1}, 4 * mib, 4 * mib + 1}) {
            EXPECT_EQ(here.open(&address, with(good, offset_at, offset)), CUDA_ERROR_INVALID_VALUE)
                << offset;
          }
        };
        refuses_what_lies_outside();
        EXPECT_LT(testing_support::mapped_bytes(), mapped_before + 2 * mib);
        EXPECT_EQ(address, 0U);
        ASSERT_EQ(here.open(&address, good), CUDA_SUCCESS);
        const CUdeviceptr opened = address;
        refuses_what_lies_outside();
        EXPECT_EQ(address, opened);
        EXPECT_EQ(here.cuda.ipc_close_mem_handle(opened), CUDA_SUCCESS);
        EXPECT_FALSE(readable(opened)) << "nothing else has opened it";
        other.say(ready);
      });
}

TEST(shared_memory, needs_not_be_more_than_a_byte) {
  in_two_processes(
      [](line& other) {
        side here;
        const CUdeviceptr address = here.plain(1);
        *at<char>(address) = 42;
        other.say(here.share(address));
        other.hear<bool>();
      },
      [](line& other) {
        side here;
        CUdeviceptr address = 0;
        ASSERT_EQ(here.open(&address, other.hear<CUipcMemHandle>()), CUDA_SUCCESS);
        EXPECT_EQ(*at<char>(address), 42);
        other.say(ready);
      });
}

TEST(shared_memory, is_not_opened_where_the_system_has_nothing_left) {
  if (testing_support::is_sanitized) GTEST_SKIP() << "a sanitizer needs descriptors and addresses";
  in_two_processes(
      [](line& other) {
        side here;
        other.say(here.share(here.plain(2 * mib)));
        other.hear<bool>();
      },
      [](line& other) {
        side here;
        const auto handle = other.hear<CUipcMemHandle>();
        const std::size_t before = testing_support::open_descriptors();
        CUdeviceptr address = 0;
        const auto answer_under = [&](const system_limit&) { return here.open(&address, handle); };
        EXPECT_EQ(answer_under(system_limit::no_further_descriptor()), CUDA_ERROR_INVALID_VALUE);
        // Enough for the memory, but not for a place of its own choice.
        EXPECT_EQ(answer_under(system_limit::further_addresses(3 * mib)), CUDA_ERROR_INVALID_VALUE);
        EXPECT_EQ(address, 0U);
        EXPECT_EQ(testing_support::open_descriptors(), before);
        EXPECT_EQ(here.open(&address, handle), CUDA_SUCCESS);
        EXPECT_TRUE(readable(address));
        other.say(ready);
      });
}

TEST(shared_memory, of_one_chunk_is_opened_in_any_order_and_never_twice_in_part) {
  in_two_processes(
      [](line& other) {
        side here;
        for (const std::size_t size : {1000U, 2000U, 3000U})
          other.say(here.share(here.plain(size)));
        other.hear<bool>();
      },
      [](line& other) {
        side here;
        std::array<CUipcMemHandle, 3> handles{};
        for (auto& each : handles) each = other.hear<CUipcMemHandle>();
        std::array<CUdeviceptr, 3> opened{};
        for (const std::size_t i : {1U, 0U, 2U}) {
          ASSERT_EQ(here.open(&opened[i], handles[i]), CUDA_SUCCESS) << i;
        }
        EXPECT_EQ(here.cuda.ipc_close_mem_handle(opened[1]), CUDA_SUCCESS);
        const auto try_open = [&](std::uint64_t offset, std::uint64_t size) {
          CUdeviceptr address = 0;
          return here.open(&address, with(with(handles[1], offset_at, offset), size_at, size));
        };
        EXPECT_EQ(try_open(999, 1), CUDA_ERROR_INVALID_VALUE);
        EXPECT_EQ(try_open(1024, 2049), CUDA_ERROR_INVALID_VALUE);
        EXPECT_EQ(try_open(1000, 2072), CUDA_SUCCESS) << "all that lies between the two others";
        for (const std::size_t i : {0U, 2U}) {
          EXPECT_TRUE(readable(opened[i]));
          EXPECT_EQ(here.cuda.ipc_close_mem_handle(opened[i]), CUDA_SUCCESS);
        }
        other.say(ready);
      });
}

/// Another device's memory, opened for a second one of three: both may use it, and it is closed
/// with the context it was opened in.
TEST(shared_memory, is_for_the_device_it_lies_on_and_the_one_it_was_opened_for) {
  in_two_processes(
      [](line& other) {
        side here;
        other.say(here.share(here.plain(4 * mib)));
        other.hear<bool>();
      },
      [](line& other) {
        side here{3};
        const auto enter = [&](int device) {
          CUcontext context = nullptr;
          EXPECT_EQ(here.cuda.device_primary_ctx_retain(&context, device), CUDA_SUCCESS);
          EXPECT_EQ(here.cuda.ctx_set_current(context), CUDA_SUCCESS);
        };
        enter(1);
        CUdeviceptr address = 0;
        ASSERT_EQ(here.open(&address, other.hear<CUipcMemHandle>()), CUDA_SUCCESS);
        const auto use_on = [&](int device) {
          enter(device);
          CUstream stream = nullptr;
          EXPECT_EQ(here.cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
          EXPECT_TRUE(here.machine->launch(stream, "use", {writes(address, 4 * mib)}));
          return here.cuda.stream_synchronize(stream);
        };
        EXPECT_EQ(use_on(0), CUDA_SUCCESS);
        EXPECT_EQ(use_on(1), CUDA_SUCCESS);
        EXPECT_THAT(here.machine->hazards(), IsEmpty());
        EXPECT_EQ(use_on(2), CUDA_ERROR_ILLEGAL_ADDRESS);
        int lies_on = -1;
        EXPECT_EQ(
            here.cuda.pointer_get_attribute(&lies_on, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address),
            CUDA_SUCCESS);
        EXPECT_EQ(lies_on, 0);
        ASSERT_EQ(here.cuda.device_primary_ctx_reset(0), CUDA_SUCCESS);
        EXPECT_TRUE(readable(address));
        ASSERT_EQ(here.cuda.device_primary_ctx_reset(1), CUDA_SUCCESS);
        EXPECT_FALSE(readable(address));
        other.say(ready);
      });
}

TEST(shared_memory, needs_a_note_of_the_right_length) {
  in_two_processes(
      [](line& other) {
        side here;
        constexpr std::size_t size = 4 * mib;
        const auto handle = here.share(here.plain(size));
        const auto set_length = [&](std::uint32_t length) {
          constexpr std::size_t length_at = size + 12;  // the note stands behind the memory
          ASSERT_EQ(::pwrite(descriptor_in(handle), &length, sizeof(length), length_at),
                    static_cast<ssize_t>(sizeof(length)));
        };
        for (const std::uint32_t wrong : {0U, 15U, 17U}) {
          set_length(wrong);
          other.say(handle);
          EXPECT_EQ(other.hear<CUresult>(), CUDA_ERROR_INVALID_VALUE) << wrong;
        }
        set_length(16);
        other.say(handle);
        EXPECT_EQ(other.hear<CUresult>(), CUDA_SUCCESS);
      },
      [](line& other) {
        side here;
        for (int i = 0; i < 4; ++i) {
          CUdeviceptr address = 0;
          other.say(here.open(&address, other.hear<CUipcMemHandle>()));
        }
      });
}

TEST(shared_memory, is_plain_memory_of_another_process) {
  side here;
  CUdeviceptr address = 0;
  const CUdeviceptr own = here.plain(4 * mib);
  EXPECT_EQ(here.open(&address, here.share(own)), CUDA_ERROR_INVALID_CONTEXT);
  CUipcMemHandle handle{};
  EXPECT_EQ(here.cuda.ipc_get_mem_handle(nullptr, own), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(here.cuda.ipc_get_mem_handle(&handle, nowhere), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(here.cuda.mem_alloc_managed(&address, 64, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(here.cuda.ipc_get_mem_handle(&handle, address), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(here.cuda.mem_alloc_async(&address, 64, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(here.cuda.ipc_get_mem_handle(&handle, address), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(here.cuda.ipc_close_mem_handle(own), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(here.cuda.ipc_close_mem_handle(0), CUDA_ERROR_INVALID_VALUE);
}

TEST(shared_memory, is_opened_in_a_context_of_a_device_that_works) {
  side here;
  CUdeviceptr address = 0;
  const CUipcMemHandle nothing{};
  ASSERT_EQ(here.cuda.ctx_set_current(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(here.open(&address, nothing), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(here.cuda.ipc_open_mem_handle(&address, nothing, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(here.cuda.ctx_set_current(here.context), CUDA_SUCCESS);
  here.machine->lose_device(device_id{0});
  EXPECT_EQ(here.open(&address, nothing), CUDA_ERROR_DEVICE_UNAVAILABLE);
  EXPECT_EQ(address, 0U);
}

TEST(shared_memory, handles_of_virtual_memory_travel_as_descriptors) {
  in_two_processes(
      [](line& other) {
        side here;
        CUmemAllocationProp wanted{};
        wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
        CUmemGenericAllocationHandle handle = 0;
        ASSERT_EQ(here.cuda.mem_create(&handle, unit, &wanted, 0), CUDA_SUCCESS);
        int descriptor = -1;
        ASSERT_EQ(here.cuda.mem_export_to_shareable_handle(
                      &descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                  CUDA_SUCCESS);
        other.say(::getpid());
        other.say(descriptor);
        other.hear<bool>();
        CUdeviceptr range = 0;
        ASSERT_EQ(here.cuda.mem_address_reserve(&range, unit, 0, 0, 0), CUDA_SUCCESS);
        ASSERT_EQ(here.cuda.mem_map(range, unit, 0, handle, 0), CUDA_SUCCESS);
        const CUmemAccessDesc access{wanted.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        ASSERT_EQ(here.cuda.mem_set_access(range, unit, &access, 1), CUDA_SUCCESS);
        EXPECT_EQ(*at<int>(range), 42);
        ::close(descriptor);
      },
      [](line& other) {
        side here;
        const auto process = other.hear<pid_t>();
        const auto number = other.hear<int>();
        const auto path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(number);
        const int descriptor = ::open(path.c_str(), O_RDWR);
        ASSERT_GE(descriptor, 0);
        CUmemGenericAllocationHandle handle = 0;
        ASSERT_EQ(here.cuda.mem_import_from_shareable_handle(
                      &handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)),
                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                  CUDA_SUCCESS);
        ::close(descriptor);
        CUdeviceptr range = 0;
        ASSERT_EQ(here.cuda.mem_address_reserve(&range, unit, 0, 0, 0), CUDA_SUCCESS);
        ASSERT_EQ(here.cuda.mem_map(range, unit, 0, handle, 0), CUDA_SUCCESS);
        const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                     CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        ASSERT_EQ(here.cuda.mem_set_access(range, unit, &access, 1), CUDA_SUCCESS);
        EXPECT_EQ(here.machine->used(device_id{0}).count(), 0U);
        *at<int>(range) = 42;
        other.say(ready);
      });
}

// --- Events --------------------------------------------------------------------------------------

TEST(shared_events, are_waited_for_across_processes) {
  in_two_processes(
      [](line& other) {
        side here;
        CUstream stream = nullptr;
        CUevent event = nullptr;
        ASSERT_EQ(here.cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
        ASSERT_EQ(here.cuda.event_create(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING),
                  CUDA_SUCCESS);
        CUipcEventHandle handle{};
        ASSERT_EQ(here.cuda.ipc_get_event_handle(&handle, event), CUDA_SUCCESS);
        here.machine->hold(stream);
        ASSERT_EQ(here.cuda.event_record(event, stream), CUDA_SUCCESS);
        other.say(handle);
        EXPECT_EQ(other.hear<CUresult>(), CUDA_ERROR_NOT_READY);
        here.machine->release(stream);  // and no call after it: the device goes on by itself
        EXPECT_EQ(other.hear<CUresult>(), CUDA_SUCCESS);
      },
      [](line& other) {
        side here;
        CUevent event = nullptr;
        ASSERT_EQ(here.cuda.ipc_open_event_handle(&event, other.hear<CUipcEventHandle>()),
                  CUDA_SUCCESS);
        other.say(here.cuda.event_query(event));
        other.say(here.cuda.event_synchronize(event));
        EXPECT_EQ(here.cuda.event_query(event), CUDA_SUCCESS);
        EXPECT_EQ(here.cuda.event_destroy(event), CUDA_SUCCESS);
      });
}

TEST(shared_events, streams_wait_for_them) {
  in_two_processes(
      [](line& other) {
        side here;
        CUstream stream = nullptr;
        CUevent event = nullptr;
        ASSERT_EQ(here.cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
        ASSERT_EQ(here.cuda.event_create(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING),
                  CUDA_SUCCESS);
        CUipcEventHandle handle{};
        ASSERT_EQ(here.cuda.ipc_get_event_handle(&handle, event), CUDA_SUCCESS);
        here.machine->hold(stream);
        ASSERT_EQ(here.cuda.event_record(event, stream), CUDA_SUCCESS);
        other.say(handle);
        EXPECT_EQ(other.hear<CUresult>(), CUDA_ERROR_NOT_READY);
        here.machine->release(stream);
        EXPECT_EQ(other.hear<CUresult>(), CUDA_SUCCESS);
      },
      [](line& other) {
        side here;
        CUevent event = nullptr;
        CUstream stream = nullptr;
        ASSERT_EQ(here.cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
        ASSERT_EQ(here.cuda.ipc_open_event_handle(&event, other.hear<CUipcEventHandle>()),
                  CUDA_SUCCESS);
        ASSERT_EQ(here.cuda.stream_wait_event(stream, event, 0), CUDA_SUCCESS);
        other.say(here.cuda.stream_query(stream));
        other.say(here.cuda.stream_synchronize(stream));
      });
}

TEST(shared_events, stay_complete_when_an_earlier_record_is_late) {
  side here;
  CUstream late = nullptr;
  CUstream early = nullptr;
  CUevent event = nullptr;
  ASSERT_EQ(here.cuda.stream_create(&late, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(here.cuda.stream_create(&early, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(here.cuda.event_create(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING),
            CUDA_SUCCESS);
  here.machine->hold(late);
  ASSERT_EQ(here.cuda.event_record(event, late), CUDA_SUCCESS);
  ASSERT_EQ(here.cuda.event_record(event, early), CUDA_SUCCESS);
  EXPECT_EQ(here.cuda.event_query(event), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(here.cuda.stream_synchronize(early), CUDA_SUCCESS);
  EXPECT_EQ(here.cuda.event_query(event), CUDA_SUCCESS);
  here.machine->release(late);
  ASSERT_EQ(here.cuda.stream_synchronize(late), CUDA_SUCCESS);
  EXPECT_EQ(here.cuda.event_query(event), CUDA_SUCCESS);
}

TEST(shared_events, order_the_streams_of_their_own_process) {
  side here;
  CUstream first = nullptr;
  CUstream second = nullptr;
  CUevent event = nullptr;
  ASSERT_EQ(here.cuda.stream_create(&first, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(here.cuda.stream_create(&second, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(here.cuda.event_create(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING),
            CUDA_SUCCESS);
  const CUdeviceptr address = here.plain(4096);
  ASSERT_TRUE(here.machine->launch(first, "before", {writes(address, 4096)}));
  ASSERT_EQ(here.cuda.event_record(event, first), CUDA_SUCCESS);
  ASSERT_EQ(here.cuda.stream_wait_event(second, event, 0), CUDA_SUCCESS);
  ASSERT_TRUE(here.machine->launch(second, "after", {writes(address, 4096)}));
  EXPECT_THAT(here.machine->hazards(), IsEmpty());
}

TEST(shared_events, wrong_ones_are_refused) {
  side here;
  CUevent shared = nullptr;
  CUevent plain = nullptr;
  ASSERT_EQ(here.cuda.event_create(&shared, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING),
            CUDA_SUCCESS);
  ASSERT_EQ(here.cuda.event_create(&plain, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  CUipcEventHandle handle{};
  EXPECT_EQ(here.cuda.ipc_get_event_handle(&handle, plain), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(here.cuda.ipc_get_event_handle(&handle, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(here.cuda.ipc_get_event_handle(nullptr, shared), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(here.cuda.ipc_get_event_handle(&handle, shared), CUDA_SUCCESS);
  CUevent opened = nullptr;
  EXPECT_EQ(here.cuda.ipc_open_event_handle(&opened, handle), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(here.cuda.ipc_open_event_handle(nullptr, handle), CUDA_ERROR_INVALID_VALUE);
  std::memset(&handle, 0x5a, sizeof(handle));
  EXPECT_EQ(here.cuda.ipc_open_event_handle(&opened, handle), CUDA_ERROR_MAP_FAILED);
  ASSERT_EQ(here.cuda.ctx_set_current(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(here.cuda.ipc_open_event_handle(&opened, handle), CUDA_ERROR_INVALID_CONTEXT);
  ASSERT_EQ(here.cuda.ctx_set_current(here.context), CUDA_SUCCESS);
  here.machine->lose_device(device_id{0});
  EXPECT_EQ(here.cuda.ipc_open_event_handle(&opened, handle), CUDA_ERROR_DEVICE_UNAVAILABLE);
  EXPECT_EQ(opened, nullptr);
}

TEST(shared_events, keep_no_time_and_are_of_the_device_that_opened_them) {
  in_two_processes(
      [](line& other) {
        side here;
        CUevent event = nullptr;
        ASSERT_EQ(here.cuda.event_create(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING),
                  CUDA_SUCCESS);
        CUipcEventHandle handle{};
        ASSERT_EQ(here.cuda.ipc_get_event_handle(&handle, event), CUDA_SUCCESS);
        other.say(handle);
        other.hear<bool>();
      },
      [](line& other) {
        side here{2};
        CUstream of_first = nullptr;
        ASSERT_EQ(here.cuda.stream_create(&of_first, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
        CUcontext second = nullptr;
        ASSERT_EQ(here.cuda.device_primary_ctx_retain(&second, 1), CUDA_SUCCESS);
        ASSERT_EQ(here.cuda.ctx_set_current(second), CUDA_SUCCESS);
        CUstream stream = nullptr;
        CUevent timed = nullptr;
        CUevent opened = nullptr;
        ASSERT_EQ(here.cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
        ASSERT_EQ(here.cuda.event_create(&timed, CU_EVENT_DEFAULT), CUDA_SUCCESS);
        ASSERT_EQ(here.cuda.ipc_open_event_handle(&opened, other.hear<CUipcEventHandle>()),
                  CUDA_SUCCESS);
        EXPECT_EQ(here.cuda.event_record(opened, of_first), CUDA_ERROR_INVALID_HANDLE);
        ASSERT_EQ(here.cuda.event_record(timed, stream), CUDA_SUCCESS);
        ASSERT_EQ(here.cuda.event_record(opened, stream), CUDA_SUCCESS);
        ASSERT_EQ(here.cuda.stream_synchronize(stream), CUDA_SUCCESS);
        float milliseconds = 7;
        EXPECT_EQ(here.cuda.event_elapsed_time(&milliseconds, timed, timed), CUDA_SUCCESS);
        EXPECT_EQ(here.cuda.event_elapsed_time(&milliseconds, timed, opened),
                  CUDA_ERROR_INVALID_HANDLE);
        EXPECT_EQ(here.cuda.event_elapsed_time(&milliseconds, opened, timed),
                  CUDA_ERROR_INVALID_HANDLE);
        other.say(ready);
      });
}

TEST(shared_events, leave_no_mapping_behind) {
  const auto mappings = [] {
    std::ifstream maps{"/proc/self/maps"};
    int count = 0;
    for (std::string each; std::getline(maps, each);)
      count += each.find("weir simulated event") != std::string::npos ? 1 : 0;
    return count;
  };
  side here;
  CUevent shared = nullptr;
  ASSERT_EQ(here.cuda.event_create(&shared, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING),
            CUDA_SUCCESS);
  EXPECT_EQ(mappings(), 1);
  ASSERT_EQ(here.cuda.event_destroy(shared), CUDA_SUCCESS);
  EXPECT_EQ(mappings(), 0);
}

// Number 0 is one like any other, in a process that closed its input.
TEST(shared_events, close_their_descriptor_even_if_it_is_number_zero) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto is_open = [] { return ::fcntl(0, F_GETFD) != -1; };
    side here;
    ::close(0);
    CUevent event = nullptr;
    here.cuda.event_create(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
    const bool taken = is_open();
    here.cuda.event_destroy(event);
    ::_exit(taken && !is_open() ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(shared_events, in_a_file_that_could_be_shortened_are_refused) {
  in_two_processes(
      [](line& other) {
        side here;
        CUevent event = nullptr;
        ASSERT_EQ(here.cuda.event_create(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING),
                  CUDA_SUCCESS);
        CUipcEventHandle handle{};
        ASSERT_EQ(here.cuda.ipc_get_event_handle(&handle, event), CUDA_SUCCESS);
        std::array<char, 4096> page{};
        const auto length = static_cast<ssize_t>(page.size());
        ASSERT_EQ(::pread(descriptor_in(handle), page.data(), page.size(), 0), length);
        const int copy = ::memfd_create("copy", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        ASSERT_EQ(::write(copy, page.data(), page.size()), length);
        const auto of_copy = with(handle, descriptor_at, copy);
        other.say(of_copy);
        EXPECT_EQ(other.hear<CUresult>(), CUDA_ERROR_MAP_FAILED);
        ASSERT_EQ(::fcntl(copy, F_ADD_SEALS, F_SEAL_SHRINK), 0);
        other.say(of_copy);
        EXPECT_EQ(other.hear<CUresult>(), CUDA_SUCCESS);
        ::close(copy);
      },
      [](line& other) {
        side here;
        for (int i = 0; i < 2; ++i) {
          CUevent opened = nullptr;
          other.say(here.cuda.ipc_open_event_handle(&opened, other.hear<CUipcEventHandle>()));
        }
      });
}

TEST(shared_events, in_a_file_that_is_not_as_they_left_it_are_refused) {
  in_two_processes(
      [](line& other) {
        side here;
        CUevent event = nullptr;
        ASSERT_EQ(here.cuda.event_create(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING),
                  CUDA_SUCCESS);
        CUipcEventHandle handle{};
        ASSERT_EQ(here.cuda.ipc_get_event_handle(&handle, event), CUDA_SUCCESS);
        std::string page(4096, '\0');
        ASSERT_EQ(::pread(descriptor_in(handle), page.data(), page.size(), 0), 4096);
        const auto answer_to = [&](const std::string& contents) {
          const int file = ::memfd_create("copy", MFD_CLOEXEC | MFD_ALLOW_SEALING);
          EXPECT_EQ(::write(file, contents.data(), contents.size()),
                    static_cast<ssize_t>(contents.size()));
          EXPECT_EQ(::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK), 0);
          other.say(with(handle, descriptor_at, file));
          const auto answer = other.hear<CUresult>();
          ::close(file);
          return answer;
        };
        const auto bent = [&](std::size_t where) {
          std::string other_page = page;
          other_page[where] = static_cast<char>(other_page[where] ^ 1);
          return other_page;
        };
        constexpr std::size_t nonce_in_page = 8;  // behind what the page is
        EXPECT_EQ(answer_to(page + '\0'), CUDA_ERROR_MAP_FAILED);
        EXPECT_EQ(answer_to(page.substr(1)), CUDA_ERROR_MAP_FAILED);
        EXPECT_EQ(answer_to(bent(0)), CUDA_ERROR_MAP_FAILED);
        EXPECT_EQ(answer_to(bent(nonce_in_page)), CUDA_ERROR_MAP_FAILED);
        EXPECT_EQ(answer_to(page), CUDA_SUCCESS);
      },
      [](line& other) {
        side here;
        for (int i = 0; i < 5; ++i) {
          CUevent opened = nullptr;
          other.say(here.cuda.ipc_open_event_handle(&opened, other.hear<CUipcEventHandle>()));
        }
      });
}

TEST(shared_events, bent_handles_are_refused) {
  in_two_processes(
      [](line& other) {
        side here;
        CUevent event = nullptr;
        ASSERT_EQ(here.cuda.event_create(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING),
                  CUDA_SUCCESS);
        CUipcEventHandle handle{};
        ASSERT_EQ(here.cuda.ipc_get_event_handle(&handle, event), CUDA_SUCCESS);
        other.say(handle);
        other.hear<bool>();
      },
      [](line& other) {
        side here;
        const auto good = other.hear<CUipcEventHandle>();
        constexpr std::size_t meaningful = 20;  // magic, version, process, descriptor
        constexpr std::size_t process = 12;     // where its number begins
        for (std::size_t i = 0; i < meaningful; ++i) {
          // A number next to the process's may be that of one of its threads, which is as good.
          if (i >= process && i < process + 3) continue;
          CUipcEventHandle bad = good;
          bad.reserved[i] = static_cast<char>(bad.reserved[i] ^ 0x11);
          CUevent opened = nullptr;
          EXPECT_NE(here.cuda.ipc_open_event_handle(&opened, bad), CUDA_SUCCESS) << i;
        }
        CUevent opened = nullptr;
        EXPECT_EQ(here.cuda.ipc_open_event_handle(&opened, good), CUDA_SUCCESS);
        other.say(ready);
      });
}

}  // namespace
}  // namespace weir::sim_tests
