// SPDX-License-Identifier: Apache-2.0
// What an observer is told: every event whole, from every path that emits it.
#include <thread>

#include "heap/graph_fixture.hpp"

namespace weir::testing_support { namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const tag weights = tag::named("events test: weights").value();

/// On the second device, so that no event may leave out which it is.
class events_test : public graph_test {
 protected:
  [[nodiscard]] caching_allocator make_there(const allocator_options& settings = {}) const {
    return caching_allocator::create(gpu(1), settings).value();
  }
  [[nodiscard]] stream stream_there() const { return stream::create(gpu(1)).value(); }

  /// What was told since the last call, in words.
  [[nodiscard]] std::vector<std::string> told() {
    std::vector<std::string> all;
    for (const memory_event& each : ear.take()) all.push_back(to_string(each));
    return all;
  }
  /// " size 1000 rounded 1024 stream 7 tag 3 device 1", of what is on the stream.
  [[nodiscard]] static std::string about(std::uint64_t size, std::uint64_t rounded,
                                         const stream_ref& on, const std::string& rest = {}) {
    return " size " + std::to_string(size) + " rounded " + std::to_string(rounded) + of_stream(on) +
           rest + " device 1";
  }
  [[nodiscard]] static std::string of_stream(const stream_ref& on) {
    return " stream " + std::to_string(on.id().value().number());
  }
  [[nodiscard]] static std::string at(const void* address) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), " %p", address);
    return text.data();
  }
  [[nodiscard]] static std::string tagged(tag with) {
    return " tag " + std::to_string(with.number());
  }

  listener ear;
};

TEST_F(events_test, a_block_is_told_alike_on_every_path) {
  auto memory = make_there();
  const auto one = stream_there();
  const auto two = stream_there();
  auto observation = memory.add_observer(ear).value();
  const tag_scope as{weights};
  const std::string of_one = about(1000, 1024, one, tagged(weights));
  void* const p = memory.allocate(1000_B, one);  // from the driver
  EXPECT_THAT(told(), ElementsAre("reserve" + at(p) + " size 2097152 device 1",
                                  "allocate" + at(p) + of_one));
  memory.deallocate(p, one);  // into the cache, by the observed fast path
  EXPECT_THAT(told(), ElementsAre("deallocate" + at(p) + of_one));
  EXPECT_EQ(memory.allocate(1000_B, one), p);  // and out of it
  EXPECT_THAT(told(), ElementsAre("allocate" + at(p) + of_one));
  void* const q = memory.allocate(3000_B, two);  // another stream, from what is free
  EXPECT_THAT(told(), ElementsAre("allocate" + at(q) + about(3000, 3072, two, tagged(weights))));
  memory.deallocate(q, two);
  memory.deallocate(p);  // the stream it was allocated for, which is not the last one
  EXPECT_THAT(told(), ElementsAre("deallocate" + at(q) + about(3000, 3072, two, tagged(weights)),
                                  "deallocate" + at(p) + of_one));
  EXPECT_EQ(memory.allocate(3000_B, two), q);  // the cache's other stream
  EXPECT_THAT(told(), ElementsAre("allocate" + at(q) + about(3000, 3072, two, tagged(weights))));
  memory.deallocate(q, 3000_B, one);  // with its size, behind the other stream's work
  EXPECT_THAT(told(), ElementsAre("deallocate" + at(q) + about(3000, 3072, one, tagged(weights))));
}

TEST_F(events_test, large_blocks_and_those_of_other_threads_are_told_alike) {
  auto memory = make_there();
  const auto stream = stream_there();
  void* const large = memory.allocate(5'000'000_B, stream);
  void* const small = memory.allocate(700_B, stream);
  auto observation = memory.add_observer(ear).value();
  const std::string of_large = about(5'000'000, 5'000'192, stream);
  memory.deallocate(large, stream);
  EXPECT_EQ(memory.allocate(5'000'000_B, stream), large);
  EXPECT_THAT(told(),
              ElementsAre("deallocate" + at(large) + of_large, "allocate" + at(large) + of_large));
  void* theirs = nullptr;
  std::thread{[&] {
    theirs = memory.allocate(700_B, stream);
    memory.deallocate(small, stream);  // comes home to the first thread's cache
    memory.deallocate(large, stream);
  }}.join();
  EXPECT_THAT(told(), ElementsAre("allocate" + at(theirs) + about(700, 1024, stream),
                                  "deallocate" + at(small) + about(700, 1024, stream),
                                  "deallocate" + at(large) + of_large));
  memory.deallocate(theirs, stream);  // whose cache is gone
  EXPECT_THAT(told(), ElementsAre("deallocate" + at(theirs) + about(700, 1024, stream)));
}

