// SPDX-License-Identifier: Apache-2.0
// Contract of the allocator: what frameworks build on. Exportable memory stays under its blocks,
// pools for graphs serve captures and replays, a recorded state can be had again.
#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "allocator_contract/players.hpp"

namespace weir::testing_support { namespace {

class frameworks : public allocator_test {
 protected:
  static constexpr CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL,
                                                  CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                                  CU_STREAM_CAPTURE_MODE_RELAXED};

  [[nodiscard]] filled_block make_in(const memory_pool& pool, bytes size, const lane& on) {
    const filled_block made{pool.allocate(size, on), size, new_value()};
    on.fill(made.memory, made.size, made.value);
    return made;
  }
  /// A graph of what `work` queues on the lane.
  template <class Work>
  [[nodiscard]] CUgraphExec capture(const lane& on, CUstreamCaptureMode mode, const Work& work) {
    EXPECT_EQ(CUDA_SUCCESS, cu->stream_begin_capture(on.handle(), mode));
    work();
    return new_exec(end_capture(on.handle()));
  }
  /// Joins a lane to what another one does, in captures, too.
  void follow(const lane& behind, const lane& ahead) {
    const CUevent mark = new_event();
    EXPECT_EQ(CUDA_SUCCESS, cu->event_record(mark, ahead.handle()));
    EXPECT_EQ(CUDA_SUCCESS, cu->stream_wait_event(behind.handle(), mark, 0));
  }
  [[nodiscard]] bool is_active(const lane& on) {
    return stream_ref{on}.capture().value().status == capture_status::active;
  }
  [[nodiscard]] static void* inside(void* block, bytes offset) {
    return static_cast<std::byte*>(block) + offset.count();
  }
};
WEIR_ALLOCATOR_CONTRACT(frameworks);

/// The handles under a block, mapped a second time through descriptors.
class second_view {
 public:
  second_view(weir::device where, const block_handles& under) {
    const context_scope bound{where};
    bytes size{};
    for (const auto& each : under.handles) size += each.size;
    range_ = address_range::reserve(where, size).value();
    bytes at{};
    for (const auto& each : under.handles) {
      const auto sent = vmm::export_descriptor(bound, each).value();
      handles_.push_back(physical_handle::import_descriptor(where, sent.get(), each.size).value());
      mappings_.push_back(mapping::create(*range_, at, handles_.back()).value());
      EXPECT_TRUE(mappings_.back().set_access(where));
      at += each.size;
    }
    block_ = reinterpret_cast<void*>(range_->base() + under.offset.count());
  }
  [[nodiscard]] void* block() const { return block_; }

