// SPDX-License-Identifier: Apache-2.0
#include "limits/near_limit_program.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "heap/central_heap.hpp"
#include "order/rng.hpp"
#include "support/sizes.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"

namespace weir::limits_test {
namespace {

using namespace weir::literals;
using order_test::rng;

using testing_support::kib;
using testing_support::mib;
constexpr std::uint64_t slot = 2 * mib;

/// Writes a program, and knows what is live at each point of it.
class writer {
 public:
  explicit writer(std::uint64_t seed) : dice_{seed * 0xd1342543de82ef95} {
    into_.streams = static_cast<std::uint8_t>(1 + (dice_.one_in(2) ? dice_.below(3) : 0));
    into_.pools = static_cast<std::uint8_t>(dice_.one_in(3) ? 1 + dice_.below(2) : 0);
    into_.last_pool_retains = into_.pools != 0 && dice_.one_in(2);
    dropped_.resize(into_.pools + 1U);
  }

  program write() {
    switch (dice_.below(5)) {
      case 0:
        mixture();
        break;
      case 1:
        phases();
        break;
      case 2:
        training();
        break;
      case 3:
        whole_segments();
        break;
      default:
        serving();
    }
    return std::move(into_);
  }

 private:
  struct living {
    std::uint32_t block;
    std::uint64_t size;
    std::uint8_t stream;
  };

  [[nodiscard]] std::uint64_t small() { return dice_.magnitude(mib); }
  [[nodiscard]] std::uint64_t middle() { return mib + dice_.below(9 * mib); }
  /// Half of them in whole megabytes, as shapes that are powers of two are.
  [[nodiscard]] std::uint64_t large() {
    const std::uint64_t size = 10 * mib + dice_.below(40 * mib);
    return dice_.one_in(2) ? size / (2 * mib) * (2 * mib) : size;
  }
  [[nodiscard]] std::uint8_t any_stream() {
    return static_cast<std::uint8_t>(dice_.one_in(2) ? 0 : dice_.below(into_.streams));
  }
  [[nodiscard]] std::uint8_t any_pool() {
    if (into_.pools == 0 || !dice_.one_in(4)) return 0;
    const auto pool = static_cast<std::uint8_t>(1 + dice_.below(into_.pools));
    return dropped_[pool] ? std::uint8_t{0} : pool;
  }

  living allocate(std::uint64_t size, std::uint8_t stream, std::uint8_t pool) {
    const living fresh{into_.blocks++, size, stream};
    into_.steps.push_back({step::act::allocate, fresh.block, size, stream, pool});
    live_ += size;
    into_.most_live = std::max(into_.most_live, live_);
    return fresh;
  }
  living allocate(std::uint64_t size) { return allocate(size, any_stream(), any_pool()); }
  void free(const living& gone) {
    into_.steps.push_back({step::act::free, gone.block, gone.size, gone.stream, 0});
    live_ -= gone.size;
  }
  void free_any(std::vector<living>& from) {
    const std::size_t at = dice_.below(from.size());
    free(from[at]);
    from[at] = from.back();
    from.pop_back();
  }
  void act(step::act what) { into_.steps.push_back({what}); }
  void now_and_then() {
    if (dice_.one_in(60)) act(step::act::synchronize);
    if (dice_.one_in(120)) act(step::act::empty_cache);
    if (into_.pools != 0 && dice_.one_in(200)) {
      const auto pool = static_cast<std::uint8_t>(1 + dice_.below(into_.pools));
      if (!dropped_[pool]) into_.steps.push_back({.what = step::act::drop_pool, .pool = pool});
      dropped_[pool] = true;
    }
  }

  /// Sizes and lives of every kind.
  void mixture() {
    into_.kind = "mixture";
    const std::uint64_t most = (60 + dice_.below(200)) * mib;
    const std::uint64_t smalls = 1 + dice_.below(8);
    std::vector<living> alive;
    for (int i = 0; i < 500; ++i) {
      const std::uint64_t which = dice_.below(smalls + 2);
      const std::uint64_t size = which < smalls ? small() : which == smalls ? middle() : large();
      while (!alive.empty() && (live_ + size > most || dice_.one_in(3))) free_any(alive);
      alive.push_back(allocate(size));
      now_and_then();
    }
  }

