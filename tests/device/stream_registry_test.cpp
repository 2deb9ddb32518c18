// SPDX-License-Identifier: Apache-2.0
// The streams of a device that may be queried: those weir made, those watched, and the sources.
#include "device/stream_registry.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "device/device_fixture.hpp"
#include "device/state.hpp"

namespace weir::testing_support { namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class stream_registry_test : public device_test {
 protected:
  [[nodiscard]] detail::device_state& state(int index = 0) const {
    return detail::device_state::of(device_at(index));
  }
  [[nodiscard]] detail::stream_registry& known(int index = 0) const {
    return state(index).known_streams;
  }
  /// Somebody's stream; the fake's number of it is 5 more than the handle.
  [[nodiscard]] stream_ref foreign(std::uintptr_t handle) const {
    return {device_at(0), reinterpret_cast<::CUstream_st*>(handle)};
  }
  /// The ids of all streams, if any was added since.
  [[nodiscard]] std::vector<stream_id> ids_since(std::uint64_t& seen) const {
    std::vector<stream_id> ids;
    for (const auto& each : known().added_since(seen)) ids.push_back(each.stream.known_id());
    return ids;
  }
  [[nodiscard]] std::vector<stream_id> all_ids() const {
    std::uint64_t from_the_first = 0;
    return ids_since(from_the_first);
  }
};

TEST_F(stream_registry_test, HoldsTheStreamsThatWeirMade) {
  EXPECT_THAT(all_ids(), IsEmpty());
  auto first = stream::create(device_at(0)).value();
  auto second = stream::create(device_at(0)).value();
  const auto elsewhere = stream::create(device_at(1)).value();
  EXPECT_THAT(all_ids(), ElementsAre(first.id(), second.id()));
  EXPECT_EQ(known().registration_of(first.id()), 1u);
  EXPECT_EQ(known().registration_of(second.id()), 2u);
  EXPECT_EQ(known().registration_of(elsewhere.id()), 0u);
  EXPECT_EQ(known(1).registration_of(elsewhere.id()), 1u);
  ASSERT_TRUE(first.close());
  EXPECT_THAT(all_ids(), ElementsAre(second.id()));
  EXPECT_EQ(known(1).registration_of(elsewhere.id()), 1u);
}

TEST_F(stream_registry_test, TellsOnlyWhetherSomethingWasAdded) {
  std::uint64_t seen = 0;
  auto first = stream::create(device_at(0)).value();
  EXPECT_THAT(ids_since(seen), ElementsAre(first.id()));
  EXPECT_EQ(seen, 1u);
  EXPECT_THAT(ids_since(seen), IsEmpty());
  const auto second = stream::create(device_at(0)).value();
  EXPECT_THAT(ids_since(seen), ElementsAre(first.id(), second.id())) << "all, not the new one only";
  ASSERT_TRUE(first.close());
  EXPECT_THAT(ids_since(seen), IsEmpty());
  EXPECT_EQ(seen, 2u);
}

TEST_F(stream_registry_test, WatchingTwiceIsWatchingOnce) {
  ASSERT_TRUE(watch_stream(foreign(0x100)));
  ASSERT_TRUE(watch_stream(foreign(0x200)));
  ASSERT_TRUE(watch_stream(foreign(0x100)));
  EXPECT_THAT(all_ids(), ElementsAre(stream_id{0x105}, stream_id{0x205}));
  EXPECT_EQ(known().registration_of(stream_id{0x105}), 1u);
  EXPECT_EQ(known().registration_of(stream_id{0x205}), 2u);
}

TEST_F(stream_registry_test, AStreamThatIsWatchedAgainIsAnotherRegistration) {
  ASSERT_TRUE(watch_stream(foreign(0x100)));
  ASSERT_TRUE(watch_stream(foreign(0x200)));
  ASSERT_TRUE(unwatch_stream(foreign(0x100)));
  EXPECT_THAT(all_ids(), ElementsAre(stream_id{0x205}));
  EXPECT_EQ(known().registration_of(stream_id{0x105}), 0u);
  ASSERT_TRUE(unwatch_stream(foreign(0x100))) << "nobody watches it: nothing to do";
  ASSERT_TRUE(watch_stream(foreign(0x100)));
  EXPECT_THAT(all_ids(), ElementsAre(stream_id{0x205}, stream_id{0x105}));
  EXPECT_EQ(known().registration_of(stream_id{0x105}), 3u);
}

TEST_F(stream_registry_test, AThreadsDefaultStreamCannotBeWatched) {
  const auto own = stream_ref::per_thread(device_at(0));
  for (const auto& refused : {watch_stream(own), unwatch_stream(own)}) {
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error(), (error{{.code = errc::bad_stream,
                                       .detail = "the per-thread default stream is a different "
                                                 "stream on each thread; pass a created stream"}}));
  }
  ASSERT_TRUE(watch_stream(stream_ref::legacy(device_at(0))));
  EXPECT_THAT(all_ids(), ElementsAre(stream_id{6}));
}

