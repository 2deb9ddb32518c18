// SPDX-License-Identifier: Apache-2.0
// host_arena: sizes, bad input, counters, observers and ends.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "host/arena_fixture.hpp"

namespace weir::testing_support { namespace {

class host_arena_test : public arena_test {
 protected:
  [[nodiscard]] host_arena make_arena(const host_arena_options& options = quiet()) const {
    return host_arena::create(gpu(), options).value();
  }
};

TEST_F(host_arena_test, sizes_are_rounded_to_64_bytes_and_to_nothing_else) {
  const auto arena = make_arena();
  const auto stream = new_stream();
  ASSERT_TRUE(arena.reserve(20_MiB));
  void* const p = arena.allocate(1000_B, stream);
  void* const q = arena.allocate(9_MiB + 1_B, stream);
  const host_arena_stats now = arena.stats();
  EXPECT_EQ(now.requested.current, 9_MiB + 1001_B);
  EXPECT_EQ(now.allocated.current, 9_MiB + 1088_B);
  EXPECT_EQ(now.pinned.current, 20_MiB);
  EXPECT_EQ(now.free, 20_MiB - 9_MiB - 1088_B);
  EXPECT_EQ(now.segments, 1u);
  host_writes(p, 1000_B);
  host_writes(q, 9_MiB + 1_B);
  arena.deallocate(p, stream);
  arena.deallocate(q, stream);
}

TEST_F(host_arena_test, blocks_of_many_sizes_share_what_is_pinned) {
  // As a loader's batches: sizes that powers of two would nearly double.
  const auto arena = make_arena();
  const auto stream = new_stream();
  std::vector<void*> blocks;
  bytes requested{};
  for (std::uint64_t i = 0; i < 40; ++i) {
    const bytes size{(std::uint64_t{1} << 20) + 1 + i * 51'111};
    requested += size;
    blocks.push_back(arena.allocate(size, stream));
  }
  EXPECT_EQ(arena.stats().requested.current, requested);
  EXPECT_LE(arena.stats().pinned.current, requested + requested / 50 + 2_MiB);
  for (void* const each : blocks) arena.deallocate(each, stream);
}

TEST_F(host_arena_test, alignments_are_kept) {
  const auto arena = make_arena();
  const auto stream = new_stream();
  for (std::uint64_t alignment = 1; alignment <= 2 << 20; alignment *= 2) {
    void* const p = arena.allocate(100_B, stream, bytes{alignment});
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % std::max<std::uint64_t>(alignment, 64), 0u);
    arena.deallocate(p, stream);
  }
}

TEST_F(host_arena_test, bad_input_gets_typed_errors) {
  const auto arena = make_arena();
  const auto stream = new_stream();
  EXPECT_EQ(arena.allocate(0_B, stream), nullptr);
  EXPECT_TRUE(arena.try_deallocate(nullptr, stream));
  EXPECT_EQ(code_of(arena.try_allocate(bytes::max(), stream)), errc::size_overflow);
  EXPECT_EQ(code_of(arena.try_allocate(bytes{std::uint64_t{1} << 62}, stream)),
            errc::size_overflow);
  EXPECT_EQ(code_of(arena.try_allocate(1_B, stream, 3_B)), errc::bad_alignment);
  EXPECT_EQ(code_of(arena.try_allocate(1_B, stream, 4_MiB)), errc::bad_alignment);
  int local = 0;
  EXPECT_EQ(code_of(arena.try_deallocate(&local, stream)), errc::foreign_pointer);
  EXPECT_EQ(code_of(arena.record_stream(&local, stream)), errc::foreign_pointer);
  EXPECT_EQ(code_of(arena.record_stream(nullptr, stream)), errc::invalid_argument);
  auto* const p = static_cast<std::byte*>(arena.allocate(256_B, stream));
  EXPECT_EQ(code_of(arena.try_deallocate(p + 64, stream)), errc::foreign_pointer);
  EXPECT_TRUE(arena.record_stream(p + 64, stream)) << "views of a block may be used";
  EXPECT_TRUE(arena.owns(p + 255));
  EXPECT_FALSE(arena.owns(p + 256));
  EXPECT_FALSE(arena.owns(nullptr));
  EXPECT_TRUE(arena.try_deallocate(p, stream));
  EXPECT_FALSE(arena.owns(p));
  EXPECT_EQ(code_of(arena.try_deallocate(p, stream)), errc::double_free);
  EXPECT_EQ(code_of(host_arena::create(
                gpu(), {.pinning = host_pinning::registered_memory, .write_combined = true})),
            errc::invalid_argument);
  const auto other = runtime::open_simulated(sim::machine::create().value()).value();
  const auto stranger = stream::create(other->device(device_id{0}).value()).value();
  EXPECT_EQ(code_of(arena.try_allocate(64_B, stranger)), errc::bad_stream);
}

TEST_F(host_arena_test, counters_are_exact) {
  const auto arena = make_arena();
  const auto stream = new_stream();
  void* const p = arena.allocate(100_B, stream);
  void* const q = arena.allocate(100_B, stream);
  arena.deallocate(p, stream);
  host_arena_stats expected;
  expected.requested = {100_B, 200_B};
  expected.allocated = {128_B, 256_B};
  expected.pinned = {2_MiB, 2_MiB};
  expected.blocks = {1, 2};
  expected.pending = 128_B;
  expected.free = 2_MiB - 256_B;
  expected.segments = 1;
  expected.allocations = 2;
  expected.frees = 1;
  expected.hits = 1;
  expected.misses = 1;
  expected.pins = 1;
  host_arena_stats now = arena.stats();
  EXPECT_GT(now.pin_time.count(), 0);
  now.pin_time = {};
  EXPECT_EQ(now, expected);
  arena.reset_peaks();
  EXPECT_EQ(arena.stats().requested, (byte_gauge{100_B, 100_B}));
  EXPECT_EQ(arena.stats().allocated, (byte_gauge{128_B, 128_B}));
  EXPECT_EQ(arena.stats().blocks, (gauge{1, 1}));
  arena.deallocate(q, stream);
  EXPECT_EQ(to_string(host_arena_stats{}).substr(0, 21), "requested 0 B (peak 0");
}

TEST_F(host_arena_test, observers_are_told_everything_in_order) {
  const auto arena = make_arena();
  const auto stream = new_stream();
  heard_events told;
  ASSERT_TRUE(arena.add_observer(told));
  void* const p = arena.allocate(100_B, stream);
  ASSERT_TRUE(arena.record_stream(p, stream));
  arena.deallocate(p, stream);
  ASSERT_TRUE(arena.empty_cache());
  const auto events = told.take();
  std::vector<memory_event_kind> kinds;
  for (const memory_event& each : events) kinds.push_back(each.kind);
  EXPECT_THAT(
      kinds, ::testing::ElementsAre(memory_event_kind::reserve, memory_event_kind::allocate,
                                    memory_event_kind::record_stream, memory_event_kind::deallocate,
                                    memory_event_kind::release));
  EXPECT_EQ(events[0].size, 2u << 20);
  EXPECT_EQ(events[1].address, reinterpret_cast<std::uintptr_t>(p));
  EXPECT_EQ(events[1].size, 100u);
  EXPECT_EQ(events[1].rounded, 128u);
  EXPECT_EQ(events[1].stream, stream.id());
  arena.remove_observer(told);
  arena.deallocate(arena.allocate(100_B, stream), stream);
  EXPECT_TRUE(told.take().empty());
}

TEST_F(host_arena_test, a_snapshot_covers_every_byte) {
  const auto arena = make_arena();
  const auto stream = new_stream();
  const tag named = tag::named("batches").value();
  void* p = nullptr;
  {
    const tag_scope scope{named};
    p = arena.allocate(100_B, stream);
  }
  void* const q = arena.allocate(200_B, stream);
  read(stream, q, 200_B);
  arena.deallocate(q, stream);
  const host_snapshot now = arena.snapshot();
  ASSERT_EQ(now.segments.size(), 1u);
  const host_segment_info& segment = now.segments[0];
  EXPECT_TRUE(segment.pinned);
  EXPECT_TRUE(segment.registered);
  ASSERT_EQ(segment.blocks.size(), 3u);
  EXPECT_EQ(segment.blocks[0].address, reinterpret_cast<std::uintptr_t>(p));
  EXPECT_EQ(segment.blocks[0].requested, 100_B);
  EXPECT_EQ(segment.blocks[0].tag, named);
  EXPECT_EQ(segment.blocks[0].state, host_block_state::live);
  EXPECT_EQ(segment.blocks[1].state, host_block_state::pending);
  EXPECT_EQ(segment.blocks[1].size, 256_B);
  EXPECT_EQ(segment.blocks[2].state, host_block_state::free);
  bytes total{};
  for (const host_block_info& each : segment.blocks) total += each.size;
  EXPECT_EQ(total, segment.size);
  EXPECT_EQ(name(host_block_state::pending), "pending");
  arena.deallocate(p, stream);
}

TEST_F(host_arena_test, the_arena_of_a_device_is_one) {
  const auto one = host_arena::of(gpu(), quiet()).value();
  const auto two = host_arena::of(gpu()).value();
  const auto other = host_arena::of(gpu(1), quiet()).value();
  EXPECT_EQ(one, two);
  EXPECT_NE(one, other);
  EXPECT_NE(one, make_arena());
  EXPECT_EQ(other.device(), gpu(1));
}

TEST_F(host_arena_test, its_memory_goes_with_the_last_handle) {
  const auto stream = new_stream();
  {
    auto one = host_arena::of(gpu(), quiet()).value();
    const auto two = one;
    one.deallocate(one.allocate(1_MiB, stream), stream);
    one = host_arena::of(gpu(1), quiet()).value();
    EXPECT_EQ(machine->pinned(), 2_MiB);
  }
  EXPECT_EQ(machine->pinned(), 0_B);
}

TEST_F(host_arena_test, blocks_that_are_live_at_the_end_are_reported) {
  const auto stream = new_stream();
  {
    const auto arena = make_arena();
    void* const p = arena.allocate(1000_B, stream);
    read(stream, p, 1000_B);
  }
  const auto told = heard.take();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].code(), errc::still_live);
  EXPECT_EQ(told[0].requested(), 1024_B);
  EXPECT_EQ(machine->pinned(), 0_B) << "after waiting for the work that used it";
}

