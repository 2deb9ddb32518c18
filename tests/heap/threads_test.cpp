// SPDX-License-Identifier: Apache-2.0
// Many threads at once: caches, frees for other threads, and everything that stops them.
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "heap/heap_fixture.hpp"

namespace weir::testing_support { namespace {

/// Threads that nothing orders but the allocator itself: a machine that hears of blocks takes its
/// lock for each, and ThreadSanitizer would miss what that hides.
class threads_test : public heap_test {
 protected:
  threads_test() {
    sim::machine_options settings = machine->options();
    settings.watch_blocks = false;
    machine = sim::machine::create(settings).value();
    runtime_ = runtime::open_simulated(machine).value();
  }
};

TEST_F(threads_test, what_another_thread_frees_comes_home) {
  auto memory = make();
  const auto stream = new_stream();
  std::vector<void*> all;
  for (int i = 0; i < 8; ++i) all.push_back(memory.allocate(64_KiB, stream));
  std::thread{[&] {
    memory.deallocate(memory.allocate(64_KiB, stream), stream);  // knows the stream now
    for (void* const p : all) memory.deallocate(p, stream);
    for (void* const p : all)
      EXPECT_EQ(code_of(memory.try_deallocate(p, stream)), errc::double_free);
  }}.join();
  const auto before = memory.stats();
  EXPECT_EQ(before.blocks.current, 0u);
  std::set<void*> again;
  for (int i = 0; i < 8; ++i) again.insert(memory.allocate(64_KiB, stream));
  EXPECT_EQ(memory.stats().hits, before.hits + 8);
  EXPECT_EQ(again, (std::set<void*>{all.begin(), all.end()}));
  for (void* const p : all) memory.deallocate(p, stream);
  EXPECT_EQ(check(memory), "");
}

TEST_F(threads_test, the_classic_policies_have_no_caches) {
  for (const auto policy : {placement_policy::classic, placement_policy::classic_expandable}) {
    allocator_options settings;
    settings.policy = policy;
    auto memory = make(settings);
    const auto stream = new_stream();
    const auto use = [&] { memory.deallocate(memory.allocate(64_KiB, stream), stream); };
    use();
    const memory_stats before = memory.stats();
    std::thread{[&] {
      use();
      EXPECT_EQ(memory.stats().metadata, before.metadata) << "nothing is kept for a thread";
    }}.join();
    const memory_stats after = memory.stats();
    EXPECT_EQ(after.metadata, before.metadata);
    EXPECT_EQ(after.thread_cached, 0_B);
    EXPECT_EQ(after.hits, 0u);
    EXPECT_EQ(after.heap_hits, before.heap_hits + 1);
  }
}

TEST_F(threads_test, what_a_thread_frees_that_never_allocates_comes_home) {
  auto memory = make();
  const auto stream = new_stream();
  std::vector<void*> all;
  for (int i = 0; i < 8; ++i) all.push_back(memory.allocate(64_KiB, stream));
  std::thread other{[&] {
    for (void* const p : all) memory.deallocate(p, stream);
  }};
  other.join();
  const auto before = memory.stats();
  EXPECT_EQ(before.blocks.current, 0u);
  std::vector<void*> again;
  for (int i = 0; i < 8; ++i) again.push_back(memory.allocate(64_KiB, stream));
  // The first made the thread known, and went the long way.
  EXPECT_EQ(memory.stats().hits, before.hits + 7);
  for (void* const p : again) memory.deallocate(p, stream);
  EXPECT_EQ(check(memory), "");
}

TEST_F(threads_test, what_is_freed_for_a_thread_that_is_gone_is_hidden_from_nobody) {
  auto memory = make();
  const auto stream = new_stream();
  std::vector<void*> all;
  std::thread{[&] {
    for (int i = 0; i < 100; ++i) all.push_back(memory.allocate(64_KiB, stream));
  }}.join();
  std::atomic<bool> freed{false};
  std::atomic<bool> seen{false};
  std::thread other{[&] {
    for (void* const p : all) memory.deallocate(p, stream);
    EXPECT_EQ(code_of(memory.try_deallocate(all.back(), stream)), errc::double_free);
    freed = true;
    while (!seen) std::this_thread::yield();
  }};
  while (!freed) std::this_thread::yield();
  EXPECT_EQ(memory.stats().blocks.current, 0u);
  EXPECT_EQ(check(memory), "");
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
  seen = true;
  other.join();
}

TEST_F(threads_test, what_one_thread_gave_back_and_another_took_counts_once) {
  auto memory = make({.thread_cache = 64_KiB});  // keeps no block of this size
  const auto stream = new_stream();
  const auto take_and_free = [&] {
    std::vector<void*> both{memory.allocate(1_MiB, stream), memory.allocate(1_MiB, stream)};
    for (int again = 0; again < 2; ++again) {
      for (void* const p : both) memory.deallocate(p, stream);
      both = {memory.allocate(1_MiB, stream), memory.allocate(1_MiB, stream)};
    }
    for (void* const p : both) memory.deallocate(p, stream);
  };
  take_and_free();
  std::thread{take_and_free}.join();
  EXPECT_EQ(memory.stats().allocated.peak, 2_MiB);
  EXPECT_EQ(check(memory), "");
}

TEST_F(threads_test, a_free_for_another_thread_keeps_its_stream) {
  auto memory = make();
  const auto one = new_stream();
  const auto two = new_stream();
  memory.deallocate(memory.allocate(64_KiB, two), two);
  memory.deallocate(memory.allocate(10_MiB, one), one);  // room that needs no looking for
  void* const p = memory.allocate(128_KiB, one);
  write(one, p, 128_KiB);
  std::thread{[&] {
    auto done = event::create(gpu()).value();
    ASSERT_TRUE(done.record(one));
    ASSERT_TRUE(two.wait(done));
    write(two, p, 128_KiB);
    memory.deallocate(memory.allocate(64_KiB, two), two);
    memory.deallocate(p, two);
  }}.join();
  void* const q = memory.allocate(128_KiB, one);
  EXPECT_NE(q, p);
  write(one, q, 128_KiB);
  void* const r = memory.allocate(128_KiB, two);
  write(two, r, 128_KiB);
  EXPECT_EQ(r, p);
  memory.deallocate(q, one);
  memory.deallocate(r, two);
  EXPECT_EQ(check(memory), "");
}

TEST_F(threads_test, a_thread_takes_the_shortest_way_while_nobody_listens) {
  auto memory = make();
  const auto stream = new_stream();
  const auto takes_it = [] { return heap::this_thread.unobserved == heap::this_thread.serial; };
  std::vector<void*> all;
  const auto allocate = [&] { all.push_back(memory.allocate(64_KiB, stream)); };
  const auto free = [&] {
    memory.deallocate(all.back(), stream);
    all.pop_back();
  };
  for (const auto& act : std::vector<std::function<void()>>{allocate, free}) {
    for (int i = 0; i < 3; ++i) allocate();
    EXPECT_TRUE(takes_it());
    listener ear;
    auto observation = memory.add_observer(ear).value();
    act();
    EXPECT_FALSE(takes_it());
    observation.close();
    act();
    EXPECT_TRUE(takes_it());
  }
  while (!all.empty()) free();
  EXPECT_EQ(check(memory), "");
}

/// Keeps the thread that emits the first free of a block inside that free, until another thread has
/// tried to free the block as well. With the heap's lock held that one may wait for it.
class free_delayer final : public event_sink {
 public:
  explicit free_delayer(const void* block) : block_{reinterpret_cast<std::uint64_t>(block)} {}
  void on_event(const memory_event& event) noexcept override {
    const bool is_it = event.kind == memory_event_kind::deallocate && event.address == block_;
    if (!is_it || is_inside_.exchange(true)) return;
    inside_.set_value();
    static_cast<void>(over_.get_future().wait_for(std::chrono::milliseconds{200}));
  }
  void await_free() { inside_.get_future().wait(); }
  void end() { over_.set_value(); }