 private:
  std::optional<address_range> range_;
  std::vector<physical_handle> handles_;
  std::vector<mapping> mappings_;
  void* block_ = nullptr;
};

TEST_P(frameworks, exported_memory_stays_under_its_block_while_all_around_it_moves) {
  if (is_classic()) {
    EXPECT_EQ(code_of(caching_allocator::create(where(), {.policy = policy(), .exportable = true})),
              errc::not_supported);
    return;
  }
  if (!where().capabilities().posix_descriptors) GTEST_SKIP() << "no descriptors";
  reopen({.limit = 80_MiB, .exportable = true});
  lane& on = new_lane();
  lane& other = new_lane();
  std::vector<filled_block> kept, freed;
  for (int i = 0; i < 40; ++i) (i % 2 == 0 ? kept : freed).push_back(make(2_MiB, on));
  for (const auto& each : freed) finish(each, on);
  std::vector<block_handles> under;
  std::vector<std::unique_ptr<second_view>> views;
  for (const auto& each : kept) {
    under.push_back(memory().handles_under(each.memory).value());
    views.push_back(std::make_unique<second_view>(where(), under.back()));
  }
  for (int round = 0; round < 4; ++round) {
    lane& busy = round % 2 == 0 ? on : other;
    if (const auto large = memory().try_allocate(24_MiB, busy)) {
      const filled_block block{*large, 24_MiB, new_value()};
      busy.fill(block.memory, block.size, block.value);
      finish(block, busy);
    } else {
      EXPECT_FALSE(moves()) << large.error().message();
    }
    for (int i = 0; i < 10; ++i)
      if (const auto small = memory().try_allocate(2_MiB, busy)) {
        const filled_block block{*small, 2_MiB, new_value()};
        busy.fill(block.memory, block.size, block.value);
        finish(block, busy);
      }
    for (std::size_t i = 0; i < kept.size(); ++i) {
      const auto now = memory().handles_under(kept[i].memory).value();
      EXPECT_EQ(now.handles, under[i].handles);
      EXPECT_EQ(now.offset, under[i].offset);
      on.check(views[i]->block(), kept[i].size, kept[i].value);
    }
  }
  if (moves()) {
    EXPECT_GT(memory().stats().handles_moved, 0U);
  }
  // The other way round, too: what is written through the view is in the block.
  kept.front().value = new_value();
  on.fill(views.front()->block(), kept.front().size, kept.front().value);
  for (const auto& each : kept) finish(each, on);
  WEIR_OK(cu->ctx_synchronize());  // before the views go
  expect_books();
}

TEST_P(frameworks, a_block_is_known_from_any_address_inside) {
  lane& on = new_lane();
  const auto pool = memory().create_pool("apart").value();
  const filled_block blocks[] = {make(700_B, on), make(9_MiB, on), make_in(pool, 3_MiB, on)};
  for (const filled_block& each : blocks) {
    for (const bytes at : {0_B, 1_B, each.size / 2, each.size - 1_B}) {
      const auto found = memory().block_at(inside(each.memory, at));
      ASSERT_TRUE(found) << found.error().message();
      EXPECT_EQ(found->address, reinterpret_cast<device_address>(each.memory));
      EXPECT_EQ(found->requested, each.size);
      EXPECT_EQ(found->stream, on.stream().id());
      EXPECT_EQ(found->pool, &each == &blocks[2] ? pool.id() : pool_id{});
    }
    finish(each, on);
    EXPECT_EQ(code_of(memory().block_at(inside(each.memory, 1_B))), errc::foreign_pointer);
  }
}

TEST_P(frameworks, a_pool_that_retains_serves_captures_on_many_threads) {
  WEIR_NEEDS(graph_instantiate);
  const auto pool = memory().create_pool("graphs", {.for_graphs = true}).value();
  lane& captured = new_lane();
  lane& branch = new_lane();
  WEIR_OK(cu->ctx_synchronize());  // graphs use the lanes' counters on any stream
  std::vector<CUgraphExec> graphs;
  std::vector<filled_block> lasting;
  const auto warm_up = [&] {
    for (const bytes size : {4_KiB, 700_KiB, 6_MiB})
      finish(make_in(pool, size, captured), captured);
  };
  warm_up();
  for (const auto mode : modes) {
    const auto notice = memory().guard_captures().value();
    graphs.push_back(capture(captured, mode, [&] {
      lasting.push_back(make_in(pool, 4_MiB, captured));
      const filled_block shared = make_in(pool, 1_MiB, captured);
      follow(branch, captured);
      branch.check(shared.memory, shared.size, shared.value);
      EXPECT_TRUE(memory().record_stream(shared.memory, branch));
      memory().deallocate(shared.memory);
      for (const bytes size : {4_KiB, 700_KiB, 2_MiB, 1_MiB}) {
        const filled_block passing = make_in(pool, size, captured);
        EXPECT_NE(passing.memory, shared.memory) << "a stream of the capture still reads it";
        const filled_block beside = make_in(pool, size, branch);
        WEIR_OK(spin(std::chrono::microseconds{50}, captured.handle()));
        branch.check(beside.memory, beside.size, beside.value);
        captured.check(passing.memory, passing.size, passing.value);
        // Frees may come from any thread, for the stream that allocated.
        std::thread{[&] {
          EXPECT_EQ(CUDA_SUCCESS, cu->ctx_set_current(context));
          memory().deallocate(passing.memory);
          memory().deallocate(beside.memory);
        }}.join();
      }
      follow(captured, branch);
      EXPECT_TRUE(is_active(captured));
    }));
    warm_up();
  }
  expect_books();
  expect_snapshot();
  const auto reserved = pool.stats().reserved.current;

  // While the graphs are replayed, two threads write all the memory they can get.
  busy_neighbours others{*this};
  for (int round = 0; round < 8; ++round) {
    for (std::size_t i = 0; i < graphs.size(); ++i) {
      EXPECT_EQ(CUDA_SUCCESS, cu->graph_launch(graphs[i], captured.handle()));
      captured.check(lasting[i].memory, lasting[i].size, lasting[i].value);
    }
    warm_up();
    EXPECT_TRUE(memory().trim());
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
  others.stop();
  EXPECT_TRUE(memory().empty_cache());
  EXPECT_EQ(pool.stats().reserved.current, reserved) << "nothing of it goes while it is held";
  EXPECT_EQ(captured.mismatches(), 0U);
  EXPECT_EQ(branch.mismatches(), 0U);
  for (const auto& each : lasting) finish(each, captured);
  expect_books();
  EXPECT_EQ(pool.empty_cache().value(), reserved) << "no graph is replayed any more";
}

TEST_P(frameworks, a_pool_that_retains_goes_with_its_last_handle_block_and_replay) {
  WEIR_NEEDS(graph_instantiate);
  lane& on = new_lane();
  auto pool = memory().create_pool("graphs", {.for_graphs = true}).value();
  filled_block last;
  const CUgraphExec graph = capture(on, CU_STREAM_CAPTURE_MODE_RELAXED, [&] {
    last = make_in(pool, 2_MiB, on);
    finish(make_in(pool, 30_MiB, on), on);
  });
  WEIR_OK(cu->graph_launch(graph, on.handle()));
  WEIR_OK(spin(std::chrono::milliseconds{2}, on.handle()));
  WEIR_OK(cu->graph_launch(graph, on.handle()));
  pool = {};
  EXPECT_TRUE(memory().trim());
  EXPECT_TRUE(memory().empty_cache());
  EXPECT_GE(memory().stats().reserved.current, 32_MiB) << "a block lives";
  finish(last, on);
  EXPECT_TRUE(memory().empty_cache());
  EXPECT_EQ(memory().stats().reserved.current, 0_B);
  EXPECT_EQ(memory().snapshot().pools.size(), 1U);
}

TEST_P(frameworks, a_recorded_state_is_had_again_at_its_addresses) {
  lane* const lanes[] = {&new_lane(), &new_lane()};
  const auto pool = memory().create_pool("graphs", {.for_graphs = true}).value();
  struct owned {
    filled_block block;
    lane* on;
  };
  std::vector<owned> live;
  for (std::size_t i = 0; i < 30; ++i) {
    lane& on = *lanes[i % 2];
    live.push_back({make_in(pool, bytes{70'000 * (1 + i % 37)}, on), &on});
    if (i % 5 != 4) continue;
    finish(live[live.size() / 2].block, *live[live.size() / 2].on);
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(live.size() / 2));
  }
  const pool_snapshot recorded = pool.snapshot();
  EXPECT_EQ(static_cast<std::size_t>(
                std::count_if(recorded.blocks.begin(), recorded.blocks.end(),
                              [](const auto& each) { return each.state == block_state::live; })),
            live.size());
  for (const owned& each : live) finish(each.block, *each.on);
  for (const bytes size : {5_MiB, 100_KiB}) finish(make_in(pool, size, *lanes[0]), *lanes[0]);
  for (owned& each : live) {
    EXPECT_EQ(pool.allocate_at(each.block.memory, each.block.size, *each.on).value(),
              each.block.memory);
    EXPECT_EQ(code_of(pool.allocate_at(each.block.memory, each.block.size, *each.on)),
              errc::not_ready);
    each.block.value = new_value();
    each.on->fill(each.block.memory, each.block.size, each.block.value);
  }
  const pool_snapshot restored = pool.snapshot();
  EXPECT_EQ(restored.stats.requested.current, recorded.stats.requested.current);
  EXPECT_EQ(restored.stats.blocks.current, live.size());
  for (const owned& each : live) finish(each.block, *each.on);
  expect_books();
  expect_snapshot();
}

}  // namespace
}  // namespace weir::testing_support
