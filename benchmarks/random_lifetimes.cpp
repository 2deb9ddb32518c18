// SPDX-License-Identifier: Apache-2.0
// How much memory programs hold whose blocks come and go at random: what is reserved over what is
// requested, both at their peaks, under balanced, compact and PyTorch's two policies, on the
// simulated H200. Prints tables in Markdown; docs/measurements/random-lifetimes.md tells what they
// mean.
//
//   bench_random_lifetimes [random|patterns]...      both without an argument
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/device/stream.hpp"
#include "weir/sim/machine.hpp"

namespace {

using namespace weir;
using namespace weir::literals;

constexpr std::uint64_t kib = 1 << 10;
constexpr std::uint64_t mib = 1 << 20;
constexpr std::array policies{placement_policy::balanced, placement_policy::compact,
                              placement_policy::classic, placement_policy::classic_expandable};

/// An allocator on a card that is never full, with as many streams as a program needs.
class playground {
 public:
  playground(placement_policy policy, std::uint64_t seed) : random_{seed} {
    sim::machine_options options;
    options.devices.front().capacity = 600_GiB;
    options.check_hazards = false;
    machine_ = sim::machine::create(options).value();
    runtime_ = runtime::open_simulated(machine_).value();
    const device gpu = runtime_->device(device_id{0}).value();
    allocator_options chosen;
    chosen.policy = policy;
    memory_ = std::make_unique<caching_allocator>(caching_allocator::create(gpu, chosen).value());
    for (int i = 0; i < 8; ++i) streams_.push_back(stream::create(gpu).value());
  }

  struct piece {
    void* at = nullptr;
    std::uint64_t size = 0;
    std::size_t on = 0;  // which stream
  };
  piece take(std::uint64_t size, std::size_t on = 0) {
    ++requests_;
    return {memory_->allocate(bytes{size}, streams_[on]), size, on};
  }
  void give(const piece& gone) { memory_->deallocate(gone.at, streams_[gone.on]); }
  template <class Pieces>
  void give_all(Pieces& pieces) {
    for (const piece& each : pieces) give(each);
    pieces.clear();
  }

  /// Below `limit`.
  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
  bool happens(double share) { return std::uniform_real_distribution<>{}(random_) < share; }
  /// Every order of magnitude as likely as another.
  std::uint64_t magnitude(std::uint64_t low, std::uint64_t high) {
    const double least = std::log2(static_cast<double>(low));
    const double most = std::log2(static_cast<double>(high));
    return static_cast<std::uint64_t>(
        std::exp2(std::uniform_real_distribution<>{least, most}(random_)));
  }

  [[nodiscard]] double ratio() const {
    const memory_stats now = memory_->stats();
    return static_cast<double>(now.reserved.peak.count()) /
           static_cast<double>(now.requested.peak.count());
  }
  [[nodiscard]] double driver_ms() const {
    return std::chrono::duration<double, std::milli>(machine_->driver_time()).count();
  }
  [[nodiscard]] std::uint64_t requests() const { return requests_; }

