// SPDX-License-Identifier: Apache-2.0
// Vector clocks: what includes what.
#include "sim/clock.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <vector>

namespace weir::sim { namespace {

TEST(Clock, IncludesItsOwnPastOnly) {
  actor_clock a{1};
  const moment first = a.tick();
  const moment second = a.tick();
  EXPECT_TRUE(second.includes(first.at));
  EXPECT_FALSE(first.includes(second.at));
}

TEST(Clock, KnowsOfOthersOnlyWhatItLearnt) {
  actor_clock a{1};
  actor_clock b{2};
  const moment done = a.tick();
  EXPECT_FALSE(b.tick().includes(done.at));
  b.learn(done);
  EXPECT_TRUE(b.tick().includes(done.at));
  EXPECT_FALSE(b.now().includes(a.tick().at)) << "what a did afterwards is unknown";
}

TEST(Clock, LearnsAlsoWhatTheOtherKnew) {
  actor_clock a{1};
  actor_clock b{2};
  actor_clock c{3};
  const moment origin = a.tick();
  b.learn(origin);
  c.learn(b.tick());
  EXPECT_TRUE(c.tick().includes(origin.at));
}

TEST(Clock, LearningForgetsNothing) {
  actor_clock a{1};
  actor_clock b{2};
  actor_clock c{3};
  const moment one = a.tick();
  const moment two = b.tick();
  c.learn(one);
  c.learn(two);
  EXPECT_TRUE(c.now().includes(one.at));
  EXPECT_TRUE(c.now().includes(two.at));
}

TEST(Clock, AMomentDoesNotLearnAfterwards) {
  actor_clock a{1};
  actor_clock b{2};
  b.learn(a.tick());
  const moment kept = b.tick();
  const moment later = a.tick();
  b.learn(later);
  EXPECT_TRUE(b.now().includes(later.at));
  EXPECT_FALSE(kept.includes(later.at));
}

TEST(Clock, VersionChangesWithEveryDeedAndEveryLesson) {
  actor_clock a{1};
  actor_clock b{2};
  const auto before = b.version();
  b.learn(a.tick());
  const auto taught = b.version();
  EXPECT_NE(before, taught);
  b.learn(a.now());
  EXPECT_EQ(b.version(), taught) << "nothing new";
}

TEST(Clock, SharesTheListOfWhoKnowsAllOfIt) {
  actor_clock host{host_actor};
  std::array<actor_clock, 3> streams{actor_clock{1}, actor_clock{2}, actor_clock{3}};
  for (actor_clock& each : streams) {
    host.learn(each.tick());
    host.tick();
  }
  const moment before = host.now();
  for (actor_clock& each : streams) each.learn(host.now());
  for (actor_clock& each : streams) {
    EXPECT_EQ(each.now().known, before.known) << "nothing was copied";
    EXPECT_TRUE(each.tick().includes(before.at));
  }
  EXPECT_TRUE(streams[0].now().includes({2, 1}));
  EXPECT_FALSE(streams[0].now().includes({2, 2}));
  EXPECT_FALSE(streams[0].now().includes({host_actor, before.at.tick + 1}));
  // Who learns more has a list of its own from then on.
  streams[0].learn(streams[1].now());
  EXPECT_NE(streams[0].now().known, before.known);
  EXPECT_TRUE(streams[0].now().includes({2, 2}));
  EXPECT_TRUE(streams[0].now().includes(before.at));
  EXPECT_FALSE(streams[2].now().includes({2, 2}));
  EXPECT_FALSE(before.includes({2, 2}));
  host.learn(streams[2].now());
  EXPECT_TRUE(host.now().includes({3, 2}));
  EXPECT_FALSE(before.includes({3, 2}));
  EXPECT_FALSE(streams[1].now().includes({3, 2}));
}

/// Streams and the host learn from each other as they do in a machine: what they know is what they
/// would know if every lesson compared all that both sides know.
TEST(Clock, KnowsWhatListsThatAreComparedInFullKnow) {
  constexpr std::size_t actors = 6;
  using list = std::array<std::uint64_t, actors>;
  std::vector<actor_clock> clocks;
  for (actor_index each = 0; each < actors; ++each) clocks.emplace_back(each);
  std::array<list, actors> full{};
  struct memory {
    moment when;
    list known;
  };
  std::vector<memory> moments;
  std::mt19937 random{3};
  const auto tick = [&](std::size_t who) {
    ++full[who][who];
    moments.push_back({clocks[who].tick(), full[who]});
  };
  for (int step = 0; step < 20'000; ++step) {
    const std::size_t who = random() % actors;
    if (moments.empty() || random() % 3 == 0) {
      tick(who);
      continue;
    }
    // Now and then something old; else from the host, or what was done last.
    const bool from_host = who != host_actor && random() % 2 == 0;
    const memory lesson = from_host           ? memory{clocks[host_actor].now(), full[host_actor]}
                          : random() % 8 == 0 ? moments[random() % moments.size()]
                                              : moments.back();
    clocks[who].learn(lesson.when);
    for (std::size_t i = 0; i < actors; ++i) full[who][i] = std::max(full[who][i], lesson.known[i]);
    if (who == host_actor) tick(who);  // as timeline::host_learns() does
    for (actor_index i = 0; i < actors; ++i) {
      ASSERT_TRUE(full[who][i] == 0 || clocks[who].now().includes({i, full[who][i]})) << step;
      ASSERT_FALSE(clocks[who].now().includes({i, full[who][i] + 1})) << step;
    }
  }
}

TEST(ActorRegistry, ReusesANumberOnlyOnceTheHostKnowsAll) {
  actor_registry actors;
  actor_clock host{host_actor};
  actor_clock gone = actors.join(host.now());
  gone.tick();
  actors.leave(gone);
  EXPECT_NE(actors.join(host.now()).now().at.actor, gone.now().at.actor);
  host.learn(gone.now());
  host.tick();
  const actor_clock heir = actors.join(host.now());
  EXPECT_EQ(heir.now().at.actor, gone.now().at.actor);
  EXPECT_EQ(heir.now().at.tick, gone.now().at.tick) << "the heir's deeds come after";
  EXPECT_NE(actors.join(host.now()).now().at.actor, gone.now().at.actor) << "one heir each";
}

}  // namespace
}  // namespace weir::sim