TEST_F(events_test, a_cache_that_is_full_tells_what_it_is_given) {
  auto memory = make_there({.thread_cache = 2_KiB});
  const auto stream = stream_there();
  std::vector<void*> all;
  for (int i = 0; i < 4; ++i) all.push_back(memory.allocate(1000_B, stream));
  auto observation = memory.add_observer(ear).value();
  for (void* const p : all) {
    memory.deallocate(p, stream);
    EXPECT_THAT(told(), ElementsAre("deallocate" + at(p) + about(1000, 1024, stream)));
  }
  void* const whole = memory.allocate(100_KiB, stream);  // more than the cache may hold
  EXPECT_THAT(told(), ElementsAre("allocate" + at(whole) + about(102'400, 102'400, stream)));
  memory.deallocate(whole, stream);
  EXPECT_THAT(told(), ElementsAre("deallocate" + at(whole) + about(102'400, 102'400, stream)));
}

TEST_F(events_test, pools_limits_and_recorded_streams_are_told) {
  auto memory = make_there({.limit = 64_MiB});
  const auto one = stream_there();
  const auto two = stream_there();
  const auto three = stream_there();
  auto observation = memory.add_observer(ear).value();
  static_cast<void>(told());  // the limit
  auto pool = memory.create_pool("told").value();
  EXPECT_THAT(told(), ElementsAre("pool_created pool 1 device 1"));
  void* p = nullptr;
  {
    const tag_scope as{weights};
    p = pool.allocate(2_MiB, one);
  }
  const std::string inside = " pool 1" + tagged(weights);
  EXPECT_THAT(told(), ElementsAre("reserve" + at(p) + " size 2097152 pool 1 device 1",
                                  "allocate" + at(p) + about(2'097'152, 2'097'152, one, inside)));
  ASSERT_TRUE(memory.record_stream(p, two));
  EXPECT_THAT(told(), ElementsAre("record_stream" + at(p) + of_stream(two) + inside + " device 1"));
  {
    const auto held = hold(two);
    const context_scope bound{gpu(1)};
    ASSERT_TRUE(machine->launch(two.handle(), "kernel write",
                                {sim::writes(reinterpret_cast<driver::CUdeviceptr>(p), 512)}));
    memory.deallocate(p, three);
    EXPECT_THAT(told(),
                ElementsAre("deallocate" + at(p) + about(2'097'152, 2'097'152, three, inside)));
    // Behind a wait for whoever freed it, and all that came before.
    EXPECT_EQ(pool.allocate(2_MiB, one), p);
    EXPECT_THAT(told(),
                ElementsAre("wait" + of_stream(one) + " for" + of_stream(three) + " device 1",
                            "allocate" + at(p) + about(2'097'152, 2'097'152, one, " pool 1")));
  }
  ASSERT_TRUE(memory.set_limit(48_MiB));
  ASSERT_TRUE(memory.set_limit(weights, 1_MiB));
  EXPECT_THAT(told(), ElementsAre("limit size 50331648 device 1",
                                  "limit size 1048576" + tagged(weights) + " device 1"));
  {
    const tag_scope as{weights};
    EXPECT_EQ(code_of(memory.try_allocate(2_MiB, one)), errc::out_of_memory);
    EXPECT_THAT(told(),
                ElementsAre("out_of_memory" + about(2'097'152, 2'097'152, one, tagged(weights))));
    ASSERT_TRUE(memory.set_limit(weights, bytes::max()));
    static_cast<void>(told());
    EXPECT_EQ(code_of(pool.try_allocate(60'000'001_B, one)), errc::out_of_memory);
  }
  EXPECT_THAT(told(), ElementsAre("out_of_memory" + about(60'000'001, 60'000'256, one, inside)));
  memory.deallocate(p, one);
  machine->run_until_idle();
  static_cast<void>(told());
  pool = {};
  EXPECT_THAT(told(), ElementsAre("pool_released pool 1 device 1",
                                  "release" + at(p) + " size 2097152 pool 1 device 1"));
}

