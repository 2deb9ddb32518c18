// SPDX-License-Identifier: Apache-2.0
// The parts of a replay by themselves: patterns, turns, the meter and the driver's pool.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>

#include "replay/backend.hpp"
#include "replay/metered_driver.hpp"
#include "replay/patterns.hpp"
#include "replay/replay_threads.hpp"
#include "weir/base/error.hpp"
#include "weir/device/runtime.hpp"
#include "weir/device/virtual_memory.hpp"
#include "weir/sim/machine.hpp"

namespace weir::replay { namespace {

/// The error that `action` throws.
template <class Action>
error thrown_by(const Action& action) {
  try {
    action();
  } catch (const failure& thrown) {
    return thrown.reason();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

class pattern_tests : public ::testing::TestWithParam<bool> {
 protected:
  pattern_tests() {
    const context_scope bound{gpu_};
    memory_ = reinterpret_cast<void*>(allocate_plain(bound, bytes{size}).value());
  }
  ~pattern_tests() override {
    const context_scope bound{gpu_};
    EXPECT_TRUE(free_plain(bound, reinterpret_cast<driver::CUdeviceptr>(memory_)));
  }

  void* at(std::uint64_t offset) const { return static_cast<std::byte*>(memory_) + offset; }

  /// Nothing happens on it unless somebody waits for it.
  static std::shared_ptr<sim::machine> lazy_machine() {
    sim::machine_options options;
    options.mode = sim::progress::manual;
    return sim::machine::create(options).value();
  }

  static constexpr std::uint64_t size = 1 << 20;
  std::shared_ptr<sim::machine> machine_ = lazy_machine();
  std::shared_ptr<runtime> runtime_ = runtime::open_simulated(machine_).value();
  device gpu_ = runtime_->device(device_id{0}).value();
  stream first_ = stream::create(gpu_).value();
  stream second_ = stream::create(gpu_).value();
  void* memory_ = nullptr;
};

TEST_P(pattern_tests, are_found_where_nobody_else_wrote) {
  patterns checked{gpu_, runtime_->driver(), GetParam(), 2};
  const step block{.size = size, .block = 0};
  checked.write(block, memory_, first_);
  checked.queue_check(block, memory_, first_);
  checked.queue_check(block, memory_, second_);  // ordered behind the write, on another stream
  EXPECT_EQ(0u, checked.mismatches());
  EXPECT_TRUE(machine_->hazards().empty());
}

TEST_P(pattern_tests, are_missed_where_another_block_had_the_same_bytes) {
  patterns checked{gpu_, runtime_->driver(), GetParam(), 3};
  const step block{.size = size, .block = 0};
  const step overlapping{.size = size / 2, .block = 1};
  checked.write(block, memory_, first_);
  checked.write(overlapping, memory_, first_);
  checked.queue_check(block, memory_, first_);
  checked.queue_check(overlapping, memory_, first_);
  EXPECT_EQ(1u, checked.mismatches());
}

/// The first and the last of the words that are looked at, alone.
TEST_P(pattern_tests, are_missed_where_a_single_word_was_overwritten) {
  patterns checked{gpu_, runtime_->driver(), GetParam(), 3};
  const step block{.size = size, .block = 0};
  const step word{.size = 4, .block = 1};
  const std::uint64_t last = (size / 4 - 1) / 7 * 4 * 7;
  std::uint64_t expected = 0;
  for (const std::uint64_t offset : {std::uint64_t{0}, last, last / 7 * 3}) {
    checked.write(block, memory_, first_);
    checked.queue_check(block, memory_, first_);
    checked.write(word, at(offset), first_);
    checked.queue_check(block, memory_, first_);
    checked.queue_check(word, at(offset), first_);
    EXPECT_EQ(++expected, checked.mismatches()) << offset;
  }
  // And where it lies behind the block, nobody notices.
  const step half{.size = size / 2, .block = 2};
  checked.write(half, memory_, first_);
  checked.write(word, at(size / 2), first_);
  checked.queue_check(half, memory_, first_);
  EXPECT_EQ(expected, checked.mismatches());
}

TEST_P(pattern_tests, fit_into_blocks_of_any_size) {
  patterns checked{gpu_, runtime_->driver(), GetParam(), 64};
  std::uint32_t number = 0;
  for (const std::uint64_t block_size : {0, 1, 3, 4, 7, 8, 33, 511, 4097}) {
    const step block{.size = block_size, .block = number++};
    const step behind{.size = 4, .block = number++};
    checked.write(behind, at((block_size + 3) / 4 * 4), first_);
    checked.write(block, memory_, first_);
    checked.queue_check(block, memory_, first_);
    checked.queue_check(behind, at((block_size + 3) / 4 * 4), first_);
  }
  EXPECT_EQ(0u, checked.mismatches());
  EXPECT_TRUE(machine_->hazards().empty());
}

const driver::table* simulated_calls = nullptr;
std::size_t copied_pitch = 0;

driver::CUresult note_pitch(const driver::CUDA_MEMCPY2D* copy, driver::CUstream queue) {
  copied_pitch = copy->srcPitch;
  return simulated_calls->memcpy_2d_async(copy, queue);
}

TEST_P(pattern_tests, are_copied_from_words_at_equal_distances) {
  simulated_calls = &runtime_->driver();
  driver::table noting = *simulated_calls;
  noting.memcpy_2d_async = note_pitch;
  patterns checked{gpu_, noting, GetParam(), 1};
  const auto pitch_in = [&](std::uint64_t block_size) {
    const step block{.size = block_size, .block = 0};
    checked.write(block, memory_, first_);
    checked.queue_check(block, memory_, first_);
    return std::exchange(copied_pitch, 0);
  };
  EXPECT_EQ(4u, pitch_in(4)) << "drivers may refuse rows that are closer than they are wide";
  EXPECT_EQ(4u, pitch_in(7));
  EXPECT_EQ(4u, pitch_in(8));
  EXPECT_EQ(4u, pitch_in(35));
  EXPECT_EQ(8u, pitch_in(60));
  EXPECT_EQ(584u, pitch_in(4097));
  EXPECT_EQ(0u, checked.mismatches());
}

/// Each stream's write is queued long before it happens: a check that does not wait finds nothing.
TEST_P(pattern_tests, are_checked_behind_the_stream_that_wrote_them) {
  patterns checked{gpu_, runtime_->driver(), GetParam(), 2};
  const step first_block{.size = size / 2, .block = 0};
  const step second_block{.size = size / 2, .block = 1};
  checked.write(first_block, memory_, first_);
  checked.write(second_block, at(size / 2), second_);
  checked.queue_check(first_block, memory_, second_);
  checked.queue_check(second_block, at(size / 2), first_);
  EXPECT_EQ(0u, checked.mismatches());
  EXPECT_TRUE(machine_->hazards().empty());
}

TEST_P(pattern_tests, are_checked_however_many_there_are) {
  patterns checked{gpu_, runtime_->driver(), GetParam(), 2};
  const step block{.size = 64, .block = 0};
  const auto waits = [&, before = machine_->calls(driver::call::stream_synchronize)] {
    return machine_->calls(driver::call::stream_synchronize) - before;
  };
  checked.write(block, memory_, first_);
  for (int i = 0; i < 4000; ++i) checked.queue_check(block, memory_, first_);
  checked.write(step{.size = 64, .block = 1}, memory_, first_);
  for (int i = 0; i < 96; ++i) checked.queue_check(block, memory_, first_);
  EXPECT_EQ(0u, waits());
  // The buffer is full: one wait for what there is.
  for (int i = 0; i < 904; ++i) checked.queue_check(block, memory_, i % 2 == 0 ? first_ : second_);
  EXPECT_EQ(1u, waits());
  EXPECT_EQ(1000u, checked.mismatches());
  EXPECT_EQ(3u, waits()) << "for both streams";
  EXPECT_EQ(1000u, checked.mismatches());
  EXPECT_EQ(3u, waits()) << "there is nothing to wait for";
}

TEST_P(pattern_tests, free_what_they_copy_to) {
  {
    const patterns checked{gpu_, runtime_->driver(), GetParam(), 1};
    EXPECT_EQ(1u, machine_->calls(driver::call::mem_host_alloc));
    EXPECT_EQ(0u, machine_->calls(driver::call::mem_free_host));
  }
  EXPECT_EQ(1u, machine_->calls(driver::call::mem_host_alloc));
  EXPECT_EQ(1u, machine_->calls(driver::call::mem_free_host));
}

TEST_P(pattern_tests, say_which_call_failed) {
  const auto refused_by = [&](driver::call call, const auto& action) {
    machine_->fail(call, 1, driver::CUDA_ERROR_UNKNOWN);
    const error reason = thrown_by(action);
    EXPECT_EQ(errc::driver_error, reason.code());
    EXPECT_EQ(driver::CUDA_ERROR_UNKNOWN, reason.native());
    return std::pair{std::string{reason.call()}, reason.requested()};
  };
  using said = std::pair<std::string, bytes>;
  const auto make = [&] { patterns{gpu_, runtime_->driver(), GetParam(), 1}; };
  EXPECT_EQ(said("cuMemHostAlloc", 4096 * 8 * 4), refused_by(driver::call::mem_host_alloc, make));
  EXPECT_EQ(said("cuCtxPushCurrent", 0), refused_by(driver::call::ctx_push_current, make));

  patterns checked{gpu_, runtime_->driver(), GetParam(), 1};
  const step block{.size = size, .block = 0};
  const auto write = [&] { checked.write(block, memory_, first_); };
  const auto check = [&] { checked.queue_check(block, memory_, first_); };
  EXPECT_EQ(said("cuMemsetD32Async", 0), refused_by(driver::call::memset_d32_async, write));
  EXPECT_EQ(said("cuCtxPushCurrent", 0), refused_by(driver::call::ctx_push_current, write));
  EXPECT_EQ(said("cuMemcpy2DAsync", 0), refused_by(driver::call::memcpy_2d_async, check));
  EXPECT_EQ(said("cuCtxPushCurrent", 0), refused_by(driver::call::ctx_push_current, check));
  write();
  check();
  EXPECT_EQ(0u, checked.mismatches());
}

INSTANTIATE_TEST_SUITE_P(fills, pattern_tests, ::testing::Bool(),
                         [](const auto& whole) { return whole.param ? "whole" : "words"; });

TEST(replay_threads, each_is_a_thread_of_its_own_and_turns_come_in_order) {
  replay_threads three{3};
  std::vector<std::thread::id> threads(3);
  std::vector<std::size_t> order;
  for (const std::size_t index : {2, 0, 1, 0, 2}) {
    three.run(index, [&, index] {
      order.push_back(index);
      if (threads[index] == std::thread::id{}) threads[index] = std::this_thread::get_id();
      EXPECT_EQ(threads[index], std::this_thread::get_id());
    });
  }
  EXPECT_EQ((std::vector<std::size_t>{2, 0, 1, 0, 2}), order);
  EXPECT_NE(threads[0], threads[1]);
  EXPECT_NE(threads[1], threads[2]);
  EXPECT_NE(threads[0], std::this_thread::get_id());
}

TEST(replay_threads, an_exception_of_one_arrives_at_the_caller) {
  replay_threads two{2};
  EXPECT_THROW(two.run(1, [] { throw std::runtime_error{"no"}; }), std::runtime_error);
  bool ran = false;
  two.run(1, [&] { ran = true; });
  EXPECT_TRUE(ran);
}

TEST(replay_threads, of_one_or_of_too_many_are_the_caller) {
  for (const std::size_t count : {0, 1, 65}) {
    replay_threads single{count};
    EXPECT_TRUE(single.is_single()) << count;
    std::thread::id thread;
    single.run(0, [&] { thread = std::this_thread::get_id(); });
    EXPECT_EQ(std::this_thread::get_id(), thread);
  }
  for (const std::size_t count : {2, 64}) {
    replay_threads several{count};
    EXPECT_FALSE(several.is_single()) << count;
    std::thread::id thread;
    several.run(count - 1, [&] { thread = std::this_thread::get_id(); });
    EXPECT_NE(std::this_thread::get_id(), thread);
  }
}

// --- The meter ----------------------------------------------------------------------------------

driver::CUresult initialize(unsigned flags) {
  return flags == 7 ? driver::CUDA_SUCCESS : driver::CUDA_ERROR_INVALID_VALUE;
}
driver::CUresult count_devices(int* count) {
  *count = 5;
  std::this_thread::sleep_for(std::chrono::microseconds{100});
  return driver::CUDA_SUCCESS;
}

TEST(metered_driver, forwards_and_counts) {
  driver::table real;
  real.init = initialize;
  real.device_get_count = count_devices;
  const driver::table& metered = meter_driver(real);
  EXPECT_EQ(nullptr, metered.mem_create) << "which the real one lacks";
  const driver_cost before = metered_cost();
  const auto kinds_before = metered_tallies();
  EXPECT_EQ(driver::CUDA_SUCCESS, metered.init(7));
  EXPECT_EQ(driver::CUDA_ERROR_INVALID_VALUE, metered.init(8));
  int count = 0;
  EXPECT_EQ(driver::CUDA_SUCCESS, metered.device_get_count(&count));
  EXPECT_EQ(5, count);
  const driver_cost spent = metered_cost() - before;
  EXPECT_EQ(3u, spent.calls);
  EXPECT_GE(spent.time, std::chrono::microseconds{100});
  const auto kinds = metered_tallies();
  const auto of = [](const auto& tallies, driver::call call) {
    return tallies[static_cast<std::size_t>(call)];
  };
  using enum driver::call;
  EXPECT_EQ(2u, of(kinds, init).count - of(kinds_before, init).count);
  EXPECT_EQ(1u, of(kinds, device_get_count).count - of(kinds_before, device_get_count).count);
  EXPECT_EQ(0u, of(kinds, mem_create).count - of(kinds_before, mem_create).count);
  const auto counted = of(kinds, device_get_count).time - of(kinds_before, device_get_count).time;
  EXPECT_GE(counted, std::chrono::microseconds{100});
  EXPECT_EQ(spent.time, counted + of(kinds, init).time - of(kinds_before, init).time);
}

TEST(metered_driver, what_it_costs_itself_is_little_and_counts_for_nobody) {
  const driver_cost before = metered_cost();
  const double cost = metering_cost();
  EXPECT_GE(cost, 0);
  EXPECT_LT(cost, 100'000);
  EXPECT_EQ(0u, (metered_cost() - before).calls);
}

TEST(metered_driver, costs_add_up) {
  const driver_cost sum =
      driver_cost{3, std::chrono::nanoseconds{5}} + driver_cost{4, std::chrono::nanoseconds{6}};
  EXPECT_EQ(7u, sum.calls);
  EXPECT_EQ(std::chrono::nanoseconds{11}, sum.time);
  const driver_cost difference = sum - driver_cost{2, std::chrono::nanoseconds{1}};
  EXPECT_EQ(5u, difference.calls);
  EXPECT_EQ(std::chrono::nanoseconds{10}, difference.time);
}

// --- The driver's pool --------------------------------------------------------------------------

class driver_pool_tests : public ::testing::Test {
 protected:
  static constexpr std::uint64_t mebibyte = 1 << 20;

  void* allocate(std::uint64_t size) { return backend_->allocate(step{.size = size}, first_); }
  /// Queues a write of the block's first word.
  void write(void* block, const stream& queue) {
    const context_scope bound{gpu_};
    EXPECT_EQ(driver::CUDA_SUCCESS,
              runtime_->driver().memset_d32_async(reinterpret_cast<driver::CUdeviceptr>(block), 1,
                                                  1, queue.handle()));
  }

  std::shared_ptr<sim::machine> machine_ = sim::machine::create().value();
  std::shared_ptr<runtime> runtime_ = runtime::open_simulated(machine_).value();
  device gpu_ = runtime_->device(device_id{0}).value();
  stream first_ = stream::create(gpu_).value();
  stream second_ = stream::create(gpu_).value();
  std::unique_ptr<backend> backend_ =
      make_driver_pool_backend(gpu_, {.policy = policy::driver_pool}).value();
};

TEST_F(driver_pool_tests, keeps_what_it_has_and_tells_the_most_since_it_was_asked) {
  EXPECT_EQ(0u, backend_->take_reserved_peak());
  EXPECT_EQ(nullptr, allocate(0));
  void* const block = allocate(40 * mebibyte);
  ASSERT_NE(nullptr, block);
  EXPECT_EQ(64 * mebibyte, backend_->take_reserved_peak());
  backend_->free(block, first_);
  EXPECT_TRUE(first_.ref().synchronize());
  EXPECT_EQ(64 * mebibyte, backend_->take_reserved_peak());
  EXPECT_EQ(64 * mebibyte, backend_->take_reserved_peak()) << "it releases nothing by itself";
  backend_->free(nullptr, first_);
  EXPECT_EQ(memory_stats{}, backend_->stats());
  backend_->close();
  EXPECT_TRUE(machine_->hazards().empty());
}

TEST_F(driver_pool_tests, waits_for_recorded_streams_before_it_frees) {
  void* const block = allocate(mebibyte);
  write(block, first_);
  EXPECT_TRUE(first_.ref().synchronize());
  backend_->record_stream(block, second_);
  backend_->record_stream(block, first_);
  backend_->record_stream(nullptr, second_);
  write(block, second_);
  const std::uint64_t waits = machine_->calls(driver::call::stream_wait_event);
  backend_->free(block, first_);
  EXPECT_EQ(waits + 1, machine_->calls(driver::call::stream_wait_event)) << "not for itself";
  void* const again = allocate(mebibyte);
  EXPECT_EQ(block, again);
  write(again, first_);
  EXPECT_TRUE(first_.ref().synchronize());
  EXPECT_TRUE(machine_->hazards().empty());
  // The next block there is another one.
  backend_->free(again, first_);
  EXPECT_EQ(waits + 1, machine_->calls(driver::call::stream_wait_event));
  backend_->close();
}

TEST_F(driver_pool_tests, has_nothing_where_there_is_no_memory) {
  EXPECT_EQ(nullptr, allocate(std::uint64_t{1} << 50));
  void* const block = allocate(mebibyte);
  EXPECT_NE(nullptr, block);
  backend_->free(block, first_);
  backend_->close();
}

TEST_F(driver_pool_tests, says_which_call_failed) {
  void* const block = allocate(mebibyte);
  const auto refused_by = [&](driver::call call, const auto& action) {
    machine_->fail(call, 1, driver::CUDA_ERROR_UNKNOWN);
    const error reason = thrown_by(action);
    EXPECT_EQ(errc::driver_error, reason.code());
    EXPECT_EQ(driver::CUDA_ERROR_UNKNOWN, reason.native());
    return std::pair{std::string{reason.call()}, reason.requested()};
  };
  using said = std::pair<std::string, bytes>;
  const auto request = [&] { EXPECT_EQ(nullptr, allocate(5 * mebibyte)); };
  const auto free = [&] { backend_->free(block, first_); };
  const auto ask = [&] { EXPECT_EQ(0u, backend_->take_reserved_peak()); };
  const auto close = [&] { backend_->close(); };
  EXPECT_EQ(said("cuMemAllocFromPoolAsync", 5 * mebibyte),
            refused_by(driver::call::mem_alloc_from_pool_async, request));
  EXPECT_EQ(said("cuMemFreeAsync", 0), refused_by(driver::call::mem_free_async, free));
  EXPECT_EQ(said("cuMemPoolGetAttribute", 0),
            refused_by(driver::call::mem_pool_get_attribute, ask));
  EXPECT_EQ(said("cuMemPoolSetAttribute", 0),
            refused_by(driver::call::mem_pool_set_attribute, ask));
  EXPECT_EQ(said("cuMemPoolDestroy", 0), refused_by(driver::call::mem_pool_destroy, close));
  const auto refuse_context = [&](const auto& action) {
    return refused_by(driver::call::ctx_push_current, action);
  };
  EXPECT_EQ(said("cuCtxPushCurrent", 0), refuse_context(request));
  EXPECT_EQ(said("cuCtxPushCurrent", 0), refuse_context(free));
  EXPECT_EQ(said("cuCtxPushCurrent", 0), refuse_context(ask));
  EXPECT_EQ(said("cuCtxPushCurrent", 0), refuse_context(close));
  free();
  close();
}

TEST(driver_pool, needs_the_device_s_context) {
  const auto machine = sim::machine::create().value();
  const auto opened = runtime::open_simulated(machine).value();
  const device gpu = opened->device(device_id{0}).value();
  machine->fail(driver::call::ctx_push_current, 1, driver::CUDA_ERROR_UNKNOWN);
  const auto refused = make_driver_pool_backend(gpu, {});
  EXPECT_EQ(errc::driver_error, refused.code());
  EXPECT_EQ("cuCtxPushCurrent", refused.error().call());
  EXPECT_EQ(0u, machine->calls(driver::call::mem_pool_create));
}

TEST(driver_pool, goes_when_it_cannot_be_told_to_keep_its_memory) {
  const auto machine = sim::machine::create().value();
  const auto opened = runtime::open_simulated(machine).value();
  const device gpu = opened->device(device_id{0}).value();
  machine->fail(driver::call::mem_pool_set_attribute, 1, driver::CUDA_ERROR_UNKNOWN);
  const auto refused = make_driver_pool_backend(gpu, {});
  EXPECT_EQ("cuMemPoolSetAttribute", refused.error().call());
  EXPECT_EQ(1u, machine->calls(driver::call::mem_pool_create));
  EXPECT_EQ(1u, machine->calls(driver::call::mem_pool_destroy));
}

TEST(driver_pool, has_memory_of_its_device) {
  sim::machine_options two;
  two.devices.resize(2);
  const auto machine = sim::machine::create(two).value();
  const auto opened = runtime::open_simulated(machine).value();
  for (const int number : {1, 0}) {
    const device gpu = opened->device(device_id{number}).value();
    const stream queue = stream::create(gpu).value();
    const bytes before = machine->used(gpu.id());
    const bytes before_elsewhere = machine->used(device_id{1 - number});
    const auto pool = make_driver_pool_backend(gpu, {}).value();
    void* const block = pool->allocate(step{.size = 5 << 20}, queue);
    ASSERT_NE(nullptr, block);
    EXPECT_EQ(bytes{32 << 20}, machine->used(gpu.id()) - before);
    EXPECT_EQ(before_elsewhere, machine->used(device_id{1 - number}));
    pool->free(block, queue);
    EXPECT_TRUE(queue.ref().synchronize());
    EXPECT_EQ(bytes{32 << 20}, machine->used(gpu.id()) - before) << "which it keeps";
    pool->close();
    EXPECT_EQ(before, machine->used(gpu.id()));
  }
}

TEST(driver_pool, is_not_made_where_the_driver_refuses) {
  const auto machine = sim::machine::create().value();
  const auto opened = runtime::open_simulated(machine).value();
  const device gpu = opened->device(device_id{0}).value();
  using driver::call;
  for (const call refusing : {call::mem_pool_create, call::mem_pool_set_attribute}) {
    machine->fail(refusing, 1, driver::CUDA_ERROR_UNKNOWN);
    const auto refused = make_driver_pool_backend(gpu, {});
    EXPECT_EQ(errc::driver_error, refused.code());
    EXPECT_EQ(driver::info(refusing).symbol, refused.error().call());
  }
}

TEST(driver_pool, needs_a_device_that_has_pools) {
  sim::machine_options plain;
  plain.devices.front().memory_pools = false;
  const auto machine = sim::machine::create(plain).value();
  const auto old = runtime::open_simulated(machine).value();
  const auto refused = make_driver_pool_backend(old->device(device_id{0}).value(), {});
  EXPECT_EQ(errc::not_supported, refused.code());
  EXPECT_EQ("", refused.error().call());
  EXPECT_EQ(0u, machine->calls(driver::call::mem_pool_create)) << "it is not tried";
}

}  // namespace
}  // namespace weir::replay
