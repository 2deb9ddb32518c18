// SPDX-License-Identifier: Apache-2.0
// Default streams of threads that end: what they freed is anybody's once their work is done.
#include <thread>

#include "pools/pool_fixture.hpp"
#include "weir/pool/buffer_pool.hpp"
#include "weir/pool/pinned_pool.hpp"

namespace weir::testing_support { namespace {

class thread_ends : public block_pool_test {
 protected:
  /// On a thread of its own.
  template <class Use>
  void on_thread(const Use& use) {
    std::thread{use}.join();
    machine->run_until_idle();
  }
  template <class Pool>
  void allocate_on_threads(Pool& pool, int count) {
    for (int i = 0; i < count; ++i) {
      on_thread([&] {
        const stream_ref own = stream_ref::per_thread(gpu());
        pool.deallocate(pool.allocate(4_MiB, own), own);
        EXPECT_TRUE(own.synchronize());
      });
    }
  }
};

TEST_F(thread_ends, leave_their_memory_to_the_next_thread) {
  bin_pool bins = make_bins();
  allocate_on_threads(bins, 20);
  EXPECT_EQ(bins.stats().reserved.current, 4_MiB);
  EXPECT_EQ(bins.stats().hits, 19u);
  pinned_pool pinned = pinned_pool::create(gpu()).value();
  allocate_on_threads(pinned, 20);
  EXPECT_EQ(pinned.stats().reserved.current, 4_MiB);
  EXPECT_EQ(pinned.stats().hits, 19u);
  caching_allocator memory = make();
  allocate_on_threads(memory, 20);
  EXPECT_EQ(memory.stats().reserved.current, 4_MiB);
}

TEST_F(thread_ends, leave_buffers_to_the_next_thread) {
  buffer_pool buffers = buffer_pool::create().value();
  for (int i = 0; i < 20; ++i) {
    on_thread([&] {
      const stream_ref own = stream_ref::per_thread(gpu());
      { const auto buffer = buffers.take<char>(4 << 20, own).value(); }
      EXPECT_TRUE(own.synchronize());
    });
  }
  EXPECT_EQ(buffers.stats().cached, 4_MiB);
}

TEST_F(thread_ends, let_others_release_what_is_cached) {
  bin_pool pool = make_bins();
  allocate_on_threads(pool, 1);
  const stream other = new_stream();
  pool.deallocate(pool.allocate(1_MiB, other), other);
  bytes released = pool.trim(0_B).value();
  machine->run_until_idle();
  released += pool.trim(0_B).value();
  EXPECT_EQ(released, 5_MiB);
  EXPECT_EQ(pool.stats().cached, 0_B);
}

/// What the thread queued is not done when the thread is.
TEST_F(thread_ends, do_not_end_what_their_streams_still_do) {
  bin_pool pool = make_bins();
  void* freed = nullptr;
  std::thread{[&] {
    const stream_ref own = stream_ref::per_thread(gpu());
    freed = pool.allocate(4_MiB, own);
    write(own, freed, 4_MiB);
    pool.deallocate(freed, own);
  }}.join();
  const stream other = new_stream();
  void* const second = pool.allocate(4_MiB, other);
  EXPECT_NE(second, freed);
  machine->run_until_idle();
  void* const third = pool.allocate(4_MiB, other);
  EXPECT_EQ(third, freed);
  write(other, third, 4_MiB);
  pool.deallocate(second, other);
  pool.deallocate(third, other);
}

/// The last mark would become part of the capture: only a wait for all work tells of the stream.
TEST_F(thread_ends, leave_a_capture_of_their_stream_alone) {
  bin_pool pool = make_bins();
  on_thread([&] {
    const context_scope bound{gpu()};
    const stream_ref own = stream_ref::per_thread(gpu());
    pool.deallocate(pool.allocate(4_MiB, own), own);
    const auto marks = machine->calls(call::event_record);
    ASSERT_EQ(machine->driver().stream_begin_capture(own.handle(),
                                                     driver::CU_STREAM_CAPTURE_MODE_RELAXED),
              driver::CUDA_SUCCESS);
    EXPECT_EQ(machine->calls(call::event_record), marks);
  });
  EXPECT_EQ(machine->calls(call::event_record), 0u);
  EXPECT_EQ(pool.empty_cache().value(), 4_MiB);
}

TEST_F(thread_ends, are_told_to_those_that_are_still_there) {
  std::optional<bin_pool> gone = make_bins();
  bin_pool stays = make_bins();
  on_thread([&] {
    const stream_ref own = stream_ref::per_thread(gpu());
    gone->deallocate(gone->allocate(4_MiB, own), own);
    stays.deallocate(stays.allocate(4_MiB, own), own);
    gone.reset();
    EXPECT_TRUE(own.synchronize());
  });
  const stream other = new_stream();
  stays.deallocate(stays.allocate(4_MiB, other), other);
  EXPECT_EQ(stays.stats().hits, 1u);
}

TEST_F(thread_ends, come_after_the_runtime) {
  on_thread([&] {
    auto machine_of_thread = sim::machine::create(sim::machine_options{}).value();
    auto brief = runtime::open_simulated(machine_of_thread).value();
    const device there = brief->device(device_id{0}).value();
    EXPECT_TRUE(stream_ref::per_thread(there).id());
    brief.reset();
  });
}

/// Other threads' default streams have the same handle, and go on.
TEST_F(thread_ends, are_ends_of_their_own_streams_alone) {
  bin_pool pool = make_bins();
  const stream_ref own = stream_ref::per_thread(gpu());
  void* const kept = pool.allocate(1_MiB, own);
  allocate_on_threads(pool, 1);
  write(own, kept, 1_MiB);
  pool.deallocate(kept, own);
  const stream other = new_stream();
  void* const fresh = pool.allocate(1_MiB, other);
  EXPECT_NE(fresh, kept) << "this thread's stream still works on it";
  pool.deallocate(fresh, other);
}

}  // namespace
}  // namespace weir::testing_support
