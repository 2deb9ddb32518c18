// SPDX-License-Identifier: Apache-2.0
// Rounds of requests by themselves: which are noticed, and where their blocks are planned to lie.
#include "placement/rounds.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "support/sizes.hpp"

namespace weir::placement::rounds_test { namespace {

using testing_support::gib;
using testing_support::mib;

constexpr std::uint64_t base = std::uint64_t{1} << 40;
constexpr std::uint64_t low = base + 64 * gib;  // where plans are laid out
constexpr std::uint64_t reserved = 640;         // slots
constexpr std::uint64_t enough = reserved / 64;

/// A request, or the free of an earlier one of the round or of the round before.
struct step {
  std::uint64_t mebibytes = 0;  // 0: a free
  std::size_t which = 0;        // of the round's requests
};

/// The requests in their order, each freed when so many more have come.
std::vector<step> round_of(const std::vector<std::uint64_t>& mebibytes,
                           const std::vector<std::size_t>& lifetimes) {
  std::vector<step> steps;
  const std::size_t count = mebibytes.size();
  for (std::size_t i = 0; i < count; ++i) {
    steps.push_back({mebibytes[i], i});
    for (std::size_t j = 0; j < count; ++j)
      if ((j + lifetimes[j]) % count == (i + 1) % count) steps.push_back({0, j});
  }
  return steps;
}

/// A program that plays rounds, each block where the plan has it or else beyond all others.
class programs : public ::testing::Test {
 protected:
  void ask(std::size_t which, std::uint64_t mebibytes, stream_slot stream = 1) {
    const auto units = static_cast<std::uint32_t>(mebibytes * mib / unit);
    last_place = known.place_of(units, stream);
    block given;
    given.units = units;
    given.stream = stream;
    const bool elsewhere = last_place == rounds::nowhere || std::exchange(miss_next, false);
    given.address = elsewhere ? next : last_place;
    if (elsewhere) next += mebibytes * mib;
    for (const auto& [number, other] : live)
      EXPECT_TRUE(other.end() <= given.address || given.end() <= other.address)
          << number << " and " << which << " lie over each other";
    if (known.notes()) known.requested(given);
    live.erase(which);
    live.emplace(which, lying{given.address, given.units});
    last_at[which] = given.address;
  }
  void free(std::size_t which) {
    const auto found = live.find(which);
    if (found == live.end()) return;  // in the first round
    block given;
    given.address = found->second.address;
    given.units = found->second.units;
    if (known.notes()) known.freed(given);
    live.erase(found);
  }
  void play(const std::vector<step>& steps, std::uint64_t moved = enough) {
    for (const step& each : steps) {
      if (each.mebibytes == 0) {
        free(each.which);
      } else {
        ask(each.which, each.mebibytes);
      }
    }
    if (moved != 0) known.moved(moved);
  }
  /// Rounds until a plan is made and laid out.
  rounds::outline plan(const std::vector<step>& steps) {
    known.moved(1);
    for (int i = 0; i < 4; ++i) play(steps);
    EXPECT_TRUE(known.is_worth_a_plan(reserved));
    const rounds::outline drawn = known.plan();
    EXPECT_FALSE(known.has_plan());
    known.lay_out(low);
    return drawn;
  }
  [[nodiscard]] std::uint64_t offset_of(std::size_t which) const {
    return (last_at.at(which) - low) / mib;
  }

