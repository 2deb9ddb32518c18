// SPDX-License-Identifier: Apache-2.0
// Threads that multiply sparse matrices, each on a stream of its own, as PyTorch's
// test_cusparse_multiple_threads_same_device does: blocks of the main stream are used elsewhere,
// and nobody is told. Meanwhile memory is short, calls fail, graphs are captured, and others free.
//
// WEIR_STRESS_SECONDS chooses how long that goes on, WEIR_STRESS_THREADS the most threads that
// multiply at a time, WEIR_STRESS_SEED the first round.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "sparse_products.hpp"
#include "support/environment.hpp"
#include "support/sizes.hpp"

namespace weir::order_test { namespace {

using steady = std::chrono::steady_clock;

using testing_support::mib;
constexpr int trials_a_round = 3;
constexpr int products_a_trial = 20;

using testing_support::number_from;

/// A thread that does something over and over until it goes.
class background_thread {
 public:
  template <class Task>
  explicit background_thread(Task task)
      : thread_{[this, task = std::move(task)]() mutable {
          while (!stopping_) task();
        }} {}
  ~background_thread() {
    stopping_ = true;
    thread_.join();
  }
  background_thread(const background_thread&) = delete;
  background_thread& operator=(const background_thread&) = delete;

 private:
  std::atomic<bool> stopping_{false};
  std::thread thread_;  // last: it uses the other
};

// --- Faults --------------------------------------------------------------------------------------

/// Another process takes what is left of the device, or some of it, or releases it; calls that need
/// memory fail; another thread trims.
void inject_faults(stress_fixture& fixture, rng& random) {
  constexpr device_id gpu{0};
  const std::uint64_t used = fixture.machine().used(gpu).count();
  switch (random.below(4)) {
    case 0:
      fixture.machine().set_capacity(gpu, bytes{std::max(used, 64 * mib)});
      break;
    case 1:
      fixture.machine().set_capacity(gpu, bytes{used + random.below(20) * 2 * mib});
      break;
    default:
      fixture.machine().set_capacity(gpu, bytes{fixture.capacity()});
  }
  if (random.one_in(3)) {
    const auto call = random.any_of(
        {driver::call::mem_create, driver::call::mem_map, driver::call::mem_set_access});
    fixture.machine().fail(call, 1 + random.below(4), driver::CUDA_ERROR_OUT_OF_MEMORY);
  }
  switch (random.below(6)) {
    case 0:
      static_cast<void>(fixture.memory().trim(bytes{random.below(200) * mib}));
      break;
    case 1:
      static_cast<void>(fixture.memory().empty_cache());
      break;
    case 2:
      static_cast<void>(fixture.memory().stats());
      break;
    default:
      break;
  }
  std::this_thread::sleep_for(std::chrono::microseconds{100 + random.below(3'000)});
}

/// Captures a graph whose memory comes from a pool of its own, as PyTorch does, and replays it.
void capture_and_replay(stress_fixture& fixture, stress_counts& counts, const stream_ref& on,
                        rng& random) {
  const context_scope bound{fixture.gpu()};
  auto created = fixture.memory().create_pool("captured", {.for_graphs = true});
  if (!created) return;
  const memory_pool pool = *std::move(created);
  std::vector<tensor> outputs;
  driver::CUgraph graph = nullptr;
  {
    const capture_guard notice = fixture.memory().guard_captures().value();
    const auto mode = driver::CU_STREAM_CAPTURE_MODE_RELAXED;
    if (fixture.cuda().stream_begin_capture(on.handle(), mode) != driver::CUDA_SUCCESS) return;
    for (int i = 0; i < 4; ++i) {
      const std::uint64_t size = 8 + random.below(3 * mib);
      const auto block = pool.try_allocate(bytes{size}, on);
      if (!block) continue;
      tensor output{fixture, {static_cast<std::uint64_t*>(*block), size}};
      static_cast<void>(
          fixture.machine().launch(on.handle(), "captured", {output.view().written()}));
      if (random.one_in(2)) outputs.push_back(std::move(output));
    }
    static_cast<void>(fixture.cuda().stream_end_capture(on.handle(), &graph));
  }
  if (graph == nullptr) {
    fixture.failure()->report("a capture was spoiled");
    return;
  }
  driver::CUgraphExec replayed = nullptr;
  if (fixture.cuda().graph_instantiate(&replayed, graph, 0) == driver::CUDA_SUCCESS) {
    for (int i = 0; i < 3; ++i, ++counts.replays) {
      static_cast<void>(fixture.cuda().graph_launch(replayed, on.handle()));
      std::this_thread::sleep_for(std::chrono::microseconds{random.below(500)});
    }
    static_cast<void>(on.synchronize());
    static_cast<void>(fixture.cuda().graph_exec_destroy(replayed));
  }
  static_cast<void>(fixture.cuda().graph_destroy(graph));
}

// --- A round -------------------------------------------------------------------------------------

/// What PyTorch's test does: the main thread makes a weight and a matrix for each thread; each
/// replaces its matrix by products, which frees the main stream's at the first one.
class round {
 public:
  round(std::uint64_t seed, std::size_t threads, stress_counts& counts)
      : fixture_{seed, threads}, counts_{counts}, seed_{seed}, threads_{threads}, random_{seed} {
    for (std::size_t i = 0; i < 2 * threads + 2; ++i)
      streams_.push_back(stream::create(fixture_.gpu()).value());
  }

  /// The first failure; empty if there is none.
  [[nodiscard]] std::string run() {
    {
      const background_thread faults{
          [this, random = rng{seed_ + 1}]() mutable { inject_faults(fixture_, random); }};
      const background_thread captures{[this, random = rng{seed_ + 2}]() mutable {
        capture_and_replay(fixture_, counts_, streams_.back(), random);
      }};
      const background_thread frees{[this] {
        fixture_.free_deferred();
        std::this_thread::yield();
      }};
      const stream_ref main =
          random_.one_in(2) ? streams_.front().ref() : stream_ref::legacy(fixture_.gpu());
      try {
        for (int trial = 0; trial < trials_a_round && !fixture_.failure()->occurred(); ++trial)
          run_trial(main);
      } catch (const out_of_attempts&) {  // on to the next round
      }
    }
    streams_.clear();
    fixture_.check_end();
    if (!fixture_.failure()->occurred()) return {};
    return "WEIR_STRESS_SEED=" + std::to_string(seed_) + ": " + fixture_.failure()->message();
  }

 private:
  void run_trial(const stream_ref& main) {
    multiplier first{fixture_, counts_, main, seed_};
    const tensor weight = first.take(multiplier::weight_size);
    first.fill(weight.view(), multiplier::weight_token);
    std::vector<tensor> matrices;
    for (std::size_t i = 0; i < threads_; ++i) {
      matrices.push_back(first.take(multiplier::matrix_size));
      first.fill(matrices.back().view(), i);
    }
    first.synchronize();
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < threads_; ++i) {
      const stream_ref stream = streams_[1 + next_stream_++ % (streams_.size() - 2)];
      threads.emplace_back([&, i, stream] { multiply_often(weight, matrices[i], stream, i); });
    }
    for (std::thread& each : threads) each.join();
  }

  void multiply_often(const tensor& weight, tensor& matrix, const stream_ref& on,
                      std::uint64_t token) {
    multiplier own{fixture_, counts_, on, seed_ * 1'000 + token + 1};
    try {
      for (int i = 0; i < products_a_trial && !fixture_.failure()->occurred(); ++i) {
        const std::uint64_t next = token + (std::uint64_t{1} << 16);
        tensor product = own.multiply(weight.view(), matrix.view(), token, next);
        matrix = std::move(product);  // the stream that still reads the old one is not recorded
        own.verify(matrix.view(), next);
        token = next;
      }
    } catch (const out_of_attempts&) {  // the others go on
    }
    own.synchronize();
  }

  stress_fixture fixture_;
  stress_counts& counts_;
  std::uint64_t seed_;
  std::size_t threads_;
  rng random_;
  std::vector<stream> streams_;
  std::size_t next_stream_ = 0;
};

TEST(crossing_stress, undeclared_uses_of_many_threads) {
  const std::uint64_t most_threads = number_from("WEIR_STRESS_THREADS", 4);
  const auto end = steady::now() + std::chrono::seconds{number_from("WEIR_STRESS_SECONDS", 3)};
  stress_counts counts;
  std::uint64_t seed = number_from("WEIR_STRESS_SEED", 1);
  for (; steady::now() < end; ++seed) {
    const std::size_t threads = 2 + rng{seed + 3}.below(most_threads - 1);
    ASSERT_EQ(round(seed, threads, counts).run(), "");
  }
  EXPECT_GT(counts.products, 0U);
  RecordProperty("products", std::to_string(counts.products));
  RecordProperty("shortages", std::to_string(counts.shortages));
  RecordProperty("replays", std::to_string(counts.replays));
}

}  // namespace
}  // namespace weir::order_test
