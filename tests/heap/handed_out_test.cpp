// SPDX-License-Identifier: Apache-2.0
// What the simulated machine says of uses of memory that the allocator has not handed out.
#include <array>
#include <string>
#include <thread>

#include "heap/graph_fixture.hpp"

namespace weir::testing_support { namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class handed_out_test : public graph_test {
 protected:
  /// What was found since the last call.
  [[nodiscard]] std::vector<sim::hazard> found() const {
    auto all = machine->hazards();
    machine->clear_hazards();
    return all;
  }
  /// The machine's number of the stream. weir's has that of the runtime in it (device/state.hpp).
  [[nodiscard]] static std::uint64_t number(const stream& of) {
    return of.id().number() & ((std::uint64_t{1} << 48) - 1);
  }
  [[nodiscard]] static device_address at(const void* pointer) {
    return reinterpret_cast<device_address>(pointer);
  }
  [[nodiscard]] static void* behind(void* pointer, bytes size) {
    return static_cast<std::byte*>(pointer) + size.count();
  }
  void expect(sim::hazard_kind kind, const void* where, bytes size) const {
    const auto all = found();
    ASSERT_EQ(all.size(), 1u);
    EXPECT_EQ(all[0].kind, kind);
    EXPECT_EQ(all[0].shared.address, at(where));
    EXPECT_EQ(bytes{all[0].shared.size}, size);
  }

  caching_allocator memory = make();
  stream one = new_stream();
  stream two = new_stream();
};

TEST_F(handed_out_test, a_use_behind_the_free_is_found_though_the_memory_is_cached) {
  for (const bytes size : {4_KiB, 40_MiB}) {  // from a bin, and too large for one
    void* const p = memory.allocate(size, one);
    write(one, p, size);
    write(two, p, 0_B);
    memory.deallocate(p, one);
    EXPECT_THAT(found(), IsEmpty()) << "what was queued before the free may use it";
    write(one, behind(p, 256_B), 512_B);
    expect(sim::hazard_kind::use_after_free, behind(p, 256_B), 512_B);
  }
}

TEST_F(handed_out_test, memory_that_is_handed_out_again_may_be_used) {
  void* const p = memory.allocate(4_KiB, one);
  memory.deallocate(p, one);
  ASSERT_EQ(memory.allocate(4_KiB, one), p);
  write(one, p, 4_KiB);
  EXPECT_THAT(found(), IsEmpty());
  memory.deallocate(p, one);
  write(one, p, 1_B);
  expect(sim::hazard_kind::use_after_free, p, 1_B);
}

TEST_F(handed_out_test, work_that_was_queued_before_the_free_is_right_on_every_stream) {
  void* const p = memory.allocate(4_MiB, one);
  auto written = event::create(gpu()).value();
  write(one, p, 4_MiB);
  ASSERT_TRUE(written.record(one));
  ASSERT_TRUE(two.wait(written));
  write(two, p, 4_MiB);
  ASSERT_TRUE(memory.record_stream(p, two));
  memory.deallocate(p, one);
  machine->run_until_idle();  // only now it happens
  EXPECT_THAT(found(), IsEmpty());
}

TEST_F(handed_out_test, the_size_that_was_asked_for_is_the_bound_and_not_what_it_is_rounded_to) {
  void* const p = memory.allocate(1000_B, one);
  write(one, p, 1000_B);
  EXPECT_THAT(found(), IsEmpty());
  write(one, p, 1001_B);
  expect(sim::hazard_kind::out_of_bounds, behind(p, 1000_B), 1_B);
  write(one, behind(p, 1000_B), 24_B);
  expect(sim::hazard_kind::out_of_bounds, behind(p, 1000_B), 24_B);
  write(one, p, 1_MiB);  // beyond what was ever handed out
  expect(sim::hazard_kind::out_of_bounds, behind(p, 1000_B), 24_B);
  memory.deallocate(p, one);
  write(one, behind(p, 1023_B), 1_B);
  expect(sim::hazard_kind::use_after_free, behind(p, 1023_B), 1_B);
}

TEST_F(handed_out_test, a_block_must_not_be_overrun_into_its_neighbour) {
  void* const p = memory.allocate(2_MiB, one);
  void* const q = memory.allocate(2_MiB, one);
  void* const low = std::min(p, q);
  ASSERT_EQ(std::max(p, q), behind(low, 2_MiB)) << "side by side";
  write(one, low, 2_MiB);
  write(one, behind(low, 2_MiB), 2_MiB);
  EXPECT_THAT(found(), IsEmpty());
  write(one, behind(low, 1_MiB), 1_MiB + 1_B);
  expect(sim::hazard_kind::out_of_bounds, behind(low, 2_MiB), 1_B);
  memory.deallocate(p, one);
  memory.deallocate(q, one);
}

TEST_F(handed_out_test, memory_that_was_never_handed_out_has_no_block) {
  void* const p = memory.allocate(512_B, one);
  write(one, behind(p, 512_B), 64_B);
  const auto all = found();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].kind, sim::hazard_kind::out_of_bounds);
  EXPECT_EQ(all[0].first.label, "");
  EXPECT_THAT(all[0].blocks, IsEmpty());
  memory.deallocate(p, one);
}

