// SPDX-License-Identifier: Apache-2.0
// The C ABI's suspended memory, each argument told apart from the others.
#include <chrono>
#include <thread>
#include <utility>

#include "c_fixture.hpp"

namespace weir::testing_support { namespace {

using ::testing::HasSubstr;
using steps = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

/// An allocator with a tag that was declared.
class c_suspend : public c_memory {
 protected:
  void SetUp() override {
    ASSERT_OK(weir_tag_named("c weights", &weights));
    ASSERT_OK(weir_tag_named("c cache", &cache));
    ASSERT_OK(weir_allocator_declare_suspendable(memory, weights, nullptr));
    idle = used();
  }
  /// A block with the tag, full of `value`.
  [[nodiscard]] void* filled(std::uint32_t tag, std::uint64_t size, std::uint8_t value) const {
    std::uint32_t before = 0;
    EXPECT_OK(weir_tag_set_current(tag, &before));
    void* const made = allocate(size, stream);
    EXPECT_OK(weir_tag_set_current(before, nullptr));
    EXPECT_OK(weir_fill(made, value, size, stream));
    return made;
  }
  [[nodiscard]] weir_suspend_outcome suspend(std::uint32_t tag,
                                             const weir_suspend_options* options) const {
    return read<weir_suspend_outcome>(
        [&](auto* into) { return weir_allocator_suspend_tag(memory, tag, options, into); });
  }
  [[nodiscard]] weir_resume_outcome resume(std::uint32_t tag) const {
    return read<weir_resume_outcome>(
        [&](auto* into) { return weir_allocator_resume_tag(memory, tag, nullptr, into); });
  }
  [[nodiscard]] bool is_suspended(std::uint32_t tag) const {
    std::int32_t away = -1;
    EXPECT_OK(weir_allocator_is_tag_suspended(memory, tag, &away));
    return away == 1;
  }
  [[nodiscard]] weir_suspend_stats suspend_stats() const {
    return read<weir_suspend_stats>(
        [&](auto* into) { return weir_allocator_get_suspend_stats(memory, into); });
  }
  void expect_filled(const void* at, std::uint64_t size, int value) const {
    EXPECT_EQ(bytes_at(at, 1), std::vector<int>{value});
    EXPECT_EQ(bytes_at(static_cast<const char*>(at) + size - 1, 1), std::vector<int>{value});
  }
  void free(void* block) const { EXPECT_OK(weir_allocator_free(memory, block)); }

  static void note(void* context, std::uint64_t done, std::uint64_t total) {
    static_cast<steps*>(context)->emplace_back(done, total);
  }

