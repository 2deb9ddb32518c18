// SPDX-License-Identifier: Apache-2.0
// Stream pools where things go wrong: failing calls, missing abilities, lost devices, fork, the
// end.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <sstream>
#include <thread>

#include "pools/stream_pool_fixture.hpp"
#include "weir/sim/machine.hpp"

namespace weir::testing_support::stream_pools { namespace {

using driver::call;
using ::testing::IsEmpty;

/// Two small simulated devices. Nothing may be left that races or was reported, unless a test took
/// it.
class stream_pool_faults_test : public ::testing::Test {
 protected:
  explicit stream_pool_faults_test(sim::machine_options options = {}) {
    const sim::device_spec spec{.capacity = 2_GiB, .context_overhead = 64_MiB};
    if (options.devices.size() == 1) options.devices.assign(2, spec);
    machine = sim::machine::create(options).value();
    runtime_ = runtime::open_simulated(machine).value();
  }
  void TearDown() override {
    for (const auto& hazard : machine->hazards()) ADD_FAILURE() << hazard.message();
    for (const auto& each : heard.take()) ADD_FAILURE() << "reported: " << each.message();
  }

  [[nodiscard]] device gpu(int index = 0) const {
    return runtime_->device(device_id{index}).value();
  }
  [[nodiscard]] stream_pool make(const stream_pool_config& config = {}) const {
    return stream_pool::create(gpu(), config).value();
  }
  [[nodiscard]] weir::stream make_stream() const { return weir::stream::create(gpu()).value(); }
  [[nodiscard]] bytes used() const { return machine->used(device_id{0}); }
  /// A kernel that writes the memory.
  void write(const stream_ref& stream, const void* memory, bytes size) {
    const context_scope scope{gpu()};
    ASSERT_TRUE(machine->launch(stream.handle(), "kernel write",
                                {sim::writes(address_of(memory), size.count())}));
  }

  /// Makes a pool, uses it and closes it, with each of its driver calls failing in turn. Whatever
  /// fails is told, and the device's memory is as before. The free of the initial size alone is
  /// tried again, and then nothing has failed.
  void expect_each_failure_to_be_told();

