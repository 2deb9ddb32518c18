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

namespace weir::order_test {
namespace {

using steady = std::chrono::steady_clock;

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr int trials_a_round = 3;
constexpr int products_a_trial = 20;

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* const wanted = std::getenv(variable);
  return wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : otherwise;
}

/// A thread that does something over and over until it goes.
class background {
 public:
  template <class Task>
  explicit background(Task task)
      : thread_{[this, task = std::move(task)]() mutable {
          while (!over_) task();
        }} {}
  ~background() {
    over_ = true;
    thread_.join();
  }
  background(const background&) = delete;
  background& operator=(const background&) = delete;

 private:
  std::atomic<bool> over_{false};
  std::thread thread_;  // last: it uses the other
};

// --- Trouble -------------------------------------------------------------------------------------

/// Another process takes what is left of the device, or some of it, or gives it back; calls that
/// need memory fail; somebody trims.
void make_trouble(scene& in, chance& random) {
  constexpr device_id gpu{0};
  const std::uint64_t used = in.machine().used(gpu).count();
  switch (random.below(4)) {
    case 0:
      in.machine().set_capacity(gpu, bytes{std::max(used, 64 * mib)});
      break;
    case 1:
      in.machine().set_capacity(gpu, bytes{used + random.below(20) * 2 * mib});
      break;
    default:
      in.machine().set_capacity(gpu, bytes{in.capacity()});
  }
  if (random.one_in(3)) {
    const auto which = random.any_of(
        {driver::call::mem_create, driver::call::mem_map, driver::call::mem_set_access});
    in.machine().fail(which, 1 + random.below(4), driver::CUDA_ERROR_OUT_OF_MEMORY);
  }
  switch (random.below(6)) {
    case 0:
      static_cast<void>(in.memory().trim(bytes{random.below(200) * mib}));
      break;
    case 1:
      static_cast<void>(in.memory().empty_cache());
      break;
    case 2:
      static_cast<void>(in.memory().stats());
      break;
    default:
      break;
  }
  std::this_thread::sleep_for(std::chrono::microseconds{100 + random.below(3'000)});
}

/// Captures a graph whose memory comes from a pool of its own, as PyTorch does, and replays it.
void capture_and_replay(scene& in, stress_counts& all, const stream_ref& on, chance& random) {
  const context_scope bound{in.gpu()};
  auto made = in.memory().create_pool("captured", {.retains = true});
  if (!made) return;
  const memory_pool pool = *std::move(made);
  std::vector<tensor> outputs;
  driver::CUgraph graph = nullptr;
  {
    const capture_notice notice = in.memory().notice_captures();
    const auto mode = driver::CU_STREAM_CAPTURE_MODE_RELAXED;
    if (in.cuda().stream_begin_capture(on.handle(), mode) != driver::CUDA_SUCCESS) return;
    for (int i = 0; i < 4; ++i) {
      const std::uint64_t size = 8 + random.below(3 * mib);
      const auto block = pool.try_allocate(bytes{size}, on);
      if (!block) continue;
      tensor one{in, {static_cast<std::uint64_t*>(*block), size}};
      static_cast<void>(in.machine().launch(on.handle(), "captured", {one.where().written()}));
      if (random.one_in(2)) outputs.push_back(std::move(one));
    }
    static_cast<void>(in.cuda().stream_end_capture(on.handle(), &graph));
  }
  if (graph == nullptr) {
    in.faults()->report("a capture was spoiled");
    return;
  }
  driver::CUgraphExec replayed = nullptr;
  if (in.cuda().graph_instantiate(&replayed, graph, 0) == driver::CUDA_SUCCESS) {
    for (int i = 0; i < 3; ++i, ++all.replays) {
      static_cast<void>(in.cuda().graph_launch(replayed, on.handle()));
      std::this_thread::sleep_for(std::chrono::microseconds{random.below(500)});
    }
    static_cast<void>(on.synchronize());
    static_cast<void>(in.cuda().graph_exec_destroy(replayed));
  }
  static_cast<void>(in.cuda().graph_destroy(graph));
}

// --- A round -------------------------------------------------------------------------------------

/// What PyTorch's test does: the main thread makes a weight and a matrix for each thread; each
/// replaces its matrix by products, which frees the main stream's at the first one.
class round {
 public:
  round(std::uint64_t seed, std::size_t threads, stress_counts& all)
      : in_{seed, threads}, all_{all}, seed_{seed}, threads_{threads}, random_{seed} {
    for (std::size_t i = 0; i < 2 * threads + 2; ++i)
      streams_.push_back(stream::create(in_.gpu()).value());
  }

  /// What went wrong; empty if nothing did.
  [[nodiscard]] std::string run() {
    {
      const background trouble{
          [this, random = chance{seed_ + 1}]() mutable { make_trouble(in_, random); }};
      const background captures{[this, random = chance{seed_ + 2}]() mutable {
        capture_and_replay(in_, all_, streams_.back(), random);
      }};
      const background frees{[this] {
        in_.free_left();
        std::this_thread::yield();
      }};
      const stream_ref main =
          random_.one_in(2) ? streams_.front().ref() : stream_ref::legacy(in_.gpu());
      try {
        for (int trial = 0; trial < trials_a_round && !in_.faults()->found(); ++trial)
          run_trial(main);
      } catch (const no_room&) {  // on to the next round
      }
    }
    streams_.clear();
    in_.check_end();
    if (!in_.faults()->found()) return {};
    return "WEIR_STRESS_SEED=" + std::to_string(seed_) + ": " + in_.faults()->first();
  }

 private:
  void run_trial(const stream_ref& main) {
    multiplier first{in_, all_, main, seed_};
    const tensor weight = first.take(multiplier::weight_size);
    first.fill(weight.where(), multiplier::weight_token);
    std::vector<tensor> matrices;
    for (std::size_t i = 0; i < threads_; ++i) {
      matrices.push_back(first.take(multiplier::matrix_size));
      first.fill(matrices.back().where(), i);
    }
    first.synchronize();
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < threads_; ++i) {
      const stream_ref own = streams_[1 + next_stream_++ % (streams_.size() - 2)];
      threads.emplace_back([&, i, own] { multiply_often(weight, matrices[i], own, i); });
    }
    for (std::thread& each : threads) each.join();
  }

  void multiply_often(const tensor& weight, tensor& matrix, const stream_ref& on,
                      std::uint64_t token) {
    multiplier mine{in_, all_, on, seed_ * 1'000 + token + 1};
    try {
      for (int i = 0; i < products_a_trial && !in_.faults()->found(); ++i) {
        const std::uint64_t next = token + (std::uint64_t{1} << 16);
        tensor product = mine.multiply(weight.where(), matrix.where(), token, next);
        matrix = std::move(product);  // nobody says that this stream still reads the old one
        mine.look_at(matrix.where(), next);
        token = next;
      }
    } catch (const no_room&) {  // the others go on
    }
    mine.synchronize();
  }

  scene in_;
  stress_counts& all_;
  std::uint64_t seed_;
  std::size_t threads_;
  chance random_;
  std::vector<stream> streams_;
  std::size_t next_stream_ = 0;
};

TEST(crossing_stress, undeclared_uses_of_many_threads) {
  const std::uint64_t most_threads = number_from("WEIR_STRESS_THREADS", 4);
  const auto end = steady::now() + std::chrono::seconds{number_from("WEIR_STRESS_SECONDS", 3)};
  stress_counts all;
  std::uint64_t seed = number_from("WEIR_STRESS_SEED", 1);
  for (; steady::now() < end; ++seed) {
    const std::size_t threads = 2 + chance{seed + 3}.below(most_threads - 1);
    ASSERT_EQ(round(seed, threads, all).run(), "");
  }
  EXPECT_GT(all.products, 0U);
  RecordProperty("products", std::to_string(all.products));
  RecordProperty("shortages", std::to_string(all.shortages));
  RecordProperty("replays", std::to_string(all.replays));
}

}  // namespace
}  // namespace weir::order_test
