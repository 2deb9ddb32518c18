// SPDX-License-Identifier: Apache-2.0
// What a host arena pins and gives back, limits, failures, and a sweep over every driver call.
#include <chrono>
#include <thread>
#include <vector>

#include "host/arena_fixture.hpp"
#include "support/sanitizers.hpp"

namespace weir::testing_support { namespace {

class arena_pins_test : public arena_test {
 protected:
  /// Waits up to two seconds for what helper threads do.
  template <class Condition>
  static bool comes_true(const Condition& condition) {
    for (int i = 0; i < 2000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
    return false;
  }
};

class idle_pool final : public host::idle_holder {
 public:
  explicit idle_pool(host::arena& arena) : arena_{arena} { arena_.holders().add(*this); }
  ~idle_pool() { arena_.holders().remove(*this); }
  std::uint64_t give_back(std::uint64_t wanted) noexcept override {
    ++asked;
    wanted_last = wanted;
    if (held == nullptr) return 0;
    arena_.give(std::exchange(held, nullptr));
    return 1 << 20;
  }
  void* held = nullptr;
  int asked = 0;
  std::uint64_t wanted_last = 0;

 private:
  host::arena& arena_;
};

TEST_F(arena_pins_test, parts_of_weir_get_exactly_what_they_ask_for) {
  const auto arena = make();
  void* const p = arena->take(1_MiB, 256_B).value();
  EXPECT_EQ(machine->pinned(), 1_MiB);
  void* const q = arena->take(12_KiB, 64_B).value();
  EXPECT_EQ(machine->pinned(), 1_MiB + 12_KiB);
  arena->give(p);
  EXPECT_EQ(arena->take(1_MiB, 64_B).value(), p) << "at once: nothing uses it";
  arena->give(p);
  arena->give(q);
  EXPECT_EQ(arena->check(), "");
  EXPECT_EQ(arena->stats().events, 0u);
  int local = 0;
  arena->give(&local);
  const auto told = heard.take();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].code(), errc::foreign_pointer);
}

TEST_F(arena_pins_test, what_is_released_goes_back_to_the_system_or_stays_its_owners) {
  const auto arena = make();
  void* const p = arena->take(1_MiB, 64_B).value();
  machine->fail(call::mem_host_unregister, 1, driver::CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(arena->release(p));
  EXPECT_EQ(arena->stats().blocks.current, 1u) << "it is the caller's still";
  EXPECT_EQ(arena->check(), "");
  std::memset(p, 1, 1 << 20);
  ASSERT_TRUE(arena->release(p));
  EXPECT_EQ(machine->pinned(), 0_B);
  EXPECT_EQ(arena->check(), "");
  ASSERT_TRUE(arena->reserve(1_MiB, host_wait::yes));
  void* const q = arena->take(64_KiB, 64_B).value();
  void* const r = arena->take(64_KiB, 64_B).value();
  ASSERT_TRUE(arena->release(q));
  ASSERT_TRUE(arena->release(r));
  EXPECT_EQ(machine->pinned(), 1_MiB) << "what was reserved stays";
  EXPECT_EQ(code_of(arena->release(r)), errc::double_free);
}

TEST_F(arena_pins_test, what_a_part_of_weir_keeps_is_not_unpinned_at_the_end) {
  void* kept = nullptr;
  {
    const auto arena = make();
    kept = arena->take(1_MiB, 64_B).value();
    arena->give(arena->take(2_MiB, 64_B).value());
  }
  EXPECT_EQ(machine->pinned(), 1_MiB) << "work may use it for all that the arena knows";
  std::memset(kept, 1, 1 << 20);
}

TEST_F(arena_pins_test, who_holds_idle_memory_is_asked_before_more_is_pinned) {
  const auto arena = make();
  idle_pool pool{*arena};
  pool.held = arena->take(1_MiB, 64_B).value();
  EXPECT_EQ(pool.asked, 1) << "there was no memory yet";
  void* const expected = pool.held;
  void* const p = arena->take(512_KiB, 64_B).value();
  EXPECT_EQ(p, expected);
  EXPECT_EQ(pool.asked, 2);
  EXPECT_EQ(pool.wanted_last, 512u << 10);
  EXPECT_EQ(machine->pinned(), 1_MiB);
  void* const q = arena->take(512_KiB, 64_B).value();
  EXPECT_EQ(pool.asked, 2) << "there was room";
  arena->give(p);
  arena->give(q);
}

TEST_F(arena_pins_test, reserve_pins_what_is_missing) {
  const auto arena = make();
  ASSERT_TRUE(arena->reserve(8_MiB, host_wait::yes));
  EXPECT_EQ(machine->pinned(), 8_MiB);
  ASSERT_TRUE(arena->reserve(8_MiB, host_wait::yes));
  EXPECT_EQ(machine->pinned(), 8_MiB) << "it is free already";
  void* const p = arena->take(6_MiB, 64_B).value();
  ASSERT_TRUE(arena->reserve(8_MiB, host_wait::yes));
  EXPECT_EQ(machine->pinned(), 14_MiB);
  EXPECT_EQ(arena->stats().pins_ahead, 2u);
  arena->give(p);
}

TEST_F(arena_pins_test, reserve_without_waiting_is_done_by_helpers) {
  auto options = quiet();
  options.threads = 2;
  const auto arena = make(options);
  ASSERT_TRUE(arena->reserve(8_MiB, host_wait::no));
  EXPECT_TRUE(comes_true([&] { return arena->stats().free == 8_MiB; }));
  EXPECT_EQ(machine->pinned(), 8_MiB);
  ASSERT_TRUE(arena->reserve(8_MiB, host_wait::no));
  EXPECT_EQ(arena->stats().pins, 1u);
  machine->set_pinnable(8_MiB);
  ASSERT_TRUE(arena->reserve(16_MiB, host_wait::no));
  std::vector<error> told;
  EXPECT_TRUE(comes_true([&] {
    for (auto& each : heard.take()) told.push_back(std::move(each));
    return !told.empty();
  }));
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].code(), errc::no_host_memory);
}

