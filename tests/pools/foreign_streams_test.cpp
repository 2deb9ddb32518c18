// SPDX-License-Identifier: Apache-2.0
// Blocks that streams of other devices use, and pools that end while streams do.
#include <memory>
#include <optional>
#include <thread>

#include "pools/pool_fixture.hpp"
#include "support/captures.hpp"
#include "weir/pool/pinned_pool.hpp"

namespace weir::testing_support { namespace {

class foreign_streams_test : public block_pool_test {
 protected:
  foreign_streams_test() {
    const context_scope there{gpu(1)};
    EXPECT_EQ(there.driver().ctx_enable_peer_access(gpu(0).context().value(), 0),
              driver::CUDA_SUCCESS);
  }
  [[nodiscard]] pinned_pool make_pinned() const { return pinned_pool::create(gpu()).value(); }
  /// The block is not handed out to `next` before `far` is done with it, and then it is.
  template <class Pool>
  void expect_to_wait_for_far(const Pool& pool, void* freed, const stream_ref& next) {
    EXPECT_EQ(pool.stats().pending, 1_MiB);
    void* const another = pool.allocate(1_MiB, next);
    EXPECT_NE(another, freed);
    write(next, another, 1_MiB);
    EXPECT_EQ(pool.trim().value(), 0_B) << "nor is it released";
    machine->run_until_idle();
    void* const again = pool.allocate(1_MiB, next);
    EXPECT_EQ(again, freed);
    EXPECT_EQ(pool.stats().pending, 0_B);
    machine->host_write(again, 0);
    write(next, again, 1_MiB);
    pool.deallocate(again, next);
    pool.deallocate(another, next);
  }

