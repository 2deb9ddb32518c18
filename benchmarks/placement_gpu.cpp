// SPDX-License-Identifier: Apache-2.0
// What recorded programs cost on a GPU under each policy: memory reserved beyond what they asked
// for, and time inside the allocator.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/trace.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"

namespace {

using namespace weir;
using testing_support::trace;
using clock_type = std::chrono::steady_clock;

/// Reads each trace once; null if it cannot be read.
const trace* the_trace(const std::string& name) {
  static std::map<std::string, std::unique_ptr<trace>> known;
  const auto [entry, is_new] = known.try_emplace(name);
  if (is_new) {
    auto read = testing_support::read_trace(name);
    if (read) entry->second = std::make_unique<trace>(*std::move(read));
  }
  return entry->second.get();
}

/// Opened once, for a context costs more than most replays; null without a GPU.
runtime* the_runtime() {
  static const auto opened = runtime::open_cuda();
  return opened ? opened.value().get() : nullptr;
}

struct outcome {
  std::chrono::nanoseconds total{};  ///< allocate and deallocate together
  std::chrono::nanoseconds slow{};   ///< of it, calls of 5 µs and more: those that use the driver
  memory_stats stats;
};

/// Plays the whole trace as fast as it goes. Each block is written to once, so that streams have
/// work, and freed on its stream when the program could have reused it.
outcome play(const trace& recorded, caching_allocator& memory, const std::vector<stream>& streams) {
  const driver::table& cuda = memory.device().driver();
  std::vector<void*> live(recorded.blocks);
  outcome measured;
  const auto timed = [&](auto call) {
    const auto start = clock_type::now();
    call();
    const std::chrono::nanoseconds elapsed = clock_type::now() - start;
    measured.total += elapsed;
    if (elapsed >= std::chrono::microseconds{5}) measured.slow += elapsed;
  };
  for (const trace::event& each : recorded.events) {
    const stream_ref queue = streams[each.stream];
    void*& block = live[each.block];
    if (each.kind == trace::event_kind::allocate && each.size != 0) {
      timed([&] { block = memory.allocate(bytes{each.size}, queue); });
      const auto address =
          static_cast<driver::CUdeviceptr>(reinterpret_cast<std::uintptr_t>(block));
      const std::size_t touched = std::min<std::uint64_t>(each.size, 512);
      driver::check(driver::call::memset_d8_async,
                    cuda.memset_d8_async(address, 1, touched, queue.handle()))
          .value();
    }
    if (each.kind == trace::event_kind::reusable && block != nullptr)
      timed([&] { memory.deallocate(std::exchange(block, nullptr), queue); });
  }
  measured.stats = memory.stats();
  for (void* const each : live) memory.deallocate(each);
  return measured;
}

void placement(benchmark::State& state, const std::string& name, placement_policy policy) {
  const trace* const recorded = the_trace(name);
  if (recorded == nullptr) {
    state.SkipWithError("the trace cannot be read");
    return;
  }
  const runtime* const opened = the_runtime();
  if (opened == nullptr) {
    state.SkipWithError("no usable GPU driver");
    return;
  }
  for (auto _ : state) {
    const device card = opened->device(device_id{0}).value();
    const context_scope bound{card};
    std::vector<stream> streams;
    for (std::size_t i = 0; i < recorded->streams; ++i)
      streams.push_back(stream::create(card).value());
    auto memory = caching_allocator::create(card, {.policy = policy}).value();
    const outcome measured = play(*recorded, memory, streams);
    memory.close().value();
    const auto seconds = [](std::chrono::nanoseconds time) {
      return std::chrono::duration<double>{time}.count();
    };
    state.SetIterationTime(seconds(measured.total));
    const auto number = [](std::uint64_t count) { return static_cast<double>(count); };
    const double wall = number(recorded->events.back().time) / 1e6;
    state.counters["reserved_over_requested"] = number(measured.stats.reserved.peak.count()) /
                                                number(measured.stats.requested.peak.count());
    state.counters["reserved_MiB"] = number(measured.stats.reserved.peak.count() >> 20);
    state.counters["driver_ms"] = seconds(measured.slow) * 1e3;
    state.counters["driver_percent_of_program"] = seconds(measured.slow) / wall * 100;
    state.counters["created"] = number(measured.stats.handles_created);
    state.counters["moved"] = number(measured.stats.handles_moved);
    state.counters["returned"] = number(measured.stats.handles_returned);
    state.counters["released"] = number(measured.stats.handles_released);
    state.counters["waits"] = number(measured.stats.waits);
  }
}

/// One benchmark a trace and policy.
const bool registered = [] {
  constexpr placement_policy policies[] = {
      placement_policy::balanced, placement_policy::throughput,
      placement_policy::compact,  placement_policy::never_move,
      placement_policy::classic,  placement_policy::classic_expandable};
  for (const std::string& each : testing_support::recorded_programs()) {
    for (const placement_policy policy : policies) {
      options settings;
      settings.heap_policy = policy;
      const std::string title = "placement/" + each + "/" + get(settings, "heap_policy").value();
      benchmark::RegisterBenchmark(
          title.c_str(),
          [name = each, policy](benchmark::State& state) { placement(state, name, policy); })
          ->Iterations(1)
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond);
    }
  }
  return true;
}();

}  // namespace