TEST_F(arena_pins_test, a_request_waits_for_a_pin_under_way_instead_of_its_own) {
  auto options = quiet();
  options.threads = 1;
  const auto arena = make(options);
  ASSERT_TRUE(arena->reserve(64_MiB, host_wait::no));
  const auto stream = new_stream();
  void* p = nullptr;
  // Either the helper has begun and is waited for, or it has not; then both pin.
  ASSERT_NE(p = arena->allocate(1_MiB, stream, 64_B).value(), nullptr);
  EXPECT_TRUE(comes_true([&] { return machine->pinned() >= 64_MiB; }));
  EXPECT_LE(machine->pinned(), 66_MiB);
  ASSERT_TRUE(arena->deallocate(p, nullptr));
}

TEST_F(arena_pins_test, growth_is_followed_in_the_background_and_what_was_not_used_goes) {
  auto options = quiet();
  options.threads = 1;
  options.max_ahead = 64_MiB;
  const auto arena = make(options);
  const auto stream = new_stream();
  void* const p = arena->allocate(64_MiB, stream, 64_B).value();
  EXPECT_TRUE(comes_true([&] { return arena->stats().pins_ahead == 1; }));
  EXPECT_EQ(arena->stats().free, 8_MiB) << "an eighth of what the last second took";
  EXPECT_TRUE(comes_true([&] { return arena->stats().unpins == 1; }));
  EXPECT_EQ(arena->stats().pinned.current, 64_MiB);
  ASSERT_TRUE(arena->deallocate(p, nullptr));
  EXPECT_EQ(arena->check(), "");
}

TEST_F(arena_pins_test, idle_segments_go_by_age) {
  auto options = quiet();
  options.threads = 1;
  options.max_idle = std::chrono::milliseconds{1};
  const auto arena = make(options);
  const auto stream = new_stream();
  void* const used = arena->take(1_MiB, 64_B).value();
  arena->give(used);
  ASSERT_TRUE(arena->reserve(4_MiB, host_wait::no));
  EXPECT_TRUE(comes_true([&] { return arena->stats().unpins == 1; }));
  EXPECT_EQ(arena->stats().pinned.current, arena->stats().free);
  EXPECT_GE(arena->stats().pinned.current, 3_MiB) << "what was reserved stays";
}

