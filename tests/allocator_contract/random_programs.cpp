// SPDX-License-Identifier: Apache-2.0
// Contract of the allocator: random programs over streams and threads never see a foreign pattern.
#include <chrono>
#include <thread>

#include "allocator_contract/players.hpp"

namespace weir::testing_support { namespace {

class random_programs : public allocator_test {
 protected:
  void add_players(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i)
      players_.push_back(std::make_unique<player>(*this, new_lane(), machine->seed() * 100 + i));
    for (const auto& each : players_) {
      std::vector<player*> others;
      for (const auto& other : players_)
        if (other != each) others.push_back(other.get());
      each->meet(std::move(others));
    }
  }

  /// Whether a program that did so many operations since `begun` has not done enough.
  [[nodiscard]] bool goes_on(int done, std::chrono::steady_clock::time_point begun) const {
    return done < effort_.operations || std::chrono::steady_clock::now() - begun < effort_.duration;
  }

  void play_on_one_thread() {
    const auto begun = std::chrono::steady_clock::now();
    for (int done = 0; goes_on(done, begun); ++done) {
      for (const auto& each : players_) each->step();
      if (done % 50 == 0) expect_books();
      if (done % 200 == 0) expect_snapshot();
    }
  }

  /// Every player on a thread of its own, while this one looks and trims.
  void play_on_threads() {
    std::atomic<std::size_t> playing{players_.size()};
    std::vector<std::thread> threads;
    for (const auto& each : players_) {
      threads.emplace_back([&, who = each.get()] {
        EXPECT_EQ(CUDA_SUCCESS, cu->ctx_set_current(context));
        const auto begun = std::chrono::steady_clock::now();
        for (int done = 0; goes_on(done, begun); ++done) who->step();
        --playing;
      });
    }
    for (int i = 0; playing != 0; ++i) {
      expect_books();
      if (i % 8 == 7) {
        EXPECT_TRUE(memory().trim(effort_.tight_limit / 2));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds{2});
    }
    for (auto& each : threads) each.join();
  }

  void finish_players() {
    for (const auto& each : players_) each->finish();
    expect_books();
    EXPECT_EQ(memory().stats().blocks.current, 0U);
    expect_snapshot();
    EXPECT_TRUE(memory().empty_cache());
    EXPECT_EQ(memory().stats().reserved.current, 0_B);
  }

 private:
  const effort effort_ = machine_effort();
  std::vector<std::unique_ptr<player>> players_;
};
WEIR_ALLOCATOR_CONTRACT(random_programs);

TEST_P(random_programs, several_streams) {
  add_players(4);
  play_on_one_thread();
  finish_players();
}

TEST_P(random_programs, several_streams_short_of_memory) {
  ASSERT_TRUE(memory().set_limit(machine_effort().tight_limit));
  add_players(3);
  play_on_one_thread();
  EXPECT_LE(memory().stats().reserved.peak, machine_effort().tight_limit);
  finish_players();
}

TEST_P(random_programs, several_threads) {
  add_players(4);
  play_on_threads();
  finish_players();
}

TEST_P(random_programs, several_threads_short_of_memory) {
  ASSERT_TRUE(memory().set_limit(machine_effort().tight_limit));
  add_players(4);
  play_on_threads();
  EXPECT_LE(memory().stats().reserved.peak, machine_effort().tight_limit);
  finish_players();
}

}  // namespace
}  // namespace weir::testing_support