TEST_F(events_test, an_observer_is_first_told_the_limits_in_force) {
  auto memory = make_there({.limit = 48_MiB});
  ASSERT_TRUE(memory.set_limit(weights, 1_MiB));
  auto observation = memory.add_observer(ear).value();
  const std::string of_tag = "limit size 1048576" + tagged(weights) + " device 1";
  EXPECT_THAT(told(), ElementsAre("limit size 50331648 device 1", of_tag));
  listener later;
  ASSERT_TRUE(memory.set_limit(bytes::max()));
  static_cast<void>(told());
  auto second = memory.add_observer(later).value();
  EXPECT_THAT(told(), IsEmpty()) << "it knows them";
  const auto heard = later.take();
  ASSERT_EQ(heard.size(), 1u);
  EXPECT_EQ(to_string(heard.front()), of_tag);
}

TEST_F(events_test, captures_are_told) {
  auto memory = make();
  const auto stream = new_stream();
  auto observation = memory.add_observer(ear).value();
  auto own = memory.begin_capture(stream).value();
  const std::string which = of_stream(stream) + " pool 1";
  EXPECT_THAT(told(), ElementsAre("pool_created pool 1", "capture_begin" + which));
  own.end_capture();
  own.end_capture();
  EXPECT_THAT(told(), ElementsAre("capture_end" + which));
  own = {};
  EXPECT_THAT(told(), ElementsAre("pool_released pool 1"));
  own = memory.begin_capture(stream).value();
  own = {};  // ends it as well
  EXPECT_THAT(told(),
              ElementsAre("pool_created pool 2", "capture_begin" + of_stream(stream) + " pool 2",
                          "capture_end" + of_stream(stream) + " pool 2", "pool_released pool 2"));
}

TEST_F(events_test, moves_say_from_where_to_where) {
  allocator_options settings{.policy = placement_policy::compact, .limit = 16_MiB};
  settings.thread_cache = {};
  auto memory = make_there(settings);
  const auto stream = stream_there();
  std::vector<void*> all;
  for (int i = 0; i < 8; ++i) all.push_back(memory.allocate(2_MiB, stream));
  memory.deallocate(all[1], stream);
  memory.deallocate(all[3], stream);
  auto observation = memory.add_observer(ear).value();
  static_cast<void>(told());  // the limit
  void* const moved = memory.allocate(4_MiB, stream);
  void* const second_half = static_cast<std::byte*>(moved) + (2 << 20);
  EXPECT_THAT(
      told(),
      ElementsAre("move" + at(moved) + " from" + at(all[1]) + " size 2097152 device 1",
                  "move" + at(second_half) + " from" + at(all[3]) + " size 2097152 device 1",
                  "allocate" + at(moved) + about(4'194'304, 4'194'304, stream)));
  memory.deallocate(moved, stream);
  all[1] = all[3] = nullptr;
  for (void* const p : all) memory.deallocate(p, stream);
  static_cast<void>(told());
  EXPECT_EQ(memory.stats().handles_moved, 2u);
  machine->run_until_idle();
  ASSERT_EQ(memory.empty_cache().value(), 16_MiB);
  bytes released;
  for (const memory_event& each : ear.take()) {
    EXPECT_EQ(each.kind, memory_event_kind::release);
    released += bytes{each.size};
  }
  EXPECT_EQ(released, 16_MiB);
}

/// Plays an allocator's events: which memory is reserved.
class reserved_memory final : public event_sink {
 public:
  void on_event(const memory_event& event) noexcept override {
    const std::lock_guard lock{mutex_};
    if (event.kind == memory_event_kind::reserve) {
      total_ += event.size;
    } else if (event.kind == memory_event_kind::release) {
      total_ -= event.size;
    }
  }
  [[nodiscard]] bytes total() const {
    const std::lock_guard lock{mutex_};
    return bytes{total_};
  }

 private:
  mutable std::mutex mutex_;
  std::uint64_t total_ = 0;
};

struct ending_settings {
  placement_policy policy = placement_policy::balanced;
  debug_checks debug = debug_checks::off;
};

