// SPDX-License-Identifier: Apache-2.0
// Stream pools: what one is to be, what it has from the start, its attributes and its figures.
#include "pools/stream_pool_fixture.hpp"

namespace weir::testing_support::stream_pools { namespace {

using attribute = stream_pool_attribute;

class stream_pool_config_test : public stream_pool_contract {};
WEIR_CONTRACT(stream_pool_config_test);

TEST(stream_pool_config, sizes_must_agree) {
  const auto verdict = [](bytes initial, bytes max, bytes threshold) {
    return code_of(
        stream_pool_config{.initial = initial, .max = max, .threshold = threshold}.validate());
  };
  constexpr auto refused = errc::invalid_argument;
  EXPECT_EQ(code_of(stream_pool_config{}.validate()), std::nullopt);
  EXPECT_EQ(verdict(1_GiB, 2_GiB, 1_GiB), std::nullopt);
  EXPECT_EQ(verdict(1_GiB, 1_GiB, 1_GiB), std::nullopt);
  EXPECT_EQ(verdict(3_GiB, 2_GiB, bytes::max()), refused) << "initial above max";
  EXPECT_EQ(verdict(0_B, 2_GiB, 3_GiB), refused) << "threshold above max";
  EXPECT_EQ(verdict(0_B, 2_GiB, bytes::max()), std::nullopt) << "everything, of what there is";
  EXPECT_EQ(verdict(1_GiB, 0_B, 512_MiB), std::nullopt) << "the threshold is raised";
  EXPECT_EQ(verdict(100_GiB, 0_B, 200_GiB), std::nullopt) << "0 is no maximum";
  EXPECT_EQ(
      (stream_pool_config{.initial = 3_GiB, .max = 2_GiB}.validate().error()),
      (error{{.code = refused, .requested = 3_GiB, .detail = "initial must not exceed maximum"}}));
  EXPECT_EQ(
      (stream_pool_config{.max = 2_GiB, .threshold = 4_GiB}.validate().error()),
      (error{
          {.code = refused, .requested = 4_GiB, .detail = "threshold must not exceed maximum"}}));
}

TEST_P(stream_pool_config_test, a_config_that_contradicts_itself_makes_no_pool) {
  EXPECT_EQ(code_of(stream_pool::create(gpu(), {.initial = 2_GiB, .max = 1_GiB})),
            errc::invalid_argument);
}

TEST_P(stream_pool_config_test, keeps_its_memory_by_default) {
  auto pool = make();
  const auto stream = make_stream();
  EXPECT_EQ(pool.threshold().value(), bytes::max());
  EXPECT_TRUE(pool.allocate_owned(64_MiB, stream));
  ASSERT_TRUE(stream.synchronize());
  EXPECT_GE(pool.stats().value().reserved, 64_MiB);
  EXPECT_EQ(pool.stats().value().used, 0_B);
}

TEST_P(stream_pool_config_test, the_threshold_is_applied_at_creation) {
  auto pool = make({.threshold = 0_B});
  EXPECT_EQ(pool.threshold().value(), 0_B);
  const auto stream = make_stream();
  EXPECT_TRUE(pool.allocate_owned(64_MiB, stream));
  ASSERT_TRUE(stream.synchronize());
  EXPECT_EQ(pool.stats().value().reserved, 0_B) << "given back at the synchronisation";
  EXPECT_EQ(make({.threshold = 96_MiB}).threshold().value(), 96_MiB);
}

TEST_P(stream_pool_config_test, the_initial_size_is_reserved_and_stays) {
  // 40 MiB is no whole unit of the driver, which would give the broken one back.
  for (const bytes threshold : {bytes::max(), 40_MiB, 8_MiB, 0_B}) {
    auto pool = make({.initial = 40_MiB, .threshold = threshold});
    EXPECT_EQ(pool.config().initial, 40_MiB);
    EXPECT_GE(pool.threshold().value(), 40_MiB) << "raised where it was below";
    const auto before = pool.stats().value();
    EXPECT_GE(before.reserved, 40_MiB);
    EXPECT_EQ(before.used, 0_B);
    EXPECT_EQ(before.used_peak, 0_B) << "the reservation is no use";
    EXPECT_EQ(before.active_allocations_peak, 0u);
    const auto stream = make_stream();
    auto all = pool.allocate_owned(40_MiB, stream).value();
    EXPECT_EQ(pool.stats().value().reserved, before.reserved) << "it was there already";
    ASSERT_TRUE(all.free());
    ASSERT_TRUE(stream.synchronize());
    EXPECT_EQ(pool.stats().value().reserved, before.reserved);
  }
}

TEST_P(stream_pool_config_test, an_initial_size_that_the_device_has_not_is_out_of_memory) {
  const auto refused = stream_pool::create(gpu(), {.initial = 1_TiB});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.code(), errc::out_of_memory);
  EXPECT_EQ(refused.error().requested(), 1_TiB);
}

// --- Attributes ---------------------------------------------------------------------------------

TEST_P(stream_pool_config_test, reuse_rules_are_switched_off_and_on) {
  auto pool = make();
  for (const auto rule : {attribute::reuse_follow_event_dependencies,
                          attribute::reuse_opportunistic, attribute::reuse_internal_dependencies}) {
    EXPECT_TRUE(pool.reuse(rule).value()) << name(rule);
    ASSERT_TRUE(pool.set_reuse(rule, false));
    EXPECT_FALSE(pool.reuse(rule).value()) << name(rule);
    EXPECT_EQ(pool.attribute(rule).value(), 0u);
    ASSERT_TRUE(pool.set_reuse(rule, true));
    EXPECT_TRUE(pool.reuse(rule).value()) << name(rule);
    EXPECT_EQ(code_of(pool.set_attribute(rule, 2)), errc::invalid_argument);
  }
  EXPECT_EQ(code_of(pool.set_reuse(attribute::release_threshold, true)), errc::invalid_argument);
  EXPECT_EQ(code_of(pool.reuse(attribute::used)), errc::invalid_argument);
}

TEST_P(stream_pool_config_test, reuse_rules_are_applied_at_creation) {
  auto pool = make({.reuse_opportunistic = false});
  EXPECT_FALSE(pool.reuse(attribute::reuse_opportunistic).value());
  EXPECT_TRUE(pool.reuse(attribute::reuse_follow_event_dependencies).value());
  auto strict =
      make({.reuse_follow_event_dependencies = false, .reuse_internal_dependencies = false});
  EXPECT_FALSE(strict.reuse(attribute::reuse_follow_event_dependencies).value());
  EXPECT_FALSE(strict.reuse(attribute::reuse_internal_dependencies).value());
}

TEST_P(stream_pool_config_test, the_threshold_obeys_the_maximum_and_keeps_its_value_if_refused) {
  auto pool = make({.max = 1_GiB, .threshold = 64_MiB});
  EXPECT_EQ(code_of(pool.set_threshold(2_GiB)), errc::invalid_argument);
  EXPECT_EQ(code_of(pool.set_attribute(attribute::release_threshold, (2_GiB).count())),
            errc::invalid_argument);
  EXPECT_EQ(pool.threshold().value(), 64_MiB);
  ASSERT_TRUE(pool.set_threshold(1_GiB));
  EXPECT_EQ(pool.threshold().value(), 1_GiB);
  ASSERT_TRUE(pool.set_threshold(bytes::max()));
  EXPECT_EQ(pool.attribute(attribute::release_threshold).value(), bytes::max().count());
}

TEST_P(stream_pool_config_test, a_maximum_beyond_the_device_is_none) {
  for (const bytes most : {bytes{std::uint64_t{1} << 48}, bytes::max()}) {
    auto pool = make({.initial = 2_MiB, .max = most});
    const auto stream = make_stream();
    EXPECT_TRUE(pool.allocate_owned(64_MiB, stream));
    ASSERT_TRUE(stream.synchronize());
    EXPECT_GE(pool.stats().value().reserved, 64_MiB);
  }
}

TEST_P(stream_pool_config_test, figures_can_be_read_and_only_peaks_set_back) {
  auto pool = make();
  for (const auto figure : {attribute::reserved, attribute::used}) {
    EXPECT_TRUE(pool.attribute(figure));
    EXPECT_EQ(code_of(pool.set_attribute(figure, 0)), errc::invalid_argument) << name(figure);
  }
  for (const auto figure : {attribute::reserved_peak, attribute::used_peak}) {
    EXPECT_TRUE(pool.attribute(figure));
    EXPECT_TRUE(pool.set_attribute(figure, 0)) << name(figure);
    EXPECT_EQ(code_of(pool.set_attribute(figure, 1)), errc::invalid_argument) << name(figure);
  }
  const auto unknown = static_cast<attribute>(9);
  EXPECT_EQ(code_of(pool.attribute(unknown)), errc::invalid_argument);
  EXPECT_EQ(code_of(pool.set_attribute(unknown, 0)), errc::invalid_argument);
  EXPECT_EQ(name(unknown), "");
}

// --- Figures ------------------------------------------------------------------------------------

TEST_P(stream_pool_config_test, stats_are_what_the_driver_counts) {
  auto pool = make();
  const auto stream = make_stream();
  auto first = pool.allocate_owned(3_MiB, stream).value();
  auto second = pool.allocate_owned(5_MiB, stream).value();
  auto now = pool.stats().value();
  EXPECT_EQ(now, pool.stats().value());
  EXPECT_EQ(now.used, 8_MiB);
  EXPECT_GE(now.reserved, 8_MiB);
  EXPECT_EQ(now.active_allocations, 2u);
  EXPECT_EQ(now.active_bytes, 8_MiB);
  // Somebody else allocates from the same pool.
  CUdeviceptr theirs = 0;
  WEIR_OK(cu->mem_alloc_from_pool_async(&theirs, mib, pool.handle(), stream.handle()));
  now = pool.stats().value();
  EXPECT_EQ(now.used, 9_MiB);
  EXPECT_EQ(now.active_allocations, 2u);
  WEIR_OK(cu->mem_free_async(theirs, stream.handle()));
  ASSERT_TRUE(first.free());
  ASSERT_TRUE(second.free());
  now = pool.stats().value();
  EXPECT_EQ(now.used, 0_B);
  EXPECT_EQ(now.used_peak, 9_MiB);
  EXPECT_EQ(now.reserved_peak, now.reserved);
  EXPECT_EQ(now.active_allocations, 0u);
  EXPECT_EQ(now.active_allocations_peak, 2u);
  EXPECT_EQ(now.active_bytes, 0_B);
}

TEST_P(stream_pool_config_test, peaks_are_reset) {
  auto pool = make();
  const auto stream = make_stream();
  auto keep = pool.allocate_owned(1_MiB, stream).value();
  EXPECT_TRUE(pool.allocate_owned(64_MiB, stream));
  ASSERT_TRUE(stream.synchronize());
  ASSERT_TRUE(pool.trim());
  auto expected = pool.stats().value();
  EXPECT_EQ(expected.used, 1_MiB);
  EXPECT_EQ(expected.used_peak, 65_MiB);
  EXPECT_GE(expected.reserved_peak, 65_MiB);
  EXPECT_LT(expected.reserved, expected.reserved_peak);
  EXPECT_EQ(expected.active_allocations, 1u);
  EXPECT_EQ(expected.active_allocations_peak, 2u);
  expected.used_peak = expected.used;
  expected.reserved_peak = expected.reserved;
  expected.active_allocations_peak = 1;
  ASSERT_TRUE(pool.reset_peaks());
  EXPECT_EQ(pool.stats().value(), expected) << "and nothing else is";
}

TEST_P(stream_pool_config_test, trimming_gives_back_what_is_unused) {
  auto pool = make();
  const auto stream = make_stream();
  auto live = pool.allocate_owned(64_MiB, stream).value();
  EXPECT_TRUE(pool.allocate_owned(128_MiB, stream));
  ASSERT_TRUE(stream.synchronize());
  const bytes before = pool.stats().value().reserved;
  EXPECT_EQ(pool.trim(before).value(), 0_B);
  // 100 MiB are no whole number of the driver's units: one more goes than it would take by itself.
  const bytes released = pool.trim(100_MiB).value();
  EXPECT_EQ(pool.stats().value().reserved, before - released);
  EXPECT_LE(pool.stats().value().reserved, 100_MiB);
  EXPECT_GE(pool.stats().value().reserved, 64_MiB);
  EXPECT_EQ(pool.trim().value(), before - released - 64_MiB);
  EXPECT_EQ(pool.stats().value().reserved, 64_MiB);
  EXPECT_TRUE(live) << "what is live stays";
}

// --- Peers --------------------------------------------------------------------------------------

TEST_P(stream_pool_config_test, a_device_is_no_peer_of_itself) {
  auto pool = make();
  EXPECT_EQ(code_of(pool.enable_peer(gpu())), errc::invalid_argument);
  EXPECT_EQ(code_of(pool.disable_peer(gpu())), errc::invalid_argument);
  EXPECT_EQ(pool.peer_access(gpu()).value(), access_rights::read_write);
  const auto elsewhere = runtime::open_table(*cu, "another", machine).value();
  const auto foreign = elsewhere->device(device_id{0}).value();
  const auto refused = pool.enable_peer(foreign);
  ASSERT_EQ(code_of(refused), errc::invalid_argument);
  EXPECT_EQ(refused.error().detail(), "the device belongs to another runtime");
  EXPECT_EQ(code_of(pool.disable_peer(foreign)), errc::invalid_argument);
  EXPECT_EQ(code_of(pool.peer_access(foreign)), errc::invalid_argument);
}

TEST_P(stream_pool_config_test, peers_are_let_in_and_shut_out) {
  if (runtime_->device_count() < 2) GTEST_SKIP() << "one device only";
  auto pool = make();
  const auto other = gpu(1);
  if (!other.can_access_peer(gpu()).value()) {
    EXPECT_EQ(code_of(pool.enable_peer(other)), errc::not_supported);
    return;
  }
  const auto here = make_stream();
  auto memory = pool.allocate_owned(1_MiB, here).value();
  write(here, memory.data(), 1_MiB, 7);
  ASSERT_TRUE(here.synchronize());
  EXPECT_EQ(pool.peer_access(other).value(), access_rights::none);
  ASSERT_TRUE(pool.enable_peer(other));
  EXPECT_EQ(pool.peer_access(other).value(), access_rights::read_write);
  {
    const auto there = weir::stream::create(other).value();
    const context_scope scope{other};
    const auto at = address_of(memory.data());
    WEIR_OK(cu->memset_d32_async(at, 8, 16, there.handle()));
    ASSERT_TRUE(there.synchronize());
  }
  EXPECT_EQ(wrong(memory.data(), 64_B, 8), 0u);
  ASSERT_TRUE(pool.disable_peer(other));
  EXPECT_EQ(pool.peer_access(other).value(), access_rights::none);
}

}  // namespace
}  // namespace weir::testing_support::stream_pools
