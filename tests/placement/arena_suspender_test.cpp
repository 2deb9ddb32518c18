// SPDX-License-Identifier: Apache-2.0
// What goes when an arena is suspended, what comes back, and what is counted.
#include "placement/arena_suspender.hpp"

#include <tuple>
#include <utility>

#include "placement/arena_records.hpp"

namespace weir::placement { namespace {

using testing_support::kib;
using testing_support::mib;

class suspenders : public arena_records {
 protected:
  class counts final : public arena_host {
   public:
    [[nodiscard]] arena_figures figures() const noexcept override { return {.reserved = reserved}; }
    void count_created(std::uint64_t size) noexcept override { reserved += size; }
    void count_released(std::uint64_t size) noexcept override { reserved -= size; }
    void moved(std::uint64_t /*slots*/) noexcept override {}
    void hand_out(block_index /*index*/, const request& /*wanted*/) noexcept override {}
    std::uint64_t reserved = 100 * mib;
  };

  suspenders() = default;
  explicit suspenders(const growth_rules& rules) : arena_records{rules} {}

  /// Slot, slots, memory and whether it is mapped.
  using place = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, bool>;
  [[nodiscard]] std::vector<place> places(const suspension& plan) const {
    std::vector<place> all;
    for (const suspended_place& each : plan.places)
      all.emplace_back(slots.slot_of(each.address), each.size.count() / slot, each.memory.handle,
                       each.mapped);
    return all;
  }
  /// All memory went.
  void suspend() {
    suspension plan = part.plan_suspend();
    for (suspended_place& each : plan.places) {
      each.memory = {};
      each.mapped = false;
    }
    for (left_mapping& each : plan.left) each.mapped = false;
    part.apply(plan);
    told.all.clear();
  }

