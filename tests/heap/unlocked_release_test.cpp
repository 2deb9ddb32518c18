// SPDX-License-Identifier: Apache-2.0
// The driver waits for the device before it takes plain memory back. Meanwhile nobody waits for the
// heap's lock, and the memory on its way is neither used nor forgotten.
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "heap/suspend_fixture.hpp"

namespace weir::testing_support { namespace {

using driver::call;

/// 40 MiB of plain memory, cached, and work on a stream that the allocator does not know. What
/// gives the memory back waits for that work.
class unlocked_release_test : public suspend_test {
 protected:
  unlocked_release_test() {
    const context_scope bound{gpu()};
    EXPECT_EQ(cuda().stream_create(&other, driver::CU_STREAM_NON_BLOCKING), driver::CUDA_SUCCESS);
  }
  ~unlocked_release_test() override {
    const context_scope bound{gpu()};
    EXPECT_EQ(cuda().stream_destroy(other), driver::CUDA_SUCCESS);
  }
  [[nodiscard]] caching_allocator make_cached(allocator_options settings = {}) {
    settings.policy = placement_policy::classic;
    auto memory = make(settings);
    memory.deallocate(memory.allocate(40_MiB, on), on);
    EXPECT_TRUE(on.synchronize());
    return memory;
  }
  [[nodiscard]] std::unique_ptr<held_stream> keep_device_busy() {
    auto held = std::make_unique<held_stream>(*machine, other);
    const context_scope bound{gpu()};
    EXPECT_TRUE(machine->launch(other, "kernel", {}));
    return held;
  }
  /// The call waits for the device. The end of a stream and questions do not wait for the call.
  void expect_others_go_on(caching_allocator& memory, bytes reserved,
                           const std::function<void()>& call) {
    auto unrelated = new_stream();
    auto held = keep_device_busy();
    other_caller caller{call};
    EXPECT_TRUE(caller.waits());
    EXPECT_TRUE(unrelated.close());
    EXPECT_EQ(memory.stats().reserved.current, reserved) << "the driver does not have it yet";
    EXPECT_EQ(check(memory), "");
    EXPECT_TRUE(caller.waits()) << "it was the device that it waited for";
    held->release();
  }

