// SPDX-License-Identifier: Apache-2.0
// What it costs to learn how far k streams have come: an event recorded on each, a query of each,
// and one event behind all activities of the context (cuCtxRecordEvent, which spoils every capture
// under way and is never called by weir; here to show what that costs us).
#include <benchmark/benchmark.h>
#include <dlfcn.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "weir/device/event.hpp"
#include "weir/device/runtime.hpp"
#include "weir/device/stream.hpp"

namespace {

using namespace weir;

/// Streams of one device.
class fleet {
 public:
  fleet(device card, std::int64_t count) : card_{card} {
    for (std::int64_t i = 0; i < count; ++i) {
      streams.push_back(stream::create(card).value());
      marks.push_back(event::create(card).value());
    }
  }
  ~fleet() { static_cast<void>(card_.synchronize()); }
  fleet(const fleet&) = delete;
  fleet& operator=(const fleet&) = delete;

  std::vector<stream> streams;
  std::vector<event> marks;

 private:
  device card_;
};

struct gpu {
  std::shared_ptr<runtime> opened;
  weir::device device;
};

/// Leaks on purpose: the driver outlives every benchmark.
gpu* the_gpu() {
  static gpu* const instance = []() -> gpu* {
    auto opened = runtime::open_cuda();
    if (!opened) return nullptr;
    const auto card = (*opened)->device(device_id{0});
    if (!card) return nullptr;
    return new gpu{*std::move(opened), *card};
  }();
  return instance;
}

template <class Ask>
void over_streams(benchmark::State& state, const Ask& ask) {
  gpu* const target = the_gpu();
  if (target == nullptr) return state.SkipWithError("no GPU");
  fleet all{target->device, state.range(0)};
  const context_scope bound{target->device};
  for (auto _ : state) ask(all, bound);
  state.counters["ns a stream"] = benchmark::Counter(
      static_cast<double>(state.range(0)) * 1e-9,
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void record_on_each(benchmark::State& state) {
  over_streams(state, [](fleet& all, const context_scope& bound) {
    for (std::size_t i = 0; i < all.streams.size(); ++i)
      benchmark::DoNotOptimize(all.marks[i].record(all.streams[i], bound));
  });
}

/// As stream_order marks a stream of others: is it captured, is it still itself (weir's own and
/// watched ones are not asked that), record, is it captured now.
void mark_each(benchmark::State& state) {
  over_streams(state, [](fleet& all, const context_scope& bound) {
    for (std::size_t i = 0; i < all.streams.size(); ++i) {
      const stream_ref bare{all.streams[i].device(), all.streams[i].handle()};
      benchmark::DoNotOptimize(bare.capture(bound));
      benchmark::DoNotOptimize(bare.id(bound));
      benchmark::DoNotOptimize(all.marks[i].record(bare, bound));
      benchmark::DoNotOptimize(bare.is_capturing(bound));
    }
  });
}

void query_events(benchmark::State& state) {
  over_streams(state, [](fleet& all, const context_scope& bound) {
    for (const event& each : all.marks) benchmark::DoNotOptimize(each.is_complete(bound));
  });
}

void query_each(benchmark::State& state) {
  over_streams(state, [](fleet& all, const context_scope& bound) {
    for (const stream& each : all.streams) benchmark::DoNotOptimize(each.ref().is_complete(bound));
  });
}

void record_context(benchmark::State& state) {
  using record_call = int (*)(void* context, void* event);
  using current_call = int (*)(void** context);
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW);
  const auto record = library == nullptr
                          ? nullptr
                          : reinterpret_cast<record_call>(::dlsym(library, "cuCtxRecordEvent"));
  const auto current = library == nullptr
                           ? nullptr
                           : reinterpret_cast<current_call>(::dlsym(library, "cuCtxGetCurrent"));
  if (record == nullptr || current == nullptr) return state.SkipWithError("no cuCtxRecordEvent");
  over_streams(state, [&](fleet& all, const context_scope&) {
    void* context = nullptr;
    static_cast<void>(current(&context));
    benchmark::DoNotOptimize(record(context, all.marks.front().handle()));
  });
}

BENCHMARK(record_on_each)->Arg(1)->Arg(3)->Arg(8)->Arg(32)->Arg(128);
BENCHMARK(mark_each)->Arg(1)->Arg(3)->Arg(8)->Arg(32)->Arg(128);
BENCHMARK(query_events)->Arg(1)->Arg(3)->Arg(8)->Arg(32)->Arg(128);
BENCHMARK(query_each)->Arg(1)->Arg(3)->Arg(8)->Arg(32)->Arg(128);
BENCHMARK(record_context)->Arg(1)->Arg(3)->Arg(8)->Arg(32)->Arg(128);

}  // namespace