TEST_F(host_arena_test, a_closed_arena_takes_its_blocks_back) {
  const auto arena = make_arena();
  const auto stream = new_stream();
  void* const p = arena.allocate(1000_B, stream);
  ASSERT_TRUE(arena.close());
  EXPECT_EQ(code_of(arena.try_allocate(64_B, stream)), errc::closed);
  EXPECT_EQ(code_of(arena.reserve(1_MiB)), errc::closed);
  host_writes(p, 1000_B);
  EXPECT_TRUE(arena.try_deallocate(p, stream));
  EXPECT_TRUE(arena.close()) << "idempotent";
  EXPECT_EQ(machine->pinned(), 0_B);
}

TEST_F(host_arena_test, a_handle_that_was_moved_from_says_so) {
  auto one = make_arena();
  const auto two = std::move(one);
  const auto stream = new_stream();
  EXPECT_FALSE(static_cast<bool>(one));  // NOLINT: its state is the subject
  EXPECT_EQ(code_of(one.try_allocate(64_B, stream)), errc::moved_from);
  EXPECT_EQ(code_of(one.trim()), errc::moved_from);
  EXPECT_THROW(static_cast<void>(one.stats()), failure);
  EXPECT_TRUE(static_cast<bool>(two));
}

TEST_F(host_arena_test, a_forked_child_is_told_and_touches_nothing) {
  auto arena = std::make_unique<host_arena>(
      host_arena::create(gpu(), {.max_ahead = 64_MiB, .threads = 2}).value());
  const auto stream = new_stream();
  void* const p = arena->allocate(1000_B, stream);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    bool right = code_of(arena->try_allocate(64_B, stream)) == errc::driver_gone;
    right = right && code_of(arena->try_deallocate(p, stream)) == errc::driver_gone;
    right = right && code_of(arena->trim()) == errc::driver_gone;
    right = right && code_of(host_arena::of(gpu())) == errc::driver_gone;
    arena.reset();
    ::_exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  arena->deallocate(p, stream);
}

TEST_F(host_arena_test, at_the_end_of_the_driver_nothing_is_reported) {
  const auto arena = make_arena();
  const auto stream = new_stream();
  arena.deallocate(arena.allocate(1000_B, stream), stream);
  machine->shut_down();
}

}  // namespace
}  // namespace weir::testing_support
