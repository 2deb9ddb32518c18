// SPDX-License-Identifier: Apache-2.0
// The device layer on the simulated machine: order, memory, capture, faults, fork and the end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <thread>

#include "device/device_fixture.hpp"
#include "weir/sim/machine.hpp"

namespace weir::testing_support { namespace {

using driver::call;
using ::testing::IsEmpty;
using namespace weir::literals;

class simulated_test : public ::testing::Test {
 protected:
  explicit simulated_test(sim::progress mode = sim::progress::seeded) {
    sim::machine_options settings;
    settings.devices.assign(2, sim::device_spec{.capacity = 4_GiB});
    settings.mode = mode;
    machine = sim::machine::create(settings).value();
    runtime_ = runtime::open_simulated(machine).value();
  }
  void TearDown() override {
    for (const auto& found : machine->hazards()) ADD_FAILURE() << found.message();
    EXPECT_THAT(heard.errors, IsEmpty());
  }
  [[nodiscard]] device device_at(int index) const {
    return runtime_->device(device_id{index}).value();
  }
  /// Work that takes its turn on `where`.
  void queue(const stream_ref& where, std::function<void()> body = {}) {
    const context_scope bound{where.device()};
    ASSERT_TRUE(machine->launch(where.handle(), "work", {}, std::move(body)));
  }

  reported heard;
  std::shared_ptr<sim::machine> machine;
  std::shared_ptr<runtime> runtime_;
};

/// Nothing happens by itself.
class stepped_test : public simulated_test {
 protected:
  stepped_test() : simulated_test{sim::progress::manual} {}
};

TEST(simulated_runtime, IsWhatTheOptionsSay) {
  options settings;
  settings.runtime = runtime_choice::simulated;
  settings.sim_devices = 3;
  settings.sim_capacity = 2_GiB;
  const auto opened = runtime::open(settings).value();
  EXPECT_EQ(opened->device_count(), 3);
  EXPECT_EQ(opened->device(device_id{2}).value().total_memory(), 2_GiB);
  EXPECT_EQ(opened->describe().driver, "simulated");
  EXPECT_FALSE(opened->describe().no_real_driver);
  settings.sim_devices = 0;
  const auto refused = runtime::open(settings);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error(), (error{{.code = errc::bad_option, .detail = "sim_devices = 0"}}));
}

TEST(simulated_runtime, IsTheBestAvailableWithoutADriver) {
  options settings;
  settings.driver_path = "libweir_no_such_driver.so";
  const auto opened = runtime::open(settings).value();
  EXPECT_EQ(opened->describe().driver, "simulated");
  ASSERT_TRUE(opened->describe().no_real_driver);
  EXPECT_EQ(opened->describe().no_real_driver->code(), errc::driver_unavailable);
}

TEST(simulated_runtime, IsTheBestAvailableBesideADriverThatCannotBeUsed) {
  options settings;
  settings.driver_path = WEIR_FAKE_TOO_OLD;
  EXPECT_EQ(runtime::open(settings).value()->describe().no_real_driver->code(),
            errc::driver_too_old);
  settings.driver_path = WEIR_FAKE_LACKS_REQUIRED;
  EXPECT_EQ(runtime::open(settings).value()->describe().no_real_driver->code(),
            errc::symbol_missing);
  settings.runtime = runtime_choice::cuda;
  EXPECT_EQ(code_of(runtime::open(settings)), errc::symbol_missing);
}

TEST(simulated_runtime, IsNoSubstituteForADriverThatFails) {
  options settings;
  settings.driver_path = WEIR_FAKE_COMPLETE;  // loads, and refuses to start
  const auto refused = runtime::open(settings);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().call(), "cuInit");
}

