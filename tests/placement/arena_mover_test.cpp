// SPDX-License-Identifier: Apache-2.0
// Carrying out plans with the driver: what is mapped, what is told, and what a failure leaves.
#include "placement/arena_mover.hpp"

#include <tuple>

#include "placement/arena_records.hpp"

namespace weir::placement { namespace {

using driver::call;
using testing_support::mib;

class movers : public arena_records {
 protected:
  class host_of_tests final : public arena_host {
   public:
    explicit host_of_tests(block_store& blocks) : blocks_{blocks} {}
    [[nodiscard]] arena_figures figures() const noexcept override { return {.reserved = reserved}; }
    void count_created(std::uint64_t size) noexcept override { reserved += size; }
    void count_released(std::uint64_t size) noexcept override { reserved -= size; }
    void moved(std::uint64_t slots) noexcept override { moved_slots += slots; }
    void hand_out(block_index index, const request& wanted) noexcept override {
      blocks_[index].become(block_kind::live);
      blocks_[index].stream = wanted.stream;
    }
    std::uint64_t reserved = 0;
    std::uint64_t moved_slots = 0;

   private:
    block_store& blocks_;
  };
  /// What an event says: its kind, and slots.
  using event = std::tuple<memory_event_kind, std::uint64_t, std::uint64_t, std::uint64_t>;
  static constexpr auto reserve = memory_event_kind::reserve;
  static constexpr auto move = memory_event_kind::move;
  static constexpr auto release = memory_event_kind::release;

  void TearDown() override {
    if (slots.count() != 0) {
      EXPECT_TRUE(give_back_all());
    }
    EXPECT_EQ(used(), 0u);
  }
  [[nodiscard]] result<void> give_back_all() {
    auto given_back = mover.give_back_all(bound);
    told.all.clear();
    runs.clear();
    slots.clear();
    return given_back;
  }
  /// New handles of so many slots each, as one block at the arena's end.
  [[nodiscard]] room_plan new_room(const std::vector<std::uint32_t>& handles) const {
    room_plan plan;
    plan.window.start = slots.end_address();
    plan.window.exists = true;
    auto next = static_cast<std::uint32_t>(slots.count());
    for (const std::uint32_t each : handles) {
      plan.fillings.push_back({.slot = next, .slots = each});
      next += each;
      plan.new_slots += each;
    }
    plan.window.end = slots.address_of(next);
    return plan;
  }
  [[nodiscard]] result<block_index> carry_out(room_plan plan, std::size_t stream = 0) {
    const std::uint64_t size = plan.window.end - plan.window.start;
    return mover.carry_out(plan, asks(size, stream), bound);
  }
  block_index make(const std::vector<std::uint32_t>& handles) {
    return carry_out(new_room(handles)).value();
  }
  void free(block_index index, std::size_t stream = 0) {
    runs.free(index, known.now(stream_slots[stream]));
  }
  /// What the stream freed is everybody's.
  void retire(std::size_t stream = 0) {
    machine->run_until_idle();
    complete(stream);
    runs.retire(stream_slots[stream]);
  }
  /// The room at the arena's end that the handle of a free run moves to.
  [[nodiscard]] room_plan move_to_end(block_index from) const {
    room_plan plan;
    plan.window.start = slots.end_address();
    plan.window.exists = true;
    const handle_number number = slots[slots.slot_of(runs[from].address)].current;
    plan.fillings.push_back({.slot = static_cast<std::uint32_t>(slots.count()),
                             .slots = slots.handle(number).slots,
                             .from = number,
                             .source = from});
    plan.window.end = plan.window.start + slots.bytes_of(slots.handle(number).slots);
    return plan;
  }
  [[nodiscard]] std::vector<event> events() {
    std::vector<event> all;
    for (const memory_event& each : told.all) {
      const std::uint64_t other =
          each.kind == move ? slots.slot_of(each.other_address) : std::uint64_t{0};
      all.emplace_back(each.kind, slots.slot_of(each.address), each.size / slot, other);
    }
    told.all.clear();
    return all;
  }
  [[nodiscard]] std::vector<handle_number> current() const {
    std::vector<handle_number> all;
    for (std::uint64_t i = 0; i < slots.count(); ++i) all.push_back(slots[i].current);
    return all;
  }
  [[nodiscard]] std::vector<handle_number> retained() const {
    std::vector<handle_number> all;
    for (std::uint64_t i = 0; i < slots.count(); ++i) all.push_back(slots[i].retained);
    return all;
  }
  using list = std::vector<handle_number>;
  [[nodiscard]] std::uint64_t used() const {
    return machine->used(device_id{0}).count() - 64 * mib;  // what the context takes
  }

