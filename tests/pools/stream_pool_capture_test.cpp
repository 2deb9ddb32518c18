// SPDX-License-Identifier: Apache-2.0
// Stream pools and captures: allocations become nodes of the graph, and no call breaks a capture.
#include "pools/stream_pool_fixture.hpp"

namespace weir::testing_support::stream_pools { namespace {

constexpr bytes size = 64_KiB;

class stream_pool_capture_test : public stream_pool_contract {
 protected:
  /// Whether the capture of `on` is still whole.
  [[nodiscard]] bool whole(const stream_ref& stream) const {
    return stream.capture().value().status == capture_status::active;
  }
  void launch(CUgraphExec graph, const stream_ref& stream) {
    ASSERT_EQ(CUDA_SUCCESS, cu->graph_launch(graph, stream.handle()));
  }
};
WEIR_CONTRACT(stream_pool_capture_test);

TEST_P(stream_pool_capture_test, memory_freed_inside_is_the_graphs_own) {
  auto pool = make();
  const auto stream = make_stream();
  const auto result = new_memory(size.count());
  begin_capture(stream);
  void* const scratch = pool.allocate(size, stream);
  ASSERT_NE(scratch, nullptr);
  write(stream, scratch, size, 5);
  WEIR_OK(copy(result, address_of(scratch), size.count() / sizeof(word), stream.handle()));
  EXPECT_TRUE(pool.try_deallocate(scratch, size, stream));
  EXPECT_EQ(code_of(pool.try_deallocate(scratch, size, stream)), errc::double_free);
  EXPECT_TRUE(whole(stream));
  const auto graph = new_exec(end_capture(stream.handle()));
  for (int i = 0; i < 3; ++i) {
    WEIR_OK(cu->memset_d32_async(result, 0, size.count() / sizeof(word), stream.handle()));
    launch(graph, stream);
    EXPECT_EQ(mismatches(result, 5, size.count() / sizeof(word)), 0u);
    const auto now = pool.stats().value();
    EXPECT_EQ(now.active_allocations, 0u);
    EXPECT_EQ(now.active_allocations_peak, 0u) << "replays are nobody's allocations";
    EXPECT_EQ(now.used, 0_B);
  }
  EXPECT_EQ(code_of(pool.try_deallocate(scratch, size, stream)), errc::double_free);
}

TEST_P(stream_pool_capture_test, memory_left_by_a_graph_is_freed_after_each_launch) {
  auto pool = make();
  const auto stream = make_stream();
  begin_capture(stream);
  void* const remaining = pool.allocate(size, stream);
  write(stream, remaining, size, 6);
  const auto graph = new_exec(end_capture(stream.handle()));
  EXPECT_EQ(code_of(pool.try_deallocate(remaining, size, stream)), errc::double_free)
      << "not launched yet";
  for (int i = 0; i < 3; ++i) {
    launch(graph, stream);
    EXPECT_EQ(wrong(remaining, size, 6), 0u);
    EXPECT_TRUE(pool.try_deallocate(remaining, size, stream)) << "launch " << i;
    EXPECT_EQ(code_of(pool.try_deallocate(remaining, size, stream)), errc::double_free);
  }
  EXPECT_EQ(pool.stats().value().active_allocations, 0u);
}

TEST_P(stream_pool_capture_test, owners_free_inside_and_only_let_go_outside) {
  auto pool = make();
  const auto stream = make_stream();
  stream_allocation late;
  begin_capture(stream);
  {
    auto inside = pool.allocate_owned(size, stream).value();
    write(stream, inside.data(), size, 1);
  }
  late = pool.allocate_owned(size, stream).value();
  write(stream, late.data(), size, 2);
  void* const address = late.data();
  const auto graph = new_exec(end_capture(stream.handle()));
  late = {};  // nothing to free yet, and nothing to report
  launch(graph, stream);
  EXPECT_EQ(wrong(address, size, 2), 0u);
  EXPECT_TRUE(pool.try_deallocate(address, size, stream));
}

TEST_P(stream_pool_capture_test, a_graphs_memory_outlives_its_owner_and_the_captured_stream) {
  auto pool = make();
  auto captured = make_stream();
  const auto stream = make_stream();
  begin_capture(captured);
  auto owner = pool.allocate_owned(size, captured).value();
  write(captured, owner.data(), size, 3);
  void* const address = owner.data();
  const auto graph = new_exec(end_capture(captured.handle()));
  ASSERT_TRUE(captured.close());
  EXPECT_TRUE(owner.free()) << "there is nothing to free yet";
  launch(graph, stream);
  EXPECT_EQ(wrong(address, size, 3), 0u);
  EXPECT_TRUE(pool.try_deallocate(address, size, stream));
}

TEST_P(stream_pool_capture_test, memory_from_outside_cannot_be_freed_inside) {
  auto pool = make();
  const auto stream = make_stream();
  auto outside = pool.allocate_owned(size, stream).value();
  begin_capture(stream);
  EXPECT_EQ(code_of(outside.free()), errc::capture_forbidden);
  EXPECT_TRUE(whole(stream));
  static_cast<void>(end_capture(stream.handle()));
  EXPECT_TRUE(outside) << "still owned";
  EXPECT_TRUE(outside.free());
}

TEST_P(stream_pool_capture_test, nothing_else_breaks_a_capture) {
  auto pool = make();
  auto small = make({.max = 64_MiB});
  const auto captured = make_stream();
  const auto other = make_stream();
  auto before = pool.allocate_owned(size, other).value();
  begin_capture(captured);
  {
    auto memory = pool.allocate_owned(size, other).value();
    EXPECT_TRUE(memory.free());
    EXPECT_TRUE(before.free());
    EXPECT_TRUE(pool.stats());
    EXPECT_TRUE(pool.set_threshold(1_GiB));
    EXPECT_TRUE(pool.set_reuse(stream_pool_attribute::reuse_opportunistic, false));
    EXPECT_TRUE(pool.reset_peaks());
    EXPECT_TRUE(pool.trim());
    EXPECT_TRUE(pool.peer_access(gpu()));
    auto other_pool = make({.initial = 32_MiB});
    EXPECT_TRUE(other_pool.close());
    EXPECT_TRUE(stream_alloc(size, other));
    auto most = small.allocate_owned(48_MiB, other).value();
    EXPECT_EQ(code_of(small.try_allocate(48_MiB, other)), errc::out_of_memory)
        << "after waiting for the device";
  }
  {
    auto short_lived = make_stream();
    auto orphan = pool.allocate_owned(size, short_lived).value();
    EXPECT_TRUE(short_lived.close());
  }
  EXPECT_TRUE(whole(captured));
  auto node = pool.allocate(size, captured);
  EXPECT_TRUE(pool.try_deallocate(node, size, captured));
  launch(new_exec(end_capture(captured.handle())), captured);
}

TEST_P(stream_pool_capture_test, the_legacy_stream_is_refused_beside_a_capture_it_would_break) {
  auto pool = make();
  const auto blocking = weir::stream::create(gpu(), {.non_blocking = false}).value();
  const auto legacy = stream_ref::legacy(gpu());
  void* const before = pool.allocate(size, legacy);
  begin_capture(blocking);
  EXPECT_EQ(code_of(pool.try_allocate(size, legacy)), errc::capture_forbidden);
  EXPECT_EQ(code_of(pool.try_deallocate(before, size, legacy)), errc::capture_forbidden);
  EXPECT_TRUE(whole(blocking));
  static_cast<void>(end_capture(blocking.handle()));
  EXPECT_TRUE(pool.try_deallocate(before, size, legacy));
}

TEST_P(stream_pool_capture_test, a_broken_capture_is_said_to_be_broken) {
  auto pool = make();
  const auto stream = make_stream();
  begin_capture(stream);
  void* const node = pool.allocate(size, stream);
  EXPECT_NE(CUDA_SUCCESS, cu->stream_synchronize(stream.handle()));  // the user breaks it
  EXPECT_EQ(code_of(pool.try_allocate(size, stream)), errc::capture_invalid);
  EXPECT_EQ(code_of(pool.try_deallocate(node, size, stream)), errc::capture_invalid);
  CUgraph none = nullptr;
  EXPECT_NE(CUDA_SUCCESS, cu->stream_end_capture(stream.handle(), &none));
  EXPECT_TRUE(pool.allocate_owned(size, stream)) << "the stream and the pool are as before";
}

}  // namespace
}  // namespace weir::testing_support::stream_pools
