// SPDX-License-Identifier: Apache-2.0
// Several devices: who may reach an allocator's memory, and streams of other devices that use it.
#include <array>
#include <atomic>
#include <thread>

#include "device/state.hpp"
#include "heap/foreign_uses.hpp"
#include "heap/heap_fixture.hpp"

namespace weir::testing_support { namespace {

class peers : public heap_test {
 protected:
  /// A kernel of the second device that writes the memory; whether the driver takes it.
  [[nodiscard]] bool write_from_peer(const stream_ref& on, void* where, bytes size) {
    const context_scope bound{gpu(1)};
    return static_cast<bool>(
        machine->launch(on.handle(), "kernel of the peer",
                        {sim::writes(reinterpret_cast<driver::CUdeviceptr>(where), size.count())}));
  }
  [[nodiscard]] bool peer_reaches(void* where) const {
    const context_scope bound{gpu(1)};
    auto location = vmm::access_for(gpu(1)).location;
    unsigned long long flags = 0;
    EXPECT_EQ(bound.driver().mem_get_access(&flags, &location,
                                            reinterpret_cast<driver::CUdeviceptr>(where)),
              driver::CUDA_SUCCESS);
    return flags == driver::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  [[nodiscard]] stream peer_stream() const { return stream::create(gpu(1)).value(); }
};

TEST_F(peers, reach_what_the_allocator_has_and_what_it_will_have) {
  for (const auto policy : {placement_policy::balanced, placement_policy::classic_expandable}) {
    allocator_options settings;
    settings.policy = policy;
    auto memory = make(settings);
    const auto stream = new_stream();
    const auto pool = memory.create_pool("apart").value();
    void* const before = memory.allocate(5_MiB, stream);
    void* const of_pool = pool.allocate(1_MiB, stream);
    EXPECT_FALSE(peer_reaches(before));
    EXPECT_FALSE(peer_reaches(of_pool));
    ASSERT_TRUE(memory.enable_peer(gpu(1)));
    void* const later = memory.allocate(90_MiB, stream);
    const auto second = memory.create_pool("later").value();
    void* const of_second = second.allocate(1_MiB, stream);
    for (void* const each : {before, of_pool, later, of_second}) EXPECT_TRUE(peer_reaches(each));
    EXPECT_TRUE(peer_reaches(static_cast<std::byte*>(later) + (90_MiB).count() - 1));
    for (void* const each : {before, of_pool, later, of_second}) memory.deallocate(each, stream);
    EXPECT_EQ(check(memory), "");
  }
}

TEST_F(peers, reach_pools_in_segments) {
  for (const bool whole : {false, true}) {
    auto memory = make();
    const auto stream = new_stream();
    const pool_options segments{.segments = true, .one_block_per_segment = whole};
    const auto pool = memory.create_pool("segments", segments).value();
    void* const before = pool.allocate(3_MiB, stream);
    EXPECT_FALSE(peer_reaches(before));
    ASSERT_TRUE(memory.enable_peer(gpu(1)));
    void* const later = pool.allocate(40_MiB, stream);
    const auto second = memory.create_pool("later", segments).value();
    void* const of_second = second.allocate(1_MiB, stream);
    for (void* const each : {before, later, of_second}) {
      EXPECT_TRUE(peer_reaches(each));
      memory.deallocate(each, stream);
    }
    EXPECT_EQ(check(memory), "");
  }
}

TEST_F(peers, of_the_classic_policy_reach_memory_through_their_context) {
  allocator_options settings;
  settings.policy = placement_policy::classic;
  auto memory = make(settings);
  const auto stream = new_stream();
  const auto other = peer_stream();
  void* const block = memory.allocate(5_MiB, stream);
  ASSERT_TRUE(memory.enable_peer(gpu(1)));
  EXPECT_TRUE(write_from_peer(other, block, 5_MiB));
  ASSERT_TRUE(other.synchronize());
  memory.deallocate(block, stream);
}

TEST_F(peers, reach_mappings_that_moved_memory_left_behind) {
  auto memory = make();
  const auto stream = new_stream();
  ASSERT_TRUE(memory.set_limit(80_MiB));
  std::vector<void*> kept, freed;
  for (int i = 0; i < 40; ++i)
    (i % 2 == 0 ? kept : freed).push_back(memory.allocate(2_MiB, stream));
  for (void* const each : freed) memory.deallocate(each, stream);
  void* const large = memory.allocate(30_MiB, stream);  // the handles of the freed ones move
  ASSERT_GT(memory.stats().handles_moved, 0u);
  ASSERT_TRUE(memory.enable_peer(gpu(1)));
  memory.deallocate(large, stream);
  // They move back, where they are mapped still.
  std::vector<void*> again;
  for (std::size_t i = 0; i < freed.size(); ++i) again.push_back(memory.allocate(2_MiB, stream));
  for (void* const each : again) EXPECT_TRUE(peer_reaches(each));
  for (void* const each : kept) EXPECT_TRUE(peer_reaches(each));
  for (void* const each : again) memory.deallocate(each, stream);
  for (void* const each : kept) memory.deallocate(each, stream);
}

TEST_F(peers, have_done_their_work_before_memory_is_suspended) {
  auto memory = make();
  const tag weights = tag::named("weights that peers use").value();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  ASSERT_TRUE(memory.enable_peer(gpu(1)));
  const auto stream = new_stream();
  const auto peer = peer_stream();
  const tag_scope scope{weights};
  void* const block = memory.allocate(4_MiB, stream);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(write_from_peer(peer, block, 4_MiB));
  ASSERT_EQ(peer.is_complete().value(), false);
  ASSERT_TRUE(memory.suspend(weights));
  EXPECT_EQ(peer.is_complete().value(), true);
  ASSERT_TRUE(memory.resume(weights));
  ASSERT_TRUE(write_from_peer(peer, block, 4_MiB));
  ASSERT_TRUE(peer.synchronize());
  memory.deallocate(block, stream);
  EXPECT_EQ(check(memory), "");
}

TEST_F(peers, are_other_devices_of_the_same_runtime) {
  auto memory = make();
  EXPECT_EQ(code_of(memory.enable_peer(gpu(0))), errc::invalid_argument);
  const auto elsewhere = runtime::open_simulated(sim::machine::create({}).value()).value();
  EXPECT_EQ(code_of(memory.enable_peer(elsewhere->device(device_id{0}).value())),
            errc::invalid_argument);
  ASSERT_TRUE(memory.close());
  EXPECT_EQ(code_of(memory.enable_peer(gpu(1))), errc::closed);
  const auto taken = std::move(memory);
  EXPECT_EQ(code_of(memory.enable_peer(gpu(1))),
            errc::moved_from);  // NOLINT(bugprone-use-after-move)
}

TEST_F(peers, can_be_enabled_again_and_after_a_failure) {
  auto memory = make();
  const auto stream = new_stream();
  void* const block = memory.allocate(5_MiB, stream);
  machine->fail(driver::call::mem_set_access, 1, driver::CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(memory.enable_peer(gpu(1)));
  machine->clear_faults();
  void* const later = memory.allocate(20_MiB, stream);
  EXPECT_FALSE(peer_reaches(later));  // what failed has no consequences
  ASSERT_TRUE(memory.enable_peer(gpu(1)));
  EXPECT_TRUE(peer_reaches(block));
  EXPECT_TRUE(peer_reaches(later));
  const auto calls = machine->calls(driver::call::mem_set_access);
  ASSERT_TRUE(memory.enable_peer(gpu(1)));
  EXPECT_EQ(machine->calls(driver::call::mem_set_access), calls);
  memory.deallocate(block, stream);
  memory.deallocate(later, stream);
}

// --- Streams of other devices ------------------------------------------------------------------

TEST_F(peers, streams_that_are_recorded_are_waited_for) {
  for (const auto policy : {placement_policy::balanced, placement_policy::classic,
                            placement_policy::classic_expandable}) {
    allocator_options settings;
    settings.policy = policy;
    auto memory = make(settings);
    ASSERT_TRUE(memory.enable_peer(gpu(1)));
    const auto stream = new_stream();
    const auto other = peer_stream();
    void* const block = memory.allocate(1_MiB, stream);
    ASSERT_TRUE(stream.synchronize());
    auto held = hold(other);
    ASSERT_TRUE(memory.record_stream(block, other));
    ASSERT_TRUE(memory.record_stream(block, other));
    ASSERT_TRUE(write_from_peer(other, block, 1_MiB));
    memory.deallocate(block, stream);
    EXPECT_EQ(memory.stats().pending, 1_MiB);
    void* const next = memory.allocate(1_MiB, stream);
    EXPECT_NE(next, block);
    write(stream, next, 1_MiB);
    static_cast<void>(memory.trim());
    EXPECT_EQ(memory.stats().pending, 1_MiB);

    held.release();
    ASSERT_TRUE(memory.empty_cache());
    EXPECT_EQ(memory.stats().pending, 0_B);
    void* const reused = memory.allocate(1_MiB, stream);
    write(stream, reused, 1_MiB);
    memory.deallocate(reused, stream);
    memory.deallocate(next, stream);
    EXPECT_EQ(check(memory), "");
  }
}

TEST_F(peers, streams_that_were_recorded_take_no_more_host_memory_after_the_free) {
  auto memory = make();
  ASSERT_TRUE(memory.enable_peer(gpu(1)));
  const auto stream = new_stream();
  const std::array others{peer_stream(), peer_stream(), peer_stream()};
  const auto use = [&] {
    void* const block = memory.allocate(1_MiB, stream);
    for (const auto& each : others) ASSERT_TRUE(memory.record_stream(block, each));
    memory.deallocate(block, stream);
    ASSERT_TRUE(memory.empty_cache());
  };
  for (int i = 0; i < 4; ++i) use();
  const bytes metadata = memory.stats().metadata;
  for (int i = 0; i < 20; ++i) {
    use();
    ASSERT_EQ(memory.stats().metadata, metadata) << i;
  }
  // Each one that is recorded beyond what ever was needs room, in case it cannot be waited for.
  void* const block = memory.allocate(1_MiB, stream);
  for (const auto& each : others) ASSERT_TRUE(memory.record_stream(block, each));
  const bytes enough = memory.stats().metadata;
  const std::array more{peer_stream(), peer_stream()};
  for (const auto& each : more) ASSERT_TRUE(memory.record_stream(block, each));
  EXPECT_EQ(memory.stats().metadata, enough + bytes{2 * sizeof(heap::foreign_use)});
  memory.deallocate(block, stream);
}

TEST_F(peers, a_stream_that_is_recorded_again_is_waited_for_once) {
  auto memory = make();
  ASSERT_TRUE(memory.enable_peer(gpu(1)));
  const auto stream = new_stream();
  const auto other = peer_stream();
  void* const block = memory.allocate(1_MiB, stream);
  ASSERT_TRUE(memory.record_stream(block, other));
  const bytes metadata = memory.stats().metadata;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(memory.record_stream(block, other));
  EXPECT_EQ(memory.stats().metadata, metadata);
  const auto waits = machine->calls(driver::call::stream_wait_event);
  memory.deallocate(block, stream);
  EXPECT_EQ(machine->calls(driver::call::stream_wait_event), waits + 1);
}

TEST_F(peers, do_not_hold_up_the_stream_that_freed) {
  auto memory = make();
  ASSERT_TRUE(memory.enable_peer(gpu(1)));
  const auto stream = new_stream();
  const auto other = peer_stream();
  void* const block = memory.allocate(1_MiB, stream);
  ASSERT_TRUE(stream.synchronize());
  auto held = hold(other);
  ASSERT_TRUE(memory.record_stream(block, other));
  ASSERT_TRUE(write_from_peer(other, block, 1_MiB));
  memory.deallocate(block, stream);
  void* const next = memory.allocate(1_MiB, stream);
  write(stream, next, 1_MiB);
  ASSERT_TRUE(stream.synchronize());  // held_stream complains if this waits for the other
  memory.deallocate(next, stream);
  held.release();
}

TEST_F(peers, streams_that_ended_before_the_free_are_waited_for) {
  auto memory = make();
  ASSERT_TRUE(memory.enable_peer(gpu(1)));
  const auto stream = new_stream();
  void* const block = memory.allocate(1_MiB, stream);
  ASSERT_TRUE(stream.synchronize());
  {
    const auto other = peer_stream();
    ASSERT_TRUE(memory.record_stream(block, other));
    ASSERT_TRUE(write_from_peer(other, block, 1_MiB));
  }
  memory.deallocate(block, stream);
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().pending, 0_B);
}

TEST_F(peers, streams_that_are_captured_at_the_free_are_waited_for_later) {
  auto memory = make();
  ASSERT_TRUE(memory.enable_peer(gpu(1)));
  const auto stream = new_stream();
  const auto other = peer_stream();
  void* const block = memory.allocate(1_MiB, stream);
  ASSERT_TRUE(stream.synchronize());
  ASSERT_TRUE(memory.record_stream(block, other));
  ASSERT_TRUE(write_from_peer(other, block, 1_MiB));
  driver::CUgraph graph = nullptr;
  {
    const context_scope bound{gpu(1)};
    ASSERT_EQ(
        bound.driver().stream_begin_capture(other.handle(), driver::CU_STREAM_CAPTURE_MODE_RELAXED),
        driver::CUDA_SUCCESS);
    EXPECT_EQ(code_of(memory.record_stream(block, stream_ref{gpu(1), other.handle()})),
              errc::capture_forbidden);
    memory.deallocate(block, stream);
    static_cast<void>(memory.empty_cache());
    EXPECT_EQ(memory.stats().pending, 1_MiB);
    static_cast<void>(memory.empty_cache());
    EXPECT_EQ(memory.stats().pending, 1_MiB) << "whatever else was waited for meanwhile";
    const bytes reserved = memory.stats().reserved.current;
    EXPECT_EQ(memory.empty_cache().value(), 0_B);
    EXPECT_EQ(memory.stats().reserved.current, reserved);
    ASSERT_EQ(bound.driver().stream_end_capture(other.handle(), &graph), driver::CUDA_SUCCESS);
    ASSERT_EQ(bound.driver().graph_destroy(graph), driver::CUDA_SUCCESS);
  }
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().pending, 0_B);
}

TEST_F(peers, legacy_stream_is_recorded_beside_a_capture_of_a_stream_that_it_waits_for) {
  auto memory = make();
  const auto stream = new_stream();
  const auto blocking = stream::create(gpu(1), {.non_blocking = false}).value();
  ASSERT_TRUE(memory.enable_peer(gpu(1)));
  void* const p = memory.allocate(1_MiB, stream);
  const context_scope bound{gpu(1)};
  ASSERT_EQ(
      bound.driver().stream_begin_capture(blocking.handle(), driver::CU_STREAM_CAPTURE_MODE_GLOBAL),
      driver::CUDA_SUCCESS);
  EXPECT_TRUE(memory.record_stream(p, stream_ref::legacy(gpu(1))));
  EXPECT_TRUE(memory.try_deallocate(p, stream));
  EXPECT_EQ(memory.stats().pending, 1_MiB);
  driver::CUgraph graph = nullptr;
  EXPECT_EQ(bound.driver().stream_end_capture(blocking.handle(), &graph), driver::CUDA_SUCCESS);
  EXPECT_EQ(bound.driver().graph_destroy(graph), driver::CUDA_SUCCESS);
  EXPECT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().pending, 0_B);
}

TEST_F(peers, streams_are_not_asked_while_captures_are_noticed) {
  auto memory = make();
  ASSERT_TRUE(memory.enable_peer(gpu(1)));
  const auto stream = new_stream();
  const auto other = peer_stream();
  void* const block = memory.allocate(1_MiB, stream);
  ASSERT_TRUE(stream.synchronize());
  ASSERT_TRUE(memory.record_stream(block, other));
  ASSERT_TRUE(write_from_peer(other, block, 1_MiB));
  {
    const capture_guard notice = memory.guard_captures().value();
    const auto marks = machine->calls(driver::call::event_record);
    memory.deallocate(block, stream);
    EXPECT_EQ(machine->calls(driver::call::event_record), marks);
    EXPECT_EQ(memory.stats().pending, 1_MiB);
  }
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().pending, 0_B);
}

