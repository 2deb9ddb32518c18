// SPDX-License-Identifier: Apache-2.0
// The machine as a whole: progress, time, costs, faults, devices lost, lifetimes.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sim/state.hpp"
#include "weir/sim/machine.hpp"

namespace weir::sim { namespace {

using namespace driver;
using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::IsEmpty;

/// A machine with the context of device 0 current.
struct bench {
  explicit bench(machine_options options = {})
      : machine{sim::machine::create(std::move(options)).value()}, cuda{machine->driver()} {
    EXPECT_EQ(cuda.init(0), CUDA_SUCCESS);
    EXPECT_EQ(cuda.device_primary_ctx_retain(&context, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuda.ctx_set_current(context), CUDA_SUCCESS);
  }
  CUstream stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream made{};
    EXPECT_EQ(cuda.stream_create(&made, flags), CUDA_SUCCESS);
    return made;
  }
  CUevent event(unsigned flags = CU_EVENT_DISABLE_TIMING) {
    CUevent made{};
    EXPECT_EQ(cuda.event_create(&made, flags), CUDA_SUCCESS);
    return made;
  }

  std::shared_ptr<sim::machine> machine;
  const table& cuda;
  CUcontext context{};
};

machine_options with(progress mode, duration lag = 0ns) {
  machine_options wanted;
  wanted.mode = mode;
  wanted.lag = lag;
  return wanted;
}

// --- Progress ------------------------------------------------------------------------------------

/// In which order the work of four streams happened.
std::string interleaving(std::uint64_t seed) {
  machine_options wanted;
  wanted.seed = seed;
  bench b{wanted};
  std::string order;
  std::vector<CUstream> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(b.stream());
  for (int round = 0; round < 8; ++round) {
    for (std::size_t i = 0; i < streams.size(); ++i) {
      EXPECT_TRUE(b.machine->launch(streams[i], "note", {},
                                    [&order, i] { order += static_cast<char>('a' + i); }));
    }
  }
  EXPECT_EQ(b.cuda.ctx_synchronize(), CUDA_SUCCESS);
  return order;
}

TEST(Options, SayWhatTheMachineIs) {
  options settings;
  settings.sim_devices = 3;
  settings.sim_capacity = bytes{std::uint64_t{5} << 30};
  settings.sim_seed = 42;
  settings.sim_mode = sim_progress::timed;
  settings.sim_lag = std::chrono::microseconds{7};
  settings.sim_hazards = false;
  settings.heap_allow_unreleased_streams = true;  // of no concern to a machine
  const machine_options made = machine_options::from(settings);
  ASSERT_EQ(3U, made.devices.size());
  EXPECT_EQ(settings.sim_capacity, made.devices[2].capacity);
  EXPECT_EQ(42U, made.seed);
  EXPECT_EQ(progress::timed, made.mode);
  EXPECT_EQ(std::chrono::microseconds{7}, made.lag);
  EXPECT_FALSE(made.check_hazards);
  settings.sim_hazards = true;
  settings.heap_allow_unreleased_streams = false;
  EXPECT_TRUE(machine_options::from(settings).check_hazards);
  settings.sim_mode = sim_progress::manual;
  EXPECT_EQ(progress::manual, machine_options::from(settings).mode);
  settings.sim_devices = -1;
  EXPECT_TRUE(machine_options::from(settings).devices.empty());
}

TEST(Options, AreThoseOfOneWatchedDeviceUnlessToldOtherwise) {
  const machine_options usual;
  EXPECT_EQ(usual.devices.size(), 1U);
  EXPECT_EQ(usual.driver_version, 13000);
  EXPECT_EQ(usual.seed, 1U);
  EXPECT_EQ(usual.mode, progress::seeded);
  EXPECT_EQ(usual.lag, 0ns);
  EXPECT_TRUE(usual.check_hazards);
  EXPECT_TRUE(usual.watch_blocks);
  EXPECT_TRUE(usual.back_memory);
  EXPECT_FALSE(usual.background);
}

TEST(Progress, TheSameSeedIsTheSameRunAndAnotherSeedAnother) {
  EXPECT_EQ(interleaving(7), interleaving(7));
  EXPECT_NE(interleaving(7), interleaving(8));
  EXPECT_EQ(interleaving(7).size(), 32U);
}

/// Which of three streams goes first.
char first_of_three(std::uint64_t seed) {
  machine_options wanted = with(progress::manual);
  wanted.seed = seed;
  bench b{wanted};
  char first = '-';
  for (const char each : {'a', 'b', 'c'}) {
    EXPECT_TRUE(b.machine->launch(b.stream(), "note", {}, [&first, each] { first = each; }));
  }
  EXPECT_TRUE(b.machine->step());
  return first;
}

// Whoever wrote a seed down wants the same run again, even where the last bit of a number decides:
// the first numbers of these lie next to the edges between the three.
TEST(Progress, ASeedChoosesTheSameStreamForGood) {
  EXPECT_EQ(first_of_three(0x8517'c1ba'e568'c159), 'a');
  EXPECT_EQ(first_of_three(0xfe23'38d3'00df'1bad), 'b');
  EXPECT_EQ(first_of_three(0x2ff5'df8a'c0ca'4fd4), 'b');
  EXPECT_EQ(first_of_three(0x99e3'8664'38d4'da5c), 'c');
}

TEST(Progress, ManualMovesOnlyWhenTold) {
  bench b{with(progress::manual)};
  const CUstream s = b.stream();
  int done = 0;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(b.machine->launch(s, "count", {}, [&] { ++done; }));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(b.cuda.stream_query(s), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(done, 0);
  EXPECT_TRUE(b.machine->step());
  EXPECT_EQ(done, 1);
  b.machine->run_until_idle();
  EXPECT_EQ(done, 3);
  EXPECT_FALSE(b.machine->step());
  EXPECT_EQ(b.cuda.stream_query(s), CUDA_SUCCESS);
}

TEST(Progress, TimedWorkIsCompleteWhenItsTimeHasCome) {
  machine_options wanted = with(progress::timed, 1ms);
  wanted.costs = cost_table::free();
  bench b{wanted};
  const CUstream s = b.stream();
  const CUevent e = b.event();
  ASSERT_EQ(b.cuda.event_record(e, s), CUDA_SUCCESS);
  b.machine->advance(999'999ns);
  EXPECT_EQ(b.cuda.event_query(e), CUDA_ERROR_NOT_READY);
  b.machine->advance(1ns);
  EXPECT_EQ(b.cuda.event_query(e), CUDA_SUCCESS);
}

TEST(Devices, AreToldApartByTheLastByteOfTheirName) {
  machine_options two;
  two.devices.resize(2);
  bench b{two};
  for (char device = 0; device < 2; ++device) {
    CUuuid uuid{};
    std::memset(uuid.bytes, 0x5a, sizeof uuid.bytes);
    ASSERT_EQ(b.cuda.device_get_uuid(&uuid, device), CUDA_SUCCESS);
    EXPECT_THAT(uuid.bytes,
                ElementsAre('w', 'e', 'i', 'r', '-', 's', 'i', 'm', 0, 0, 0, 0, 0, 0, 0, device));
  }
}

TEST(Progress, TimeCanBeSetButNotBack) {
  machine_options wanted = with(progress::timed, 1ms);
  wanted.costs = cost_table::free();
  bench b{wanted};
  const CUevent e = b.event();
  ASSERT_EQ(b.cuda.event_record(e, b.stream()), CUDA_SUCCESS);
  b.machine->set_time(time_point{999'999ns});
  EXPECT_EQ(b.cuda.event_query(e), CUDA_ERROR_NOT_READY);
  b.machine->set_time(time_point{1ms});
  EXPECT_EQ(b.cuda.event_query(e), CUDA_SUCCESS);
  b.machine->set_time(time_point{5ns});
  EXPECT_EQ(b.machine->now(), time_point{1ms});
}

TEST(Progress, TimeCanComeFromSomebodyElse) {
  machine_options wanted = with(progress::timed, 1ms);
  wanted.costs = cost_table::free();
  bench b{wanted};
  const CUstream s = b.stream();
  const CUevent e = b.event();
  ASSERT_EQ(b.cuda.event_record(e, s), CUDA_SUCCESS);
  time_point shown{999'999ns};
  b.machine->follow_time([&] { return shown; });
  EXPECT_EQ(b.cuda.event_query(e), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(b.machine->now(), shown);
  shown = time_point{500ns};
  EXPECT_EQ(b.cuda.event_query(e), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(b.machine->now(), time_point{999'999ns}) << "never backwards";
  shown = time_point{1ms};
  EXPECT_EQ(b.cuda.event_query(e), CUDA_SUCCESS);
  b.machine->follow_time({});
  shown = time_point{2ms};
  EXPECT_EQ(b.cuda.event_query(e), CUDA_SUCCESS);
  EXPECT_EQ(b.machine->now(), time_point{1ms}) << "not followed any more";
}

TEST(Progress, ShorterTimedWorkIsCompleteBeforeLongerWorkThatWasQueuedFirst) {
  machine_options wanted = with(progress::timed);
  wanted.costs = cost_table::free();
  bench b{wanted};
  const CUstream slow = b.stream();
  const CUstream quick = b.stream();
  ASSERT_TRUE(b.machine->launch(slow, "work", {}, {}, 5ms));
  EXPECT_EQ(b.cuda.stream_query(slow), CUDA_ERROR_NOT_READY);
  ASSERT_TRUE(b.machine->launch(quick, "work", {}, {}, 1ms));
  b.machine->advance(1ms);
  EXPECT_EQ(b.cuda.stream_query(quick), CUDA_SUCCESS);
  EXPECT_EQ(b.cuda.stream_query(slow), CUDA_ERROR_NOT_READY);
  b.machine->advance(4ms);
  EXPECT_EQ(b.cuda.stream_query(slow), CUDA_SUCCESS);
}

TEST(Progress, TimedWorkBeginsNoEarlierThanItIsQueued) {
  machine_options wanted = with(progress::timed);
  wanted.costs = cost_table::free();
  bench b{wanted};
  const CUstream s = b.stream();
  b.machine->advance(5ms);
  ASSERT_TRUE(b.machine->launch(s, "work", {}, {}, 1ms));
  b.machine->advance(999'999ns);
  EXPECT_EQ(b.cuda.stream_query(s), CUDA_ERROR_NOT_READY);
  b.machine->advance(1ns);
  EXPECT_EQ(b.cuda.stream_query(s), CUDA_SUCCESS);
}

TEST(Progress, OfTimedWorkThatEndsTogetherTheFirstQueuedComesFirst) {
  machine_options wanted = with(progress::timed);
  wanted.costs = cost_table::free();
  bench b{wanted};
  std::string order;
  const CUstream first = b.stream();
  const CUstream second = b.stream();
  ASSERT_TRUE(b.machine->launch(
      first, "work", {}, [&] { order += '1'; }, 1ms));
  ASSERT_TRUE(b.machine->launch(
      second, "work", {}, [&] { order += '2'; }, 1ms));
  b.machine->advance(1ms);
  EXPECT_EQ(order, "12");
}

TEST(Progress, TimedWorkGoesOnOnceWhatHeldItUpIsGone) {
  machine_options wanted = with(progress::timed, 1ms);
  wanted.costs = cost_table::free();
  bench b{wanted};
  const CUstream held = b.stream();
  const CUstream watching = b.stream();
  void* memory = nullptr;
  ASSERT_EQ(b.cuda.mem_host_alloc(&memory, 4096, 0), CUDA_SUCCESS);
  const auto flag = std::atomic_ref{*static_cast<std::uint32_t*>(memory)};
  flag = 0;
  ASSERT_TRUE(b.machine->launch(held, "work", {}));
  ASSERT_EQ(b.cuda.stream_wait_value32(watching, reinterpret_cast<CUdeviceptr>(memory), 1,
                                       CU_STREAM_WAIT_VALUE_EQ),
            CUDA_SUCCESS);
  b.machine->hold(held);
  b.machine->advance(2ms);
  EXPECT_EQ(b.cuda.stream_query(held), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(b.cuda.stream_query(watching), CUDA_ERROR_NOT_READY);
  b.machine->release(held);
  b.machine->advance(0ns);
  EXPECT_EQ(b.cuda.stream_query(held), CUDA_SUCCESS);
  flag = 1;  // nobody is told
  b.machine->advance(0ns);
  EXPECT_EQ(b.cuda.stream_query(watching), CUDA_SUCCESS);
}

TEST(Progress, WaitingMovesTimedTimeToTheEndOfTheWork) {
  machine_options wanted = with(progress::timed);
  wanted.costs = cost_table::free();
  bench b{wanted};
  const CUstream s = b.stream();
  ASSERT_TRUE(b.machine->launch(s, "work", {}, {}, 3ms));
  ASSERT_TRUE(b.machine->launch(s, "work", {}, {}, 4ms));
  ASSERT_EQ(b.cuda.stream_synchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(b.machine->now(), 7ms);
}

TEST(Progress, AnEventIsReachedWithTheWorkBeforeItAndNotLater) {
  machine_options wanted = with(progress::timed);
  wanted.costs = cost_table::free();
  bench b{wanted};
  const CUstream s = b.stream();
  const CUstream other = b.stream();
  const CUevent mark = b.event();
  ASSERT_TRUE(b.machine->launch(s, "work", {}, {}, 1000ns));
  ASSERT_EQ(b.cuda.event_record(mark, s), CUDA_SUCCESS);
  ASSERT_EQ(b.cuda.stream_wait_event(other, mark, 0), CUDA_SUCCESS);
  b.machine->advance(999ns);
  EXPECT_EQ(b.cuda.event_query(mark), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(b.cuda.stream_query(other), CUDA_ERROR_NOT_READY);
  b.machine->advance(1ns);
  EXPECT_EQ(b.cuda.event_query(mark), CUDA_SUCCESS);
  EXPECT_EQ(b.cuda.stream_query(other), CUDA_SUCCESS);
}

TEST(Progress, AHeldStreamWaitsForItsRelease) {
  bench b;
  const CUstream s = b.stream();
  bool done = false;
  b.machine->hold(s);
  ASSERT_TRUE(b.machine->launch(s, "work", {}, [&] { done = true; }));
  b.machine->run_until_idle();
  EXPECT_FALSE(done);
  b.machine->release(s);
  ASSERT_EQ(b.cuda.stream_synchronize(s), CUDA_SUCCESS);
  EXPECT_TRUE(done);
}

TEST(Progress, BackgroundWorkNeedsNoCalls) {
  machine_options wanted;
  wanted.background = true;
  bench b{wanted};
  std::atomic<bool> done{false};
  b.machine->hold(legacy_stream());
  const CUstream s = b.stream();
  ASSERT_TRUE(b.machine->launch(s, "work", {}, [&] { done = true; }));
  for (int i = 0; i < 5000 && !done; ++i) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(done);
}

TEST(Progress, EventsKeepTheTimeBetweenThem) {
  machine_options wanted;
  wanted.costs = cost_table::free();
  bench b{wanted};
  const CUstream s = b.stream();
  const CUevent start = b.event(CU_EVENT_DEFAULT);
  const CUevent end = b.event(CU_EVENT_DEFAULT);
  ASSERT_EQ(b.cuda.event_record(start, s), CUDA_SUCCESS);
  ASSERT_TRUE(b.machine->launch(s, "work", {}, {}, 2500us));
  ASSERT_EQ(b.cuda.event_record(end, s), CUDA_SUCCESS);
  ASSERT_EQ(b.cuda.event_synchronize(end), CUDA_SUCCESS);
  float milliseconds = 0;
  ASSERT_EQ(b.cuda.event_elapsed_time(&milliseconds, start, end), CUDA_SUCCESS);
  EXPECT_FLOAT_EQ(milliseconds, 2.5F);
  const CUevent never = b.event(CU_EVENT_DEFAULT);
  const CUevent timeless = b.event();
  ASSERT_EQ(b.cuda.event_record(timeless, s), CUDA_SUCCESS);
  for (const CUevent wrong : {never, timeless, CUevent{nullptr}}) {
    EXPECT_EQ(b.cuda.event_elapsed_time(&milliseconds, start, wrong), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(b.cuda.event_elapsed_time(&milliseconds, wrong, end), CUDA_ERROR_INVALID_HANDLE);
  }
}

TEST(Progress, AHostFunctionMayNotCallTheDriver) {
  bench b;
  const CUstream s = b.stream();
  struct state {
    const table* cuda;
    CUresult answer;
  } seen{&b.cuda, CUDA_SUCCESS};
  const auto call = [](void* data) {
    auto& at = *static_cast<state*>(data);
    int count = 0;
    at.answer = at.cuda->device_get_count(&count);
  };
  ASSERT_EQ(b.cuda.launch_host_func(s, call, &seen), CUDA_SUCCESS);
  ASSERT_EQ(b.cuda.stream_synchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(seen.answer, CUDA_ERROR_NOT_PERMITTED);
}

TEST(Progress, WhatAHostFunctionTouchesIsBehindItsStream) {
  bench b{with(progress::manual)};
  const CUstream s = b.stream();
  const CUstream other = b.stream();
  void* memory = nullptr;
  ASSERT_EQ(b.cuda.mem_host_alloc(&memory, 64, 0), CUDA_SUCCESS);
  const auto address = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(memory));
  std::pair<sim::machine*, void*> place{b.machine.get(), memory};
  const auto change = [](void* data) {
    const auto& [machine, bytes] = *static_cast<std::pair<sim::machine*, void*>*>(data);
    machine->host_read(bytes, 64);
    machine->host_write(bytes, 64);
  };
  ASSERT_TRUE(b.machine->launch(s, "before", {writes(address, 64)}));
  ASSERT_EQ(b.cuda.launch_host_func(s, change, &place), CUDA_SUCCESS);
  ASSERT_EQ(b.cuda.stream_synchronize(s), CUDA_SUCCESS);
  ASSERT_TRUE(b.machine->launch(s, "after", {writes(address, 64)}));
  ASSERT_EQ(b.cuda.stream_synchronize(s), CUDA_SUCCESS);
  EXPECT_TRUE(b.machine->hazards().empty());

  ASSERT_TRUE(b.machine->launch(other, "elsewhere", {reads(address, 64)}));
  ASSERT_EQ(b.cuda.launch_host_func(s, change, &place), CUDA_SUCCESS);
  ASSERT_EQ(b.cuda.stream_synchronize(s), CUDA_SUCCESS);
  ASSERT_EQ(b.machine->hazards().size(), 1U) << "nothing orders the two streams";
  const hazard found = b.machine->hazards()[0];
  EXPECT_EQ(found.kind, hazard_kind::race);
  EXPECT_EQ(found.first.label, "elsewhere");
  EXPECT_EQ(found.second.label, "host write");
  ASSERT_EQ(b.cuda.stream_synchronize(other), CUDA_SUCCESS);
  ASSERT_EQ(b.cuda.mem_free_host(memory), CUDA_SUCCESS);
}

TEST(Progress, WhatAHostFunctionTouchesIsBeforeTheWorkThatIsQueuedBehindIt) {
  bench b{with(progress::manual)};
  const CUstream s = b.stream();
  const CUstream other = b.stream();
  void* memory = nullptr;
  ASSERT_EQ(b.cuda.mem_host_alloc(&memory, 64, 0), CUDA_SUCCESS);
  const auto address = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(memory));
  std::pair<sim::machine*, void*> place{b.machine.get(), memory};
  const auto write = [](void* data) {
    const auto& [machine, bytes] = *static_cast<std::pair<sim::machine*, void*>*>(data);
    machine->host_write(bytes, 64);
  };
  const auto read = [](void* data) {
    const auto& [machine, bytes] = *static_cast<std::pair<sim::machine*, void*>*>(data);
    machine->host_read(bytes, 64);
  };
  ASSERT_EQ(b.cuda.launch_host_func(s, write, &place), CUDA_SUCCESS);
  ASSERT_TRUE(b.machine->launch(s, "a part read", {reads(address, 16)}));
  ASSERT_EQ(b.cuda.launch_host_func(s, read, &place), CUDA_SUCCESS);
  ASSERT_TRUE(b.machine->launch(s, "a part written", {writes(address + 32, 16)}));
  ASSERT_EQ(b.cuda.stream_synchronize(s), CUDA_SUCCESS);
  EXPECT_TRUE(b.machine->hazards().empty());

  // What was noted late is in the history: all of it, and no more than the latest write.
  ASSERT_TRUE(b.machine->launch(other, "elsewhere", {writes(address + 48, 16)}));
  ASSERT_EQ(b.machine->hazards().size(), 0U) << "the host has waited for the stream";
  ASSERT_EQ(b.cuda.launch_host_func(s, write, &place), CUDA_SUCCESS);
  ASSERT_TRUE(b.machine->launch(s, "read behind it", {reads(address, 32)}));
  ASSERT_EQ(b.cuda.stream_synchronize(s), CUDA_SUCCESS);
  ASSERT_EQ(b.machine->hazards().size(), 1U) << "nothing orders the two streams";
  EXPECT_EQ(b.machine->hazards()[0].first.label, "elsewhere");
  EXPECT_EQ(b.machine->hazards()[0].second.label, "host write");
  ASSERT_EQ(b.cuda.stream_synchronize(other), CUDA_SUCCESS);
  ASSERT_EQ(b.cuda.mem_free_host(memory), CUDA_SUCCESS);
}

TEST(Progress, AHostFunctionsWriteIsARaceWithWorkThatDoesNotWaitForIt) {
  bench b{with(progress::manual)};
  const CUstream s = b.stream();
  const CUstream other = b.stream();
  void* memory = nullptr;
  ASSERT_EQ(b.cuda.mem_host_alloc(&memory, 64, 0), CUDA_SUCCESS);
  const auto address = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(memory));
  std::pair<sim::machine*, void*> place{b.machine.get(), memory};
  const auto write = [](void* data) {
    const auto& [machine, bytes] = *static_cast<std::pair<sim::machine*, void*>*>(data);
    machine->host_write(bytes, 64);
  };
  ASSERT_EQ(b.cuda.launch_host_func(s, write, &place), CUDA_SUCCESS);
  ASSERT_TRUE(b.machine->launch(s, "written behind it", {writes(address, 16)}));
  ASSERT_EQ(b.cuda.stream_synchronize(s), CUDA_SUCCESS);
  EXPECT_TRUE(b.machine->hazards().empty());
  ASSERT_EQ(b.cuda.launch_host_func(s, write, &place), CUDA_SUCCESS);
  ASSERT_TRUE(b.machine->launch(s, "written behind it", {writes(address, 16)}));
  ASSERT_TRUE(b.machine->launch(other, "elsewhere", {reads(address + 16, 16)}));
  ASSERT_EQ(b.cuda.stream_synchronize(s), CUDA_SUCCESS);
  ASSERT_EQ(b.machine->hazards().size(), 1U);
  EXPECT_EQ(b.machine->hazards()[0].first.label, "elsewhere");
  EXPECT_EQ(b.machine->hazards()[0].second.label, "host write");
  // The write behind the function is the latest one of its bytes; elsewhere the function's is.
  ASSERT_TRUE(b.machine->launch(other, "behind", {reads(address, 16)}));
  ASSERT_EQ(b.machine->hazards().size(), 1U) << "the host has waited for it";
  ASSERT_EQ(b.cuda.stream_synchronize(other), CUDA_SUCCESS);
  ASSERT_EQ(b.cuda.mem_free_host(memory), CUDA_SUCCESS);
}

TEST(Streams, WhoIsNoStreamHasNoProperties) {
  bench b;
  const auto nobody = reinterpret_cast<CUstream>(std::uintptr_t{0xdead0});
  const CUstream gone = b.stream();
  ASSERT_EQ(b.cuda.stream_destroy(gone), CUDA_SUCCESS);
  int priority = 77;
  unsigned flags = 77;
  unsigned long long id = 77;
  CUcontext context = nullptr;
  const auto expect_all = [&](CUstream asked, CUresult answer) {
    EXPECT_EQ(b.cuda.stream_get_priority(asked, &priority), answer);
    EXPECT_EQ(b.cuda.stream_get_flags(asked, &flags), answer);
    EXPECT_EQ(b.cuda.stream_get_ctx(asked, &context), answer);
    EXPECT_EQ(b.cuda.stream_get_id(asked, &id), answer);
    EXPECT_EQ(b.cuda.stream_query(asked), answer);
    EXPECT_EQ(b.cuda.stream_synchronize(asked), answer);
  };
  expect_all(nobody, CUDA_ERROR_INVALID_HANDLE);
  expect_all(gone, CUDA_ERROR_INVALID_HANDLE);
  ASSERT_EQ(b.cuda.ctx_set_current(nullptr), CUDA_SUCCESS);
  expect_all(nobody, CUDA_ERROR_INVALID_CONTEXT);
  expect_all(nullptr, CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(priority, 77);
  EXPECT_EQ(flags, 77U);
  EXPECT_EQ(id, 77U);
  EXPECT_EQ(context, nullptr);
}

TEST(Waiting, NeedsAStreamAndAnEvent) {
  bench b;
  const auto nobody = reinterpret_cast<CUstream>(std::uintptr_t{0xdead0});
  EXPECT_EQ(b.cuda.stream_wait_event(nobody, b.event(), 0), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(b.cuda.stream_wait_event(b.stream(), nullptr, 0), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(b.cuda.stream_wait_event(b.stream(), b.event(), 2), CUDA_ERROR_INVALID_VALUE);
}

machine_options two_devices(progress mode) {
  machine_options wanted = with(mode);
  wanted.devices.resize(2);
  return wanted;
}

TEST(Waiting, AContextIsRecordedWithoutTheStreamsOfOtherDevices) {
  bench b{two_devices(progress::manual)};
  CUcontext other = nullptr;
  ASSERT_EQ(b.cuda.device_primary_ctx_retain(&other, 1), CUDA_SUCCESS);
  const CUevent mark = b.event();
  ASSERT_EQ(b.cuda.ctx_set_current(other), CUDA_SUCCESS);
  ASSERT_TRUE(b.machine->launch(b.stream(), "work", {}));
  const CUevent elsewhere = b.event();
  ASSERT_EQ(b.cuda.ctx_record_event(b.context, mark), CUDA_SUCCESS);
  ASSERT_EQ(b.cuda.ctx_record_event(other, elsewhere), CUDA_SUCCESS);
  EXPECT_EQ(b.cuda.event_query(mark), CUDA_SUCCESS);
  EXPECT_EQ(b.cuda.event_query(elsewhere), CUDA_ERROR_NOT_READY);
}

TEST(Waiting, AContextWithNothingLeftToDoIsRecordedAtOnce) {
  bench b{with(progress::manual)};
  const CUstream done = b.stream();
  b.stream();  // never used
  ASSERT_TRUE(b.machine->launch(done, "work", {}));
  b.machine->run_until_idle();
  const CUevent mark = b.event();
  ASSERT_EQ(b.cuda.ctx_record_event(b.context, mark), CUDA_SUCCESS);
  EXPECT_EQ(b.cuda.event_query(mark), CUDA_SUCCESS) << "no step was needed";
}

/// Streams of a device have worked, one of them is gone, and somebody waits for the context of
/// device 0: the labels of the work that is in no order with whoever waited.
std::vector<std::string> unordered_with_context_of_device_0(int device_at_work) {
  bench b{two_devices(progress::manual)};
  CUcontext other = nullptr;
  EXPECT_EQ(b.cuda.device_primary_ctx_retain(&other, 1), CUDA_SUCCESS);
  void* memory = nullptr;
  EXPECT_EQ(b.cuda.mem_host_alloc(&memory, 64, 0), CUDA_SUCCESS);
  const auto address = reinterpret_cast<CUdeviceptr>(memory);
  if (device_at_work == 1) {
    EXPECT_EQ(b.cuda.ctx_set_current(other), CUDA_SUCCESS);
  }
  const CUstream gone = b.stream();
  EXPECT_TRUE(b.machine->launch(gone, "gone", {writes(address, 32)}));
  EXPECT_TRUE(b.machine->launch(b.stream(), "there", {writes(address + 32, 32)}));
  b.machine->run_until_idle();
  EXPECT_EQ(b.cuda.stream_destroy(gone), CUDA_SUCCESS);
  EXPECT_EQ(b.cuda.ctx_set_current(b.context), CUDA_SUCCESS);
  const CUevent mark = b.event();
  const CUstream later = b.stream();
  EXPECT_EQ(b.cuda.ctx_record_event(b.context, mark), CUDA_SUCCESS);
  EXPECT_EQ(b.cuda.stream_wait_event(later, mark, 0), CUDA_SUCCESS);
  for (const CUdeviceptr half : {address, address + 32}) {
    EXPECT_TRUE(b.machine->launch(later, "later", {writes(half, 32)}));
  }
  std::vector<std::string> labels;
  for (const auto& found : b.machine->hazards()) labels.push_back(found.first.label);
  return labels;
}

TEST(Waiting, WhoWaitsForAContextIsBehindItsStreamsAndThoseOfNoOtherDevice) {
  EXPECT_THAT(unordered_with_context_of_device_0(0), IsEmpty());
  EXPECT_THAT(unordered_with_context_of_device_0(1), ElementsAre("gone", "there"));
}

TEST(Waiting, AContextIsRecordedInEventsOfItsOwn) {
  bench b{two_devices(progress::manual)};
  CUcontext other = nullptr;
  ASSERT_EQ(b.cuda.device_primary_ctx_retain(&other, 1), CUDA_SUCCESS);
  ASSERT_TRUE(b.machine->launch(b.stream(), "work", {}));
  const CUevent mark = b.event();
  EXPECT_EQ(b.cuda.ctx_record_event(other, mark), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(b.cuda.event_query(mark), CUDA_SUCCESS) << "nothing was recorded";
  EXPECT_EQ(b.cuda.ctx_record_event(b.context, mark), CUDA_SUCCESS);
  EXPECT_EQ(b.cuda.event_query(mark), CUDA_ERROR_NOT_READY);
}

TEST(Waiting, EventsGoWithTheirContext) {
  bench b{two_devices(progress::manual)};
  CUcontext other = nullptr;
  ASSERT_EQ(b.cuda.device_primary_ctx_retain(&other, 1), CUDA_SUCCESS);
  const CUevent gone = b.event();
  ASSERT_EQ(b.cuda.ctx_set_current(other), CUDA_SUCCESS);
  const CUevent kept = b.event();
  ASSERT_EQ(b.cuda.device_primary_ctx_reset(0), CUDA_SUCCESS);
  EXPECT_EQ(b.cuda.event_query(gone), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(b.cuda.event_destroy(gone), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(b.cuda.event_query(kept), CUDA_SUCCESS);
  EXPECT_EQ(b.cuda.event_destroy(kept), CUDA_SUCCESS);
}

TEST(Waiting, AResetWaitsForTheWorkOfItsDevice) {
  bench b{with(progress::manual)};
  bool done = false;
  ASSERT_TRUE(b.machine->launch(b.stream(), "work", {}, [&] { done = true; }));
  EXPECT_FALSE(done);
  ASSERT_EQ(b.cuda.device_primary_ctx_reset(0), CUDA_SUCCESS);
  EXPECT_TRUE(done);
}

TEST(DeviceSpec, IsAnH200UnlessToldOtherwise) {
  bench b;
  const auto attribute = [&](CUdevice_attribute which) {
    int value = -1;
    EXPECT_EQ(b.cuda.device_get_attribute(&value, which, 0), CUDA_SUCCESS);
    return value;
  };
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR), 9);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR), 0);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT), 132);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED), 1);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED), 1);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY), 1);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS), 1);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED), 1);
  std::size_t free = 0;
  std::size_t total = 0;
  ASSERT_EQ(b.cuda.mem_get_info(&free, &total), CUDA_SUCCESS);
  EXPECT_EQ(total, 150'109'880'320U);
  EXPECT_EQ(total - free, 554'500'096U) << "what the context takes";
}

TEST(DeviceSpec, TellsEachAbilityByItself) {
  const std::array abilities{
      std::pair{&device_spec::virtual_memory,
                CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED},
      std::pair{&device_spec::memory_pools, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED},
      std::pair{&device_spec::managed_memory, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY},
      std::pair{&device_spec::concurrent_managed_access,
                CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS},
      std::pair{&device_spec::posix_handles,
                CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED}};
  for (const auto& missing : abilities) {
    machine_options wanted;
    wanted.devices.front().*missing.first = false;
    bench b{wanted};
    const auto attribute = [&](CUdevice_attribute which) {
      int value = -1;
      EXPECT_EQ(b.cuda.device_get_attribute(&value, which, 0), CUDA_SUCCESS);
      return value;
    };
    for (const auto& [ability, which] : abilities) {
      EXPECT_EQ(attribute(which), ability == missing.first ? 0 : 1) << which;
    }
    const int handles = missing.first == &device_spec::posix_handles
                            ? CU_MEM_HANDLE_TYPE_FABRIC
                            : CU_MEM_HANDLE_TYPE_FABRIC | CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES), handles);
  }
}

TEST(DeviceSpec, TellsAttributesOfItsOwnDevicesOnly) {
  bench b{two_devices(progress::manual)};
  int value = -1;
  const auto answer = [&](int which, CUdevice device) {
    return b.cuda.device_get_attribute(&value, static_cast<CUdevice_attribute>(which), device);
  };
  for (const CUdevice device : {0, 1}) {
    EXPECT_EQ(answer(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device), CUDA_SUCCESS);
    EXPECT_EQ(value, device + 1);
  }
  EXPECT_EQ(answer(1, 2), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(answer(1, -1), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(b.cuda.device_get_attribute(nullptr, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 0),
            CUDA_ERROR_INVALID_VALUE);
  constexpr int last = 147;
  EXPECT_EQ(answer(0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(answer(1, 0), CUDA_SUCCESS);
  EXPECT_EQ(answer(last, 0), CUDA_SUCCESS);
  EXPECT_EQ(answer(last + 1, 0), CUDA_ERROR_INVALID_VALUE);
}

// --- Costs ---------------------------------------------------------------------------------------

TEST(Costs, CallsAreChargedByTheTableAndByHandle) {
  machine_options wanted;
  wanted.costs = cost_table::free();
  // So much a MiB that a single byte would show: these calls are charged for none.
  wanted.costs.of[static_cast<std::size_t>(call::mem_set_access)] = {.nanoseconds = 100,
                                                                     .nanoseconds_per_mib = 1e9};
  wanted.costs.of[static_cast<std::size_t>(call::mem_unmap)] = {.nanoseconds = 7,
                                                                .nanoseconds_per_mib = 1e9};
  wanted.costs.of[static_cast<std::size_t>(call::mem_create)] = {.nanoseconds = 10,
                                                                 .nanoseconds_per_mib = 1};
  bench b{wanted};
  constexpr std::size_t unit = std::size_t{2} << 20;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUdeviceptr at = 0;
  ASSERT_EQ(b.cuda.mem_address_reserve(&at, 3 * unit, 0, 0, 0), CUDA_SUCCESS);
  for (std::size_t i = 0; i < 3; ++i) {
    CUmemGenericAllocationHandle handle = 0;
    ASSERT_EQ(b.cuda.mem_create(&handle, unit, &properties, 0), CUDA_SUCCESS);
    ASSERT_EQ(b.cuda.mem_map(at + i * unit, unit, 0, handle, 0), CUDA_SUCCESS);
  }
  EXPECT_EQ(b.machine->driver_time(), 36ns) << "three times 10 ns and 2 MiB";
  const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  ASSERT_EQ(b.cuda.mem_set_access(at, 3 * unit, &access, 1), CUDA_SUCCESS);
  EXPECT_EQ(b.machine->driver_time(), 336ns) << "one call, three handles";
  ASSERT_EQ(b.cuda.mem_unmap(at, unit), CUDA_SUCCESS);
  EXPECT_EQ(b.machine->driver_time(), 343ns);
  EXPECT_EQ(b.machine->driver_time(call::mem_create), 36ns);
  EXPECT_EQ(b.machine->driver_time(call::mem_set_access), 300ns);
  EXPECT_EQ(b.machine->driver_time(call::mem_unmap), 7ns);
  EXPECT_EQ(b.machine->driver_time(call::mem_map), 0ns);
  EXPECT_EQ(b.machine->calls(call::mem_create), 3U);
  EXPECT_EQ(b.machine->calls(call::mem_set_access), 1U);
}

TEST(Costs, MemoryIsChargedOnceAndByItsBytes) {
  machine_options wanted;
  wanted.costs.of.fill({.nanoseconds = 1000, .nanoseconds_per_mib = 10});
  bench b{wanted};
  constexpr std::size_t mib = std::size_t{1} << 20;
  const auto cost = [&](const auto& call) {
    const auto before = b.machine->driver_time();
    EXPECT_EQ(call(), CUDA_SUCCESS);
    return b.machine->driver_time() - before;
  };
  CUdeviceptr plain = 0;
  CUdeviceptr managed = 0;
  void* pinned = nullptr;
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  std::vector<char> own(3 * mib);
  EXPECT_EQ(cost([&] { return b.cuda.mem_alloc(&plain, 4 * mib); }), 1040ns);
  EXPECT_EQ(cost([&] { return b.cuda.mem_alloc_managed(&managed, 5 * mib, CU_MEM_ATTACH_GLOBAL); }),
            1050ns);
  EXPECT_EQ(cost([&] { return b.cuda.mem_host_alloc(&pinned, 6 * mib, 0); }), 1060ns);
  EXPECT_EQ(cost([&] { return b.cuda.mem_host_register(own.data(), 3 * mib, 0); }), 1030ns);
  EXPECT_EQ(cost([&] { return b.cuda.mem_create(&handle, 8 * mib, &properties, 0); }), 1080ns);
  EXPECT_EQ(cost([&] { return b.cuda.memset_d8_async(plain, 1, 2 * mib, nullptr); }), 1020ns);
  EXPECT_EQ(cost([&] { return b.cuda.memset_d32_async(plain, 1, mib, nullptr); }), 1040ns);
  EXPECT_EQ(cost([&] { return b.cuda.memcpy_dtoh(own.data(), plain, 3 * mib); }), 1030ns);
  EXPECT_EQ(cost([&] { return b.cuda.ctx_synchronize(); }), 1000ns) << "no bytes of its own";
  EXPECT_EQ(cost([&] { return b.cuda.mem_release(handle); }), 1080ns);
  EXPECT_EQ(cost([&] { return b.cuda.mem_host_unregister(own.data()); }), 1030ns);
  EXPECT_EQ(cost([&] { return b.cuda.mem_free_host(pinned); }), 1060ns);
  EXPECT_EQ(cost([&] { return b.cuda.mem_free(managed); }), 1050ns);
  EXPECT_EQ(cost([&] { return b.cuda.mem_free(plain); }), 1040ns);
}

TEST(Costs, TheTableOfAnH200IsWhatWasMeasured) {
  const cost_table measured = cost_table::h200();
  const auto cost = [&](call which) {
    const call_cost& each = measured.of[static_cast<std::size_t>(which)];
    return std::pair{each.nanoseconds, each.nanoseconds_per_mib};
  };
  using pair = std::pair<double, double>;
  EXPECT_EQ(cost(call::mem_alloc), (pair{35'000, 235}));
  EXPECT_EQ(cost(call::mem_free), (pair{35'000, 235}));
  EXPECT_EQ(cost(call::mem_create), (pair{12'000, 0}));
  EXPECT_EQ(cost(call::mem_map), (pair{1'000, 0}));
  EXPECT_EQ(cost(call::mem_set_access), (pair{28'000, 0}));
  EXPECT_EQ(cost(call::mem_unmap), (pair{18'000, 0}));
  EXPECT_EQ(cost(call::mem_release), (pair{14'000, 270}));
  EXPECT_EQ(cost(call::event_record), (pair{200, 0}));
  EXPECT_EQ(cost(call::event_query), (pair{175, 0}));
  EXPECT_EQ(cost(call::stream_wait_event), (pair{166, 0}));
  EXPECT_EQ(cost(call::event_create), (pair{127, 0}));
  EXPECT_EQ(cost(call::event_destroy), (pair{127, 0}));
  EXPECT_EQ(cost(call::event_record_with_flags), (pair{200, 0}));
  EXPECT_EQ(cost(call::stream_query), (pair{230, 0}));
  EXPECT_EQ(cost(call::stream_get_id), (pair{27, 0}));
  EXPECT_EQ(cost(call::stream_is_capturing), (pair{22, 0}));
  EXPECT_EQ(cost(call::stream_write_value32), (pair{1'500, 0}));
  EXPECT_EQ(cost(call::ctx_get_current), (pair{10, 0}));
  EXPECT_EQ(cost(call::pointer_get_attribute), (pair{52, 0}));
  EXPECT_EQ(cost(call::launch_kernel), (pair{4'100, 0}));
  EXPECT_EQ(cost(call::memset_d8_async), (pair{1'108, 2'760}));
  EXPECT_EQ(cost(call::mem_address_reserve), (pair{0, 0})) << "not measured: nothing";
  bench b;  // charges them unless told otherwise
  CUdeviceptr at = 0;
  const auto before = b.machine->driver_time();
  ASSERT_EQ(b.cuda.mem_alloc(&at, std::size_t{4} << 20), CUDA_SUCCESS);
  EXPECT_EQ(b.machine->driver_time() - before, 35'000ns + 4 * 235ns);
}

TEST(Costs, ABigDeviceCostsNothingUntilItIsTouched) {
  const auto resident = [] {
    std::ifstream status{"/proc/self/statm"};
    std::size_t all = 0;
    std::size_t here = 0;
    status >> all >> here;
    return here * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  };
  const std::size_t before = resident();
  bench b;
  CUdeviceptr at = 0;
  ASSERT_EQ(b.cuda.mem_alloc(&at, std::size_t{130} << 30), CUDA_SUCCESS);
  EXPECT_GT(b.machine->used(device_id{0}).count(), std::uint64_t{130} << 30);
  EXPECT_LT(resident() - before, std::size_t{64} << 20);
}

// --- Faults --------------------------------------------------------------------------------------

TEST(Faults, TheNthCallFailsAndDoesNothing) {
  bench b;
  b.machine->fail(call::mem_alloc, 2, CUDA_ERROR_OUT_OF_MEMORY);
  CUdeviceptr at = 0;
  EXPECT_EQ(b.cuda.mem_alloc(&at, 512), CUDA_SUCCESS);
  const auto used = b.machine->used(device_id{0});
  EXPECT_EQ(b.cuda.mem_alloc(&at, std::size_t{4} << 20), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(b.machine->used(device_id{0}), used);
  EXPECT_EQ(b.cuda.mem_alloc(&at, std::size_t{4} << 20), CUDA_SUCCESS);
}

TEST(Faults, TheNthCallOfAnyKindFails) {
  bench b;
  b.machine->fail_any(3, CUDA_ERROR_UNKNOWN);
  int count = 0;
  CUdevice device = 0;
  EXPECT_EQ(b.cuda.device_get_count(&count), CUDA_SUCCESS);
  EXPECT_EQ(b.cuda.ctx_get_device(&device), CUDA_SUCCESS);
  EXPECT_EQ(b.cuda.ctx_synchronize(), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(b.cuda.ctx_synchronize(), CUDA_SUCCESS);
}

TEST(Faults, PlannedFaultsCanBeTakenBack) {
  bench b;
  b.machine->fail(call::ctx_synchronize, 1, CUDA_ERROR_UNKNOWN);
  b.machine->clear_faults();
  EXPECT_EQ(b.cuda.ctx_synchronize(), CUDA_SUCCESS);
}

TEST(Faults, ADelayTakesTimeAndNothingElse) {
  machine_options wanted;
  wanted.costs = cost_table::free();
  bench b{wanted};
  b.machine->delay(call::ctx_synchronize, 1, 5ms);
  EXPECT_EQ(b.cuda.ctx_synchronize(), CUDA_SUCCESS);
  EXPECT_EQ(b.machine->now(), 5ms);
}

TEST(Faults, CapacityCanShrink) {
  bench b;
  CUdeviceptr at = 0;
  b.machine->set_capacity(device_id{0}, b.machine->used(device_id{0}) + bytes{4 << 20});
  EXPECT_EQ(b.cuda.mem_alloc(&at, std::size_t{8} << 20), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(b.cuda.mem_alloc(&at, std::size_t{4} << 20), CUDA_SUCCESS);
}

TEST(Faults, ALostDeviceAnswersNothingElse) {
  bench b;
  const CUstream s = b.stream();
  b.machine->lose_device(device_id{0});
  CUdeviceptr at = 0;
  void* pinned = nullptr;
  std::vector<char> own(4096);
  EXPECT_EQ(b.cuda.mem_alloc(&at, 512), CUDA_ERROR_DEVICE_UNAVAILABLE);
  EXPECT_EQ(b.cuda.mem_alloc_managed(&at, 512, CU_MEM_ATTACH_GLOBAL),
            CUDA_ERROR_DEVICE_UNAVAILABLE);
  EXPECT_EQ(b.cuda.mem_host_alloc(&pinned, 512, 0), CUDA_ERROR_DEVICE_UNAVAILABLE);
  EXPECT_EQ(b.cuda.mem_host_register(own.data(), own.size(), 0), CUDA_ERROR_DEVICE_UNAVAILABLE);
  EXPECT_EQ(b.cuda.stream_synchronize(s), CUDA_ERROR_DEVICE_UNAVAILABLE);
  EXPECT_EQ(b.cuda.device_primary_ctx_reset(0), CUDA_ERROR_DEVICE_UNAVAILABLE);
}

TEST(Faults, ADeviceLostUnderWorkEndsWhoeverWaits) {
  bench b;
  const CUstream s = b.stream();
  b.machine->hold(s);
  ASSERT_TRUE(b.machine->launch(s, "work", {}));
  std::thread waiter{[&] {
    EXPECT_EQ(b.cuda.ctx_set_current(b.context), CUDA_SUCCESS);
    EXPECT_EQ(b.cuda.stream_synchronize(s), CUDA_ERROR_LAUNCH_FAILED);
  }};
  std::this_thread::sleep_for(5ms);
  b.machine->lose_device(device_id{0});
  waiter.join();
}

TEST(Faults, AKernelThatFaultsStopsItsDeviceForGood) {
  bench b;
  const CUstream s = b.stream();
  ASSERT_TRUE(b.machine->launch(s, "stray", {writes(0x1000, 16)}));
  EXPECT_EQ(b.cuda.stream_synchronize(s), CUDA_ERROR_ILLEGAL_ADDRESS);
  CUdeviceptr at = 0;
  EXPECT_EQ(b.cuda.mem_alloc(&at, 512), CUDA_ERROR_ILLEGAL_ADDRESS);
  ASSERT_EQ(b.cuda.device_primary_ctx_reset(0), CUDA_SUCCESS);
  ASSERT_EQ(b.cuda.device_primary_ctx_retain(&b.context, 0), CUDA_SUCCESS);
  EXPECT_EQ(b.cuda.mem_alloc(&at, 512), CUDA_SUCCESS) << "a reset is the way out";
}

TEST(Faults, AfterAResetTheDefaultStreamWorksAgain) {
  bench b{with(progress::manual)};
  int done = 0;
  ASSERT_TRUE(b.machine->launch(nullptr, "stray", {writes(0x1000, 16)}));
  ASSERT_TRUE(b.machine->launch(nullptr, "behind it", {}, [&] { ++done; }));
  EXPECT_EQ(b.cuda.ctx_synchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  ASSERT_EQ(b.cuda.device_primary_ctx_reset(0), CUDA_SUCCESS);
  ASSERT_EQ(b.cuda.device_primary_ctx_retain(&b.context, 0), CUDA_SUCCESS);
  ASSERT_TRUE(b.machine->launch(nullptr, "work", {}, [&] { done += 10; }));
  EXPECT_EQ(done, 0);
  b.machine->run_until_idle();
  EXPECT_EQ(done, 10);
}

TEST(Faults, WhoWaitsForADeviceThatFaultedGoesOnAfterItsReset) {
  bench b{two_devices(progress::manual)};
  CUcontext other = nullptr;
  ASSERT_EQ(b.cuda.device_primary_ctx_retain(&other, 1), CUDA_SUCCESS);
  const CUstream faulting = b.stream();
  const CUevent mark = b.event();
  ASSERT_TRUE(b.machine->launch(faulting, "stray", {writes(0x1000, 16)}));
  ASSERT_EQ(b.cuda.event_record(mark, faulting), CUDA_SUCCESS);
  ASSERT_EQ(b.cuda.ctx_set_current(other), CUDA_SUCCESS);
  const CUstream waiting = b.stream();
  bool done = false;
  ASSERT_EQ(b.cuda.stream_wait_event(waiting, mark, 0), CUDA_SUCCESS);
  ASSERT_TRUE(b.machine->launch(waiting, "behind it", {}, [&] { done = true; }));
  b.machine->run_until_idle();
  EXPECT_FALSE(done);
  ASSERT_EQ(b.cuda.device_primary_ctx_reset(0), CUDA_SUCCESS);
  b.machine->run_until_idle();
  EXPECT_TRUE(done);
}

// --- Lifetimes -----------------------------------------------------------------------------------

TEST(Time, StandsStillWhenItIsAdvancedByNothingOrLess) {
  bench b;
  const time_point before = b.machine->now();
  b.machine->advance(0ns);
  EXPECT_EQ(b.machine->now(), before);
  b.machine->advance(-1ns);
  EXPECT_EQ(b.machine->now(), before);
  b.machine->advance(1ns);
  EXPECT_EQ(b.machine->now(), before + 1ns);
}

TEST(Lifetime, AMachineMayEndWhileStreamsWaitForEachOther) {
  std::weak_ptr<stream_state> one;
  std::weak_ptr<stream_state> two;
  {
    state machine{machine_options{}};
    const auto first = machine.flow.make_stream(0, 0, 0);
    const auto second = machine.flow.make_stream(0, 0, 0);
    machine.flow.enqueue(first, {}, {{second, 1}});
    machine.flow.enqueue(second, {}, {{first, 1}});
    one = first;
    two = second;
  }
  EXPECT_TRUE(one.expired());
  EXPECT_TRUE(two.expired());
}

TEST(Lifetime, EightMachinesAndNoMore) {
  std::vector<std::shared_ptr<machine>> all;
  for (int i = 0; i < 8; ++i) {
    auto made = machine::create();
    ASSERT_TRUE(made);
    all.push_back(std::move(*made));
  }
  const auto refused = machine::create();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.code(), errc::limit_exceeded);
  all.pop_back();
  EXPECT_TRUE(machine::create());
}

TEST(Lifetime, MachinesDoNotSeeEachOther) {
  machine_options two;
  two.devices.resize(2);
  const auto one = machine::create().value();
  const auto other = machine::create(two).value();
  ASSERT_EQ(one->driver().init(0), CUDA_SUCCESS);
  int count = 0;
  EXPECT_EQ(other->driver().device_get_count(&count), CUDA_ERROR_NOT_INITIALIZED);
  ASSERT_EQ(other->driver().init(0), CUDA_SUCCESS);
  EXPECT_EQ(other->driver().device_get_count(&count), CUDA_SUCCESS);
  EXPECT_EQ(count, 2);
  EXPECT_EQ(one->driver().device_get_count(&count), CUDA_SUCCESS);
  EXPECT_EQ(count, 1);
}

TEST(Lifetime, BeforeInitTheVersionAndErrorsCanBeAskedForAndNothingElse) {
  const auto made = machine::create().value();
  const table& cuda = made->driver();
  int count = 0;
  EXPECT_EQ(cuda.device_get_count(&count), CUDA_ERROR_NOT_INITIALIZED);
  int version = 0;
  EXPECT_EQ(cuda.driver_get_version(&version), CUDA_SUCCESS);
  EXPECT_EQ(version, made->options().driver_version);
  const char* name = nullptr;
  EXPECT_EQ(cuda.get_error_name(CUDA_ERROR_NOT_INITIALIZED, &name), CUDA_SUCCESS);
  EXPECT_STREQ(name, "CUDA_ERROR_NOT_INITIALIZED");
  const char* text = nullptr;
  EXPECT_EQ(cuda.get_error_string(CUDA_SUCCESS, &text), CUDA_SUCCESS);
  EXPECT_STREQ(text, "no error");
}

TEST(Lifetime, AnEndedContextOnlyMattersToCallsThatNeedOne) {
  bench b;
  ASSERT_EQ(b.cuda.device_primary_ctx_reset(0), CUDA_SUCCESS);
  constexpr std::size_t unit = std::size_t{2} << 20;
  CUdeviceptr range = 0;
  int priority = 0;
  EXPECT_EQ(b.cuda.mem_alloc(&range, unit), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(b.cuda.ctx_get_stream_priority_range(&priority, &priority),
            CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(b.cuda.init(0), CUDA_SUCCESS);
  EXPECT_EQ(b.cuda.mem_address_reserve(&range, unit, 0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(b.cuda.mem_address_free(range, unit), CUDA_SUCCESS);
  CUmemGenericAllocationHandle handle = 0;
  const auto nothing = reinterpret_cast<void*>(std::intptr_t{-1});
  EXPECT_EQ(b.cuda.mem_import_from_shareable_handle(&handle, nothing,
                                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            CUDA_ERROR_UNKNOWN);
  CUcontext ended = nullptr;
  EXPECT_EQ(b.cuda.ctx_pop_current(&ended), CUDA_SUCCESS);
  EXPECT_EQ(ended, b.context);
}

TEST(Lifetime, ATableOutlivesItsMachineAndSaysSo) {
  auto made = machine::create().value();
  const table& cuda = made->driver();
  ASSERT_EQ(cuda.init(0), CUDA_SUCCESS);
  made.reset();
  int count = 0;
  EXPECT_EQ(cuda.device_get_count(&count), CUDA_ERROR_DEINITIALIZED);
}

TEST(Lifetime, AfterShutDownEveryCallIsRefused) {
  bench b;
  b.machine->shut_down();
  EXPECT_EQ(b.cuda.ctx_synchronize(), CUDA_ERROR_DEINITIALIZED);
}

TEST(Lifetime, AForkedChildIsRefusedAndMayStartAnew) {
  bench b;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int count = 0;
    const bool refused = b.cuda.device_get_count(&count) == CUDA_ERROR_NOT_INITIALIZED;
    const auto own = machine::create();
    const bool anew = own && (*own)->driver().init(0) == CUDA_SUCCESS;
    b.machine.reset();
    _exit(refused && anew ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(b.cuda.ctx_synchronize(), CUDA_SUCCESS) << "the parent goes on";
}

// Number 0 is one like any other, in a process that closed its input.
TEST(Lifetime, AMachineClosesItsDescriptorsAndAmongThemNumberZero) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto is_open = [] { return fcntl(0, F_GETFD) != -1; };
    const auto leaks = [&](CUmemAllocationHandleType types) {
      close(0);
      {
        bench b;
        CUmemAllocationProp properties{};
        properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
        properties.requestedHandleTypes = types;
        CUmemGenericAllocationHandle handle = 0;
        b.cuda.mem_create(&handle, std::size_t{2} << 20, &properties, 0);
        if (!is_open()) return true;  // not what is to be tested
        b.cuda.mem_release(handle);
        if (types != CU_MEM_HANDLE_TYPE_NONE && is_open()) return true;
      }
      return is_open();
    };
    const bool common = leaks(CU_MEM_HANDLE_TYPE_NONE);
    const bool own = leaks(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    _exit((common ? 1 : 0) + (own ? 2 : 0));
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Lifetime, ImpossibleMachinesAreRefused) {
  const auto code_of = [](machine_options wanted) {
    const auto made = machine::create(std::move(wanted));
    return made ? errc::internal : made.code();
  };
  machine_options odd;
  odd.devices[0].granularity = bytes{3 << 20};
  EXPECT_EQ(code_of(odd), errc::invalid_argument);
  machine_options small;
  small.devices[0].capacity = bytes{1 << 20};
  EXPECT_EQ(code_of(small), errc::invalid_argument);
  machine_options early;
  early.lag = -1ns;
  EXPECT_EQ(code_of(early), errc::invalid_argument);
  machine_options fine;
  fine.devices[0].granularity = bytes{2048};
  EXPECT_EQ(code_of(fine), errc::invalid_argument);
  machine_options tight;
  tight.devices[0].context_overhead = tight.devices[0].capacity + bytes{1};
  EXPECT_EQ(code_of(tight), errc::invalid_argument);
  machine_options many;
  many.devices.resize(65);
  EXPECT_EQ(code_of(many), errc::invalid_argument);
}

TEST(Lifetime, MachinesThatAreJustPossibleAreMade) {
  machine_options fine;
  fine.devices[0].granularity = bytes{4096};
  EXPECT_TRUE(machine::create(fine));
  machine_options tight;
  tight.devices[0].context_overhead = tight.devices[0].capacity;
  EXPECT_TRUE(machine::create(tight));
  machine_options many;
  many.devices.resize(64);
  EXPECT_TRUE(machine::create(many));
}

TEST(Lifetime, AMachineWithoutDevicesSaysSo) {
  machine_options none;
  none.devices.clear();
  const auto made = machine::create(none).value();
  EXPECT_EQ(made->driver().init(0), CUDA_ERROR_NO_DEVICE);
}

TEST(Lifetime, HandlesAreRecycledAndIdsAreNot) {
  bench b;
  const CUstream first = b.stream();
  unsigned long long first_id = 0;
  ASSERT_EQ(b.cuda.stream_get_id(first, &first_id), CUDA_SUCCESS);
  ASSERT_EQ(b.cuda.stream_destroy(first), CUDA_SUCCESS);
  const CUstream second = b.stream();
  unsigned long long second_id = 0;
  ASSERT_EQ(b.cuda.stream_get_id(second, &second_id), CUDA_SUCCESS);
  EXPECT_EQ(first, second);
  EXPECT_NE(first_id, second_id);
}

TEST(Threads, ManyThreadsShareAMachine) {
  bench b;
  constexpr int threads = 4;
  constexpr int rounds = 200;
  std::atomic<int> done{0};
  std::vector<std::thread> all;
  for (int t = 0; t < threads; ++t) {
    all.emplace_back([&] {
      ASSERT_EQ(b.cuda.ctx_set_current(b.context), CUDA_SUCCESS);
      const CUstream s = b.stream();
      for (int i = 0; i < rounds; ++i) {
        CUdeviceptr at = 0;
        ASSERT_EQ(b.cuda.mem_alloc_async(&at, 4096, s), CUDA_SUCCESS);
        ASSERT_TRUE(b.machine->launch(s, "work", {writes(at, 4096)}, [&] { ++done; }));
        ASSERT_EQ(b.cuda.mem_free_async(at, s), CUDA_SUCCESS);
      }
      ASSERT_EQ(b.cuda.stream_synchronize(s), CUDA_SUCCESS);
    });
  }
  for (auto& each : all) each.join();
  EXPECT_EQ(done, threads * rounds);
  EXPECT_TRUE(b.machine->hazards().empty());
}

}  // namespace
}  // namespace weir::sim