  struct lying {
    std::uint64_t address;
    placement::unit_count units;
    [[nodiscard]] std::uint64_t end() const { return address + units * unit; }
  };
  rounds known{base};
  std::map<std::size_t, lying> live;
  std::map<std::size_t, std::uint64_t> last_at;
  std::uint64_t next = base;
  std::uint64_t last_place = rounds::nowhere;
  bool miss_next = false;  // the next place is not taken
  const std::vector<step> eight = round_of({8, 4, 6, 2, 3, 5, 7, 9}, {2, 2, 2, 2, 2, 2, 2, 2});
};

TEST_F(programs, nothing_is_noted_until_memory_moves) {
  EXPECT_FALSE(known.notes());
  for (int i = 0; i < 4; ++i) play(eight, 0);
  EXPECT_FALSE(known.is_worth_a_plan(reserved));
  EXPECT_EQ(known.footprint(), 0u);
  known.moved(1);
  EXPECT_TRUE(known.notes());
  EXPECT_GT(known.footprint(), 0u);
}

TEST_F(programs, large_is_what_no_two_can_begin_with_in_a_mebibyte) {
  EXPECT_FALSE(rounds::is_large(mib / unit));
  EXPECT_TRUE(rounds::is_large(mib / unit + 1));
}

TEST_F(programs, a_round_is_worth_a_plan_when_it_came_three_times) {
  known.moved(1);
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(known.is_worth_a_plan(reserved)) << i;
    play(eight);
  }
  // Which requests a round begins with is known when eight have come a second time.
  EXPECT_FALSE(known.is_worth_a_plan(reserved));
  play(eight);
  EXPECT_TRUE(known.is_worth_a_plan(reserved));
}

TEST_F(programs, both_of_the_last_two_rounds_have_to_move_a_sixty_fourth) {
  known.moved(1);
  for (int i = 0; i < 6; ++i) play(eight, enough);
  EXPECT_TRUE(known.is_worth_a_plan(reserved));
  EXPECT_FALSE(known.is_worth_a_plan(reserved + 64));
  play(eight, enough - 1);
  EXPECT_FALSE(known.is_worth_a_plan(reserved));
  play(eight, enough);
  EXPECT_FALSE(known.is_worth_a_plan(reserved));
  play(eight, enough);
  EXPECT_TRUE(known.is_worth_a_plan(reserved));
}

TEST_F(programs, a_program_that_grows_with_every_round_is_not_planned) {
  known.moved(1);
  for (std::size_t i = 0; i < 8; ++i) {
    play(eight);
    live.emplace(100 + i, live.at(7));  // it is never freed
    live.erase(7);
    EXPECT_FALSE(known.is_worth_a_plan(reserved)) << i;
  }
}

TEST_F(programs, requests_of_two_streams_are_not_planned) {
  known.moved(1);
  for (int i = 0; i < 8; ++i) {
    play(eight);
    ask(50, 4, 2);
    free(50);
    EXPECT_FALSE(known.is_worth_a_plan(reserved)) << i;
  }
}

TEST_F(programs, a_loop_of_seven_requests_is_no_round) {
  const auto seven = round_of({8, 4, 6, 2, 3, 5, 7}, {2, 2, 2, 2, 2, 2, 2});
  known.moved(1);
  for (int i = 0; i < 9; ++i) {
    play(seven);
    EXPECT_FALSE(known.is_worth_a_plan(reserved)) << i;
  }
}

TEST_F(programs, the_largest_lie_lowest_and_others_in_the_smallest_gap_that_they_fit) {
  // 20 and 10 live all the time, 6 and 4 one after the other, each beside a pair of 2.
  const auto steps = round_of({20, 6, 2, 2, 10, 4, 2, 2}, {8, 4, 2, 2, 8, 4, 2, 2});
  const rounds::outline drawn = plan(steps);
  EXPECT_EQ(drawn.height, 40 * mib);
  EXPECT_EQ(drawn.live, 10 * mib + 4 * mib + 2 * mib);  // 20 goes before the round ends
  play(steps);
  const std::vector<std::uint64_t> drawn_in_the_header{0, 30, 36, 38, 20, 30, 34, 36};
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(offset_of(i), drawn_in_the_header[i]) << i;
}

TEST_F(programs, what_sticks_out_of_a_comb_is_placed_before_the_rest) {
  // By size alone the teeth that stay beside 120 lie where 120 should.
  const auto steps = round_of({20, 22, 24, 18, 26, 20, 28, 22, 30, 24, 120, 122},
                              {10, 10, 8, 8, 6, 6, 4, 4, 2, 2, 2, 1});
  EXPECT_EQ(plan(steps).height, 242 * mib);
}

TEST_F(programs, planned_blocks_that_live_at_the_same_time_lie_apart) {
  std::mt19937_64 random{7};
  for (int program = 0; program < 60; ++program) {
    known = rounds{base};
    live.clear();
    next = base;
    const std::size_t count = 8 + random() % 60;
    std::vector<std::uint64_t> mebibytes;
    std::vector<std::size_t> lifetimes;
    for (std::size_t i = 0; i < count; ++i) {
      mebibytes.push_back(2 + random() % 30);
      lifetimes.push_back(1 + random() % (random() % 4 == 0 ? count : 6));
    }
    const auto steps = round_of(mebibytes, lifetimes);
    const rounds::outline drawn = plan(steps);
    std::uint64_t most = 0;
    for (int i = 0; i < 3; ++i) {
      for (const step& each : steps) {
        if (each.mebibytes == 0) {
          free(each.which);
          continue;
        }
        ask(each.which, each.mebibytes);  // compares it with all that live
        std::uint64_t now = 0;
        for (const auto& [number, other] : live) now += other.end() - other.address;
        most = std::max(most, now);
        if (i == 0) continue;
        EXPECT_NE(last_place, rounds::nowhere);
        EXPECT_LE(live.at(each.which).end(), low + drawn.height);
        EXPECT_TRUE(known.is_planned(last_place));
      }
    }
    EXPECT_GE(drawn.height, most);
    EXPECT_LE(static_cast<double>(drawn.height), 1.35 * static_cast<double>(most));
    EXPECT_FALSE(known.is_planned(low - 1));
    EXPECT_FALSE(known.is_planned(low + drawn.height));
  }
}

TEST_F(programs, what_lives_longer_than_a_round_has_no_place) {
  // The third is freed one round late: two of it live.
  known.moved(1);
  std::vector<std::size_t> late;
  std::size_t round = 0;
  const auto play_late = [&] {
    for (std::size_t i = 0; i < 8; ++i) {
      const std::size_t name = i == 2 ? 100 + round % 2 : i;
      if (i == 2) free(name);
      ask(name, i == 2 ? 2 : 4 + i);
      if (i == 2) late.push_back(last_place);
      if (i != 2) free(name);
    }
    known.moved(enough);
    ++round;
  };
  for (int i = 0; i < 6; ++i) play_late();
  ASSERT_TRUE(known.is_worth_a_plan(reserved));
  EXPECT_EQ(known.plan().height, 11 * mib);
  known.lay_out(low);
  late.clear();
  play_late();
  EXPECT_EQ(late, std::vector<std::size_t>{rounds::nowhere});
  EXPECT_EQ(last_place, low);
}

TEST_F(programs, a_round_of_which_more_than_a_sixteenth_stays_is_not_planned) {
  // 5 of 65 live longer than a round: the rest makes no plan. 4 of 64 do not matter.
  for (const std::uint64_t stays : {5, 4}) {
    known = rounds{base};
    live.clear();
    last_at.clear();
    const auto play_most = [&](std::size_t round) {
      ask(100 + round % 3, stays);
      free(100 + (round + 1) % 3);  // of two rounds ago
      for (std::size_t i = 0; i < 10; ++i) {
        ask(i, 6);
        free(i);
      }
      known.moved(enough);
    };
    known.moved(1);
    for (std::size_t i = 0; i < 7; ++i) play_most(i);
    ASSERT_TRUE(known.is_worth_a_plan(reserved));
    EXPECT_EQ(known.plan().height, stays == 5 ? 0 : 6 * mib);
  }
}

TEST_F(programs, a_request_out_of_order_has_no_place_and_the_order_is_found_again) {
  plan(eight);
  play(eight, 0);
  ask(60, 33);
  EXPECT_EQ(last_place, rounds::nowhere);
  free(60);
  // Eight of their order name the next.
  play(eight, 0);
  EXPECT_EQ(last_place, rounds::nowhere);
  play(eight, 0);
  EXPECT_NE(last_place, rounds::nowhere);
  EXPECT_EQ(offset_of(7), 0u);
  for (const step& each : eight) {
    if (each.mebibytes == 0) {
      free(each.which);
      continue;
    }
    ask(each.which, each.mebibytes);
    EXPECT_NE(last_place, rounds::nowhere) << each.which;  // the first as well
  }
}

TEST_F(programs, a_place_that_four_requests_missed_is_not_named_again) {
  plan(eight);
  const auto first = static_cast<std::uint32_t>(8 * mib / unit);
  // Three times, and then it was there: they are forgotten.
  for (int i = 0; i < 3; ++i) {
    for (int asked = 0; asked < 9; ++asked) known.miss_place(first, 1);
    miss_next = true;
    play(eight, 0);
  }
  play(eight, 0);
  for (int i = 0; i < 4; ++i) {
    EXPECT_NE(known.place_of(first, 1), rounds::nowhere) << i;
    for (int asked = 0; asked < 9; ++asked) known.miss_place(first, 1);
    miss_next = true;
    play(eight, 0);
  }
  EXPECT_EQ(known.place_of(first, 1), rounds::nowhere);
  play(eight, 0);
  EXPECT_NE(last_place, rounds::nowhere);  // that of the last
}

TEST_F(programs, a_plan_fails_that_moves_a_quarter_in_a_round_after_its_third) {
  plan(eight);
  for (int i = 0; i < 2; ++i) play(eight, reserved);
  for (int i = 0; i < 2; ++i) play(eight, 0);
  EXPECT_FALSE(known.has_failed(reserved));
  known.moved(reserved / 4 - 1);
  EXPECT_FALSE(known.has_failed(reserved));
  play(eight, 0);
  known.moved(1);  // in the next round
  EXPECT_FALSE(known.has_failed(reserved));
  known.moved(reserved / 4 - 1);
  EXPECT_TRUE(known.has_failed(reserved));
  known.drop_plan();
  EXPECT_FALSE(known.has_failed(reserved));
  EXPECT_FALSE(known.has_plan());
  EXPECT_FALSE(known.is_planned(low));
  EXPECT_EQ(known.place_of(static_cast<std::uint32_t>(8 * mib / unit), 1), rounds::nowhere);
}

TEST_F(programs, a_plan_that_requests_come_back_to_has_three_rounds_again) {
  plan(eight);
  for (int i = 0; i < 5; ++i) play(eight, 0);
  for (std::uint64_t i = 0; i < 20; ++i) {
    ask(60, 33 + i);
    free(60);
    known.moved(reserved);
    EXPECT_FALSE(known.has_failed(reserved)) << i;
  }
  for (int i = 0; i < 4; ++i) {
    play(eight, reserved);
    EXPECT_FALSE(known.has_failed(reserved)) << i;
  }
  for (int i = 0; i < 2; ++i) play(eight, reserved);
  EXPECT_TRUE(known.has_failed(reserved));
}

TEST_F(programs, each_plan_waits_twice_as_long_as_the_one_before) {
  plan(eight);
  for (const int rounds_until : {4, 8, 16}) {
    known.drop_plan();
    int played = 0;
    while (!known.is_worth_a_plan(reserved) && played < 100) {
      play(eight);
      ++played;
    }
    EXPECT_EQ(played, rounds_until);
    EXPECT_NE(known.plan().height, 0u);
  }
}

TEST_F(programs, notes_end_when_nothing_moved_for_four_of_the_longest_rounds) {
  known.moved(1);
  for (std::size_t i = 0; i < 4 * rounds::longest - 1; ++i) {
    ask(0, 2);
    free(0);
    ASSERT_TRUE(known.notes()) << i;
  }
  ask(0, 2);
  EXPECT_FALSE(known.notes());
  EXPECT_EQ(known.footprint(), 0u);
}

TEST_F(programs, a_plan_that_serves_is_kept_though_nothing_moves) {
  plan(eight);
  for (std::size_t i = 0; i < rounds::longest; ++i) play(eight, 0);
  EXPECT_TRUE(known.has_plan());
  EXPECT_NE(last_place, rounds::nowhere);
}

TEST_F(programs, a_round_may_be_as_long_as_the_longest_and_no_longer) {
  for (const std::size_t length : {rounds::longest, rounds::longest + 1}) {
    known = rounds{base};
    live.clear();
    std::vector<std::uint64_t> mebibytes;
    for (std::size_t i = 0; i < length; ++i) mebibytes.push_back(2 + i * i % 97);
    const auto steps = round_of(mebibytes, std::vector<std::size_t>(length, 2));
    known.moved(1);
    for (int i = 0; i < 5; ++i) play(steps);
    EXPECT_EQ(known.is_worth_a_plan(reserved), length == rounds::longest);
  }
}

}  // namespace
}  // namespace weir::placement::rounds_test
