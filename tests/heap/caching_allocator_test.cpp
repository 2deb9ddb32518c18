// What the allocator promises about requests and frees: order, alignment, bad input.
#include <random>
#include <set>

#include "heap/heap_fixture.hpp"

namespace weir::testing_support {
namespace {

using driver::call;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

using caching_allocator_test = heap_test;

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
  const auto other = stream::create(gpu(1)).value();
  EXPECT_EQ(code_of(memory.try_allocate(1_KiB, other)), errc::bad_stream);
  EXPECT_EQ(code_of(memory.try_allocate(1_KiB, stream_ref::legacy(gpu(1)))), errc::bad_stream);
  void* const p = memory.allocate(1_KiB, stream);
  EXPECT_EQ(code_of(memory.try_deallocate(p, other)), errc::bad_stream);
  EXPECT_EQ(code_of(memory.record_stream(p, other)), errc::bad_stream);
  EXPECT_TRUE(memory.try_deallocate(p, stream));
  EXPECT_EQ(memory.stats().allocations, 1u);
  EXPECT_THROW(static_cast<void>(memory.allocate(bytes::max(), stream)), failure);
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
  EXPECT_EQ(found[0].code, errc::foreign_pointer);
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
  machine->hold(one.handle());
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
  machine->release(one.handle());
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

TEST_F(caching_allocator_test, hits_make_no_driver_call) {
  auto memory = make();
  const auto stream = new_stream();
  const stream_ref known = stream;
  const auto legacy = stream_ref::legacy(gpu());
  for (const auto& on : {known, legacy}) {
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
    machine->hold(made);
    void* const p = memory.allocate(256_KiB, bare);
    write(bare, p, 256_KiB);
    memory.deallocate(p, bare);
    EXPECT_TRUE(made != handle || p != first);
    handle = made;
    first = p;
    machine->release(made);
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
  auto one = memory.add_observer(first);
  pair();
  {
    auto two = memory.add_observer(second);
    const auto three = memory.add_observer(third);
    pair();
    auto moved = std::move(two);
    pair();
    EXPECT_FALSE(two);
    EXPECT_TRUE(moved);
  }
  pair();
  one.end();
  one.end();
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
    observation = memory.add_observer(ear);
    ASSERT_TRUE(memory.close());
    EXPECT_FALSE(memory.add_observer(ear));  // closed
  }
  observation.end();
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
            "unannounced_ends=off,queued_waits=off,detect_captures=off,debug_unmap=off,"
            "exportable=off,record=off,record_stacks=off,live=off");
}

TEST_F(caching_allocator_test, the_observer_sees_everything_in_order) {
  auto memory = make();
  const auto stream = new_stream();
  listener ear;
  auto observation = memory.add_observer(ear);
  void* const p = memory.allocate(1000_B, stream);
  memory.deallocate(p, stream);
  EXPECT_EQ(memory.allocate(1001_B, stream), p);  // a hit
  ASSERT_TRUE(memory.record_stream(p, stream));
  memory.deallocate(p, stream);
  observation.end();
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

}  // namespace
}  // namespace weir::testing_support
