// SPDX-License-Identifier: Apache-2.0
// What the allocator promises about requests and frees: order, alignment, bad input.
#include <random>
#include <set>

#include "heap/heap_fixture.hpp"

namespace weir::testing_support { namespace {

using driver::call;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct caching_allocator_test : heap_test {
  std::uint64_t marked = 0;
};

TEST_F(caching_allocator_test, memory_is_aligned_distinct_and_usable) {
  auto memory = make();
  const auto stream = new_stream();
  std::mt19937_64 random{1};
  std::set<std::pair<std::uint64_t, std::uint64_t>> taken;
  std::vector<void*> all;
  for (int i = 0; i < 300; ++i) {
    const bytes size{1 + random() % (i % 10 == 0 ? 4'000'000 : 40'000)};
    void* const p = memory.allocate(size, stream);
    const auto address = reinterpret_cast<std::uint64_t>(p);
    EXPECT_EQ(address % 512, 0u);
    const auto next = taken.lower_bound({address, 0});
    EXPECT_TRUE(next == taken.end() || address + size.count() <= next->first);
    EXPECT_TRUE(next == taken.begin() || std::prev(next)->second <= address);
    taken.insert({address, address + size.count()});
    write(stream, p, size);
    EXPECT_EQ(memory.size_of(p).value(), size);
    all.push_back(p);
  }
  EXPECT_EQ(check(memory), "");
  for (void* const p : all) memory.deallocate(p, stream);
  EXPECT_EQ(memory.stats().blocks.current, 0u);
  EXPECT_EQ(check(memory), "");
}

TEST_F(caching_allocator_test, aligns_as_asked) {
  auto memory = make();
  const auto stream = new_stream();
  std::vector<void*> all;
  for (std::uint64_t alignment = 1; alignment <= (2u << 20); alignment *= 2) {
    for (const bytes size : {1_B, 700_B, 100_KiB, 3_MiB}) {
      void* const p = memory.allocate(size, stream, bytes{alignment});
      EXPECT_EQ(reinterpret_cast<std::uint64_t>(p) % std::max<std::uint64_t>(alignment, 512), 0u);
      all.push_back(p);
    }
  }
  for (void* const p : all) memory.deallocate(p, stream);
  EXPECT_EQ(check(memory), "");
}

TEST_F(caching_allocator_test, refuses_what_cannot_be) {
  auto memory = make();
  const auto stream = new_stream();
  EXPECT_EQ(memory.try_allocate(0_B, stream).value(), nullptr);
  for (const bytes size : {bytes::max(), bytes::max() - 511_B, 2_TiB, 2_TiB - 511_B})
    EXPECT_EQ(code_of(memory.try_allocate(size, stream)), errc::size_overflow) << size.count();
  for (const bytes alignment : {0_B, 3_B, 768_B, 4_MiB, bytes::max()})
    EXPECT_EQ(code_of(memory.try_allocate(1_KiB, stream, alignment)), errc::bad_alignment);
  EXPECT_EQ(memory.try_allocate(2_TiB, stream).error().requested(), 2_TiB);
  EXPECT_EQ(code_of(memory.try_allocate(2_TiB - 1023_B, stream)), errc::size_overflow);
  EXPECT_EQ(code_of(memory.try_allocate(2_TiB - 1_KiB, stream)), errc::out_of_memory);
  EXPECT_EQ(memory.try_allocate(1_KiB, stream, 3_B).error(),
            (error{{.code = errc::bad_alignment,
                    .requested = 1_KiB,
                    .detail = "alignment must be a power of two of at most 2 MiB"}}));
  const auto other = stream::create(gpu(1)).value();
  EXPECT_EQ(code_of(memory.try_allocate(1_KiB, other)), errc::bad_stream);
  EXPECT_EQ(code_of(memory.try_allocate(1_KiB, stream_ref::legacy(gpu(1)))), errc::bad_stream);
  void* const p = memory.allocate(1_KiB, stream);
  EXPECT_EQ(code_of(memory.try_deallocate(p, other)), errc::bad_stream);
  EXPECT_TRUE(memory.try_deallocate(p, stream));
  EXPECT_EQ(memory.stats().allocations, 1u);
  EXPECT_THROW(static_cast<void>(memory.allocate(bytes::max(), stream)), failure);
}

/// Sizes whose bytes or units wrap around to those of a block that the thread keeps.
TEST_F(caching_allocator_test, takes_no_size_beyond_counting_for_that_of_a_cached_block) {
  auto memory = make({.thread_cache = 4_MiB});
  const auto stream = new_stream();
  for (const bytes size : {512_B, 256_KiB, 512_KiB, 768_KiB, 1_MiB}) {
    void* const p = memory.allocate(size, stream);
    memory.deallocate(p, stream);
    const std::uint64_t hits = memory.stats().hits;
    EXPECT_EQ(memory.allocate(size, stream), p);
    memory.deallocate(p, stream);
    ASSERT_EQ(memory.stats().hits, hits + 1) << "the thread keeps it";
    const std::uint64_t units = size.count() / 512;
    for (unsigned power = 41; power < 64; ++power) {
      const std::uint64_t far = std::uint64_t{1} << power;
      for (const std::uint64_t near : {size.count(), units, size.count() - 511, units / 512 - 511})
        EXPECT_EQ(code_of(memory.try_allocate(bytes{far + near}, stream)), errc::size_overflow)
            << far << " and " << near;
    }
    EXPECT_EQ(memory.stats().hits, hits + 1);
  }
  EXPECT_EQ(memory.stats().blocks.current, 0u);
}

TEST_F(caching_allocator_test, tells_foreign_pointers_from_second_frees) {
  auto memory = make();
  auto other = make();
  const auto stream = new_stream();
  int on_host = 0;
  void* const theirs = other.allocate(1_KiB, stream);
  for (void* const p : {static_cast<void*>(&on_host), theirs, reinterpret_cast<void*>(512),
                        reinterpret_cast<void*>(~std::uint64_t{511})}) {
    for (int again = 0; again < 2; ++again) {
      EXPECT_EQ(code_of(memory.try_deallocate(p, stream)), errc::foreign_pointer);
      EXPECT_EQ(code_of(memory.try_deallocate(p)), errc::foreign_pointer);
      EXPECT_EQ(code_of(memory.record_stream(p, stream)), errc::foreign_pointer);
      EXPECT_EQ(code_of(memory.size_of(p)), errc::foreign_pointer);
    }
  }
  for (const bytes size : {512_B, 100_KiB, 1_MiB, 5_MiB}) {
    void* const p = memory.allocate(size, stream);
    const auto inside = reinterpret_cast<void*>(reinterpret_cast<std::uint64_t>(p) + 256);
    EXPECT_EQ(code_of(memory.try_deallocate(inside, stream)), errc::foreign_pointer);
    EXPECT_TRUE(memory.try_deallocate(p, stream));
    for (int again = 0; again < 3; ++again) {
      EXPECT_EQ(code_of(memory.try_deallocate(p, stream)), errc::double_free);
      EXPECT_EQ(code_of(memory.try_deallocate(p)), errc::double_free);
      EXPECT_EQ(code_of(memory.record_stream(p, stream)), errc::double_free);
      EXPECT_EQ(code_of(memory.size_of(p)), errc::double_free);
    }
    // The same when the caches have given it up.
    ASSERT_TRUE(memory.release_stream(stream));
    EXPECT_EQ(code_of(memory.try_deallocate(p, stream)), errc::double_free);
  }
  EXPECT_TRUE(memory.try_deallocate(nullptr, stream));
  EXPECT_TRUE(memory.try_deallocate(nullptr));
  memory.deallocate(nullptr);
  memory.deallocate(&on_host, stream);
  memory.deallocate(theirs);
  const auto found = heard.take();
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].code(), errc::foreign_pointer);
  EXPECT_EQ(check(memory), "");
  other.deallocate(theirs, stream);
}

TEST_F(caching_allocator_test, a_free_with_a_size_checks_it) {
  auto memory = make();
  const auto stream = new_stream();
  void* p = memory.allocate(1000_B, stream);
  EXPECT_TRUE(memory.try_deallocate(p, 1000_B, stream));
  p = memory.allocate(1000_B, stream);
  EXPECT_EQ(code_of(memory.try_deallocate(p, 1024_B, stream)), errc::invalid_argument);
  EXPECT_EQ(memory.stats().blocks.current, 0u) << "freed all the same";
  EXPECT_EQ(code_of(memory.try_deallocate(p, 1000_B, stream)), errc::double_free);
  p = memory.allocate(1000_B, stream);
  memory.deallocate(p, 1000_B, stream);
  EXPECT_EQ(check(memory), "");
}

TEST_F(caching_allocator_test, the_same_stream_gets_its_memory_back_at_once) {
  auto memory = make();
  const auto stream = new_stream();
  for (const bytes size : {512_B, 64_KiB, 1_MiB, 64_MiB}) {
    void* const p = memory.allocate(size, stream);
    write(stream, p, size);
    memory.deallocate(p, stream);
    void* const again = memory.allocate(size, stream);
    EXPECT_EQ(again, p);
    write(stream, again, size);
    memory.deallocate(again, stream);
  }
}

TEST_F(caching_allocator_test, another_stream_does_not_get_it_before_its_turn) {
  auto memory = make();
  const auto one = new_stream();
  const auto two = new_stream();
  auto held = hold(one);
  std::vector<void*> first;
  for (int i = 0; i < 20; ++i) {
    first.push_back(memory.allocate(10_MiB, one));
    write(one, first.back(), 10_MiB);
  }
  for (void* const p : first) memory.deallocate(p, one);
  for (int i = 0; i < 40; ++i) {
    void* const p = memory.allocate(10_MiB, two);
    write(two, p, 10_MiB);
    memory.deallocate(p, two);
  }
  EXPECT_THAT(machine->hazards(), IsEmpty());
  held.release();
  EXPECT_EQ(check(memory), "");
}

TEST_F(caching_allocator_test, another_stream_gets_it_once_its_owner_has_passed) {
  auto memory = make();
  const auto one = new_stream();
  const auto two = new_stream();
  void* const p = memory.allocate(512_MiB, one);
  write(one, p, 512_MiB);
  memory.deallocate(p, one);
  ASSERT_TRUE(memory.release_stream(one));
  machine->run_until_idle();
  void* const q = memory.allocate(512_MiB, two);
  write(two, q, 512_MiB);
  EXPECT_EQ(memory.stats().reserved.current, 512_MiB) << "no new memory was needed";
  memory.deallocate(q, two);
}

TEST_F(caching_allocator_test, a_free_on_another_stream_belongs_to_that_stream) {
  auto memory = make();
  const auto one = new_stream();
  const auto two = new_stream();
  void* const p = memory.allocate(1_MiB, one);
  write(one, p, 1_MiB);
  auto done = event::create(gpu()).value();
  ASSERT_TRUE(done.record(one));
  ASSERT_TRUE(two.wait(done));
  write(two, p, 1_MiB);
  memory.deallocate(p, two);
  void* const q = memory.allocate(1_MiB, one);
  EXPECT_NE(q, p);
  write(one, q, 1_MiB);
  void* const r = memory.allocate(1_MiB, two);
  EXPECT_EQ(r, p);
  write(two, r, 1_MiB);
  memory.deallocate(q);  // on the stream it was allocated for
  memory.deallocate(r);
  EXPECT_EQ(memory.allocate(1_MiB, one), q);
  EXPECT_EQ(memory.allocate(1_MiB, two), p);
  memory.deallocate(p);
  memory.deallocate(q);
}

TEST_F(caching_allocator_test, recorded_streams_are_waited_for) {
  auto memory = make();
  const auto one = new_stream();
  const auto two = new_stream();
  for (const bytes size : {bytes{65'000}, 8_MiB}) {
    const std::uint64_t rounded = (size.count() + 511) / 512 * 512;
    void* const p = memory.allocate(size, one);
    write(one, p, size);
    auto done = event::create(gpu()).value();
    ASSERT_TRUE(done.record(one));
    ASSERT_TRUE(two.wait(done));
    write(two, p, size);
    ASSERT_TRUE(memory.record_stream(p, two));
    ASSERT_TRUE(memory.record_stream(p, two));
    memory.deallocate(p, one);
    EXPECT_EQ(code_of(memory.try_deallocate(p, one)), errc::double_free);
    EXPECT_EQ(memory.stats().pending, bytes{rounded});
    EXPECT_EQ(memory.stats().active.current, bytes{rounded});
    EXPECT_EQ(memory.stats().requested.current, 0_B);
    EXPECT_EQ(memory.stats().active_requested.current, size);
    EXPECT_EQ(memory.stats().active_blocks.current, 1u);
    const auto waits = memory.stats().waits;
    void* const q = memory.allocate(size, one);
    EXPECT_TRUE(q != p || memory.stats().waits > waits) << "the recorded stream may still use it";
    write(one, q, size);
    memory.deallocate(q, one);
    machine->run_until_idle();
    ASSERT_TRUE(memory.trim(bytes::max()));
    EXPECT_EQ(memory.stats().pending, 0_B);
    EXPECT_EQ(memory.stats().active_requested.current, 0_B);
    EXPECT_EQ(memory.stats().active_blocks.current, 0u);
    EXPECT_EQ(check(memory), "");
  }
}

TEST_F(caching_allocator_test, a_block_whose_recorded_streams_rest_is_used_before_fresh_memory) {
  auto memory = make();
  const auto one = new_stream();
  const auto two = new_stream();
  void* const other = memory.allocate(1000_B, two);  // so that two has memory of that size, too
  void* const p = memory.allocate(1000_B, one);
  write(two, p, 1000_B);
  ASSERT_TRUE(memory.record_stream(p, two));
  auto held = hold(two);
  memory.deallocate(p, one);
  void* const q = memory.allocate(1000_B, one);  // plenty of free memory lies behind p
  EXPECT_NE(q, p) << "the recorded stream may still use it";
  EXPECT_EQ(memory.stats().pending, 1_KiB);
  held.release();
  machine->run_until_idle();
  void* const smaller = memory.allocate(512_B, one);
  EXPECT_NE(smaller, p) << "nobody looks for another size";
  void* const beside = memory.allocate(1000_B, two);
  EXPECT_NE(beside, p) << "nor for another stream";
  EXPECT_EQ(memory.stats().pending, 1_KiB);
  EXPECT_EQ(memory.allocate(1000_B, one), p);
  EXPECT_EQ(memory.stats().pending, 0_B);
  write(one, p, 1000_B);
  EXPECT_EQ(check(memory), "");
  for (void* const each : {other, p, q, smaller, beside}) memory.deallocate(each);
}

TEST_F(caching_allocator_test, a_pending_block_of_a_pool_is_that_pools) {
  auto memory = make();
  const auto pool = memory.create_pool("apart").value();
  const auto one = new_stream();
  const auto two = new_stream();
  void* const first = memory.allocate(1000_B, one);  // there is room beside it
  void* const p = pool.allocate(1000_B, one);
  ASSERT_TRUE(memory.record_stream(p, two));
  memory.deallocate(p, one);
  machine->run_until_idle();
  void* const second = memory.allocate(1000_B, one);
  EXPECT_NE(second, p);
  EXPECT_EQ(memory.stats().pending, 1_KiB);
  EXPECT_EQ(pool.allocate(1000_B, one), p);
  EXPECT_EQ(memory.stats().pending, 0_B);
  for (void* const each : {first, second, p}) memory.deallocate(each);
}

TEST_F(caching_allocator_test, hits_make_no_driver_call) {
  auto memory = make();
  const auto stream = new_stream();
  const stream_ref known = stream;
  const auto legacy = stream_ref::legacy(gpu());
  const auto per_thread = stream_ref::per_thread(gpu());  // asked who it is the first time
  for (const auto& on : {known, legacy, per_thread}) {
    for (const bytes size : {512_B, 512_KiB, 1_MiB, 64_MiB}) {
      memory.deallocate(memory.allocate(size, on), on);
      const auto before = machine->calls();
      const auto hits = memory.stats().hits;
      for (int i = 0; i < 100; ++i) memory.deallocate(memory.allocate(size, on), on);
      EXPECT_EQ(machine->calls(), before);
      EXPECT_EQ(memory.stats().hits, hits + 100);
    }
  }
}

TEST_F(caching_allocator_test, bare_handles_and_per_thread_streams_are_known_by_their_id) {
  auto memory = make();
  auto stream = std::make_optional(new_stream());
  const stream_ref bare{gpu(), stream->handle()};
  void* const p = memory.allocate(1_MiB, bare);
  write(bare, p, 1_MiB);
  memory.deallocate(p, bare);
  EXPECT_EQ(memory.allocate(1_MiB, *stream), p);
  memory.deallocate(p, *stream);

  const auto own = stream_ref::per_thread(gpu());
  void* const q = memory.allocate(1_MiB, own);
  write(own, q, 1_MiB);
  memory.deallocate(q, own);
  std::thread{[&] {
    void* const r = memory.allocate(1_MiB, own);
    EXPECT_NE(r, q) << "another thread's per-thread stream is another stream";
    write(own, r, 1_MiB);
    memory.deallocate(r, own);
  }}.join();
  EXPECT_EQ(memory.allocate(1_MiB, own), q);
  memory.deallocate(q, own);
}

TEST_F(caching_allocator_test, a_recycled_handle_is_another_stream) {
  auto memory = make();
  driver::CUstream handle = nullptr;
  void* first = nullptr;
  // The driver's own streams: of a weir::stream the allocator would be told.
  const context_scope bound{gpu()};
  for (int i = 0; i < 50; ++i) {
    driver::CUstream made = nullptr;
    ASSERT_EQ(driver::CUDA_SUCCESS,
              bound.driver().stream_create_with_priority(&made, driver::CU_STREAM_NON_BLOCKING, 0));
    const stream_ref bare{gpu(), made};
    held_stream held{*machine, made};
    void* const p = memory.allocate(256_KiB, bare);
    write(bare, p, 256_KiB);
    memory.deallocate(p, bare);
    EXPECT_TRUE(made != handle || p != first);
    handle = made;
    first = p;
    held.release();
    ASSERT_EQ(driver::CUDA_SUCCESS, bound.driver().stream_destroy(made));  // its work is not done
  }
  EXPECT_THAT(machine->hazards(), IsEmpty());
}

TEST_F(caching_allocator_test, a_destroyed_stream_is_refused_and_its_memory_not_lost) {
  auto memory = make();
  auto stream = new_stream();
  const stream_ref bare{gpu(), stream.handle()};
  const auto two = new_stream();
  void* const p = memory.allocate(1_GiB, stream);
  write(stream, p, 1_GiB);
  memory.deallocate(p, stream);
  ASSERT_TRUE(stream.close());
  EXPECT_EQ(code_of(memory.try_allocate(1_KiB, bare)), errc::bad_stream);
  // Only the device's rest tells that its work is done; the request waits for that.
  void* const q = memory.allocate(1500_MiB, two);
  write(two, q, 1500_MiB);
  memory.deallocate(q, two);
  EXPECT_EQ(check(memory), "");
}

TEST_F(caching_allocator_test, any_number_of_observers_hear_the_same_each_for_its_time) {
  auto memory = make();
  const auto stream = new_stream();
  const auto pair = [&] { memory.deallocate(memory.allocate(1000_B, stream), stream); };
  pair();
  listener first;
  listener second;
  listener third;
  auto one = memory.add_observer(first).value();
  pair();
  {
    auto two = memory.add_observer(second).value();
    const auto three = memory.add_observer(third).value();
    pair();
    auto moved = std::move(two);
    pair();
    EXPECT_FALSE(two);
    EXPECT_TRUE(moved);
  }
  pair();
  one.close();
  one.close();
  pair();
  EXPECT_EQ(first.count(memory_event_kind::allocate), 4u);
  EXPECT_EQ(second.count(memory_event_kind::allocate), 2u);
  EXPECT_EQ(third.count(memory_event_kind::deallocate), 2u);
  EXPECT_EQ(first.count(memory_event_kind::deallocate), 4u);
}

TEST_F(caching_allocator_test, an_observation_may_outlive_its_allocator) {
  listener ear;
  observer_registration observation;
  {
    auto memory = make();
    observation = memory.add_observer(ear).value();
    ASSERT_TRUE(memory.close());
    EXPECT_EQ(code_of(memory.add_observer(ear)), errc::closed);
  }
  observation.close();
}

TEST_F(caching_allocator_test, a_handle_that_was_moved_from_is_told_from_a_closed_allocator) {
  auto memory = make();
  const auto stream = new_stream();
  auto copy = memory;
  auto moved = std::move(memory);
  EXPECT_EQ(code_of(memory.try_allocate(1_KiB, stream)), errc::moved_from);
  EXPECT_EQ(code_of(memory.trim()), errc::moved_from);
  ASSERT_TRUE(moved.close());
  EXPECT_EQ(code_of(copy.try_allocate(1_KiB, stream)), errc::closed);
  EXPECT_EQ(code_of(copy.trim()), errc::closed);
}

TEST_F(caching_allocator_test, its_options_are_those_of_the_process_under_shorter_names) {
  EXPECT_EQ(allocator_options::from(options{}), allocator_options{});
  options all;
  all.heap_policy = placement_policy::compact;
  all.heap_limit = 5_MiB;
  all.heap_queued_waits = false;
  const auto own = allocator_options::from(all);
  EXPECT_EQ(to_string(own),
            "policy=compact,limit=5MiB,limit_percent=100,thread_cache=64MiB,crossing=all_work,"
            "allow_unreleased_streams=off,queued_waits=off,detect_captures=off,debug_unmap=off,"
            "debug_stacks=off,debug=off,debug_quarantine=64GiB,exportable=off,rdma=auto,record=off,"
            "record_stacks=off,live=off,budget=off");
}

TEST_F(caching_allocator_test, every_call_on_a_handle_that_was_moved_from_says_so) {
  auto memory = make();
  const auto stream = new_stream();
  auto moved = std::move(memory);
  int local = 0;
  EXPECT_EQ(code_of(memory.try_allocate(1_KiB, stream)), errc::moved_from);
  EXPECT_EQ(code_of(memory.try_deallocate(&local, stream)), errc::moved_from);
  EXPECT_EQ(code_of(memory.try_deallocate(&local, 1_KiB, stream)), errc::moved_from);
  EXPECT_EQ(code_of(memory.try_deallocate(&local)), errc::moved_from);
  EXPECT_EQ(code_of(memory.record_stream(&local, stream)), errc::moved_from);
  EXPECT_EQ(code_of(memory.assume_joined(&local)), errc::moved_from);
  EXPECT_EQ(code_of(memory.size_of(&local)), errc::moved_from);
  EXPECT_EQ(code_of(memory.block_at(&local)), errc::moved_from);
  EXPECT_EQ(code_of(memory.handles_under(&local)), errc::moved_from);
  EXPECT_EQ(code_of(memory.trim()), errc::moved_from);
  EXPECT_EQ(code_of(memory.empty_cache()), errc::moved_from);
  EXPECT_EQ(code_of(memory.release_stream(stream)), errc::moved_from);
  EXPECT_EQ(code_of(memory.create_pool("x")), errc::moved_from);
  EXPECT_EQ(code_of(memory.begin_capture(stream)), errc::moved_from);
  EXPECT_EQ(code_of(memory.close()), errc::moved_from);
  try {
    static_cast<void>(memory.allocate(1_KiB, stream));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const failure& thrown) {
    EXPECT_EQ(thrown.reason().code(), errc::moved_from);
  }
  memory.deallocate(&local, stream);
  memory.deallocate(&local, 1_KiB, stream);
  memory.deallocate(&local);
  const auto reported = heard.take();
  ASSERT_EQ(reported.size(), 3u);
  for (const auto& each : reported) EXPECT_EQ(each.code(), errc::moved_from);
  const auto thrown_by = [](const auto& call) -> std::optional<errc> {
    try {
      call();
    } catch (const failure& thrown) {
      return thrown.code();
    }
    return std::nullopt;
  };
  EXPECT_EQ(thrown_by([&] { static_cast<void>(memory.device()); }), errc::moved_from);
  EXPECT_EQ(thrown_by([&] { static_cast<void>(memory.stats()); }), errc::moved_from);
  EXPECT_EQ(thrown_by([&] { static_cast<void>(memory.stats(tag{})); }), errc::moved_from);
  EXPECT_EQ(thrown_by([&] { static_cast<void>(memory.stats_by_tag()); }), errc::moved_from);
  EXPECT_EQ(thrown_by([&] { static_cast<void>(memory.snapshot()); }), errc::moved_from);
  EXPECT_EQ(thrown_by([&] { static_cast<void>(memory.explain(1_KiB, stream)); }), errc::moved_from);
  EXPECT_EQ(thrown_by([&] { static_cast<void>(memory.limit()); }), errc::moved_from);
  EXPECT_EQ(thrown_by([&] { static_cast<void>(memory.is_suspended(tag{})); }), errc::moved_from);
  EXPECT_EQ(thrown_by([&] { memory.reset_peaks(); }), errc::moved_from);
  EXPECT_EQ(thrown_by([&] { memory.reset_counters(); }), errc::moved_from);
  listener ear;
  EXPECT_EQ(code_of(memory.add_observer(ear)), errc::moved_from);
  EXPECT_EQ(code_of(memory.on_out_of_memory([](bytes) { return false; })), errc::moved_from);
  EXPECT_EQ(code_of(memory.before_growth([](bytes) { return false; })), errc::moved_from);
  EXPECT_EQ(code_of(memory.guard_captures()), errc::moved_from);
  EXPECT_EQ(code_of(memory.try_allocate_cached(1_KiB, stream)), errc::moved_from);
  EXPECT_FALSE(memory);
  EXPECT_EQ(to_string(memory), "caching_allocator, closed or moved from");
  EXPECT_TRUE(moved);
  EXPECT_TRUE(moved.close());
  EXPECT_FALSE(moved) << "closed";
  EXPECT_EQ(code_of(moved.add_observer(ear)), errc::closed);
  EXPECT_EQ(code_of(moved.on_out_of_memory([](bytes) { return false; })), errc::closed);
  EXPECT_EQ(code_of(moved.guard_captures()), errc::closed);
}

TEST_F(caching_allocator_test, an_observation_that_is_assigned_ends_the_one_before) {
  auto memory = make();
  const auto stream = new_stream();
  const auto pair = [&] { memory.deallocate(memory.allocate(1000_B, stream), stream); };
  listener first;
  listener second;
  auto observation = memory.add_observer(first).value();
  pair();
  observation = memory.add_observer(second).value();
  pair();
  auto& same = observation;
  observation = std::move(same);
  pair();
  EXPECT_TRUE(observation);
  EXPECT_EQ(first.count(memory_event_kind::allocate), 1u);
  EXPECT_EQ(second.count(memory_event_kind::allocate), 2u);
  observation = {};
  EXPECT_FALSE(observation);
  pair();
  EXPECT_EQ(second.count(memory_event_kind::allocate), 2u);
  static_cast<void>(memory.add_observer(first));  // for no time at all
  pair();
  EXPECT_EQ(first.count(memory_event_kind::allocate), 1u);
}

TEST_F(caching_allocator_test, a_wrong_address_is_told_for_what_it_is) {
  auto memory = make({.policy = placement_policy::compact, .thread_cache = {}});
  const auto stream = new_stream();
  const auto other = new_stream();
  std::vector<void*> all;
  for (int i = 0; i < 6; ++i) all.push_back(memory.allocate(2_MiB, stream));
  const auto inside = memory.try_deallocate(static_cast<std::byte*>(all[2]) + 512, stream);
  ASSERT_EQ(code_of(inside), errc::foreign_pointer);
  EXPECT_THAT(inside.error().detail(), ::testing::HasSubstr(" is inside a block, not its start: "));
  const auto last_byte = static_cast<std::byte*>(all[2]) + (2 << 20) - 1;
  EXPECT_THAT(memory.try_deallocate(last_byte, stream).error().detail(),
              ::testing::HasSubstr(" is inside a block, not its start: "));
  // Behind a live block: bound to a stream, free for all, and a hole.
  const auto held = hold(stream);
  write(stream, all[1], 2_MiB);
  memory.deallocate(all[1], stream);
  EXPECT_EQ(code_of(memory.try_deallocate(all[1], stream)), errc::double_free);
  EXPECT_EQ(code_of(memory.try_deallocate(all[1], other)), errc::double_free);
  memory.deallocate(all[3], other);
  ASSERT_TRUE(memory.trim(bytes::max()));
  EXPECT_EQ(code_of(memory.try_deallocate(all[3], stream)), errc::double_free);
  int local = 0;
  const auto foreign = memory.try_deallocate(&local, stream);
  EXPECT_EQ(code_of(foreign), errc::foreign_pointer);
  EXPECT_THAT(foreign.error().detail(), ::testing::EndsWith(" is not memory of this allocator"));
  for (const std::size_t i : {0u, 2u, 4u, 5u}) memory.deallocate(all[i], stream);
}

TEST_F(caching_allocator_test, a_hole_was_freed_before) {
  auto memory = make({.policy = placement_policy::compact, .thread_cache = {}});
  const auto stream = new_stream();
  void* const low = memory.allocate(2_MiB, stream);
  void* const middle = memory.allocate(2_MiB, stream);
  void* const high = memory.allocate(2_MiB, stream);
  memory.deallocate(middle, stream);
  EXPECT_EQ(memory.trim().value(), 2_MiB);
  EXPECT_EQ(code_of(memory.try_deallocate(middle, stream)), errc::double_free);
  memory.deallocate(low, stream);
  memory.deallocate(high, stream);
}

TEST_F(caching_allocator_test, a_size_is_checked_of_recorded_blocks_too) {
  auto memory = make();
  const auto one = new_stream();
  const auto two = new_stream();
  for (const bool right : {true, false}) {
    void* const p = memory.allocate(1000_B, one);
    write(two, p, 1000_B);
    ASSERT_TRUE(memory.record_stream(p, two));
    const auto freed = memory.try_deallocate(p, right ? 1000_B : 1001_B, one);
    if (right) {
      EXPECT_TRUE(freed);
    } else {
      ASSERT_EQ(code_of(freed), errc::invalid_argument);
      EXPECT_EQ(freed.error().requested(), 1001_B);
      EXPECT_EQ(freed.error().detail(), "the block was allocated with 1000 B");
    }
    EXPECT_EQ(memory.stats().pending, 1_KiB) << "freed all the same";
    machine->run_until_idle();
    ASSERT_TRUE(memory.trim(bytes::max()));
  }
}

TEST_F(caching_allocator_test, a_size_is_checked_of_what_the_threads_cache_has_no_room_for) {
  auto memory = make();
  const auto stream = new_stream();
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(memory.allocate(1_MiB, stream));
  memory.deallocate(blocks[0], stream);
  EXPECT_EQ(memory.stats().thread_cached, 1_MiB) << "two are more than it keeps";
  EXPECT_TRUE(memory.try_deallocate(blocks[1], 1_MiB, stream));
  const auto freed = memory.try_deallocate(blocks[2], 1_MiB - 1_B, stream);
  ASSERT_EQ(code_of(freed), errc::invalid_argument);
  EXPECT_EQ(freed.error().detail(), "the block was allocated with 1 MiB");
  EXPECT_EQ(memory.stats().blocks.current, 1u) << "freed all the same";
  memory.deallocate(blocks[3], stream);
}

TEST_F(caching_allocator_test, a_block_recorded_for_its_own_stream_waits_for_nobody) {
  auto memory = make();
  const auto one = new_stream();
  const auto two = new_stream();
  void* const p = memory.allocate(1_MiB, one);
  write(one, p, 1_MiB);
  ASSERT_TRUE(memory.record_stream(p, one));
  memory.deallocate(p, one);
  EXPECT_EQ(memory.stats().pending, 0_B);
  EXPECT_EQ(memory.allocate(1_MiB, one), p);
  // Freed behind another stream's work it is that stream's, and waits for the first.
  ASSERT_TRUE(memory.record_stream(p, one));
  memory.deallocate(p, two);
  EXPECT_EQ(memory.stats().pending, 1_MiB);
  const auto picture = memory.snapshot();
  const auto& blocks = picture.pools[0].blocks;
  const auto pending = std::find_if(blocks.begin(), blocks.end(), [](const block_info& each) {
    return each.state == block_state::pending;
  });
  ASSERT_NE(pending, blocks.end());
  EXPECT_EQ(pending->stream, two.id());
  EXPECT_THAT(pending->waits_for, ElementsAre(one.id()));
  machine->run_until_idle();
}

TEST_F(caching_allocator_test, what_is_freed_on_a_stream_that_is_gone_is_not_kept_for_it) {
  auto memory = make();
  auto stream = new_stream();
  void* const small = memory.allocate(64_KiB, stream);
  void* const large = memory.allocate(4_MiB, stream);
  ASSERT_TRUE(stream.close());
  memory.deallocate(small);
  memory.deallocate(large);
  EXPECT_EQ(memory.stats().thread_cached, 0_B);
  EXPECT_EQ(memory.stats().blocks.current, 0u);
  EXPECT_EQ(check(memory), "");
}

TEST_F(caching_allocator_test, what_a_cache_has_no_room_for_is_free_all_the_same) {
  auto memory = make({.thread_cache = 4_KiB});
  const auto stream = new_stream();
  void* const p = memory.allocate(100_KiB, stream);
  std::thread{[&] { memory.deallocate(p, stream); }}.join();  // who has no cache yet
  EXPECT_EQ(memory.stats().blocks.current, 0u);
  EXPECT_EQ(memory.stats().thread_cached, 0_B);
  EXPECT_EQ(memory.allocate(100_KiB, stream), p);
  memory.deallocate(p, stream);
  EXPECT_EQ(check(memory), "");
}

/// An event is recorded for what others may want: after a mebibyte, or a 256th of what is reserved,
/// in two frees for each stream, or 8 times that in any number; or after a quarter of a mebibyte in
/// four for each stream.
TEST_F(caching_allocator_test, a_stream_that_freed_much_is_marked) {
  auto memory = make({.thread_cache = {}});
  const auto one = new_stream();
  const auto two = new_stream();
  memory.deallocate(memory.allocate(512_B, two), two);
  const auto marks = [&](std::uint64_t blocks, bytes size) {
    ASSERT_TRUE(memory.empty_cache());  // from nothing again
    std::vector<void*> all;
    for (std::uint64_t i = 0; i < blocks; ++i) all.push_back(memory.allocate(size, one));
    const auto before = memory.stats().events;
    for (void* const p : all) memory.deallocate(p, one);
    marked = memory.stats().events - before;
  };
  marks(1, 24_MiB - 512_B);
  EXPECT_EQ(marked, 0u);
  marks(1, 24_MiB);
  EXPECT_GT(marked, 0u);
  marks(5, 4_MiB);
  EXPECT_EQ(marked, 0u);
  marks(6, 4_MiB - 512_B);
  EXPECT_GT(marked, 0u);
  marks(8, 128_KiB - 512_B);
  EXPECT_EQ(marked, 0u);
  marks(8, 128_KiB);
  EXPECT_GT(marked, 0u);
  marks(31, 32_KiB);
  EXPECT_EQ(marked, 0u);
  marks(32, 8_KiB - 512_B);
  EXPECT_EQ(marked, 0u);
  marks(32, 8_KiB);
  EXPECT_GT(marked, 0u);
}

TEST_F(caching_allocator_test, every_option_goes_its_own_way) {
  options all;
  const auto text = [&] { return to_string(allocator_options::from(all)); };
  const std::string plain = text();
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string expected = plain;
    return expected.replace(expected.find(from), from.size(), to);
  };
  const auto expect = [&](const std::string& from, const std::string& to) {
    EXPECT_EQ(text(), replaced(from, to));
    all = {};
  };
  all.heap_policy = placement_policy::throughput;
  expect("policy=balanced", "policy=throughput");
  all.heap_limit = 7_MiB;
  expect(",limit=0", ",limit=7MiB");
  all.heap_limit_percent = 12;
  expect("limit_percent=100", "limit_percent=12");
  all.heap_thread_cache = 3_MiB;
  expect("thread_cache=64MiB", "thread_cache=3MiB");
  all.heap_allow_unreleased_streams = true;
  expect("allow_unreleased_streams=off", "allow_unreleased_streams=on");
  all.heap_queued_waits = false;
  expect("queued_waits=on", "queued_waits=off");
  all.heap_detect_captures = true;
  expect("detect_captures=off", "detect_captures=on");
  all.heap_debug_unmap = true;
  expect("debug_unmap=off", "debug_unmap=on");
  all.heap_debug_stacks = true;
  expect("debug_stacks=off", "debug_stacks=on");
  all.heap_debug = debug_checks::red_zones;
  expect("debug=off", "debug=red_zones");
  all.heap_debug_quarantine = 3_MiB;
  expect("debug_quarantine=64GiB", "debug_quarantine=3MiB");
  all.heap_exportable = true;
  expect("exportable=off", "exportable=on");
  all.heap_rdma = rdma_use::off;
  expect("rdma=auto", "rdma=off");
  all.heap_crossing = crossing_rule::declared_uses;
  expect("crossing=all_work", "crossing=declared_uses");
  all.record = "there.weirtrace";
  expect("record=off", "record=there.weirtrace");
  all.record_stacks = true;
  expect("record_stacks=off", "record_stacks=on");
  all.live = true;
  expect("live=off", "live=on");
  all.budget = "floor=1GiB";
  expect("budget=off", "budget=floor=1GiB");
}

TEST_F(caching_allocator_test, the_observer_sees_everything_in_order) {
  auto memory = make();
  const auto stream = new_stream();
  listener ear;
  auto observation = memory.add_observer(ear).value();
  void* const p = memory.allocate(1000_B, stream);
  memory.deallocate(p, stream);
  EXPECT_EQ(memory.allocate(1001_B, stream), p);  // a hit
  ASSERT_TRUE(memory.record_stream(p, stream));
  memory.deallocate(p, stream);
  observation.close();
  memory.deallocate(memory.allocate(1000_B, stream), stream);
  std::vector<memory_event_kind> kinds;
  for (const auto& each : ear.take()) {
    if (each.kind == memory_event_kind::reserve) continue;
    kinds.push_back(each.kind);
    EXPECT_EQ(each.address, reinterpret_cast<std::uint64_t>(p));
    EXPECT_EQ(each.stream, stream.id());
    if (each.kind == memory_event_kind::record_stream) continue;
    EXPECT_EQ(each.size, kinds.size() <= 2 ? 1000u : 1001u);
    EXPECT_EQ(each.rounded, 1024u);
  }
  using enum memory_event_kind;
  EXPECT_THAT(kinds, ElementsAre(allocate, deallocate, allocate, record_stream, deallocate));
}

TEST_F(caching_allocator_test, works_without_thread_caches_and_with_every_policy) {
  for (const auto policy : {placement_policy::balanced, placement_policy::throughput,
                            placement_policy::compact, placement_policy::never_move,
                            placement_policy::classic, placement_policy::classic_expandable}) {
    for (const bytes cache : {0_B, 1_MiB}) {
      allocator_options settings;
      settings.policy = policy;
      settings.thread_cache = cache;
      auto memory = make(settings);
      const auto one = new_stream();
      const auto two = new_stream();
      std::mt19937_64 random{7};
      std::vector<std::pair<void*, bool>> live;
      for (int step = 0; step < 2000; ++step) {
        if (live.size() < 40 && random() % 2 == 0) {
          const bytes size{1 + random() % (random() % 8 == 0 ? 20'000'000 : 200'000)};
          const bool which = random() % 2 == 0;
          void* const p = memory.allocate(size, which ? one : two);
          write(which ? one : two, p, size);
          live.push_back({p, which});
        } else if (!live.empty()) {
          const std::size_t at = random() % live.size();
          memory.deallocate(live[at].first, live[at].second ? one : two);
          live[at] = live.back();
          live.pop_back();
        }
        if (step % 100 == 0) machine->step();
        if (step % 200 != 0) continue;
        ASSERT_EQ(check(memory), "") << static_cast<int>(policy);
      }
      for (const auto& [p, which] : live) memory.deallocate(p, which ? one : two);
      ASSERT_TRUE(memory.empty_cache());
      EXPECT_EQ(memory.stats().reserved.current, 0_B) << static_cast<int>(policy);
      EXPECT_EQ(check(memory), "");
      ASSERT_THAT(machine->hazards(), IsEmpty()) << static_cast<int>(policy);
    }
  }
}

TEST_F(caching_allocator_test, what_was_held_before_memory_was_given_back_is_no_excuse) {
  const auto on = new_stream();
  // Holes of 6 MiB, then requests of 10: with room to grow in peace the holes would stay.
  const auto most_reserved = [&](caching_allocator& memory) {
    memory.reset_peaks();
    std::vector<void*> kept, freed;
    for (int i = 0; i < 40; ++i) (i % 2 == 0 ? kept : freed).push_back(memory.allocate(6_MiB, on));
    for (void* const p : freed) memory.deallocate(p, on);
    for (int i = 0; i < 10; ++i) kept.push_back(memory.allocate(10_MiB, on));
    const auto most = memory.stats().reserved.peak;
    for (void* const p : kept) memory.deallocate(p, on);
    return most;
  };
  auto fresh = make();
  auto used = make();
  std::vector<void*> before;
  for (int i = 0; i < 60; ++i) before.push_back(used.allocate(16_MiB, on));
  for (void* const p : before) used.deallocate(p, on);
  ASSERT_TRUE(on.synchronize());
  ASSERT_TRUE(used.empty_cache());
  ASSERT_EQ(used.stats().reserved.current, 0_B);
  EXPECT_LE(most_reserved(used), most_reserved(fresh));
}

TEST_F(caching_allocator_test, a_stream_that_outlived_the_others_marks_nothing) {
  auto memory = make();
  const auto one = new_stream();
  std::mt19937_64 random{5};
  const auto events_of_work = [&] {
    const auto before = memory.stats().events;
    for (int i = 0; i < 500; ++i)
      memory.deallocate(memory.allocate(bytes{random() % 3'000'000 + 1}, one), one);
    return memory.stats().events - before;
  };
  {
    const auto other = new_stream();
    memory.deallocate(memory.allocate(5_MiB, other), other);
    EXPECT_GT(events_of_work(), 0u) << "the other should find what was freed";
  }
  static_cast<void>(events_of_work());  // what was freed while the other was there
  EXPECT_EQ(events_of_work(), 0u) << "there is nobody to share with";
}

/// What lies between is everybody's: its stream has passed the free.
TEST_F(caching_allocator_test, what_is_everybodys_again_cannot_be_freed_again) {
  auto memory = make({.thread_cache = 0_B});
  const auto stream = new_stream();
  void* const before = memory.allocate(512_KiB, stream);
  void* const p = memory.allocate(512_KiB, stream);
  void* const after = memory.allocate(512_KiB, stream);
  memory.deallocate(p, stream);
  ASSERT_TRUE(memory.empty_cache());
  bool found = false;
  const allocator_snapshot snapshot = memory.snapshot();
  for (const auto& each : snapshot.pools.front().blocks) {
    if (each.address != reinterpret_cast<std::uint64_t>(p)) continue;
    found = true;
    EXPECT_EQ(each.state, block_state::free);
  }
  EXPECT_TRUE(found);
  for (const std::uint64_t offset : {0, 512, 512 * 1024 - 1}) {
    void* const inside = static_cast<std::byte*>(p) + offset;
    const auto refused = memory.try_deallocate(inside, stream);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.code(), errc::double_free) << offset;
    EXPECT_THAT(refused.error().detail(), ::testing::HasSubstr(", in the free memory "));
  }
  const auto inside_live = memory.try_deallocate(static_cast<std::byte*>(after) + 512, stream);
  ASSERT_FALSE(inside_live);
  EXPECT_EQ(inside_live.code(), errc::foreign_pointer);
  EXPECT_THAT(inside_live.error().detail(),
              ::testing::HasSubstr(" is inside a block, not its start: "));
  memory.deallocate(before, stream);
  memory.deallocate(after, stream);
}

/// A bare handle says no id: the driver is asked whose it is.
TEST_F(caching_allocator_test, a_free_behind_a_bare_handle_is_one_of_its_stream) {
  auto memory = make();
  const auto one = new_stream();
  const auto two = new_stream();
  void* const p = memory.allocate(1000_B, one);
  memory.deallocate(memory.allocate(2000_B, two), two);  // so that the thread keeps its blocks, too
  memory.deallocate(memory.allocate(3000_B, one), one);
  memory.deallocate(p, stream_ref{gpu(), two.handle()});
  void* const of_one = memory.allocate(1000_B, one);
  EXPECT_NE(of_one, p);
  EXPECT_EQ(memory.allocate(1000_B, two), p);
  memory.deallocate(of_one, one);
  memory.deallocate(p, two);
  EXPECT_EQ(check(memory), "");
}

TEST_F(caching_allocator_test, a_request_behind_a_bare_handle_is_one_of_its_stream) {
  auto memory = make();
  const auto one = new_stream();
  const auto two = new_stream();
  void* const freed = memory.allocate(1000_B, one);
  void* const kept = memory.allocate(1000_B, one);  // what lies behind it is everybody's
  memory.deallocate(freed, one);
  ASSERT_TRUE(memory.release_stream(one));  // the thread knows no stream any more
  void* const p = memory.allocate(1000_B, stream_ref{gpu(), two.handle()});
  EXPECT_EQ(memory.block_at(p).value().stream, two.id());
  memory.deallocate(p, two);
  memory.deallocate(kept);
  EXPECT_EQ(check(memory), "");
}

}  // namespace
}  // namespace weir::testing_support