  std::uint32_t weights = 0;
  std::uint32_t cache = 0;
  std::uint64_t idle = 0;  // used before anything was allocated
};

TEST_F(c_suspend, a_tag_goes_to_the_driver_and_comes_back) {
  void* const block = filled(weights, 4 * mib, 3);
  const weir_suspend_outcome gone = suspend(weights, nullptr);
  EXPECT_EQ(gone.struct_size, sizeof(gone));
  EXPECT_EQ(gone.reserved_0, 0u);
  EXPECT_EQ(gone.released, 4 * mib);
  EXPECT_EQ(gone.saved, 4 * mib);
  EXPECT_EQ(gone.not_suspended, 0u);
  EXPECT_EQ(used(), idle);
  EXPECT_TRUE(is_suspended(weights));
  EXPECT_FALSE(is_suspended(cache)) << "it was not declared";
  EXPECT_EQ(stats().reserved.current, 0u);
  EXPECT_EQ(stats().allocated.current, 4 * mib);
  EXPECT_EQ(suspend_stats().reserved_0, 0u);
  EXPECT_EQ(suspend_stats().suspended, 4 * mib);
  EXPECT_EQ(suspend_stats().backup.current, 32 * mib) << "in whole segments";
  EXPECT_EQ(suspend_stats().backup.peak, 32 * mib);
  EXPECT_EQ(suspend_stats().reserved_and_suspended.current, 4 * mib);
  EXPECT_EQ(suspend_stats().reserved_and_suspended.peak, 4 * mib);
  const auto is_address_suspended = [&](const void* address) {
    std::int32_t away = -1;
    EXPECT_OK(weir_allocator_is_address_suspended(memory, address, &away));
    return away;
  };
  EXPECT_EQ(is_address_suspended(static_cast<char*>(block) + 4 * mib - 1), 1);
  void* const elsewhere = allocate(6 * mib, stream);
  EXPECT_EQ(is_address_suspended(elsewhere), 0);
  EXPECT_EQ(suspend_stats().reserved_and_suspended.current, 10 * mib);
  EXPECT_EQ(suspend_stats().reserved_and_suspended.peak, 10 * mib);
  EXPECT_EQ(stats().reserved.peak, 6 * mib);
  free(elsewhere);
  std::int32_t away = -1;
  EXPECT_EQ(weir_allocator_is_address_suspended(memory, &away, &away), weir_error_foreign_pointer);
  EXPECT_EQ(away, -1);

  const weir_resume_outcome here = resume(weights);
  EXPECT_EQ(here.struct_size, sizeof(here));
  EXPECT_EQ(here.reserved_0, 0u);
  EXPECT_EQ(here.reserved, 4 * mib);
  EXPECT_EQ(here.restored, 4 * mib);
  EXPECT_FALSE(is_suspended(weights));
  EXPECT_EQ(is_address_suspended(block), 0);
  EXPECT_EQ(suspend_stats().suspended, 0u);
  expect_filled(block, 4 * mib, 3);
  free(block);
}

TEST_F(c_suspend, contents_and_host_memory_are_chosen) {
  weir_suspend_options options = WEIR_SUSPEND_OPTIONS_INIT;
  void* const block = filled(weights, 4 * mib, 3);
  options.contents = weir_contents_discard;
  EXPECT_EQ(suspend(weights, &options).saved, 0u);
  EXPECT_EQ(resume(weights).restored, 0u);
  EXPECT_EQ(suspend_stats().backup.current, 0u);

  EXPECT_OK(weir_fill(block, 4, 4 * mib, stream));
  options.contents = weir_contents_keep;
  options.backup = weir_backup_pageable;
  EXPECT_EQ(suspend(weights, &options).saved, 4 * mib);
  EXPECT_EQ(suspend_stats().backup.current, 64 * mib) << "and pinned memory to copy through";
  EXPECT_EQ(resume(weights).restored, 4 * mib);
  expect_filled(block, 4 * mib, 4);

  std::uint64_t released = 0;
  EXPECT_OK(weir_allocator_trim_backup(memory, &released));
  EXPECT_EQ(released, 64 * mib);
  const std::uint64_t pinned = calls(driver::call::mem_host_alloc);
  EXPECT_OK(weir_allocator_reserve_backup(memory, 33 * mib, weir_backup_pageable));
  EXPECT_EQ(calls(driver::call::mem_host_alloc), pinned);
  EXPECT_EQ(suspend_stats().backup.current, 64 * mib);
  EXPECT_OK(weir_allocator_reserve_backup(memory, 1, weir_backup_pinned));
  EXPECT_EQ(calls(driver::call::mem_host_alloc), pinned + 1);
  EXPECT_EQ(suspend_stats().backup.current, 96 * mib);
  EXPECT_OK(weir_allocator_trim_backup(memory, nullptr));
  EXPECT_EQ(suspend_stats().backup.current, 0u);
  free(block);
}

TEST_F(c_suspend, requests_fail_resume_or_wait) {
  weir_suspend_options options = WEIR_SUSPEND_OPTIONS_INIT;
  void* const block = filled(weights, 4 * mib, 3);
  ASSERT_OK(weir_tag_set_current(weights, nullptr));
  void* more = nullptr;
  ASSERT_OK(weir_allocator_suspend_tag(memory, weights, &options, nullptr));
  EXPECT_EQ(said(weir_allocator_allocate(memory, mib, stream, &more)),
            "suspended: pool \"c weights\"");
  ASSERT_OK(weir_allocator_resume_tag(memory, weights, nullptr, nullptr));

  options.requests = weir_requests_resume;
  ASSERT_OK(weir_allocator_suspend_tag(memory, weights, &options, nullptr));
  EXPECT_OK(weir_allocator_allocate(memory, mib, stream, &more));
  EXPECT_FALSE(is_suspended(weights));
  free(more);

  options.requests = weir_requests_wait;
  ASSERT_OK(weir_allocator_suspend_tag(memory, weights, &options, nullptr));
  std::thread waiter{[&] {
    EXPECT_OK(weir_tag_set_current(weights, nullptr));
    EXPECT_OK(weir_allocator_allocate(memory, mib, stream, &more));
    EXPECT_FALSE(is_suspended(weights));
  }};
  std::this_thread::sleep_for(std::chrono::milliseconds{20});
  EXPECT_TRUE(is_suspended(weights));
  EXPECT_OK(weir_allocator_resume_tag(memory, weights, nullptr, nullptr));
  waiter.join();
  ASSERT_OK(weir_tag_set_current(0, nullptr));
  expect_filled(block, 4 * mib, 3);
  free(more);
  free(block);
}

TEST_F(c_suspend, progress_is_told_in_chunks) {
  void* const block = filled(weights, 5 * mib, 3);
  steps out;
  steps back;
  weir_suspend_options options = WEIR_SUSPEND_OPTIONS_INIT;
  options.chunk = 2 * mib;
  options.progress = note;
  options.context = &out;
  ASSERT_OK(weir_allocator_suspend_tag(memory, weights, &options, nullptr));
  const steps expected = {{2 * mib, 5 * mib}, {4 * mib, 5 * mib}, {5 * mib, 5 * mib}};
  EXPECT_EQ(out, expected);
  weir_resume_options at_return = WEIR_RESUME_OPTIONS_INIT;
  at_return.progress = note;
  at_return.context = &back;
  ASSERT_OK(weir_allocator_resume_tag(memory, weights, &at_return, nullptr));
  EXPECT_EQ(back, expected);
  expect_filled(block, 5 * mib, 3);

  ASSERT_OK(weir_allocator_suspend(memory, &options, nullptr));
  EXPECT_EQ(out.size(), 6u);
  ASSERT_OK(weir_allocator_resume(memory, &at_return, nullptr));
  EXPECT_EQ(back.size(), 6u);
  free(block);
}

TEST_F(c_suspend, pools_are_suspended_one_by_one_or_with_all) {
  weir_pool* large = nullptr;
  weir_pool* plain = nullptr;
  ASSERT_OK(weir_pool_create_suspendable(memory, "large", weir_pool_for_graphs, nullptr, &large));
  ASSERT_OK(weir_pool_create(memory, "plain", 0, &plain));
  void* of_large = nullptr;
  void* of_plain = nullptr;
  ASSERT_OK(weir_pool_allocate(large, 64 * mib, 0, stream, &of_large));
  ASSERT_OK(weir_pool_allocate(plain, 2 * mib, 0, stream, &of_plain));
  void* const own = allocate(2 * mib, stream);
  EXPECT_EQ(capi::find(large).value()->pool.snapshot().physical.size(), 1u) << "in one piece";
  const auto outcome_of = [](weir_pool* pool) {
    return read<weir_suspend_outcome>(
        [&](auto* into) { return weir_pool_suspend(pool, nullptr, into); });
  };
  const auto is_away = [](weir_pool* pool) {
    std::int32_t away = -1;
    EXPECT_OK(weir_pool_is_suspended(pool, &away));
    return away;
  };
  EXPECT_EQ(outcome_of(large).released, 64 * mib);
  EXPECT_EQ(is_away(large), 1);
  EXPECT_EQ(is_away(plain), 0);
  const auto of_pool = read<weir_suspend_stats>(
      [&](auto* into) { return weir_pool_get_suspend_stats(large, into); });
  EXPECT_EQ(of_pool.suspended, 64 * mib);
  EXPECT_EQ(of_pool.reserved_and_suspended.current, 64 * mib);
  EXPECT_EQ(of_pool.reserved_and_suspended.peak, 64 * mib);
  EXPECT_EQ(of_pool.backup.current, 64 * mib);
  const auto rest = read<weir_suspend_outcome>(
      [&](auto* into) { return weir_allocator_suspend(memory, nullptr, into); });
  EXPECT_EQ(rest.saved, 4 * mib) << "what was away already is not copied again";
  EXPECT_EQ(is_away(plain), 1);
  EXPECT_EQ(used(), idle);
  const auto back =
      read<weir_resume_outcome>([&](auto* into) { return weir_pool_resume(plain, nullptr, into); });
  EXPECT_EQ(back.restored, 2 * mib);
  EXPECT_EQ(is_away(plain), 0);
  EXPECT_EQ(is_away(large), 1);
  const auto last = read<weir_resume_outcome>(
      [&](auto* into) { return weir_allocator_resume(memory, nullptr, into); });
  EXPECT_EQ(last.restored, 66 * mib);
  for (void* const each : {own, of_large, of_plain}) free(each);
  EXPECT_OK(weir_pool_close(large));
  EXPECT_OK(weir_pool_close(plain));
}

TEST_F(c_suspend, a_resume_that_finds_no_memory_can_be_tried_again) {
  void* const block = filled(weights, 48 * mib, 3);
  ASSERT_OK(weir_allocator_suspend_tag(memory, weights, nullptr, nullptr));
  machine->set_capacity(device_id{0}, bytes{64 * mib + 20 * mib});
  auto untouched = unset<weir_resume_outcome>();
  EXPECT_EQ(weir_allocator_resume_tag(memory, weights, nullptr, &untouched),
            weir_error_out_of_memory);
  EXPECT_THAT(weir_last_error_message(), HasSubstr("48 MiB are needed to resume it"));
  EXPECT_EQ(untouched.reserved, 0xa5a5a5a5a5a5a5a5u);
  EXPECT_TRUE(is_suspended(weights));
  machine->set_capacity(device_id{0}, bytes{1024 * mib});
  EXPECT_EQ(resume(weights).restored, 48 * mib);
  expect_filled(block, 48 * mib, 3);
  free(block);
}

TEST_F(c_suspend, what_is_evictable_makes_room_the_lowest_priority_first) {
  weir_suspend_options discarding = WEIR_SUSPEND_OPTIONS_INIT;
  discarding.contents = weir_contents_discard;
  discarding.requests = weir_requests_resume;
  weir_suspendable_options options = WEIR_SUSPENDABLE_OPTIONS_INIT;
  options.evictable = 1;
  options.priority = 5;
  ASSERT_OK(weir_allocator_declare_suspendable(memory, weights, &options));
  options.priority = -5;
  options.eviction = &discarding;
  ASSERT_OK(weir_allocator_declare_suspendable(memory, cache, &options));
  ASSERT_OK(weir_allocator_set_limit(memory, 64 * mib));
  void* const first = filled(weights, 20 * mib, 1);
  void* const second = filled(cache, 20 * mib, 2);
  void* const third = allocate(40 * mib, stream);
  EXPECT_FALSE(is_suspended(weights));
  EXPECT_TRUE(is_suspended(cache));
  EXPECT_EQ(suspend_stats().backup.current, 0u) << "what it held was not wanted";
  void* const fourth = allocate(20 * mib, stream);
  EXPECT_TRUE(is_suspended(weights));
  EXPECT_EQ(suspend_stats().backup.current, 32 * mib);
  for (void* const each : {third, fourth}) free(each);
  EXPECT_EQ(resume(weights).restored, 20 * mib);
  expect_filled(first, 20 * mib, 1);
  for (void* const each : {first, second}) free(each);
}

TEST_F(c_suspend, what_has_no_meaning_is_refused) {
  weir_suspend_options options = WEIR_SUSPEND_OPTIONS_INIT;
  const auto refused = [&] {
    return said(weir_allocator_suspend_tag(memory, weights, &options, nullptr));
  };
  options.contents = 2;
  EXPECT_EQ(refused(), "invalid_argument: contents must be from 0 to 1, got 2");
  options = WEIR_SUSPEND_OPTIONS_INIT;
  options.backup = -1;
  EXPECT_EQ(refused(), "invalid_argument: backup must be from 0 to 1, got -1");
  options = WEIR_SUSPEND_OPTIONS_INIT;
  options.requests = 3;
  EXPECT_EQ(refused(), "invalid_argument: requests must be from 0 to 2, got 3");
  options = WEIR_SUSPEND_OPTIONS_INIT;
  options.streams = 2;
  EXPECT_EQ(refused(), "invalid_argument: streams must be from 0 to 1, got 2");
  options = WEIR_SUSPEND_OPTIONS_INIT;
  options.chunk = 511;
  EXPECT_THAT(refused(), HasSubstr("chunk must be at least 512 bytes"));
  weir_suspendable_options bad = WEIR_SUSPENDABLE_OPTIONS_INIT;
  bad.eviction = &options;
  EXPECT_THAT(said(weir_allocator_declare_suspendable(memory, cache, &bad)),
              HasSubstr("chunk must be at least 512 bytes"));
  EXPECT_EQ(said(weir_allocator_declare_suspendable(memory, 0, nullptr)),
            "invalid_argument: untagged memory cannot be declared suspendable; pass a named tag");
  EXPECT_EQ(said(weir_allocator_suspend_tag(memory, cache, nullptr, nullptr)),
            "not_found: tag \"c cache\" was not declared suspendable");
  EXPECT_EQ(said(weir_allocator_resume_tag(memory, cache, nullptr, nullptr)),
            "not_found: tag \"c cache\" was not declared suspendable");
  for (const std::uint32_t none : {1023u, 70000u}) {
    EXPECT_EQ(weir_allocator_declare_suspendable(memory, none, nullptr), weir_error_not_found);
    EXPECT_EQ(weir_allocator_suspend_tag(memory, none, nullptr, nullptr), weir_error_not_found);
    EXPECT_EQ(weir_allocator_resume_tag(memory, none, nullptr, nullptr), weir_error_not_found);
  }
  EXPECT_EQ(said(weir_allocator_reserve_backup(memory, 1, 2)),
            "invalid_argument: backup must be from 0 to 1, got 2");
}

/// Nothing happens where the outcome could not be told.
TEST_F(c_suspend, an_outcome_of_another_version_is_refused_before_anything_is_done) {
  void* const block = filled(weights, 4 * mib, 3);
  auto gone = unset<weir_suspend_outcome>();
  gone.struct_size = sizeof(gone) - 1;
  EXPECT_EQ(weir_allocator_suspend_tag(memory, weights, nullptr, &gone), weir_error_bad_version);
  EXPECT_FALSE(is_suspended(weights));
  ASSERT_OK(weir_allocator_suspend_tag(memory, weights, nullptr, nullptr));
  auto here = unset<weir_resume_outcome>();
  here.struct_size = 0;
  EXPECT_EQ(weir_allocator_resume_tag(memory, weights, nullptr, &here), weir_error_bad_version);
  EXPECT_TRUE(is_suspended(weights));
  ASSERT_OK(weir_allocator_resume_tag(memory, weights, nullptr, nullptr));
  free(block);
}

/// What programs of before pass has the size that it had.
TEST(c_structures, that_were_there_before_have_not_grown) {
  EXPECT_EQ(sizeof(weir_memory_stats), 256u);
  EXPECT_EQ(sizeof(weir_tag_stats), 264u);
  EXPECT_EQ(sizeof(weir_snapshot_info), 272u);
  EXPECT_EQ(sizeof(weir_pool_info), 408u);
  EXPECT_EQ(sizeof(weir_block_info), 48u);
}

TEST_F(c_suspend, goes_and_comes_without_waiting) {
  void* const block = filled(weights, 4 * mib, 6);
  weir_suspend_options bad = WEIR_SUSPEND_OPTIONS_INIT;
  bad.chunk = 511;
  EXPECT_EQ(weir_allocator_suspend_tag_async(memory, weights, &bad), weir_error_invalid_argument);
  EXPECT_EQ(weir_allocator_suspend_tag_async(memory, cache, nullptr), weir_error_not_found);
  ASSERT_OK(weir_allocator_suspend_tag_async(memory, weights, nullptr));
  EXPECT_EQ(suspend(weights, nullptr).released, 0u) << "it is waited for, and was told to go";
  EXPECT_TRUE(is_suspended(weights));
  const auto back = read<weir_resume_outcome>(
      [&](auto* into) { return weir_allocator_resume_tag_async(memory, weights, stream, into); });
  EXPECT_EQ(back.restored, 4 * mib);
  EXPECT_EQ(back.reserved, 4 * mib);
  ASSERT_OK(weir_allocator_resume(memory, nullptr, nullptr));
  expect_filled(block, 4 * mib, 6);

  ASSERT_OK(weir_allocator_suspend_async(memory, nullptr));
  ASSERT_OK(weir_allocator_suspend(memory, nullptr, nullptr));
  EXPECT_EQ(used(), idle);
  const auto all = read<weir_resume_outcome>(
      [&](auto* into) { return weir_allocator_resume_async(memory, stream, into); });
  EXPECT_EQ(all.restored, 4 * mib);
  ASSERT_OK(weir_allocator_resume(memory, nullptr, nullptr));
  expect_filled(block, 4 * mib, 6);
  free(block);
}

TEST_F(c_suspend, pools_go_and_come_without_waiting) {
  weir_pool* pool = nullptr;
  ASSERT_OK(weir_pool_create(memory, "own", 0, &pool));
  void* block = nullptr;
  ASSERT_OK(weir_pool_allocate(pool, 2 * mib, 512, stream, &block));
  ASSERT_OK(weir_fill(block, 8, 2 * mib, stream));
  ASSERT_OK(weir_pool_suspend_async(pool, nullptr));
  ASSERT_OK(weir_pool_suspend(pool, nullptr, nullptr));
  std::int32_t away = 0;
  ASSERT_OK(weir_pool_is_suspended(pool, &away));
  EXPECT_EQ(away, 1);
  const auto back = read<weir_resume_outcome>(
      [&](auto* into) { return weir_pool_resume_async(pool, stream, into); });
  EXPECT_EQ(back.restored, 2 * mib);
  ASSERT_OK(weir_pool_resume(pool, nullptr, nullptr));
  expect_filled(block, 2 * mib, 8);
  free(block);
  ASSERT_OK(weir_pool_close(pool));
}

}  // namespace
}  // namespace weir::testing_support