TEST_F(arena_pins_test, trim_gives_back_the_longest_idle_first) {
  const auto arena = make();
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(arena->take(1_MiB, 64_B).value());
  arena->give(blocks[2]);
  arena->give(blocks[0]);
  arena->give(blocks[3]);
  EXPECT_EQ(arena->trim(3_MiB).value(), 1_MiB);
  EXPECT_EQ(arena->take(1_MiB, 64_B).value(), std::min(blocks[0], blocks[3]));
  EXPECT_EQ(arena->trim({}).value(), 1_MiB);
  EXPECT_EQ(machine->pinned(), 2_MiB);
  arena->give(blocks[1]);
  arena->give(std::min(blocks[0], blocks[3]));
  EXPECT_EQ(arena->trim({}).value(), 2_MiB);
  EXPECT_EQ(arena->stats().unpins, 4u);
}

TEST_F(arena_pins_test, trim_leaves_pending_memory_and_empty_cache_waits_for_it) {
  const auto arena = make();
  const auto stream = new_stream();
  void* const p = arena->allocate(2_MiB, stream, 64_B).value();
  read(stream, p, 2_MiB);
  ASSERT_TRUE(arena->deallocate(p, nullptr));
  EXPECT_EQ(arena->trim({}).value(), 0_B);
  EXPECT_EQ(arena->empty_cache().value(), 2_MiB);
  EXPECT_EQ(machine->pinned(), 0_B);
}

TEST_F(arena_pins_test, the_limit_holds_and_waits_for_what_was_freed) {
  auto options = quiet();
  options.limit = 4_MiB;
  const auto arena = make(options);
  const auto stream = new_stream();
  void* const p = arena->allocate(3_MiB, stream, 64_B).value();
  const auto refused = arena->allocate(2_MiB, stream, 64_B);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.code(), errc::limit_exceeded);
  EXPECT_EQ(refused.error().requested(), 2_MiB);
  EXPECT_EQ(arena->stats().failures, 1u);
  read(stream, p, 3_MiB);
  ASSERT_TRUE(arena->deallocate(p, nullptr));
  void* const q = arena->allocate(2_MiB, stream, 64_B).value();
  EXPECT_EQ(q, p) << "after waiting for the copy";
  ASSERT_TRUE(arena->deallocate(q, nullptr));
  ASSERT_TRUE(arena->set_limit(2_MiB));
  EXPECT_EQ(arena->limit(), 2_MiB);
  ASSERT_TRUE(stream.synchronize());
  EXPECT_EQ(code_of(arena->allocate(5_MiB, stream, 64_B)), errc::limit_exceeded);
  EXPECT_EQ(arena->check(), "");
}

TEST_F(arena_pins_test, a_larger_request_takes_the_place_of_idle_segments) {
  auto options = quiet();
  options.limit = 4_MiB;
  const auto arena = make(options);
  void* const p = arena->take(3_MiB, 64_B).value();
  arena->give(p);
  void* const q = arena->take(4_MiB, 64_B).value();
  EXPECT_EQ(machine->pinned(), 4_MiB);
  EXPECT_EQ(arena->stats().unpins, 1u);
  arena->give(q);
}

TEST_F(arena_pins_test, what_the_system_refuses_is_an_error_that_says_so) {
  machine->set_pinnable(3_MiB);
  const auto arena = make();
  const auto stream = new_stream();
  const auto refused = arena->allocate(4_MiB, stream, 64_B);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.code(), errc::no_host_memory);
  EXPECT_EQ(refused.error().native(), driver::CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_THAT(refused.error().detail(), ::testing::HasSubstr("could not pin"));
  EXPECT_EQ(machine->pinned(), 0_B);
  EXPECT_EQ(code_of(arena->reserve(4_MiB, host_wait::yes)), errc::no_host_memory);
  EXPECT_EQ(machine->pinned(), 0_B);
  EXPECT_EQ(code_of(arena->allocate(bytes{std::uint64_t{1} << 55}, stream, 64_B)),
            errc::no_host_memory)
      << "more than the machine has";
  EXPECT_EQ(machine->calls(call::mem_host_register), 2u) << "nothing that cannot succeed is tried";
}

