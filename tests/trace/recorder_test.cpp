// SPDX-License-Identifier: Apache-2.0
// The recorder: everything that happened is in the file, in an order that can have been.
#include "weir/trace/recorder.hpp"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <barrier>
#include <csignal>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "support/file_size_limit.hpp"
#include "support/no_threads.hpp"
#include "support/reports.hpp"
#include "support/scratch.hpp"
#include "support/small_machine.hpp"
#include "trace/event_collector.hpp"
#include "trace/ticks.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"
#include "weir/trace/trace_file.hpp"

namespace weir::testing_support { namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::chrono_literals;
using namespace weir::literals;

class recorder_test : public ::testing::Test {
 protected:
  std::string path() const { return folder_.path("run.weirtrace"); }
  recording stop_and_read(weir::recorder& recorder) {
    EXPECT_TRUE(recorder.close());
    auto read = read_trace(path()).value();
    EXPECT_FALSE(read.damage) << read.damage->reason;
    return read;
  }
  static std::size_t count(const recording& in, trace_kind kind) {
    return static_cast<std::size_t>(std::count_if(in.events.begin(), in.events.end(),
                                                  [&](const auto& e) { return e.kind == kind; }));
  }
  std::string part(pid_t process = getpid()) const {
    return path() + "." + std::to_string(process) + ".part";
  }

