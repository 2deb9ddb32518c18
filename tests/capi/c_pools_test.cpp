// SPDX-License-Identifier: Apache-2.0
// The C ABI's pools of the driver and pools of blocks, each argument told apart from the others.
#include <unistd.h>

#include <functional>
#include <tuple>

#include "c_fixture.hpp"

namespace weir::testing_support { namespace {

using ::testing::ElementsAre;

// --- The driver's pools --------------------------------------------------------------------------

class c_stream_pools : public c_machine {
 protected:
  void SetUp() override { ASSERT_OK(weir_stream_pool_create(runtime, 0, nullptr, &pool)); }
  void TearDown() override {
    EXPECT_OK(weir_stream_pool_close(pool, nullptr));
    c_machine::TearDown();
  }
  [[nodiscard]] static std::uint64_t attribute(weir_stream_pool* of, std::int32_t row) {
    std::uint64_t value = 0xa5a5;
    EXPECT_OK(weir_stream_pool_get_attribute(of, row, &value));
    return value;
  }
  [[nodiscard]] static weir_stream_pool_stats stats_of(weir_stream_pool* of) {
    return read<weir_stream_pool_stats>(
        [&](auto* into) { return weir_stream_pool_get_stats(of, into); });
  }
  [[nodiscard]] void* allocate(std::uint64_t size, weir_stream* on) const {
    void* pointer = nullptr;
    EXPECT_OK(weir_stream_pool_allocate(pool, size, 0, on, &pointer));
    return pointer;
  }
  weir_stream_pool* pool = nullptr;
};

TEST_F(c_stream_pools, are_made_as_they_were_asked_for) {
  weir_stream_pool_config config = WEIR_STREAM_POOL_CONFIG_INIT;
  weir_stream_pool* made = nullptr;
  EXPECT_EQ(attribute(pool, weir_stream_pool_release_threshold), WEIR_NO_LIMIT);
  EXPECT_EQ(attribute(pool, weir_stream_pool_reserved), 0u);
  config.initial = 32 * mib;
  config.max = 96 * mib;
  config.threshold = 48 * mib;
  ASSERT_OK(weir_stream_pool_create(runtime, 0, &config, &made));
  EXPECT_EQ(attribute(made, weir_stream_pool_reserved), 32 * mib);
  EXPECT_EQ(attribute(made, weir_stream_pool_release_threshold), 48 * mib);
  void* p = nullptr;
  EXPECT_EQ(weir_stream_pool_allocate(made, 97 * mib, 0, stream, &p), weir_error_out_of_memory);
  ASSERT_OK(weir_stream_pool_allocate(made, 96 * mib, 0, stream, &p));
  EXPECT_OK(weir_stream_pool_deallocate(made, p, stream));
  wait_for_all();
  EXPECT_OK(weir_stream_pool_close(made, nullptr));
  config.initial = 97 * mib;
  EXPECT_EQ(weir_stream_pool_create(runtime, 0, &config, &made), weir_error_invalid_argument);

  struct {
    std::uint32_t flag;
    std::uint64_t events;
    std::uint64_t opportunistic;
    std::uint64_t internal;
    bool exports;
  } const rows[] = {{0, 1, 1, 1, false},
                    {weir_stream_pool_no_event_dependencies, 0, 1, 1, false},
                    {weir_stream_pool_no_opportunistic, 1, 0, 1, false},
                    {weir_stream_pool_no_internal_dependencies, 1, 1, 0, false},
                    {weir_stream_pool_posix_descriptor, 1, 1, 1, true}};
  for (const auto& row : rows) {
    SCOPED_TRACE(row.flag);
    config = WEIR_STREAM_POOL_CONFIG_INIT;
    config.flags = row.flag;
    ASSERT_OK(weir_stream_pool_create(runtime, 0, &config, &made));
    EXPECT_EQ(attribute(made, weir_stream_pool_reuse_follow_event_dependencies), row.events);
    EXPECT_EQ(attribute(made, weir_stream_pool_reuse_opportunistic), row.opportunistic);
    EXPECT_EQ(attribute(made, weir_stream_pool_reuse_internal_dependencies), row.internal);
    std::int32_t number = -1;
    EXPECT_EQ(weir_stream_pool_export(made, &number),
              row.exports ? weir_error{weir_ok} : weir_error_not_supported);
    if (row.exports) ::close(number);
    EXPECT_OK(weir_stream_pool_close(made, nullptr));
  }
}

TEST_F(c_stream_pools, are_of_the_device_that_was_named) {
  weir_stream_pool* far = nullptr;
  void* p = nullptr;
  ASSERT_OK(weir_stream_pool_create(runtime, 1, nullptr, &far));
  const std::uint64_t near_before = used(0);
  const std::uint64_t far_before = used(1);
  ASSERT_OK(weir_stream_pool_allocate(far, 32 * mib, 0, nullptr, &p));
  EXPECT_EQ(used(0), near_before);
  EXPECT_EQ(used(1), far_before + 32 * mib);
  EXPECT_OK(weir_stream_pool_deallocate(far, p, nullptr));
  wait_for_all();
  EXPECT_OK(weir_stream_pool_close(far, nullptr));

  driver::CUmemoryPool expected = nullptr;
  ASSERT_EQ(machine->driver().device_get_default_mem_pool(&expected, 1), driver::CUDA_SUCCESS);
  ASSERT_OK(weir_stream_pool_open_default(runtime, 1, &far));
  void* handle = nullptr;
  ASSERT_OK(weir_stream_pool_get_native(far, &handle));
  EXPECT_EQ(handle, expected);
  std::uint64_t remaining = 99;
  EXPECT_OK(weir_stream_pool_close(far, &remaining));
  EXPECT_EQ(remaining, 0u);
  EXPECT_EQ(calls(driver::call::mem_pool_destroy), 1u) << "the device's own is not destroyed";
  EXPECT_OK(weir_stream_pool_open_default(runtime, 1, &far));
  EXPECT_OK(weir_stream_pool_close(far, nullptr));
}

TEST_F(c_stream_pools, allocate_and_free_on_the_stream_that_is_named) {
  using driver::call;
  weir_runtime* const noted = runtime_over(with_noted_streams(machine->driver()));
  weir_stream_pool* seen = nullptr;
  ASSERT_OK(weir_stream_pool_create(noted, 0, nullptr, &seen));
  weir_stream* const first = wrapped(noted, stream);
  weir_stream* const second = wrapped(noted, other);
  const auto expect_on = [&](call row, driver::CUstream on) {
    EXPECT_THAT(take_noted_streams(), ElementsAre(std::pair{row, on}));
    wait_for_all();
  };
  const auto legacy = driver::legacy_stream();
  void* p = nullptr;
  ASSERT_OK(weir_stream_pool_allocate(seen, 3 * mib, 16 * kib, second, &p));
  expect_on(call::mem_alloc_from_pool_async, native(other));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % (16 * kib), 0u);
  EXPECT_OK(weir_stream_pool_deallocate(seen, p, first));
  expect_on(call::mem_free_async, native(stream));
  ASSERT_OK(weir_stream_pool_allocate(seen, 5 * mib, 0, nullptr, &p));
  expect_on(call::mem_alloc_from_pool_async, legacy);
  EXPECT_EQ(weir_stream_pool_deallocate_sized(seen, p, 5 * mib + 1, second),
            weir_error_invalid_argument);
  expect_on(call::mem_free_async, native(other));  // it is freed all the same
  ASSERT_OK(weir_stream_pool_allocate(seen, 5 * mib, 0, first, &p));
  expect_on(call::mem_alloc_from_pool_async, native(stream));
  EXPECT_OK(weir_stream_pool_deallocate_sized(seen, p, 5 * mib, nullptr));
  expect_on(call::mem_free_async, legacy);
  wait_for_all();
  EXPECT_OK(weir_stream_close(first));
  EXPECT_OK(weir_stream_close(second));
  EXPECT_OK(weir_stream_pool_close(seen, nullptr));
  EXPECT_OK(weir_runtime_close(noted));
}

TEST_F(c_stream_pools, count_what_they_hold) {
  void* const first = allocate(40 * mib, stream);
  void* const second = allocate(10 * mib, stream);
  void* const third = allocate(6 * mib, stream);
  EXPECT_OK(weir_stream_pool_deallocate(pool, first, stream));
  wait_for_all();
  weir_stream_pool_stats now = stats_of(pool);
  EXPECT_EQ(now.used.current, 16 * mib);
  EXPECT_EQ(now.used.peak, 56 * mib);
  EXPECT_EQ(now.allocations.current, 2u);
  EXPECT_EQ(now.allocations.peak, 3u);
  EXPECT_EQ(now.allocated, 16 * mib);
  const std::uint64_t reserved_peak = now.reserved.peak;
  EXPECT_GE(reserved_peak, 56 * mib);
  EXPECT_EQ(now.reserved.current, reserved_peak);

  std::uint64_t released = 99;
  EXPECT_OK(weir_stream_pool_trim(pool, WEIR_NO_LIMIT, &released));
  EXPECT_EQ(released, 0u);
  EXPECT_OK(weir_stream_pool_trim(pool, 0, &released));
  EXPECT_GE(released, 32 * mib);
  now = stats_of(pool);
  EXPECT_EQ(now.reserved.current, reserved_peak - released);
  EXPECT_EQ(now.reserved.peak, reserved_peak);

  EXPECT_EQ(attribute(pool, weir_stream_pool_reserved), now.reserved.current);
  EXPECT_EQ(attribute(pool, weir_stream_pool_reserved_peak), now.reserved.peak);
  EXPECT_EQ(attribute(pool, weir_stream_pool_used), 16 * mib);
  EXPECT_EQ(attribute(pool, weir_stream_pool_used_peak), 56 * mib);
  EXPECT_OK(weir_stream_pool_reset_peaks(pool));
  now = stats_of(pool);
  EXPECT_EQ(now.reserved.peak, now.reserved.current);
  EXPECT_EQ(now.used.peak, 16 * mib);
  EXPECT_EQ(now.allocations.peak, 2u);
  EXPECT_OK(weir_stream_pool_deallocate(pool, second, stream));
  EXPECT_OK(weir_stream_pool_deallocate(pool, third, stream));
  wait_for_all();
}

TEST_F(c_stream_pools, trim_to_what_is_kept) {
  void* const p = allocate(64 * mib, stream);
  EXPECT_OK(weir_stream_pool_deallocate(pool, p, stream));
  wait_for_all();
  const std::uint64_t reserved = stats_of(pool).reserved.current;
  std::uint64_t released = 0;
  EXPECT_OK(weir_stream_pool_trim(pool, 32 * mib, &released));
  EXPECT_EQ(stats_of(pool).reserved.current, 32 * mib);
  EXPECT_EQ(released, reserved - 32 * mib);
}

TEST_F(c_stream_pools, change_the_attribute_that_is_named) {
  for (const std::int32_t row :
       {weir_stream_pool_reuse_follow_event_dependencies, weir_stream_pool_reuse_opportunistic,
        weir_stream_pool_reuse_internal_dependencies}) {
    EXPECT_OK(weir_stream_pool_set_attribute(pool, row, 0));
    for (const std::int32_t each : {1, 2, 3})
      EXPECT_EQ(attribute(pool, each), each == row ? 0u : 1u);
    EXPECT_OK(weir_stream_pool_set_attribute(pool, row, 1));
  }
  EXPECT_OK(weir_stream_pool_set_attribute(pool, weir_stream_pool_release_threshold, 12 * mib));
  EXPECT_EQ(attribute(pool, weir_stream_pool_release_threshold), 12 * mib);
  void* const p = allocate(4 * mib, stream);
  EXPECT_OK(weir_stream_pool_deallocate(pool, p, stream));
  wait_for_all();
  EXPECT_OK(weir_stream_pool_set_attribute(pool, weir_stream_pool_used_peak, 0));
  EXPECT_EQ(attribute(pool, weir_stream_pool_used_peak), 0u);
  EXPECT_NE(attribute(pool, weir_stream_pool_reserved_peak), 0u);
  std::uint64_t value = 0;
  for (const std::int32_t none : {0, 9}) {
    EXPECT_EQ(said(weir_stream_pool_get_attribute(pool, none, &value)),
              "invalid_argument: attribute: unknown value");
    EXPECT_EQ(said(weir_stream_pool_set_attribute(pool, none, 0)),
              "invalid_argument: attribute: unknown value");
  }
  EXPECT_EQ(weir_stream_pool_set_attribute(pool, weir_stream_pool_reserved, 0),
            weir_error_invalid_argument);
}

TEST_F(c_stream_pools, let_the_device_in_that_is_named) {
  const auto rights_of = [&](std::int32_t number) {
    std::int32_t rights = -1;
    EXPECT_OK(weir_stream_pool_get_peer(pool, number, &rights));
    return rights;
  };
  EXPECT_EQ(rights_of(0), weir_read_write);
  EXPECT_EQ(rights_of(1), 0);
  EXPECT_OK(weir_stream_pool_set_peer(pool, 1, 1));
  EXPECT_EQ(rights_of(1), weir_read_write);
  EXPECT_OK(weir_stream_pool_set_peer(pool, 1, 0));
  EXPECT_EQ(rights_of(1), 0);
}

TEST_F(c_stream_pools, are_shared_by_descriptor_and_bytes) {
  weir_stream_pool_config config = WEIR_STREAM_POOL_CONFIG_INIT;
  config.flags = weir_stream_pool_posix_descriptor;
  weir_stream_pool* exporter = nullptr;
  weir_stream_pool* importer = nullptr;
  ASSERT_OK(weir_stream_pool_create(runtime, 0, &config, &exporter));
  void* p = nullptr;
  void* q = nullptr;
  ASSERT_OK(weir_stream_pool_allocate(exporter, 4 * mib, 0, stream, &p));
  ASSERT_OK(weir_stream_pool_allocate(exporter, 6 * mib, 0, stream, &q));
  EXPECT_OK(weir_fill(p, 41, 4 * mib, stream));
  EXPECT_OK(weir_fill(q, 42, 6 * mib, stream));
  wait_for_all();
  std::int32_t number = -1;
  ASSERT_OK(weir_stream_pool_export(exporter, &number));
  EXPECT_GE(number, 0);
  ASSERT_OK(weir_stream_pool_import(runtime, 0, number, &importer));
  ::close(number);
  std::uint8_t raw[64];
  void* seen = nullptr;
  std::uint64_t size = 0;
  for (const auto& [pointer, value, expected] :
       {std::tuple{p, 41, 4 * mib}, std::tuple{q, 42, 6 * mib}}) {
    ASSERT_OK(weir_stream_pool_export_pointer(exporter, pointer, raw));
    ASSERT_OK(weir_stream_pool_import_pointer(importer, raw, other, &seen, &size));
    EXPECT_EQ(size, expected);
    EXPECT_EQ(bytes_at(seen, 2), std::vector(2, value));
    EXPECT_OK(weir_stream_pool_deallocate(importer, seen, other));
    EXPECT_FALSE(is_idle(other));
    EXPECT_TRUE(is_idle(stream));
    wait_for_all();
  }
  EXPECT_OK(weir_stream_pool_close(importer, nullptr));
  std::uint64_t remaining = 0;
  EXPECT_OK(weir_stream_pool_deallocate(exporter, p, stream));
  EXPECT_OK(weir_stream_pool_close(exporter, &remaining));
  EXPECT_EQ(remaining, 6 * mib);
  EXPECT_EQ(reported.take().size(), 1u) << "what is still live is reported";
}

// --- Pools of blocks -----------------------------------------------------------------------------

/// Whether the blocks are of the device or of the host.
class c_block_pools : public c_machine, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override { pool = create(0, WEIR_NO_LIMIT); }
  void TearDown() override {
    EXPECT_OK(weir_block_pool_close(pool));
    c_machine::TearDown();
  }
  [[nodiscard]] weir_block_pool* create(std::int32_t device, std::uint64_t threshold) const {
    weir_block_pool* made = nullptr;
    weir_block_pool_options options = WEIR_BLOCK_POOL_OPTIONS_INIT;
    options.threshold = threshold;
    EXPECT_OK(GetParam() ? weir_pinned_pool_create(runtime, device, &options, &made)
                         : weir_bin_pool_create(runtime, device, &options, &made));
    return made;
  }
  [[nodiscard]] weir_block_pool_stats stats() const { return stats_of(pool); }
  [[nodiscard]] static weir_block_pool_stats stats_of(weir_block_pool* of) {
    return read<weir_block_pool_stats>(
        [&](auto* into) { return weir_block_pool_get_stats(of, into); });
  }
  [[nodiscard]] void* allocate(std::uint64_t size, weir_stream* on) const {
    void* pointer = nullptr;
    EXPECT_OK(weir_block_pool_allocate(pool, size, 0, on, &pointer));
    return pointer;
  }
  weir_block_pool* pool = nullptr;
};
INSTANTIATE_TEST_SUITE_P(all, c_block_pools, ::testing::Bool(),
                         [](const auto& row) { return row.param ? "pinned" : "bins"; });

