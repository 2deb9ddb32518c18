// SPDX-License-Identifier: Apache-2.0
// Pools that cache freed blocks, with many threads at once and with every driver call failing once.
#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "pools/pool_fixture.hpp"
#include "weir/pool/buffer_pool.hpp"
#include "weir/pool/pinned_pool.hpp"

namespace weir::testing_support { namespace {

constexpr int threads = 4;
constexpr int rounds = 300;

class block_pool_threads_test : public block_pool_test {
 protected:
  block_pool_threads_test() : block_pool_test{sim::progress::seeded} {}

  /// Runs it on every thread, with the number of the thread.
  static void on_all(const std::function<void(int)>& work) {
    std::vector<std::thread> all;
    for (int i = 0; i < threads; ++i) all.emplace_back(work, i);
    for (auto& each : all) each.join();
  }
};

/// A place where threads leave blocks for others to free.
class exchange {
 public:
  [[nodiscard]] void* swap(void* block, std::size_t place) {
    return places_[place % places_.size()].exchange(block);
  }
  [[nodiscard]] std::vector<void*> take_all() {
    std::vector<void*> all;
    for (auto& each : places_)
      if (void* const other = each.exchange(nullptr); other != nullptr) all.push_back(other);
    return all;
  }

 private:
  std::array<std::atomic<void*>, 8> places_{};
};

template <class Pool>
void play(const Pool& pool, int seed, const stream_ref& stream, exchange& others,
          std::atomic<std::uint64_t>& allocations, const std::function<void(void*, bytes)>& use) {
  std::minstd_rand rng(static_cast<unsigned>(seed) + 1);
  for (int i = 0; i < rounds; ++i) {
    const bytes size{512u << rng() % 4};
    void* const p = pool.allocate(size, stream);
    ++allocations;
    use(p, size);
    if (rng() % 16 == 0) static_cast<void>(pool.trim(8_KiB).value());
    if (rng() % 8 == 0) static_cast<void>(pool.stats());
    // What another thread left was used on its stream: recorded there, so it may be freed on ours.
    EXPECT_TRUE(pool.record_stream(p, stream));
    if (void* const other = others.swap(p, rng()); other != nullptr) {
      EXPECT_TRUE(pool.try_deallocate(other, stream));
    }
  }
}

template <class Pool>
void finish(const Pool& pool, const stream_ref& stream, exchange& others,
            std::uint64_t allocations) {
  for (void* const each : others.take_all()) EXPECT_TRUE(pool.try_deallocate(each, stream));
  const block_pool_stats now = pool.stats();
  EXPECT_EQ(now.allocations, allocations);
  EXPECT_EQ(now.frees, allocations);
  EXPECT_GT(now.hits, 0u);
  EXPECT_EQ(contradiction(now), "");
  EXPECT_TRUE(pool.empty_cache());
  EXPECT_EQ(pool.stats().reserved.current, 0_B);
}

TEST_F(block_pool_threads_test, threads_share_a_bin_pool) {
  const auto pool = make_bins(64_KiB);
  const auto last = new_stream();
  exchange others;
  std::atomic<std::uint64_t> allocations{0};
  on_all([&](int number) {
    const auto stream = new_stream();
    play(pool, number, stream, others, allocations,
         [&](void* p, bytes size) { write(stream, p, size); });
  });
  finish(pool, last, others, allocations);
}

TEST_F(block_pool_threads_test, threads_share_a_pinned_pool) {
  const auto pool = pinned_pool::create(gpu(), {.threshold = 64_KiB}).value();
  const auto last = new_stream();
  exchange others;
  std::atomic<std::uint64_t> allocations{0};
  on_all([&](int number) {
    const auto stream = new_stream();
    play(pool, number, stream, others, allocations, [&](void* p, bytes size) {
      machine->host_write(p, size.count());
      read(stream, p, size);
    });
  });
  finish(pool, last, others, allocations);
}

TEST_F(block_pool_threads_test, counters_of_a_buffer_pool_are_exact) {
  const auto pool = buffer_pool::create({.max_cached = 64_KiB}).value();
  on_all([&](int number) {
    const auto stream = weir::stream::create(gpu(number % 2)).value();
    for (int i = 0; i < rounds; ++i) {
      const auto buffer = pool.take<char>(std::size_t{256} << i % 4, stream).value();
      const context_scope scope{stream.device()};
      EXPECT_TRUE(machine->launch(
          stream.handle(), "kernel write",
          {sim::writes(reinterpret_cast<std::uintptr_t>(buffer.data()), buffer.size())}));
      if (i % 32 == 0) static_cast<void>(pool.empty_cache(stream.device()).value());
    }
  });
  for (const int device : {0, 1}) {
    const auto now = pool.stats(gpu(device));
    EXPECT_EQ(now.hits + now.misses, threads / 2 * std::uint64_t{rounds});
    EXPECT_EQ(now.returns, threads / 2 * std::uint64_t{rounds});
    EXPECT_EQ(now.taken, 0_B);
  }
  EXPECT_TRUE(pool.close());
}

TEST_F(block_pool_threads_test, running_out_together_is_nobodys_ruin) {
  const auto pool = make_bins();
  on_all([&](int number) {
    const auto stream = new_stream();
    for (std::uint64_t i = 0; i < 20; ++i) {
      // Never more than 1600 MiB live, but of sizes that do not fit each other.
      const bytes size = (number + i) % 4 * 16_MiB + 352_MiB;
      void* p = nullptr;
      // Others may hold what they just obtained in place of what we gave back: that is tried again.
      while (p == nullptr) p = pool.try_allocate(size, stream).value_or(nullptr);
      write(stream, p, 1_KiB);
      pool.deallocate(p, size, stream);
    }
  });
  EXPECT_EQ(contradiction(pool.stats()), "");
  EXPECT_EQ(pool.stats().allocations, 80u);
}

// --- Faults -------------------------------------------------------------------------------------

class block_pool_faults_test : public block_pool_test {
 protected:
  /// Does it once for each driver call that it makes, with that call failing. `scenario` takes
  /// errors as they come; afterwards nothing may be lost.
  void sweep(driver::CUresult failure, const std::function<void()>& scenario) {
    const std::uint64_t first = machine->calls();
    scenario();
    const std::uint64_t calls = machine->calls() - first;
    EXPECT_GT(calls, 50u);
    const bytes before = used();
    for (std::uint64_t nth = 1; nth <= calls; ++nth) {
      SCOPED_TRACE("call " + std::to_string(nth));
      machine->fail_any(nth, failure);
      scenario();
      machine->clear_faults();
      for (const error& each : heard.take()) EXPECT_EQ(each.native(), failure) << each.message();
      ASSERT_EQ(used(), before);
    }
  }