  reports heard;
  std::shared_ptr<sim::machine> machine;
  std::shared_ptr<runtime> runtime_;
};

void stream_pool_faults_test::expect_each_failure_to_be_told() {
  const auto stream = make_stream();
  const auto scenario = [&]() -> result<void> {
    WEIR_TRY_VALUE(pool,
                   stream_pool::create(
                       gpu(), {.initial = 40_MiB, .max = 96_MiB, .reuse_opportunistic = false}));
    WEIR_TRY_VALUE(owned, pool.allocate_owned(1_MiB, stream));
    WEIR_TRY_VALUE(raw, pool.try_allocate(2_MiB, stream));
    const auto freed = pool.try_deallocate(raw, 2_MiB, stream);
    if (!freed) pool.deallocate(raw, 2_MiB, stream);  // the second attempt meets no fault
    WEIR_TRY(freed);
    WEIR_TRY(pool.set_threshold(64_MiB));
    WEIR_TRY(pool.stats());
    WEIR_TRY(pool.reset_peaks());
    WEIR_TRY(pool.trim());
    WEIR_TRY(pool.enable_peer(gpu(1)));
    WEIR_TRY(owned.free());
    WEIR_TRY(pool.close());
    return {};
  };
  // Current from the start: a context that could not be popped would change the next round's calls.
  ASSERT_EQ(machine->driver().ctx_set_current(gpu().context().value()), CUDA_SUCCESS);
  ASSERT_TRUE(scenario());
  const auto calls_before = machine->calls();
  ASSERT_TRUE(scenario());
  const auto calls = machine->calls() - calls_before;
  ASSERT_TRUE(gpu().synchronize());
  const bytes expected = used();
  std::size_t failures = 0;
  std::size_t tried_again = 0;
  for (std::uint64_t nth = 1; nth <= calls; ++nth) {
    SCOPED_TRACE("call " + std::to_string(nth));
    machine->fail_any(nth, CUDA_ERROR_UNKNOWN);
    const auto outcome = scenario();
    machine->clear_faults();
    const auto reported = heard.take();
    failures += outcome ? 0 : 1;
    tried_again += outcome && reported.empty() ? 1 : 0;
    if (!outcome) {
      EXPECT_EQ(outcome.error().native(), CUDA_ERROR_UNKNOWN) << outcome.error().message();
    }
    for (const error& each : reported)
      EXPECT_EQ(each.native(), CUDA_ERROR_UNKNOWN) << each.message();
    ASSERT_TRUE(gpu().synchronize());
    ASSERT_EQ(used(), expected) << (outcome ? "" : outcome.error().message());
  }
  EXPECT_GT(failures, 30u);
  EXPECT_EQ(tried_again, 1u) << "it failed and nobody knows";
}

// --- Calls that fail ----------------------------------------------------------------------------

TEST_F(stream_pool_faults_test, whatever_call_fails_is_told_and_nothing_is_left_behind) {
  expect_each_failure_to_be_told();
}

TEST_F(stream_pool_faults_test, a_pool_that_cannot_be_destroyed_stays_and_can_be_closed_again) {
  auto pool = make();
  const auto stream = make_stream();
  machine->fail(call::mem_pool_destroy, 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code_of(pool.close()), errc::driver_error);
  EXPECT_NE(pool.handle(), nullptr);
  EXPECT_TRUE(pool.allocate_owned(1_MiB, stream));
  EXPECT_TRUE(pool.close());
}

TEST_F(stream_pool_faults_test, a_free_of_the_initial_size_that_fails_once_costs_nothing) {
  ASSERT_TRUE(gpu().context());
  const bytes before = used();
  machine->fail(call::mem_free_async, 1, CUDA_ERROR_UNKNOWN);
  {
    const auto pool = make({.initial = 32_MiB});
    EXPECT_EQ(pool.stats().value().used, 0_B);
    EXPECT_EQ(pool.stats().value().reserved, 32_MiB);
  }
  EXPECT_EQ(used(), before);
  EXPECT_EQ(machine->calls(call::mem_free_async), 2u);
  // Twice is told.
  machine->fail(call::mem_free_async, 1, CUDA_ERROR_UNKNOWN);
  machine->fail(call::mem_free_async, 1, CUDA_ERROR_UNKNOWN);
  const auto refused = stream_pool::create(gpu(), {.initial = 32_MiB});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().call(), "cuMemFreeAsync");
}

TEST_F(stream_pool_faults_test, a_pool_that_cannot_be_made_is_told_with_its_maximum) {
  machine->fail(call::mem_pool_create, 1, CUDA_ERROR_OUT_OF_MEMORY);
  const auto refused = stream_pool::create(gpu(), {.initial = 32_MiB, .max = 96_MiB});
  ASSERT_EQ(code_of(refused), errc::out_of_memory);
  EXPECT_EQ(refused.error().call(), "cuMemPoolCreate");
  EXPECT_EQ(refused.error().requested(), 96_MiB);
}

TEST_F(stream_pool_faults_test, a_destructor_reports_what_it_could_not_destroy) {
  {
    auto pool = make();
    machine->fail(call::mem_pool_destroy, 1, CUDA_ERROR_UNKNOWN);
  }
  const auto reports = heard.take();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].call(), "cuMemPoolDestroy");
}

TEST_F(stream_pool_faults_test, a_free_that_fails_leaves_the_memory_owned_and_counted) {
  auto pool = make();
  const auto stream = make_stream();
  auto memory = pool.allocate_owned(1_MiB, stream).value();
  machine->fail(call::mem_free_async, 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code_of(memory.free()), errc::driver_error);
  EXPECT_TRUE(memory);
  EXPECT_FALSE(memory.is_freed());
  EXPECT_EQ(pool.stats().value().active_allocations, 1u);
  EXPECT_EQ(pool.stats().value().active_bytes, 1_MiB);
  EXPECT_TRUE(memory.free());
  EXPECT_EQ(pool.stats().value().active_allocations, 0u);
  EXPECT_EQ(pool.stats().value().active_allocations_peak, 1u);
}

TEST_F(stream_pool_faults_test, a_free_that_fails_in_a_destructor_is_reported_with_the_memory) {
  auto pool = make();
  const auto stream = make_stream();
  std::ostringstream address;
  void* memory = nullptr;
  {
    const auto owner = pool.allocate_owned(3_MiB, stream).value();
    memory = owner.data();
    address << memory;
    machine->fail(call::mem_free_async, 1, CUDA_ERROR_UNKNOWN);
  }
  const auto reports = heard.take();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].code(), errc::driver_error);
  EXPECT_EQ(reports[0].call(), "cuMemFreeAsync");
  EXPECT_EQ(reports[0].requested(), 3_MiB);
  EXPECT_EQ(reports[0].detail(), "freeing " + address.str() + " of 3 MiB");
  machine->fail(call::mem_free_async, 1, CUDA_ERROR_UNKNOWN);
  pool.deallocate(memory, stream);
  const auto again = heard.take();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].requested(), 3_MiB) << "the table knows it";
  EXPECT_EQ(again[0].detail(), "freeing " + address.str() + " of 3 MiB");
  EXPECT_TRUE(pool.try_deallocate(memory, stream));
}