 private:
  std::uint64_t block_;
  std::atomic<bool> is_inside_{false};
  std::promise<void> inside_;
  std::promise<void> over_;
};

TEST_F(threads_test, a_block_is_freed_once_by_two_threads_with_and_without_the_lock) {
  auto memory = make();
  const auto stream = new_stream();
  void* const p = memory.allocate(64_KiB, stream);
  free_delayer delay{p};
  auto observation = memory.add_observer(delay).value();
  // The first call of a thread takes the lock.
  std::thread other{[&] { EXPECT_TRUE(memory.try_deallocate(p, stream)); }};
  delay.await_free();
  EXPECT_EQ(code_of(memory.try_deallocate(p, stream)), errc::double_free);
  delay.end();
  other.join();
  observation.close();
  EXPECT_EQ(memory.stats().blocks.current, 0u);
  EXPECT_EQ(check(memory), "");
}

TEST_F(threads_test, a_block_that_its_full_cache_is_taking_is_not_freed_for_it) {
  auto memory = make({.thread_cache = 64_KiB});
  const auto stream = new_stream();
  void* const p = memory.allocate(48_KiB, stream);
  memory.deallocate(memory.allocate(48_KiB, stream), stream);
  free_delayer delay{p};
  observer_registration observation;
  std::promise<void> ready;
  std::thread other{[&] {
    memory.deallocate(memory.allocate(4_KiB, stream), stream);  // knows the stream now
    observation = memory.add_observer(delay).value();
    ready.set_value();
    delay.await_free();
    EXPECT_EQ(code_of(memory.try_deallocate(p, stream)), errc::double_free);
    delay.end();
  }};
  ready.get_future().wait();
  EXPECT_TRUE(memory.try_deallocate(p, stream));  // there is no place for it: takes the lock
  other.join();
  observation.close();
  EXPECT_EQ(memory.stats().blocks.current, 0u);
  EXPECT_EQ(check(memory), "");
}

/// Frees blocks at the same moment as another thread, after waits of random length, and sums up.
class simultaneous_frees {
 public:
  simultaneous_frees(const caching_allocator& memory, const stream& own, const stream& other)
      : memory_{memory}, own_{own}, other_{other} {}
  ~simultaneous_frees() {
    begun_ = -1;
    if (thread_.joinable()) thread_.join();
  }
  simultaneous_frees(const simultaneous_frees&) = delete;
  simultaneous_frees& operator=(const simultaneous_frees&) = delete;

