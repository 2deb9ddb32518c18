// SPDX-License-Identifier: Apache-2.0
// Stream order of a host arena, checked by the simulator's hazard oracle.
#include <random>
#include <vector>

#include "host/arena_fixture.hpp"

namespace weir::testing_support { namespace {

class arena_order_test : public arena_test {
 protected:
  [[nodiscard]] std::shared_ptr<host::arena> small() {
    auto arena = make();
    EXPECT_TRUE(arena->reserve(2_MiB, host_wait::yes));
    return arena;
  }
};

TEST_F(arena_order_test, a_block_is_given_out_again_when_its_copies_are_done) {
  const auto arena = small();
  const auto stream = new_stream();
  void* const p = arena->allocate(2_MiB, stream, 64_B).value();
  host_writes(p, 2_MiB);
  read(stream, p, 2_MiB);
  ASSERT_TRUE(arena->deallocate(p, nullptr));
  void* const q = arena->allocate(2_MiB, stream, 64_B).value();
  EXPECT_NE(q, p) << "the copy has not run; the host must not write there";
  host_writes(q, 2_MiB);
  ASSERT_TRUE(stream.synchronize());
  void* const r = arena->allocate(2_MiB, stream, 64_B).value();
  EXPECT_EQ(r, p);
  host_writes(r, 2_MiB);
  EXPECT_EQ(arena->stats().pins, 2u);
  ASSERT_TRUE(arena->deallocate(q, nullptr));
  ASSERT_TRUE(arena->deallocate(r, nullptr));
  EXPECT_EQ(arena->check(), "");
}

TEST_F(arena_order_test, the_work_of_every_known_stream_counts) {
  const auto arena = small();
  const auto one = new_stream();
  const auto two = new_stream();
  void* const p = arena->allocate(2_MiB, one, 64_B).value();
  read(two, p, 2_MiB);  // not recorded; a weir::stream is known
  ASSERT_TRUE(arena->deallocate(p, nullptr));
  void* const q = arena->allocate(2_MiB, one, 64_B).value();
  EXPECT_NE(q, p);
  host_writes(q, 2_MiB);
  ASSERT_TRUE(two.synchronize());
  void* const r = arena->allocate(2_MiB, one, 64_B).value();
  EXPECT_EQ(r, p);
  host_writes(r, 2_MiB);
  ASSERT_TRUE(arena->deallocate(q, nullptr));
  ASSERT_TRUE(arena->deallocate(r, nullptr));
}

TEST_F(arena_order_test, streams_of_other_devices_count_if_they_are_named) {
  const auto arena = small();
  const auto here = new_stream();
  const auto there = new_stream(1);
  void* const p = arena->allocate(2_MiB, here, 64_B).value();
  read(there, p, 2_MiB);
  ASSERT_TRUE(arena->record_stream(p, there));
  ASSERT_TRUE(arena->deallocate(p, nullptr));
  void* const q = arena->allocate(2_MiB, here, 64_B).value();
  EXPECT_NE(q, p);
  ASSERT_TRUE(there.synchronize());
  void* const r = arena->allocate(2_MiB, there, 64_B).value();
  EXPECT_EQ(r, p);
  host_writes(r, 2_MiB);
  read(there, r, 2_MiB);
  const stream_ref freed_on = there;
  ASSERT_TRUE(arena->deallocate(r, &freed_on));
  ASSERT_TRUE(arena->deallocate(q, &freed_on)) << "it was allocated for the other device";
  EXPECT_EQ(arena->check(), "");
}

TEST_F(arena_order_test, many_frees_share_one_event) {
  const auto arena = small();
  const auto stream = new_stream();
  std::vector<void*> blocks;
  for (int i = 0; i < 32; ++i) {
    blocks.push_back(arena->allocate(64_KiB, stream, 64_B).value());
    read(stream, blocks.back(), 64_KiB);
  }
  for (void* const each : blocks) ASSERT_TRUE(arena->deallocate(each, nullptr));
  EXPECT_EQ(arena->stats().events, 0u) << "a free records nothing";
  ASSERT_TRUE(stream.synchronize());
  void* const p = arena->allocate(64_KiB, stream, 64_B).value();
  EXPECT_EQ(arena->stats().events, 1u);
  EXPECT_EQ(arena->stats().pending, 0_B) << "all of them were found complete";
  EXPECT_EQ(arena->stats().pins, 1u);
  ASSERT_TRUE(arena->deallocate(p, nullptr));
}

TEST_F(arena_order_test, a_stream_that_ends_leaves_a_mark) {
  const auto arena = small();
  void* p = nullptr;
  {
    const auto stream = new_stream();
    p = arena->allocate(2_MiB, stream, 64_B).value();
    read(stream, p, 2_MiB);
  }
  ASSERT_TRUE(arena->deallocate(p, nullptr));
  const auto other = new_stream();
  machine->run_until_idle();
  void* const q = arena->allocate(2_MiB, other, 64_B).value();
  EXPECT_EQ(q, p);
  host_writes(q, 2_MiB);
  ASSERT_TRUE(arena->deallocate(q, nullptr));
}

TEST_F(arena_order_test, a_capture_under_way_stays_valid_and_holds_memory_up) {
  const auto arena = small();
  const auto stream = new_stream();
  const auto other = new_stream();
  void* const p = arena->allocate(2_MiB, stream, 64_B).value();
  ASSERT_TRUE(arena->deallocate(p, nullptr));
  const context_scope bound{gpu()};
  ASSERT_EQ(
      bound.driver().stream_begin_capture(other.handle(), driver::CU_STREAM_CAPTURE_MODE_GLOBAL),
      driver::CUDA_SUCCESS);
  void* const q = arena->allocate(2_MiB, stream, 64_B).value();
  EXPECT_NE(q, p) << "the captured stream cannot be asked";
  void* const r = arena->allocate(1_MiB, other, 64_B).value();
  ASSERT_TRUE(arena->deallocate(r, nullptr));
  driver::CUgraph graph = nullptr;
  ASSERT_EQ(bound.driver().stream_end_capture(other.handle(), &graph), driver::CUDA_SUCCESS);
  ASSERT_NE(graph, nullptr);
  ASSERT_EQ(bound.driver().graph_destroy(graph), driver::CUDA_SUCCESS);
  ASSERT_TRUE(arena->deallocate(q, nullptr));
  EXPECT_TRUE(arena->empty_cache());
  EXPECT_EQ(arena->stats().pending, 0_B);
  EXPECT_EQ(arena->check(), "");
}

TEST_F(arena_order_test, a_lost_device_ends_in_an_error_and_loses_nothing) {
  {
    const auto arena = small();
    const auto stream = new_stream();
    void* const p = arena->allocate(1_MiB, stream, 64_B).value();
    read(stream, p, 1_MiB);
    ASSERT_TRUE(arena->deallocate(p, nullptr));
    machine->lose_device(device_id{0});
    const auto refused = arena->allocate(4_MiB, stream, 64_B);
    EXPECT_EQ(code_of(refused), errc::device_lost);
    EXPECT_EQ(arena->check(), "");
  }
  for (const error& each : heard.take()) EXPECT_EQ(each.code(), errc::device_lost);
}

class seeded_order_test : public arena_test {
 protected:
  seeded_order_test() : arena_test{sim::progress::seeded} {}
  void TearDown() override {
    static_cast<void>(heard.take());
    arena_test::TearDown();
  }
};

TEST_F(seeded_order_test, random_programs_have_no_race) {
  std::mt19937 random{17};
  const auto arena = make();
  std::vector<stream> streams;
  for (int i = 0; i < 3; ++i) streams.push_back(new_stream());
  streams.push_back(new_stream(1));
  struct live_block {
    void* memory;
    bytes size;
  };
  std::vector<live_block> live;
  for (int step = 0; step < 3000; ++step) {
    const stream& on = streams[random() % streams.size()];
    if (live.size() < 12 && random() % 2 == 0) {
      const bytes size{1 + random() % 300'000};
      void* const p = arena->allocate(size, on, 64_B).value();
      host_writes(p, size);
      read(on, p, size);
      live.push_back({p, size});
    } else if (!live.empty()) {
      const std::size_t at = random() % live.size();
      const stream_ref use = on;
      if (random() % 3 == 0) {
        read(on, live[at].memory, live[at].size);
        ASSERT_TRUE(arena->record_stream(live[at].memory, on));
      } else {
        ASSERT_TRUE(arena->deallocate(live[at].memory, random() % 2 == 0 ? &use : nullptr));
        live[at] = live.back();
        live.pop_back();
      }
    }
    if (step % 100 == 0) {
      ASSERT_EQ(arena->check(), "");
    }
  }
  const host_arena_stats now = arena->stats();
  EXPECT_GT(now.hits, now.misses * 10) << "memory is used again";
  for (const live_block& each : live) ASSERT_TRUE(arena->deallocate(each.memory, nullptr));
  ASSERT_TRUE(arena->empty_cache());
  EXPECT_EQ(arena->stats().pinned.current, 0_B);
}

}  // namespace
}  // namespace weir::testing_support