TEST_F(stream_pool_faults_test, a_threshold_below_the_initial_size_is_raised_to_whole_units) {
  const std::pair<bytes, bytes> expected[] = {{0_B, 64_MiB},
                                              {40_MiB, 64_MiB},
                                              {64_MiB, 64_MiB},
                                              {65_MiB, 65_MiB},
                                              {bytes::max(), bytes::max()}};
  for (const auto& [asked, applied] : expected) {
    const auto pool = make({.initial = 40_MiB, .threshold = asked});
    EXPECT_EQ(pool.threshold().value(), applied) << asked.count();
    EXPECT_EQ(pool.stats().value(),
              (stream_pool_stats{.reserved = 64_MiB, .reserved_peak = 64_MiB}));
  }
  EXPECT_EQ(make({.threshold = 5_MiB}).threshold().value(), 5_MiB) << "there is nothing to keep";
}

TEST_F(stream_pool_faults_test, trimming_asks_again_only_inside_a_unit) {
  auto pool = make();
  const auto stream = make_stream();
  auto live = pool.allocate_owned(64_MiB, stream).value();
  EXPECT_TRUE(pool.allocate_owned(128_MiB, stream));
  ASSERT_TRUE(stream.synchronize());
  const auto trimmed = [&](bytes keep) {
    const auto before = machine->calls(call::mem_pool_trim_to);
    const bytes released = pool.trim(keep).value();
    return std::pair{released, machine->calls(call::mem_pool_trim_to) - before};
  };
  EXPECT_EQ(trimmed(193_MiB), (std::pair{0_B, std::uint64_t{1}}));
  EXPECT_EQ(trimmed(160_MiB), (std::pair{32_MiB, std::uint64_t{1}})) << "whole units";
  EXPECT_EQ(trimmed(100_MiB), (std::pair{64_MiB, std::uint64_t{2}})) << "96 MiB";
  EXPECT_EQ(pool.stats().value().reserved, 96_MiB);
  EXPECT_EQ(trimmed(0_B), (std::pair{32_MiB, std::uint64_t{1}})) << "what is live stays";
  EXPECT_EQ(pool.stats().value().reserved, 64_MiB);
  EXPECT_EQ(trimmed(1_MiB), (std::pair{0_B, std::uint64_t{2}}));
}

TEST_F(stream_pool_faults_test, an_alignment_costs_the_room_to_align_in) {
  auto pool = make();
  const auto stream = make_stream();
  const std::pair<bytes, bytes> expected[] = {
      {1_B, 1000_B}, {256_B, 1000_B}, {512_B, 1256_B}, {4_KiB, 4840_B}, {2_MiB, 2_MiB + 744_B}};
  for (const auto& [alignment, size] : expected) {
    const auto memory = pool.allocate_owned(1000_B, stream, alignment).value();
    EXPECT_EQ(address_of(memory.data()) % alignment.count(), 0u);
    EXPECT_EQ(pool.stats().value().used, size) << alignment.count();
    EXPECT_EQ(pool.stats().value().active_bytes, 1000_B);
  }
}

TEST_F(stream_pool_faults_test, an_attribute_that_the_driver_refuses_stays) {
  auto pool = make({.threshold = 64_MiB});
  machine->fail(call::mem_pool_set_attribute, 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code_of(pool.set_threshold(32_MiB)), errc::driver_error);
  EXPECT_EQ(pool.threshold().value(), 64_MiB);
}

