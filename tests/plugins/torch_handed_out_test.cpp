// What the torch plug-in sees of the streams that torch hands out in turn.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "torch/handed_out.hpp"

namespace weir_torch {
namespace {

constexpr std::uint32_t all_streams = ~std::uint32_t{0};

/// torch's side: a counter for each priority.
struct torch_pool {
  int hand_out(int priority = 0) { return static_cast<int>(counters.at(priority)++ % 32); }
  void hand_out(int priority, int count) {
    for (int i = 0; i < count; ++i) static_cast<void>(hand_out(priority));
  }
  [[nodiscard]] handed_out::taker taker() {
    return [this](int priority) {
      ++taken;
      if (meanwhile) meanwhile();
      return hand_out(priority);
    };
  }

  std::array<std::atomic<std::uint32_t>, 4> counters{};
  std::atomic<int> taken{0};
  std::function<void()> meanwhile;
};

class handed_out_test : public testing::Test {
 protected:
  void look() { seen.look(4, torch.taker()); }
  [[nodiscard]] static std::uint32_t bits(int from, int to) {
    std::uint32_t out = 0;
    for (int i = from; i < to; ++i) out |= 1U << (i % 32);
    return out;
  }

  torch_pool torch;
  handed_out seen;
};

TEST_F(handed_out_test, a_look_shows_what_was_handed_out_and_leaves_the_turn) {
  torch.hand_out(0, 3);
  torch.hand_out(2, 1);
  look();
  EXPECT_EQ(seen.of(0), bits(0, 3));
  EXPECT_EQ(seen.of(1), 0U);
  EXPECT_EQ(seen.of(2), bits(0, 1));
  EXPECT_EQ(torch.hand_out(0), 3);
  EXPECT_EQ(torch.hand_out(1), 0);
  look();
  EXPECT_EQ(seen.of(0), bits(0, 4));
  EXPECT_EQ(seen.of(1), bits(0, 1));
  look();
  look();
  EXPECT_EQ(seen.of(0), bits(0, 4)) << "what the looks take counts as nobody's";
  EXPECT_EQ(seen.of(3), 0U);
}

TEST_F(handed_out_test, the_turn_may_go_round_between_looks) {
  for (int count = 0; count < 70; count += 7) {
    torch.hand_out(0, 7);
    look();
    EXPECT_EQ(seen.of(0), count + 7 >= 32 ? all_streams : bits(0, count + 7));
  }
  EXPECT_EQ(torch.hand_out(0), 70 % 32);
}

TEST_F(handed_out_test, what_others_take_during_a_look_is_seen) {
  torch.hand_out(0, 2);
  int calls = 0;
  torch.meanwhile = [&] {
    if (++calls == 5) torch.hand_out(0, 3);  // behind the fourth that the look took: 2, 3, 4, 5
  };
  look();
  torch.meanwhile = {};
  EXPECT_EQ(seen.of(0), bits(0, 2) | bits(6, 9));
  EXPECT_EQ(torch.hand_out(0), 5) << "as if the others had come first";
  look();
  EXPECT_EQ(seen.of(0), bits(0, 2) | bits(5, 9));
}

TEST_F(handed_out_test, a_turn_that_went_round_unseen_is_found_out_by_a_note) {
  torch.hand_out(1, 2);
  look();
  torch.hand_out(0, 40);  // looks like 8
  look();
  EXPECT_EQ(seen.of(0), bits(0, 8));
  seen.note(0, 20);  // one of them is heard of
  EXPECT_EQ(seen.of(0), bits(0, 8) | bits(20, 21)) << "at once";
  look();
  EXPECT_EQ(seen.of(0), all_streams) << "whoever has 20 got it in a round that nobody saw";
  EXPECT_EQ(seen.of(1), bits(0, 2)) << "of the others it says nothing";
}

TEST_F(handed_out_test, a_note_of_what_a_look_sees_says_nothing_more) {
  torch.hand_out(0, 4);
  for (int i = 0; i < 4; ++i) seen.note(0, i);
  EXPECT_EQ(seen.of(0), bits(0, 4));
  look();
  EXPECT_EQ(seen.of(0), bits(0, 4));
  seen.note(0, 2);  // again, as a thread that comes back to it does
  torch.hand_out(0, 1);
  seen.note(0, 4);
  look();
  EXPECT_EQ(seen.of(0), bits(0, 5));
}

TEST_F(handed_out_test, streams_that_are_there_though_nobody_seems_to_have_one_all_count) {
  torch.hand_out(2, 64);
  look();
  for (int priority = 0; priority < 4; ++priority) EXPECT_EQ(seen.of(priority), all_streams);
}

TEST_F(handed_out_test, that_holds_for_the_first_look_alone) {
  torch.hand_out(0, 1);
  look();
  look();
  for (int priority = 1; priority < 4; ++priority) EXPECT_EQ(seen.of(priority), 0U);
}

TEST_F(handed_out_test, a_priority_of_which_all_are_known_is_not_looked_at_any_more) {
  torch.hand_out(0, 1);
  look();
  torch.taken = 0;
  look();
  EXPECT_EQ(torch.taken, 4 * 32);
  torch.hand_out(0, 31);
  look();
  torch.taken = 0;
  look();
  EXPECT_EQ(torch.taken, 3 * 32);
  EXPECT_EQ(seen.of(0), all_streams);
}

TEST_F(handed_out_test, a_look_that_is_broken_off_loses_nothing) {
  torch.hand_out(0, 2);
  int calls = 0;
  torch.meanwhile = [&] {
    if (++calls == 10) throw std::runtime_error{"torch is in trouble"};
  };
  EXPECT_THROW(look(), std::runtime_error);
  torch.meanwhile = {};
  EXPECT_EQ(seen.of(0), bits(0, 2));
  look();
  EXPECT_EQ(seen.of(0), bits(0, 2));
  torch.hand_out(0, 1);
  look();
  EXPECT_EQ(seen.of(0), bits(0, 2) | bits(11, 12));
}

TEST_F(handed_out_test, fewer_priorities_are_left_alone) {
  torch.hand_out(0, 1);
  seen.look(2, torch.taker());
  EXPECT_EQ(torch.taken, 2 * 32);
}

TEST_F(handed_out_test, threads_take_while_others_look) {
  torch.hand_out(0, 1);
  std::atomic<std::uint32_t> had{1};
  std::vector<std::thread> all;
  for (int i = 0; i < 2; ++i) {
    all.emplace_back([&] {
      for (int k = 0; k < 12; ++k) {
        const int index = torch.hand_out(0);
        if (k % 2 == 0) seen.note(0, index);
        had |= 1U << index;
        std::this_thread::yield();
      }
    });
    all.emplace_back([&] {
      for (int k = 0; k < 200; ++k) look();
    });
  }
  for (auto& each : all) each.join();
  look();
  EXPECT_EQ(had & ~seen.of(0), 0U) << "somebody's stream was not seen";
}

}  // namespace
}  // namespace weir_torch