  /// Some work with large and small blocks, of which a few small ones stay; the next has other
  /// sizes.
  void phases() {
    into_.kind = "phases";
    std::vector<living> kept;
    const std::uint64_t most = (80 + dice_.below(150)) * mib;
    for (int phase = 0; phase < 8; ++phase) {
      std::vector<living> passing;
      const std::uint64_t unit = dice_.one_in(2) ? large() : middle();
      while (live_ + unit < most) {
        passing.push_back(allocate(dice_.one_in(3) ? unit / 2 : unit));
        for (std::uint64_t i = dice_.below(4); i > 0; --i) {
          auto& to = dice_.one_in(4) ? kept : passing;
          to.push_back(allocate(small()));
        }
      }
      while (!passing.empty()) free_any(passing);
      while (kept.size() > 40) free_any(kept);
      now_and_then();
    }
  }

  /// Weights, then steps of activations that go in the opposite order, with gradients that come
  /// meanwhile and optimizer state that comes in the first step and stays.
  void training() {
    into_.kind = "training";
    std::vector<std::uint64_t> layers;
    for (std::uint64_t i = 4 + dice_.below(6); i > 0; --i)
      layers.push_back(dice_.one_in(3) ? small() : dice_.one_in(3) ? large() / 2 : middle());
    for (const std::uint64_t layer : layers) {
      allocate(layer, 0, 0);
      allocate(4 * kib + dice_.below(16 * kib), 0, 0);
    }
    const bool varies = dice_.one_in(2);
    for (int iteration = 0; iteration < 6; ++iteration) {
      const std::uint64_t batch = varies ? 50 + dice_.below(50) : 100;
      std::vector<living> activations;
      std::vector<living> gradients;
      for (const std::uint64_t layer : layers) {
        activations.push_back(allocate(std::max<std::uint64_t>(layer * 2 * batch / 100, 1)));
        const living scratch = allocate(dice_.one_in(2) ? small() : middle());
        activations.push_back(allocate(small()));
        free(scratch);
      }
      for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
        gradients.push_back(allocate(*layer, 0, 0));
        free(activations.back());
        activations.pop_back();
        free(activations.back());
        activations.pop_back();
      }
      for (const std::uint64_t layer : layers) {
        if (iteration == 0) allocate(layer, 0, 0);
        if (dice_.one_in(2)) free(allocate(layer));
      }
      while (!gradients.empty()) free_any(gradients);
      now_and_then();
    }
  }

  /// What PyTorch's rules waste nothing on: large blocks in whole segments, and a few small ones.
  void whole_segments() {
    into_.kind = "whole segments";
    const std::uint64_t most = (60 + dice_.below(200)) * mib;
    const std::uint64_t smalls = 1 + dice_.below(4);
    std::vector<living> alive;
    std::vector<living> little;
    for (int i = 0; i < 250; ++i) {
      for (std::uint64_t more = dice_.below(smalls + 1); more > 0; --more)
        little.push_back(allocate(dice_.magnitude(256 * kib)));
      while (little.size() > 30 || (!little.empty() && dice_.one_in(3))) free_any(little);
      const std::uint64_t size =
          dice_.any_of<std::uint64_t>({10, 12, 16, 20, 20, 20, 24, 40}) * mib;
      while (!alive.empty() && (live_ + size > most || dice_.one_in(4))) free_any(alive);
      alive.push_back(allocate(size));
      now_and_then();
    }
  }

