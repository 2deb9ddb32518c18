// SPDX-License-Identifier: Apache-2.0
// Pools for graphs: memory for graphs that their holder captures.
#include <atomic>
#include <set>
#include <thread>

#include "heap/graph_fixture.hpp"

namespace weir::testing_support { namespace {

using ::testing::IsEmpty;

constexpr driver::CUstreamCaptureMode all_modes[] = {driver::CU_STREAM_CAPTURE_MODE_GLOBAL,
                                                     driver::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                                     driver::CU_STREAM_CAPTURE_MODE_RELAXED};

class retaining_pools : public graph_test {
 protected:
  [[nodiscard]] static memory_pool make_pool(caching_allocator& memory) {
    return memory.create_pool("graphs", {.for_graphs = true}).value();
  }
  /// How often the driver was asked for what captures do not take, or only outside of them.
  [[nodiscard]] std::uint64_t questions() const {
    using driver::call;
    std::uint64_t sum = 0;
    for (const call each : {call::stream_get_id, call::event_create, call::event_record,
                            call::event_query, call::event_synchronize, call::stream_wait_event,
                            call::stream_query, call::stream_synchronize, call::ctx_synchronize})
      sum += machine->calls(each);
    return sum;
  }
  [[nodiscard]] bool is_active(const stream& on) {
    return on.ref().capture().value().status == capture_status::active;
  }
  /// Where memory is mapped now.
  [[nodiscard]] static std::set<device_address> places(const memory_pool& pool) {
    std::set<device_address> all;
    for (const auto& each : pool.snapshot().physical) all.insert(each.address);
    return all;
  }
};

TEST_F(retaining_pools, what_a_stream_freed_is_its_own_and_at_once) {
  auto memory = make();
  const auto one = new_stream();
  const auto two = new_stream();
  const auto pool = make_pool(memory);
  void* const a = pool.allocate(8_MiB, one);
  write(one, a, 8_MiB);
  memory.deallocate(a);
  EXPECT_EQ(pool.allocate(8_MiB, one), a) << "the work on it is not even done";
  memory.deallocate(a, one);
  machine->run_until_idle();
  // Everything that tells the allocator that the first stream is idle.
  ASSERT_TRUE(memory.trim());
  ASSERT_TRUE(memory.empty_cache());
  void* const grown = memory.allocate(100_MiB, two);
  void* const b = pool.allocate(8_MiB, two);
  EXPECT_NE(b, a);
  EXPECT_EQ(pool.allocate(8_MiB, one), a);
  // Recorded and waited for, it goes back to the stream that freed it, and to no other; also if
  // that stream has passed the free by then.
  auto held = hold(two);
  write(two, a, 8_MiB);
  ASSERT_TRUE(memory.record_stream(a, two));
  memory.deallocate(a);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(memory.trim());
    machine->run_until_idle();
  }
  ASSERT_TRUE(memory.trim());
  held.release();
  machine->run_until_idle();
  ASSERT_TRUE(memory.trim());
  void* const c = pool.allocate(8_MiB, two);
  EXPECT_NE(c, a);
  EXPECT_EQ(pool.allocate(8_MiB, one), a);
  for (void* const p : {a, b, c, grown}) memory.deallocate(p);
  EXPECT_EQ(check(memory), "");
}

TEST_F(retaining_pools, a_block_whose_uses_are_ordered_by_the_caller_waits_no_longer) {
  auto memory = make();
  const auto one = new_stream();
  const auto two = new_stream();
  const auto pool = make_pool(memory);
  void* const a = pool.allocate(1000_B, one);
  auto held = hold(two);
  write(two, a, 1000_B);
  ASSERT_TRUE(memory.record_stream(a, two));
  EXPECT_FALSE(memory.assume_joined(a).value()) << "it is live";
  memory.deallocate(a);
  EXPECT_EQ(memory.stats().active.current, 1_KiB);
  void* const b = pool.allocate(1000_B, one);
  EXPECT_NE(b, a);
  auto joined = event::create(gpu()).value();
  ASSERT_TRUE(joined.record(two));
  ASSERT_TRUE(one.wait(joined));
  EXPECT_TRUE(memory.assume_joined(a).value());
  EXPECT_EQ(memory.stats().active.current, 1_KiB) << "b";
  EXPECT_EQ(memory.stats().pending, 0_B);
  EXPECT_FALSE(memory.assume_joined(a).value()) << "it waits no more";
  EXPECT_FALSE(memory.assume_joined(&memory).value());
  void* const c = pool.allocate(1000_B, two);
  EXPECT_NE(c, a) << "the stream of the free alone was joined";
  EXPECT_EQ(pool.allocate(1000_B, one), a);
  write(one, a, 1000_B);  // a hazard if it were not behind the other stream's work
  held.release();
  for (void* const p : {a, b, c}) memory.deallocate(p);
  EXPECT_EQ(check(memory), "");
}

TEST_F(retaining_pools, neither_move_nor_give_back_while_held) {
  allocator_options settings;
  settings.limit = 256_MiB;
  auto memory = make(settings);
  const auto stream = new_stream();
  auto pool = make_pool(memory);
  std::vector<void*> kept, freed;
  for (int i = 0; i < 32; ++i) (i % 2 == 0 ? kept : freed).push_back(pool.allocate(2_MiB, stream));
  for (void* const p : freed) memory.deallocate(p);
  const auto before = places(pool);
  void* const large = pool.allocate(24_MiB, stream);  // no move makes room for it
  EXPECT_EQ(memory.stats().handles_moved, 0u);
  const auto after = places(pool);
  const auto reserved = pool.stats().reserved.current;
  EXPECT_TRUE(std::includes(after.begin(), after.end(), before.begin(), before.end()));
  memory.deallocate(large);
  for (void* const p : kept) memory.deallocate(p);
  machine->run_until_idle();
  ASSERT_TRUE(memory.trim());
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(code_of(memory.try_allocate(200_MiB, stream)), errc::out_of_memory);
  EXPECT_EQ(places(pool), after);
  EXPECT_EQ(pool.stats().reserved.current, reserved);

  void* const last = pool.allocate(2_MiB, stream);
  pool = {};
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().reserved.current, reserved) << "a block of it lives";
  memory.deallocate(last);
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
  EXPECT_EQ(memory.snapshot().pools.size(), 1u);
  EXPECT_EQ(check(memory), "");
}

