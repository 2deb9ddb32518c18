// SPDX-License-Identifier: Apache-2.0
// A decoder's cache on a simulated card: how many sequences fit, and what is held for them.
//
// Sequences with random prompts and answers are decoded in steps of 16 tokens. A sequence that ends
// makes room for the next. Four ways to hold the cache of a sequence in one piece of addresses:
//
//   growable        pages are committed as the sequence grows
//   growable_ahead  the same, with one page ready ahead for each sequence
//   preallocated    one block for the longest sequence there may be
//   concatenated    a new block for every step, into which the old one is copied (torch.cat)
//
// Where the card is full, the newest sequence goes back into the queue and loses its cache.
// Counters: sequences (mean at a time), held_GiB (mean of live blocks and pages), waste (held /
// bytes that tokens use), peak_GiB (of reserved memory), preempted, copied_GiB, memory_calls of the
// driver for each 1,000 tokens.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/device/stream.hpp"
#include "weir/growable/growable_memory.hpp"
#include "weir/sim/machine.hpp"

namespace {

using namespace weir;
using namespace weir::literals;

constexpr bytes card = 16_GiB;           // what the cache may have
constexpr bytes token = 128_KiB;         // of 32 layers, 8 heads, 128 values each, two bytes
constexpr std::uint64_t longest = 4096;  // tokens of a sequence
constexpr std::uint64_t step_tokens = 16;
constexpr bytes page = 16_MiB;
constexpr std::uint64_t all_sequences = 400;

struct sequence {
  std::uint64_t number = 0;
  std::uint64_t prompt = 0;  // tokens
  std::uint64_t total = 0;   // with its answer
  std::uint64_t length = 0;  // so far
  std::uint64_t place = 0;
  void* block = nullptr;  // of the ways without growable memory
};

/// The memory of sequences, one way or another.
class cache_way {
 public:
  virtual ~cache_way() = default;
  /// Makes room for `length` tokens. False: there is none.
  virtual bool grow(sequence& of, std::uint64_t length) = 0;
  virtual void drop(sequence& of) = 0;
  [[nodiscard]] virtual double copied() const { return 0; }
};

class growable_way final : public cache_way {
 public:
  growable_way(const caching_allocator& memory, const stream& on, bool ahead)
      : on_{on},
        ahead_{ahead},
        cache_{growable_memory::reserve(memory, most * place, {.page = page}).value()} {
    for (std::uint64_t i = 0; i < most; ++i) free_.push_back(i);
  }
  bool grow(sequence& of, std::uint64_t length) override {
    if (of.length == 0) {
      if (free_.empty()) return false;
      of.place = free_.front();
      free_.pop_front();
    }
    bytes needed = token * length;
    if (ahead_) needed = std::min(needed + page, place);
    if (cache_.commit(place * of.place, needed, on_)) return true;
    if (of.length == 0) free_.push_front(of.place);
    return false;
  }
  void drop(sequence& of) override {
    cache_.decommit(place * of.place, place, on_).value();
    free_.push_back(of.place);
  }

 private:
  static constexpr std::uint64_t most = 512;
  static constexpr bytes place = token * longest;

  const stream& on_;
  bool ahead_;
  growable_memory cache_;
  std::deque<std::uint64_t> free_;
};

class preallocated_way final : public cache_way {
 public:
  preallocated_way(caching_allocator memory, const stream& on)
      : memory_{std::move(memory)}, on_{on} {}
  bool grow(sequence& of, std::uint64_t) override {
    if (of.block != nullptr) return true;
    const auto block = memory_.try_allocate(token * longest, on_);
    if (block) of.block = *block;
    return block.has_value();
  }
  void drop(sequence& of) override {
    memory_.deallocate(of.block, on_);
    of.block = nullptr;
  }

 private:
  caching_allocator memory_;
  const stream& on_;
};

class concatenated_way final : public cache_way {
 public:
  concatenated_way(caching_allocator memory, const stream& on)
      : memory_{std::move(memory)}, on_{on} {}
  bool grow(sequence& of, std::uint64_t length) override {
    const auto block = memory_.try_allocate(token * length, on_);
    if (!block) return false;
    if (of.block != nullptr) {
      copied_ += static_cast<double>((token * of.length).count());
      memory_.deallocate(of.block, on_);
    }
    of.block = *block;
    return true;
  }
  void drop(sequence& of) override {
    memory_.deallocate(of.block, on_);
    of.block = nullptr;
  }
  [[nodiscard]] double copied() const override { return copied_; }