TEST_F(simulated_test, DescribesItsDevices) {
  const auto where = device_at(1);
  EXPECT_EQ(where.id(), device_id{1});
  EXPECT_EQ(where.name(), sim::device_spec{}.name);
  EXPECT_EQ(where.total_memory(), 4_GiB);
  const auto& can = where.capabilities();
  EXPECT_EQ(can.compute_major, 9);
  EXPECT_EQ(can.multiprocessors, 132);
  EXPECT_TRUE(can.virtual_memory);
  EXPECT_TRUE(can.posix_descriptors);
  EXPECT_TRUE(can.memory_pools);
  EXPECT_EQ(can.granularity, 2_MiB);
}

TEST_F(simulated_test, StreamIdsAreNeverUsedTwice) {
  std::set<stream_id> seen;
  for (int i = 0; i < 500; ++i) {
    const auto own = stream::create(device_at(i % 2)).value();
    EXPECT_TRUE(seen.insert(own.id()).second);
    EXPECT_EQ(stream_ref(device_at(i % 2), own.handle()).id().value(), own.id());
  }
  for (int index = 0; index < 2; ++index) {
    EXPECT_TRUE(seen.insert(stream_ref::legacy(device_at(index)).id().value()).second);
    EXPECT_TRUE(seen.insert(stream_ref::per_thread(device_at(index)).id().value()).second);
  }
}

TEST_F(simulated_test, StreamIdsOfTwoMachinesDiffer) {
  const auto number_of = [](const stream_ref& which) {
    unsigned long long number = 0;
    const context_scope bound{which.device()};
    EXPECT_EQ(bound.driver().stream_get_id(which.handle(), &number), driver::CUDA_SUCCESS);
    return number;
  };
  const auto here = stream_ref::legacy(device_at(0));
  EXPECT_EQ(here.id().value().number(), number_of(here)) << "one runtime: the driver's own";
  for (int again = 0; again < 2; ++again) {
    auto other = runtime::open_simulated(sim::machine::create({}).value()).value();
    const auto there = stream_ref::legacy(other->device(device_id{0}).value());
    ASSERT_EQ(number_of(there), number_of(here));
    EXPECT_EQ(there.id().value().number(), number_of(there) | std::uint64_t{1} << 48)
        << "the number of a runtime that went is free again";
  }
}

TEST_F(simulated_test, AUsersContextStaysCurrent) {
  const auto theirs = device_at(1).context().value();
  ASSERT_EQ(machine->driver().ctx_set_current(theirs), driver::CUDA_SUCCESS);
  const auto own = stream::create(device_at(0)).value();
  EXPECT_TRUE(own.synchronize());
  driver::CUcontext current = nullptr;
  ASSERT_EQ(machine->driver().ctx_get_current(&current), driver::CUDA_SUCCESS);
  EXPECT_EQ(current, theirs);
  ASSERT_EQ(machine->driver().ctx_set_current(nullptr), driver::CUDA_SUCCESS);
  EXPECT_TRUE(own.synchronize());
  ASSERT_EQ(machine->driver().ctx_get_current(&current), driver::CUDA_SUCCESS);
  EXPECT_EQ(current, nullptr);
}

TEST_F(simulated_test, StreamsKnowTheirDevice) {
  const auto own = stream::create(device_at(1)).value();
  EXPECT_TRUE(own.ref().validate());
  EXPECT_EQ(code_of(stream_ref(device_at(0), own.handle()).validate()), errc::bad_stream);
}

TEST_F(stepped_test, AnEventIsReachedWhenTheWorkBeforeItIsDone) {
  const auto own = stream::create(device_at(0)).value();
  auto mark = event::create(device_at(0)).value();
  EXPECT_TRUE(mark.is_complete().value()) << "never recorded";
  queue(own);
  ASSERT_TRUE(mark.record(own));
  EXPECT_FALSE(mark.is_complete().value());
  EXPECT_FALSE(own.is_complete().value());
  machine->run_until_idle();
  EXPECT_TRUE(mark.is_complete().value());
  EXPECT_TRUE(own.is_complete().value());
}