TEST_F(retaining_pools, serve_captures_of_any_mode_without_a_question) {
  for (const auto policy : {placement_policy::balanced, placement_policy::classic}) {
    for (const auto mode : all_modes) {
      allocator_options settings;
      settings.policy = policy;
      auto memory = make(settings);
      const auto stream = new_stream();  // that the allocator has never met
      const auto beside = new_stream();
      const auto pool = make_pool(memory);
      void* const busy = memory.allocate(32_MiB, beside);
      write(beside, busy, 32_MiB);
      memory.deallocate(busy, beside);
      // What a thread leaves behind is worth telling other streams of, by an event; not now.
      const auto third = new_stream();
      memory.deallocate(memory.allocate(1_KiB, third), third);
      std::thread{[&] {
        std::vector<void*> all;
        for (int i = 0; i < 20; ++i) all.push_back(memory.allocate(60_KiB, beside));
        for (void* const p : all) memory.deallocate(p, beside);
      }}.join();
      begin(stream, mode);
      const auto before = questions();
      void* const a = pool.allocate(1_MiB, stream);
      write(stream, a, 1_MiB);
      void* const b = pool.allocate(40_MiB, stream);
      write(stream, b, 40_MiB);
      memory.deallocate(a);
      EXPECT_EQ(pool.allocate(1_MiB, stream), a);
      // Another thread, which captures nothing, works in the same pool and frees for the stream.
      std::thread{[&] {
        void* const c = pool.allocate(10_MiB, stream);
        write(stream, c, 10_MiB);
        memory.deallocate(c);
        memory.deallocate(b);
      }}.join();
      EXPECT_EQ(pool.allocate(40_MiB, stream), b);
      memory.deallocate(b);
      EXPECT_EQ(questions(), before);
      EXPECT_TRUE(is_active(stream));
      const auto graph = end(stream);
      EXPECT_EQ(memory.snapshot().pools.size(), 2u) << "no pool was made for the capture";
      memory.deallocate(a);
      machine->run_until_idle();
      destroy(graph);
      EXPECT_EQ(check(memory), "");
    }
  }
}

TEST_F(retaining_pools, serve_the_default_stream_beside_a_capture) {
  auto memory = make();
  const auto blocking = stream::create(gpu(), {.non_blocking = false}).value();
  const auto pool = make_pool(memory);
  begin(blocking);
  const auto fallback = stream_ref::legacy(gpu());  // which may not be used, nor asked who it is
  void* const a = pool.allocate(4_MiB, fallback);
  memory.deallocate(a);
  EXPECT_EQ(pool.allocate(4_MiB, fallback), a);
  memory.deallocate(a);
  EXPECT_TRUE(is_active(blocking));
  destroy(end(blocking));
  EXPECT_EQ(check(memory), "");
}

