// SPDX-License-Identifier: Apache-2.0
// A simulated GPU with an allocator on it, and what was reported meanwhile.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "heap/central_heap.hpp"
#include "support/reports.hpp"
#include "support/sanitizers.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"

namespace weir::testing_support {

using namespace weir::literals;

/// Counts what an allocator tells.
class listener final : public event_sink {
 public:
  void on_event(const memory_event& event) noexcept override {
    const std::lock_guard lock{mutex_};
    events_.push_back(event);
  }
  [[nodiscard]] std::vector<memory_event> take() {
    const std::lock_guard lock{mutex_};
    return std::exchange(events_, {});
  }
  [[nodiscard]] std::size_t count(memory_event_kind kind) {
    const std::lock_guard lock{mutex_};
    return static_cast<std::size_t>(std::count_if(
        events_.begin(), events_.end(), [&](const auto& each) { return each.kind == kind; }));
  }

 private:
  std::mutex mutex_;
  std::vector<memory_event> events_;
};

/// A stream whose work nothing moves on until the end of the scope, so that a test that ends early
/// leaves no allocator behind that waits for it. Whoever waits for it meanwhile would wait for
/// ever: that is a failure, and the stream goes on.
class held_stream {
 public:
  held_stream(sim::machine& machine, driver::CUstream stream) : machine_{machine}, stream_{stream} {
    machine_.hold(stream_);
    guard_ = std::thread{[this] {
      std::unique_lock lock{mutex_};
      if (over_.wait_for(lock, std::chrono::seconds{10}, [this] { return released_; })) return;
      ADD_FAILURE() << "somebody waits for a stream that is held";
      machine_.release(stream_);
    }};
  }
  ~held_stream() { release(); }
  held_stream(const held_stream&) = delete;
  held_stream& operator=(const held_stream&) = delete;
  void release() {
    {
      const std::lock_guard lock{mutex_};
      if (std::exchange(released_, true)) return;
    }
    over_.notify_one();
    guard_.join();
    machine_.release(stream_);
  }

 private:
  sim::machine& machine_;
  driver::CUstream stream_;
  std::mutex mutex_;
  std::condition_variable over_;
  bool released_ = false;
  std::thread guard_;
};

/// 2 GiB of simulated device; some sanitizers leave few addresses. Nothing may be left that races
/// or was reported, unless a test took it.
class heap_test : public ::testing::Test {
 protected:
  explicit heap_test(sim::progress mode = sim::progress::manual, bytes capacity = 2_GiB) {
    sim::machine_options settings;
    settings.devices.assign(2, sim::device_spec{.capacity = capacity, .context_overhead = 64_MiB});
    settings.mode = mode;
    machine = sim::machine::create(settings).value();
    runtime_ = runtime::open_simulated(machine).value();
  }
  void TearDown() override {
    for (const auto& found : machine->hazards()) ADD_FAILURE() << found.message();
    for (const auto& each : heard.take()) ADD_FAILURE() << each.message();
  }

  [[nodiscard]] device gpu(int index = 0) const {
    return runtime_->device(device_id{index}).value();
  }
  [[nodiscard]] caching_allocator make(const allocator_options& settings = {}) const {
    return caching_allocator::create(gpu(), settings).value();
  }
  [[nodiscard]] stream new_stream() const { return stream::create(gpu()).value(); }
  [[nodiscard]] held_stream hold(const stream& on) const { return {*machine, on.handle()}; }
  /// A kernel that writes the memory.
  void write(const stream_ref& on, void* where, bytes size) {
    const context_scope bound{gpu()};
    ASSERT_TRUE(
        machine->launch(on.handle(), "kernel write",
                        {sim::writes(reinterpret_cast<driver::CUdeviceptr>(where), size.count())}));
  }
  /// Says what contradicts itself inside; empty if nothing.
  [[nodiscard]] static std::string check(caching_allocator& memory) {
    return heap::central_heap::of(memory).inspection().check();
  }

  /// Plays the scenario on fresh allocators, with each of its driver calls failing in turn.
  /// Whatever it leaves, once `settle` has seen to it, is exact and can be emptied; then `most` can
  /// be had.
  using play_on = std::function<void(caching_allocator&, const stream&, const stream&)>;
  void fail_each_call(const allocator_options& settings, bytes most, const play_on& play,
                      const play_on& settle = {}) {
    std::uint64_t calls = 0;
    {
      const auto one = new_stream();
      const auto two = new_stream();
      caching_allocator fresh = make(settings);
      const auto before = machine->calls();
      play(fresh, one, two);
      calls = machine->calls() - before;
    }
    ASSERT_GT(calls, 30u);
    // Under sanitizers one call in five; fault_sweeps_tests fails each of them.
    for (std::uint64_t nth = 1; nth <= calls; nth += is_sanitized ? 11 : 1) {
      for (const auto with : {driver::CUDA_ERROR_UNKNOWN, driver::CUDA_ERROR_OUT_OF_MEMORY}) {
        SCOPED_TRACE("call " + std::to_string(nth));
        const auto one = new_stream();
        const auto two = new_stream();
        caching_allocator fresh = make(settings);
        machine->fail_any(nth, with);
        play(fresh, one, two);
        machine->clear_faults();
        if (settle) settle(fresh, one, two);
        ASSERT_EQ(check(fresh), "");
        ASSERT_TRUE(fresh.empty_cache());
        ASSERT_EQ(fresh.stats().blocks.current, 0u);
        ASSERT_EQ(fresh.stats().reserved.current, 0_B);
        ASSERT_EQ(fresh.snapshot().pools.size(), 1u);
        void* const p = fresh.allocate(most, one);
        fresh.deallocate(p, one);
        ASSERT_TRUE(fresh.close());
        static_cast<void>(heard.take());  // a context that could not be put back
      }
    }
    EXPECT_THAT(machine->hazards(), ::testing::IsEmpty());
  }

  reports heard;
  std::shared_ptr<sim::machine> machine;
  std::shared_ptr<runtime> runtime_;
};

}  // namespace weir::testing_support