TEST_F(stepped_test, SynchronizingMakesItHappen) {
  const auto own = stream::create(device_at(0)).value();
  auto mark = event::create(device_at(0)).value();
  int done = 0;
  queue(own, [&] { ++done; });
  ASSERT_TRUE(mark.record(own));
  ASSERT_TRUE(mark.synchronize());
  EXPECT_EQ(done, 1);
  queue(own, [&] { ++done; });
  ASSERT_TRUE(own.synchronize());
  EXPECT_EQ(done, 2);
  queue(own, [&] { ++done; });
  ASSERT_TRUE(device_at(0).synchronize());
  EXPECT_EQ(done, 3);
}

TEST_F(stepped_test, AStreamWaitsForAnEventOfAnotherDevice) {
  const auto first = stream::create(device_at(0)).value();
  const auto second = stream::create(device_at(1)).value();
  std::string order;
  queue(first, [&] { order += 'a'; });
  auto mark = event::create(device_at(0)).value();
  ASSERT_TRUE(mark.record(first));
  ASSERT_TRUE(second.wait(mark));
  queue(second, [&] { order += 'b'; });
  ASSERT_TRUE(second.synchronize());
  EXPECT_EQ(order, "ab");
}

TEST_F(stepped_test, AnEventGivenBackBeforeItIsReachedStillHoldsBackWhoWaits) {
  const auto first = stream::create(device_at(0)).value();
  const auto second = stream::create(device_at(0)).value();
  const auto third = stream::create(device_at(0)).value();
  event_pool pool{device_at(0)};
  std::string order;
  queue(first, [&] { order += 'a'; });
  auto mark = pool.acquire().value();
  ASSERT_TRUE(mark.record(first));
  ASSERT_TRUE(second.wait(mark));
  auto* const handle = mark.handle();
  ASSERT_TRUE(pool.release(std::move(mark)));

  auto again = pool.acquire().value();
  ASSERT_EQ(again.handle(), handle);
  ASSERT_TRUE(again.record(third));
  queue(second, [&] { order += 'b'; });
  ASSERT_TRUE(second.synchronize());
  EXPECT_EQ(order, "ab");
}

TEST_F(stepped_test, ElapsedTimeIsMeasuredBetweenTimingEvents) {
  const auto own = stream::create(device_at(0)).value();
  auto from = event::create(device_at(0), {.timing = true}).value();
  auto to = event::create(device_at(0), {.timing = true}).value();
  ASSERT_TRUE(from.record(own));
  queue(own);
  ASSERT_TRUE(to.record(own));
  EXPECT_EQ(code_of(event::elapsed(from, to)), errc::not_ready);
  ASSERT_TRUE(own.synchronize());
  EXPECT_GE(event::elapsed(from, to).value().count(), 0.005F) << "the work takes 5 µs";
}

TEST_F(simulated_test, ThePoolServesThreadsWhileEventsArePending) {
  event_pool pool{device_at(0), 8};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      const auto own = stream::create(device_at(0)).value();
      for (int i = 0; i < 200; ++i) {
        queue(own);
        auto mark = pool.acquire().value();
        ASSERT_TRUE(mark.record(own));
        ASSERT_TRUE(own.wait(mark));
        ASSERT_TRUE(mark.is_complete());
        ASSERT_TRUE(pool.release(std::move(mark)));
      }
      ASSERT_TRUE(own.synchronize());
    });
  }
  for (auto& each : threads) each.join();
  EXPECT_LE(pool.idle(), 8u);
  EXPECT_GE(pool.idle(), 1u);
}