  /// Long-lived blocks that come a few at a time, in whole pages, with scratch between them.
  void serving() {
    into_.kind = "serving";
    const std::uint64_t most = (60 + dice_.below(120)) * mib;
    const std::uint64_t page = mib >> dice_.below(4);
    std::vector<std::vector<living>> requests;
    for (int i = 0; i < 400; ++i) {
      if (requests.size() < 2 || dice_.one_in(6)) requests.emplace_back();
      auto& grows = requests[dice_.below(requests.size())];
      const std::uint64_t size = page * (1 + dice_.below(4));
      while (live_ + size + 24 * mib > most) {
        auto& ends = requests[dice_.below(requests.size())];
        while (!ends.empty()) free_any(ends);
      }
      grows.push_back(allocate(size));
      if (dice_.one_in(3)) free(allocate(middle() * 2));
      if (dice_.one_in(3)) free(allocate(small()));
      now_and_then();
    }
  }

  rng dice_;
  program into_;
  std::vector<bool> dropped_;
  std::uint64_t live_ = 0;
};

}  // namespace

program program::random(std::uint64_t seed) { return writer{seed}.write(); }

outcome run(const program& played, placement_policy policy, std::uint64_t most, boundary by) {
  sim::machine_options machine_settings;
  const bytes overhead = 64_MiB;
  sim::device_spec gpu_settings{.capacity = 4_GiB, .context_overhead = overhead};
  if (by == boundary::device) gpu_settings.capacity = bytes{most} + overhead;
  machine_settings.devices = {gpu_settings};
  machine_settings.check_hazards = false;
  machine_settings.back_memory = false;
  const auto machine = sim::machine::create(machine_settings).value();
  const auto opened = runtime::open_simulated(machine).value();
  const device gpu = opened->device(device_id{0}).value();

  outcome result;
  allocator_options settings;
  settings.policy = policy;
  if (by == boundary::limit) settings.limit = bytes{most};
  auto memory = caching_allocator::create(gpu, settings).value();
  std::vector<stream> streams;
  for (std::uint8_t i = 0; i < played.streams; ++i) streams.push_back(stream::create(gpu).value());
  std::vector<std::optional<memory_pool>> pools(played.pools + 1U);
  for (std::uint8_t i = 1; i <= played.pools; ++i)
    pools[i] = memory
                   .create_pool("pool " + std::to_string(i),
                                {.for_graphs = played.last_pool_retains && i == played.pools})
                   .value();
  std::vector<void*> blocks(played.blocks);
  result.whole = true;
  for (std::size_t i = 0; i < played.steps.size(); ++i) {
    const step& now = played.steps[i];
    switch (now.what) {
      case step::act::allocate: {
        const stream& on = streams[now.stream];
        const auto got = now.pool == 0 ? memory.try_allocate(bytes{now.size}, on)
                                       : pools[now.pool]->try_allocate(bytes{now.size}, on);
        if (!got) {
          result.whole = false;
          result.failed_step = i;
          result.report = memory.explain(bytes{now.size}, on).text();
          break;
        }
        blocks[now.block] = *got;
        const context_scope bound{gpu};
        static_cast<void>(machine->launch(on.handle(), "work", {}));
        break;
      }
      case step::act::free:
        memory.deallocate(std::exchange(blocks[now.block], nullptr), streams[now.stream]);
        break;
      case step::act::empty_cache:
        static_cast<void>(memory.empty_cache());
        break;
      case step::act::synchronize:
        for (const stream& each : streams) static_cast<void>(each.synchronize());
        break;
      case step::act::drop_pool:
        pools[now.pool].reset();
        break;
    }
    if (!result.whole) break;
  }
  result.contradiction = heap::central_heap::of(memory).inspection().check();
  result.reserved_peak = memory.stats().reserved.peak.count();
  for (void* const each : blocks) memory.deallocate(each);
  return result;
}

std::uint64_t least_limit(const program& played, placement_policy policy) {
  std::uint64_t fails = played.most_live / slot;  // in slots; less cannot be
  const outcome unbounded = run(played, policy, std::uint64_t{3} << 30);
  std::uint64_t suffices = (unbounded.reserved_peak + slot - 1) / slot;
  if (fails != 0) --fails;
  while (fails + 1 < suffices) {
    const std::uint64_t middle = (fails + suffices) / 2;
    (run(played, policy, middle * slot).whole ? suffices : fails) = middle;
  }
  return suffices * slot;
}

}  // namespace weir::limits_test
