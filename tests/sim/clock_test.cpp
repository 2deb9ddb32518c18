// SPDX-License-Identifier: Apache-2.0
// Vector clocks: what includes what.
#include "sim/clock.hpp"

#include <gtest/gtest.h>

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