TEST_F(simulated_test, OneHandleAtTwoAddressesIsTheSameMemory) {
  const auto where = device_at(0);
  const auto range = address_range::reserve(where, 64_MiB).value();
  const auto free_before = where.memory_info().value().free;
  auto handle = physical_handle::create(where, 4_MiB).value();
  EXPECT_EQ(where.memory_info().value().free, free_before - 4_MiB);
  const auto low = mapping::create(range, 0_B, handle).value();
  const auto high = mapping::create(range, 32_MiB, handle).value();
  ASSERT_TRUE(low.set_access(where));
  ASSERT_TRUE(high.set_access(where));
  ASSERT_TRUE(handle.close());

  const context_scope bound{where};
  const char text[] = "written below";
  char read[sizeof text] = {};
  ASSERT_EQ(machine->driver().memcpy_htod(low.address() + 100, text, sizeof text), 0);
  ASSERT_EQ(machine->driver().memcpy_dtoh(read, high.address() + 100, sizeof text), 0);
  EXPECT_STREQ(read, text);
}

TEST_F(simulated_test, PhysicalMemoryComesBack) {
  const auto where = device_at(0);
  const auto free_before = where.memory_info().value().free;
  {
    const auto range = address_range::reserve(where, 64_MiB).value();
    auto handle = physical_handle::create(where, 16_MiB).value();
    auto mapped = mapping::create(range, 0_B, handle).value();
    ASSERT_TRUE(handle.close());
    EXPECT_EQ(where.memory_info().value().free, free_before - 16_MiB) << "the mapping holds it";
    ASSERT_TRUE(mapped.close());
    EXPECT_EQ(where.memory_info().value().free, free_before);
  }
}

TEST_F(simulated_test, TakenAddressesCannotBeMappedAgain) {
  const auto range = address_range::reserve(device_at(0), 64_MiB).value();
  const auto handle = physical_handle::create(device_at(0), 4_MiB).value();
  const auto mapped = mapping::create(range, 0_B, handle).value();
  EXPECT_FALSE(mapping::create(range, 2_MiB, handle));
  EXPECT_TRUE(mapping::create(range, 4_MiB, handle));
}

TEST_F(simulated_test, AnExportedHandleIsTheSameMemory) {
  const auto where = device_at(0);
  const auto handle = physical_handle::create(where, 2_MiB, {.posix_descriptor = true}).value();
  const auto sent = handle.export_descriptor().value();
  ASSERT_TRUE(sent);
  const auto received = physical_handle::import_descriptor(where, sent.get(), 2_MiB).value();
  const auto range = address_range::reserve(where, 4_MiB).value();
  const auto ours = mapping::create(range, 0_B, handle).value();
  const auto theirs = mapping::create(range, 2_MiB, received).value();
  ASSERT_TRUE(ours.set_access(where));
  ASSERT_TRUE(theirs.set_access(where));
  const context_scope bound{where};
  std::uint32_t read = 0;
  ASSERT_EQ(machine->driver().memset_d32(ours.address(), 0xfeed, 1), 0);
  ASSERT_EQ(machine->driver().memcpy_dtoh(&read, theirs.address(), sizeof read), 0);
  EXPECT_EQ(read, 0xfeedu);
}

TEST_F(simulated_test, AFullDeviceIsOutOfMemoryWithTheSize) {
  const auto refused = physical_handle::create(device_at(0), 8_GiB);
  ASSERT_FALSE(refused);
  EXPECT_EQ(code_of(refused), errc::out_of_memory);
  EXPECT_EQ(refused.error().requested(), 8_GiB);
  const context_scope bound{device_at(0)};
  EXPECT_EQ(code_of(allocate_plain(bound, 8_GiB)), errc::out_of_memory);
}

TEST_F(simulated_test, PlainMemoryIsGivenAndTakenBack) {
  const auto where = device_at(0);
  const context_scope bound{where};
  const auto free_before = where.memory_info().value().free;
  const auto address = allocate_plain(bound, 20_MiB).value();
  EXPECT_LE(where.memory_info().value().free, free_before - 20_MiB);
  ASSERT_TRUE(free_plain(bound, address));
  EXPECT_FALSE(free_plain(bound, address));
}