  /// Frees what is left once nothing fails any more, and judges.
  template <class Pool>
  void play(const Pool& pool) {
    const auto one = weir::stream::create(gpu());
    auto two = weir::stream::create(gpu());
    struct live_block {
      void* memory;
      stream_ref stream;
    };
    std::vector<live_block> live;
    const auto get = [&](bytes size, const auto& stream) {
      if (!stream || !*stream) return;
      const auto memory = pool.try_allocate(size, *stream);
      if (!memory) return;
      write(*stream, *memory, size);
      live.push_back({*memory, *stream});
    };
    const auto free = [&] {
      if (!live.empty() && pool.try_deallocate(live.back().memory, live.back().stream))
        live.pop_back();
    };
    get(16_KiB, one);
    free();
    get(16_KiB, two);  // one has not passed
    free();
    machine->run_until_idle();
    get(32_KiB, two);
    get(16_KiB, two);
    if (!live.empty() && one) static_cast<void>(pool.record_stream(live.back().memory, *one));
    free();
    static_cast<void>(pool.trim(48_KiB));
    static_cast<void>(pool.empty_cache());
    get(48_KiB, two);
    if (two) static_cast<void>(two->close());
    static_cast<void>(pool.set_threshold(16_KiB));
    get(16_KiB, one);
    free();
    machine->clear_faults();
    for (const live_block& each : live) EXPECT_TRUE(pool.try_deallocate(each.memory));
    EXPECT_EQ(contradiction(pool.stats()), "");
    EXPECT_TRUE(pool.empty_cache());
    EXPECT_EQ(pool.stats().reserved.current, 0_B);
  }
};

TEST_F(block_pool_faults_test, bin_pool_loses_nothing) {
  for (const auto failure : {driver::CUDA_ERROR_UNKNOWN, driver::CUDA_ERROR_OUT_OF_MEMORY})
    sweep(failure, [&] {
      if (const auto pool = bin_pool::create(gpu(), {.threshold = 32_KiB}); pool) play(*pool);
    });
}

TEST_F(block_pool_faults_test, pinned_pool_loses_nothing) {
  for (const auto failure : {driver::CUDA_ERROR_UNKNOWN, driver::CUDA_ERROR_OUT_OF_MEMORY})
    sweep(failure, [&] {
      if (const auto pool = pinned_pool::create(gpu(), {.threshold = 32_KiB}); pool) play(*pool);
    });
}

TEST_F(block_pool_faults_test, buffer_pool_loses_nothing) {
  sweep(driver::CUDA_ERROR_UNKNOWN, [&] {
    const auto pool = buffer_pool::create({.max_cached = 16_KiB}).value();
    const auto one = weir::stream::create(gpu());
    const auto two = weir::stream::create(gpu());
    if (!one || !two) return;
    for (const bytes size : {16_KiB, 32_KiB, 16_KiB, 48_KiB, 16_KiB}) {
      auto first = pool.take(size, *one, contents::zeroed);
      auto second = pool.take(size, *two, contents::zeroed);
      if (first) static_cast<void>(first->record_stream(*two));
      if (second && second->record_stream(*two)) static_cast<void>(second->free(*one));
    }
    static_cast<void>(pool.empty_cache());
    machine->clear_faults();
    EXPECT_EQ(pool.stats().taken, 0_B);
    EXPECT_TRUE(pool.close());
    EXPECT_EQ(pool.stats().cached, 0_B);
  });
}

}  // namespace
}  // namespace weir::testing_support