TEST_F(events_test, the_end_of_an_allocator_tells_of_all_memory_that_it_releases) {
  const auto stream = new_stream();
  const tag away = tag::named("events test: away").value();
  for (const auto& [policy, debug] :
       {ending_settings{placement_policy::balanced}, ending_settings{placement_policy::throughput},
        ending_settings{placement_policy::compact}, ending_settings{placement_policy::classic},
        ending_settings{placement_policy::classic_expandable},
        ending_settings{placement_policy::balanced, debug_checks::guard_pages}}) {
    for (const bool closes : {true, false}) {
      SCOPED_TRACE(to_string(policy) + " " + to_string(debug));
      reserved_memory seen;
      observer_registration registration;
      {
        auto memory = make({.policy = policy, .debug = debug});
        registration = memory.add_observer(seen).value();
        const auto pool = memory.create_pool("apart").value();
        for (const bytes size : {1000_B, 3_MiB, 40_MiB})
          memory.deallocate(memory.allocate(size, stream), stream);
        memory.deallocate(pool.allocate(5_MiB, stream), stream);
        static_cast<void>(memory.allocate(6_MiB, stream));  // stays live
        if (debug == debug_checks::off && policy == placement_policy::balanced) {
          ASSERT_TRUE(memory.declare_suspendable(away));
          const tag_scope as{away};
          static_cast<void>(memory.allocate(8_MiB, stream));
          ASSERT_TRUE(memory.suspend(away));
        }
        EXPECT_EQ(seen.total(), memory.stats().reserved.current);
        EXPECT_GT(seen.total(), 0_B);
        if (closes) {
          ASSERT_TRUE(memory.close());
          EXPECT_EQ(seen.total(), 0_B);
        }
      }
      EXPECT_EQ(seen.total(), 0_B);
      EXPECT_EQ(heard.take().size(), 1u) << "what is still live";
    }
  }
}

TEST_F(events_test, an_observer_whose_registration_ended_is_not_told_of_the_end) {
  const auto stream = new_stream();
  auto memory = make();
  listener first;
  listener second;
  auto one = memory.add_observer(first).value();
  const auto other = memory.add_observer(second).value();
  memory.deallocate(memory.allocate(3_MiB, stream), stream);
  one.close();
  static_cast<void>(first.take());
  ASSERT_TRUE(memory.close());
  EXPECT_THAT(first.take(), IsEmpty());
  EXPECT_EQ(second.count(memory_event_kind::release), 2u);
}

/// Each registration stands for itself.
TEST_F(events_test, a_sink_that_is_registered_twice_is_told_twice) {
  const auto stream = new_stream();
  auto memory = make();
  auto one = memory.add_observer(ear).value();
  auto other = memory.add_observer(ear).value();
  memory.deallocate(memory.allocate(1000_B, stream), stream);
  EXPECT_EQ(ear.count(memory_event_kind::allocate), 2u);
  EXPECT_EQ(ear.count(memory_event_kind::deallocate), 2u);
  static_cast<void>(ear.take());
  one.close();
  memory.deallocate(memory.allocate(1000_B, stream), stream);
  EXPECT_EQ(ear.count(memory_event_kind::allocate), 1u);
  static_cast<void>(ear.take());
  other.close();
  memory.deallocate(memory.allocate(1000_B, stream), stream);
  EXPECT_THAT(ear.take(), IsEmpty());
}

/// The sink is gone when the registration has ended, whatever the thread is about that lets go of
/// the last handle, or closes.
TEST_F(events_test, a_registration_may_end_while_the_allocator_does) {
  const auto stream = new_stream();
  for (int round = 0; round < 40; ++round) {
    auto memory = std::make_optional(make());
    auto seen = std::make_unique<reserved_memory>();
    auto registration = memory->add_observer(*seen).value();
    for (int i = 0; i < 4; ++i) memory->deallocate(memory->allocate(bytes{(3u + i) << 20}, stream));
    std::thread ending{[&] {
      if (round % 2 == 0) {
        EXPECT_TRUE(memory->close());
      }
      memory.reset();
    }};
    registration.close();
    seen.reset();
    ending.join();
  }
}

}  // namespace
}  // namespace weir::testing_support