TEST_F(simulated_test, PeersReachEachOther) {
  ASSERT_TRUE(device_at(0).can_access_peer(device_at(1)).value());
  EXPECT_TRUE(device_at(0).enable_peer_access(device_at(1)));
  EXPECT_TRUE(device_at(0).enable_peer_access(device_at(1)));
  EXPECT_TRUE(device_at(0).disable_peer_access(device_at(1)));
  EXPECT_TRUE(device_at(0).disable_peer_access(device_at(1)));
}

class capture_test : public simulated_test {
 protected:
  void begin(const stream_ref& on) {
    const context_scope bound{on.device()};
    ASSERT_EQ(
        machine->driver().stream_begin_capture(on.handle(), driver::CU_STREAM_CAPTURE_MODE_GLOBAL),
        driver::CUDA_SUCCESS);
  }
  driver::CUresult end(const stream_ref& on) {
    const context_scope bound{on.device()};
    driver::CUgraph graph = nullptr;
    const auto answer = machine->driver().stream_end_capture(on.handle(), &graph);
    if (graph != nullptr) machine->driver().graph_destroy(graph);
    return answer;
  }
};

TEST_F(capture_test, IsSeenWithItsId) {
  const auto own = stream::create(device_at(0)).value();
  EXPECT_EQ(own.ref().capture().value().status, capture_status::none);
  begin(own);
  const auto first = own.ref().capture().value();
  EXPECT_EQ(first.status, capture_status::active);
  EXPECT_TRUE(own.ref().is_capturing().value());
  EXPECT_EQ(end(own), driver::CUDA_SUCCESS);
  begin(own);
  EXPECT_NE(own.ref().capture().value().id, first.id);
  EXPECT_EQ(end(own), driver::CUDA_SUCCESS);
  EXPECT_FALSE(own.ref().is_capturing().value());
}

