// SPDX-License-Identifier: Apache-2.0
// Shadow memory: which pairs of accesses are reported.
#include "sim/shadow.hpp"

#include <gtest/gtest.h>

#include "sim/block_book.hpp"

namespace weir::sim { namespace {

class shadow_test : public testing::Test {
 protected:
  void touch(actor_clock& clock, std::uint64_t from, std::uint64_t size, access_kind kind) {
    const moment when = clock.tick();
    history.touch(from, size, kind, when, std::make_shared<const party>(party{.label = "access"}),
                  1000 + from, log);
  }
  void join(const actor_clock& from, actor_clock& to) { to.learn(from.now()); }
  [[nodiscard]] std::size_t found() const { return log.all().size(); }

  actor_clock a{1};
  actor_clock b{2};
  actor_clock c{3};
  shadow history;
  block_book blocks;
  hazard_log log{blocks};
};

TEST_F(shadow_test, UnorderedWritesOfTheSameByteRace) {
  touch(a, 0, 10, access_kind::write);
  touch(b, 9, 10, access_kind::write);
  ASSERT_EQ(found(), 1U);
  EXPECT_EQ(log.all()[0].kind, hazard_kind::race);
  EXPECT_EQ(log.all()[0].shared.address, 1009U);
  EXPECT_EQ(log.all()[0].shared.size, 1U);
}

TEST(Hazard, IsARaceUnlessToldOtherwise) { EXPECT_EQ(hazard{}.kind, hazard_kind::race); }

TEST(Remedy, OfARaceSaysWhoMustWaitForWhom) {
  const auto remedy = [](stream_id first, stream_id second) {
    return hazard{.kind = hazard_kind::race,
                  .first = {.label = "one", .stream = first},
                  .second = {.label = "two", .stream = second}}
        .remedy();
  };
  const stream_id host{0};
  EXPECT_EQ(remedy(stream_id{1}, host),
            "let the host wait for stream 1, or for an event after the first");
  EXPECT_EQ(remedy(host, stream_id{1}),
            "let stream 1 wait for what the host did, or do it before it is queued");
  EXPECT_EQ(remedy(stream_id{1}, stream_id{2}),
            "record an event on stream 1 after the first, and let stream 2 wait for it before the "
            "second");
  EXPECT_EQ(remedy(stream_id{2}, stream_id{1}),
            "record an event on stream 2 after the first, and let stream 1 wait for it before the "
            "second");
}

TEST_F(shadow_test, TenThousandHazardsAreKeptAndAllAreHeardOf) {
  std::size_t heard = 0;
  log.listen([&](const hazard&) { ++heard; });
  for (int i = 0; i < 10'001; ++i) log.report({});
  EXPECT_EQ(found(), 10'000U);
  EXPECT_EQ(heard, 10'001U);
}

TEST_F(shadow_test, NeighboursDoNot) {
  touch(a, 0, 10, access_kind::write);
  touch(b, 10, 10, access_kind::write);
  EXPECT_EQ(found(), 0U);
}

TEST_F(shadow_test, ReadersDoNotDisturbEachOther) {
  touch(a, 0, 10, access_kind::read);
  touch(b, 0, 10, access_kind::read);
  EXPECT_EQ(found(), 0U);
}

TEST_F(shadow_test, AWriterMustComeAfterEveryReader) {
  touch(a, 0, 10, access_kind::read);
  touch(b, 0, 10, access_kind::read);
  join(a, c);
  touch(c, 0, 10, access_kind::write);
  EXPECT_EQ(found(), 1U) << "b was forgotten";
}

TEST_F(shadow_test, OrderKeepsThemApart) {
  touch(a, 0, 10, access_kind::write);
  join(a, b);
  touch(b, 0, 10, access_kind::write);
  join(b, c);
  touch(c, 5, 1, access_kind::read);
  EXPECT_EQ(found(), 0U);
}

TEST_F(shadow_test, AWriteInsideALargerOneLeavesTheRestAlone) {
  touch(a, 0, 100, access_kind::write);
  join(a, b);
  touch(b, 40, 20, access_kind::write);
  touch(a, 0, 40, access_kind::read);
  touch(a, 60, 40, access_kind::read);
  EXPECT_EQ(found(), 0U);
  touch(a, 59, 1, access_kind::read);
  EXPECT_EQ(found(), 1U);
}

TEST_F(shadow_test, OneReportAnAccess) {
  for (std::uint64_t at = 0; at < 100; at += 10) touch(a, at, 5, access_kind::write);
  touch(b, 0, 100, access_kind::write);
  EXPECT_EQ(found(), 1U);
}

TEST_F(shadow_test, FreedMemoryIsNotToBeUsedUntilItIsAllocatedAgain) {
  touch(a, 0, 10, access_kind::allocate);
  touch(a, 0, 10, access_kind::free);
  touch(a, 0, 10, access_kind::read);
  ASSERT_EQ(found(), 1U);
  EXPECT_EQ(log.all()[0].kind, hazard_kind::use_after_free);
  touch(a, 0, 10, access_kind::allocate);
  touch(a, 0, 10, access_kind::write);
  EXPECT_EQ(found(), 1U);
}

TEST_F(shadow_test, AFreeMustComeAfterEveryUse) {
  touch(a, 0, 10, access_kind::allocate);
  join(a, b);
  touch(b, 0, 10, access_kind::read);
  touch(a, 0, 10, access_kind::free);
  ASSERT_EQ(found(), 1U);
  EXPECT_EQ(log.all()[0].kind, hazard_kind::freed_in_use);
}

TEST_F(shadow_test, ForgottenHistoryIsClean) {
  touch(a, 0, 10, access_kind::write);
  history.forget(0, 10);
  touch(b, 0, 10, access_kind::write);
  EXPECT_EQ(found(), 0U);
}

TEST(UseLog, TellsTheUseThatIsStillOut) {
  actor_clock a{1};
  actor_clock host{host_actor};
  use_log uses;
  uses.add(a.tick(), std::make_shared<const party>(party{.label = "use"}), 0);
  ASSERT_NE(uses.not_before(host.now()), nullptr);
  EXPECT_EQ(uses.not_before(host.now())->accessor->label, "use");
  host.learn(a.now());
  host.tick();
  EXPECT_EQ(uses.not_before(host.now()), nullptr);
}

TEST(UseLog, KeepsDevicesAndWritesApart) {
  actor_clock a{1};
  actor_clock b{2};
  const actor_clock host{host_actor};
  const auto accessor = [](const char* label, bool writes) {
    static std::uint64_t step = 0;
    return std::make_shared<const party>(party{.label = label, .writes = writes, .step = ++step});
  };
  use_log uses;
  uses.add(a.tick(), accessor("write", true), 1);
  uses.add(a.tick(), accessor("read", false), 1);
  b.learn(a.now());
  uses.add(b.tick(), accessor("later", false), 0);
  const auto label = [](const access_record* found) {
    return found == nullptr ? "" : found->accessor->label;
  };
  EXPECT_EQ(label(uses.not_before(host.now())), "later");
  EXPECT_EQ(label(uses.not_before(host.now(), 1)), "read");
  EXPECT_EQ(label(uses.not_before(host.now(), 1, true)), "write");
  EXPECT_EQ(label(uses.not_before(host.now(), 0)), "later");
  EXPECT_EQ(label(uses.not_before(host.now(), 0, true)), "");
  EXPECT_EQ(label(uses.not_before(host.now(), no_device)), "");
  EXPECT_EQ(label(uses.not_before(b.now())), "");
}

}  // namespace
}  // namespace weir::sim
