// SPDX-License-Identifier: Apache-2.0
// Random users of an allocator, each with a stream of its own, who pass blocks to each other.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "allocator_contract/allocator_test.hpp"
#include "weir/device/event.hpp"

namespace weir::testing_support {

/// A block that another player may use once `ready` is reached.
struct parcel {
  filled_block block;
  event ready;
};

/// One user of the allocator of a test.
///
/// Fills every block when it gets it and checks it before it gives it away or frees it, all in the
/// order of its lane. Only what it receives may come from other threads; it plays on one.
class player {
 public:
  player(allocator_test& test, lane& own, std::uint64_t seed);

  void meet(std::vector<player*> others) { others_ = std::move(others); }
  /// Allocates, or does something with one of its blocks; takes in what others sent.
  void step();
  /// Checks and frees all it has. Nobody sends it anything any more.
  void finish();

 private:
  void allocate();
  void give_up(std::size_t which);
  void receive();
  void send(const filled_block& block);
  [[nodiscard]] bytes random_size();
  [[nodiscard]] std::uint64_t below(std::uint64_t bound) { return random_() % bound; }

  allocator_test& test_;
  lane& own_;
  std::mt19937_64 random_;
  const bytes largest_ = machine_effort().largest_block;
  std::vector<player*> others_;
  std::vector<filled_block> live_;
  std::mutex mutex_;  // of arrived_
  std::vector<parcel> arrived_;
};

/// Two players on threads of their own, who write all the memory they can get until stop().
class busy_neighbours {
 public:
  explicit busy_neighbours(allocator_test& test);
  ~busy_neighbours() { stop(); }
  busy_neighbours(const busy_neighbours&) = delete;
  busy_neighbours& operator=(const busy_neighbours&) = delete;
  /// They have checked and freed what they had. Twice does no harm.
  void stop();

 private:
  std::atomic<bool> over_{false};
  std::vector<std::unique_ptr<player>> players_;
  std::vector<std::thread> threads_;
};

}  // namespace weir::testing_support