TEST_F(capture_test, IsBrokenByAQueryAndKeptWholeByTheGuard) {
  const auto own = stream::create(device_at(0)).value();
  auto mark = event::create(device_at(0)).value();
  ASSERT_TRUE(mark.record(stream_ref::legacy(device_at(0))));
  begin(own);
  {
    const thread_capture_mode_guard relaxed{device_at(0)};
    ASSERT_TRUE(relaxed);
    EXPECT_TRUE(mark.is_complete());
    const context_scope bound{device_at(0)};
    const auto plain = allocate_plain(bound, 2_MiB);
    ASSERT_TRUE(plain);
    EXPECT_TRUE(free_plain(bound, *plain));
  }
  EXPECT_EQ(own.ref().capture().value().status, capture_status::active);
  EXPECT_EQ(code_of(mark.is_complete()), errc::capture_forbidden) << "the mode was put back";
  EXPECT_EQ(own.ref().capture().value().status, capture_status::invalidated);
  EXPECT_EQ(end(own), driver::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(capture_test, IsNotSpoiledByAskingForAnId) {
  const auto own = stream::create(device_at(0)).value();
  const stream_ref stranger{device_at(0), own.handle()};
  const stream_ref known = stranger.identified().value();
  begin(own);
  EXPECT_EQ(code_of(stranger.id()), errc::capture_forbidden);
  EXPECT_EQ(known.id().value(), own.id());
  EXPECT_EQ(own.ref().id().value(), own.id());
  EXPECT_EQ(end(own), driver::CUDA_SUCCESS);
  EXPECT_EQ(stranger.id().value(), own.id());
}

TEST_F(capture_test, QuestionsAboutTheLegacyStreamDoNoHarm) {
  const auto own = stream::create(device_at(0), {.non_blocking = false}).value();
  begin(own);
  const auto legacy = stream_ref::legacy(device_at(0));
  EXPECT_EQ(legacy.capture().value().status, capture_status::implicit);
  EXPECT_FALSE(legacy.is_capturing().value());
  EXPECT_EQ(code_of(legacy.id()), errc::capture_forbidden);
  EXPECT_EQ(own.ref().capture().value().status, capture_status::active);
  EXPECT_EQ(end(own), driver::CUDA_SUCCESS);
}

TEST_F(simulated_test, WhateverCallFailsNothingIsLeftBehind) {
  const auto where = device_at(0);
  const auto scenario = [&]() -> result<void> {
    WEIR_TRY_VALUE(own, stream::create(where));
    WEIR_TRY_VALUE(mark, event::create(where));
    WEIR_TRY(mark.record(own));
    WEIR_TRY_VALUE(range, address_range::reserve(where, 8_MiB));
    WEIR_TRY_VALUE(handle, physical_handle::create(where, 2_MiB));
    WEIR_TRY_VALUE(mapped, mapping::create(range, 2_MiB, handle));
    WEIR_TRY(mapped.set_access(where));
    return own.synchronize();
  };
  // Current from the start: a context that could not be popped would change the next round's calls.
  ASSERT_EQ(machine->driver().ctx_set_current(where.context().value()), driver::CUDA_SUCCESS);
  ASSERT_TRUE(scenario());
  const auto calls_before = machine->calls();
  ASSERT_TRUE(scenario());
  const auto calls = machine->calls() - calls_before;
  std::size_t failures = 0;
  for (std::uint64_t nth = 1; nth <= calls; ++nth) {
    heard.errors.clear();
    const auto used = machine->used(where.id());
    machine->fail_any(nth, driver::CUDA_ERROR_UNKNOWN);
    const auto outcome = scenario();
    machine->clear_faults();
    // Each failure is told: returned, or reported where a destructor met it.
    EXPECT_NE(outcome.has_value(), heard.errors.empty()) << "call " << nth;
    failures += outcome ? 0 : 1;
    if (!outcome) {
      EXPECT_EQ(machine->used(where.id()), used) << "call " << nth;
    }
  }
  EXPECT_GT(failures, 10u);
  heard.errors.clear();
}

TEST_F(simulated_test, ALostDeviceIsSaidToBeLost) {
  auto own = stream::create(device_at(0)).value();
  const auto other = stream::create(device_at(1)).value();
  machine->lose_device(device_id{0});
  EXPECT_EQ(code_of(own.synchronize()), errc::device_lost);
  EXPECT_TRUE(other.synchronize());
  static_cast<void>(own.close());
  heard.errors.clear();
  runtime_.reset();
  heard.errors.clear();
}

TEST_F(simulated_test, AfterShutDownEverythingIsSilent) {
  {
    possessions own{device_at(0)};
    machine->shut_down();
    for (const auto& each : operations()) {
      EXPECT_EQ(code_of(each.run(device_at(0), own)), errc::driver_gone) << each.name;
    }
  }
  runtime_.reset();
}

TEST_F(simulated_test, TheRuntimeKeepsItsMachine) {
  const auto own = stream::create(device_at(0)).value();
  machine.reset();
  runtime_.reset();
  EXPECT_TRUE(own.synchronize());
  machine = sim::machine::create().value();  // for the tear-down
}

TEST_F(simulated_test, AForkedChildIsSafeAndItsParentGoesOn) {
  std::optional<possessions> own{device_at(0)};
  const auto found = in_child([&] {
    int number = 1;
    for (const auto& each : operations()) {
      if (const auto outcome = each.run(device_at(0), *own);
          outcome || outcome.code() != errc::driver_gone) {
        return number;
      }
      ++number;
    }
    own.reset();
    runtime_.reset();
    machine.reset();
    if (!heard.errors.empty()) return 100;
    const auto mine = runtime::open(options{.runtime = runtime_choice::simulated});
    if (!mine) return 101;
    const auto where = (*mine)->device(device_id{0}).value();
    return stream::create(where) && where.memory_info() ? 0 : 102;
  });
  EXPECT_EQ(found, 0);
  for (const auto& each : operations()) {
    if (each.name == "handle import" || each.name == "event import") continue;  // nothing to import
    EXPECT_TRUE(each.run(device_at(0), *own)) << each.name;
  }
}

}  // namespace
}  // namespace weir::testing_support