TEST_F(arena_pins_test, a_request_may_fall_back_to_pageable_memory) {
  machine->set_pinnable(2_MiB);
  auto options = quiet();
  options.fallback = host_fallback::pageable;
  const auto arena = make(options);
  const auto stream = new_stream();
  void* const p = arena->allocate(4_MiB, stream, 64_B).value();
  std::memset(p, 1, 4 << 20);
  EXPECT_EQ(arena->stats().pageable, 4_MiB);
  EXPECT_EQ(arena->stats().pinned.current, 0_B);
  EXPECT_FALSE(arena->snapshot().segments.at(0).pinned);
  void* const q = arena->allocate(1_MiB, stream, 64_B).value();
  EXPECT_EQ(arena->stats().pinned.current, 2_MiB) << "what fits is pinned";
  ASSERT_TRUE(arena->deallocate(p, nullptr));
  ASSERT_TRUE(stream.synchronize());
  ASSERT_TRUE(arena->empty_cache());
  EXPECT_EQ(arena->stats().pageable, 0_B);
  EXPECT_EQ(arena->check(), "");
  ASSERT_TRUE(arena->deallocate(q, nullptr));
}

TEST_F(arena_pins_test, memory_that_the_driver_does_not_take_serves_again) {
  const auto arena = make();
  void* const p = arena->take(1_MiB, 64_B).value();
  arena->give(p);
  machine->fail(call::mem_host_unregister, 1, driver::CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(arena->trim({}));
  EXPECT_EQ(arena->stats().pinned.current, 1_MiB);
  EXPECT_EQ(arena->take(1_MiB, 64_B).value(), p);
  arena->give(p);
  EXPECT_EQ(arena->check(), "");
  EXPECT_EQ(arena->trim({}).value(), 1_MiB);
}

/// Allocates, uses, frees, waits, trims: with each of its driver calls failing in turn. Whatever
/// fails, the counters are exact, and all memory can be given back.
TEST_F(arena_pins_test, every_driver_call_may_fail) {
  const auto play = [&](host::arena& arena, const stream& one, const stream& two) {
    std::vector<void*> live;
    for (int i = 0; i < 6; ++i) {
      const stream& on = i % 2 == 0 ? one : two;
      const bytes size{std::uint64_t{700'000} * (1 + i)};
      const auto taken = arena.allocate(size, on, 64_B);
      if (!taken) continue;
      read(on, *taken, size);
      if (i % 3 == 0) static_cast<void>(arena.record_stream(*taken, two));
      if (i == 4) {
        live.push_back(*taken);
        continue;
      }
      if (!arena.deallocate(*taken, nullptr)) live.push_back(*taken);
    }
    static_cast<void>(arena.reserve(3_MiB, host_wait::yes));
    static_cast<void>(arena.trim(1_MiB));
    for (void* const each : live) static_cast<void>(arena.deallocate(each, nullptr));
    static_cast<void>(arena.empty_cache());
  };
  std::uint64_t calls = 0;
  {
    const auto one = new_stream();
    const auto two = new_stream(1);
    const auto arena = make();
    const auto before = machine->calls();
    play(*arena, one, two);
    calls = machine->calls() - before;
  }
  ASSERT_GT(calls, 50u);
  for (std::uint64_t nth = 1; nth <= calls; nth += is_sanitized ? 7 : 1) {
    for (const auto with : {driver::CUDA_ERROR_UNKNOWN, driver::CUDA_ERROR_OUT_OF_MEMORY}) {
      SCOPED_TRACE("call " + std::to_string(nth));
      const auto one = new_stream();
      const auto two = new_stream(1);
      const auto arena = make();
      machine->fail_any(nth, with);
      play(*arena, one, two);
      machine->clear_faults();
      ASSERT_EQ(arena->check(), "");
      ASSERT_TRUE(one.synchronize());
      ASSERT_TRUE(two.synchronize());
      ASSERT_TRUE(arena->empty_cache());
      ASSERT_EQ(arena->stats().blocks.current, 0u);
      ASSERT_EQ(arena->stats().pinned.current, 0_B);
      ASSERT_EQ(machine->pinned(), 0_B);
      void* const p = arena->allocate(1_MiB, one, 64_B).value();
      ASSERT_TRUE(arena->deallocate(p, nullptr));
      static_cast<void>(heard.take());  // a context that could not be put back
    }
  }
}

}  // namespace
}  // namespace weir::testing_support
