// SPDX-License-Identifier: Apache-2.0
// Plain, pinned and peer memory: sizes, capacity, life times, and what pointers say of themselves.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <functional>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "memory_fixture.hpp"
#include "sim/memory.hpp"
#include "sim/state.hpp"
#include "support/sanitizers.hpp"
#include "support/this_process.hpp"
#include "weir/observe/events.hpp"

namespace weir::sim_tests { namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// --- Plain memory --------------------------------------------------------------------------------

class plain_memory : public memory_fixture {
 protected:
  plain_memory() : memory_fixture{small_machine(64 * mib, 2)} {}
};

TEST(unused_device, has_nothing_in_use) {
  const auto machine = sim::machine::create(small_machine(64 * mib, 2)).value();
  EXPECT_EQ(machine->used(device_id{0}), bytes{});
  EXPECT_EQ(machine->used(device_id{1}), bytes{});
}

TEST_F(plain_memory, refuses_nothing_and_nowhere) {
  CUdeviceptr address = 0;
  EXPECT_EQ(cuda.mem_alloc(&address, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_alloc(nullptr, 512), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(plain_memory, belongs_to_a_context) {
  ASSERT_EQ(cuda.ctx_set_current(nullptr), CUDA_SUCCESS);
  CUdeviceptr address = 0;
  std::size_t size = 0;
  EXPECT_EQ(cuda.mem_alloc(&address, 512), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuda.mem_get_info(&size, &size), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuda.mem_free(0), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_free(nowhere), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(plain_memory, small_allocations_share_a_chunk) {
  const CUdeviceptr first = plain(1);
  const CUdeviceptr second = plain(513);
  const CUdeviceptr third = plain(1);
  EXPECT_EQ(second - first, 512U);
  EXPECT_EQ(third - second, 1024U);
  EXPECT_EQ(used(), 2 * mib);
  for (const CUdeviceptr each : {first, third, second}) {
    EXPECT_EQ(cuda.mem_free(each), CUDA_SUCCESS);
  }
  EXPECT_EQ(used(), 0U);
}

TEST_F(plain_memory, holes_in_a_chunk_are_filled_and_join) {
  std::vector<CUdeviceptr> all;
  for (int i = 0; i < 4; ++i) all.push_back(plain(512 * kib));
  EXPECT_EQ(used(), 2 * mib);
  EXPECT_EQ(cuda.mem_free(all[1]), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_free(all[2]), CUDA_SUCCESS);
  EXPECT_EQ(plain(1 * mib), all[1]);
  EXPECT_EQ(used(), 2 * mib);
  EXPECT_NE(plain(512), 0U);
  EXPECT_EQ(used(), 4 * mib);
}

TEST_F(plain_memory, larger_allocations_take_whole_pages) {
  const CUdeviceptr address = plain(mib + 1);
  EXPECT_EQ(used(), 2 * mib);
  EXPECT_EQ(address % (2 * mib), 0U);
  plain(2 * mib + 1);
  EXPECT_EQ(used(), 6 * mib);
}

TEST_F(plain_memory, reports_the_exact_range) {
  const CUdeviceptr address = plain(1000);
  CUdeviceptr base = 0;
  std::size_t size = 0;
  EXPECT_EQ(cuda.mem_get_address_range(&base, &size, address + 999), CUDA_SUCCESS);
  EXPECT_EQ(base, address);
  EXPECT_EQ(size, 1000U);
  EXPECT_EQ(cuda.mem_get_address_range(nullptr, nullptr, address), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_get_address_range(&base, &size, address + 1000), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(base, 0U);
  EXPECT_EQ(size, 0U);
}

TEST_F(plain_memory, ends_with_the_device) {
  const CUdeviceptr all = plain(64 * mib);
  CUdeviceptr more = 0;
  EXPECT_EQ(cuda.mem_alloc(&more, 512), CUDA_ERROR_OUT_OF_MEMORY);
  std::size_t free = 1;
  std::size_t total = 0;
  EXPECT_EQ(cuda.mem_get_info(&free, &total), CUDA_SUCCESS);
  EXPECT_EQ(free, 0U);
  EXPECT_EQ(total, 64 * mib);
  EXPECT_EQ(cuda.mem_free(all), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_alloc(&more, 64 * mib), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_alloc(&more, ~std::size_t{0}), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(plain_memory, takes_nothing_of_a_device_where_the_system_has_nothing_left) {
  if (testing_support::is_sanitized) GTEST_SKIP() << "a sanitizer needs descriptors and addresses";
  for (const std::size_t size : {std::size_t{512}, mib + 1}) {
    CUdeviceptr address = 0;
    const auto answer_under = [&](const system_limit&) { return cuda.mem_alloc(&address, size); };
    if (size == 512) {  // the first memory of all needs a file
      EXPECT_EQ(answer_under(system_limit::no_further_descriptor()), CUDA_ERROR_OUT_OF_MEMORY);
      EXPECT_EQ(used(), 0U);
    }
    // Enough for a page of a device, but not for one at a place of its own choice.
    EXPECT_EQ(answer_under(system_limit::further_addresses(3 * mib)), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(used(), 0U);
    EXPECT_EQ(address, 0U);
    ASSERT_EQ(cuda.mem_alloc(&address, size), CUDA_SUCCESS);
    EXPECT_TRUE(readable(address));
    EXPECT_EQ(used(), 2 * mib);
    ASSERT_EQ(cuda.mem_free(address), CUDA_SUCCESS);
  }
}

TEST_F(plain_memory, takes_back_what_pools_do_not_use) {
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(cuda.device_get_default_mem_pool(&pool, 0), CUDA_SUCCESS);
  std::uint64_t keep_all = ~std::uint64_t{0};
  ASSERT_EQ(cuda.mem_pool_set_attribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep_all),
            CUDA_SUCCESS);
  const CUstream on = stream();
  CUdeviceptr pooled = 0;
  ASSERT_EQ(cuda.mem_alloc_async(&pooled, 32 * mib, on), CUDA_SUCCESS);
  ASSERT_EQ(cuda.mem_free_async(pooled, on), CUDA_SUCCESS);
  ASSERT_EQ(cuda.stream_synchronize(on), CUDA_SUCCESS);
  ASSERT_GE(used(), 32 * mib);
  EXPECT_NE(plain(64 * mib), 0U);
}

TEST_F(plain_memory, free_waits_for_the_device) {
  const CUdeviceptr address = plain(4 * mib);
  bool done = false;
  work(stream(), {writes(address, 4 * mib)}, [&] { done = true; });
  EXPECT_FALSE(done);
  EXPECT_EQ(cuda.mem_free(address), CUDA_SUCCESS);
  EXPECT_TRUE(done);
  EXPECT_THAT(hazards(), IsEmpty());
  EXPECT_FALSE(readable(address));
}

TEST_F(plain_memory, free_of_another_devices_use_is_reported) {
  const CUdeviceptr address = plain(4 * mib);
  CUcontext other = nullptr;
  ASSERT_EQ(cuda.device_primary_ctx_retain(&other, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuda.ctx_push_current(other), CUDA_SUCCESS);
  ASSERT_EQ(cuda.ctx_enable_peer_access(context, 0), CUDA_SUCCESS);
  const CUstream there = stream();
  work(there, {reads(address, 512)});
  EXPECT_EQ(cuda.mem_free(address), CUDA_SUCCESS);
  ASSERT_THAT(hazards(), ElementsAre(hazard_kind::freed_in_use));
  const auto reported = machine->hazards().front();
  EXPECT_EQ(reported.second.step, reported.first.step + 1);
}

TEST_F(plain_memory, what_was_freed_is_no_longer_what_an_allocator_told_of_it) {
  const auto told = machine->watch_blocks();
  const CUstream on = stream();
  plain(512);  // so that the chunk stays
  const CUdeviceptr address = plain(512);
  told->on_event({.kind = memory_event_kind::allocate, .address = address, .size = 512});
  told->on_event({.kind = memory_event_kind::deallocate, .address = address, .size = 512});
  EXPECT_EQ(run(on, {writes(address, 8)}), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::use_after_free)) << "it is the allocator's";
  machine->clear_hazards();
  ASSERT_EQ(cuda.mem_free(address), CUDA_SUCCESS);
  ASSERT_EQ(plain(512), address);
  EXPECT_EQ(run(on, {writes(address, 8)}), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(plain_memory, what_an_allocator_told_of_it_goes_with_the_allocator) {
  auto told = machine->watch_blocks();
  const CUstream on = stream();
  const CUdeviceptr address = plain(512);
  told->on_event({.kind = memory_event_kind::allocate, .address = address, .size = 512});
  told->on_event({.kind = memory_event_kind::deallocate, .address = address, .size = 512});
  told.reset();
  EXPECT_EQ(run(on, {writes(address, 8)}), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), IsEmpty());
}

// The waiting free does what the other device has to do meanwhile, a host function too.
TEST_F(plain_memory, is_freed_once_if_another_thread_frees_it_while_a_free_waits) {
  struct frees {
    std::function<void()> by_another_thread;
    CUresult answer = CUDA_ERROR_UNKNOWN;
  } other;
  const CUdeviceptr address = plain(4 * mib);
  const CUstream here = stream();
  machine->hold(here);
  work(here, {writes(address, 8)});
  other.by_another_thread = [&] {
    machine->release(here);
    other.answer = cuda.mem_free(address);
  };
  CUcontext elsewhere = nullptr;
  ASSERT_EQ(cuda.device_primary_ctx_retain(&elsewhere, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuda.ctx_set_current(elsewhere), CUDA_SUCCESS);
  const auto let_it_free = [](void* data) {
    std::thread{static_cast<frees*>(data)->by_another_thread}.join();
  };
  ASSERT_EQ(cuda.launch_host_func(stream(), let_it_free, &other), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_free(address), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(other.answer, CUDA_SUCCESS);
  EXPECT_EQ(used(), 0U);
}

TEST_F(plain_memory, what_was_freed_leaves_what_an_allocator_told_of_others) {
  const auto told = machine->watch_blocks();
  const CUdeviceptr below = plain(512);
  const CUdeviceptr freed = plain(512);
  const CUdeviceptr above = plain(512);
  for (const CUdeviceptr each : {below, above}) {
    told->on_event({.kind = memory_event_kind::allocate, .address = each, .size = 512});
    told->on_event({.kind = memory_event_kind::deallocate, .address = each, .size = 512});
  }
  ASSERT_EQ(cuda.mem_free(freed), CUDA_SUCCESS);
  const CUstream on = stream();
  EXPECT_EQ(run(on, {writes(below, 8)}), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::use_after_free));
  EXPECT_EQ(run(on, {writes(above, 8)}), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::use_after_free, hazard_kind::use_after_free));
}

TEST_F(plain_memory, wrong_frees_are_refused) {
  const CUdeviceptr address = plain(1024);
  EXPECT_EQ(cuda.mem_free(address + 512), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_free(address), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_free(address), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_free(nowhere), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_free(reinterpret_cast<std::uintptr_t>(pinned(64))), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(plain_memory, reaching_past_the_end_is_a_fault) {
  const CUdeviceptr address = plain(1000);
  EXPECT_EQ(run(stream(), {writes(address, 1000)}), CUDA_SUCCESS);
  EXPECT_EQ(run(stream(), {writes(address, 1001)}), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::bad_access));
  CUdeviceptr more = 0;
  EXPECT_EQ(cuda.mem_alloc(&more, 512), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(plain_memory, a_range_that_wraps_is_a_fault_and_an_empty_one_is_none) {
  const CUdeviceptr made = plain(4 * mib);
  const CUstream on = stream();
  EXPECT_EQ(run(on, {writes(nowhere, 0)}), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), IsEmpty());
  EXPECT_EQ(run(on, {writes(made, ~std::size_t{0})}), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::bad_access));
}

TEST_F(plain_memory, copies_are_named_by_their_sides) {
  const CUdeviceptr made = plain(64);
  const CUdeviceptr other = plain(64);
  std::array<char, 64> own{};
  const CUstream a = stream();
  const CUstream b = stream();
  work(a, {writes(made, 64), writes(other, 64)});
  EXPECT_EQ(cuda.memcpy_htod_async(made, own.data(), 64, b), CUDA_SUCCESS);
  work(a, {writes(made, 64)});
  EXPECT_EQ(cuda.memcpy_dtoh_async(own.data(), made, 64, b), CUDA_SUCCESS);
  EXPECT_EQ(cuda.memcpy_dtod_async(other, made, 64, b), CUDA_SUCCESS);
  std::vector<std::string> labels;
  for (const auto& each : machine->hazards()) labels.push_back(each.second.label);
  EXPECT_THAT(labels, ElementsAre("copy to device", "work", "copy to host", "copy", "copy"));
}

TEST_F(plain_memory, rows_are_padded) {
  CUdeviceptr address = 0;
  std::size_t pitch = 0;
  EXPECT_EQ(cuda.mem_alloc_pitch(&address, &pitch, 513, 4, 16), CUDA_SUCCESS);
  EXPECT_EQ(pitch, 1024U);
  std::size_t size = 0;
  EXPECT_EQ(cuda.mem_get_address_range(nullptr, &size, address), CUDA_SUCCESS);
  EXPECT_EQ(size, 4096U);
  EXPECT_EQ(cuda.mem_alloc_pitch(&address, &pitch, 64, 4, 3), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_alloc_pitch(&address, &pitch, 0, 4, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_alloc_pitch(&address, &pitch, 4, 0, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_alloc_pitch(&address, nullptr, 64, 4, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_alloc_pitch(&address, &pitch, ~std::size_t{0} / 2, 4, 4),
            CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(plain_memory, goes_with_the_context) {
  plain(4 * mib);
  const CUdeviceptr small = plain(100);
  managed(mib);
  auto* const host = static_cast<char*>(pinned(100));
  ASSERT_EQ(cuda.device_primary_ctx_reset(0), CUDA_SUCCESS);
  EXPECT_EQ(used(), 0U);
  ASSERT_EQ(cuda.device_primary_ctx_retain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuda.ctx_set_current(context), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_free(small), CUDA_ERROR_INVALID_VALUE);
  EXPECT_FALSE(readable(small));
  EXPECT_EQ(cuda.mem_free_host(host), CUDA_ERROR_INVALID_VALUE);
}

/// How much memory the files hold that have this name: what simulated memory lies in has no path.
std::size_t held_by_files(std::string_view name) {
  const std::string target = "/memfd:" + std::string{name} + " (deleted)";
  std::size_t total = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd"}) {
    if (std::filesystem::read_symlink(entry.path(), ignored) != target) continue;
    struct stat facts {};
    if (::stat(entry.path().c_str(), &facts) == 0)
      total += static_cast<std::size_t>(facts.st_blocks) * 512;
  }
  return total;
}

TEST_F(plain_memory, moves_to_a_file_of_its_own_when_it_is_shared) {
  const CUdeviceptr neighbour = plain(2 * mib);
  const CUdeviceptr shared = plain(8 * mib);
  const CUdeviceptr other_neighbour = plain(2 * mib);
  std::memset(at<void>(neighbour), 1, 2 * mib);
  std::memset(at<void>(other_neighbour), 2, 2 * mib);
  const std::size_t neighbours = held_by_files("weir simulated memory");
  ASSERT_GE(neighbours, 4 * mib);
  auto* const first = at<unsigned char>(shared);
  // Two pieces, one longer than what is moved at a time, one that ends with the memory.
  std::memset(first + mib + 100, 3, 2 * mib);
  first[8 * mib - 1] = 4;
  // Written down once more, not read: that would fill the holes.
  std::vector<unsigned char> contents(8 * mib);
  std::memset(contents.data() + mib + 100, 3, 2 * mib);
  contents.back() = 4;
  ASSERT_GT(held_by_files("weir simulated memory"), neighbours);

  const std::size_t before = held_by_files("weir simulated handle");
  CUipcMemHandle handle{};
  ASSERT_EQ(cuda.ipc_get_mem_handle(&handle, shared), CUDA_SUCCESS);
  EXPECT_EQ(held_by_files("weir simulated memory"), neighbours) << "nothing is kept twice";
  EXPECT_GT(held_by_files("weir simulated handle"), before + 2 * mib);
  EXPECT_LT(held_by_files("weir simulated handle"), before + 3 * mib) << "holes stay holes";
  EXPECT_TRUE(std::equal(contents.begin(), contents.end(), first));
  ASSERT_EQ(cuda.ipc_get_mem_handle(&handle, shared), CUDA_SUCCESS);
  EXPECT_TRUE(std::equal(contents.begin(), contents.end(), first)) << "moved once";
  const auto holds = [](CUdeviceptr address, char value) {
    return std::all_of(at<char>(address), at<char>(address) + 2 * mib,
                       [&](char each) { return each == value; });
  };
  EXPECT_TRUE(holds(neighbour, 1));
  EXPECT_TRUE(holds(other_neighbour, 2));
  EXPECT_EQ(cuda.mem_free(shared), CUDA_SUCCESS);
  EXPECT_EQ(held_by_files("weir simulated handle"), before);
  EXPECT_EQ(cuda.mem_free(neighbour), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_free(other_neighbour), CUDA_SUCCESS);
  EXPECT_LE(held_by_files("weir simulated memory"), neighbours - 4 * mib);
}

TEST(physical_memory, carries_a_note_up_to_its_greatest_length) {
  sim::state machine{sim::machine_options{}};
  const auto pages = sim::physical::create(machine, unit, true);
  ASSERT_NE(pages, nullptr);
  const std::string longest(sim::physical::note_size, 'n');
  EXPECT_TRUE(pages->write_note(longest));
  EXPECT_FALSE(pages->write_note(longest + 'n'));
  std::string note;
  std::uint64_t size = 0;
  EXPECT_TRUE(sim::physical::read_note(pages->descriptor(), note, size));
  EXPECT_EQ(note, longest);
  EXPECT_EQ(size, unit);
}

TEST(physical_memory, that_is_not_there_has_no_descriptor) {
  const auto pages = sim::physical::create_unbacked(unit);
  EXPECT_EQ(pages->descriptor(), -1);
  EXPECT_EQ(pages->size(), unit);
  EXPECT_TRUE(pages->is_unbacked());
}

class address_space : public ::testing::Test {
 protected:
  void occupy(std::uint64_t base, std::uint64_t size) {
    machine.space.insert(
        {.base = base, .size = size, .pages = sim::physical::create_unbacked(size)});
  }

  sim::state machine{small_machine(64 * mib)};
};

TEST_F(address_space, is_taken_no_further_than_was_asked_for) {
  const std::uint64_t before = testing_support::mapped_bytes();
  for (int i = 0; i < 8; ++i) {
    const std::uint64_t base = machine.space.reserve_addresses(unit, gib);
    ASSERT_NE(base, 0U);
    EXPECT_EQ(base % gib, 0U);
  }
  EXPECT_GE(testing_support::mapped_bytes(), before + 8 * unit);
  EXPECT_LT(testing_support::mapped_bytes(), before + 8 * unit + gib / 2);
}

TEST_F(address_space, is_given_back_as_it_was_taken) {
  const std::uint64_t before = testing_support::mapped_bytes();
  const std::uint64_t base = machine.space.reserve_addresses(4 * gib);
  machine.space.free_addresses(base, 2 * gib);
  EXPECT_GE(testing_support::mapped_bytes(), before + 4 * gib) << "half of it is none";
  machine.space.free_addresses(base, 4 * gib);
  EXPECT_LT(testing_support::mapped_bytes(), before + gib);
}

TEST_F(address_space, is_aligned_even_where_a_hint_is_not) {
  const std::uint64_t base = machine.space.reserve_addresses(4 * unit, 4 * unit);
  machine.space.free_addresses(base, 4 * unit);
  const std::uint64_t aligned = machine.space.reserve_addresses(unit, 4 * unit, base + unit);
  EXPECT_NE(aligned, 0U);
  EXPECT_EQ(aligned % (4 * unit), 0U);
}

TEST_F(address_space, loses_regions_by_their_beginning) {
  occupy(1000, 500);
  occupy(2000, 500);
  for (const std::uint64_t base : {999U, 1001U, 1500U, 2499U, 2500U}) machine.space.erase(base);
  EXPECT_NE(machine.space.find(1000), nullptr);
  EXPECT_NE(machine.space.find(1499), nullptr);
  EXPECT_EQ(machine.space.find(1500), nullptr);
  EXPECT_NE(machine.space.find(2499), nullptr);
  machine.space.erase(2000);
  EXPECT_EQ(machine.space.find(2000), nullptr);
  EXPECT_EQ(machine.space.find(2499), nullptr);
  EXPECT_NE(machine.space.find(1000), nullptr);
}

TEST_F(address_space, is_emptied_of_what_begins_in_a_range) {
  for (const std::uint64_t base : {1000U, 2000U, 3000U}) occupy(base, 500);
  machine.space.erase_in(1001, 1999);
  EXPECT_NE(machine.space.find(1000), nullptr);
  EXPECT_EQ(machine.space.find(2000), nullptr);
  EXPECT_NE(machine.space.find(3000), nullptr) << "it begins right behind the range";
  occupy(2000, 500);
  machine.space.erase_in(2000, 1001);
  EXPECT_NE(machine.space.find(1499), nullptr);
  EXPECT_EQ(machine.space.find(2000), nullptr);
  EXPECT_EQ(machine.space.find(3000), nullptr);
  machine.space.erase_in(0, tib);
  EXPECT_EQ(machine.space.find(1000), nullptr);
  machine.space.erase_in(0, tib);  // there is nothing left
}

// Number 0 is one like any other, in a process that closed its input.
TEST(physical_memory, closes_the_descriptor_that_it_took_over_even_if_it_is_number_zero) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto is_open = [] { return ::fcntl(0, F_GETFD) != -1; };
    ::close(0);
    const bool opened = ::open("/dev/null", O_RDONLY) == 0;
    auto pages = sim::physical::adopt(0, unit);
    const bool kept = is_open();
    pages.reset();
    ::_exit(opened && kept && !is_open() ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(sealed_files, have_a_greatest_length) {
  constexpr std::uint64_t greatest = std::uint64_t{1} << 62;
  const int file = sim::make_sealed_file("longest", greatest);
  EXPECT_GE(file, 0);
  ::close(file);
  EXPECT_EQ(sim::make_sealed_file("too long", greatest + 1), -1);
}

TEST(whole_device, costs_nothing_until_it_is_touched) {
  const auto machine = sim::machine::create().value();
  const table& cuda = machine->driver();
  CUcontext context = nullptr;
  ASSERT_EQ(cuda.init(0), CUDA_SUCCESS);
  ASSERT_EQ(cuda.device_primary_ctx_retain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuda.ctx_set_current(context), CUDA_SUCCESS);
  std::size_t free = 0;
  ASSERT_EQ(cuda.mem_get_info(&free, nullptr), CUDA_SUCCESS);
  ASSERT_GT(free, 100 * gib);
  CUdeviceptr all = 0;
  ASSERT_EQ(cuda.mem_alloc(&all, free / unit * unit), CUDA_SUCCESS);
  const auto resident = [&](CUdeviceptr page) {
    unsigned char there = 0;
    ::mincore(at<void>(page), 4096, &there);
    return (there & 1) != 0;
  };
  EXPECT_FALSE(resident(all + 100 * gib));
  *at<char>(all + 100 * gib) = 1;
  EXPECT_TRUE(resident(all + 100 * gib));
  EXPECT_FALSE(resident(all + 50 * gib));
}

// By size, not by address: what a machine gives back the process may map again at once for itself.
TEST(whole_machine, leaves_no_mapping_behind) {
  const std::uint64_t before = testing_support::mapped_bytes();
  {
    const auto machine = sim::machine::create().value();
    const table& cuda = machine->driver();
    CUcontext context = nullptr;
    ASSERT_EQ(cuda.init(0), CUDA_SUCCESS);
    ASSERT_EQ(cuda.device_primary_ctx_retain(&context, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuda.ctx_set_current(context), CUDA_SUCCESS);
    CUdeviceptr plain = 0;
    CUdeviceptr range = 0;
    ASSERT_EQ(cuda.mem_alloc(&plain, gib), CUDA_SUCCESS);
    ASSERT_EQ(cuda.mem_address_reserve(&range, gib, 0, 0, 0), CUDA_SUCCESS);
    EXPECT_TRUE(readable(plain));
    EXPECT_GE(testing_support::mapped_bytes(), before + 2 * gib);
  }
  EXPECT_LT(testing_support::mapped_bytes(), before + gib / 2);
}

// --- Pinned memory -------------------------------------------------------------------------------

class pinned_memory : public memory_fixture {
 protected:
  pinned_memory() : memory_fixture{small_machine(64 * mib, 2)} {
    own = static_cast<char*>(
        ::mmap(nullptr, mib, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  ~pinned_memory() override { ::munmap(own, mib); }

  char* own = nullptr;  // ordinary memory of the process
};

TEST_F(pinned_memory, is_the_hosts_and_every_devices) {
  auto* const memory = static_cast<char*>(pinned(100));
  CUdeviceptr address = 0;
  EXPECT_EQ(cuda.mem_host_get_device_pointer(&address, memory + 8, 0), CUDA_SUCCESS);
  EXPECT_EQ(address, reinterpret_cast<std::uintptr_t>(memory + 8));
  EXPECT_EQ(used(), 0U);
  EXPECT_EQ(run(stream(), {writes(address, 1)}, [&] { memory[8] = 42; }), CUDA_SUCCESS);
  EXPECT_EQ(memory[8], 42);
  CUcontext other = nullptr;
  ASSERT_EQ(cuda.device_primary_ctx_retain(&other, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuda.ctx_push_current(other), CUDA_SUCCESS);
  EXPECT_EQ(run(stream(), {writes(address, 1)}), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(pinned_memory, host_and_device_can_race) {
  void* const memory = pinned(100);
  work(stream(), {writes(reinterpret_cast<std::uintptr_t>(memory), 4)});
  machine->host_read(memory, 4);
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::race));
}

TEST_F(pinned_memory, nothing_asked_nothing_given) {
  void* memory = own;
  EXPECT_EQ(cuda.mem_host_alloc(&memory, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(memory, nullptr);
  EXPECT_EQ(cuda.mem_host_alloc(&memory, 64, 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_host_alloc(nullptr, 64, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_free_host(nullptr), CUDA_SUCCESS);
}

TEST_F(pinned_memory, tells_its_flags) {
  unsigned flags = 0;
  EXPECT_EQ(cuda.mem_host_get_flags(&flags, pinned(64)), CUDA_SUCCESS);
  EXPECT_EQ(flags, 2U);  // always mapped
  EXPECT_EQ(cuda.mem_host_get_flags(&flags, pinned(64, 7)), CUDA_SUCCESS);
  EXPECT_EQ(flags, 7U);
  EXPECT_EQ(cuda.mem_host_get_flags(&flags, own), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(pinned_memory, free_waits_for_all_devices) {
  void* const memory = pinned(4 * mib);
  bool done = false;
  work(stream(), {reads(reinterpret_cast<std::uintptr_t>(memory), mib)}, [&] { done = true; });
  EXPECT_EQ(cuda.mem_free_host(static_cast<char*>(memory) + 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_free_host(memory), CUDA_SUCCESS);
  EXPECT_TRUE(done);
  EXPECT_EQ(cuda.mem_free_host(memory), CUDA_ERROR_INVALID_VALUE);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(pinned_memory, registers_what_the_process_has) {
  EXPECT_EQ(cuda.mem_host_register(own + 100, 5000, 0), CUDA_SUCCESS);
  EXPECT_EQ(run(stream(), {reads(reinterpret_cast<std::uintptr_t>(own + 100), 5000)}),
            CUDA_SUCCESS);
  unsigned flags = 0;
  EXPECT_EQ(cuda.mem_host_get_flags(&flags, own + 200), CUDA_SUCCESS);
  EXPECT_EQ(flags, 2U);
  EXPECT_EQ(cuda.mem_host_register(own + 100, 5000, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(cuda.mem_host_register(own, 101, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(cuda.mem_host_register(own, 100, 0), CUDA_SUCCESS);  // bytes count, not pages
  EXPECT_EQ(cuda.mem_free_host(own + 100), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_host_unregister(own + 200), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_host_unregister(own + 100), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_host_unregister(own + 100), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  EXPECT_EQ(cuda.mem_host_unregister(nullptr), CUDA_ERROR_INVALID_VALUE);
  own[200] = 1;  // still the process's own
  EXPECT_EQ(run(stream(), {reads(reinterpret_cast<std::uintptr_t>(own + 100), 1)}),
            CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(pinned_memory, registers_nothing_else) {
  EXPECT_EQ(cuda.mem_host_register(own, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_host_register(nullptr, 64, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_host_register(own, 64, 16), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_host_register(own, ~std::size_t{0}, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_host_register(at<void>(0x10000), 4096, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_host_register(pinned(64), 64, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_host_register(at<void>(plain(64)), 64, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_host_register(at<void>(managed(64)), 64, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_host_unregister(pinned(64)), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(pinned_memory, needs_a_context_once_it_is_asked_for_properly) {
  ASSERT_EQ(cuda.ctx_set_current(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_host_register(nullptr, 64, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_host_register(own, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_host_register(own, 64, 16), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_host_register(own, ~std::size_t{0}, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_host_register(own, 64, 0), CUDA_ERROR_INVALID_CONTEXT);
  void* memory = own;
  EXPECT_EQ(cuda.mem_host_alloc(nullptr, 64, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_host_alloc(&memory, 64, 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_host_alloc(&memory, 0, 0), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuda.mem_host_alloc(&memory, 64, 0), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(memory, own);
}

TEST_F(pinned_memory, ends_with_the_addresses) {
  void* memory = nullptr;
  EXPECT_EQ(cuda.mem_host_alloc(&memory, std::size_t{1} << 60, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(memory, nullptr);
}

TEST_F(pinned_memory, keeps_the_flags_it_was_registered_with) {
  constexpr unsigned portable = host_register_portable;
  ASSERT_EQ(cuda.mem_host_register(own, 64, portable), CUDA_SUCCESS);
  unsigned flags = 0;
  EXPECT_EQ(cuda.mem_host_get_flags(&flags, own), CUDA_SUCCESS);
  EXPECT_EQ(flags, portable | host_register_device_map);
  EXPECT_EQ(cuda.mem_host_get_flags(&flags, at<void>(managed(64))), CUDA_SUCCESS);
  EXPECT_EQ(flags, host_alloc_device_map);
  EXPECT_EQ(cuda.mem_host_get_flags(&flags, at<void>(plain(64))), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(pinned_memory, registers_right_behind_memory_that_it_could_not) {
  ASSERT_EQ(::mprotect(own, 4096, PROT_NONE), 0);
  EXPECT_EQ(cuda.mem_host_register(own, 8192, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_host_register(own + 4096, 4096, 0), CUDA_SUCCESS);
}

TEST_F(pinned_memory, read_only_pages_are_read_only) {
  ASSERT_EQ(::mprotect(own, mib, PROT_READ), 0);
  EXPECT_EQ(cuda.mem_host_register(own, 4096, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_host_register(own, 4096, host_register_read_only), CUDA_SUCCESS);
  const auto address = reinterpret_cast<std::uintptr_t>(own);
  EXPECT_EQ(run(stream(), {reads(address, 64)}), CUDA_SUCCESS);
  EXPECT_EQ(run(stream(), {writes(address, 64)}), CUDA_ERROR_ILLEGAL_ADDRESS);
}

// --- Peers ---------------------------------------------------------------------------------------

class peer_memory : public memory_fixture {
 protected:
  peer_memory() : memory_fixture{small_machine(64 * mib, 2)} {
    EXPECT_EQ(cuda.device_primary_ctx_retain(&other, 1), CUDA_SUCCESS);
  }
  CUcontext other = nullptr;
};

TEST_F(peer_memory, is_reached_only_once_enabled) {
  const CUdeviceptr mine = plain(64);
  ASSERT_EQ(cuda.ctx_set_current(other), CUDA_SUCCESS);
  ASSERT_EQ(cuda.ctx_enable_peer_access(context, 0), CUDA_SUCCESS);
  EXPECT_EQ(run(stream(), {writes(mine, 64)}), CUDA_SUCCESS);
  EXPECT_EQ(cuda.ctx_disable_peer_access(context), CUDA_SUCCESS);
  EXPECT_EQ(run(stream(), {writes(mine, 64)}), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(peer_memory, says_what_is_wrong) {
  EXPECT_EQ(cuda.ctx_enable_peer_access(other, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.ctx_enable_peer_access(nullptr, 0), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuda.ctx_enable_peer_access(context, 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  EXPECT_EQ(cuda.ctx_disable_peer_access(other), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  EXPECT_EQ(cuda.ctx_enable_peer_access(other, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuda.ctx_enable_peer_access(other, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  EXPECT_EQ(cuda.ctx_disable_peer_access(other), CUDA_SUCCESS);
}

TEST_F(peer_memory, is_enabled_until_the_context_ends) {
  ASSERT_EQ(cuda.ctx_enable_peer_access(other, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuda.device_primary_ctx_reset(0), CUDA_SUCCESS);
  ASSERT_EQ(cuda.device_primary_ctx_retain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuda.ctx_set_current(context), CUDA_SUCCESS);
  EXPECT_EQ(cuda.ctx_disable_peer_access(other), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  EXPECT_EQ(cuda.ctx_enable_peer_access(other, 0), CUDA_SUCCESS);
}

TEST_F(peer_memory, of_the_host_is_told_with_the_device_it_was_made_for) {
  const auto here = reinterpret_cast<std::uintptr_t>(pinned(64));
  ASSERT_EQ(cuda.ctx_set_current(other), CUDA_SUCCESS);
  const auto there = reinterpret_cast<std::uintptr_t>(pinned(64));
  EXPECT_EQ(attribute<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, here), 0);
  EXPECT_EQ(attribute<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, here), context);
  EXPECT_EQ(attribute<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, there), 1);
  EXPECT_EQ(attribute<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, there), other);
}

TEST_F(peer_memory, of_the_host_goes_with_the_context_it_was_made_in) {
  static std::array<std::byte, 4096> own{};
  ASSERT_EQ(cuda.ctx_set_current(other), CUDA_SUCCESS);
  const auto made = reinterpret_cast<std::uintptr_t>(pinned(64));
  ASSERT_EQ(cuda.mem_host_register(own.data(), own.size(), 0), CUDA_SUCCESS);
  ASSERT_EQ(cuda.device_primary_ctx_reset(0), CUDA_SUCCESS);
  unsigned flags = 0;
  EXPECT_EQ(cuda.mem_host_get_flags(&flags, own.data()), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_host_get_flags(&flags, at<void>(made)), CUDA_SUCCESS);
  ASSERT_EQ(cuda.device_primary_ctx_retain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuda.ctx_set_current(context), CUDA_SUCCESS);
  ASSERT_EQ(cuda.device_primary_ctx_reset(1), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_host_get_flags(&flags, own.data()), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_host_get_flags(&flags, at<void>(made)), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(peer_memory, is_told_in_advance) {
  int can = 7;
  EXPECT_EQ(cuda.device_can_access_peer(&can, 0, 1), CUDA_SUCCESS);
  EXPECT_EQ(can, 1);
  EXPECT_EQ(cuda.device_can_access_peer(&can, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(can, 0);
  EXPECT_EQ(cuda.device_can_access_peer(&can, 0, 2), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuda.device_get_p2p_attribute(&can, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 1),
            CUDA_SUCCESS);
  EXPECT_EQ(can, 1);
  EXPECT_EQ(cuda.device_get_p2p_attribute(&can, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 0),
            CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuda.device_get_p2p_attribute(&can, static_cast<CUdevice_P2PAttribute>(9), 0, 1),
            CUDA_ERROR_INVALID_VALUE);
}

// --- Pointers ------------------------------------------------------------------------------------

class pointers : public memory_fixture {
 protected:
  pointers() : memory_fixture{small_machine(64 * mib)} {}
};

TEST_F(pointers, to_plain_memory) {
  plain(1 * mib);
  const CUdeviceptr address = plain(1000);
  const CUdeviceptr inside = address + 512;
  EXPECT_EQ(attribute<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, inside), context);
  EXPECT_EQ(attribute<int>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, inside), CU_MEMORYTYPE_DEVICE);
  EXPECT_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, inside), inside);
  EXPECT_EQ(attribute_answer(CU_POINTER_ATTRIBUTE_HOST_POINTER, inside), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(attribute<int>(CU_POINTER_ATTRIBUTE_IS_MANAGED, inside), 0);
  EXPECT_EQ(attribute<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, inside), 0);
  EXPECT_EQ(attribute<int>(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, inside), 1);
  EXPECT_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, inside), address);
  EXPECT_EQ(attribute<std::size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, inside), 1000U);
  EXPECT_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, inside), address - mib);
  EXPECT_EQ(attribute<std::size_t>(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, inside), 2 * mib);
  EXPECT_EQ(attribute<int>(CU_POINTER_ATTRIBUTE_MAPPED, inside), 1);
  EXPECT_EQ(attribute<std::uint64_t>(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, inside), 3U);
  EXPECT_EQ(attribute<CUmemoryPool>(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, inside), nullptr);
  ASSERT_EQ(cuda.ctx_set_current(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(attribute<std::uint64_t>(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, inside), 0U);
}

TEST_F(pointers, to_host_memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(pinned(100));
  EXPECT_EQ(attribute<int>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address), CU_MEMORYTYPE_HOST);
  EXPECT_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_HOST_POINTER, address + 3), address + 3);
  EXPECT_EQ(attribute<std::size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, address), 100U);
  EXPECT_EQ(attribute<int>(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address), 0);
  EXPECT_EQ(attribute<int>(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, address), 0);
}

TEST_F(pointers, to_registered_memory_tell_the_host_pages_it_lies_in) {
  alignas(4096) static std::array<std::byte, 3 * 4096> buffer{};
  std::byte* const own = buffer.data() + 100;
  ASSERT_EQ(cuda.mem_host_register(own, 5000, 0), CUDA_SUCCESS);
  const auto first_page = reinterpret_cast<std::uintptr_t>(buffer.data());
  const auto address = reinterpret_cast<std::uintptr_t>(own);
  EXPECT_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, address), first_page);
  EXPECT_EQ(attribute<std::size_t>(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, address), 8192U);
  EXPECT_EQ(cuda.mem_host_unregister(own), CUDA_SUCCESS);
  constexpr std::size_t rest_of_the_page = 4096 - 100;
  ASSERT_EQ(cuda.mem_host_register(own, rest_of_the_page, 0), CUDA_SUCCESS);
  EXPECT_EQ(attribute<std::size_t>(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, address), 4096U);
  EXPECT_EQ(cuda.mem_host_unregister(own), CUDA_SUCCESS);
  ASSERT_EQ(cuda.mem_host_register(own, rest_of_the_page + 1, 0), CUDA_SUCCESS);
  EXPECT_EQ(attribute<std::size_t>(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, address), 8192U);
  EXPECT_EQ(cuda.mem_host_unregister(own), CUDA_SUCCESS);
}

TEST_F(pointers, to_large_memory_tell_the_whole_pages_it_takes) {
  const auto mapped = [&](CUdeviceptr address) {
    EXPECT_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, address), address);
    return attribute<std::size_t>(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, address);
  };
  EXPECT_EQ(mapped(managed(1)), 2 * mib);
  EXPECT_EQ(mapped(managed(2 * mib)), 2 * mib);
  EXPECT_EQ(mapped(managed(2 * mib + 1)), 4 * mib);
  EXPECT_EQ(mapped(plain(2 * mib)), 2 * mib);
  EXPECT_EQ(mapped(plain(2 * mib + 1)), 4 * mib);
}

TEST_F(pointers, to_managed_memory) {
  const CUdeviceptr address = managed(8 * mib);
  EXPECT_EQ(attribute<int>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address), CU_MEMORYTYPE_DEVICE);
  EXPECT_EQ(attribute<int>(CU_POINTER_ATTRIBUTE_IS_MANAGED, address), 1);
  EXPECT_EQ(attribute<int>(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address), 1);
  EXPECT_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_HOST_POINTER, address), address);
}

TEST_F(pointers, to_pool_memory) {
  const CUstream on = stream();
  CUdeviceptr address = 0;
  ASSERT_EQ(cuda.mem_alloc_async(&address, 1000, on), CUDA_SUCCESS);
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(cuda.device_get_default_mem_pool(&pool, 0), CUDA_SUCCESS);
  EXPECT_EQ(attribute<CUmemoryPool>(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address + 600), pool);
  EXPECT_EQ(attribute<std::size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, address + 600), 1000U);
  EXPECT_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address + 600), address);
  EXPECT_EQ(attribute<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, address), nullptr);
  EXPECT_EQ(attribute<int>(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address), 0);
  ASSERT_EQ(cuda.mem_free_async(address, on), CUDA_SUCCESS);
  EXPECT_EQ(attribute_answer(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(pointers, never_share_a_buffer_id) {
  const CUdeviceptr first = plain(64);
  const auto before = attribute<std::uint64_t>(CU_POINTER_ATTRIBUTE_BUFFER_ID, first);
  ASSERT_EQ(cuda.mem_free(first), CUDA_SUCCESS);
  const CUdeviceptr second = plain(64);
  EXPECT_NE(attribute<std::uint64_t>(CU_POINTER_ATTRIBUTE_BUFFER_ID, second), before);
  const CUstream on = stream();
  CUdeviceptr pooled = 0;
  ASSERT_EQ(cuda.mem_alloc_async(&pooled, 64, on), CUDA_SUCCESS);
  const auto in_pool = attribute<std::uint64_t>(CU_POINTER_ATTRIBUTE_BUFFER_ID, pooled);
  ASSERT_EQ(cuda.mem_free_async(pooled, on), CUDA_SUCCESS);
  ASSERT_EQ(cuda.mem_alloc_async(&pooled, 64, on), CUDA_SUCCESS);
  EXPECT_NE(attribute<std::uint64_t>(CU_POINTER_ATTRIBUTE_BUFFER_ID, pooled), in_pool);
}

TEST_F(pointers, to_unknown_memory) {
  std::uint64_t value = 0;
  const auto own = reinterpret_cast<std::uintptr_t>(&value);
  for (int which = CU_POINTER_ATTRIBUTE_CONTEXT;
       which <= CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE; ++which) {
    EXPECT_EQ(attribute_answer(static_cast<CUpointer_attribute>(which), own),
              CUDA_ERROR_INVALID_VALUE);
  }
  // A list of attributes is answered all the same: the memory is the host's.
  std::array<CUpointer_attribute, 3> which = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                              CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                              CU_POINTER_ATTRIBUTE_HOST_POINTER};
  int type = 7;
  int ordinal = 7;
  std::uint64_t host = 7;
  std::array<void*, 3> data = {&type, &ordinal, &host};
  EXPECT_EQ(cuda.pointer_get_attributes(3, which.data(), data.data(), own), CUDA_SUCCESS);
  EXPECT_EQ(type, 0);
  EXPECT_EQ(ordinal, -2);
  EXPECT_EQ(host, own);
}

/// What a list of this attribute alone writes over eight bytes that are all 0x5a.
std::uint64_t written_for(const table& cuda, CUpointer_attribute which, CUdeviceptr address) {
  std::uint64_t value = 0x5a5a'5a5a'5a5a'5a5a;
  void* data = &value;
  EXPECT_EQ(cuda.pointer_get_attributes(1, &which, &data, address), CUDA_SUCCESS);
  return value;
}

TEST_F(pointers, to_unknown_memory_fill_as_much_as_each_attribute_has) {
  std::uint64_t value = 0;
  const auto own = reinterpret_cast<std::uintptr_t>(&value);
  const auto written = [&](CUpointer_attribute which) { return written_for(cuda, which, own); };
  for (const auto number :
       {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
        CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
        CU_POINTER_ATTRIBUTE_MAPPED, CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
        CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE}) {
    EXPECT_EQ(written(number), 0x5a5a'5a5a'0000'0000U) << number;
  }
  EXPECT_EQ(written(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL), 0x5a5a'5a5a'ffff'fffeU);
  EXPECT_EQ(written(CU_POINTER_ATTRIBUTE_HOST_POINTER), own);
  for (const auto range :
       {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE}) {
    EXPECT_EQ(written(range), 0x5a5a'5a5a'5a5a'5a5aU) << "nothing";
  }
  for (const auto rest :
       {CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
        CU_POINTER_ATTRIBUTE_P2P_TOKENS, CU_POINTER_ATTRIBUTE_BUFFER_ID,
        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS,
        CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, CU_POINTER_ATTRIBUTE_MAPPING_SIZE,
        CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID}) {
    EXPECT_EQ(written(rest), 0U) << rest;
  }
}

TEST_F(pointers, to_reserved_addresses_tell_the_reservation) {
  CUdeviceptr range = 0;
  ASSERT_EQ(cuda.mem_address_reserve(&range, 2 * unit, 0, 0, 0), CUDA_SUCCESS);
  const CUdeviceptr inside = range + unit + 8;
  EXPECT_EQ(written_for(cuda, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, inside), range);
  EXPECT_EQ(written_for(cuda, CU_POINTER_ATTRIBUTE_RANGE_SIZE, inside), 2 * unit);
  EXPECT_EQ(attribute_answer(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, inside),
            CUDA_ERROR_INVALID_VALUE);
}

// Where sums of addresses and sizes wrap, the memory that was found last is not found again.
TEST_F(pointers, to_the_far_end_of_all_addresses) {
  const CUdeviceptr address = plain(4 * mib);
  for (const CUdeviceptr far : {0 - address, 0 - address + mib, ~CUdeviceptr{0}}) {
    ASSERT_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address), address);
    EXPECT_EQ(attribute_answer(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, far), CUDA_ERROR_INVALID_VALUE);
  }
}

TEST_F(pointers, are_asked_properly) {
  const CUdeviceptr address = plain(64);
  EXPECT_EQ(cuda.pointer_get_attribute(nullptr, CU_POINTER_ATTRIBUTE_CONTEXT, address),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(attribute_answer(static_cast<CUpointer_attribute>(0), address),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(attribute_answer(static_cast<CUpointer_attribute>(22), address),
            CUDA_ERROR_INVALID_VALUE);
  auto unknown = static_cast<CUpointer_attribute>(99);
  std::uint64_t value = 0;
  void* data = &value;
  EXPECT_EQ(cuda.pointer_get_attributes(1, &unknown, &data, address), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.pointer_get_attributes(0, &unknown, &data, address), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace weir::sim_tests