TEST_F(stream_registry_test, AStreamWhoseIdCannotBeHadIsNotWatched) {
  fake.always[driver::call::stream_get_id] = driver::CUDA_ERROR_INVALID_HANDLE;
  EXPECT_EQ(code_of(watch_stream(foreign(0x100))), errc::invalid_handle);
  EXPECT_EQ(code_of(unwatch_stream(foreign(0x100))), errc::invalid_handle);
  EXPECT_THAT(all_ids(), IsEmpty());
}

TEST_F(stream_registry_test, SourcesAreAskedEachTimeUntilTheirRegistrationGoes) {
  const auto first = foreign(0x100).identified().value();
  const auto second = foreign(0x200).identified().value();
  std::vector<stream_ref> named{first, foreign(0x300)};  // one without an id, which is passed over
  int asked = 0;
  std::optional registration{watch_streams(device_at(0), [&](std::vector<stream_ref>& streams) {
                               ++asked;
                               streams.insert(streams.end(), named.begin(), named.end());
                             }).value()};
  EXPECT_TRUE(*registration);
  EXPECT_EQ(asked, 0);
  std::uint64_t seen = 0;
  EXPECT_THAT(ids_since(seen), ElementsAre(stream_id{0x105}));
  EXPECT_EQ(asked, 1);
  EXPECT_THAT(ids_since(seen), IsEmpty());
  EXPECT_EQ(asked, 2);
  named = {second};
  EXPECT_THAT(ids_since(seen), ElementsAre(stream_id{0x105}, stream_id{0x205}));
  EXPECT_EQ(asked, 3);
  registration.reset();
  EXPECT_THAT(all_ids(), ElementsAre(stream_id{0x105}, stream_id{0x205})) << "watched all the same";
  EXPECT_EQ(asked, 3);
}

TEST_F(stream_registry_test, EverySourceHasItsOwnRegistration) {
  std::string asked;
  const auto source = [&](char name) {
    return watch_streams(device_at(0), [&asked, name](std::vector<stream_ref>&) { asked += name; })
        .value();
  };
  const auto who = [&] {
    asked.clear();
    EXPECT_THAT(all_ids(), IsEmpty());
    return asked;
  };
  std::optional a{source('a')};
  std::optional b{source('b')};
  const std::optional c{source('c')};
  EXPECT_EQ(who(), "abc");
  b.reset();
  EXPECT_EQ(who(), "ac");
  stream_source_registration moved{std::move(*a)};
  EXPECT_FALSE(*a);  // NOLINT(bugprone-use-after-move)
  EXPECT_TRUE(moved);
  a.reset();
  EXPECT_EQ(who(), "ac");
  moved = source('d');  // swapped with a temporary, which takes the old one along
  EXPECT_EQ(who(), "cd");
  moved = stream_source_registration{};
  EXPECT_FALSE(moved);
  EXPECT_EQ(who(), "c");
}

