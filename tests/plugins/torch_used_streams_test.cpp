// SPDX-License-Identifier: Apache-2.0
// The streams that the torch plug-in sees torch hand out round robin.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "torch/used_streams.hpp"

namespace weir_torch { namespace {

constexpr std::uint32_t all_streams = ~std::uint32_t{0};

/// torch's side: a round robin counter for each priority.
struct torch_pool {
  int hand_out(int priority = 0) { return static_cast<int>(counters.at(priority)++ % 32); }
  void hand_out(int priority, int count) {
    for (int i = 0; i < count; ++i) static_cast<void>(hand_out(priority));
  }
  [[nodiscard]] used_streams::taker taker() {
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

class used_streams_test : public testing::Test {
 protected:
  void probe() { used.probe(4, torch.taker()); }
  [[nodiscard]] static std::uint32_t bits(int from, int to) {
    std::uint32_t mask = 0;
    for (int i = from; i < to; ++i) mask |= 1U << (i % 32);
    return mask;
  }

  torch_pool torch;
  used_streams used;
};

TEST_F(used_streams_test, a_probe_shows_the_streams_handed_out_and_leaves_the_position) {
  torch.hand_out(0, 3);
  torch.hand_out(2, 1);
  probe();
  EXPECT_EQ(used.of(0), bits(0, 3));
  EXPECT_EQ(used.of(1), 0U);
  EXPECT_EQ(used.of(2), bits(0, 1));
  EXPECT_EQ(torch.hand_out(0), 3);
  EXPECT_EQ(torch.hand_out(1), 0);
  probe();
  EXPECT_EQ(used.of(0), bits(0, 4));
  EXPECT_EQ(used.of(1), bits(0, 1));
  probe();
  probe();
  EXPECT_EQ(used.of(0), bits(0, 4)) << "streams that probes take count as nobody's";
  EXPECT_EQ(used.of(3), 0U);
}

TEST_F(used_streams_test, the_position_may_wrap_around_between_probes) {
  for (int count = 0; count < 70; count += 7) {
    torch.hand_out(0, 7);
    probe();
    EXPECT_EQ(used.of(0), count + 7 >= 32 ? all_streams : bits(0, count + 7));
  }
  EXPECT_EQ(torch.hand_out(0), 70 % 32);
}

TEST_F(used_streams_test, streams_that_others_take_during_a_probe_are_seen) {
  torch.hand_out(0, 2);
  int calls = 0;
  torch.meanwhile = [&] {
    if (++calls == 5) torch.hand_out(0, 3);  // behind the fourth that the probe took: 2, 3, 4, 5
  };
  probe();
  torch.meanwhile = {};
  EXPECT_EQ(used.of(0), bits(0, 2) | bits(6, 9));
  EXPECT_EQ(torch.hand_out(0), 5) << "as if the others had come first";
  probe();
  EXPECT_EQ(used.of(0), bits(0, 2) | bits(5, 9));
}

TEST_F(used_streams_test, a_mark_reveals_that_the_position_wrapped_around_unseen) {
  torch.hand_out(1, 2);
  probe();
  torch.hand_out(0, 40);  // looks like 8
  probe();
  EXPECT_EQ(used.of(0), bits(0, 8));
  used.mark(0, 20);  // one of them is used
  EXPECT_EQ(used.of(0), bits(0, 8) | bits(20, 21)) << "at once";
  probe();
  EXPECT_EQ(used.of(0), all_streams) << "whoever has 20 got it in a round that no probe saw";
  EXPECT_EQ(used.of(1), bits(0, 2)) << "of the others it says nothing";
}

TEST_F(used_streams_test, a_mark_on_a_stream_that_a_probe_sees_adds_nothing) {
  torch.hand_out(0, 4);
  for (int i = 0; i < 4; ++i) used.mark(0, i);
  EXPECT_EQ(used.of(0), bits(0, 4));
  probe();
  EXPECT_EQ(used.of(0), bits(0, 4));
  used.mark(0, 2);  // again, as a thread that comes back to it does
  torch.hand_out(0, 1);
  used.mark(0, 4);
  probe();
  EXPECT_EQ(used.of(0), bits(0, 5));
}

TEST_F(used_streams_test, streams_that_are_there_though_nobody_seems_to_have_one_all_count) {
  torch.hand_out(2, 64);
  probe();
  for (int priority = 0; priority < 4; ++priority) EXPECT_EQ(used.of(priority), all_streams);
}

TEST_F(used_streams_test, that_holds_for_the_first_probe_alone) {
  torch.hand_out(0, 1);
  probe();
  probe();
  for (int priority = 1; priority < 4; ++priority) EXPECT_EQ(used.of(priority), 0U);
}

TEST_F(used_streams_test, a_priority_of_which_all_are_known_is_not_probed_any_more) {
  torch.hand_out(0, 1);
  probe();
  torch.taken = 0;
  probe();
  EXPECT_EQ(torch.taken, 4 * 32);
  torch.hand_out(0, 31);
  probe();
  torch.taken = 0;
  probe();
  EXPECT_EQ(torch.taken, 3 * 32);
  EXPECT_EQ(used.of(0), all_streams);
}

TEST_F(used_streams_test, a_probe_that_throws_loses_nothing) {
  torch.hand_out(0, 2);
  int calls = 0;
  torch.meanwhile = [&] {
    if (++calls == 10) throw std::runtime_error{"torch is in trouble"};
  };
  EXPECT_THROW(probe(), std::runtime_error);
  torch.meanwhile = {};
  EXPECT_EQ(used.of(0), bits(0, 2));
  probe();
  EXPECT_EQ(used.of(0), bits(0, 2));
  torch.hand_out(0, 1);
  probe();
  EXPECT_EQ(used.of(0), bits(0, 2) | bits(11, 12));
}

TEST_F(used_streams_test, fewer_priorities_are_left_alone) {
  torch.hand_out(0, 1);
  used.probe(2, torch.taker());
  EXPECT_EQ(torch.taken, 2 * 32);
}

TEST_F(used_streams_test, threads_take_while_others_probe) {
  torch.hand_out(0, 1);
  std::atomic<std::uint32_t> taken{1};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 12; ++k) {
        const int index = torch.hand_out(0);
        if (k % 2 == 0) used.mark(0, index);
        taken |= 1U << index;
        std::this_thread::yield();
      }
    });
    threads.emplace_back([&] {
      for (int k = 0; k < 200; ++k) probe();
    });
  }
  for (auto& thread : threads) thread.join();
  probe();
  EXPECT_EQ(taken & ~used.of(0), 0U) << "somebody's stream was not seen";
}

}  // namespace
}  // namespace weir_torch
