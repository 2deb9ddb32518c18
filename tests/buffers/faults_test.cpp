// SPDX-License-Identifier: Apache-2.0
// Fault sweeps: every driver call of an operation fails once, and nothing is lost.
#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

#include "buffers/buffers_test.hpp"
#include "support/sanitizers.hpp"
#include "weir/buffer/copy.hpp"
#include "weir/buffer/device_vector.hpp"
#include "weir/buffer/host_memory.hpp"
#include "weir/buffer/pinned_buffer.hpp"
#include "weir/buffer/staging.hpp"
#include "weir/buffer/unified_buffer.hpp"
#include "weir/sim/machine.hpp"

namespace weir::testing_support { namespace {

constexpr std::size_t block_words = 1024;

/// A simulated machine with two devices, new for every fault, so that the remains of an earlier one
/// cannot hide the losses of a later one.
class fresh_machine {
 public:
  fresh_machine() {
    sim::machine_options settings;
    settings.devices.assign(2, sim::device_spec{.capacity = 1_GiB, .context_overhead = 64_MiB});
    machine = sim::machine::create(settings).value();
    runtime_ = runtime::open_simulated(machine).value();
    memory = caching_allocator::create(gpu()).value();
    pinned = pinned_pool::create(gpu()).value();
  }
  [[nodiscard]] weir::device gpu(int index = 0) const {
    return runtime_->device(device_id{index}).value();
  }
  /// The memory that the allocators have handed out.
  [[nodiscard]] bytes live() const {
    return bytes{memory->stats().requested.current} + bytes{pinned->stats().requested.current};
  }

