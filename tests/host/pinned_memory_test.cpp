// SPDX-License-Identifier: Apache-2.0
// pinned_memory: how memory comes from the system and goes back.
#include "host/pinned_memory.hpp"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "host/arena_fixture.hpp"
#include "weir/driver/table.hpp"

namespace weir::testing_support { namespace {

using host::memory_origin;
using host::memory_request;

class pinned_memory_test : public arena_test {
 protected:
  [[nodiscard]] unsigned flags_of(const void* memory) const {
    unsigned flags = 0;
    EXPECT_EQ(machine->driver().mem_host_get_flags(&flags, const_cast<void*>(memory)),
              driver::CUDA_SUCCESS);
    return flags;
  }
};

TEST_F(pinned_memory_test, it_is_registered_for_all_devices) {
  const context_scope bound{gpu()};
  const auto memory = host::pin_memory(bound, {.size = 8192}).value();
  EXPECT_EQ(memory.origin, memory_origin::registered);
  EXPECT_EQ(memory.size, 8192u);
  EXPECT_EQ(flags_of(memory.base),
            driver::host_register_portable | driver::host_register_device_map);
  EXPECT_EQ(machine->pinned(), 8_KiB);
  std::memset(memory.base, 1, memory.size);
  ASSERT_TRUE(host::release_memory(bound, memory));
  EXPECT_EQ(machine->pinned(), 0_B);
  EXPECT_EQ(machine->calls(call::mem_host_unregister), 1u);
}

TEST_F(pinned_memory_test, large_memory_begins_at_a_huge_page) {
  const context_scope bound{gpu()};
  const auto memory = host::pin_memory(bound, {.size = 4 << 20}).value();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.base) % (2 << 20), 0u);
  ASSERT_TRUE(host::release_memory(bound, memory));
  EXPECT_EQ(host::whole_pages(1, true), 4096u);
  EXPECT_EQ(host::whole_pages((2 << 20) + 1, true), (2u << 20) + 4096) << "it would double";
  EXPECT_EQ(host::whole_pages((128 << 20) + 1, true), 130u << 20);
  EXPECT_EQ(host::whole_pages((2 << 20) + 1, false), (2u << 20) + 4096);
}

TEST_F(pinned_memory_test, several_threads_and_a_node_change_nothing_for_its_user) {
  const context_scope bound{gpu()};
  const auto memory =
      host::pin_memory(bound, {.size = 66 << 20, .numa_node = 0, .threads = 3}).value();
  EXPECT_EQ(memory.size, 66u << 20);
  std::memset(memory.base, 1, memory.size);
  ASSERT_TRUE(host::release_memory(bound, memory));
}

TEST_F(pinned_memory_test, write_combined_memory_is_the_drivers) {
  const context_scope bound{gpu()};
  const auto memory = host::pin_memory(bound, {.size = 4096, .write_combined = true}).value();
  EXPECT_EQ(memory.origin, memory_origin::driver);
  EXPECT_EQ(flags_of(memory.base), driver::host_alloc_portable | driver::host_alloc_device_map |
                                       driver::host_alloc_write_combined);
  ASSERT_TRUE(host::release_memory(bound, memory));
  EXPECT_EQ(machine->calls(call::mem_free_host), 1u);
}

TEST_F(pinned_memory_test, where_registering_is_refused_the_driver_allocates) {
  const context_scope bound{gpu()};
  machine->fail(call::mem_host_register, 1, driver::CUDA_ERROR_NOT_SUPPORTED);
  const auto memory = host::pin_memory(bound, {.size = 4096}).value();
  EXPECT_EQ(memory.origin, memory_origin::driver);
  ASSERT_TRUE(host::release_memory(bound, memory));
  machine->fail(call::mem_host_register, 1, driver::CUDA_ERROR_NOT_SUPPORTED);
  const auto insisted =
      host::pin_memory(bound, {.size = 4096, .pinning = host_pinning::registered_memory});
  EXPECT_EQ(code_of(insisted), errc::not_supported);
  EXPECT_EQ(machine->pinned(), 0_B);
}

TEST_F(pinned_memory_test, a_lack_of_memory_is_the_hosts) {
  const context_scope bound{gpu()};
  machine->set_pinnable(8_KiB);
  const auto refused = host::pin_memory(bound, {.size = 12288});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.code(), errc::no_host_memory);
  EXPECT_EQ(refused.error().native(), driver::CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(refused.error().requested(), 12_KiB);
  const auto fits = host::pin_memory(bound, {.size = 8192}).value();
  EXPECT_EQ(
      code_of(host::pin_memory(bound, {.size = 4096, .pinning = host_pinning::driver_memory})),
      errc::no_host_memory);
  ASSERT_TRUE(host::release_memory(bound, fits));
}

TEST_F(pinned_memory_test, memory_that_cannot_be_unpinned_stays_as_it_was) {
  const context_scope bound{gpu()};
  const auto memory = host::pin_memory(bound, {.size = 4096}).value();
  machine->fail(call::mem_host_unregister, 1, driver::CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(host::release_memory(bound, memory));
  std::memset(memory.base, 1, memory.size);
  EXPECT_EQ(machine->pinned(), 4_KiB);
  ASSERT_TRUE(host::release_memory(bound, memory));
}

TEST_F(pinned_memory_test, pageable_memory_needs_no_driver) {
  const auto memory = host::map_pageable(8192).value();
  std::memset(memory.base, 1, memory.size);
  const auto before = machine->calls();
  ASSERT_TRUE(host::release_memory(context_scope{gpu()}, memory));
  EXPECT_EQ(machine->calls(call::mem_host_unregister), 0u);
  EXPECT_GE(machine->calls(), before);
  EXPECT_EQ(code_of(host::map_pageable(std::uint64_t{1} << 62)), errc::no_host_memory);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_F(pinned_memory_test, a_forked_child_does_not_have_it) {
  const context_scope bound{gpu()};
  const auto memory = host::pin_memory(bound, {.size = 4096}).value();
  *memory.base = std::byte{1};
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::signal(SIGSEGV, SIG_DFL);
    ::_exit(static_cast<int>(*const_cast<volatile std::byte*>(memory.base)));
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(*memory.base, std::byte{1}) << "the parent's is untouched";
  ASSERT_TRUE(host::release_memory(bound, memory));
}
#endif

}  // namespace
}  // namespace weir::testing_support