TEST_F(stream_pool_faults_test, a_request_is_tried_again_only_where_something_was_released) {
  auto pool = make();
  const auto stream = make_stream();
  machine->fail(call::mem_alloc_from_pool_async, 1, CUDA_ERROR_OUT_OF_MEMORY);
  machine->fail(call::mem_alloc, 1,
                CUDA_ERROR_UNKNOWN);  // to wait for the device takes one of these
  machine->fail(call::mem_host_alloc, 1, CUDA_ERROR_UNKNOWN);
  const auto asked = machine->calls(call::mem_alloc_from_pool_async);
  EXPECT_EQ(code_of(pool.try_allocate(1_MiB, stream)), errc::out_of_memory);
  EXPECT_EQ(machine->calls(call::mem_alloc_from_pool_async), asked + 1);
  machine->fail(call::mem_alloc_from_pool_async, 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE(pool.allocate_owned(1_MiB, stream));
  EXPECT_EQ(machine->calls(call::mem_alloc_from_pool_async), asked + 3);
}

TEST_F(stream_pool_faults_test, what_was_freed_in_its_own_capture_is_the_drivers_no_more) {
  auto pool = make();
  const auto stream = make_stream();
  const context_scope scope{gpu()};
  const auto& calls = scope.driver();
  ASSERT_EQ(calls.stream_begin_capture(stream.handle(), CU_STREAM_CAPTURE_MODE_GLOBAL), 0);
  void* const node = pool.allocate(1_MiB, stream);
  EXPECT_TRUE(pool.try_deallocate(node, 1_MiB, stream));
  const auto frees = machine->calls(call::mem_free_async);
  EXPECT_EQ(code_of(pool.try_deallocate(node, 1_MiB, stream)), errc::double_free);
  CUgraph graph = nullptr;
  ASSERT_EQ(calls.stream_end_capture(stream.handle(), &graph), 0);
  EXPECT_EQ(code_of(pool.try_deallocate(node, 1_MiB, stream)), errc::double_free);
  EXPECT_EQ(machine->calls(call::mem_free_async), frees) << "the driver is not asked";
  ASSERT_EQ(calls.graph_destroy(graph), 0);
}

TEST_F(stream_pool_faults_test, imported_memory_has_no_size_where_the_driver_tells_none) {
  auto pool = make({.handles = stream_pool_handles::posix_descriptor});
  const auto stream = make_stream();
  auto memory = pool.allocate_owned(1_MiB, stream).value();
  const auto sent = pool.export_descriptor().value();
  const auto pointer = pool.export_pointer(memory.data()).value();
  driver::table calls = machine->driver();
  calls.mem_get_address_range = [](CUdeviceptr*, std::size_t* size, CUdeviceptr) -> CUresult {
    *size = 4711;
    return CUDA_ERROR_NOT_FOUND;
  };
  const auto opened = runtime::open_table(calls, "tells no sizes", machine).value();
  const auto home = opened->device(device_id{0}).value();
  const auto reader = weir::stream::create(home).value();
  auto imported = stream_pool::import_descriptor(home, sent.get()).value();
  auto seen = imported.import_pointer(pointer, reader).value();
  EXPECT_EQ(seen.size(), 0_B);
  EXPECT_TRUE(imported.try_deallocate(seen.release(), 1_MiB, reader)) << "it may well be";
  ASSERT_TRUE(reader.synchronize());
}

TEST_F(stream_pool_faults_test, memory_freed_behind_our_back_is_not_counted_twice) {
  auto pool = make();
  const auto stream = make_stream();
  void* const first = pool.allocate(1_MiB, stream);
  const context_scope scope{gpu()};
  ASSERT_EQ(scope.driver().mem_free_async(address_of(first), stream.handle()), CUDA_SUCCESS);
  void* const again = pool.allocate(1_MiB, stream);
  ASSERT_EQ(again, first);
  EXPECT_EQ(pool.stats().value().active_allocations, 1u);
  EXPECT_TRUE(pool.try_deallocate(again, 1_MiB, stream));
}

TEST_F(stream_pool_faults_test, an_allocation_and_its_free_cost_ten_driver_calls) {
  auto pool = make({.initial = 32_MiB});
  const auto stream = make_stream();
  const context_scope scope{gpu()};
  const auto before = machine->calls();
  void* const memory = pool.allocate(1_MiB, stream);
  EXPECT_TRUE(pool.try_deallocate(memory, 1_MiB, stream));
  EXPECT_EQ(machine->calls() - before, 10u);
}

TEST_F(stream_pool_faults_test, a_full_device_is_out_of_memory_with_the_figures) {
  auto pool = make();
  const auto stream = make_stream();
  const auto refused = pool.try_allocate(3_GiB, stream);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.code(), errc::out_of_memory);
  EXPECT_EQ(refused.error().requested(), 3_GiB);
  EXPECT_EQ(refused.error().native(), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(refused.error().detail(), "the pool uses 0 B of 1.94 GiB reserved");
  auto bounded = make({.max = 64_MiB});
  auto memory = bounded.allocate_owned(40_MiB, stream).value();
  EXPECT_EQ(bounded.try_allocate(48_MiB, stream).error().detail(),
            "the pool uses 40 MiB of 64 MiB reserved, at most 64 MiB");
}

TEST_F(stream_pool_faults_test, the_pool_waits_only_when_there_is_no_room) {
  auto pool = make({.max = 64_MiB});
  const auto stream = make_stream();
  auto memory = pool.allocate_owned(64_MiB, stream).value();
  EXPECT_EQ(machine->calls(call::mem_free), 0u);
  EXPECT_EQ(code_of(pool.try_allocate(65_MiB, stream)), errc::out_of_memory);
  EXPECT_EQ(machine->calls(call::mem_free), 0u) << "no wait would help";
  EXPECT_EQ(code_of(pool.try_allocate(1_MiB, stream)), errc::out_of_memory);
  EXPECT_EQ(machine->calls(call::mem_free), 1u);
}

TEST_F(stream_pool_faults_test, four_thousand_frees_are_remembered_and_as_many_as_are_live) {
  const auto stream = make_stream();
  const auto freed_twice = [&](int count) {
    auto pool = make();
    std::vector<void*> all;
    for (int i = 0; i < count; ++i) all.push_back(pool.allocate(512_B, stream));
    for (void* const each : all) EXPECT_TRUE(pool.try_deallocate(each, 512_B, stream));
    return std::pair{code_of(pool.try_deallocate(all.front(), stream)),
                     code_of(pool.try_deallocate(all.back(), stream))};
  };
  EXPECT_EQ(freed_twice(4097),
            (std::pair{std::optional{errc::double_free}, std::optional{errc::double_free}}));
  EXPECT_EQ(freed_twice(4098),
            (std::pair{std::optional{errc::foreign_pointer}, std::optional{errc::double_free}}));
}

TEST_F(stream_pool_faults_test, as_many_frees_are_remembered_after_others_were_forgotten) {
  const auto stream = make_stream();
  constexpr std::size_t forgotten = 8194;  // of as many frees as are made here, in one go
  const auto freed_twice = [&](std::size_t count) {
    auto pool = make();
    std::vector<void*> all;
    for (std::size_t i = 0; i < count; ++i) all.push_back(pool.allocate(512_B, stream));
    for (void* const each : all) EXPECT_TRUE(pool.try_deallocate(each, 512_B, stream));
    return std::pair{code_of(pool.try_deallocate(all[forgotten - 1], stream)),
                     code_of(pool.try_deallocate(all[forgotten], stream))};
  };
  EXPECT_EQ(freed_twice(12'291),
            (std::pair{std::optional{errc::foreign_pointer}, std::optional{errc::double_free}}));
  EXPECT_EQ(freed_twice(12'292), (std::pair{std::optional{errc::foreign_pointer},
                                            std::optional{errc::foreign_pointer}}));
}

TEST_F(stream_pool_faults_test, memory_that_comes_and_goes_makes_no_other_free_forgotten) {
  auto pool = make();
  const auto stream = make_stream();
  void* const first = pool.allocate(1_MiB, stream);
  void* const second = pool.allocate(2_MiB, stream);
  ASSERT_TRUE(pool.try_deallocate(second, stream));
  ASSERT_TRUE(pool.try_deallocate(first, stream));
  for (int i = 0; i < 5000; ++i) {
    void* const again = pool.allocate(1_MiB, stream);
    ASSERT_EQ(again, first);
    ASSERT_TRUE(pool.try_deallocate(again, stream));
  }
  EXPECT_EQ(code_of(pool.try_deallocate(second, stream)), errc::double_free);
}

TEST_F(stream_pool_faults_test, a_new_stream_with_the_handle_of_one_that_is_gone_may_free) {
  auto pool = make();
  auto gone = std::make_optional(make_stream());
  auto memory = pool.allocate_owned(1_MiB, *gone).value();
  auto other = pool.allocate_owned(1_MiB, *gone).value();
  const stream_ref closed = *gone;
  ASSERT_TRUE(gone->synchronize());
  gone.reset();
  const auto next = make_stream();
  ASSERT_EQ(next.handle(), closed.handle()) << "handles are recycled";
  EXPECT_EQ(code_of(memory.free(closed)), errc::bad_stream);
  EXPECT_TRUE(memory.free(next)) << "streams are not";
  EXPECT_TRUE(other.free(stream_ref{gpu(), next.handle()})) << "nobody says that it is the old one";
}

TEST_F(stream_pool_faults_test, old_frees_are_forgotten_but_never_mistaken) {
  auto pool = make();
  const auto stream = make_stream();
  std::vector<void*> all;
  for (int i = 0; i < 10'000; ++i) all.push_back(pool.allocate(512_B, stream));
  for (void* const each : all) ASSERT_TRUE(pool.try_deallocate(each, 512_B, stream));
  EXPECT_EQ(code_of(pool.try_deallocate(all.back(), 512_B, stream)), errc::double_free);
  std::size_t refused = 0;
  for (void* const each : all) refused += pool.try_deallocate(each, 512_B, stream) ? 0 : 1;
  EXPECT_EQ(refused, all.size());
  EXPECT_EQ(pool.stats().value().active_allocations, 0u);
  EXPECT_EQ(pool.stats().value().active_allocations_peak, 10'000u);
}

// --- Threads ------------------------------------------------------------------------------------

TEST_F(stream_pool_faults_test, a_pool_may_be_closed_while_others_allocate) {
  auto pool = make();
  std::atomic<int> served{0};
  std::vector<std::thread> workers;
  for (int t = 0; t < 3; ++t) {
    workers.emplace_back([&] {
      const auto stream = make_stream();
      for (;;) {
        auto memory = pool.try_allocate(64_KiB, stream);
        if (!memory) {
          EXPECT_EQ(memory.code(), errc::closed);
          return;
        }
        EXPECT_TRUE(pool.try_deallocate(*memory, 64_KiB, stream));
        ++served;
      }
    });
  }
  while (served < 100) std::this_thread::yield();
  EXPECT_TRUE(pool.close());
  for (auto& each : workers) each.join();
}

TEST_F(stream_pool_faults_test, of_many_threads_that_free_one_pointer_one_succeeds) {
  auto pool = make();
  const auto stream = make_stream();
  for (int round = 0; round < 20; ++round) {
    void* const memory = pool.allocate(64_KiB, stream);
    std::atomic<int> freed{0};
    std::vector<std::thread> workers;
    for (int t = 0; t < 4; ++t) {
      workers.emplace_back([&] { freed += pool.try_deallocate(memory, 64_KiB, stream) ? 1 : 0; });
    }
    for (auto& each : workers) each.join();
    EXPECT_EQ(freed, 1);
  }
  EXPECT_EQ(pool.stats().value().active_allocations, 0u);
}

TEST_F(stream_pool_faults_test, streams_may_close_while_owners_live) {
  auto pool = make();
  std::vector<std::thread> workers;
  for (int t = 0; t < 3; ++t) {
    workers.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        auto stream = make_stream();
        auto memory = pool.allocate_owned(64_KiB, stream).value();
        if (i % 2 == 0) {
          EXPECT_TRUE(stream.close());
        }
      }
    });
  }
  for (auto& each : workers) each.join();
  EXPECT_EQ(pool.stats().value().active_allocations, 0u);
}