TEST_F(handed_out_test, copies_fills_and_the_host_are_judged_alike) {
  void* const p = memory.allocate(4_KiB, one);
  memory.deallocate(p, one);
  const context_scope bound{gpu()};
  const auto& cuda = machine->driver();
  ASSERT_EQ(cuda.memset_d8_async(at(p), 0, 16, one.handle()), driver::CUDA_SUCCESS);
  expect(sim::hazard_kind::use_after_free, p, 16_B);
  std::array<std::byte, 32> host{};
  ASSERT_EQ(cuda.memcpy_dtoh_async(host.data(), at(p), 32, one.handle()), driver::CUDA_SUCCESS);
  expect(sim::hazard_kind::use_after_free, p, 32_B);
  machine->host_read(p, 8);
  expect(sim::hazard_kind::use_after_free, p, 8_B);
}

TEST_F(handed_out_test, the_story_tells_the_life_of_the_block) {
  machine->name_stream(two.handle(), "reader");
  const tag_scope tagged{tag::named("weights").value()};
  machine->set_time(sim::time_point{1'000'000'000});
  void* const p = memory.allocate(4000_B, one);
  machine->set_time(sim::time_point{2'000'000'000});
  ASSERT_TRUE(memory.record_stream(p, two));
  memory.deallocate(p, one);
  machine->set_time(sim::time_point{3'000'000'500});
  write(two, p, 100_B);
  const auto all = found();
  ASSERT_EQ(all.size(), 1u);
  ASSERT_EQ(all[0].blocks.size(), 1u);
  const sim::block_life& life = all[0].blocks[0];
  EXPECT_EQ(life.extent.address, at(p));
  EXPECT_EQ(life.extent.size, 4000u);
  EXPECT_EQ(life.rounded, 4096u);
  EXPECT_EQ(life.tag, tag::named("weights").value());
  EXPECT_EQ(life.allocated_on, stream_id{number(one)});
  EXPECT_EQ(life.freed_on, stream_id{number(one)});
  EXPECT_THAT(life.recorded, ::testing::ElementsAre(stream_id{number(two)}));
  const auto us = [](sim::time_point when) {
    return std::to_string(when.count() / 1000) + "." +
           std::to_string(1000 + when.count() % 1000).substr(1) + " us";
  };
  char range[64];
  std::snprintf(range, sizeof range, "[0x%llx, 0x%llx), ", static_cast<unsigned long long>(at(p)),
                static_cast<unsigned long long>(at(p) + 4000));
  char used[64];
  std::snprintf(used, sizeof used, "[0x%llx, 0x%llx), ", static_cast<unsigned long long>(at(p)),
                static_cast<unsigned long long>(at(p) + 100));
  char start[32];
  std::snprintf(start, sizeof start, "0x%llx", static_cast<unsigned long long>(at(p)));
  const std::string first = std::to_string(number(one));
  const std::string second = std::to_string(number(two));
  EXPECT_EQ(all[0].message(),
            "use after free: 100 bytes at " + std::string{start} +
                "\n  first:  deallocate, by the host, " + range + "4000 bytes, queued at " +
                us(life.freed) + "\n  second: kernel write, operation " +
                std::to_string(all[0].second.order) + " of stream " + second +
                " (reader), writes " + used + "100 bytes, queued at " + us(all[0].second.queued) +
                "\n  block:  " + start + ", 3.91 KiB, tag \"weights\", allocated on stream " +
                first + " at " + us(life.allocated) + ", recorded for stream " + second +
                ", freed on stream " + first + " at " + us(life.freed) +
                "\n"
                "  remedy: queue the last use before the memory is freed; work queued before the "
                "free may still use it");
  EXPECT_GE(life.allocated, sim::time_point{1'000'000'000});
  EXPECT_GE(life.freed, sim::time_point{2'000'000'000});
  EXPECT_LT(life.freed, sim::time_point{3'000'000'000});
  EXPECT_EQ(all[0].second.queued, sim::time_point{3'000'000'510}) << "a context was made current";
}

TEST_F(handed_out_test, a_race_over_two_lives_tells_both_and_names_the_record_that_is_missing) {
  void* const p = memory.allocate(8_KiB, one);
  write(two, p, 8_KiB);  // and nobody says so
  memory.deallocate(p, one);
  ASSERT_EQ(memory.allocate(8_KiB, one), p);
  write(one, p, 8_KiB);
  const auto all = found();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].kind, sim::hazard_kind::race);
  ASSERT_EQ(all[0].blocks.size(), 2u);
  EXPECT_LT(all[0].blocks[0].freed_step, all[0].blocks[1].allocated_step);
  EXPECT_EQ(all[0].blocks[1].freed_step, 0u) << "live";
  EXPECT_EQ(all[0].remedy(), "call record_stream() for stream " + std::to_string(number(two)) +
                                 " before the block is freed, or free it on stream " +
                                 std::to_string(number(two)) + ", or let stream " +
                                 std::to_string(number(one)) +
                                 " wait for an event after the first before it is freed");
  EXPECT_THAT(all[0].message(), HasSubstr("\n  later:  0x"));
  memory.deallocate(p, one);
}

TEST_F(handed_out_test, a_race_inside_one_life_names_the_event_that_is_missing) {
  void* const p = memory.allocate(8_KiB, one);
  write(one, p, 8_KiB);
  write(two, p, 8_KiB);
  const auto all = found();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].blocks.size(), 1u);
  EXPECT_EQ(all[0].remedy(), "record an event on stream " + std::to_string(number(one)) +
                                 " after the first, and let stream " + std::to_string(number(two)) +
                                 " wait for it before the second");
  memory.deallocate(p, one);
}

TEST_F(handed_out_test, memory_that_went_back_to_the_driver_still_tells_whose_it_was) {
  void* const p = memory.allocate(40_MiB, one);
  memory.deallocate(p, one);
  ASSERT_TRUE(memory.empty_cache());
  write(one, p, 1_KiB);
  const auto all = found();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].kind, sim::hazard_kind::bad_access);
  ASSERT_EQ(all[0].blocks.size(), 1u);
  EXPECT_EQ(all[0].blocks[0].extent.size, (40_MiB).count());
  EXPECT_EQ(all[0].remedy(),
            "queue the last use before the block is freed: its memory was returned to the driver");
}

// --- Graphs -------------------------------------------------------------------------------------

TEST_F(handed_out_test, replays_use_what_their_capture_freed) {
  auto own = memory.begin_capture(one).value();
  begin(one);
  void* const p = memory.allocate(4_MiB, one);
  write(one, p, 4_MiB);
  memory.deallocate(p, one);
  const auto graph = end(one);
  own.end_capture();
  const auto replay = instantiate(graph);
  launch(replay, one);
  launch(replay, one);
  EXPECT_THAT(found(), IsEmpty());
  write(one, p, 1_KiB);  // but nobody else does
  expect(sim::hazard_kind::use_after_free, p, 1_KiB);
  machine->run_until_idle();
  own = {};  // the pool is nobody's: the graph must not be launched any more
  launch(replay, one);
  const auto all = found();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].second.action, sim::party_action::replayed);
  EXPECT_EQ(all[0].second.stream, stream_id{number(one)});
  destroy(replay);
  destroy(graph);
}

TEST_F(handed_out_test, what_is_captured_behind_a_free_is_found_when_it_is_captured) {
  auto own = memory.begin_capture(one).value();
  begin(one);
  void* const p = memory.allocate(4_MiB, one);
  memory.deallocate(p, one);
  write(one, p, 2_KiB);
  const auto all = found();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].kind, sim::hazard_kind::use_after_free);
  EXPECT_EQ(all[0].second.action, sim::party_action::captured);
  EXPECT_THAT(all[0].message(), HasSubstr("kernel write, captured on stream " +
                                          std::to_string(number(one)) + ", writes "));
  destroy(end(one));
}

TEST_F(handed_out_test, a_graph_that_outlives_a_block_it_uses_is_found_at_the_launch) {
  void* const p = memory.allocate(4_KiB, one);  // no memory of the graph's
  begin(one);
  write(one, p, 4_KiB);
  const auto graph = end(one);
  const auto replay = instantiate(graph);
  launch(replay, one);
  EXPECT_THAT(found(), IsEmpty());
  memory.deallocate(p, one);
  launch(replay, one);
  const auto all = found();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].kind, sim::hazard_kind::use_after_free);
  EXPECT_THAT(all[0].message(), HasSubstr("node 2 of a graph launched on stream " +
                                          std::to_string(number(one)) + ", writes "));
  machine->run_until_idle();
  destroy(replay);
  destroy(graph);
}

// --- Who else could be wronged
// --------------------------------------------------------------------

TEST_F(handed_out_test, suspended_blocks_stay_handed_out_and_what_was_freed_does_not) {
  const tag weights = tag::named("weights").value();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  const tag_scope tagged{weights};
  void* const p = memory.allocate(1000_B, one);
  void* const q = memory.allocate(3000_B, one);
  void* const r = memory.allocate(1000_B, one);
  write(one, p, 1000_B);
  memory.deallocate(q, one);
  ASSERT_TRUE(memory.suspend(weights));
  ASSERT_TRUE(memory.resume(weights));
  write(one, p, 1000_B);
  write(one, r, 1000_B);
  EXPECT_THAT(found(), IsEmpty()) << "copies across the gaps are the allocator's own";
  write(one, q, 1_B);
  expect(sim::hazard_kind::use_after_free, q, 1_B);
  memory.deallocate(p, one);
  memory.deallocate(r, one);
}

TEST_F(handed_out_test, a_block_that_another_thread_freed_is_freed) {
  void* const p = memory.allocate(4_KiB, one);
  std::thread{[&] { memory.deallocate(p, one); }}.join();
  write(one, p, 4_KiB);
  expect(sim::hazard_kind::use_after_free, p, 4_KiB);
}

TEST_F(handed_out_test, an_allocator_that_is_gone_has_nothing_to_say) {
  for (const auto policy : {placement_policy::balanced, placement_policy::classic}) {
    void* p = nullptr;
    {
      auto short_lived = make({.policy = policy});
      p = short_lived.allocate(3_MiB, one);
      short_lived.deallocate(p, one);
    }
    const context_scope bound{gpu()};
    std::vector<driver::CUdeviceptr> plain;
    for (int i = 0; i < 8; ++i) {  // where the system likes; perhaps there
      driver::CUdeviceptr address = 0;
      ASSERT_EQ(machine->driver().mem_alloc(&address, 4 << 20), driver::CUDA_SUCCESS);
      write(one, reinterpret_cast<void*>(address), 4_MiB);
      plain.push_back(address);
    }
    EXPECT_THAT(found(), IsEmpty());
    for (const auto each : plain) ASSERT_EQ(machine->driver().mem_free(each), driver::CUDA_SUCCESS);
  }
}

TEST_F(handed_out_test, pools_of_two_allocators_with_one_number_are_two) {
  auto other = make();
  auto own = memory.begin_capture(one).value();
  begin(one);
  memory.deallocate(memory.allocate(1_MiB, one), one);
  const auto pool = other.create_pool("plain").value();
  ASSERT_EQ(pool.id(), own.pool().id());
  destroy(end(one));
  own.end_capture();
  void* const p = pool.allocate(4_KiB, two);
  begin(two);
  write(two, p, 4_KiB);
  const auto graph = end(two);
  const auto replay = instantiate(graph);
  other.deallocate(p, two);
  launch(replay, two);
  const auto all = found();
  ASSERT_EQ(all.size(), 1u) << "a pool without graphs keeps nothing for them";
  EXPECT_EQ(all[0].kind, sim::hazard_kind::use_after_free);
  machine->run_until_idle();
  destroy(replay);
  destroy(graph);
}

TEST(unwatched, nobody_listens_where_the_machine_does_not_want_to) {
  for (const bool check : {true, false}) {
    sim::machine_options settings;
    settings.devices.front().capacity = 1_GiB;
    settings.watch_blocks = !check;
    settings.check_hazards = check;
    const auto machine = sim::machine::create(settings).value();
    const auto runtime = runtime::open_simulated(machine).value();
    const auto gpu = runtime->device(device_id{0}).value();
    const auto memory = caching_allocator::create(gpu).value();
    const auto on = stream::create(gpu).value();
    void* const p = memory.allocate(4_KiB, on);
    memory.deallocate(p, on);
    const auto address = reinterpret_cast<driver::CUdeviceptr>(p);
    ASSERT_TRUE(machine->launch(on.handle(), "late", {sim::writes(address, 8)}));
    EXPECT_THAT(machine->hazards(), IsEmpty());
  }
}

TEST(unwatched, a_watch_can_be_added_by_hand) {
  sim::machine_options settings;
  settings.devices.front().capacity = 1_GiB;
  settings.watch_blocks = false;
  const auto machine = sim::machine::create(settings).value();
  const auto runtime = runtime::open_simulated(machine).value();
  const auto gpu = runtime->device(device_id{0}).value();
  const auto memory = caching_allocator::create(gpu).value();
  const auto on = stream::create(gpu).value();
  void* const before = memory.allocate(4_KiB, on);
  const auto watch = machine->watch_blocks();
  const auto registered = memory.add_observer(*watch).value();
  memory.deallocate(before, on);  // nobody knows what it was
  void* const p = memory.allocate(8_KiB, on);
  memory.deallocate(p, on);
  for (void* const each : {before, p}) {
    const auto address = reinterpret_cast<driver::CUdeviceptr>(each);
    ASSERT_TRUE(machine->launch(on.handle(), "late", {sim::writes(address, 8)}));
  }
  ASSERT_EQ(machine->hazards().size(), 1u);
  EXPECT_EQ(machine->hazards()[0].shared.address, reinterpret_cast<driver::CUdeviceptr>(p));
}

}  // namespace
}  // namespace weir::testing_support
