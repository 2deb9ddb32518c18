// SPDX-License-Identifier: Apache-2.0
// What must be done before a cached block leaves its stream: the rule that a pool was made with.
#include <atomic>
#include <thread>

#include "pools/pool_fixture.hpp"
#include "weir/device/stream_watch.hpp"
#include "weir/pool/buffer_pool.hpp"
#include "weir/pool/pinned_pool.hpp"

namespace weir::testing_support { namespace {

constexpr crossing_rule declared = crossing_rule::declared_uses;

class crossing_test : public block_pool_test {
 protected:
  /// Frees a block on an idle stream while another one, which nobody recorded, is busy with
  /// something else; whether a third stream gets the block at once, and when all work is done.
  template <class Pool>
  void expect_reuse(const Pool& pool, bool at_once) {
    void* const elsewhere = pool.allocate(4_MiB, busy);
    void* const first = pool.allocate(1_MiB, idle);
    write(busy, elsewhere, 4_MiB);
    pool.deallocate(first, idle);
    void* const second = pool.allocate(1_MiB, third);
    EXPECT_EQ(second == first, at_once);
    machine->run_until_idle();
    if (!at_once) {
      void* const later = pool.allocate(1_MiB, third);
      EXPECT_EQ(later, first) << "all work is done";
      pool.deallocate(later, third);
    }
    pool.deallocate(second, third);
    pool.deallocate(elsewhere, busy);
  }

  stream idle = new_stream();
  stream busy = new_stream();
  stream third = new_stream();
};

TEST_F(crossing_test, a_block_of_a_bin_pool_waits_for_all_work) {
  expect_reuse(bin_pool::create(gpu()).value(), false);
}

TEST_F(crossing_test, a_block_of_a_bin_pool_waits_for_declared_uses_alone_if_told_so) {
  expect_reuse(bin_pool::create(gpu(), {.crossing = declared}).value(), true);
}

TEST_F(crossing_test, a_block_of_a_pinned_pool_waits_for_all_work) {
  expect_reuse(pinned_pool::create(gpu()).value(), false);
}

TEST_F(crossing_test, a_block_of_a_pinned_pool_waits_for_declared_uses_alone_if_told_so) {
  expect_reuse(pinned_pool::create(gpu(), {.crossing = declared}).value(), true);
}

TEST_F(crossing_test, a_buffer_waits_for_all_work_or_for_declared_uses_alone) {
  for (const bool waits : {true, false}) {
    SCOPED_TRACE(waits);
    const auto pool =
        buffer_pool::create({.crossing = waits ? crossing_rule::all_work : declared}).value();
    auto elsewhere = pool.take<char>(4 << 20, busy).value();
    write(busy, elsewhere.data(), elsewhere.size_bytes());
    auto first = pool.take<char>(1 << 20, idle).value();
    const char* const address = first.data();
    ASSERT_TRUE(first.free());
    const auto second = pool.take<char>(1 << 20, third).value();
    EXPECT_EQ(second.data() != address, waits);
    machine->run_until_idle();
    if (waits) {
      EXPECT_EQ(pool.take<char>(1 << 20, third).value().data(), address);
    }
  }
}

TEST_F(crossing_test, a_use_that_nobody_declared_stays_right) {
  const auto pool = bin_pool::create(gpu()).value();
  void* const first = pool.allocate(1_MiB, idle);
  read(busy, first, 1_MiB);
  pool.deallocate(first, idle);
  void* const second = pool.allocate(1_MiB, third);
  write(third, second, 1_MiB);
  EXPECT_EQ(pool.empty_cache().value(),
            1_MiB);  // waits for the reader: nothing is unmapped below it
  pool.deallocate(second, third);
}

TEST_F(crossing_test, a_call_that_fails_brings_no_other_threads_block) {
  for (const auto rule : {crossing_rule::all_work, declared}) {
    for (std::uint64_t nth = 1; nth <= 12; ++nth) {
      SCOPED_TRACE(nth);
      const auto pool = bin_pool::create(gpu(), {.crossing = rule}).value();
      void* used = nullptr;
      std::atomic<int> step{0};
      std::thread elsewhere{[&] {
        const stream_ref own = stream_ref::per_thread(gpu());
        used = pool.allocate(1_MiB, own);
        write(own, used, 1_MiB);
        pool.deallocate(used, own);
        step = 1;
        step.notify_all();
        step.wait(1);
      }};
      step.wait(0);
      machine->fail_any(nth, driver::CUDA_ERROR_UNKNOWN);
      const auto got = pool.try_allocate(1_MiB, third);
      machine->clear_faults();
      if (got) {
        EXPECT_NE(*got, used) << "its thread's stream is not done with it";
        pool.deallocate(*got, third);
      }
      step = 2;
      step.notify_all();
      elsewhere.join();
      static_cast<void>(heard.take());  // a call that puts something back may be the one
    }
  }
}

TEST_F(crossing_test, a_recorded_use_counts_under_either_rule) {
  for (const crossing_rule rule : {crossing_rule::all_work, declared}) {
    const auto pool = bin_pool::create(gpu(), {.crossing = rule}).value();
    void* const first = pool.allocate(1_MiB, idle);
    read(busy, first, 1_MiB);
    ASSERT_TRUE(pool.record_stream(first, busy));
    pool.deallocate(first, idle);
    void* const second = pool.allocate(1_MiB, third);
    EXPECT_NE(second, first);
    write(third, second, 1_MiB);
    machine->run_until_idle();
    pool.deallocate(second, third);
  }
}

TEST_F(crossing_test, a_watched_stream_counts_though_no_request_names_it) {
  const context_scope scope{gpu()};
  const auto& cu = scope.driver();
  driver::CUstream handle = nullptr;
  ASSERT_EQ(cu.stream_create(&handle, driver::CU_STREAM_NON_BLOCKING), driver::CUDA_SUCCESS);
  const stream_ref foreign{gpu(), handle};
  ASSERT_TRUE(watch_stream(foreign));
  const auto pool = bin_pool::create(gpu()).value();
  void* const first = pool.allocate(1_MiB, idle);
  read(foreign, first, 1_MiB);
  pool.deallocate(first, idle);
  void* const second = pool.allocate(1_MiB, third);
  EXPECT_NE(second, first);
  write(third, second, 1_MiB);
  pool.deallocate(second, third);
  ASSERT_TRUE(unwatch_stream(foreign));  // its last work still counts, and it is not asked again
  ASSERT_EQ(cu.stream_destroy(handle), driver::CUDA_SUCCESS);
  EXPECT_EQ(pool.empty_cache().value(), 2_MiB);
}

}  // namespace
}  // namespace weir::testing_support