TEST_F(stream_registry_test, WhatASourceHoldsGoesWithItsRegistration) {
  const auto held = std::make_shared<int>(1);
  {
    const auto registration =
        watch_streams(device_at(0), [held](std::vector<stream_ref>&) {}).value();
    EXPECT_EQ(held.use_count(), 2);
    runtime_.reset();
    EXPECT_EQ(held.use_count(), 2) << "a registration keeps its runtime";
  }
  EXPECT_EQ(held.use_count(), 1);
}

TEST_F(stream_registry_test, TheEndOfARegistrationWaitsForThoseWhoAskItsSource) {
  std::promise<void> inside;
  std::promise<void> leave;
  std::atomic<bool> left{false};
  bool ended_behind_the_call = false;
  std::thread::id ended_by;
  const auto end_of_held = [&](void*) {
    ended_behind_the_call = left;
    ended_by = std::this_thread::get_id();
  };
  std::optional registration{
      watch_streams(device_at(0), [&, held = std::shared_ptr<void>{nullptr, end_of_held}](
                                      std::vector<stream_ref>&) {
        inside.set_value();
        leave.get_future().wait();
        left = true;
      }).value()};
  auto asking = std::async(std::launch::async, [&] { return all_ids().size(); });
  inside.get_future().wait();
  auto told = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
    leave.set_value();
  });
  registration.reset();
  EXPECT_TRUE(left) << "its source may still use what its owner destroys next";
  EXPECT_TRUE(ended_behind_the_call);
  EXPECT_EQ(ended_by, std::this_thread::get_id());
  EXPECT_EQ(asking.get(), 0u);
  told.get();
}

TEST_F(stream_registry_test, AnEmptySourceIsRefused) {
  EXPECT_EQ(code_of(watch_streams(device_at(0), {})), errc::invalid_argument);
}

// The locks of the parent's objects may be held for ever in a child.
TEST_F(stream_registry_test, AForkedChildLeavesTheRegistryAlone) {
  int asked = 0;
  std::optional counted{
      watch_streams(device_at(0), [&](std::vector<stream_ref>&) { ++asked; }).value()};
  const auto found = in_child([&] {
    counted.reset();
    std::uint64_t seen = 0;
    static_cast<void>(known().added_since(seen));
    return asked == 1 ? 0 : 1;
  });
  EXPECT_EQ(found, 0);
}

class listener final : public detail::stream_listener {
 public:
  explicit listener(detail::device_state& home) : home_{home} {}
  void stream_closing(const stream_ref& stream) noexcept override {
    ended.push_back(stream.known_id());
    was_known = home_.known_streams.registration_of(stream.known_id()) != 0;
  }

  std::vector<stream_id> ended;
  bool was_known = false;

 private:
  detail::device_state& home_;
};

TEST_F(stream_registry_test, ListenersHearOfAnEndWhileTheStreamIsStillKnown) {
  listener first{state()};
  listener second{state()};
  detail::add_listener(state(), first);
  detail::add_listener(state(), second);
  ASSERT_TRUE(watch_stream(foreign(0x100)));
  ASSERT_TRUE(unwatch_stream(foreign(0x100)));
  EXPECT_THAT(first.ended, ElementsAre(stream_id{0x105}));
  EXPECT_TRUE(first.was_known);
  auto own = stream::create(device_at(0)).value();
  const auto number = own.id();
  detail::remove_listener(state(), first);
  ASSERT_TRUE(own.close());
  EXPECT_THAT(first.ended, ElementsAre(stream_id{0x105}));
  EXPECT_THAT(second.ended, ElementsAre(stream_id{0x105}, number));
  EXPECT_TRUE(second.was_known);
  detail::remove_listener(state(), second);
}

/// Whoever makes the default pool asks the driver meanwhile, which may take long.
TEST_F(stream_registry_test, ListenersComeAndGoWhileTheDefaultPoolIsMade) {
  listener passing{state()};
  std::unique_lock making{state().default_pool_mutex};
  const auto came_and_went = std::async(std::launch::async, [&] {
    detail::add_listener(state(), passing);
    detail::remove_listener(state(), passing);
  });
  EXPECT_EQ(came_and_went.wait_for(std::chrono::seconds{10}), std::future_status::ready);
  making.unlock();
}

}  // namespace
}  // namespace weir::testing_support
