// SPDX-License-Identifier: Apache-2.0
// Contract of the allocator: limits, out of memory, and memory that goes back to the driver.
#include <chrono>
#include <thread>

#include "allocator_contract/allocator_test.hpp"

namespace weir::testing_support { namespace {

using ::testing::HasSubstr;

class trimming : public allocator_test {
 protected:
  /// The driver keeps some memory for itself as it goes along.
  static constexpr bytes tolerance{std::uint64_t{32} << 20};

  /// Trims until that helped, for a second at most: it waits for nothing, so a stream that has just
  /// come to rest may still count as busy. Returns how much went.
  bytes trim_down_to(bytes keep) {
    bytes went{};
    for (int i = 0; i < 500; ++i) {
      went += memory().trim(keep).value();
      if (memory().stats().reserved.current <= keep) break;
      std::this_thread::sleep_for(std::chrono::milliseconds{2});
    }
    EXPECT_LE(memory().stats().reserved.current, keep);
    return went;
  }
};
WEIR_ALLOCATOR_CONTRACT(trimming);

TEST_P(trimming, an_empty_cache_is_the_devices_memory_again) {
  lane& on = new_lane();
  finish(make(1_MiB, on), on);
  ASSERT_TRUE(memory().empty_cache());
  const bytes before = device_free();
  const filled_block kept = make(3_MiB, on);
  void* const large = memory().allocate(512_MiB, on);
  on.fill(large, 1_MiB, new_value());
  EXPECT_LE(device_free() + 500_MiB, before);
  memory().deallocate(large, on);
  EXPECT_LE(device_free() + 500_MiB, before) << "what is freed is kept";
  const bytes went = memory().empty_cache().value();
  EXPECT_GE(went, 500_MiB);
  EXPECT_GE(device_free() + tolerance, before);
  expect_books();
  expect_snapshot();
  finish(kept, on);
}

TEST_P(trimming, trim_keeps_what_it_was_told) {
  lane& on = new_lane();
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(memory().allocate(64_MiB, on));
  for (void* const each : blocks) memory().deallocate(each, on);
  EXPECT_TRUE(on.stream().synchronize());
  const bytes before = memory().stats().reserved.current;
  const bytes went = trim_down_to(256_MiB);
  const bytes after = memory().stats().reserved.current;
  EXPECT_EQ(before - after, went);
  EXPECT_GE(after, 128_MiB) << "no more than asked, but for whole segments";
  trim_down_to(0_B);
  expect_books();
}

TEST_P(trimming, trim_leaves_what_streams_may_still_use) {
  lane& on = new_lane();
  const filled_block block = make(16_MiB, on);
  WEIR_OK(cu->ctx_synchronize());
  auto busy = occupy(on.handle());
  finish(block, on);
  if (policy() != placement_policy::classic) {  // whose release would wait for the device
    EXPECT_EQ(memory().trim().value(), 0_B);
    EXPECT_GE(memory().stats().reserved.current, 16_MiB);
  }
  busy->finish();
  EXPECT_TRUE(on.stream().synchronize());
  trim_down_to(0_B);
}

TEST_P(trimming, out_of_memory_says_where_the_memory_is) {
  lane& on = new_lane();
  ASSERT_TRUE(memory().set_limit(64_MiB));
  filled_block weights;
  {
    const tag_scope scope{tag::named("contract weights").value()};
    weights = make(40_MiB, on);
  }
  EXPECT_EQ(code_of(memory().try_allocate(48_MiB, on)), errc::out_of_memory);
  try {
    static_cast<void>(memory().allocate(48_MiB, on));
    FAIL() << "there is no room";
  } catch (const out_of_memory& thrown) {
    EXPECT_EQ(thrown.reason().code(), errc::out_of_memory);
    EXPECT_THAT(thrown.report(), HasSubstr("contract weights"));
  }
  EXPECT_EQ(memory().stats().failures, 2U);
  const memory_report report = memory().explain(48_MiB, on);
  EXPECT_EQ(report.requested, 48_MiB);
  EXPECT_EQ(report.limit, 64_MiB);
  EXPECT_EQ(report.stats.requested.current, 40_MiB);
  EXPECT_EQ(report.device_total, where().total_memory());
  ASSERT_FALSE(report.tags.empty());
  EXPECT_EQ(report.tags.front().tag.name(), "contract weights");
  ASSERT_FALSE(report.largest.empty());
  EXPECT_EQ(report.largest.front().blocks, 1U);
  EXPECT_FALSE(report.advice.empty());
  expect_books();
  finish(weights, on);
  finish(make(48_MiB, on), on);
}

TEST_P(trimming, a_callback_may_make_room) {
  lane& on = new_lane();
  ASSERT_TRUE(memory().set_limit(64_MiB));
  std::vector<filled_block> cache{make(30_MiB, on), make(30_MiB, on)};
  int asked = 0;
  const auto registered = memory()
                              .on_out_of_memory([&](bytes needed) {
                                ++asked;
                                EXPECT_GE(needed, 50_MiB);
                                if (cache.empty()) return false;
                                finish(cache.back(), on);
                                cache.pop_back();
                                return true;
                              })
                              .value();
  const filled_block block = make(50_MiB, on);
  EXPECT_GE(asked, 2);
  EXPECT_TRUE(cache.empty());
  EXPECT_EQ(code_of(memory().try_allocate(50_MiB, on)), errc::out_of_memory);
  finish(block, on);
  expect_books();
}

TEST_P(trimming, what_a_pool_caches_serves_others_before_they_fail) {
  lane& on = new_lane();
  ASSERT_TRUE(memory().set_limit(80_MiB));
  const auto pool = memory().create_pool("saver").value();
  for (const bytes size : {3_MiB, 60_MiB}) {
    std::vector<filled_block> inside;
    for (bytes used{}; used + size <= 80_MiB; used += size) {
      const auto made = pool.try_allocate(size, on);
      if (!made) break;
      inside.push_back({*made, size, new_value()});
      on.fill(*made, size, inside.back().value);
    }
    for (const auto& each : inside) finish(each, on);
    finish(make(4_MiB, on), on);
    finish(make(50_MiB, on), on);
    expect_books();
    EXPECT_LE(memory().stats().reserved.peak, 80_MiB);
    EXPECT_TRUE(memory().empty_cache());
  }
}

TEST_P(trimming, a_tags_limit_is_its_own) {
  lane& on = new_lane();
  const tag small = tag::named("contract small").value();
  ASSERT_TRUE(memory().set_limit(small, 8_MiB));
  filled_block inside;
  {
    const tag_scope scope{small};
    inside = make(6_MiB, on);
    EXPECT_EQ(code_of(memory().try_allocate(4_MiB, on)), errc::out_of_memory);
  }
  finish(make(4_MiB, on), on);
  EXPECT_EQ(memory().stats(small).requested.current, 6_MiB);
  finish(inside, on);
  EXPECT_EQ(memory().stats(small).requested.current, 0_B);
  expect_books();
}

TEST_P(trimming, more_than_the_device_has_is_refused_and_forgotten) {
  lane& on = new_lane();
  const filled_block block = make(4_MiB, on);
  EXPECT_EQ(code_of(memory().try_allocate(where().total_memory() * 2, on)), errc::out_of_memory);
  expect_books();
  finish(make(8_MiB, on), on);
  finish(block, on);
  EXPECT_TRUE(memory().empty_cache());
  EXPECT_EQ(memory().stats().reserved.current, 0_B);
}

TEST_P(trimming, an_allocator_that_ends_with_live_blocks_says_so) {
  lane& on = new_lane();
  const bytes before = device_free();
  void* const forgotten = memory().allocate(256_MiB, on);
  on.fill(forgotten, 1_MiB, new_value());
  EXPECT_TRUE(on.stream().synchronize());
  EXPECT_TRUE(memory().close());
  const auto reported = heard.take();
  ASSERT_EQ(reported.size(), 1U);
  EXPECT_EQ(reported.front().code(), errc::still_live);
  EXPECT_EQ(code_of(memory().try_allocate(1_KiB, on)), errc::closed);
  EXPECT_EQ(code_of(memory().try_deallocate(forgotten, on)), errc::closed);
  EXPECT_GE(device_free() + tolerance, before);
}

}  // namespace
}  // namespace weir::testing_support