  std::shared_ptr<sim::machine> machine;
  std::shared_ptr<runtime> runtime_;
  std::optional<caching_allocator> memory;
  std::optional<pinned_pool> pinned;
};

/// The memory of the device in use when all that is only cached was released.
bytes in_use(fresh_machine& on) {
  EXPECT_TRUE(on.gpu().synchronize());
  EXPECT_TRUE(on.memory->empty_cache());
  return on.machine->used(device_id{0});
}

/// Whether the driver refused to take memory back, or could not be reached for it.
bool is_refused_free(const error& reported) {
  const std::string_view calls[] = {"cuMemFree", "cuMemFreeHost", "cuMemHostUnregister",
                                    "cuCtxGetCurrent", "cuCtxPushCurrent"};
  return std::find(std::begin(calls), std::end(calls), reported.call()) != std::end(calls);
}

/// Runs `work` with its first, second, … driver call failing, until none does. `work` leaves frees
/// to destructors. A failure is told once: returned or reported. Afterwards nothing is live and the
/// same memory is in use as before, unless it was the driver that refused a free.
void sweep(const std::function<result<void>(fresh_machine&)>& work, std::uint64_t first = 1,
           std::uint64_t stride = 1) {
  constexpr auto failure = driver::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  for (std::uint64_t nth = first;; nth += stride) {
    SCOPED_TRACE("failing call " + std::to_string(nth));
    ASSERT_LT(nth, 1000U) << "it never succeeds";
    error_reports heard;
    fresh_machine on;
    WEIR_DONE(work(on));  // what is cached is cached, contexts exist
    const bytes before = in_use(on);
    const std::uint64_t calls_before = on.machine->calls();
    on.machine->fail_any(nth, failure);
    const auto outcome = work(on);
    const bool fired = on.machine->calls() - calls_before >= nth;
    on.machine->clear_faults();
    const auto reported = heard.take();
    std::vector<error> told = reported;
    if (!outcome) told.push_back(outcome.error());
    EXPECT_LE(told.size(), 1U);
    for (const error& each : told) EXPECT_EQ(each.native(), failure) << each.message();
    EXPECT_EQ(on.live(), 0_B);
    if (reported.empty() || !is_refused_free(reported.front())) {
      EXPECT_EQ(in_use(on), before);
      WEIR_DONE(work(on));
    }
    if (!fired) {
      EXPECT_TRUE(told.empty());
    }
    for (const auto& hazard : on.machine->hazards()) ADD_FAILURE() << hazard.message();
    if (!fired || ::testing::Test::HasFailure()) return;
  }
}

TEST(buffer_faults, a_vector_grows_or_stays) {
  sweep([](fresh_machine& on) -> result<void> {
    WEIR_TRY_VALUE(stream, stream::create(on.gpu()));
    const auto values = counting(block_words);
    WEIR_TRY_VALUE(some, device_vector<word>::copy_of(*on.memory, values, stream));
    WEIR_TRY(device_vector<word>::zeroed(*on.memory, block_words, stream));
    const auto grown = some.resize(2 * block_words);
    if (!grown) {
      EXPECT_EQ(some.size(), block_words);
    }
    std::vector<word> back(block_words);
    WEIR_TRY(some.copy_to(back));
    WEIR_TRY(stream.synchronize());
    EXPECT_EQ(back, values);
    WEIR_TRY(some.fill(1));
    WEIR_TRY(some.get(block_words - 1));
    WEIR_TRY(stream.synchronize());
    return grown;
  });
}

TEST(buffer_faults, buffers_pass_between_streams_or_stay) {
  sweep([](fresh_machine& on) -> result<void> {
    WEIR_TRY_VALUE(first, stream::create(on.gpu()));
    WEIR_TRY_VALUE(second, stream::create(on.gpu()));
    WEIR_TRY_VALUE(one, device_buffer::create(*on.memory, 4096_B, first));
    WEIR_TRY_VALUE(two, device_buffer::create(*on.memory, 4096_B, second));
    WEIR_TRY(fill_bytes(one.data(), 1, 4096_B, first));
    WEIR_TRY(copy_between(two, 0_B, one, 0_B, 4096_B));
    WEIR_TRY(fill_bytes(one.data(), 2, 4096_B, first));
    WEIR_TRY(one.hand_over(second));
    WEIR_TRY(fill_bytes(one.data(), 3, 4096_B, second));
    WEIR_TRY(two.join(first));
    WEIR_TRY(first.synchronize());
    return second.synchronize();
  });
}

/// The driver is asked for the stream's id at each free, so a free can fail.
TEST(buffer_faults, a_buffer_of_a_foreign_stream_is_freed_though_a_call_fails) {
  sweep([](fresh_machine& on) -> result<void> {
    driver::CUstream handle = nullptr;
    {
      const context_scope bound{on.gpu()};
      if (!bound) return bound.error();
      WEIR_TRY(driver::check(
          driver::call::stream_create,
          on.machine->driver().stream_create(&handle, driver::CU_STREAM_NON_BLOCKING)));
    }
    const auto use = [&]() -> result<void> {
      WEIR_TRY_VALUE(some,
                     device_vector<word>::create(*on.memory, block_words, {on.gpu(), handle}));
      return some.resize(2 * block_words);
    };
    auto outcome = use();
    WEIR_TRY(on.memory->release_stream({on.gpu(), handle}));
    const context_scope bound{on.gpu()};
    if (!bound) return bound.error();
    const auto destroyed =
        driver::check(driver::call::stream_destroy, on.machine->driver().stream_destroy(handle));
    return outcome ? destroyed : outcome;
  });
}

TEST(buffer_faults, a_unified_buffer_is_created_whole_or_not_at_all) {
  // Under sanitizers every call fails in one of the modes.
  std::uint64_t first = 1;
  for (const attachment mode : {attachment::global, attachment::host, attachment::single}) {
    const auto work = [mode](fresh_machine& on) -> result<void> {
      WEIR_TRY_VALUE(stream, stream::create(on.gpu()));
      WEIR_TRY_VALUE(zeros, unified_buffer<word>::zeroed(block_words, stream, mode));
      WEIR_TRY(unified_buffer<word>::create(block_words, stream, contents::undefined, mode));
      WEIR_TRY_VALUE(some, unified_buffer<word>::copy_of(counting(block_words), stream, mode));
      if (mode != attachment::host) WEIR_TRY(some.prefetch(on.gpu(), stream));
      WEIR_TRY(some.advise_read_mostly());
      WEIR_TRY(some.info());
      WEIR_TRY(some.resize(2 * block_words, stream));
      WEIR_TRY(some.attach(attachment::global, stream));
      WEIR_TRY_VALUE(view, some.view());
      EXPECT_EQ(view[block_words - 1], block_words - 1);
      WEIR_TRY_VALUE(none, zeros.view());
      EXPECT_EQ(none[block_words - 1], 0U);
      return {};
    };
    is_sanitized ? sweep(work, first++, 3) : sweep(work);
  }
}

TEST(buffer_faults, host_memory_is_released) {
  sweep([](fresh_machine& on) -> result<void> {
    WEIR_TRY(mapped_buffer<word>::create(on.gpu(), block_words));
    std::vector<word> values(block_words);
    WEIR_TRY(registered_memory::create(on.gpu(), std::as_writable_bytes(std::span{values})));
    return {};
  });
}

TEST(buffer_faults, a_registration_does_not_outlive_a_failed_address_query) {
  fresh_machine on;
  std::vector<word> values(block_words);
  const auto raw = std::as_writable_bytes(std::span{values});
  on.machine->fail(driver::call::mem_host_get_device_pointer, 1, driver::CUDA_ERROR_INVALID_VALUE);
  EXPECT_FALSE(registered_memory::create(on.gpu(), raw));
  // Were it still registered, this would be refused.
  EXPECT_TRUE(registered_memory::create(on.gpu(), raw));
}

TEST(buffer_faults, staging_stays_usable) {
  sweep([](fresh_machine& on) -> result<void> {
    WEIR_TRY_VALUE(stream, stream::create(on.gpu()));
    WEIR_TRY_VALUE(there, device_vector<word>::create(*on.memory, block_words, stream));
    WEIR_TRY_VALUE(stage, staging_buffer::create(*on.pinned, stream, {.chunk = 2048_B}));
    const auto values = counting(block_words);
    std::vector<word> back(block_words);
    const auto up = stage.upload(there.data(), std::as_bytes(std::span{values}));
    const auto down = stage.download(std::as_writable_bytes(std::span{back}), there.data());
    if (up && down) {
      EXPECT_EQ(back, values);
    } else {
      WEIR_TRY(stage.upload(there.data(), std::as_bytes(std::span{values})));
      WEIR_TRY(stage.download(std::as_writable_bytes(std::span{back}), there.data()));
      EXPECT_EQ(back, values);
    }
    WEIR_TRY(stream.synchronize());
    return up ? down : up;
  });
}

TEST(buffer_faults, a_batch_names_the_item_that_failed) {
  fresh_machine on;
  const auto stream = stream::create(on.gpu()).value();
  auto there = device_vector<word>::create(*on.memory, block_words, stream).value();
  std::vector<word> values(block_words);
  const std::vector<copy_item> items{{there.data(), values.data(), 0_B},
                                     {there.data(), values.data(), 8_B},
                                     {there.data() + 4, reinterpret_cast<const void*>(8), 8_B}};
  const auto refused = copy_batch(items, stream);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().detail(), ::testing::HasSubstr("item 2"));
  EXPECT_TRUE(stream.synchronize());
}

TEST(buffer_faults, a_lost_device_is_an_error_everywhere_and_the_end_tells_no_more_than_that) {
  using ::testing::ElementsAre;
  const auto lost = [](const char* call) {
    return ::testing::AllOf(::testing::Property(&error::code, errc::device_lost),
                            ::testing::Property(&error::call, call));
  };
  error_reports heard;
  auto on = std::make_optional<fresh_machine>();
  {
    const auto stream = stream::create(on->gpu()).value();
    auto there = device_vector<word>::create(*on->memory, block_words, stream).value();
    auto some = unified_buffer<word>::zeroed(block_words, stream).value();
    auto mapped = mapped_buffer<word>::create(on->gpu(), 1).value();
    on->machine->lose_device(device_id{0});
    EXPECT_EQ(code_of(there.fill(1)), errc::device_lost);
    EXPECT_EQ(code_of(stream.synchronize()), errc::device_lost);
    EXPECT_EQ(code_of(there.get(0)), errc::device_lost);
    EXPECT_EQ(code_of(some.view()), errc::device_lost);
    EXPECT_EQ(code_of(unified_buffer<word>::zeroed(block_words, stream)), errc::device_lost);
    EXPECT_EQ(code_of(mapped_buffer<word>::create(on->gpu(), 1)), errc::device_lost);
    EXPECT_EQ(code_of(mapped.close()), errc::device_lost);
    EXPECT_THAT(heard.take(), ::testing::IsEmpty()) << "all of it was returned";
    EXPECT_EQ(code_of(some.close()), errc::device_lost);
    some = {};
    there = {};
    EXPECT_THAT(heard.take(), ::testing::IsEmpty()) << "nothing is left to tell";
  }
  EXPECT_THAT(heard.take(), ElementsAre(lost("cuEventCreate"), lost("cuEventCreate")))
      << "the allocator and the pool could not mark the stream";
  on.reset();
  EXPECT_THAT(heard.take(), ElementsAre(lost("cuMemHostAlloc"))) << "the allocator's end";
}

TEST(buffer_faults, a_registration_that_other_devices_may_use_is_kept_and_told) {
  fresh_machine on;
  std::vector<word> values(block_words);
  const auto raw = std::as_writable_bytes(std::span{values});
  auto pinned = registered_memory::create(on.gpu(), raw).value();
  const auto elsewhere = stream::create(on.gpu(1)).value();
  // Nothing can be allocated whose free would wait for the second device.
  on.machine->fail(driver::call::mem_alloc, 1, driver::CUDA_ERROR_UNKNOWN);
  on.machine->fail(driver::call::mem_host_alloc, 1, driver::CUDA_ERROR_UNKNOWN);
  const auto kept = pinned.close();
  ASSERT_EQ(code_of(kept), errc::driver_error);
  EXPECT_EQ(kept.error().requested(), bytes{raw.size()});
  EXPECT_EQ(kept.error().detail(),
            to_string(bytes{raw.size()}) +
                " stay registered, because work that may use them could not be waited for; do not "
                "free this memory");
  EXPECT_EQ(code_of(registered_memory::create(on.gpu(), raw)), errc::already_mapped);
}

TEST(buffer_faults, nothing_is_said_after_the_driver_is_gone) {
  error_reports heard;
  fresh_machine on;
  const auto stream = stream::create(on.gpu()).value();
  auto some = unified_buffer<word>::zeroed(block_words, stream).value();
  auto mapped = mapped_buffer<word>::create(on.gpu(), 10).value();
  std::vector<word> values(block_words);
  auto pinned =
      registered_memory::create(on.gpu(), std::as_writable_bytes(std::span{values})).value();
  on.machine->shut_down();
  EXPECT_EQ(code_of(some.view()), errc::driver_gone);
  some = {};
  mapped = {};
  pinned = {};
  EXPECT_TRUE(heard.take().empty());
}

}  // namespace
}  // namespace weir::testing_support