  /// The number of frees that succeeded.
  [[nodiscard]] int free(void* block) {
    successes_ = 0;
    block_ = block;
    const int round = ++begun_;
    delay(random_);
    count(memory_.try_deallocate(block, own_));
    while (done_ != round) std::this_thread::yield();
    return successes_;
  }

 private:
  void work() {
    std::mt19937 random{2};
    for (const stream* each : {&own_, &other_})
      memory_.deallocate(memory_.allocate(64_KiB, *each), *each);  // knows them now
    for (int round = 1;; ++round) {
      while (begun_ != round) {
        if (begun_ < 0) return;
        if (random() % 64 == 0) std::this_thread::yield();
      }
      delay(random);
      count(memory_.try_deallocate(block_, random() % 2 == 0 ? own_ : other_));
      done_ = round;
    }
  }
  static void delay(std::mt19937& random) {
    for (auto left = random() % 64; left != 0; --left) std::atomic_signal_fence(order);
  }
  void count(const result<void>& freed) {
    if (freed) {
      ++successes_;
    } else {
      EXPECT_EQ(freed.code(), errc::double_free);
    }
  }
  static constexpr auto order = std::memory_order_seq_cst;

  const caching_allocator& memory_;
  const stream& own_;
  const stream& other_;
  std::mt19937 random_{1};
  std::atomic<int> begun_{0};
  std::atomic<int> done_{0};
  std::atomic<int> successes_{0};
  std::atomic<void*> block_{nullptr};
  std::thread thread_{[this] { work(); }};
};

TEST_F(threads_test, of_two_threads_that_free_a_block_at_once_one_is_told) {
  if (with_thread_sanitizer) GTEST_SKIP() << "who frees a block twice at once makes a race";
  auto memory = make();
  const auto stream = new_stream();
  const auto other = new_stream();
  int both = 0;
  {
    simultaneous_frees twice{memory, stream, other};
    // On few cores, and beside others, a round may take a while.
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds{3};
    for (int round = 0; round < 20'000 && std::chrono::steady_clock::now() < end; ++round) {
      const bytes size{512u << round % 4};
      const int successes = twice.free(memory.allocate(size, stream));
      ASSERT_GE(successes, 1);
      if (successes == 2) ++both;
      // What is free now is given to one at a time.
      std::set<void*> held;
      for (int i = 0; i < 3; ++i) held.insert(memory.allocate(size, stream));
      ASSERT_EQ(held.size(), 3u) << "in round " << round;
      if (round % 64 == 0) {
        ASSERT_EQ(check(memory), "") << "in round " << round;
      }
      for (void* const p : held) memory.deallocate(p, stream);
    }
  }
  EXPECT_EQ(memory.stats().blocks.current, 0u);
  EXPECT_EQ(check(memory), "");
  // The second one of those is told of when it is found.
  const std::vector<error> told = heard.take();
  EXPECT_EQ(told.size(), static_cast<std::size_t>(both));
  for (const error& each : told) EXPECT_EQ(each.code(), errc::double_free);
  RecordProperty("both", both);
}

/// Threads with streams of their own and of others pass blocks around, while one keeps looking,
/// trimming, listening and limiting.
TEST_F(threads_test, everything_at_once) {
  allocator_options settings;
  settings.thread_cache = 1_MiB;
  auto memory = make(settings);
  constexpr int threads = 4;
  constexpr int steps = 20000;
  std::vector<stream> streams;
  for (int i = 0; i < 3; ++i) streams.push_back(new_stream());
  std::mutex mutex;
  std::vector<std::pair<void*, bytes>> passed;
  std::atomic<int> running{threads};
  const tag mine = tag::named("threads test").value();

  const auto work = [&](int number) {
    std::mt19937_64 random{static_cast<std::uint64_t>(number)};
    const auto& stream = streams[static_cast<std::size_t>(number) % streams.size()];
    std::vector<std::pair<void*, bytes>> live;
    for (int step = 0; step < steps; ++step) {
      const auto choice = random() % 10;
      if (choice < 5 && live.size() < 60) {
        std::optional<tag_scope> scope;
        if (random() % 3 == 0) scope.emplace(mine);
        const bytes size{1 + random() % (random() % 16 == 0 ? 3'000'000 : 60'000)};
        const auto made = memory.try_allocate(size, stream);
        if (made) live.push_back({*made, size});
      } else if (choice < 8 && !live.empty()) {
        const std::size_t at = random() % live.size();
        if (random() % 4 == 0) {
          memory.deallocate(live[at].first, live[at].second, stream);
        } else {
          memory.deallocate(live[at].first, stream);
        }
        live[at] = live.back();
        live.pop_back();
      } else if (choice == 8 && !live.empty()) {
        const std::lock_guard lock{mutex};
        passed.push_back(live.back());
        live.pop_back();
      } else {
        std::pair<void*, bytes> taken{};
        {
          const std::lock_guard lock{mutex};
          if (passed.empty()) continue;
          taken = passed.back();
          passed.pop_back();
        }
        if (random() % 8 == 0) static_cast<void>(memory.record_stream(taken.first, stream));
        memory.deallocate(taken.first);
      }
    }
    for (const auto& [p, size] : live) memory.deallocate(p, stream);
    --running;
  };
  std::vector<std::thread> all;
  for (int i = 0; i < threads; ++i) all.emplace_back(work, i);
  listener ear;
  observer_registration observation;
  for (int round = 0; running != 0; ++round) {
    ASSERT_EQ(check(memory), "");
    switch (round % 6) {
      case 0:
        observation = memory.add_observer(ear).value();
        break;
      case 1:
        observation.close();
        break;
      case 2:
        EXPECT_TRUE(memory.trim());
        break;
      case 3:
        EXPECT_TRUE(memory.set_limit(mine, round % 4 == 3 ? bytes::max() : 100_MiB));
        break;
      case 4:
        EXPECT_TRUE(memory.release_stream(streams[0]));
        break;
      default:
        static_cast<void>(memory.snapshot());
    }
    std::this_thread::yield();
  }
  for (auto& each : all) each.join();
  observation.close();
  for (const auto& [p, size] : passed) memory.deallocate(p);
  machine->run_until_idle();
  EXPECT_EQ(check(memory), "");
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().blocks.current, 0u);
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
  EXPECT_EQ(check(memory), "");
}

}  // namespace
}  // namespace weir::testing_support