 private:
  std::shared_ptr<sim::machine> machine_;
  std::shared_ptr<runtime> runtime_;
  std::unique_ptr<caching_allocator> memory_;
  std::vector<stream> streams_;
  std::mt19937_64 random_;
  std::uint64_t requests_ = 0;
};
using piece = playground::piece;

struct program {
  std::string_view name;
  void (*play)(playground&);
};

// --- Random lifetimes ----------------------------------------------------------------------------

/// So many blocks are live; one of them, whichever, is replaced, ten to twenty times as often.
template <class Size>
void replace_at_random(playground& on, std::size_t live, std::size_t replaced, Size size) {
  std::vector<piece> pieces(live);
  for (piece& each : pieces) each = on.take(size());
  for (std::size_t i = 0; i < replaced; ++i) {
    piece& each = pieces[on.below(live)];
    on.give(each);
    each = on.take(size());
  }
  on.give_all(pieces);
}

constexpr program random_sizes[] = {
    {"512 B to 2 MiB, by magnitude",
     [](playground& on) {
       replace_at_random(on, 20'000, 200'000, [&] { return on.magnitude(512, 2 * mib); });
     }},
    {"512 B to 64 KiB, by magnitude",
     [](playground& on) {
       replace_at_random(on, 20'000, 200'000, [&] { return on.magnitude(512, 64 * kib); });
     }},
    {"64 KiB to 64 MiB, by magnitude",
     [](playground& on) {
       replace_at_random(on, 3'000, 60'000, [&] { return on.magnitude(64 * kib, 64 * mib); });
     }},
    {"nine sizes from 512 B to 8 MiB",
     [](playground& on) {
       constexpr std::array<std::uint64_t, 9> sizes{
           512, 4 * kib, 16 * kib, 64 * kib, 256 * kib, 768 * kib, 1024 * kib, 3 * mib, 8 * mib};
       replace_at_random(on, 20'000, 200'000, [&] { return sizes[on.below(sizes.size())]; });
     }},
    {"up to 4 MiB, all alike",
     [](playground& on) {
       replace_at_random(on, 20'000, 200'000, [&] { return 1 + on.below(4 * mib); });
     }},
};

// --- Patterns ------------------------------------------------------------------------------------

/// A tensor that grows by being concatenated: the new one is taken before the old one goes.
void concatenate(playground& on, std::size_t tensors, std::size_t steps, std::uint64_t row,
                 double restarts) {
  std::vector<piece> grown(tensors);
  for (piece& each : grown) each = on.take(row);
  for (std::size_t i = 0; i < steps; ++i) {
    piece& each = grown[on.below(tensors)];
    const piece next = on.take(on.happens(restarts) ? row : each.size + row);
    on.give(each);
    each = next;
  }
  on.give_all(grown);
}

/// Steps of sixteen blocks of whole MiB, each of which leaves one block of its middle behind.
template <class Size>
void leave_one(playground& on, std::uint64_t steps, Size left_behind) {
  std::vector<piece> kept;
  for (std::uint64_t step = 0; step < steps; ++step) {
    std::vector<piece> work;
    for (std::uint64_t i = 0; i < 16; ++i) {
      work.push_back(on.take((1 + (step * 7 + i * 13) % 40) * mib));
      if (i == 8) kept.push_back(on.take(left_behind(step)));
    }
    on.give_all(work);
  }
  on.give_all(kept);
}

void queue_by_queue(playground& on, std::size_t streams, std::size_t steps, std::size_t length,
                    std::uint64_t least, std::uint64_t spread) {
  std::vector<std::deque<piece>> queues(streams);
  for (std::size_t i = 0; i < steps; ++i) {
    const std::size_t chosen = on.below(streams);
    std::deque<piece>& queue = queues[chosen];
    queue.push_back(on.take(least + on.below(spread), chosen));
    if (queue.size() <= length) continue;
    on.give(queue.front());
    queue.pop_front();
  }
  for (auto& each : queues) on.give_all(each);
}

void grow_a_little_each_step(playground& on) {
  double factor = 1;
  for (int step = 0; step < 400; ++step, factor *= 1.005) {
    std::vector<piece> work;
    for (int i = 0; i < 48; ++i)
      work.push_back(on.take(static_cast<std::uint64_t>((3 + i % 7) * factor * mib)));
    std::reverse(work.begin(), work.end());
    on.give_all(work);
  }
}

void peak_then_little(playground& on) {
  std::vector<piece> all;
  std::vector<piece> kept;
  for (int i = 0; i < 200; ++i) all.push_back(on.take(100 * mib));
  for (std::size_t i = 0; i < all.size(); ++i)
    i % 10 == 0 ? kept.push_back(all[i]) : on.give(all[i]);
  for (int i = 0; i < 3'000; ++i) on.give(on.take((1 + on.below(300)) * mib));
  on.give_all(kept);
}

void streams_take_turns(playground& on) {
  for (std::size_t turn = 0; turn < 200; ++turn) {
    std::vector<piece> work;
    for (std::size_t i = 0; i < 40; ++i)
      work.push_back(on.take((1 + (turn * 3 + i * 5) % 25) * mib, turn % 8));
    on.give_all(work);
  }
}

/// Nodes of a hash table, and the table itself, which doubles.
void hash_table(playground& on) {
  std::vector<piece> nodes;
  piece table = on.take(mib);
  for (int i = 0; i < 120'000; ++i) {
    nodes.push_back(on.take(512 + on.below(8 * kib)));
    if (nodes.size() * 4096 > table.size) {
      const piece larger = on.take(2 * table.size);
      on.give(table);
      table = larger;
    }
    if (!on.happens(0.3)) continue;
    std::swap(nodes[on.below(nodes.size())], nodes.back());
    on.give(nodes.back());
    nodes.pop_back();
  }
  on.give(table);
  on.give_all(nodes);
}

/// Patches of a mesh: one becomes two of half its size and a margin, or goes.
void adaptive_mesh(playground& on) {
  std::vector<piece> patches;
  const auto add = [&](int count) {
    for (int i = 0; i < count; ++i) patches.push_back(on.take((64 * kib) << on.below(6)));
  };
  add(400);
  for (int step = 0; step < 60'000; ++step) {
    std::swap(patches[on.below(patches.size())], patches.back());
    const piece old = patches.back();
    patches.pop_back();
    on.give(old);
    if (on.happens(0.5) && old.size > 64 * kib && patches.size() < 3'000) {
      for (int half = 0; half < 2; ++half) patches.push_back(on.take(old.size / 2 + 4 * kib));
    } else if (patches.size() < 300) {
      add(50);
    }
  }
  on.give_all(patches);
}

constexpr program patterns[] = {
    {"one tensor grows by concatenation",
     [](playground& on) { concatenate(on, 1, 1'500, mib, 0); }},
    {"32 sequences grow by concatenation",
     [](playground& on) { concatenate(on, 32, 20'000, 256 * kib, 0.004); }},
    {"sizes grow by 0.5 % a step", grow_a_little_each_step},
    {"steps that each leave one block of up to 32 KiB",
     [](playground& on) {
       leave_one(on, 1'500, [](std::uint64_t step) { return 512 + step % 64 * 512; });
     }},
    {"steps that each leave one block of 3 MiB",
     [](playground& on) { leave_one(on, 600, [](std::uint64_t) { return 3 * mib; }); }},
    {"a large peak, then little", peak_then_little},
    {"a queue, 8 to 40 MiB",
     [](playground& on) { queue_by_queue(on, 1, 20'000, 60, 8 * mib, 32 * mib); }},
    {"eight streams with a queue each, 1 to 20 MiB",
     [](playground& on) { queue_by_queue(on, 8, 40'000, 20, mib, 19 * mib); }},
    {"eight streams take turns", streams_take_turns},
    {"a hash table that doubles, and its nodes", hash_table},
    {"a mesh that is refined and coarsened", adaptive_mesh},
};

// --- Benchmarks ----------------------------------------------------------------------------------

/// Each program once under each policy: its time is host time, the rest is in counters.
void play(benchmark::State& state, const program& played, placement_policy policy) {
  for (auto _ : state) {
    playground on{policy, 7};
    played.play(on);
    state.counters["reserved_to_requested"] = on.ratio();
    state.counters["driver_ms"] = on.driver_ms();
    state.counters["requests"] = static_cast<double>(on.requests());
  }
}

const bool registered = [] {
  const auto add = [](std::string_view group, const auto& programs) {
    for (const program& each : programs)
      for (const placement_policy policy : policies) {
        std::string name{group};
        name.append("/").append(each.name).append("/").append(to_string(policy));
        benchmark::RegisterBenchmark(name.c_str(), play, each, policy)
            ->Iterations(1)
            ->Unit(benchmark::kMillisecond);
      }
  };
  add("random", random_sizes);
  add("pattern", patterns);
  return true;
}();

}  // namespace