// --- The end of things --------------------------------------------------------------------------

TEST_F(stream_pool_faults_test, is_silent_when_the_driver_is_gone) {
  const auto stream = make_stream();
  {
    auto pool = make();
    auto standard = stream_pool::default_of(gpu()).value();
    auto memory = pool.allocate_owned(1_MiB, stream).value();
    auto other = stream_alloc(1_MiB, stream).value();
    static_cast<void>(pool.allocate(2_MiB, stream));
    static_cast<void>(standard.allocate(2_MiB, stream));
    machine->shut_down();
    EXPECT_EQ(code_of(pool.try_allocate(1_MiB, stream)), errc::driver_gone);
    EXPECT_EQ(code_of(memory.free()), errc::driver_gone);
    EXPECT_EQ(code_of(pool.stats()), errc::driver_gone);
    EXPECT_EQ(code_of(pool.close()), errc::driver_gone);
    EXPECT_EQ(code_of(stream_pool::create(gpu())), errc::driver_gone);
  }
  runtime_.reset();
  EXPECT_THAT(heard.take(), IsEmpty());
}

TEST_F(stream_pool_faults_test, a_forked_child_is_told_and_touches_nothing) {
  const auto stream = make_stream();
  auto pool = std::make_optional(make());
  auto standard = std::make_optional(stream_pool::default_of(gpu()).value());
  auto memory = std::make_optional(pool->allocate_owned(1_MiB, stream).value());
  void* const raw = pool->allocate(1_MiB, stream);
  const pid_t child = ::fork();
  if (child == 0) {
    int wrong = 0;
    const auto expect_gone = [&](const auto& outcome, int number) {
      if (wrong == 0 && (outcome || outcome.code() != errc::driver_gone)) wrong = number;
    };
    expect_gone(pool->try_allocate(1_MiB, stream), 1);
    expect_gone(pool->try_deallocate(raw, 1_MiB, stream), 2);
    expect_gone(memory->free(), 3);
    expect_gone(memory->free(stream), 4);
    expect_gone(pool->stats(), 5);
    expect_gone(pool->trim(), 6);
    expect_gone(pool->set_threshold(1_MiB), 7);
    expect_gone(pool->enable_peer(gpu(1)), 8);
    expect_gone(pool->close(), 9);
    expect_gone(stream_pool::create(gpu()), 10);
    expect_gone(stream_pool::default_of(gpu()), 11);
    expect_gone(stream_alloc(1_MiB, stream), 12);
    if (pool->handle() != nullptr) wrong = 13;
    pool->deallocate(raw, 1_MiB, stream);
    memory.reset();
    pool.reset();
    standard.reset();
    runtime_.reset();
    if (!heard.take().empty()) wrong = 14;
    ::_exit(wrong);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
  EXPECT_TRUE(pool->try_deallocate(raw, 1_MiB, stream)) << "the parent goes on";
}

TEST_F(stream_pool_faults_test, a_lost_device_is_said_to_be_lost) {
  const auto stream = make_stream();
  {
    auto pool = make();
    machine->lose_device(device_id{0});
    EXPECT_EQ(code_of(pool.try_allocate(1_MiB, stream)), errc::device_lost);
  }
  EXPECT_THAT(heard.take(), IsEmpty()) << "it was returned, and nothing was live";
}

TEST_F(stream_pool_faults_test, pools_and_owners_keep_the_runtime) {
  const auto home = gpu();
  {
    auto own = weir::stream::create(home).value();
    auto memory = stream_alloc(1_MiB, own).value();
    auto pool = make();
    runtime_.reset();
    EXPECT_TRUE(memory.free());
    EXPECT_TRUE(pool.allocate_owned(1_MiB, own));
  }
  EXPECT_EQ(machine.use_count(), 1) << "and let it go";
}

TEST_F(stream_pool_faults_test, raw_memory_of_the_default_pool_is_reported_with_the_runtime) {
  {
    const auto stream = make_stream();
    static_cast<void>(stream_pool::default_of(gpu()).value().allocate(2_MiB, stream));
    EXPECT_THAT(heard.take(), IsEmpty());
  }
  runtime_.reset();
  const auto reports = heard.take();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].code(), errc::still_live);
  EXPECT_EQ(reports[0].requested(), 2_MiB);
}

