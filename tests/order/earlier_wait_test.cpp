// SPDX-License-Identifier: Apache-2.0
// Uses on a stream that waited for the stream of the request before the request was made: right
// wherever memory stays with its stream, since a request adds nothing to what its stream waits for.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "support/sizes.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/event.hpp"
#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"

namespace weir::order_test { namespace {

using testing_support::mib;

/// A table is copied out on one stream and back on another, over memory of a third. Nothing happens
/// on the machine unless somebody waits.
class EarlierWait : public ::testing::TestWithParam<crossing_rule> {
 protected:
  static constexpr std::uint64_t size = 64 * mib;

  static std::shared_ptr<sim::machine> make_machine() {
    sim::machine_options chosen;
    chosen.mode = sim::progress::manual;
    return sim::machine::create(chosen).value();
  }
  void read(const stream& on, const void* block) { use(on, "out", block, sim::reads); }
  void write(const stream& on, const void* block) { use(on, "back", block, sim::writes); }
  void wait(const stream& later, const stream& earlier) {
    auto mark = event::create(gpu).value();
    ASSERT_TRUE(mark.record(earlier));
    ASSERT_TRUE(later.ref().wait(mark));
  }
  /// The block is read behind all that its stream was given, and freed.
  void stash(void* block, const stream& of) {
    wait(out, of);
    read(out, block);
    ASSERT_TRUE(memory.record_stream(block, out));
    memory.deallocate(block, of);
  }
  /// A table of the stream that copies out, freed while its work is queued.
  void free_elsewhere() {
    void* const table = memory.allocate(bytes{size}, out);
    write(out, table);
    memory.deallocate(table, out);
  }
  /// A request of the main stream, used by one that waited before.
  void* take_back() {
    wait(back, main);
    void* const block = memory.allocate(bytes{size}, main);
    write(back, block);
    EXPECT_TRUE(memory.record_stream(block, back));
    wait(main, back);
    return block;
  }
  void expect_order_behind_waits() {
    EXPECT_GT(memory.stats().waits, 0u) << "or the test is about nothing";
    EXPECT_EQ(memory.stats().reserved.current, bytes{size}) << "there is no second buffer";
    for (const sim::hazard& each : machine->hazards()) ADD_FAILURE() << each.message();
    machine->run_until_idle();
    for (const sim::hazard& each : machine->hazards()) ADD_FAILURE() << each.message();
  }

  std::shared_ptr<sim::machine> machine = make_machine();
  std::shared_ptr<runtime> sim_runtime = runtime::open_simulated(machine).value();
  device gpu = sim_runtime->device(device_id{0}).value();
  context_scope bound{gpu};
  caching_allocator memory = caching_allocator::create(gpu, {.crossing = GetParam()}).value();
  stream main = stream::create(gpu).value();
  stream out = stream::create(gpu).value();
  stream back = stream::create(gpu).value();

 private:
  template <class Access>
  void use(const stream& on, const char* name, const void* block, Access access) {
    ASSERT_TRUE(machine->launch(on.handle(), name,
                                {access(reinterpret_cast<device_address>(block), size)}));
  }
};

TEST_P(EarlierWait, covers_memory_that_a_recorded_stream_still_uses) {
  void* const table = memory.allocate(bytes{size}, main);
  write(main, table);
  stash(table, main);
  void* const again = take_back();
  expect_order_behind_waits();
  memory.deallocate(again, main);
}

TEST_P(EarlierWait, covers_memory_that_another_stream_freed) {
  free_elsewhere();
  void* const again = take_back();
  expect_order_behind_waits();
  memory.deallocate(again, main);
}

TEST_P(EarlierWait, covers_memory_that_moved_behind_the_wait) {
  std::vector<void*> parts;
  for (int i = 0; i < 2; ++i) parts.push_back(memory.allocate(bytes{size / 2}, out));
  ASSERT_TRUE(machine->launch(out.handle(), "fill",
                              {sim::writes(reinterpret_cast<device_address>(parts[0]), size / 2),
                               sim::writes(reinterpret_cast<device_address>(parts[1]), size / 2)}));
  for (void* const each : parts) memory.deallocate(each, out);
  void* const again = take_back();
  expect_order_behind_waits();
  memory.deallocate(again, main);
}

/// What the main stream got behind a wait is its own from then on, and others' who waited for it.
TEST_P(EarlierWait, covers_the_next_request_as_well) {
  free_elsewhere();
  wait(back, main);
  memory.deallocate(memory.allocate(bytes{size}, main), main);
  void* const again = memory.allocate(bytes{size}, main);
  write(back, again);
  ASSERT_TRUE(memory.record_stream(again, back));
  wait(main, back);
  expect_order_behind_waits();
  memory.deallocate(again, main);
}

/// A stream that is being captured cannot wait: rather new memory than memory that it might use.
TEST_P(EarlierWait, is_not_relied_on_where_a_stream_cannot_be_made_to_wait) {
  free_elsewhere();
  ASSERT_EQ(
      machine->driver().stream_begin_capture(back.handle(), driver::CU_STREAM_CAPTURE_MODE_RELAXED),
      driver::CUDA_SUCCESS);
  void* const other = memory.allocate(bytes{size}, main);
  EXPECT_EQ(memory.stats().waits, 0u);
  EXPECT_EQ(memory.stats().reserved.current, bytes{2 * size});
  driver::CUgraph graph = nullptr;
  ASSERT_EQ(machine->driver().stream_end_capture(back.handle(), &graph), driver::CUDA_SUCCESS)
      << "nobody spoiled it";
  ASSERT_EQ(machine->driver().graph_destroy(graph), driver::CUDA_SUCCESS);
  memory.deallocate(other, main);
}

INSTANTIATE_TEST_SUITE_P(rules, EarlierWait,
                         ::testing::Values(crossing_rule::all_work, crossing_rule::declared_uses),
                         [](const auto& each) {
                           return std::string{each.param == crossing_rule::all_work ? "all_work"
                                                                                    : "declared"};
                         });

}  // namespace
}  // namespace weir::order_test