  counts host;
  arena_suspender part{core, host};
};

TEST_F(suspenders, all_handles_go_and_old_mappings_as_well) {
  live(2 * mib);
  handle_slots = 2;
  const block_index moved = run(4 * mib);
  core.leave_hole(2, moved, {});
  slots.resize(6);
  slots.enter(2, 4, /*returns=*/false);
  const suspension plan = part.plan_suspend();
  EXPECT_EQ(places(plan), (std::vector<place>{{0, 1, 1, true}, {4, 2, 2, true}}));
  ASSERT_EQ(plan.left.size(), 1u);
  EXPECT_EQ(plan.left[0].address, at(2 * mib));
  EXPECT_EQ(plan.left[0].size, bytes{4 * mib});
  EXPECT_TRUE(plan.left[0].mapped);
}

TEST_F(suspenders, live_bytes_with_little_between_them_are_saved_together) {
  const auto contents = [&] {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> all;
    for (const byte_range& each : part.plan_suspend().contents)
      all.emplace_back((each.address - base) / kib, each.size / kib);
    return all;
  };
  EXPECT_TRUE(contents().empty());
  run(64 * kib);
  live(64 * kib);
  run(256 * kib - unit);
  live(64 * kib + unit);
  run(256 * kib);
  live(384 * kib);
  EXPECT_EQ(contents(),
            (std::vector<std::pair<std::uint64_t, std::uint64_t>>{{64, 384}, {704, 384}}));
}

TEST_F(suspenders, what_was_carried_out_is_counted_and_told) {
  live(2 * mib);
  live(2 * mib);
  suspension plan = part.plan_suspend();
  const vmm::physical kept = plan.places[0].memory;
  plan.places[0].mapped = false;  // the driver did not take its memory
  plan.places[1].memory = {};
  plan.places[1].mapped = false;
  part.apply(plan);
  EXPECT_EQ(host.reserved, 98 * mib);
  EXPECT_EQ(shared.handles_released, 1u);
  ASSERT_EQ(told.all.size(), 1u);
  EXPECT_EQ(told.all[0].kind, memory_event_kind::release);
  EXPECT_EQ(told.all[0].address, at(2 * mib));
  EXPECT_EQ(told.all[0].size, 2 * mib);
  EXPECT_EQ(slots.handle(1).memory, kept);
  EXPECT_TRUE(slots.handle(1).away);
  EXPECT_EQ(part.missing_bytes(), 2 * mib);
  told.all.clear();
  suspension back = part.plan_resume().value();
  EXPECT_EQ(places(back), (std::vector<place>{{0, 1, 1, false}, {1, 1, 0, false}}));
  for (suspended_place& each : back.places) each.mapped = true;
  back.places[1].memory = {.handle = 9, .size = bytes{2 * mib}};
  const std::uint64_t changes = runs.changes();
  part.apply(back);
  EXPECT_NE(runs.changes(), changes);
  EXPECT_EQ(host.reserved, 100 * mib);
  EXPECT_EQ(shared.handles_created, 1u);
  ASSERT_EQ(told.all.size(), 1u);
  EXPECT_EQ(told.all[0].kind, memory_event_kind::reserve);
  EXPECT_FALSE(slots.handle(1).away);
  EXPECT_EQ(slots.handle(2).memory.handle, 9u);
  EXPECT_EQ(part.missing_bytes(), 0u);
}

TEST_F(suspenders, old_mappings_that_went_are_dropped_and_others_stay) {
  const block_index first = run(2 * mib);
  const block_index second = run(2 * mib);
  core.leave_hole(1, first, {});
  core.leave_hole(2, second, {});
  slots.resize(4);
  slots.enter(1, 2, /*returns=*/false);
  slots.enter(2, 3, /*returns=*/false);
  suspension plan = part.plan_suspend();
  plan.left[0].mapped = false;
  part.apply(plan);
  EXPECT_EQ(slots[0].retained, 0u);
  EXPECT_EQ(slots.handle(1).retained, 0u);
  EXPECT_EQ(slots[1].retained, 2u);
  EXPECT_EQ(slots.handle(2).retained, 1u);
  part.apply(plan);
  EXPECT_EQ(slots.handle(1).retained, 0u) << "once";
}

/// Handles of one slot: a live block of one and a half, half a slot that is free, one and a half
/// free slots, and one that is live.
TEST_F(suspenders, free_handles_do_not_come_back) {
  live(3 * mib);
  run(mib);
  run(3 * mib, known.now(stream_slots[0]));
  run(mib, known.now(stream_slots[1]));
  live(2 * mib);
  run(2 * mib);
  suspend();
  EXPECT_EQ(part.missing_bytes(), 6 * mib) << "slots 0, 1 and 4";
  const suspension back = part.plan_resume().value();
  EXPECT_EQ(places(back),
            (std::vector<place>{{0, 1, 0, false}, {1, 1, 0, false}, {4, 1, 0, false}}));
  EXPECT_EQ(slots.count(), 5u) << "the arena became shorter";
  EXPECT_EQ(runs[runs.over(at(4 * mib))].is(), block_kind::hole);
  EXPECT_EQ(runs.holes(), 2u);
  EXPECT_EQ(runs.of(stream_slots[0]).total(), 0u);
  EXPECT_EQ(runs.of(no_stream).total(), mib);
}

TEST_F(suspenders, a_free_handle_that_kept_its_memory_comes_back) {
  run(2 * mib);
  suspension plan = part.plan_suspend();
  plan.places[0].mapped = false;
  part.apply(plan);
  EXPECT_EQ(places(part.plan_resume().value()), (std::vector<place>{{0, 1, 1, false}}));
}

/// Captured graphs may write to what is free.
class suspenders_of_graphs : public suspenders {
 protected:
  static growth_rules rules_of_graphs() {
    growth_rules rules;
    rules.resumes_free = true;
    return rules;
  }
  suspenders_of_graphs() : suspenders{rules_of_graphs()} {}
};

TEST_F(suspenders_of_graphs, free_handles_come_back) {
  live(2 * mib);
  run(2 * mib);
  suspend();
  EXPECT_EQ(part.missing_bytes(), 4 * mib);
  EXPECT_EQ(places(part.plan_resume().value()),
            (std::vector<place>{{0, 1, 0, false}, {1, 1, 0, false}}));
}

}  // namespace
}  // namespace weir::placement
