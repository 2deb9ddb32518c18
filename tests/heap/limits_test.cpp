// SPDX-License-Identifier: Apache-2.0
// Limits, of all memory and of tags, and the callbacks that are asked before a request fails.
#include <chrono>
#include <future>
#include <optional>
#include <stdexcept>

#include "heap/heap_fixture.hpp"

namespace weir::testing_support { namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using limits_test = heap_test;

const tag weights = tag::named("limits test: weights").value();
const tag scratch = tag::named("limits test: scratch").value();

TEST_F(limits_test, the_smaller_of_size_and_share_counts) {
  EXPECT_EQ(make().limit(), bytes::max());
  EXPECT_EQ(make({.limit = 700_MiB}).limit(), 700_MiB);
  EXPECT_EQ(make({.limit = 700_MiB, .limit_percent = 50}).limit(), 700_MiB);
  EXPECT_EQ(make({.limit = 700_MiB, .limit_percent = 25}).limit(), 512_MiB);
  // 2 GiB are no multiple of 100: a percent is not rounded before it counts.
  EXPECT_EQ(make({.limit_percent = 99}).limit(), bytes{(2_GiB).count() * 99 / 100});
  EXPECT_EQ(make({.limit_percent = 1}).limit(), bytes{(2_GiB).count() / 100});
  EXPECT_EQ(make({.limit_percent = 100}).limit(), bytes::max());
}

TEST_F(limits_test, options_out_of_their_range_are_refused) {
  for (const int percent : {-1, 0, 101}) {
    const auto refused = caching_allocator::create(gpu(), {.limit_percent = percent});
    ASSERT_EQ(code_of(refused), errc::invalid_argument);
    EXPECT_EQ(refused.error().detail(),
              "limit_percent must be from 1 to 100, got " + std::to_string(percent));
  }
  const auto refused = caching_allocator::create(gpu(), {.thread_cache = 1_GiB + 1_B});
  ASSERT_EQ(code_of(refused), errc::invalid_argument);
  EXPECT_EQ(refused.error().detail(), "thread_cache must be at most 1 GiB, got 1073741825 bytes");
  EXPECT_EQ(make({.thread_cache = 1_GiB}).limit(), bytes::max());
}

TEST_F(limits_test, a_fraction_is_of_the_device_and_rounded_down) {
  auto memory = make();
  ASSERT_TRUE(memory.set_limit_fraction(1.0));
  EXPECT_EQ(memory.limit(), 2_GiB);
  ASSERT_TRUE(memory.set_limit_fraction(0.3));
  EXPECT_EQ(memory.limit(), bytes{644'245'094});
  const auto refused = memory.set_limit_fraction(1.0000001);
  EXPECT_EQ(code_of(refused), errc::invalid_argument);
  EXPECT_EQ(memory.limit(), bytes{644'245'094});
}

TEST_F(limits_test, what_is_reserved_may_reach_the_limit_and_no_more) {
  auto memory = make({.limit = 64_MiB, .thread_cache = {}});
  const auto stream = new_stream();
  void* const p = memory.allocate(40_MiB, stream);
  EXPECT_EQ(code_of(memory.try_allocate(24_MiB + 1_B, stream)), errc::out_of_memory);
  void* const q = memory.allocate(24_MiB, stream);
  EXPECT_EQ(memory.stats().reserved.current, 64_MiB);
  const auto refused = memory.try_allocate(1_B, stream);
  ASSERT_EQ(code_of(refused), errc::out_of_memory);
  EXPECT_EQ(refused.error().requested(), 1_B);
  EXPECT_EQ(
      refused.error().detail(),
      "stream " + std::to_string(stream.id().number()) +
          ": The allocator's limit of 64 MiB is in the way: 64 MiB are live, 64 MiB reserved. "
          "Raise it by 512 B, or free 512 B.");
  ASSERT_TRUE(memory.set_limit(32_MiB));  // less than there is: nothing more
  EXPECT_EQ(code_of(memory.try_allocate(2_MiB, stream)), errc::out_of_memory);
  ASSERT_TRUE(memory.set_limit(66_MiB));
  void* const r = memory.allocate(2_MiB, stream);
  for (void* const each : {p, q, r}) memory.deallocate(each, stream);
}

TEST_F(limits_test, a_tags_limit_counts_what_is_rounded_in_every_pool) {
  auto memory = make();
  const auto stream = new_stream();
  const auto pool = memory.create_pool("apart").value();
  ASSERT_TRUE(memory.set_limit(weights, 2_KiB));
  ASSERT_TRUE(memory.set_limit(scratch, 1_KiB));
  const tag_scope as{weights};
  void* const p = memory.allocate(1000_B, stream);
  void* const q = pool.allocate(500_B, stream);
  const auto refused = memory.try_allocate(513_B, stream);
  ASSERT_EQ(code_of(refused), errc::out_of_memory);
  EXPECT_EQ(refused.error().requested(), 513_B);
  EXPECT_EQ(
      refused.error().detail(),
      "stream " + std::to_string(stream.id().number()) +
          ", tag \"limits test: weights\": The limit of tag \"limits test: weights\", 2 KiB, is "
          "in the way: 1.5 KiB are live with it. Raise it by 512 B, or free 512 B of the tag.");
  EXPECT_EQ(code_of(pool.try_allocate(513_B, stream)), errc::out_of_memory);
  void* const r = memory.allocate(512_B, stream);
  EXPECT_EQ(code_of(memory.try_allocate(1_B, stream)), errc::out_of_memory);
  EXPECT_EQ(memory.stats().failures, 3u);
  EXPECT_EQ(memory.stats(weights).failures, 3u);
  EXPECT_EQ(memory.stats(scratch).failures, 0u);
  EXPECT_EQ(pool.stats().failures, 1u);
  for (void* const each : {p, q, r}) memory.deallocate(each, stream);
  // Without the limit its blocks come from the cache again.
  ASSERT_TRUE(memory.set_limit(weights, bytes::max()));
  memory.deallocate(memory.allocate(512_B, stream), stream);
  const auto hits = memory.stats().hits;
  memory.deallocate(memory.allocate(512_B, stream), stream);
  EXPECT_EQ(memory.stats().hits, hits + 1);
  EXPECT_EQ(check(memory), "");
}

/// A tag whose first block comes after its limit, and one of a thread that knows neither.
TEST_F(limits_test, a_tags_limit_holds_for_caches_to_come) {
  auto memory = make();
  const auto stream = new_stream();
  ASSERT_TRUE(memory.set_limit(weights, 64_KiB));
  const auto fill = [&] {
    const tag_scope as{weights};
    memory.deallocate(memory.allocate(64_KiB, stream), stream);
    void* const p = memory.allocate(64_KiB, stream);
    EXPECT_EQ(code_of(memory.try_allocate(512_B, stream)), errc::out_of_memory);
    memory.deallocate(p, stream);
  };
  fill();
  std::thread{fill}.join();
  EXPECT_EQ(memory.stats(weights).hits, 0u) << "counted by the heap alone";
  EXPECT_EQ(memory.stats(weights).failures, 2u);
}

TEST_F(limits_test, a_tags_limit_holds_for_a_request_from_inside_a_request) {
  auto memory = make();
  const auto stream = new_stream();
  const tag_scope as{weights};
  ASSERT_TRUE(memory.set_limit(weights, 10_MiB));
  std::optional<errc> inner;
  const auto registration = memory.before_growth([&](bytes) {
    const auto more = memory.try_allocate(8_MiB, stream);
    inner = code_of(more);
    if (!more) {
      EXPECT_THAT(more.error().detail(), HasSubstr("10 MiB"));
    }
    return false;
  });
  void* const p = memory.allocate(8_MiB, stream);
  EXPECT_EQ(inner, errc::out_of_memory);
  EXPECT_EQ(memory.stats(weights).allocated.peak, 8_MiB);
  EXPECT_EQ(memory.stats(weights).failures, 1u);
  memory.deallocate(p, stream);
  memory.deallocate(memory.allocate(10_MiB, stream), stream);
  EXPECT_EQ(check(memory), "");
}

TEST_F(limits_test, the_limit_of_what_has_no_tag_holds_through_the_caches) {
  auto memory = make();
  const auto stream = new_stream();
  memory.deallocate(memory.allocate(64_KiB, stream), stream);
  ASSERT_EQ(memory.stats().thread_cached, 64_KiB);
  ASSERT_TRUE(memory.set_limit(tag{}, 32_KiB));
  EXPECT_EQ(code_of(memory.try_allocate(64_KiB, stream)), errc::out_of_memory);
  void* const p = memory.allocate(32_KiB, stream);  // what the thread keeps is not live
  memory.deallocate(p, stream);
  ASSERT_TRUE(memory.set_limit(tag{}, bytes::max()));
  memory.deallocate(memory.allocate(64_KiB, stream), stream);
  EXPECT_EQ(memory.stats().hits, 1u);
}

TEST_F(limits_test, all_callbacks_are_asked_for_what_is_needed) {
  auto memory = make({.limit = 64_MiB});
  auto other = make({.thread_cache = {}});
  const auto stream = new_stream();
  void* held = memory.allocate(64_MiB, stream);
  std::vector<bytes> first, second;
  const auto one = memory
                       .on_out_of_memory([&](bytes needed) {
                         first.push_back(needed);
                         if (held == nullptr) return false;
                         memory.deallocate(std::exchange(held, nullptr), stream);
                         return true;
                       })
                       .value();
  auto two = memory
                 .on_out_of_memory([&](bytes needed) {
                   second.push_back(needed);
                   return false;
                 })
                 .value();
  void* const p = memory.allocate(1000_B, stream);
  EXPECT_THAT(first, ElementsAre(1024_B)) << "rounded";
  EXPECT_THAT(second, ElementsAre(1024_B));
  auto moved = std::move(two);
  two = {};
  EXPECT_EQ(code_of(memory.on_out_of_memory({})), errc::invalid_argument);
  EXPECT_EQ(code_of(memory.before_growth({})), errc::invalid_argument);
  EXPECT_EQ(code_of(memory.try_allocate(65_MiB, stream)), errc::out_of_memory);
  EXPECT_THAT(second, ElementsAre(1024_B, 65_MiB)) << "it was moved";
  moved = {};
  EXPECT_EQ(code_of(memory.try_allocate(64_MiB, stream)), errc::out_of_memory);
  EXPECT_EQ(first.size(), 3u);
  EXPECT_EQ(second.size(), 2u);
  memory.deallocate(p, stream);
}

TEST_F(limits_test, memory_that_a_callback_freed_elsewhere_counts) {
  auto memory = make({.thread_cache = {}});
  auto other = make({.thread_cache = {}});
  const auto stream = new_stream();
  void* taken = other.allocate(1500_MiB, stream);
  int asked = 0;
  const auto registration = memory
                                .on_out_of_memory([&](bytes) {
                                  ++asked;
                                  if (taken != nullptr) {
                                    other.deallocate(std::exchange(taken, nullptr), stream);
                                    EXPECT_TRUE(other.empty_cache());
                                  }
                                  return false;  // it says nothing, but the device has more
                                })
                                .value();
  void* const p = memory.allocate(1_GiB, stream);
  EXPECT_EQ(asked, 1);
  memory.deallocate(p, stream);
}

TEST_F(limits_test, memory_that_a_callback_freed_here_counts_though_it_says_nothing) {
  auto memory = make({.limit = 64_MiB});
  const auto stream = new_stream();
  void* held = memory.allocate(64_MiB, stream);
  int asked = 0;
  const auto registration = memory
                                .on_out_of_memory([&](bytes) {
                                  ++asked;
                                  if (held != nullptr)
                                    memory.deallocate(std::exchange(held, nullptr), stream);
                                  return false;
                                })
                                .value();
  void* const p = memory.allocate(32_MiB, stream);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(heap::central_heap::of(memory).trail().last, heap::rung::callback);
  memory.deallocate(p, stream);
}

/// Whichever is asked first.
TEST_F(limits_test, one_callback_that_claims_to_have_helped_is_enough) {
  const auto stream = new_stream();
  for (const bool comes_first : {true, false}) {
    auto memory = make({.limit = 64_MiB});
    const out_of_memory_callback raises{
        [&](bytes) { return memory.set_limit(128_MiB).has_value(); }};
    const out_of_memory_callback does_nothing{[](bytes) { return false; }};
    const auto one = memory.on_out_of_memory(comes_first ? raises : does_nothing).value();
    const auto two = memory.on_out_of_memory(comes_first ? does_nothing : raises).value();
    void* const p = memory.allocate(100_MiB, stream);
    EXPECT_EQ(heap::central_heap::of(memory).trail().last, heap::rung::callback);
    memory.deallocate(p, stream);
  }
}

TEST_F(limits_test, a_callback_that_claims_to_have_helped_is_believed) {
  const auto stream = new_stream();
  auto memory = make({.limit = 64_MiB});
  bool claims = false;
  const auto registration = memory
                                .on_out_of_memory([&](bytes) {
                                  EXPECT_TRUE(memory.set_limit(128_MiB));
                                  return claims;
                                })
                                .value();
  EXPECT_EQ(code_of(memory.try_allocate(100_MiB, stream)), errc::out_of_memory);
  ASSERT_TRUE(memory.set_limit(64_MiB));
  claims = true;
  memory.deallocate(memory.allocate(100_MiB, stream), stream);
}

TEST_F(limits_test, a_request_whose_callback_closes_the_allocator_says_so) {
  auto memory = make({.limit = 64_MiB});
  const auto stream = new_stream();
  static_cast<void>(memory.allocate(64_MiB, stream));
  const auto registration =
      memory.on_out_of_memory([&](bytes) { return memory.close().has_value(); }).value();
  EXPECT_EQ(code_of(memory.try_allocate(1_MiB, stream)), errc::closed);
  EXPECT_EQ(heard.take().size(), 1u) << "what is still live";
}

TEST_F(limits_test, a_callback_that_throws_ends_the_request_and_nothing_else) {
  auto memory = make({.limit = 64_MiB});
  const auto stream = new_stream();
  auto pool = memory.create_pool("apart").value();
  void* const held = memory.allocate(64_MiB, stream);
  int asked = 0;
  {
    const auto registration = memory
                                  .on_out_of_memory([&](bytes) -> bool {
                                    ++asked;
                                    throw std::runtime_error{"no"};
                                  })
                                  .value();
    EXPECT_THROW(static_cast<void>(pool.try_allocate(2_MiB, stream)), std::runtime_error);
    EXPECT_THROW(static_cast<void>(pool.try_allocate(2_MiB, stream)), std::runtime_error);
  }
  EXPECT_EQ(asked, 2) << "asked again";
  memory.deallocate(held, stream);
  ASSERT_TRUE(memory.empty_cache());
  memory.deallocate(pool.allocate(2_MiB, stream), stream);
  pool = {};
  EXPECT_EQ(memory.snapshot().pools.size(), 1u) << "nobody holds it any more";
  EXPECT_EQ(check(memory), "");
}

TEST_F(limits_test, what_a_callback_throws_passes_through_a_request_that_counts_as_failed) {
  auto memory = make({.limit = 64_MiB});
  const auto stream = new_stream();
  const auto pool = memory.create_pool("apart").value();
  void* const held = memory.allocate(64_MiB, stream);
  listener told;
  const auto observing = memory.add_observer(told).value();
  const tag_scope as{weights};
  const auto expect_thrown = [&]<class Exception>(const Exception& thrown) {
    const auto registration = memory.on_out_of_memory([&](bytes) -> bool { throw thrown; }).value();
    const auto before = memory.stats().failures;
    EXPECT_THROW(static_cast<void>(memory.allocate(2_MiB, stream)), Exception);
    EXPECT_THROW(static_cast<void>(memory.try_allocate(2_MiB, stream)), Exception);
    EXPECT_THROW(static_cast<void>(pool.allocate(2_MiB, stream)), Exception);
    EXPECT_THROW(static_cast<void>(pool.try_allocate(2_MiB, stream)), Exception);
    EXPECT_EQ(memory.stats().failures, before + 4);
    EXPECT_EQ(told.count(memory_event_kind::out_of_memory), before + 4);
  };
  expect_thrown(7);
  expect_thrown(std::runtime_error{"no"});
  // Neither is taken for the host's memory being short.
  expect_thrown(std::bad_alloc{});
  expect_thrown(out_of_memory{error{errc::out_of_memory}, "of somebody else"});
  EXPECT_EQ(pool.stats().failures, 8u);
  EXPECT_EQ(memory.stats(weights).failures, 16u);
  for (const memory_event& each : told.take()) {
    if (each.kind != memory_event_kind::out_of_memory) continue;
    EXPECT_EQ(each.size, 2u << 20);
    EXPECT_EQ(each.tag, weights.number());
    EXPECT_EQ(each.stream, stream.id());
  }
  EXPECT_EQ(check(memory), "");
  memory.deallocate(held, stream);
}

TEST_F(limits_test, what_a_callback_holds_goes_without_the_lock) {
  auto memory = make();
  std::promise<std::uint64_t> answer;
  std::thread asker;
  bool lock_is_free = false;
  {
    // Asks the allocator on another thread when it goes.
    std::shared_ptr<void> speaker{
        nullptr, [&](void*) {
          asker = std::thread{[&] { answer.set_value(memory.stats().frees); }};
          lock_is_free =
              answer.get_future().wait_for(std::chrono::seconds{10}) == std::future_status::ready;
        }};
    const auto registration =
        memory.on_out_of_memory([owned = std::move(speaker)](bytes) { return false; }).value();
  }
  asker.join();
  EXPECT_TRUE(lock_is_free);
}

TEST_F(limits_test, a_registration_may_outlive_what_it_registers_with) {
  auto memory = make();
  int asked = 0;
  auto witness = std::make_shared<int>(0);
  auto early = memory.on_out_of_memory([&, witness](bytes) { return ++asked > 0; }).value();
  EXPECT_EQ(witness.use_count(), 2);
  ASSERT_TRUE(memory.close());
  EXPECT_EQ(witness.use_count(), 1) << "a closed allocator keeps no callbacks";
  {
    const auto late = memory.on_out_of_memory([&, witness](bytes) { return ++asked > 0; });
    EXPECT_EQ(code_of(late), errc::closed);
    EXPECT_EQ(witness.use_count(), 1);
  }
  early = {};
  EXPECT_EQ(asked, 0);
}

TEST_F(limits_test, a_closed_allocator_takes_none) {
  auto memory = make({.limit = 64_MiB});
  ASSERT_TRUE(memory.close());
  EXPECT_EQ(code_of(memory.set_limit(1_GiB)), errc::closed);
  EXPECT_EQ(code_of(memory.set_limit(weights, 1_GiB)), errc::closed);
  EXPECT_EQ(code_of(memory.set_limit_fraction(0.5)), errc::closed);
  EXPECT_EQ(memory.limit(), 64_MiB);
  auto moved = std::move(memory);
  EXPECT_EQ(code_of(memory.set_limit(1_GiB)), errc::moved_from);
  EXPECT_EQ(code_of(memory.set_limit(weights, 1_GiB)), errc::moved_from);
  EXPECT_EQ(code_of(memory.set_limit_fraction(0.5)), errc::moved_from);
  EXPECT_THROW(static_cast<void>(memory.limit()), failure);
}

}  // namespace
}  // namespace weir::testing_support