TEST_F(retaining_pools, serve_a_scope_even_in_a_capture) {
  auto memory = make();
  const auto stream = new_stream();
  const auto pool = make_pool(memory);
  const pool_scope scope{pool};
  begin(stream);
  void* const a = memory.allocate(64_MiB, stream);
  EXPECT_EQ(memory.block_at(a).value().pool, pool.id());
  EXPECT_EQ(memory.snapshot().pools.size(), 2u);
  memory.deallocate(a, stream);
  EXPECT_TRUE(is_active(stream));
  destroy(end(stream));
}

TEST_F(retaining_pools, recorded_memory_waits_for_the_end_of_the_capture) {
  auto memory = make();
  const auto stream = new_stream();
  const auto branch = new_stream();
  const auto pool = make_pool(memory);
  auto fork = event::create(gpu()).value();
  auto join = event::create(gpu()).value();
  begin(stream);
  void* const a = pool.allocate(4_MiB, stream);
  ASSERT_TRUE(fork.record(stream));
  ASSERT_TRUE(branch.wait(fork));
  write(branch, a, 4_MiB);
  ASSERT_TRUE(memory.record_stream(a, branch));
  memory.deallocate(a);
  void* const b = pool.allocate(4_MiB, stream);
  EXPECT_NE(b, a);
  write(stream, b, 4_MiB);
  ASSERT_TRUE(memory.trim());  // asks around, but not those
  void* const c = pool.allocate(4_MiB, stream);
  EXPECT_NE(c, a);
  write(stream, c, 4_MiB);
  ASSERT_TRUE(join.record(branch));
  ASSERT_TRUE(stream.wait(join));
  EXPECT_TRUE(is_active(stream));
  const auto graph = end(stream);
  ASSERT_TRUE(memory.trim());
  ASSERT_TRUE(memory.trim());
  machine->run_until_idle();
  ASSERT_TRUE(memory.trim());
  EXPECT_EQ(pool.allocate(4_MiB, stream), a) << "no capture runs";
  const auto replay = instantiate(graph);
  for (int i = 0; i < 3; ++i) launch(replay, stream);
  write(stream, a, 4_MiB);
  machine->run_until_idle();
  EXPECT_THAT(machine->hazards(), IsEmpty());
  destroy(replay);
  destroy(graph);
  for (void* const p : {a, b, c}) memory.deallocate(p);
  EXPECT_EQ(check(memory), "");
}

TEST_F(retaining_pools, are_shared_by_graphs_and_warm_up_runs) {
  auto memory = make();
  const auto stream = new_stream();
  const auto other = new_stream();
  auto pool = make_pool(memory);
  const auto work = [&] {
    std::vector<void*> all;
    for (const bytes size : {1_MiB, 30_MiB, 4_KiB}) {
      all.push_back(pool.allocate(size, stream));
      write(stream, all.back(), size);
    }
    for (void* const p : all) memory.deallocate(p);
  };
  work();
  const auto warm = pool.stats().reserved.current;
  std::vector<driver::CUgraphExec> graphs;
  for (const auto mode : all_modes) {
    begin(stream, mode);
    work();
    const auto graph = end(stream);
    graphs.push_back(instantiate(graph));
    destroy(graph);
    work();
  }
  EXPECT_EQ(pool.stats().reserved.current, warm) << "the same memory served all of them";
  for (int i = 0; i < 4; ++i) {
    for (const auto each : graphs) launch(each, stream);
    work();
    std::vector<void*> meanwhile;
    for (const bytes size : {1_MiB, 30_MiB, 4_KiB}) {
      meanwhile.push_back(memory.allocate(size, other));
      write(other, meanwhile.back(), size);
      meanwhile.push_back(pool.allocate(size, other));
      write(other, meanwhile.back(), size);
    }
    for (void* const p : meanwhile) memory.deallocate(p);
    ASSERT_TRUE(memory.trim());
  }
  EXPECT_THAT(machine->hazards(), IsEmpty());
  // The last replays are still queued when the pool goes: nothing is taken from under them.
  for (const auto each : graphs) launch(each, stream);
  for (const auto each : graphs) destroy(each);
  pool = {};
  ASSERT_TRUE(memory.trim());
  EXPECT_GE(memory.stats().reserved.current, warm);
  machine->run_until_idle();
  ASSERT_TRUE(memory.trim());
  EXPECT_EQ(memory.snapshot().pools.size(), 1u);
  EXPECT_THAT(machine->hazards(), IsEmpty());
  EXPECT_EQ(check(memory), "");
}