 private:
  caching_allocator memory_;
  const stream& on_;
  double copied_ = 0;
};

enum class way : std::uint8_t { growable, growable_ahead, preallocated, concatenated };

std::unique_ptr<cache_way> make(way chosen, const caching_allocator& memory, const stream& on) {
  switch (chosen) {
    case way::growable:
    case way::growable_ahead:
      return std::make_unique<growable_way>(memory, on, chosen == way::growable_ahead);
    case way::preallocated:
      return std::make_unique<preallocated_way>(memory, on);
    case way::concatenated:
      break;
  }
  return std::make_unique<concatenated_way>(memory, on);
}

std::deque<sequence> make_sequences() {
  std::mt19937 random{7};
  std::lognormal_distribution<double> prompt{6.2, 0.9};
  std::lognormal_distribution<double> answer{5.5, 0.8};
  std::deque<sequence> all;
  for (std::uint64_t i = 0; i < all_sequences; ++i) {
    const auto tokens = [&](auto& of) {
      return static_cast<std::uint64_t>(std::clamp(of(random), 16.0, 2048.0));
    };
    sequence next{.number = i, .prompt = tokens(prompt)};
    next.total = next.prompt + tokens(answer);
    all.push_back(next);
  }
  return all;
}

struct outcome {
  double steps = 0, sequences = 0, held = 0, used = 0, tokens = 0, preempted = 0;
};

/// Until every sequence has its answer.
outcome serve(cache_way& cache, const caching_allocator& memory) {
  std::deque<sequence> waiting = make_sequences();
  std::vector<sequence> running;
  outcome seen;
  const auto preempt = [&] {
    cache.drop(running.back());
    sequence back = running.back();
    running.pop_back();
    back.length = 0;
    waiting.push_front(back);
    ++seen.preempted;
  };
  while (!waiting.empty() || !running.empty()) {
    while (!waiting.empty() && cache.grow(waiting.front(), waiting.front().prompt)) {
      running.push_back(waiting.front());
      running.back().length = running.back().prompt;
      waiting.pop_front();
    }
    if (running.empty()) break;  // not even one fits
    for (std::size_t i = 0; i < running.size(); ++i) {
      const std::uint64_t length = std::min(running[i].length + step_tokens, running[i].total);
      while (i + 1 < running.size() && !cache.grow(running[i], length)) preempt();
      if (i + 1 == running.size() && !cache.grow(running[i], length)) {
        preempt();
        break;
      }
      seen.tokens += static_cast<double>(length - running[i].length);
      running[i].length = length;
    }
    ++seen.steps;
    seen.sequences += static_cast<double>(running.size());
    seen.held += static_cast<double>(memory.stats().allocated.current.count());
    for (const sequence& each : running)
      seen.used += static_cast<double>((token * each.length).count());
    std::erase_if(running, [&](sequence& each) {
      if (each.length < each.total) return false;
      cache.drop(each);
      return true;
    });
  }
  return seen;
}

std::uint64_t memory_calls(const sim::machine& machine) {
  using driver::call;
  std::uint64_t sum = 0;
  for (const call each :
       {call::mem_create, call::mem_release, call::mem_map, call::mem_unmap, call::mem_set_access})
    sum += machine.calls(each);
  return sum;
}

void decoder(benchmark::State& state, way chosen) {
  constexpr double gib = 1 << 30;
  for (auto _ : state) {
    sim::machine_options settings;
    settings.devices = {sim::device_spec{.capacity = 24_GiB}};
    settings.mode = sim::progress::manual;
    settings.check_hazards = false;
    const auto machine = sim::machine::create(settings).value();
    const auto opened = runtime::open_simulated(machine).value();
    const auto gpu = opened->device(device_id{0}).value();
    const auto memory = caching_allocator::create(gpu).value();
    memory.set_limit(card).value();
    const auto on = stream::create(gpu).value();
    outcome seen;
    double copied = 0;
    {
      const auto cache = make(chosen, memory, on);
      seen = serve(*cache, memory);
      copied = cache->copied();
    }
    state.counters["sequences"] = seen.sequences / seen.steps;
    state.counters["held_GiB"] = seen.held / seen.steps / gib;
    state.counters["waste"] = seen.held / seen.used;
    state.counters["peak_GiB"] = static_cast<double>(memory.stats().reserved.peak.count()) / gib;
    state.counters["preempted"] = seen.preempted;
    state.counters["copied_GiB"] = copied / gib;
    state.counters["steps"] = seen.steps;
    state.counters["memory_calls"] =
        static_cast<double>(memory_calls(*machine)) / seen.tokens * 1000;
  }
}
BENCHMARK_CAPTURE(decoder, growable, way::growable)->Iterations(1)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(decoder, growable_ahead, way::growable_ahead)
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(decoder, preallocated, way::preallocated)
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(decoder, concatenated, way::concatenated)
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

}  // namespace