TEST_F(stream_pool_faults_test, each_runtime_has_default_pools_of_its_own) {
  const auto other = runtime::open_simulated(machine).value();
  const auto own = stream_pool::default_of(gpu()).value();
  const auto theirs = stream_pool::default_of(other->device(device_id{0}).value()).value();
  EXPECT_NE(own, theirs);
  EXPECT_EQ(own.handle(), theirs.handle()) << "the driver has one";
  EXPECT_NE(own, stream_pool::default_of(gpu(1)).value());
}

// --- Abilities ----------------------------------------------------------------------------------

TEST(stream_pool_abilities, a_device_without_pools_has_none) {
  const auto machine =
      sim::machine::create(
          {.devices = {sim::device_spec{.capacity = 2_GiB, .memory_pools = false}}})
          .value();
  const auto opened = runtime::open_simulated(machine).value();
  const auto home = opened->device(device_id{0}).value();
  const auto stream = weir::stream::create(home).value();
  EXPECT_EQ(code_of(stream_pool::create(home)), errc::not_supported);
  EXPECT_EQ(code_of(stream_pool::default_of(home)), errc::not_supported);
  EXPECT_EQ(code_of(stream_pool::import_descriptor(home, 0)), errc::not_supported);
  EXPECT_EQ(code_of(stream_alloc(1_MiB, stream)), errc::not_supported);
}