  scratch_folder folder_;
  std::shared_ptr<runtime> machine_ = open_small_machine();
  device gpu_ = machine_->device(device_id{0}).value();
};

memory_event block(memory_event_kind kind, std::uint64_t address, std::uint64_t size = 64) {
  return {.kind = kind, .stream = stream_id{5}, .address = address, .size = size, .rounded = 512};
}
/// block() as it stands in a file.
trace_event recorded_block(trace_kind kind, std::uint64_t address, std::uint16_t thread = 0) {
  return {.address = address, .size = 64, .extra = 512, .thread = thread, .kind = kind};
}

std::uint64_t number_of(const void* address) { return reinterpret_cast<std::uint64_t>(address); }

/// The events without their times, which are checked to rise from 0 on.
std::vector<trace_event> events_of(const recording& read) {
  std::vector<trace_event> events = read.events;
  std::uint64_t last = 0;
  for (trace_event& each : events) {
    EXPECT_GE(each.time, last);
    last = std::exchange(each.time, 0);
  }
  return events;
}

/// How often a writer wakes by itself where a test shows that it is woken. Longer than anything
/// else takes, and short enough for a test that fails.
constexpr auto seldom = 10s;
/// More than enough for a thread to fall asleep, and for events to be older than clocks are wrong.
constexpr auto a_moment = 2ms;

/// Whether that took less time than until a writer wakes by itself.
template <class Function>
bool is_prompt(Function work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::steady_clock::now() - begin < seldom / 2;
}

/// Waits until so many events are in the file; false if they are not before `seldom`.
bool has_written(const weir::recorder& recorder, std::uint64_t events) {
  return is_prompt([&] {
    for (int i = 0; i < 5000 && recorder.stats().written < events; ++i)
      std::this_thread::sleep_for(1ms);
  });
}

TEST_F(recorder_test, writes_what_an_allocator_did) {
  auto memory = caching_allocator::create(gpu_).value();
  const auto stream = weir::stream::create(gpu_).value();
  const auto other = weir::stream::create(gpu_).value();
  void* const before = memory.allocate(bytes{1000}, stream);
  const auto weights = tag::named("weights").value();
  auto recorder =
      weir::recorder::start(
          path(), {.program = "test", .device = "sim", .device_capacity = gpu_.total_memory()})
          .value();
  auto observation = memory.add_observer(*recorder).value();
  memory.deallocate(before, stream);
  ASSERT_TRUE(memory.set_limit(64_GiB));
  ASSERT_TRUE(memory.set_limit(weights, 32_GiB));
  recorder->marker("begin");
  void* p = nullptr;
  {
    const tag_scope scope{weights};
    p = memory.allocate(bytes{100'000}, stream);
  }
  ASSERT_TRUE(memory.record_stream(p, other));
  memory.deallocate(p, stream);
  const auto pool = memory.create_pool("kv").value();
  void* const q = pool.allocate(bytes{5000}, other);
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_FALSE(memory.try_allocate(gpu_.total_memory(), stream));
  observation.close();
  memory.deallocate(q, other);  // not observed

  const auto read = stop_and_read(*recorder);
  EXPECT_EQ(read.program, "test");
  EXPECT_EQ(read.device, "sim");
  EXPECT_EQ(read.device_capacity, gpu_.total_memory());
  EXPECT_TRUE(read.real_addresses);
  EXPECT_EQ(read.dropped, 0u);
  EXPECT_THAT(read.threads, ElementsAre(static_cast<std::uint64_t>(gettid())));
  EXPECT_THAT(read.tags, ElementsAre("", "weights"));
  EXPECT_THAT(read.texts, ElementsAre("begin"));
  EXPECT_THAT(read.pools, ElementsAre("", "pool " + std::to_string(pool.id().number())));
  EXPECT_THAT(read.streams, ElementsAre(stream.id().number(), other.id().number()));
  EXPECT_TRUE(read.stacks.empty());
  const std::uint64_t page = 2 << 20;
  using enum trace_kind;
  const std::uint64_t arena = number_of(before);
  const std::vector<trace_event> expected = {
      {.address = arena, .size = page, .kind = reserve},
      {.address = arena, .size = 1000, .extra = 1024, .kind = allocate},
      {.address = arena, .size = 1000, .extra = 1024, .kind = deallocate},
      {.size = (64_GiB).count(), .kind = limit},
      {.size = (32_GiB).count(), .tag = 1, .kind = limit},
      {.kind = marker},
      {.address = number_of(p), .size = 100'000, .extra = 100'352, .tag = 1, .kind = allocate},
      {.address = number_of(p), .stream = 1, .tag = 1, .kind = record_stream},
      {.address = number_of(p), .size = 100'000, .extra = 100'352, .tag = 1, .kind = deallocate},
      {.pool = 1, .kind = pool_created},
      {.address = number_of(q), .size = page, .pool = 1, .kind = reserve},
      {.address = number_of(q),
       .size = 5000,
       .extra = 5120,
       .stream = 1,
       .pool = 1,
       .kind = allocate},
      {.address = number_of(p) - 1024, .size = page, .kind = trace_kind::release},  // empty by now
      {.size = gpu_.total_memory().count(),
       .extra = gpu_.total_memory().count(),
       .kind = out_of_memory}};
  EXPECT_EQ(events_of(read), expected);
  const recorder_stats stats = recorder->stats();
  EXPECT_EQ(stats.written, expected.size());
  EXPECT_EQ(stats.dropped, 0u);
  EXPECT_EQ(stats.threads, 1u);
  EXPECT_EQ(stats.file_size.count(), std::filesystem::file_size(path()));
  EXPECT_EQ(folder_.files(), 1u);
}

/// What is live and reserved at the end of a recording, by its events.
struct held_memory {
  std::uint64_t live = 0;
  std::uint64_t blocks = 0;
  std::uint64_t reserved = 0;
  friend bool operator==(const held_memory&, const held_memory&) = default;
};
held_memory held_at_end(const recording& read) {
  held_memory held;
  std::map<std::uint64_t, std::uint64_t> blocks;
  for (const trace_event& each : read.events) {
    if (each.kind == trace_kind::allocate) blocks[each.address] = each.size;
    if (each.kind == trace_kind::deallocate) blocks.erase(each.address);
    if (each.kind == trace_kind::reserve) held.reserved += each.size;
    if (each.kind == trace_kind::release) held.reserved -= each.size;
  }
  for (const auto& [address, size] : blocks) held.live += size;
  held.blocks = blocks.size();
  return held;
}
held_memory held_by(const caching_allocator& memory) {
  const memory_stats stats = memory.stats();
  return {stats.requested.current.count(), stats.blocks.current, stats.reserved.current.count()};
}

TEST_F(recorder_test, begins_with_what_an_allocator_holds) {
  auto memory = caching_allocator::create(gpu_).value();
  const auto stream = weir::stream::create(gpu_).value();
  const auto weights = tag::named("weights").value();
  void* p = nullptr;
  {
    const tag_scope scope{weights};
    p = memory.allocate(3_MiB, stream);
  }
  void* const small = memory.allocate(700_B, stream);
  memory.deallocate(memory.allocate(900_B, stream), stream);  // cached: no block
  const auto pool = memory.create_pool("kv").value();
  void* const q = pool.allocate(bytes{5000}, stream);
  ASSERT_TRUE(memory.set_limit(64_GiB));
  auto recorder = weir::recorder::start(path(), {.stacks = true}).value();
  auto observation = memory.add_observer(*recorder).value();
  const held_memory before = held_by(memory);
  ASSERT_TRUE(recorder->flush());
  EXPECT_EQ(held_at_end(read_trace(part()).value()), before);
  memory.deallocate(small, stream);
  void* const more = memory.allocate(64_MiB, stream);
  const held_memory after = held_by(memory);
  observation.close();
  const auto read = stop_and_read(*recorder);
  EXPECT_EQ(held_at_end(read), after);
  EXPECT_THAT(read.tags, ElementsAre("", "weights"));
  EXPECT_THAT(read.pools, ElementsAre("", "pool " + std::to_string(pool.id().number())));
  std::map<std::uint64_t, trace_event> existing;
  for (const trace_event& each : read.events) {
    if (each.kind == trace_kind::limit) break;
    if (each.kind == trace_kind::allocate) existing[each.address] = each;
  }
  ASSERT_EQ(existing.size(), 3u);
  EXPECT_EQ(existing[number_of(p)].tag, 1);
  EXPECT_EQ(existing[number_of(p)].size, (3_MiB).count());
  EXPECT_EQ(existing[number_of(p)].extra, (3_MiB).count());
  EXPECT_EQ(existing[number_of(q)].pool, 1);
  EXPECT_EQ(existing[number_of(small)].size, 700u);
  EXPECT_EQ(existing[number_of(small)].extra, 1024u);
  for (const auto& [address, each] : existing) EXPECT_EQ(each.other, 0u) << "a stack";
  memory.deallocate(p, stream);
  memory.deallocate(q, stream);
  memory.deallocate(more, stream);
}

TEST_F(recorder_test, keeps_blocks_that_live_where_blocks_from_before_were_freed) {
  auto memory = caching_allocator::create(gpu_).value();
  const auto stream = weir::stream::create(gpu_).value();
  constexpr int count = 200;
  std::vector<void*> old(count);
  for (void*& each : old) each = memory.allocate(4_MiB, stream);
  auto recorder = weir::recorder::start(path()).value();
  auto observation = memory.add_observer(*recorder).value();
  // One thread frees the old blocks; the other gets their memory at once.
  std::atomic<int> freed{0};
  std::atomic<int> taken{0};
  std::vector<void*> fresh;
  std::thread freeing{[&] {
    for (int i = 0; i < count; ++i) {
      while (taken.load() < i) std::this_thread::yield();
      memory.deallocate(old[static_cast<std::size_t>(i)], stream);
      freed.store(i + 1);
    }
  }};
  std::thread taking{[&] {
    for (int i = 0; i < count; ++i) {
      while (freed.load() <= i) std::this_thread::yield();
      fresh.push_back(memory.allocate(4_MiB, stream));
      taken.store(i + 1);
    }
  }};
  freeing.join();
  taking.join();
  const held_memory truth = held_by(memory);
  observation.close();
  const auto read = stop_and_read(*recorder);
  EXPECT_EQ(truth.blocks, std::uint64_t{count});
  EXPECT_EQ(held_at_end(read), truth);
  EXPECT_EQ(recorder_test::count(read, trace_kind::deallocate), std::size_t{count});
  for (void* const each : fresh) memory.deallocate(each, stream);
}

TEST_F(recorder_test, writes_of_each_kind_what_it_says) {
  const tag cache = tag::named("cache").value();
  auto recorder = weir::recorder::start(path()).value();
  const auto send = [&](memory_event_kind kind, std::uint64_t other = 6) {
    recorder->on_event({.kind = kind,
                        .tag = cache.number(),
                        .pool = pool_id{70},
                        .stream = stream_id{5},
                        .other = stream_id{other},
                        .address = 0x1000,
                        .other_address = 0x2000,
                        .size = 300,
                        .rounded = 512});
  };
  using sent = memory_event_kind;
  recorder->on_event({.kind = sent::out_of_memory, .stream = stream_id{9}});
  send(sent::allocate, 0);
  send(sent::record_stream);
  send(sent::deallocate, 0);
  for (const sent each : {sent::wait, sent::reserve, sent::move, sent::release, sent::out_of_memory,
                          sent::capture_begin, sent::capture_end, sent::pool_created,
                          sent::pool_released, sent::suspended, sent::resumed})
    send(each);
  recorder->on_event({.kind = sent::limit, .size = 9});
  const auto read = stop_and_read(*recorder);
  EXPECT_THAT(read.streams, ElementsAre(9, 5, 6));
  EXPECT_THAT(read.tags, ElementsAre("", "cache"));
  EXPECT_THAT(read.pools, ElementsAre("", "pool 70"));
  using enum trace_kind;
  std::vector<trace_event> expected = {{.kind = out_of_memory}};
  const auto expect = [&](trace_kind kind, std::uint32_t stream, std::uint32_t other = 0) {
    expected.push_back({.address = 0x1000,
                        .size = 300,
                        .extra = kind == move ? 0x2000u : 512u,
                        .stream = stream,
                        .other = other,
                        .tag = 1,
                        .pool = 1,
                        .kind = kind});
  };
  for (const trace_kind each : {allocate, record_stream, deallocate}) expect(each, 1);
  expect(wait, 1, 2);
  for (const trace_kind each : {reserve, move, trace_kind::release}) expect(each, 0);
  for (const trace_kind each : {out_of_memory, capture_begin, capture_end}) expect(each, 1);
  for (const trace_kind each : {pool_created, pool_released, suspended, resumed}) expect(each, 0);
  expected.push_back({.size = 9, .kind = limit});
  EXPECT_EQ(events_of(read), expected);
}

TEST_F(recorder_test, numbers_streams_tags_and_pools_as_they_come) {
  const tag first = tag::named("first").value();
  const tag second = tag::named("second").value();
  auto recorder = weir::recorder::start(path()).value();
  const auto send = [&](std::uint64_t stream, std::uint16_t tag, std::uint32_t pool) {
    recorder->on_event({.kind = memory_event_kind::out_of_memory,
                        .tag = tag,
                        .pool = pool_id{pool},
                        .stream = stream_id{stream}});
  };
  send(9, second.number(), 4);
  send(8, first.number(), 0);
  send(9, second.number(), 3);
  send(8, 0, 4);
  send(7, 60'000, 3);  // a tag that nobody made has no name
  const auto read = stop_and_read(*recorder);
  EXPECT_THAT(read.streams, ElementsAre(9, 8, 7));
  EXPECT_THAT(read.tags, ElementsAre("", "second", "first", ""));
  EXPECT_THAT(read.pools, ElementsAre("", "pool 4", "pool 3"));
  const auto kind = trace_kind::out_of_memory;
  EXPECT_EQ(events_of(read),
            (std::vector<trace_event>{{.stream = 0, .tag = 1, .pool = 1, .kind = kind},
                                      {.stream = 1, .tag = 2, .pool = 0, .kind = kind},
                                      {.stream = 0, .tag = 1, .pool = 2, .kind = kind},
                                      {.stream = 1, .tag = 0, .pool = 1, .kind = kind},
                                      {.stream = 2, .tag = 3, .pool = 2, .kind = kind}}));
}

TEST_F(recorder_test, counts_more_pools_than_numbers_as_the_last) {
  auto recorder = weir::recorder::start(path()).value();
  constexpr std::uint32_t pools = 65'540;
  for (std::uint32_t i = 1; i <= pools; ++i)
    recorder->on_event({.kind = memory_event_kind::pool_created, .pool = pool_id{i}});
  recorder->on_event({.kind = memory_event_kind::pool_released, .pool = pool_id{7}});
  const auto read = stop_and_read(*recorder);
  ASSERT_EQ(read.events.size(), pools + 1u);
  for (std::uint32_t i = 1; i <= pools; ++i)
    ASSERT_EQ(read.events[i - 1].pool, std::min(i, 65'535u)) << i;
  EXPECT_EQ(read.events.back().pool, 7);
  EXPECT_EQ(read.pools.size(), 65'536u);
  EXPECT_EQ(read.pools.back(), "pool 65535");
}

TEST_F(recorder_test, measures_time_from_its_start) {
  const auto before = std::chrono::steady_clock::now();
  auto recorder = weir::recorder::start(path()).value();
  recorder->marker("a");
  const auto between = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(a_moment);
  recorder->marker("b");
  const std::chrono::nanoseconds first_time = between - before;
  const std::chrono::nanoseconds time = std::chrono::steady_clock::now() - between;
  const auto read = stop_and_read(*recorder);
  ASSERT_EQ(read.events.size(), 2u);
  // How long a tick takes was measured in passing: a factor of four is another unit.
  EXPECT_LT(read.events[0].time, 4u * static_cast<std::uint64_t>(first_time.count()));
  const std::uint64_t apart = read.events[1].time - read.events[0].time;
  EXPECT_GT(apart, std::chrono::nanoseconds{a_moment}.count() / 4u);
  EXPECT_LT(apart, 4u * static_cast<std::uint64_t>(time.count()));
}

// --- The writer's turns -------------------------------------------------------------------------

TEST_F(recorder_test, flush_wakes_a_writer_that_sleeps) {
  auto recorder = weir::recorder::start(path(), {.flush_every = seldom}).value();
  for (std::uint64_t i = 1; i <= 3; ++i) {
    recorder->on_event(block(memory_event_kind::allocate, 512 * i));
    std::this_thread::sleep_for(a_moment);
    EXPECT_EQ(recorder->stats().written, i - 1) << "it sleeps";
    ASSERT_TRUE(is_prompt([&] { EXPECT_TRUE(recorder->flush()); }));
    EXPECT_EQ(recorder->stats().written, i);
  }
}

TEST_F(recorder_test, flush_waits_for_the_latest_event) {
  auto recorder = weir::recorder::start(path(), {.flush_every = seldom}).value();
  for (std::uint64_t i = 1; i <= 200; ++i) {
    recorder->on_event(block(memory_event_kind::allocate, 512 * i));
    ASSERT_TRUE(is_prompt([&] { EXPECT_TRUE(recorder->flush()); }));
    ASSERT_EQ(recorder->stats().written, i);
  }
}

TEST_F(recorder_test, stop_wakes_a_writer_that_sleeps) {
  auto recorder = weir::recorder::start(path(), {.flush_every = seldom}).value();
  recorder->on_event(block(memory_event_kind::allocate, 512));
  std::this_thread::sleep_for(a_moment);
  EXPECT_TRUE(is_prompt([&] { EXPECT_TRUE(recorder->close()); }));
  EXPECT_EQ(read_trace(path()).value().events.size(), 1u);
  EXPECT_TRUE(recorder->flush()) << "which has nothing to wait for";
}

TEST_F(recorder_test, a_full_ring_wakes_a_writer_that_sleeps) {
  auto recorder = weir::recorder::start(path(), {.ring_events = 16, .flush_every = seldom}).value();
  std::this_thread::sleep_for(a_moment);
  EXPECT_TRUE(is_prompt([&] {
    for (std::uint64_t i = 1; i <= 40; ++i)
      recorder->on_event(block(memory_event_kind::allocate, 512 * i));
  }));
  const auto read = stop_and_read(*recorder);
  ASSERT_EQ(read.events.size(), 40u);
  for (std::uint64_t i = 1; i <= 40; ++i) EXPECT_EQ(read.events[i - 1].address, 512 * i);
}

TEST_F(recorder_test, half_a_ring_wakes_a_writer_that_sleeps) {
  auto recorder = weir::recorder::start(path(), {.ring_events = 16, .flush_every = seldom}).value();
  for (std::uint64_t i = 1; i <= 7; ++i)
    recorder->on_event(block(memory_event_kind::allocate, 512 * i));
  std::this_thread::sleep_for(a_moment);
  EXPECT_EQ(recorder->stats().written, 0u);
  recorder->on_event(block(memory_event_kind::allocate, 512 * 8));
  EXPECT_TRUE(has_written(*recorder, 7));  // the eighth may be too young
}

TEST_F(recorder_test, writes_now_and_then_by_itself) {
  auto recorder = weir::recorder::start(path(), {.flush_every = 1ms}).value();
  recorder->on_event(block(memory_event_kind::allocate, 512));
  EXPECT_TRUE(has_written(*recorder, 1));
  EXPECT_EQ(read_trace(part()).value().events.size(), 1u);
}

TEST_F(recorder_test, is_stopped_by_its_destructor) {
  auto recorder = weir::recorder::start(path()).value();
  recorder->on_event(block(memory_event_kind::allocate, 512));
  recorder.reset();
  const auto read = read_trace(path()).value();
  EXPECT_FALSE(read.damage);
  EXPECT_THAT(events_of(read), ElementsAre(recorded_block(trace_kind::allocate, 512)));
  EXPECT_EQ(folder_.files(), 1u);
}

TEST_F(recorder_test, of_another_may_be_called_by_turns) {
  auto first = weir::recorder::start(path()).value();
  auto second = weir::recorder::start(folder_.path("second")).value();
  for (std::uint64_t i = 1; i <= 3; ++i) {
    first->on_event(block(memory_event_kind::allocate, 512 * i));
    second->on_event(block(memory_event_kind::allocate, 1024 * i));
  }
  EXPECT_EQ(first->stats().threads, 1u);
  ASSERT_TRUE(second->close());
  const auto kind = trace_kind::allocate;
  EXPECT_THAT(events_of(stop_and_read(*first)),
              ElementsAre(recorded_block(kind, 512), recorded_block(kind, 1024),
                          recorded_block(kind, 1536)));
  EXPECT_THAT(events_of(read_trace(folder_.path("second")).value()),
              ElementsAre(recorded_block(kind, 1024), recorded_block(kind, 2048),
                          recorded_block(kind, 3072)));
}

TEST_F(recorder_test, puts_remarks_between_the_events) {
  auto recorder = weir::recorder::start(path()).value();
  recorder->marker("first");
  recorder->on_event(block(memory_event_kind::allocate, 512));
  recorder->marker("");
  ASSERT_TRUE(recorder->flush());
  recorder->marker("third");
  const auto read = stop_and_read(*recorder);
  recorder->marker("too late");
  EXPECT_THAT(read.texts, ElementsAre("first", "", "third"));
  using enum trace_kind;
  EXPECT_THAT(events_of(read),
              ElementsAre(trace_event{.other = 0, .kind = marker}, recorded_block(allocate, 512),
                          trace_event{.other = 1, .kind = marker},
                          trace_event{.other = 2, .kind = marker}));
}

// --- Threads ------------------------------------------------------------------------------------

/// Threads allocate, hand over and free through a small ring that is always full.
TEST_F(recorder_test, loses_nothing_when_threads_pass_blocks_around) {
  auto memory = caching_allocator::create(gpu_).value();
  auto recorder = weir::recorder::start(path(), {.ring_events = 64}).value();
  auto observation = memory.add_observer(*recorder).value();
  constexpr int threads = 4;
  constexpr int rounds = 3'000;
  std::vector<std::atomic<void*>> exchanged(8);
  std::vector<std::thread> running;
  for (int t = 0; t < threads; ++t) {
    running.emplace_back([&, t] {
      const auto stream = weir::stream::create(gpu_).value();
      for (int i = 0; i < rounds; ++i) {
        void* const own =
            memory.allocate(bytes{512 * (1 + static_cast<std::uint64_t>(i % 4))}, stream);
        void* const taken = exchanged[static_cast<std::size_t>((i * 7 + t) % 8)].exchange(own);
        if (taken != nullptr) memory.deallocate(taken, stream);
      }
    });
  }
  for (auto& each : running) each.join();
  for (auto& each : exchanged) memory.deallocate(each.load());
  const auto stats = memory.stats();
  observation.close();
  // The reader itself refuses a block that is freed before it is allocated, or allocated twice.
  const auto read = stop_and_read(*recorder);
  EXPECT_EQ(count(read, trace_kind::allocate), static_cast<std::size_t>(threads) * rounds);
  EXPECT_EQ(count(read, trace_kind::deallocate), static_cast<std::size_t>(threads) * rounds);
  EXPECT_EQ(stats.blocks.current, 0u);
  EXPECT_EQ(read.dropped, 0u);
  EXPECT_EQ(std::set<std::uint64_t>(read.threads.begin(), read.threads.end()).size(), threads + 1u);
  std::map<std::uint64_t, std::uint64_t> live;
  for (const auto& each : read.events) {
    if (each.kind == trace_kind::allocate) live[each.address] = each.size;
    if (each.kind != trace_kind::deallocate) continue;
    ASSERT_EQ(live[each.address], each.size);
  }
}

TEST_F(recorder_test, drops_and_counts_if_it_may) {
  auto recorder =
      weir::recorder::start(path(), {.ring_events = 16, .drop_when_full = true}).value();
  constexpr std::uint64_t events = 100'000;
  for (std::uint64_t i = 0; i < events; ++i)
    recorder->on_event(block(memory_event_kind::allocate, 512 * (i + 1)));
  const auto read = stop_and_read(*recorder);
  EXPECT_GT(read.dropped, 0u);
  EXPECT_EQ(read.dropped + read.events.size(), events);
  EXPECT_EQ(recorder->stats().dropped, read.dropped);
}

TEST_F(recorder_test, has_counted_all_drops_when_it_is_stopped) {
  auto recorder =
      weir::recorder::start(path(), {.ring_events = 16, .drop_when_full = true}).value();
  std::atomic<bool> is_stopped{false};
  std::uint64_t events = 0;
  std::thread busy{[&] {
    while (!is_stopped) recorder->on_event(block(memory_event_kind::allocate, 512 * ++events));
  }};
  while (recorder->stats().dropped == 0) std::this_thread::yield();
  EXPECT_TRUE(recorder->close());
  is_stopped = true;
  busy.join();
  const auto read = read_trace(path()).value();
  EXPECT_LE(read.dropped + read.events.size(), events);
  // One more may have been on its way.
  EXPECT_GE(recorder->stats().dropped, read.dropped);
  EXPECT_LE(recorder->stats().dropped, read.dropped + 1);
  EXPECT_EQ(recorder->stats().written, read.events.size());
}

/// No writer drains the ring before its thread has ended.
TEST_F(recorder_test, counts_the_drops_of_threads_that_ended) {
  trace::event_collector collector{
      trace::trace_writer{trace::file_writer::create(path(), nullptr, 0).value(), trace::ticks()},
      {.ring_events = 16, .drop_when_full = true, .flush_every = seldom}};
  trace::event_collector::prepare();
  std::uint64_t thread_id = 0;
  std::thread{[&] {
    thread_id = static_cast<std::uint64_t>(gettid());
    for (std::uint64_t i = 1; i <= 100; ++i)
      collector.add(block(memory_event_kind::allocate, 512 * i), nullptr);
  }}.join();
  EXPECT_EQ(collector.stats().dropped, 84u);
  ASSERT_TRUE(collector.begin());
  ASSERT_TRUE(collector.flush());  // its ring goes
  collector.add(block(memory_event_kind::allocate, 64), nullptr);
  ASSERT_TRUE(collector.flush());
  EXPECT_EQ(collector.stats().dropped, 84u);
  EXPECT_EQ(collector.stats().written, 17u);
  EXPECT_EQ(collector.stats().threads, 2u);
  ASSERT_TRUE(collector.stop());
  const auto read = read_trace(path()).value();
  EXPECT_EQ(read.dropped, 84u);
  EXPECT_THAT(read.threads, ElementsAre(thread_id, static_cast<std::uint64_t>(gettid())));
  std::vector<trace_event> expected;
  for (std::uint64_t i = 1; i <= 16; ++i)
    expected.push_back(recorded_block(trace_kind::allocate, 512 * i));
  expected.push_back(recorded_block(trace_kind::allocate, 64, 1));
  EXPECT_EQ(events_of(read), expected);
}

TEST_F(recorder_test, can_be_read_before_it_is_stopped) {
  auto recorder = weir::recorder::start(path(), {.flush_every = seldom}).value();
  recorder->on_event(block(memory_event_kind::allocate, 512));
  ASSERT_TRUE(recorder->flush());
  const auto now = read_trace(part()).value();
  EXPECT_EQ(now.events.size(), 1u);
  ASSERT_TRUE(now.damage);
  EXPECT_THAT(now.damage->reason, HasSubstr("no end"));
  EXPECT_FALSE(std::filesystem::exists(path()));
  EXPECT_EQ(stop_and_read(*recorder).events.size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(part()));
  recorder->on_event(block(memory_event_kind::allocate, 1024));  // ignored
  EXPECT_TRUE(recorder->close());
  EXPECT_EQ(read_trace(path()).value().events.size(), 1u);
}

TEST_F(recorder_test, survives_its_process_being_killed) {
  const pid_t child = fork();
  if (child == 0) {
    auto recorder = weir::recorder::start(path()).value();
    for (std::uint64_t i = 1; i <= 1000; ++i)
      recorder->on_event(block(memory_event_kind::allocate, 512 * i));
    static_cast<void>(recorder->flush());
    ::kill(getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  const auto read = read_trace(part(child)).value();
  ASSERT_EQ(read.events.size(), 1000u);
  for (std::uint64_t i = 1; i <= 1000; ++i) ASSERT_EQ(read.events[i - 1].address, 512 * i);
  ASSERT_TRUE(read.damage);
  EXPECT_THAT(read.damage->reason, HasSubstr("no end"));
}

TEST_F(recorder_test, is_silent_in_a_forked_child) {
  auto recorder = weir::recorder::start(path(), {.ring_events = 16}).value();
  recorder->on_event(block(memory_event_kind::allocate, 512));
  const pid_t child = fork();
  if (child == 0) {
    for (std::uint64_t i = 0; i < 100; ++i)  // more than a ring holds: it must not wait
      recorder->on_event(block(memory_event_kind::allocate, 1024 * (i + 1)));
    recorder->marker("child");
    const auto flushed = recorder->flush();
    const bool refused = !flushed && flushed.code() == errc::driver_gone &&
                         flushed.error().detail() == "the process was forked";
    const bool stopped = recorder->close().has_value();
    recorder.reset();
    _exit(refused && stopped ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(stop_and_read(*recorder).events.size(), 1u);
}

TEST_F(recorder_test, says_so_when_the_disk_is_full) {
  write_bytes(path(), "precious");
  auto recorder = weir::recorder::start(path(), {.ring_events = 16, .level = 0}).value();
  std::optional<file_size_limit> small{2000};
  reports reported;
  for (std::uint64_t i = 1; i <= 5000; ++i)  // no thread waits for a writer that has failed
    recorder->on_event(block(memory_event_kind::allocate, 512 * i));
  const auto done = recorder->close();
  small.reset();
  EXPECT_EQ(done.code(), errc::system);
  EXPECT_EQ(done.error().detail(), part() + ": could not be written: File too large");
  EXPECT_EQ(recorder->flush().error().detail(), done.error().detail());
  const auto errors = reported.take();
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].detail(), done.error().detail());
  EXPECT_EQ(read_bytes(path()), "precious");
  // What was written before can be read.
  EXPECT_LE(std::filesystem::file_size(part()), 2000u);
  EXPECT_EQ(recorder->stats().file_size.count(), std::filesystem::file_size(part()));
  const auto read = read_trace(part()).value();
  EXPECT_THAT(read.damage->reason, HasSubstr("no end"));
  EXPECT_THAT(read.streams, ElementsAre(5));
  const auto events = events_of(read);
  ASSERT_GT(events.size(), 0u);
  EXPECT_EQ(events.size(), recorder->stats().written);
  for (std::uint64_t i = 0; i < events.size(); ++i)
    ASSERT_EQ(events[i], recorded_block(trace_kind::allocate, 512 * (i + 1))) << i;
}

// The error handler is the first that may call it then, and on its own thread.
TEST_F(recorder_test, takes_nothing_more_once_it_has_failed) {
  auto recorder =
      weir::recorder::start(
          path(), {.ring_events = 16, .drop_when_full = true, .level = 0, .flush_every = seldom})
          .value();
  struct calling_handler {
    weir::recorder* recorder;
    int calls = 0;
  } handler{recorder.get()};
  set_error_handler(
      [](const error&, void* context) noexcept {
        auto& self = *static_cast<calling_handler*>(context);
        ++self.calls;
        for (std::uint64_t i = 1; i <= 100; ++i)
          self.recorder->on_event(block(memory_event_kind::allocate, 512 * i));
        self.recorder->marker("too late");
      },
      &handler);
  recorder->on_event(block(memory_event_kind::allocate, 512));
  {
    const file_size_limit full{16};  // as much as it has written
    EXPECT_EQ(recorder->flush().code(), errc::system);
  }
  set_error_handler(nullptr);
  EXPECT_EQ(recorder->close().code(), errc::system);
  EXPECT_EQ(handler.calls, 1);
  EXPECT_EQ(recorder->stats().dropped, 0u) << "which only what is recorded can be";
  EXPECT_EQ(recorder->stats().written, 0u);
}

TEST_F(recorder_test, refuses_what_cannot_work) {
  const auto refused = [&](const recorder_options& options, const char* why) {
    const auto started = recorder::start(path(), options);
    EXPECT_EQ(started.code(), errc::invalid_argument) << why;
    EXPECT_EQ(started.error().detail(), why);
    EXPECT_EQ(folder_.files(), 0u);
  };
  refused({.ring_events = 15}, "ring_events must be from 16 to 2^24");
  refused({.ring_events = (1 << 24) + 1}, "ring_events must be from 16 to 2^24");
  refused({.level = -1}, "level must be from 0 to 19");
  refused({.level = 20}, "level must be from 0 to 19");
  refused({.flush_every = 0ms}, "flush_every must be at least 1 ms");
  EXPECT_EQ(recorder::start("").code(), errc::invalid_argument);
  EXPECT_EQ(recorder::start(folder_.path("no/such")).code(), errc::system);
  EXPECT_EQ(folder_.files(), 0u);
  // The last that work.
  EXPECT_TRUE(recorder::start(path(), {.ring_events = 16, .level = 0, .flush_every = 1ms}));
  EXPECT_TRUE(recorder::start(path(), {.ring_events = 1 << 24, .level = 19}));
}

TEST_F(recorder_test, has_the_programs_name_where_no_other_is_given) {
  auto recorder = weir::recorder::start(path()).value();
  const auto read = stop_and_read(*recorder);
  EXPECT_EQ(read.program, program_invocation_short_name);
  EXPECT_EQ(read.device, "");
  EXPECT_EQ(read.device_capacity, bytes{});
}

TEST_F(recorder_test, needs_a_thread_and_says_so) {
  const no_threads nothing;
  if (!nothing) GTEST_SKIP() << "threads cannot be refused here";
  EXPECT_EQ(recorder::start(path()).code(), errc::system);
  EXPECT_EQ(folder_.files(), 0u) << "nothing is left behind";
}

struct late_work {
  std::function<void()> run;
  bool is_last_round = false;
};
pthread_key_t late_work_key{};

/// Runs at the end of the thread, after the recorder's own part of it: in another round of what
/// keys have to do.
void at_the_very_end(std::function<void()> run) {
  static const int created = pthread_key_create(&late_work_key, [](void* value) {
    auto* const work = static_cast<late_work*>(value);
    if (std::exchange(work->is_last_round, true)) {
      work->run();
      delete work;
    } else {
      pthread_setspecific(late_work_key, work);
    }
  });
  ASSERT_EQ(created, 0);
  ASSERT_EQ(pthread_setspecific(late_work_key, new late_work{std::move(run)}), 0);
}

TEST_F(recorder_test, hears_what_threads_do_at_their_very_end) {
  auto recorder = weir::recorder::start(path()).value();
  std::uint64_t thread_id = 0;
  std::thread{[&] {
    thread_id = static_cast<std::uint64_t>(gettid());
    at_the_very_end([&] { recorder->on_event(block(memory_event_kind::deallocate, 512)); });
    recorder->on_event(block(memory_event_kind::allocate, 512));
  }}.join();
  const auto read = stop_and_read(*recorder);
  EXPECT_THAT(events_of(read), ElementsAre(recorded_block(trace_kind::allocate, 512),
                                           recorded_block(trace_kind::deallocate, 512, 1)));
  EXPECT_THAT(read.threads, ElementsAre(thread_id, thread_id));
}

/// A ring that came up during the writer's turn is full, and who waits for room there keeps others
/// out of it: the writer has to get to its next turn all the same.
TEST_F(recorder_test, goes_on_while_a_thread_at_its_very_end_waits_for_room) {
  trace::event_collector collector{
      trace::trace_writer{trace::file_writer::create(path(), nullptr, 0).value(), trace::ticks()},
      {.ring_events = 16, .flush_every = 1ms}};
  trace::event_collector::prepare();
  const auto add = [&](std::uint64_t number) {
    collector.add(block(memory_event_kind::allocate, 512 * number), nullptr);
  };
  for (std::uint64_t i = 1; i <= 16; ++i) add(i);
  trace::ring& drained_first = *trace::last_ring.ring;
  ASSERT_TRUE(drained_first.is_full());
  trace::ring* waited_for = nullptr;
  std::thread{[&] {
    add(17);
    waited_for = trace::last_ring.ring;
  }}.join();
  waited_for->begin();
  ASSERT_TRUE(collector.begin());
  while (drained_first.is_full()) std::this_thread::yield();
  // The writer is in the midst of a turn.
  std::atomic<std::uint64_t> late_events{0};
  std::thread ending{[&] {
    at_the_very_end([&] {
      for (; late_events < 17; ++late_events) add(19 + late_events);
    });
    add(18);
  }};
  while (late_events < 16) std::this_thread::yield();
  std::this_thread::sleep_for(a_moment);
  EXPECT_EQ(late_events, 16u) << "there is no room for more";
  waited_for->cancel();
  ASSERT_TRUE(is_prompt([&] {
    for (int i = 0; i < 5000 && late_events < 17; ++i) std::this_thread::sleep_for(1ms);
  }));
  ending.join();
  ASSERT_TRUE(collector.stop());
  const auto read = read_trace(path()).value();
  std::set<std::uint64_t> addresses;
  for (const trace_event& each : read.events) addresses.insert(each.address);
  EXPECT_EQ(read.events.size(), 35u);
  EXPECT_EQ(addresses.size(), 35u);
  EXPECT_EQ(read.dropped, 0u);
}

TEST(recorder, of_several_that_end_at_once_each_keeps_its_file) {
  for (int round = 0; round < 300; ++round) {
    const scratch_folder folder;
    if (round % 2 == 1) write_bytes(folder.path("run.weirtrace"), "old");
    std::array<std::unique_ptr<weir::recorder>, 4> recorders;
    for (auto& each : recorders) each = recorder::start(folder.path("run.weirtrace")).value();
    std::barrier together{4};
    std::vector<std::jthread> threads;
    for (auto& each : recorders)
      threads.emplace_back([&] {
        together.arrive_and_wait();
        EXPECT_TRUE(each->close());
      });
    threads.clear();
    ASSERT_EQ(folder.files(), 4u);
    ASSERT_NE(read_bytes(folder.path("run.weirtrace")), "old");
  }
}

}  // namespace
}  // namespace weir::testing_support
