// The recorder: everything that happened is in the file, in an order that can have been.
#include "weir/trace/recorder.hpp"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "support/no_threads.hpp"
#include "support/scratch.hpp"
#include "support/small_machine.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"
#include "weir/trace/trace_file.hpp"

namespace weir::testing_support {
namespace {

using ::testing::HasSubstr;
using namespace weir::literals;

class recorder_test : public ::testing::Test {
 protected:
  std::string path() const { return folder_.path("run.weirtrace"); }
  recording stop_and_read(weir::recorder& recorder) {
    EXPECT_TRUE(recorder.stop());
    auto read = read_trace(path()).value();
    EXPECT_FALSE(read.damage) << read.damage->reason;
    return read;
  }
  static std::size_t count(const recording& in, trace_kind kind) {
    return static_cast<std::size_t>(std::count_if(in.events.begin(), in.events.end(),
                                                  [&](const auto& e) { return e.kind == kind; }));
  }

  scratch_folder folder_;
  std::shared_ptr<runtime> machine_ = open_small_machine();
  device gpu_ = machine_->device(device_id{0}).value();
};

memory_event block(memory_event_kind kind, std::uint64_t address, std::uint64_t size = 64) {
  return {.kind = kind, .stream = stream_id{5}, .address = address, .size = size, .rounded = 512};
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
  auto observation = memory.add_observer(*recorder);
  memory.deallocate(before, stream);  // left out: it was there before
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
  EXPECT_FALSE(memory.try_allocate(100_GiB, stream));
  observation.end();
  memory.deallocate(q, other);  // not observed

  const auto read = stop_and_read(*recorder);
  EXPECT_EQ(read.program, "test");
  EXPECT_EQ(read.device, "sim");
  EXPECT_EQ(read.device_capacity, gpu_.total_memory());
  EXPECT_TRUE(read.real_addresses);
  EXPECT_EQ(read.threads, std::vector<std::uint64_t>{static_cast<std::uint64_t>(gettid())});
  EXPECT_THAT(read.tags, ::testing::ElementsAre("", "weights"));
  EXPECT_THAT(read.texts, ::testing::ElementsAre("begin"));
  EXPECT_EQ(read.pools.size(), 2u);
  const auto find = [&](trace_kind kind) {
    const auto event = std::find_if(read.events.begin(), read.events.end(),
                                    [&](const auto& e) { return e.kind == kind; });
    return event == read.events.end() ? trace_event{} : *event;
  };
  const auto allocation = find(trace_kind::allocate);
  EXPECT_EQ(allocation.address, reinterpret_cast<std::uint64_t>(p));
  EXPECT_EQ(allocation.size, 100'000u);
  EXPECT_EQ(allocation.extra, 100'352u);
  EXPECT_EQ(allocation.tag, 1);
  EXPECT_EQ(read.streams[allocation.stream], stream.id().number());
  EXPECT_EQ(find(trace_kind::deallocate).address, allocation.address);
  EXPECT_EQ(read.streams[find(trace_kind::record_stream).stream], other.id().number());
  EXPECT_EQ(count(read, trace_kind::limit), 2u);
  EXPECT_EQ(find(trace_kind::out_of_memory).size, (100_GiB).count());
  EXPECT_EQ(count(read, trace_kind::pool_created), 1u);
  EXPECT_EQ(count(read, trace_kind::allocate), 2u);
  EXPECT_EQ(count(read, trace_kind::deallocate), 1u);
  EXPECT_EQ(recorder->stats().written, read.events.size());
  EXPECT_EQ(recorder->stats().dropped, 0u);
  EXPECT_EQ(folder_.files(), 1u);
}

/// Threads allocate, hand over and free through a small ring that is always full.
TEST_F(recorder_test, loses_nothing_when_threads_pass_blocks_around) {
  auto memory = caching_allocator::create(gpu_).value();
  auto recorder = weir::recorder::start(path(), {.ring_events = 64}).value();
  auto observation = memory.add_observer(*recorder);
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
  observation.end();
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

TEST_F(recorder_test, can_be_read_before_it_is_stopped) {
  auto recorder = weir::recorder::start(path(), {.flush_every = std::chrono::hours{1}}).value();
  recorder->on_event(block(memory_event_kind::allocate, 512));
  ASSERT_TRUE(recorder->flush());
  const std::string part = path() + "." + std::to_string(getpid()) + ".part";
  const auto now = read_trace(part).value();
  EXPECT_EQ(now.events.size(), 1u);
  ASSERT_TRUE(now.damage);
  EXPECT_THAT(now.damage->reason, HasSubstr("no end"));
  EXPECT_FALSE(std::filesystem::exists(path()));
  EXPECT_EQ(stop_and_read(*recorder).events.size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(part));
  recorder->on_event(block(memory_event_kind::allocate, 1024));  // ignored
  EXPECT_TRUE(recorder->stop());
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
  const auto read = read_trace(path() + "." + std::to_string(child) + ".part").value();
  EXPECT_EQ(read.events.size(), 1000u);
  EXPECT_TRUE(read.damage);
}

TEST_F(recorder_test, is_silent_in_a_forked_child) {
  auto recorder = weir::recorder::start(path(), {.ring_events = 16}).value();
  recorder->on_event(block(memory_event_kind::allocate, 512));
  const pid_t child = fork();
  if (child == 0) {
    for (std::uint64_t i = 0; i < 100; ++i)  // more than a ring holds: it must not wait
      recorder->on_event(block(memory_event_kind::allocate, 1024 * (i + 1)));
    recorder->marker("child");
    const bool refused = !recorder->flush();
    recorder.reset();
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(stop_and_read(*recorder).events.size(), 1u);
}

TEST_F(recorder_test, says_so_when_the_disk_is_full) {
  write_bytes(path(), "precious");
  struct rlimit before {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  auto recorder = weir::recorder::start(path(), {.ring_events = 16, .level = 0}).value();
  const struct rlimit small { 2000, before.rlim_max };
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto reported = reported_errors();
  for (std::uint64_t i = 1; i <= 5000; ++i)  // no thread waits for a writer that has failed
    recorder->on_event(block(memory_event_kind::allocate, 512 * i));
  const auto done = recorder->stop();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(done.code(), errc::system);
  EXPECT_GT(reported_errors(), reported);
  EXPECT_EQ(read_bytes(path()), "precious");
}

TEST_F(recorder_test, refuses_what_cannot_work) {
  EXPECT_EQ(recorder::start("").code(), errc::invalid_argument);
  EXPECT_EQ(recorder::start(path(), {.ring_events = 1}).code(), errc::invalid_argument);
  EXPECT_EQ(recorder::start(path(), {.level = 20}).code(), errc::invalid_argument);
  EXPECT_EQ(recorder::start(folder_.path("no/such")).code(), errc::system);
  EXPECT_EQ(folder_.files(), 0u);
}

TEST_F(recorder_test, needs_a_thread_and_says_so) {
  const no_threads nothing;
  if (!nothing) GTEST_SKIP() << "threads cannot be refused here";
  EXPECT_EQ(recorder::start(path()).code(), errc::system);
  EXPECT_EQ(folder_.files(), 0u) << "nothing is left behind";
}

TEST_F(recorder_test, tells_stacks_where_asked) {
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
  GTEST_SKIP() << "with its fake frames stacks cannot be walked; ThreadSanitizer's build does";
#endif
#endif
  auto recorder = weir::recorder::start(path(), {.stacks = true}).value();
  for (std::uint64_t i = 1; i <= 3; ++i)
    recorder->on_event(block(memory_event_kind::allocate, 512 * i));
  const auto read = stop_and_read(*recorder);
  ASSERT_EQ(read.stacks.size(), 1u);  // the same place each time
  EXPECT_GE(read.stacks[0].size(), 2u);
  EXPECT_EQ(read.events[0].other, 1u);
}

/// Destroyed at the end of its thread, after the recorder's own part of it.
struct late_free {
  weir::recorder* recorder = nullptr;
  ~late_free() {
    if (recorder != nullptr) recorder->on_event(block(memory_event_kind::deallocate, 512));
  }
};

TEST_F(recorder_test, hears_what_threads_do_at_their_very_end) {
  auto recorder = weir::recorder::start(path()).value();
  std::thread{[&] {
    thread_local late_free last;
    last.recorder =
        recorder.get();  // made before the thread's first event, so it goes after its ring
    recorder->on_event(block(memory_event_kind::allocate, 512));
  }}.join();
  const auto read = stop_and_read(*recorder);
  EXPECT_EQ(count(read, trace_kind::deallocate), 1u);
}

}  // namespace
}  // namespace weir::testing_support