  host_of_tests host{blocks};
  arena_mover mover{core, host};
};

TEST_F(movers, new_handles_become_a_block_at_the_end) {
  const block_index low = make({2, 1});
  EXPECT_EQ(runs[low].address, base);
  EXPECT_EQ(runs[low].size(), 6 * mib);
  EXPECT_EQ(runs[low].is(), block_kind::live);
  EXPECT_EQ(runs[low].stream, stream_slots[0]);
  EXPECT_EQ(current(), (list{1, 1, 2}));
  EXPECT_EQ(events(), (std::vector<event>{{reserve, 0, 2, 0}, {reserve, 2, 1, 0}}));
  EXPECT_EQ(host.reserved, 6 * mib);
  EXPECT_EQ(used(), 6 * mib);
  EXPECT_EQ(shared.handles_created, 2u);
  EXPECT_EQ(host.moved_slots, 0u);
  const block_index high = make({1});
  EXPECT_EQ(runs[high].before, low);
  EXPECT_EQ(runs[high].address, at(6 * mib));
}

TEST_F(movers, what_the_window_leaves_of_its_handles_is_everybodys) {
  room_plan plan = new_room({2});
  plan.window.end = plan.window.start + 3 * mib;
  const block_index made = carry_out(plan).value();
  EXPECT_EQ(runs[made].size(), 3 * mib);
  const block& rest = runs[runs[made].after];
  EXPECT_EQ(rest.is(), block_kind::run);
  EXPECT_EQ(rest.size(), mib);
  EXPECT_EQ(rest.stream, no_stream);
}

TEST_F(movers, a_handle_moves_and_leaves_its_mapping_behind) {
  const block_index low = make({1});
  make({1});
  free(low);
  static_cast<void>(events());
  const std::uint64_t unmapped = machine->calls(call::mem_unmap);
  const block_index moved = carry_out(move_to_end(low)).value();
  EXPECT_EQ(runs[moved].address, at(4 * mib));
  EXPECT_EQ(runs[moved].is(), block_kind::live);
  EXPECT_EQ(runs[runs.first()].is(), block_kind::hole);
  EXPECT_EQ(runs[runs.first()].stream, stream_slots[0]) << "it may use the old address still";
  EXPECT_EQ(current(), (list{0, 2, 1}));
  EXPECT_EQ(retained(), (list{1, 0, 0}));
  EXPECT_EQ(events(), (std::vector<event>{{move, 2, 1, 0}}));
  EXPECT_EQ(host.moved_slots, 1u);
  EXPECT_EQ(host.reserved, 4 * mib);
  EXPECT_EQ(shared.handles_moved, 1u);
  EXPECT_EQ(used(), 4 * mib);
  EXPECT_EQ(machine->calls(call::mem_unmap), unmapped);
}

TEST_F(movers, a_handle_that_returns_takes_no_driver_call) {
  const block_index low = make({1});
  make({1});
  free(low);
  const block_index moved = carry_out(move_to_end(low)).value();
  free(moved);
  retire();
  static_cast<void>(events());
  room_plan back;
  back.window = {.start = base, .end = base + slot, .first = runs.first(), .exists = true};
  back.fillings.push_back({.slot = 0,
                           .slots = 1,
                           .from = 1,
                           .returns = true,
                           .source = runs.last(),
                           .hole = runs.first()});
  const std::uint64_t calls = machine->calls(call::mem_map) + machine->calls(call::mem_unmap) +
                              machine->calls(call::mem_set_access);
  EXPECT_EQ(runs[carry_out(back).value()].address, base);
  EXPECT_EQ(machine->calls(call::mem_map) + machine->calls(call::mem_unmap) +
                machine->calls(call::mem_set_access),
            calls);
  EXPECT_EQ(current(), (list{1, 2, 0}));
  EXPECT_EQ(retained(), (list{0, 0, 1}));
  EXPECT_EQ(shared.handles_returned, 1u);
  EXPECT_EQ(host.moved_slots, 1u) << "a return is no move";
  EXPECT_EQ(events(), (std::vector<event>{{move, 0, 1, 2}}));
}

TEST_F(movers, old_mappings_go_where_another_handle_comes) {
  const block_index low = make({1});
  const block_index kept = make({1});
  free(low);
  static_cast<void>(carry_out(move_to_end(low)).value());
  retire();
  free(kept);
  room_plan plan;
  plan.window = {.start = base, .end = base + slot, .first = runs.first(), .exists = true};
  plan.fillings.push_back({.slot = 0, .slots = 1, .from = 2, .source = kept, .hole = runs.first()});
  const std::uint64_t unmapped = machine->calls(call::mem_unmap);
  EXPECT_EQ(runs[carry_out(plan).value()].address, base);
  EXPECT_EQ(machine->calls(call::mem_unmap), unmapped + 1);
  EXPECT_EQ(current(), (list{2, 0, 1}));
  EXPECT_EQ(retained(), (list{0, 2, 0}));
  EXPECT_EQ(slots.handle(1).retained, 0u);
}

TEST_F(movers, what_must_be_unmapped_at_once_is) {
  shared.unmap_at_once = true;
  const block_index low = make({1});
  make({1});
  free(low);
  static_cast<void>(carry_out(move_to_end(low)).value());
  EXPECT_EQ(retained(), (list{0, 0, 0}));
  EXPECT_EQ(runs[runs.first()].is(), block_kind::hole);
}

TEST_F(movers, the_stream_waits_for_others_or_gets_nothing) {
  const block_index low = make({1});
  make({1});
  keep_busy(1);
  free(low, 1);
  EXPECT_TRUE(known.close(stream_slots[1], bound));
  known.pause();
  EXPECT_EQ(carry_out(move_to_end(low)).value(), no_block);
  known.resume();
  EXPECT_EQ(current(), (list{1, 2}));
  EXPECT_EQ(known.waits_queued(), 0u);
  const block_index moved = carry_out(move_to_end(low)).value();
  EXPECT_EQ(runs[moved].stream, stream_slots[0]);
  EXPECT_GT(known.waits_queued(), 0u);
}

TEST_F(movers, a_call_that_fails_leaves_all_as_it_was) {
  make({1});
  static_cast<void>(events());
  for (const auto failing : {call::mem_create, call::mem_map, call::mem_set_access}) {
    for (const std::uint64_t nth : {1, 2, 3}) {
      machine->fail(failing, nth, driver::CUDA_ERROR_UNKNOWN);
      EXPECT_FALSE(carry_out(new_room({1, 2, 1})));
      machine->clear_faults();
      EXPECT_EQ(current(), (list{1}));
      EXPECT_EQ(used(), 2 * mib);
      EXPECT_EQ(runs.first(), runs.last());
      EXPECT_EQ(runs.stuck(), 0u);
      EXPECT_EQ(events(), std::vector<event>{});
    }
  }
  EXPECT_EQ(slots.handle_count(), 5u) << "records are used again";
  EXPECT_EQ(host.reserved, 2 * mib);
}

TEST_F(movers, memory_that_the_driver_refuses_is_noted) {
  make({1});
  shared.reserved = 2 * mib;
  machine->fail(call::mem_create, 1, driver::CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(carry_out(new_room({1})).code(), errc::out_of_memory);
  EXPECT_EQ(shared.refused_at, 2 * mib);
}

TEST_F(movers, a_mapping_that_cannot_be_undone_blocks_its_addresses_until_it_can) {
  make({1});
  machine->fail(call::mem_set_access, 2, driver::CUDA_ERROR_UNKNOWN);
  machine->fail(call::mem_unmap, 1, driver::CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(carry_out(new_room({1, 2})));
  // The second is stuck, the first was undone.
  ASSERT_EQ(runs.stuck(), 1u);
  EXPECT_EQ(runs[runs.last()].is(), block_kind::stuck);
  EXPECT_EQ(runs[runs.last()].address, at(4 * mib));
  EXPECT_EQ(runs[runs.last()].size(), 4 * mib);
  EXPECT_EQ(runs[runs[runs.last()].before].is(), block_kind::hole);
  machine->fail(call::mem_unmap, 1, driver::CUDA_ERROR_UNKNOWN);
  mover.unblock(bound);
  EXPECT_EQ(runs.stuck(), 1u);
  mover.unblock(bound);
  EXPECT_EQ(runs.stuck(), 0u);
  core.drop_trailing_holes();
  EXPECT_EQ(slots.count(), 1u);
  EXPECT_EQ(used(), 2 * mib);
}

TEST_F(movers, holes_with_old_mappings_stay_at_the_end) {
  make({1});
  const block_index high = make({1});
  free(high);
  room_plan plan;
  core.append_hole(4);
  plan.window = {.start = at(4 * mib), .end = at(6 * mib), .first = runs.last(), .exists = true};
  plan.fillings.push_back({.slot = 2, .slots = 1, .from = 2, .source = high, .hole = runs.last()});
  const block_index moved = carry_out(plan).value();
  free(moved);
  retire();
  EXPECT_EQ(mover.release(bytes::max().count(), bound).value(), 2 * mib);
  EXPECT_EQ(slots.count(), 1u) << "the handle went with both of its mappings";
  EXPECT_EQ(used(), 2 * mib);
}

TEST_F(movers, handles_are_released_from_the_end_until_enough_went) {
  make({1});
  const block_index free_one = make({1, 2, 1});
  free(free_one);
  EXPECT_EQ(mover.release(bytes::max().count(), bound).value(), 0u) << "a stream may use it";
  retire();
  static_cast<void>(events());
  EXPECT_EQ(mover.release(unit, bound).value(), 2 * mib);
  EXPECT_EQ(events(), (std::vector<event>{{release, 4, 1, 0}}));
  EXPECT_EQ(slots.count(), 4u);
  EXPECT_EQ(host.reserved, 8 * mib);
  EXPECT_EQ(used(), 8 * mib);
  EXPECT_EQ(mover.release(2 * mib + unit, bound).value(), 4 * mib) << "handles go whole";
  EXPECT_EQ(mover.release(bytes::max().count(), bound).value(), 2 * mib);
  EXPECT_EQ(shared.handles_released, 3u);
  EXPECT_EQ(current(), (list{1}));
}

TEST_F(movers, a_handle_with_a_mapping_in_use_is_not_released) {
  const block_index low = make({1});
  make({1});
  keep_busy(0);
  free(low);
  const block_index moved = carry_out(move_to_end(low)).value();
  runs.free(moved, {});  // nobody uses the new place
  EXPECT_EQ(mover.release(bytes::max().count(), bound).value(), 0u);
  retire();
  EXPECT_EQ(mover.release(bytes::max().count(), bound).value(), 2 * mib);
}

TEST_F(movers, a_release_that_fails_at_the_unmap_is_taken_back) {
  free(make({1}));
  retire();
  static_cast<void>(events());
  machine->fail(call::mem_unmap, 1, driver::CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(mover.release(bytes::max().count(), bound));
  EXPECT_EQ(events(), (std::vector<event>{{release, 0, 1, 0}, {reserve, 0, 1, 0}}));
  EXPECT_EQ(current(), (list{1}));
  EXPECT_EQ(host.reserved, 2 * mib);
}

TEST_F(movers, access_is_granted_to_current_and_to_old_mappings) {
  const block_index low = make({1});
  make({2});
  free(low);
  static_cast<void>(carry_out(move_to_end(low)).value());
  const std::uint64_t granted = machine->calls(call::mem_set_access);
  EXPECT_TRUE(mover.grant(vmm::access_for(gpu), bound));
  EXPECT_EQ(machine->calls(call::mem_set_access), granted + 3);
}

TEST_F(movers, all_is_given_back_and_the_first_error_is_returned) {
  const block_index low = make({1});
  make({2});
  free(low);
  static_cast<void>(carry_out(move_to_end(low)).value());
  static_cast<void>(events());
  machine->fail(call::mem_unmap, 1, driver::CUDA_ERROR_INVALID_VALUE);
  machine->fail(call::mem_release, 1, driver::CUDA_ERROR_UNKNOWN);  // tried again
  const auto given_back = mover.give_back_all(bound);
  EXPECT_EQ(given_back.error().native(), driver::CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(events(), (std::vector<event>{{release, 3, 1, 0}, {release, 1, 2, 0}}));
  EXPECT_EQ(used(), 2 * mib) << "what is mapped there still";
  runs.clear();
  slots.clear();
  EXPECT_TRUE(vmm::unmap(bound, base, bytes{slot}));
}

}  // namespace
}  // namespace weir::placement