  stream near = new_stream();
  stream far = stream::create(gpu(1)).value();
};

TEST_F(foreign_streams_test, a_recorded_stream_of_a_peer_is_waited_for) {
  const auto pool = make_bins();
  void* const p = pool.allocate(1_MiB, near);
  ASSERT_TRUE(pool.record_stream(p, far));
  ASSERT_TRUE(pool.record_stream(p, far)) << "twice is once";
  read(far, p, 1_MiB);
  pool.deallocate(p, near);
  expect_to_wait_for_far(pool, p, near);
}

TEST_F(foreign_streams_test, a_free_on_a_stream_of_a_peer_is_behind_its_work) {
  const auto pool = make_bins();
  void* const p = pool.allocate(1_MiB, near);
  read(far, p, 1_MiB);
  ASSERT_TRUE(pool.try_deallocate(p, 1_MiB, far));
  expect_to_wait_for_far(pool, p, near);
  EXPECT_EQ(code_of(pool.try_allocate(1_MiB, far)), errc::bad_stream)
      << "device memory is for streams of its device";
}

TEST_F(foreign_streams_test, pinned_memory_serves_streams_of_every_device) {
  const auto pool = make_pinned();
  void* const p = pool.allocate(1_MiB, far);
  read(far, p, 1_MiB);
  pool.deallocate(p, far);
  expect_to_wait_for_far(pool, p, far);
  machine->run_until_idle();
  ASSERT_EQ(pool.empty_cache().value(), 2_MiB);

  void* const q = pool.allocate(1_MiB, far);
  read(far, q, 1_MiB);
  ASSERT_TRUE(pool.try_deallocate(q)) << "on the stream that it was allocated for";
  expect_to_wait_for_far(pool, q, near);
}

TEST_F(foreign_streams_test, pinned_memory_waits_for_undeclared_work_of_its_device_too) {
  const auto pool = make_pinned();
  void* const p = pool.allocate(1_MiB, far);
  read(near, p, 1_MiB);
  pool.deallocate(p, far);
  ASSERT_TRUE(far.synchronize());
  void* const q = pool.allocate(1_MiB, far);
  EXPECT_NE(q, p);
  machine->run_until_idle();
  EXPECT_EQ(pool.allocate(1_MiB, far), p);
  pool.deallocate(p, far);
  pool.deallocate(q, far);
}

TEST_F(foreign_streams_test, emptying_the_cache_waits_for_other_devices) {
  const auto pool = make_bins();
  void* const p = pool.allocate(1_MiB, near);
  read(far, p, 1_MiB);
  pool.deallocate(p, far);
  EXPECT_EQ(pool.empty_cache().value(), 1_MiB);
  EXPECT_TRUE(far.is_complete().value());
  EXPECT_EQ(pool.stats().reserved.current, 0_B);
}

TEST_F(foreign_streams_test, a_stream_that_ends_is_remembered_by_its_work) {
  const auto pool = make_bins();
  void* const live = pool.allocate(1_MiB, near);
  void* const freed = pool.allocate(2_MiB, near);
  auto ending = std::make_optional(stream::create(gpu(1)).value());
  ASSERT_TRUE(pool.record_stream(live, *ending));
  ASSERT_TRUE(pool.record_stream(freed, *ending));
  read(*ending, live, 1_MiB);
  read(*ending, freed, 2_MiB);
  pool.deallocate(freed, near);
  ending.reset();
  pool.deallocate(live, near);
  EXPECT_EQ(pool.stats().pending, 3_MiB);
  EXPECT_EQ(pool.trim().value(), 0_B);
  EXPECT_EQ(pool.empty_cache().value(), 3_MiB);
}

TEST_F(foreign_streams_test, a_stream_that_is_released_is_not_asked_again) {
  const auto pool = make_bins();
  void* const p = pool.allocate(1_MiB, near);
  {
    const foreign_stream raw{gpu(1)};
    ASSERT_TRUE(pool.record_stream(p, raw.ref()));
    read(raw.ref(), p, 1_MiB);
    ASSERT_TRUE(pool.release_stream(raw.ref()));
  }
  pool.deallocate(p, near);
  EXPECT_EQ(pool.trim().value(), 0_B);
  machine->run_until_idle();
  EXPECT_EQ(pool.trim().value(), 1_MiB);
}

TEST_F(foreign_streams_test, a_released_stream_that_is_named_again_counts_again) {
  const auto pool = make_bins();
  void* const p = pool.allocate(1_MiB, near);
  ASSERT_TRUE(pool.record_stream(p, far));
  ASSERT_TRUE(pool.release_stream(far));
  ASSERT_TRUE(pool.record_stream(p, far));
  read(far, p, 1_MiB);
  pool.deallocate(p, near);
  expect_to_wait_for_far(pool, p, near);
}

TEST_F(foreign_streams_test, a_captured_stream_is_asked_again_when_its_capture_is_over) {
  const auto pool = make_bins();
  void* const p = pool.allocate(1_MiB, near);
  read(far, p, 1_MiB);
  {
    checked_capture capture{far};
    // It was named before its capture began.
    ASSERT_TRUE(pool.record_stream(p, far));
    pool.deallocate(p, near);
    EXPECT_EQ(pool.trim().value(), 0_B);
    EXPECT_EQ(capture.end(), 0u) << "nothing became part of it";
  }
  EXPECT_EQ(pool.trim().value(), 0_B);
  machine->run_until_idle();
  EXPECT_EQ(pool.trim().value(), 1_MiB);
}

TEST_F(foreign_streams_test, a_captured_stream_is_waited_for_with_its_device) {
  const auto pool = make_bins();
  void* const p = pool.allocate(1_MiB, near);
  ASSERT_TRUE(pool.record_stream(p, far));
  read(far, p, 1_MiB);
  const checked_capture capture{far};
  pool.deallocate(p, near);
  EXPECT_EQ(pool.empty_cache().value(), 1_MiB);
}

TEST_F(foreign_streams_test, a_pool_that_ends_waits_for_streams_of_other_devices) {
  auto pool = std::make_optional(make_bins());
  void* const p = pool->allocate(1_MiB, near);
  read(far, p, 1_MiB);
  pool->deallocate(p, far);
  const bytes before = used();
  pool.reset();
  EXPECT_EQ(before - used(), 2_MiB) << "the driver rounds";
  EXPECT_TRUE(far.is_complete().value());
}

/// A driver that counts questions about one stream.
struct watched_handle {
  static inline const driver::table* real = nullptr;
  static inline driver::CUstream handle = nullptr;
  static inline int questions = 0;
  static driver::CUresult is_capturing(driver::CUstream asked,
                                       driver::CUstreamCaptureStatus* status) {
    questions += asked == handle && handle != nullptr ? 1 : 0;
    return real->stream_is_capturing(asked, status);
  }
};

TEST_F(foreign_streams_test, a_stream_that_is_destroyed_while_a_pool_ends_is_not_asked) {
  watched_handle::real = &machine->driver();
  watched_handle::handle = nullptr;
  watched_handle::questions = 0;
  driver::table calls = machine->driver();
  calls.stream_is_capturing = &watched_handle::is_capturing;
  const auto watched = runtime::open_table(calls, "watched", machine).value();
  const device home = watched->device(device_id{0}).value();
  const auto lasting = stream::create(home).value();
  static std::optional<stream> ending;
  ending = stream::create(home).value();
  set_error_handler(
      [](const error& reason, void*) noexcept {
        EXPECT_EQ(reason.code(), errc::still_live);
        if (!ending) return;
        const driver::CUstream handle = ending->handle();
        std::thread{[] { ending.reset(); }}.join();
        watched_handle::handle = handle;
      },
      nullptr);
  {
    const auto pool = bin_pool::create(home).value();
    void* const p = pool.allocate(1_MiB, *ending);
    pool.deallocate(p, *ending);
    static_cast<void>(pool.allocate(8_MiB, lasting));
  }
  set_error_handler(nullptr);
  EXPECT_FALSE(ending) << "it was destroyed while the pool ended";
  EXPECT_EQ(watched_handle::questions, 0);
}

}  // namespace
}  // namespace weir::testing_support
