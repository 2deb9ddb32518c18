// SPDX-License-Identifier: Apache-2.0
// Stream pools and the streams of their allocations: of other devices, of other threads, at their
// end; and what a pool waits for meanwhile.
#include <barrier>
#include <optional>
#include <thread>

#include "pools/pool_fixture.hpp"
#include "support/captures.hpp"
#include "support/watched_thread.hpp"
#include "weir/pool/stream_pool.hpp"

namespace weir::testing_support { namespace {

class stream_pool_streams_test : public block_pool_test {
 protected:
  void write_from(const stream_ref& on, void* where, bytes size) {
    const context_scope bound{on.device()};
    ASSERT_TRUE(
        machine->launch(on.handle(), "kernel write",
                        {sim::writes(reinterpret_cast<driver::CUdeviceptr>(where), size.count())}));
  }

  stream_pool pool = stream_pool::create(gpu()).value();
};

TEST_F(stream_pool_streams_test, TheEndOfAStreamOfAnotherDeviceIsNoticed) {
  ASSERT_TRUE(pool.enable_peer(gpu(1)));
  auto far = weir::stream::create(gpu(1)).value();
  auto owner = pool.allocate_owned(1_MiB, far).value();
  write_from(far, owner.data(), 1_MiB);
  ASSERT_TRUE(far.close());
  const auto freed = owner.free();
  EXPECT_TRUE(freed) << freed.error().message();
  EXPECT_EQ(pool.stats().value().active_allocations, 0u);
}

TEST_F(stream_pool_streams_test, TheEndOfAnImportersStreamOfAnotherDeviceIsNoticed) {
  const auto shared =
      stream_pool::create(gpu(), {.handles = stream_pool_handles::posix_descriptor}).value();
  const auto near = new_stream();
  void* const memory = shared.allocate(1_MiB, near);
  const descriptor sent = shared.export_descriptor().value();
  const auto pointer = shared.export_pointer(memory).value();
  const auto imported = stream_pool::import_descriptor(gpu(), sent.get()).value();
  auto far = weir::stream::create(gpu(1)).value();
  auto owner = imported.import_pointer(pointer, far).value();
  ASSERT_TRUE(far.close());
  EXPECT_TRUE(owner.free());
  shared.deallocate(memory, near);
}

TEST_F(stream_pool_streams_test, AnOwnerThatEndsOnAnotherThreadWaitsForTheFirstOnesWork) {
  stream_allocation owner;
  std::thread{[&] {
    const stream_ref own = stream_ref::per_thread(gpu());
    owner = pool.allocate_owned(1_MiB, own).value();
    write(own, owner.data(), 1_MiB);
  }}.join();
  owner = {};
  EXPECT_EQ(pool.stats().value().active_allocations, 0u);
  auto next = pool.allocate_owned(1_MiB, stream_ref::per_thread(gpu())).value();
  write(stream_ref::per_thread(gpu()), next.data(), 1_MiB);
}

TEST_F(stream_pool_streams_test, AnOwnerThatEndsOnItsThreadWaitsForNothing) {
  const stream_ref own = stream_ref::per_thread(gpu());
  auto owner = pool.allocate_owned(1_MiB, own).value();
  write(own, owner.data(), 1_MiB);
  const auto waits = machine->calls(call::mem_free);
  EXPECT_TRUE(owner.free());
  EXPECT_EQ(machine->calls(call::mem_free), waits);
  EXPECT_FALSE(own.is_complete().value());
}

TEST_F(stream_pool_streams_test, AnOwnersEndOnAnotherThreadLeavesCapturesValid) {
  for (const auto mode : capture_modes) {
    stream_allocation owner;
    std::thread{[&] {
      const stream_ref own = stream_ref::per_thread(gpu());
      owner = pool.allocate_owned(1_MiB, own).value();
      write(own, owner.data(), 1_MiB);
    }}.join();
    // Not even the thread's own stream may be used.
    checked_capture capture{stream_ref::per_thread(gpu()), mode};
    EXPECT_TRUE(owner.free());
    EXPECT_EQ(capture.end(), 0u);
  }
}

TEST_F(stream_pool_streams_test, ARequestThatWaitsHoldsUpNobody) {
  const auto bounded = stream_pool::create(gpu(), {.max = 64_MiB,
                                                   .reuse_follow_event_dependencies = false,
                                                   .reuse_opportunistic = false,
                                                   .reuse_internal_dependencies = false})
                           .value();
  const auto busy = new_stream();
  const auto idle = new_stream();
  auto memory = bounded.allocate_owned(64_MiB, busy).value();
  held_stream held = hold(busy);
  write(busy, memory.data(), 64_MiB);
  ASSERT_TRUE(memory.free());
  result<void*> outcome = errc::internal;
  {
    watched_thread asking{[&] { outcome = bounded.try_allocate(32_MiB, idle); }};
    ASSERT_TRUE(asking.falls_asleep());
    EXPECT_TRUE(bounded.stats());
    EXPECT_EQ(bounded.close().value().allocations, 0u) << "closing does not wait for the request";
    held.release();
  }
  EXPECT_EQ(code_of(outcome), errc::closed);
}

/// The driver of a machine on which two threads that import pointers do so at the same time.
struct meeting_driver {
  static inline driver::table real;
  static inline std::optional<std::barrier<>> both;
  static driver::CUresult get_address_range(driver::CUdeviceptr* base, std::size_t* size,
                                            driver::CUdeviceptr address) {
    if (both) both->arrive_and_wait();
    return real.mem_get_address_range(base, size, address);
  }
};

TEST_F(stream_pool_streams_test, OfTwoThreadsThatImportAPointerOneIsRefused) {
  meeting_driver::real = machine->driver();
  driver::table calls = machine->driver();
  calls.mem_get_address_range = &meeting_driver::get_address_range;
  const auto other = runtime::open_table(calls, "meeting", machine).value();
  const device there = other->device(device_id{0}).value();
  const auto shared =
      stream_pool::create(there, {.handles = stream_pool_handles::posix_descriptor}).value();
  const auto writer = stream::create(there).value();
  const auto reader = stream::create(there).value();
  void* const memory = shared.allocate(1_MiB, writer);
  const descriptor sent = shared.export_descriptor().value();
  const auto pointer = shared.export_pointer(memory).value();
  const auto imported = stream_pool::import_descriptor(there, sent.get()).value();
  std::array<std::optional<result<stream_allocation>>, 2> owners;
  meeting_driver::both.emplace(2);
  {
    const watched_thread first{[&] { owners[0] = imported.import_pointer(pointer, reader); }};
    const watched_thread second{[&] { owners[1] = imported.import_pointer(pointer, reader); }};
  }
  meeting_driver::both.reset();
  const bool is_first = owners[0]->has_value();
  EXPECT_NE(is_first, owners[1]->has_value()) << "one owner";
  EXPECT_EQ(code_of(*owners[is_first ? 1 : 0]), errc::already_mapped);
  EXPECT_TRUE((**owners[is_first ? 0 : 1]).free());
  shared.deallocate(memory, writer);
}

}  // namespace
}  // namespace weir::testing_support