TEST(stream_pool_abilities, a_device_without_descriptors_shares_no_pools) {
  const auto machine =
      sim::machine::create(
          {.devices = {sim::device_spec{.capacity = 2_GiB, .posix_handles = false}}})
          .value();
  const auto opened = runtime::open_simulated(machine).value();
  const auto home = opened->device(device_id{0}).value();
  EXPECT_TRUE(stream_pool::create(home));
  EXPECT_EQ(code_of(stream_pool::create(home, {.handles = stream_pool_handles::posix_descriptor})),
            errc::not_supported);
}

/// A driver that does not know of maxima yet.
class stream_pool_old_driver_test : public stream_pool_faults_test {
 protected:
  stream_pool_old_driver_test() : stream_pool_faults_test{{.driver_version = 12010}} {}
};

TEST_F(stream_pool_old_driver_test, the_pool_keeps_to_its_maximum_itself) {
  auto pool = make({.max = 64_MiB});
  const auto stream = make_stream();
  const auto other = make_stream();
  auto first = pool.allocate_owned(48_MiB, stream).value();
  EXPECT_EQ(code_of(pool.try_allocate(48_MiB, stream)), errc::out_of_memory);
  EXPECT_EQ(pool.stats().value().active_allocations, 1u);
  EXPECT_EQ(pool.stats().value().used, 48_MiB) << "what was too much went back";
  EXPECT_EQ(pool.stats().value().reserved, 64_MiB) << "to the driver";
  write(stream, first.data(), 48_MiB);
  ASSERT_TRUE(first.free());
  auto second = pool.allocate_owned(64_MiB, other);
  ASSERT_TRUE(second) << second.error().message();
  EXPECT_EQ(pool.stats().value().reserved, 64_MiB);
  auto free_of_limits = make();
  EXPECT_TRUE(free_of_limits.allocate_owned(512_MiB, stream));
}

