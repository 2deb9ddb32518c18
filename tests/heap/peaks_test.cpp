// SPDX-License-Identifier: Apache-2.0
// Peaks of programs whose requests pass through caches, pools, captures and tags.
#include "heap/graph_fixture.hpp"

#include <array>
#include <map>

namespace weir::testing_support { namespace {

const tag first = tag::named("peaks test: first").value();
const tag second = tag::named("peaks test: second").value();

class peaks_test : public graph_test {
 protected:
  peaks_test() {
    void* const p = memory.allocate(size, on);
    memory.deallocate(p, on);  // into the thread's cache
    memory.reset_peaks();
    reuse();
  }
  /// A block of the cache is live, and then not.
  void reuse() {
    const std::uint64_t hits = memory.stats().hits;
    memory.deallocate(memory.allocate(size, on), on);
    void* const p = memory.allocate(size, on);
    memory.deallocate(p, on);
    ASSERT_EQ(memory.stats().hits, hits + 2);
    memory.reset_peaks();
    memory.deallocate(memory.allocate(size, on), on);  // not folded in yet
  }
  static void expect_one_block(const memory_stats& seen) {
    EXPECT_EQ(seen.requested.peak, size);
    EXPECT_EQ(seen.allocated.peak, size);
    EXPECT_EQ(seen.active.peak, size);
    EXPECT_EQ(seen.active_requested.peak, size);
    EXPECT_EQ(seen.blocks.peak, 1u);
    EXPECT_EQ(seen.active_blocks.peak, 1u);
  }

  static constexpr bytes size = 64_MiB;
  caching_allocator memory = make();
  stream on = new_stream();
};

TEST_F(peaks_test, a_block_that_was_freed_into_the_cache_is_not_live_beside_one_of_a_pool) {
  const auto pool = memory.create_pool("apart").value();
  void* const p = pool.allocate(size, on);
  expect_one_block(memory.stats());
  expect_one_block(pool.stats());
  memory.deallocate(p, on);
}

TEST_F(peaks_test, nor_beside_one_that_a_pool_scope_took) {
  const auto pool = memory.create_pool("apart").value();
  void* p = nullptr;
  {
    const pool_scope scope{pool};
    p = memory.allocate(size, on);
    expect_one_block(memory.stats());
  }
  memory.deallocate(p, on);
  expect_one_block(memory.stats());
}

TEST_F(peaks_test, nor_beside_one_of_a_declared_capture) {
  graph_memory graph = memory.begin_capture(on).value();
  begin(on);
  void* const p = memory.allocate(size, on);
  expect_one_block(memory.stats());
  expect_one_block(graph.pool().stats());
  destroy(end(on));
  graph.end_capture();
  memory.deallocate(p, on);
}

TEST_F(peaks_test, nor_beside_one_of_a_tag_with_memory_of_its_own) {
  ASSERT_TRUE(memory.declare_suspendable(first));
  memory.reset_peaks();
  memory.deallocate(memory.allocate(size, on), on);
  const tag_scope as{first};
  void* const p = memory.allocate(size, on);
  expect_one_block(memory.stats());
  expect_one_block(memory.stats(first));
  memory.deallocate(p, on);
}

TEST_F(peaks_test, of_tags_in_turn_are_those_of_one_and_of_tags_at_a_time_those_of_both) {
  for (const bytes each : {64_KiB, 256_KiB, 1_MiB, 6_MiB}) {
    SCOPED_TRACE(to_string(each));
    {
      void* const one = memory.allocate(each, on);
      void* const other = memory.allocate(each, on);
      memory.deallocate(one, on);
      memory.deallocate(other, on);
    }
    const auto expect = [&](const memory_stats& seen, std::uint64_t blocks) {
      EXPECT_EQ(seen.requested.peak, each * blocks);
      EXPECT_EQ(seen.allocated.peak, each * blocks);
      EXPECT_EQ(seen.active.peak, each * blocks);
      EXPECT_EQ(seen.blocks.peak, blocks);
    };
    memory.reset_peaks();
    for (const tag with : {first, second, first, second}) {
      const tag_scope as{with};
      memory.deallocate(memory.allocate(each, on), on);
    }
    expect(memory.stats(), 1);
    expect(memory.stats(first), 1);
    expect(memory.stats(second), 1);
    std::array<void*, 2> both{};
    for (std::size_t i = 0; i < 2; ++i) {
      const tag_scope as{i == 0 ? first : second};
      both[i] = memory.allocate(each, on);
    }
    for (void* const p : both) memory.deallocate(p, on);
    expect(memory.stats(), 2);
    expect(memory.stats(first), 1);
    expect(memory.stats(second), 1);
  }
}

TEST_F(peaks_test, of_requested_and_of_blocks_are_exact_where_less_is_allocated) {
  std::vector<void*> small;
  void* const large = memory.allocate(64_KiB, on);
  for (int i = 0; i < 8; ++i) small.push_back(memory.allocate(1_B, on));
  void* const full = memory.allocate(32_KiB, on);
  memory.deallocate(large, on);
  memory.deallocate(full, on);
  for (void* const p : small) memory.deallocate(p, on);
  memory.reset_peaks();
  // All of these are hits: the most bytes, then the most blocks, then what was asked for most.
  memory.deallocate(memory.allocate(bytes{63 * 1024 + 513}, on), on);
  small.clear();
  for (int i = 0; i < 8; ++i) small.push_back(memory.allocate(1_B, on));
  for (void* const p : small) memory.deallocate(p, on);
  void* const one = memory.allocate(32_KiB, on);
  void* const other = memory.allocate(512_B, on);
  memory.deallocate(one, on);
  memory.deallocate(other, on);
  const auto seen = memory.stats();
  EXPECT_EQ(seen.allocated.peak, 64_KiB);
  EXPECT_EQ(seen.requested.peak, bytes{63 * 1024 + 513});
  EXPECT_EQ(seen.blocks.peak, 8u);
}

/// A block that waits for a stream is active until the wait ends, whoever finds that out.
TEST_F(peaks_test, of_active_count_what_waited_beside_a_hit) {
  const stream reader = new_stream();
  void* const cached = memory.allocate(100_KiB, on);
  void* const read = memory.allocate(3_MiB, on);
  memory.deallocate(cached, on);
  write(reader, read, 3_MiB);
  ASSERT_TRUE(memory.record_stream(read, reader));
  memory.deallocate(read, on);
  memory.reset_peaks();
  ASSERT_EQ(memory.stats().pending, 3_MiB);
  memory.deallocate(memory.allocate(100_KiB, on), on);  // a hit, not folded in
  machine->run_until_idle();
  ASSERT_EQ(memory.assume_joined(read).value(), true);
  EXPECT_EQ(memory.stats().pending, 0_B);
  EXPECT_EQ(memory.stats().active.peak, 3_MiB + 100_KiB);
  EXPECT_EQ(memory.stats().active_blocks.peak, 2u);
}

/// Counts what an allocator tells, in the order in which it tells it.
class counting_sink final : public event_sink {
 public:
  struct counted {
    gauge requested;
    gauge allocated;
    gauge blocks;
  };
  void on_event(const memory_event& event) noexcept override {
    const bool allocates = event.kind == memory_event_kind::allocate;
    if (!allocates && event.kind != memory_event_kind::deallocate) return;
    const std::lock_guard lock{mutex_};
    for (counted* const each : {&all_, &tags_[event.tag]}) {
      const auto change = [&](gauge& of, std::uint64_t by) {
        of.set(allocates ? of.current + by : of.current - by);
      };
      change(each->requested, event.size);
      change(each->allocated, event.rounded);
      change(each->blocks, 1);
    }
  }
  [[nodiscard]] counted all() const { return all_; }
  [[nodiscard]] counted of(tag with) { return tags_[with.number()]; }