TEST_F(peers, streams_that_cannot_be_marked_are_waited_for_later) {
  auto memory = make();
  ASSERT_TRUE(memory.enable_peer(gpu(1)));
  const auto stream = new_stream();
  const auto other = peer_stream();
  void* const block = memory.allocate(1_MiB, stream);
  ASSERT_TRUE(stream.synchronize());
  ASSERT_TRUE(memory.record_stream(block, other));
  ASSERT_TRUE(write_from_peer(other, block, 1_MiB));
  machine->fail(driver::call::event_create, 1, driver::CUDA_ERROR_OUT_OF_MEMORY);
  memory.deallocate(block, stream);
  machine->clear_faults();
  EXPECT_FALSE(other.is_complete().value()) << "the free does not wait";
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_TRUE(other.is_complete().value());
  EXPECT_EQ(memory.stats().pending, 0_B);
}

TEST_F(peers, a_stream_that_was_destroyed_before_the_free_is_waited_for_by_its_last_event) {
  auto memory = make();
  ASSERT_TRUE(memory.enable_peer(gpu(1)));
  const auto stream = new_stream();
  void* const block = memory.allocate(1_MiB, stream);
  driver::CUgraph graph = nullptr;
  const auto captured = peer_stream();
  {
    auto other = peer_stream();
    ASSERT_TRUE(memory.record_stream(block, other));
    ASSERT_TRUE(write_from_peer(other, block, 1_MiB));
    const context_scope bound{gpu(1)};
    ASSERT_EQ(bound.driver().stream_begin_capture(captured.handle(),
                                                  driver::CU_STREAM_CAPTURE_MODE_GLOBAL),
              driver::CUDA_SUCCESS);
  }
  memory.deallocate(block, stream);
  EXPECT_EQ(memory.stats().pending, 1_MiB);
  EXPECT_EQ(memory.trim().value(), 0_B) << "the peer has not written yet";
  {
    const context_scope bound{gpu(1)};
    EXPECT_EQ(bound.driver().stream_end_capture(captured.handle(), &graph), driver::CUDA_SUCCESS)
        << "nobody else's capture is disturbed";
    ASSERT_EQ(bound.driver().graph_destroy(graph), driver::CUDA_SUCCESS);
  }
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().pending, 0_B);
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
}