TEST_F(stream_pool_old_driver_test, drivers_from_12_2_on_keep_to_the_maximum) {
  const auto questions_of = [](int version) {
    const auto simulated = sim::machine::create({.driver_version = version}).value();
    const auto opened = runtime::open_simulated(simulated).value();
    const auto home = opened->device(device_id{0}).value();
    const auto stream = weir::stream::create(home).value();
    auto pool = stream_pool::create(home, {.max = 64_MiB}).value();
    const auto before = simulated->calls(call::mem_pool_get_attribute);
    const auto first = pool.allocate_owned(48_MiB, stream).value();
    const auto questions = simulated->calls(call::mem_pool_get_attribute) - before;
    EXPECT_EQ(code_of(pool.try_allocate(48_MiB, stream)), errc::out_of_memory) << version;
    return questions;
  };
  EXPECT_EQ(questions_of(12020), 0u) << "nothing is weighed";
  EXPECT_EQ(questions_of(13000), 0u);
  EXPECT_GT(questions_of(12010), 0u);
}

TEST_F(stream_pool_old_driver_test, whatever_call_fails_is_told_and_nothing_is_left_behind) {
  expect_each_failure_to_be_told();
}

TEST_F(stream_pool_old_driver_test, the_maximum_counts_in_whole_units) {
  const auto stream = make_stream();
  auto pool = make({.max = 40_MiB});
  auto first = pool.allocate_owned(30_MiB, stream).value();
  auto second = pool.allocate_owned(30_MiB, stream);
  EXPECT_TRUE(second) << "64 MiB are the whole units of 40";
  EXPECT_EQ(pool.stats().value().reserved, 64_MiB);
  EXPECT_EQ(code_of(pool.try_allocate(41_MiB, stream)), errc::out_of_memory);
  EXPECT_EQ(code_of(pool.try_allocate(30_MiB, stream)), errc::out_of_memory);
  EXPECT_EQ(pool.stats().value().active_allocations, 2u);
}

TEST_F(stream_pool_old_driver_test, what_the_driver_refuses_is_not_weighed) {
  auto pool = make({.max = 64_MiB});
  const auto stream = make_stream();
  machine->fail(call::mem_alloc_from_pool_async, 1, CUDA_ERROR_UNKNOWN);
  machine->fail(call::mem_pool_get_attribute, 1, CUDA_ERROR_INVALID_VALUE);
  const auto questions = machine->calls(call::mem_pool_get_attribute);
  const auto frees = machine->calls(call::mem_free_async);
  const auto refused = pool.try_allocate(1_MiB, stream);
  machine->clear_faults();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().native(), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(machine->calls(call::mem_pool_get_attribute), questions);
  EXPECT_EQ(machine->calls(call::mem_free_async), frees) << "there is nothing to free";
}

TEST_F(stream_pool_old_driver_test, memory_whose_extent_is_not_told_goes_back) {
  const auto stream = make_stream();
  auto pool = make({.max = 64_MiB});
  machine->fail(call::mem_pool_get_attribute, 1, CUDA_ERROR_INVALID_HANDLE);
  const auto refused = pool.try_allocate(16_MiB, stream);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().native(), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(pool.stats().value().used, 0_B);
  EXPECT_TRUE(pool.allocate_owned(16_MiB, stream));
}

TEST_F(stream_pool_old_driver_test, the_maximum_says_nothing_of_a_graphs_memory) {
  auto pool = make({.max = 64_MiB});
  const auto stream = make_stream();
  auto full = pool.allocate_owned(64_MiB, stream).value();
  const context_scope scope{gpu()};
  const auto& calls = scope.driver();
  ASSERT_EQ(calls.stream_begin_capture(stream.handle(), CU_STREAM_CAPTURE_MODE_GLOBAL), 0);
  auto node = pool.allocate_owned(128_MiB, stream);
  EXPECT_TRUE(node && node->free());
  CUgraph graph = nullptr;
  ASSERT_EQ(calls.stream_end_capture(stream.handle(), &graph), 0);
  ASSERT_EQ(calls.graph_destroy(graph), 0);
}

}  // namespace
}  // namespace weir::testing_support::stream_pools