TEST_P(c_block_pools, count_each_thing_in_its_place) {
  void* const once = allocate(100'000, stream);  // 104 KiB
  EXPECT_OK(weir_block_pool_deallocate(pool, once, stream));
  std::uint64_t released = 0;
  EXPECT_OK(weir_block_pool_empty_cache(pool, &released));
  EXPECT_EQ(released, 104 * kib);
  void* none = nullptr;
  EXPECT_EQ(weir_block_pool_allocate(pool, std::uint64_t{1} << 50, 0, stream, &none),
            weir_error_out_of_memory);
  void* const first = allocate(1000, stream);   // 1 KiB
  void* const second = allocate(3000, stream);  // 3 KiB
  void* const third = allocate(5000, stream);   // 5 KiB
  EXPECT_OK(weir_block_pool_free(pool, second));
  void* const again = allocate(2900, stream);
  EXPECT_EQ(again, second);
  occupy(other);
  EXPECT_OK(weir_block_pool_record_stream(pool, third, other));
  EXPECT_OK(weir_block_pool_deallocate(pool, third, stream));

  weir_block_pool_stats now = stats();
  EXPECT_EQ(now.requested.current, 3900u);
  EXPECT_EQ(now.requested.peak, 100'000u);
  EXPECT_EQ(now.allocated.current, 4 * kib);
  EXPECT_EQ(now.allocated.peak, 104 * kib);
  EXPECT_EQ(now.reserved.current, 9 * kib);
  EXPECT_EQ(now.reserved.peak, 104 * kib);
  EXPECT_EQ(now.blocks.current, 2u);
  EXPECT_EQ(now.blocks.peak, 3u);
  EXPECT_EQ(now.cached, 5 * kib);
  EXPECT_EQ(now.pending, 5 * kib);
  EXPECT_EQ(now.allocations, 5u);
  EXPECT_EQ(now.frees, 3u);
  EXPECT_EQ(now.hits, 1u);
  EXPECT_EQ(now.misses, 4u);
  EXPECT_EQ(now.failures, 1u);
  EXPECT_EQ(now.waits, 0u);
  EXPECT_NE(now.events, 0u);

  EXPECT_OK(weir_block_pool_reset_peaks(pool));
  now = stats();
  EXPECT_EQ(now.requested.peak, 3900u);
  EXPECT_EQ(now.allocated.peak, 4 * kib);
  EXPECT_EQ(now.reserved.peak, 9 * kib);
  EXPECT_EQ(now.blocks.peak, 2u);
  EXPECT_EQ(now.allocations, 5u) << "counts stay";
  EXPECT_OK(weir_block_pool_reset_counters(pool));
  now = stats();
  EXPECT_EQ(now.allocations, 0u);
  EXPECT_EQ(now.frees, 0u);
  EXPECT_EQ(now.hits, 0u);
  EXPECT_EQ(now.misses, 0u);
  EXPECT_EQ(now.failures, 0u);
  EXPECT_EQ(now.events, 0u);
  EXPECT_EQ(now.requested.current, 3900u) << "what is live stays";
  EXPECT_EQ(now.cached, 5 * kib);
  EXPECT_OK(weir_block_pool_free(pool, first));
  EXPECT_OK(weir_block_pool_free(pool, again));
  wait_for_all();
}

TEST_P(c_block_pools, free_on_the_stream_that_is_named) {
  weir_stream* legacy = nullptr;
  ASSERT_OK(weir_stream_wrap(runtime, 0, nullptr, &legacy));
  const auto wait_once = [&](weir_stream* busy, const std::function<weir_error(void*)>& free) {
    void* const p = allocate(4096, stream);
    occupy(busy);
    machine->hold(native(busy));
    EXPECT_OK(free(p));
    // Only the stream that it was freed on makes it wait for itself alone.
    void* const q = allocate(4096, busy);
    const bool is_own = q == p;
    EXPECT_OK(weir_block_pool_free(pool, q));
    machine->release(native(busy));
    wait_for_all();
    EXPECT_OK(weir_block_pool_empty_cache(pool, nullptr));
    return is_own;
  };
  if (GetParam()) GTEST_SKIP() << "the host must wait for every stream";
  EXPECT_TRUE(
      wait_once(other, [&](void* p) { return weir_block_pool_deallocate(pool, p, other); }));
  EXPECT_TRUE(
      wait_once(legacy, [&](void* p) { return weir_block_pool_deallocate(pool, p, nullptr); }));
  EXPECT_TRUE(wait_once(stream, [&](void* p) { return weir_block_pool_free(pool, p); }));
  EXPECT_FALSE(wait_once(other, [&](void* p) { return weir_block_pool_free(pool, p); }));
  EXPECT_EQ(weir_block_pool_free(pool, &legacy), weir_error_foreign_pointer);
  EXPECT_OK(weir_stream_close(legacy));
}

TEST_P(c_block_pools, keep_blocks_for_the_streams_that_were_recorded) {
  weir_stream* legacy = nullptr;
  ASSERT_OK(weir_stream_wrap(runtime, 0, nullptr, &legacy));
  const auto pending_after = [&](weir_stream* busy, weir_stream* recorded) {
    void* const p = allocate(4096, stream);
    occupy(busy);
    EXPECT_OK(weir_block_pool_record_stream(pool, p, recorded));
    EXPECT_OK(weir_block_pool_free(pool, p));
    const std::uint64_t pending = stats().pending;
    wait_for_all();
    EXPECT_OK(weir_block_pool_empty_cache(pool, nullptr));
    return pending;
  };
  EXPECT_EQ(pending_after(other, other), 4096u);
  EXPECT_EQ(pending_after(legacy, nullptr), 4096u);
  EXPECT_OK(weir_stream_close(legacy));
}

TEST_P(c_block_pools, are_of_the_device_and_the_alignment_that_were_named) {
  weir_block_pool* const far = create(1, WEIR_NO_LIMIT);
  void* p = nullptr;
  const std::uint64_t near_before = used(0);
  const std::uint64_t far_before = used(1);
  ASSERT_OK(weir_block_pool_allocate(far, 8 * mib, 64 * kib, elsewhere, &p));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % (64 * kib), 0u);
  EXPECT_EQ(used(0), near_before);
  if (GetParam()) {
    EXPECT_EQ(used(1), far_before);
    std::memset(p, 1, 8 * mib);  // the host may write it
  } else {
    EXPECT_GE(used(1), far_before + 8 * mib);
  }
  void* none = nullptr;
  if (GetParam()) {  // every device reaches pinned memory
    ASSERT_OK(weir_block_pool_allocate(far, 1, 0, stream, &none));
    EXPECT_OK(weir_block_pool_deallocate(far, none, stream));
  } else {
    EXPECT_EQ(weir_block_pool_allocate(far, 1, 0, stream, &none), weir_error_bad_stream);
  }
  EXPECT_EQ(weir_block_pool_allocate(far, 1, 3, elsewhere, &none), weir_error_bad_alignment);
  EXPECT_OK(weir_block_pool_deallocate(far, p, elsewhere));
  EXPECT_OK(weir_block_pool_close(far));
}

TEST_P(c_block_pools, cache_up_to_their_threshold) {
  weir_block_pool* const bounded = create(0, 6 * kib);
  void* blocks[3];
  const auto free_all = [&](weir_block_pool* to) {
    for (void*& each : blocks) EXPECT_OK(weir_block_pool_allocate(to, 4096, 0, stream, &each));
    for (void* const each : blocks) EXPECT_OK(weir_block_pool_deallocate(to, each, stream));
    wait_for_all();
    EXPECT_OK(weir_block_pool_trim(to, WEIR_NO_LIMIT, nullptr));
    return stats_of(to).cached;
  };
  EXPECT_EQ(free_all(bounded), 4096u);
  EXPECT_OK(weir_block_pool_set_threshold(bounded, 8 * kib));
  EXPECT_EQ(free_all(bounded), 8192u);
  EXPECT_OK(weir_block_pool_set_threshold(bounded, 0));
  EXPECT_EQ(stats_of(bounded).cached, 0u);
  EXPECT_OK(weir_block_pool_close(bounded));

  EXPECT_EQ(free_all(pool), 3 * 4096u);
  std::uint64_t released = 99;
  EXPECT_OK(weir_block_pool_trim(pool, 4096, &released));
  EXPECT_EQ(released, 8192u);
  EXPECT_EQ(stats().cached, 4096u);
  EXPECT_OK(weir_block_pool_empty_cache(pool, &released));
  EXPECT_EQ(released, 4096u);
}

TEST_P(c_block_pools, forget_a_stream_that_is_released) {
  driver::CUstream raw = nullptr;
  {
    const context_scope bound{device()};
    ASSERT_EQ(machine->driver().stream_create(&raw, driver::CU_STREAM_NON_BLOCKING),
              driver::CUDA_SUCCESS);
  }
  weir_stream* foreign = nullptr;
  ASSERT_OK(weir_stream_wrap(runtime, 0, raw, &foreign));
  void* const p = allocate(4096, foreign);
  EXPECT_OK(weir_block_pool_deallocate(pool, p, foreign));
  EXPECT_OK(weir_block_pool_release_stream(pool, foreign));
  {
    const context_scope bound{device()};
    ASSERT_EQ(machine->driver().stream_destroy(raw), driver::CUDA_SUCCESS);
  }
  void* const q = allocate(4096, other);  // queries about the stream would be errors
  EXPECT_EQ(q, p);
  EXPECT_OK(weir_block_pool_free(pool, q));
  EXPECT_OK(weir_stream_close(foreign));
}

TEST_P(c_block_pools, report_what_is_live_when_they_are_closed) {
  weir_block_pool* const leaking = create(0, 0);
  void* p = nullptr;
  ASSERT_OK(weir_block_pool_allocate(leaking, 4096, 0, stream, &p));
  EXPECT_OK(weir_block_pool_close(leaking));
  const auto errors = reported.take();
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].code(), errc::still_live);
}

}  // namespace
}  // namespace weir::testing_support