TEST_F(peers, any_driver_call_may_fail) {
  const auto other = peer_stream();
  const auto touch = [&](int device, const stream& on, void* block, bytes size) {
    const context_scope bound{gpu(device)};
    if (!bound) return;
    static_cast<void>(
        machine->launch(on.handle(), "kernel",
                        {sim::writes(reinterpret_cast<driver::CUdeviceptr>(block), size.count())}));
  };
  const auto scenario = [&](caching_allocator& memory, const stream& one, const stream& two) {
    const bool reaches = static_cast<bool>(memory.enable_peer(gpu(1)));
    for (const bytes size : {1_MiB, 30_MiB, 1_MiB}) {
      const auto block = memory.try_allocate(size, one);
      if (!block) continue;
      // The block is the first stream's to use: the other one has to wait for that.
      auto ready = event::create(gpu());
      if (ready && ready->record(one) && other.wait(*ready) && reaches &&
          memory.record_stream(*block, other))
        touch(1, other, *block, size);
      EXPECT_TRUE(memory.try_deallocate(*block, one) || memory.try_deallocate(*block, one));
      const auto next = memory.try_allocate(size, two);
      if (!next) continue;
      touch(0, two, *next, size);
      EXPECT_TRUE(memory.try_deallocate(*next, two) || memory.try_deallocate(*next, two));
    }
    static_cast<void>(memory.empty_cache());
  };
  fail_each_call({}, 64_MiB, scenario);
}

