// SPDX-License-Identifier: Apache-2.0
// Threads that begin where the host has no memory: the process lives, and requests are met or told.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>

#include "support/scratch.hpp"
#include "weir/sim/machine.hpp"
#include "weir/weir.hpp"

extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
}

namespace {

constexpr long plenty = -1;
constinit thread_local long left = plenty;  // allocations before the first that fails

bool is_met() noexcept {
  if (left == plenty) return true;
  if (left > 0) return --left, true;
  errno = ENOMEM;
  return false;
}

}  // namespace

extern "C" {
void* malloc(std::size_t size) { return is_met() ? __libc_malloc(size) : nullptr; }
void* calloc(std::size_t count, std::size_t size) {
  return is_met() ? __libc_calloc(count, size) : nullptr;
}
}

namespace weir { namespace {

class thread_memory : public ::testing::Test {
 protected:
  /// On a new thread, with memory for so many allocations.
  template <class Use>
  static void with(long enough, const Use& use) {
    std::thread{[&] {
      left = enough;
      use();
      left = plenty;
    }}.join();
  }
  static bool is_known(const result<void*>& outcome) {
    return outcome || outcome.code() == errc::no_host_memory ||
           outcome.code() == errc::out_of_memory;  // the simulated driver has none either
  }

  std::shared_ptr<runtime> runtime_ =
      runtime::open_simulated(sim::machine::create().value()).value();
  device gpu = runtime_->device(device_id{0}).value();
  caching_allocator memory = caching_allocator::create(gpu).value();
  stream work = stream::create(gpu).value();
};

TEST_F(thread_memory, first_requests_are_met_or_told) {
  for (long enough = 0; enough < 60; ++enough) {
    void* block = nullptr;
    with(enough, [&] {
      auto outcome = memory.try_allocate(bytes{1000}, work);
      const long rest = std::exchange(left, plenty);
      EXPECT_TRUE(is_known(outcome)) << outcome.error().message();
      if (outcome) block = *outcome;
      left = rest;
      if (block != nullptr && memory.try_deallocate(block, work)) block = nullptr;
    });
    if (block != nullptr) memory.deallocate(block, work);
  }
  EXPECT_EQ(memory.stats().blocks.current, 0u);
}

TEST_F(thread_memory, first_frees_are_met) {
  void* const block = memory.allocate(bytes{1000}, work);
  bool is_freed = false;
  with(0, [&] { is_freed = memory.try_deallocate(block, work).has_value(); });
  EXPECT_TRUE(is_freed);
  EXPECT_EQ(memory.stats().blocks.current, 0u);
}

TEST_F(thread_memory, first_events_are_recorded_or_counted) {
  const testing_support::scratch_folder folder;
  const auto recorded = recorder::start(folder.path("first.weirtrace")).value();
  auto observation = memory.add_observer(*recorded).value();
  void* const block = memory.allocate(bytes{1000}, work);
  with(0, [&] { EXPECT_TRUE(memory.try_deallocate(block, work)); });
  observation.close();
  ASSERT_TRUE(recorded->close());
  const auto read = read_trace(folder.path("first.weirtrace")).value();
  const auto frees = std::count_if(read.events.begin(), read.events.end(), [](const auto& each) {
    return each.kind == trace_kind::deallocate;
  });
  EXPECT_EQ(static_cast<std::uint64_t>(frees) + read.dropped, 1u);
}

TEST_F(thread_memory, default_streams_of_threads_are_named) {
  void* const block = memory.allocate(bytes{1000}, stream_ref::per_thread(gpu));
  memory.deallocate(block, stream_ref::per_thread(gpu));
  with(0, [&] {
    const auto outcome = memory.try_allocate(bytes{1000}, stream_ref::per_thread(gpu));
    left = plenty;
    EXPECT_TRUE(is_known(outcome));
    if (outcome) memory.deallocate(*outcome, stream_ref::per_thread(gpu));
  });
  EXPECT_EQ(memory.stats().blocks.current, 0u);
}

TEST_F(thread_memory, a_thread_that_ends_hands_its_cache_back) {
  for (int i = 0; i < 8; ++i) {
    with(plenty, [&] {
      void* const block = memory.allocate(bytes{1000}, work);
      memory.deallocate(block, work);
    });
  }
  EXPECT_EQ(memory.stats().thread_cached, bytes{0});
}

}  // namespace
}  // namespace weir