 private:
  std::mutex mutex_;
  counted all_;
  std::map<std::uint16_t, counted> tags_;
};

/// Without caches every request and free holds the lock, in which order they are told.
TEST_F(peaks_test, of_several_threads_are_exact_without_thread_caches) {
  auto uncached = make({.thread_cache = {}});
  counting_sink sink;
  const auto registration = uncached.add_observer(sink).value();
  const auto pool = uncached.create_pool("apart").value();
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= 4; ++seed) {
    threads.emplace_back([&, seed] {
      const stream mine = new_stream();
      std::vector<void*> live;
      std::uint32_t random = seed * 2654435761u;
      for (int step = 0; step < 2000; ++step) {
        random = random * 1664525u + 1013904223u;
        const tag_scope as{random >> 30 == 0 ? first : second};
        const bytes wanted{(random >> 8) % 60'000 + 1};
        if (live.size() < 20 && (live.empty() || (random >> 27) % 2 == 0)) {
          live.push_back((random >> 29) % 2 == 0 ? uncached.allocate(wanted, mine)
                                                 : pool.allocate(wanted, mine));
        } else {
          uncached.deallocate(live.back(), mine);
          live.pop_back();
        }
      }
      for (void* const p : live) uncached.deallocate(p, mine);
    });
  }
  for (auto& each : threads) each.join();
  const auto expect = [](const memory_stats& seen, const counting_sink::counted& told) {
    const auto sized = [](const gauge& of) {
      return byte_gauge{bytes{of.current}, bytes{of.peak}};
    };
    EXPECT_EQ(seen.requested, sized(told.requested));
    EXPECT_EQ(seen.allocated, sized(told.allocated));
    EXPECT_EQ(seen.active, sized(told.allocated));
    EXPECT_EQ(seen.blocks, told.blocks);
  };
  expect(uncached.stats(), sink.all());
  expect(uncached.stats(first), sink.of(first));
  expect(uncached.stats(second), sink.of(second));
}

}  // namespace
}  // namespace weir::testing_support
