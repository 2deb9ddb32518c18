// SPDX-License-Identifier: Apache-2.0
// Contract of resources: the order of streams, threads and captures.
#include <random>
#include <thread>

#include "resource_contract/resource_test.hpp"

namespace weir::testing_support { namespace {

class resource_ordering : public resource_test {};
WEIR_RESOURCE_CONTRACT(resource_ordering);

const bytes sizes[] = {256_B, 4_KiB, 60_KiB, 512_KiB, 1_MiB, 2_MiB + 4_B};

// The patterns find memory that two have at once, the oracle every missing order.
TEST_P(resource_ordering, streams_hand_memory_to_each_other) {
  lane* const on[] = {&new_lane(), &new_lane(), &new_lane()};
  std::mt19937_64 random{std::get<1>(GetParam())};
  const auto pick = [&](std::size_t count) { return static_cast<std::size_t>(random() % count); };
  struct held {
    filled_block block;
    lane* user;
  };
  std::vector<held> live;
  for (int i = 0; i < 120; ++i) {
    if (live.size() < 12 && (live.empty() || pick(2) == 0)) {
      lane& user = *on[pick(3)];
      live.push_back({make(sizes[pick(std::size(sizes))], user), &user});
      continue;
    }
    const auto chosen = live.begin() + static_cast<std::ptrdiff_t>(pick(live.size()));
    lane& last = *on[pick(3)];
    if (&last != chosen->user) last.wait_for(*chosen->user);
    finish(chosen->block, last);  // often on another stream than it was allocated for
    live.erase(chosen);
  }
  for (const held& each : live) finish(each.block, *each.user);
}

// A stream that is far behind must not lose what it still reads to one that is ahead.
TEST_P(resource_ordering, memory_of_a_busy_stream_is_not_used_early) {
  if (about().free_waits) GTEST_SKIP() << "a free would wait for the busy stream";
  lane& busy = new_lane();
  lane& idle = new_lane();
  finish(make(1_MiB, busy), busy);  // so that something can be reused
  ASSERT_TRUE(busy.stream().synchronize());
  finish(make(1_MiB, idle), idle);
  ASSERT_TRUE(idle.stream().synchronize());
  const auto held = occupy(busy.handle());
  std::vector<filled_block> behind;
  for (int i = 0; i < 4; ++i) behind.push_back(make(1_MiB, busy));
  for (const auto& each : behind) finish(each, busy);
  std::vector<filled_block> ahead;
  for (int i = 0; i < 4; ++i) ahead.push_back(make(1_MiB, idle));
  held->finish();
  for (const auto& each : ahead) finish(each, idle);
}

// Recorded before the work it is for: what the stream is given until the free counts.
TEST_P(resource_ordering, a_recorded_stream_may_use_memory_until_the_free) {
  lane& owner = new_lane();
  lane& reader = new_lane();
  for (const bytes size : sizes) {
    const filled_block block = make(size, owner);
    reader.wait_for(owner);
    const auto recorded = memory().record_stream(block.memory, reader);
    ASSERT_TRUE(recorded) << recorded.error().message();
    auto held = about().free_waits ? nullptr : occupy(reader.handle());
    reader.check(block.memory, block.size, block.value);
    const auto freed = memory().try_deallocate(block.memory, block.size, owner);
    EXPECT_TRUE(freed) << freed.error().message();
    std::vector<filled_block> next;
    for (int i = 0; i < 3; ++i) next.push_back(make(size, owner));
    if (held) held->finish();
    for (const filled_block& each : next) finish(each, owner);
  }
}

TEST_P(resource_ordering, a_recorded_stream_may_end_before_the_free) {
  lane& owner = new_lane();
  for (int i = 0; i < 4; ++i) {
    lane& reader = new_lane();
    const filled_block block = make(1_MiB, owner);
    reader.wait_for(owner);
    ASSERT_TRUE(memory().record_stream(block.memory, reader));
    reader.check(block.memory, block.size, block.value);
    reader.close();
    EXPECT_TRUE(memory().try_deallocate(block.memory, block.size, owner));
    finish(make(1_MiB, owner), owner);
  }
}

TEST_P(resource_ordering, streams_are_recorded_for_live_memory_alone) {
  lane& owner = new_lane();
  lane& reader = new_lane();
  int foreign = 0;
  EXPECT_EQ(memory().record_stream(&foreign, reader).code(), errc::foreign_pointer);
  const filled_block block = make(4_KiB, owner);
  finish(block, owner);
  EXPECT_FALSE(memory().record_stream(block.memory, reader)) << "it was freed";
}

TEST_P(resource_ordering, threads_do_not_meet) {
  constexpr int threads = 4;
  std::vector<lane*> lanes;
  for (int t = 0; t < threads; ++t) lanes.push_back(&new_lane());
  std::vector<std::thread> crowd;
  for (int t = 0; t < threads; ++t) {
    crowd.emplace_back([&, t] {
      ASSERT_EQ(CUDA_SUCCESS, cu->ctx_set_current(context));
      lane& own = *lanes[static_cast<std::size_t>(t)];
      std::mt19937_64 random{static_cast<std::uint64_t>(t) + 1};
      std::vector<filled_block> live;
      for (int i = 0; i < 40; ++i) {
        live.push_back(make(sizes[random() % std::size(sizes)], own));
        if (live.size() < 4) continue;
        finish(live.front(), own);
        live.erase(live.begin());
      }
      for (const auto& each : live) finish(each, own);
    });
  }
  for (std::thread& each : crowd) each.join();
}

// One thread allocates, another frees, on a stream of its own that waited.
TEST_P(resource_ordering, memory_goes_from_thread_to_thread) {
  lane& giver = new_lane();
  lane& taker = new_lane();
  for (int i = 0; i < 10; ++i) {
    const filled_block block = make(256_KiB, giver);
    std::thread{[&] {
      ASSERT_EQ(CUDA_SUCCESS, cu->ctx_set_current(context));
      taker.wait_for(giver);
      finish(block, taker);
    }}.join();
  }
}

// --- Captures -----------------------------------------------------------------------------------

class resource_captures : public resource_test {
 public:
  void begin(const lane& on) {
    ASSERT_EQ(CUDA_SUCCESS, cu->stream_begin_capture(on.handle(), CU_STREAM_CAPTURE_MODE_GLOBAL));
  }
  /// Ends the capture, which must be whole, and runs it.
  void end_and_launch(const lane& on) {
    const CUgraph graph = end_capture(on.handle());
    ASSERT_NE(graph, nullptr) << "the capture was broken";
    const CUgraphExec exec = new_exec(graph);
    ASSERT_EQ(CUDA_SUCCESS, cu->graph_launch(exec, on.handle()));
    ASSERT_TRUE(on.stream().synchronize());
  }
};
WEIR_RESOURCE_CONTRACT(resource_captures);

TEST_P(resource_captures, requests_of_other_streams_do_not_break_a_capture) {
  lane& captured = new_lane();
  lane& other = new_lane();
  const CUdeviceptr scratch = new_memory(4096);
  finish(make(64_KiB, other), other);
  begin(captured);
  WEIR_OK(fill(scratch, 1, 1024, captured.handle()));
  for (const bytes size : {4_KiB, 64_KiB, 3_MiB}) {
    const auto pointer = memory().try_allocate(size, other);
    ASSERT_TRUE(pointer) << pointer.error().message();
    const auto freed = memory().try_deallocate(*pointer, size, other);
    EXPECT_TRUE(freed) << freed.error().message();
  }
  end_and_launch(captured);
}

TEST_P(resource_captures, what_a_captured_stream_asks_for_is_defined) {
  lane& captured = new_lane();
  finish(make(64_KiB, captured), captured);
  ASSERT_TRUE(captured.stream().synchronize());
  begin(captured);
  const auto pointer = memory().try_allocate(64_KiB, captured);
  bool still_live = pointer.has_value();
  if (pointer) {
    const auto at = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(*pointer));
    WEIR_OK(fill(at, 7, 64 * kib / sizeof(word), captured.handle()));
    if (about().frees_in_captures) {
      const auto freed = memory().try_deallocate(*pointer, 64_KiB, captured);
      still_live = !freed;
      if (!freed) {
        EXPECT_EQ(freed.code(), errc::capture_forbidden);
      }
    }
  } else {
    EXPECT_EQ(pointer.code(), errc::capture_forbidden);
    WEIR_OK(fill(new_memory(4096), 1, 1024, captured.handle()));
  }
  end_and_launch(captured);
  if (still_live) {
    EXPECT_TRUE(memory().try_deallocate(*pointer, 64_KiB, captured));
  }
}

}  // namespace
}  // namespace weir::testing_support