TEST_F(peers, streams_that_cannot_be_meant_are_refused) {
  auto memory = make();
  const auto stream = new_stream();
  void* const block = memory.allocate(1_MiB, stream);
  EXPECT_EQ(code_of(memory.record_stream(block, stream_ref::per_thread(gpu(1)))), errc::bad_stream);
  const auto elsewhere = runtime::open_simulated(sim::machine::create({}).value()).value();
  const auto theirs = stream::create(elsewhere->device(device_id{0}).value()).value();
  EXPECT_EQ(code_of(memory.record_stream(block, theirs)), errc::bad_stream);
  const auto other = peer_stream();
  EXPECT_EQ(code_of(memory.record_stream(&memory, other)), errc::foreign_pointer);
  listener heard_events;
  const auto registration = memory.add_observer(heard_events).value();
  ASSERT_TRUE(memory.record_stream(block, other));
  const auto events = heard_events.take();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, memory_event_kind::record_stream);
  EXPECT_EQ(events[0].stream, other.id());
  memory.deallocate(block, stream);
}

TEST_F(peers, two_threads_that_are_the_first_hold_each_other_up_no_more_than_later_ones) {
  const auto stream = new_stream();
  const auto other = peer_stream();
  for (int round = 0; round < 50; ++round) {
    auto memory = make();
    std::array<void*, 2> blocks{memory.allocate(1_MiB, stream), memory.allocate(1_MiB, stream)};
    std::atomic<int> ready{0};
    const auto record = [&](void* block) {
      for (++ready; ready != 2;) std::this_thread::yield();
      EXPECT_TRUE(memory.record_stream(block, other));
    };
    std::thread second{record, blocks[1]};
    record(blocks[0]);
    second.join();
    for (void* const each : blocks) memory.deallocate(each, stream);
    EXPECT_EQ(check(memory), "");
  }
}

/// A call that began before close() may come here after it.
TEST_F(peers, who_listens_no_more_is_registered_with_no_further_device) {
  struct : detail::stream_listener {
    void stream_closing(const stream_ref&) noexcept override {}
  } listener;
  const auto& listeners = detail::device_state::of(gpu(1)).listeners;
  const std::size_t before = listeners.size();
  heap::foreign_listening listening{listener};
  listening.add(gpu(1));
  EXPECT_EQ(listeners.size(), before + 1);
  listening.end();
  listening.add(gpu(1));
  EXPECT_EQ(listeners.size(), before);
}

}  // namespace
}  // namespace weir::testing_support