  driver::CUstream other = nullptr;
};

TEST_F(unlocked_release_test, whoever_releases_cached_memory_holds_nobody_up) {
  using action = std::function<result<bytes>(caching_allocator&)>;
  const std::vector<action> ways = {[](auto& memory) { return memory.trim(); },
                                    [](auto& memory) { return memory.shrink(0_B); },
                                    [](auto& memory) { return memory.empty_cache(); }};
  for (const action& way : ways) {
    auto memory = make_cached();
    result<bytes> released = bytes{};
    expect_others_go_on(memory, 40_MiB, [&] { released = way(memory); });
    EXPECT_EQ(released.value(), 40_MiB);
    EXPECT_EQ(memory.stats().reserved.current, 0_B);
    EXPECT_EQ(used(), 0_B);
  }
}

TEST_F(unlocked_release_test, so_does_a_request_that_needs_the_memory_in_another_shape) {
  auto memory = make_cached({.limit = 60_MiB});
  result<void*> served = nullptr;
  expect_others_go_on(memory, 40_MiB, [&] { served = memory.try_allocate(50_MiB, on); });
  ASSERT_TRUE(served);
  EXPECT_EQ(memory.stats().reserved.current, 50_MiB);
  EXPECT_EQ(check(memory), "");
  memory.deallocate(*served, on);
}

TEST_F(unlocked_release_test, so_does_a_request_of_another_pool) {
  auto memory = make_cached({.limit = 60_MiB});
  const auto pool = memory.create_pool("other", {.segments = true}).value();
  result<void*> served = nullptr;
  expect_others_go_on(memory, 40_MiB, [&] { served = pool.try_allocate(50_MiB, on); });
  ASSERT_TRUE(served);
  EXPECT_EQ(memory.stats().reserved.current, 50_MiB);
  memory.deallocate(*served, on);
}

TEST_F(unlocked_release_test, so_does_the_end_of_a_pool_and_what_asks_for_it) {
  allocator_options settings;
  settings.policy = placement_policy::classic;
  auto memory = make(settings);
  {
    auto pool = memory.create_pool("passing").value();
    memory.deallocate(pool.allocate(40_MiB, on), on);
    ASSERT_TRUE(on.synchronize());
    result<bytes> released = bytes{};
    expect_others_go_on(memory, 40_MiB, [&] { released = pool.empty_cache(); });
    EXPECT_EQ(released.value(), 40_MiB);
    memory.deallocate(pool.allocate(40_MiB, on), on);
    ASSERT_TRUE(on.synchronize());
    expect_others_go_on(memory, 40_MiB, [&] { const auto last = std::exchange(pool, {}); });
  }
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
  EXPECT_EQ(memory.snapshot().pools.size(), 1u);
}

TEST_F(unlocked_release_test, the_end_of_an_allocator_holds_nobody_up) {
  auto memory = make_cached();
  // Live: only the end takes it. What the end waits for by itself is over then.
  static_cast<void>(memory.allocate(60_MiB, on));
  auto unrelated = new_stream();
  result<void> closed = errc::internal;
  {
    auto held = keep_device_busy();
    other_caller caller{[&] { closed = memory.close(); }};
    EXPECT_TRUE(caller.waits());
    EXPECT_TRUE(unrelated.close());
    held->release();
  }
  EXPECT_TRUE(closed);
  EXPECT_EQ(used(), 0_B);
  ASSERT_EQ(heard.take().size(), 1u) << "the live block";
}

TEST_F(unlocked_release_test, memory_on_its_way_serves_no_request_and_is_waited_for) {
  auto memory = make_cached({.limit = 40_MiB});
  const auto allocated = machine->calls(call::mem_alloc);
  auto held = keep_device_busy();
  result<bytes> released = bytes{};
  result<void*> served = nullptr;
  {
    other_caller trimmer{[&] { released = memory.trim(); }};
    ASSERT_TRUE(trimmer.waits());
    other_caller asker{[&] { served = memory.try_allocate(40_MiB, on); }};
    EXPECT_TRUE(asker.waits());
    held->release();
  }
  EXPECT_EQ(released.value(), 40_MiB);
  ASSERT_TRUE(served) << "there is room once the driver has the memory";
  EXPECT_EQ(machine->calls(call::mem_alloc), allocated + 1);
  EXPECT_EQ(memory.stats().reserved, (byte_gauge{40_MiB, 40_MiB}));
  EXPECT_EQ(check(memory), "");
  memory.deallocate(*served, on);
}

TEST_F(unlocked_release_test, what_the_driver_refuses_is_cached_again) {
  auto memory = make_cached();
  const auto allocated = machine->calls(call::mem_alloc);
  machine->fail(call::mem_free, 1, driver::CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code_of(memory.trim()), errc::driver_error);
  EXPECT_EQ(memory.stats().reserved.current, 40_MiB);
  EXPECT_EQ(check(memory), "");
  void* const again = memory.allocate(40_MiB, on);
  EXPECT_EQ(machine->calls(call::mem_alloc), allocated) << "it was there";
  memory.deallocate(again, on);
  ASSERT_TRUE(on.synchronize());
  EXPECT_EQ(memory.trim().value(), 40_MiB);
}

TEST_F(unlocked_release_test, an_end_meanwhile_waits_and_takes_nothing_twice) {
  auto memory = make_cached();
  auto held = keep_device_busy();
  result<bytes> released = bytes{};
  result<void> closed = errc::internal;
  {
    other_caller trimmer{[&] { released = memory.trim(); }};
    ASSERT_TRUE(trimmer.waits());
    other_caller closer{[&] { closed = memory.close(); }};
    EXPECT_TRUE(closer.waits());
    held->release();
  }
  EXPECT_EQ(code_of(released), errc::closed);
  EXPECT_TRUE(closed);
  EXPECT_EQ(used(), 0_B);
  EXPECT_EQ(machine->calls(call::mem_free), machine->calls(call::mem_alloc));
}

// --- Host memory of suspended contents -----------------------------------------------------------

/// The free of a suspended block gives its host memory back, with the heap's lock.
TEST_F(unlocked_release_test, host_memory_on_its_way_holds_no_free_up) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  ASSERT_TRUE(memory.declare_suspendable(cache));
  void* const suspended = allocate(memory, weights, 20_MiB);
  void* const resumed = allocate(memory, cache, 100_MiB);
  ASSERT_TRUE(memory.suspend(weights));
  ASSERT_TRUE(memory.suspend(cache));
  ASSERT_TRUE(memory.resume(cache));
  const bytes before = memory.stats().backup.current;
  auto unrelated = new_stream();
  result<bytes> trimmed = bytes{};
  {
    auto held = keep_device_busy();
    other_caller trimmer{[&] { trimmed = memory.trim_backup(); }};
    ASSERT_TRUE(trimmer.waits());
    memory.deallocate(suspended, on);
    EXPECT_TRUE(unrelated.close());
    EXPECT_EQ(memory.stats().backup.current, before) << "the driver does not have it yet";
    held->release();
  }
  ASSERT_TRUE(trimmed);
  const bytes rest = memory.trim_backup().value();
  EXPECT_EQ(*trimmed + rest, before);
  EXPECT_EQ(memory.stats().backup.current, 0_B);
  memory.deallocate(resumed, on);
}

TEST_F(unlocked_release_test, host_memory_that_the_driver_refuses_serves_again) {
  auto memory = make();
  ASSERT_TRUE(memory.reserve_backup(64_MiB));
  machine->fail(call::mem_free_host, 1, driver::CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code_of(memory.trim_backup()), errc::driver_error);
  EXPECT_EQ(memory.stats().backup.current, 64_MiB);
  const auto before = machine->calls(call::mem_host_alloc);
  ASSERT_TRUE(memory.reserve_backup(64_MiB));
  EXPECT_EQ(machine->calls(call::mem_host_alloc), before) << "it was there";
  EXPECT_EQ(memory.trim_backup().value(), 64_MiB);
}

TEST_F(unlocked_release_test, the_end_of_an_allocator_gives_host_memory_back_without_the_lock) {
  auto memory = make();
  ASSERT_TRUE(memory.reserve_backup(64_MiB));
  auto unrelated = new_stream();
  result<void> closed = errc::internal;
  {
    auto held = keep_device_busy();
    other_caller closer{[&] { closed = memory.close(); }};
    EXPECT_TRUE(closer.waits());
    EXPECT_TRUE(unrelated.close());
    held->release();
  }
  EXPECT_TRUE(closed);
  EXPECT_EQ(machine->calls(call::mem_host_alloc), machine->calls(call::mem_free_host));
}

}  // namespace
}  // namespace weir::testing_support