TEST_F(retaining_pools, empty_cache_is_the_owners_word) {
  auto memory = make();
  const auto stream = new_stream();
  const auto other = new_stream();
  const auto pool = make_pool(memory);
  memory.deallocate(memory.allocate(1_KiB, other), other);
  void* const freed = pool.allocate(64_MiB, stream);
  void* const kept = pool.allocate(16_MiB, stream);
  memory.deallocate(pool.allocate(20_MiB, stream));  // and passed by the stream
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(memory.trim());
    machine->run_until_idle();
  }
  ASSERT_TRUE(memory.trim());
  begin(stream);
  write(stream, freed, 64_MiB);
  memory.deallocate(freed);
  EXPECT_EQ(pool.empty_cache().value(), bytes{}) << "the capture is under way";
  EXPECT_TRUE(is_active(stream));
  const auto graph = end(stream);
  const auto replay = instantiate(graph);
  destroy(graph);
  const auto reserved = pool.stats().reserved.current;
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(pool.stats().reserved.current, reserved) << "the allocator's word does not count";
  launch(replay, other);  // a stream that frees nothing
  destroy(replay);
  const auto went = pool.empty_cache();  // waits for it
  ASSERT_TRUE(went);
  EXPECT_GE(*went, 80_MiB);
  EXPECT_EQ(pool.stats().reserved.current, reserved - *went);
  EXPECT_THAT(machine->hazards(), IsEmpty());
  write(stream, kept, 16_MiB);
  void* const again = pool.allocate(64_MiB, other);  // holes are filled
  write(other, again, 64_MiB);
  memory.deallocate(again);
  memory.deallocate(kept);

  // A pool that does not retain gives back its own part alone; one that has a graph, nothing.
  const auto plain = memory.create_pool("plain").value();
  memory.deallocate(plain.allocate(20_MiB, stream), stream);
  memory.deallocate(memory.allocate(20_MiB, stream), stream);
  EXPECT_EQ(plain.empty_cache().value(), 20_MiB);
  EXPECT_GE(memory.stats().reserved.current, 20_MiB);
  auto claim = memory.begin_capture(stream).value();
  begin(stream);
  memory.deallocate(memory.allocate(20_MiB, stream), stream);
  destroy(end(stream));
  claim.end_capture();
  EXPECT_EQ(claim.pool().empty_cache().value(), bytes{});
  EXPECT_EQ(code_of(memory_pool{}.empty_cache()), errc::moved_from);
  EXPECT_EQ(check(memory), "");
}

TEST_F(retaining_pools, a_capture_of_a_stream_that_was_never_named_counts) {
  auto memory = make();
  const auto stream = new_stream();
  const auto pool = make_pool(memory);
  memory.deallocate(pool.allocate(8_MiB, stream), stream);
  machine->run_until_idle();
  const auto other = new_stream();
  begin(other);
  EXPECT_EQ(pool.empty_cache().value(), bytes{});
  EXPECT_TRUE(is_active(other));
  destroy(end(other));
  EXPECT_EQ(pool.empty_cache().value(), 8_MiB);
}

TEST_F(retaining_pools, a_state_is_restored_at_its_addresses) {
  auto memory = make();
  const auto one = new_stream();
  const auto two = new_stream();
  const auto pool = make_pool(memory);
  std::vector<void*> live;
  for (int i = 0; i < 60; ++i) {
    const auto& on = i % 3 == 0 ? two : one;
    live.push_back(pool.allocate(bytes{100'000u * static_cast<unsigned>(1 + i % 41)}, on));
    if (i % 4 != 3) continue;
    memory.deallocate(live[live.size() / 2]);
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(live.size() / 2));
  }
  const pool_snapshot recorded = pool.snapshot();
  EXPECT_EQ(recorded.id, pool.id());
  EXPECT_EQ(recorded.name, "graphs");
  EXPECT_EQ(recorded.stats.blocks.current, live.size());

  // Other blocks in between, all freed; then the recorded ones again, in the order of addresses.
  for (void* const p : live) memory.deallocate(p);
  for (int i = 0; i < 5; ++i) memory.deallocate(pool.allocate(7_MiB, one));
  const auto calls = machine->calls();
  for (const block_info& each : recorded.blocks) {
    if (each.state != block_state::live) continue;
    void* const where = reinterpret_cast<void*>(each.address);
    const auto& on = each.stream == one.id() ? one : two;
    const auto made = pool.allocate_at(where, each.requested, on);
    ASSERT_TRUE(made) << made.error().message();
    EXPECT_EQ(*made, where);
  }
  EXPECT_EQ(machine->calls(), calls) << "no driver call";
  const pool_snapshot restored = pool.snapshot();
  std::size_t at = 0;
  for (const block_info& each : recorded.blocks) {
    if (each.state != block_state::live) continue;
    while (restored.blocks[at].state != block_state::live) ++at;
    const block_info& now = restored.blocks[at++];
    EXPECT_EQ(now.address, each.address);
    EXPECT_EQ(now.size, each.size);
    EXPECT_EQ(now.requested, each.requested);
    EXPECT_EQ(now.stream, each.stream);
  }
  EXPECT_EQ(check(memory), "");
  for (void* const p : live) memory.deallocate(p);
  EXPECT_EQ(memory.stats().blocks.current, 0u);
}

TEST_F(retaining_pools, no_room_at_an_address_that_is_not_free) {
  auto memory = make();
  const auto one = new_stream();
  const auto two = new_stream();
  const auto pool = make_pool(memory);
  void* const a = pool.allocate(2_MiB, one);
  void* const b = pool.allocate(2_MiB, one);
  const auto at = [&](void* where, bytes size, const stream& on) {
    return code_of(pool.allocate_at(where, size, on));
  };
  EXPECT_EQ(at(a, 2_MiB, one), errc::not_ready);
  memory.deallocate(a);
  EXPECT_EQ(at(a, 2_MiB, two), errc::not_ready) << "it is the first stream's";
  EXPECT_EQ(at(a, 2_MiB + 1_B, one), errc::not_ready) << "reaches into a live block";
  EXPECT_EQ(at(static_cast<std::byte*>(a) + 8, 1_KiB, one), errc::bad_alignment);
  EXPECT_EQ(at(a, bytes{}, one), errc::invalid_argument);
  EXPECT_EQ(at(nullptr, 1_KiB, one), errc::invalid_argument);
  EXPECT_EQ(at(a, bytes::max(), one), errc::size_overflow);
  void* const outside = memory.allocate(2_MiB, one);
  EXPECT_EQ(at(outside, 2_MiB, one), errc::foreign_pointer);
  memory.deallocate(b);
  EXPECT_EQ(at(a, 64_MiB, one), errc::foreign_pointer) << "the pool has not so much";
  EXPECT_EQ(at(static_cast<std::byte*>(a) + 512, 3_MiB, one), std::nullopt);
  EXPECT_EQ(check(memory), "");
  EXPECT_EQ(at(a, 512_B, one), std::nullopt);
  EXPECT_EQ(at(a, 512_B, one), errc::not_ready);
  memory.deallocate(static_cast<std::byte*>(a) + 512);
  memory.deallocate(a);
  ASSERT_TRUE(pool.empty_cache());
  EXPECT_EQ(at(a, 1_KiB, one), errc::foreign_pointer) << "a hole, or no address of the pool's";
  EXPECT_EQ(code_of(memory_pool{}.allocate_at(a, 1_KiB, one)), errc::moved_from);
  memory.deallocate(outside, one);
  EXPECT_EQ(check(memory), "");
}

TEST_F(retaining_pools, a_notice_keeps_everybody_quiet) {
  auto memory = make();
  const auto one = new_stream();
  const auto two = new_stream();
  void* const a = memory.allocate(32_MiB, one);
  void* const b = memory.allocate(32_MiB, one);
  ASSERT_TRUE(memory.record_stream(b, two));
  void* const early = memory.allocate(2_MiB, two);
  write(two, early, 2_MiB);
  memory.deallocate(early, two);
  ASSERT_TRUE(memory.trim());  // an event that could be asked for
  auto notice = memory.guard_captures().value();
  auto second = memory.guard_captures().value();
  const auto before = questions();
  memory.deallocate(a, one);
  memory.deallocate(b, one);
  void* const c = memory.allocate(48_MiB, two);  // nobody is asked whether it may have the others
  EXPECT_NE(c, a);
  ASSERT_TRUE(memory.trim());
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(questions(), before);
  EXPECT_GE(memory.stats().reserved.current, 112_MiB);
  EXPECT_EQ(memory.stats().blocks.current, 1u);
  notice = {};
  second = std::move(notice);
  EXPECT_EQ(check(memory), "");
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().reserved.current, 48_MiB);
  write(two, c, 48_MiB);
  memory.deallocate(c, two);
  auto left = memory.guard_captures().value();
  ASSERT_TRUE(memory.close()) << "the end waits, whatever was noticed";
}

TEST_F(retaining_pools, a_stream_that_ends_under_a_notice_is_not_asked_later) {
  auto memory = make();
  auto one = new_stream();
  void* const a = memory.allocate(32_MiB, one);
  write(one, a, 32_MiB);
  auto notice = memory.guard_captures().value();
  memory.deallocate(a, one);
  const auto marks = machine->calls(driver::call::event_record);
  ASSERT_TRUE(one.close());
  EXPECT_EQ(machine->calls(driver::call::event_record), marks + 1);
  notice = {};
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
}

TEST_F(retaining_pools, captures_on_one_thread_beside_misses_on_others) {
  auto memory = make();
  const auto captured = new_stream();
  const auto pool = make_pool(memory);
  // What makes the others want to ask it.
  memory.deallocate(memory.allocate(32_MiB, captured), captured);
  std::atomic<bool> over{false};
  std::vector<std::thread> others;
  for (int i = 0; i < 2; ++i) {
    others.emplace_back([&] {
      const auto mine = new_stream();
      while (!over) {
        void* const p = memory.allocate(20_MiB, mine);
        memory.deallocate(p, mine);
        EXPECT_TRUE(memory.trim());
      }
    });
  }
  for (int round = 0; round < 60; ++round) {
    // Freed before the capture: an epoch that everybody would like to close.
    memory.deallocate(memory.allocate(2_MiB, captured), captured);
    const auto notice = memory.guard_captures().value();
    begin(captured, all_modes[round % 3]);
    void* const p = pool.allocate(3_MiB, captured);
    write(captured, p, 3_MiB);
    memory.deallocate(p);
    EXPECT_TRUE(is_active(captured)) << "round " << round;
    destroy(end(captured));
  }
  over = true;
  for (auto& each : others) each.join();
  machine->run_until_idle();
  EXPECT_EQ(check(memory), "");
}

TEST_F(retaining_pools, any_driver_call_may_fail) {
  allocator_options settings;
  settings.limit = 64_MiB;
  const auto scenario = [&](caching_allocator& of, const stream& one, const stream& two) {
    std::vector<void*> live;
    auto made = of.create_pool("graphs", {.for_graphs = true});
    if (!made) return;
    memory_pool pool = *made;
    const auto request = [&](bytes size, const stream& on) {
      const auto got = pool.try_allocate(size, on);
      if (got) live.push_back(*got);
    };
    const auto free = [&] {
      if (live.empty()) return;
      EXPECT_TRUE(of.try_deallocate(live.front()));
      live.erase(live.begin());
    };
    request(12_MiB, one);
    request(3_MiB, two);
    if (!live.empty()) static_cast<void>(of.record_stream(live.front(), two));
    free();
    {
      const auto notice = of.guard_captures().value();
      const context_scope bound{gpu()};
      const bool began = cuda().stream_begin_capture(one.handle(), all_modes[0]) == 0;
      request(24_MiB, one);
      request(1_KiB, one);
      free();
      driver::CUgraph graph = nullptr;
      if (began) static_cast<void>(cuda().stream_end_capture(one.handle(), &graph));
      if (graph != nullptr) static_cast<void>(cuda().graph_destroy(graph));
    }
    if (!live.empty()) {
      void* const where = live.front();
      const auto size = of.size_of(where);
      free();
      if (const auto again =
              size ? pool.allocate_at(where, *size, one) : result<void*>{size.error()})
        live.push_back(*again);
    }
    request(50_MiB, two);
    static_cast<void>(pool.empty_cache());
    request(18_MiB, two);
    static_cast<void>(pool.snapshot());
    pool = {};
    made = errc::already_freed;
    for (void* const p : live) {
      static_cast<void>(of.block_at(p));
      EXPECT_TRUE(of.try_deallocate(p));
    }
  };
  fail_each_call(settings, 62_MiB, scenario,
                 [&](caching_allocator&, const stream& one, const stream&) {
                   driver::CUgraph left = nullptr;  // a capture whose end failed
                   const context_scope bound{gpu()};
                   if (one.ref().is_capturing().value())
                     static_cast<void>(cuda().stream_end_capture(one.handle(), &left));
                 });
}

}  // namespace
}  // namespace weir::testing_support
