// SPDX-License-Identifier: Apache-2.0
// What a player does: mostly allocate and free, sometimes across streams and threads.
#include "allocator_contract/players.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace weir::testing_support {
namespace {

constexpr std::size_t most_live = 24;

}  // namespace

player::player(allocator_test& test, lane& own, std::uint64_t seed)
    : test_{test}, own_{own}, random_{seed} {}

bytes player::random_size() {
  // Every power of two is as likely as the others.
  const auto exponents = static_cast<std::uint64_t>(std::bit_width(largest_.count() / 512));
  const std::uint64_t base = std::uint64_t{512} << below(exponents);
  return std::min(bytes{base + below(base)}, largest_);
}

void player::allocate() {
  const bytes size = random_size();
  auto made = test_.memory().try_allocate(size, own_);
  if (!made) {
    EXPECT_EQ(made.code(), errc::out_of_memory) << made.error().message();
    while (live_.size() > most_live / 2) give_up(below(live_.size()));
    return;
  }
  const filled_block block{*made, size, test_.new_value()};
  own_.fill(block.memory, block.size, block.value);
  live_.push_back(block);
}

void player::send(const filled_block& block) {
  player& to = *others_[below(others_.size())];
  auto ready = event::create(test_.where()).value();
  EXPECT_TRUE(ready.record(own_));
  const std::lock_guard lock{to.mutex_};
  to.arrived_.push_back({block, std::move(ready)});
}

void player::give_up(std::size_t which) {
  const filled_block block = live_[which];
  live_[which] = live_.back();
  live_.pop_back();
  own_.check(block.memory, block.size, block.value);
  switch (others_.empty() ? 0 : below(10)) {
    case 9:  // another thread uses it next, and frees it on its stream
    case 8:
      send(block);
      return;
    case 7: {  // another stream reads it, which is recorded
      const lane& reader = others_[below(others_.size())]->own_;
      reader.wait_for(own_);
      reader.check(block.memory, block.size, block.value);
      EXPECT_TRUE(test_.memory().record_stream(block.memory, reader));
      EXPECT_TRUE(test_.memory().try_deallocate(block.memory, own_));
      return;
    }
    case 6: {  // another stream is the last to use it
      const lane& reader = others_[below(others_.size())]->own_;
      reader.wait_for(own_);
      reader.check(block.memory, block.size, block.value);
      EXPECT_TRUE(test_.memory().try_deallocate(block.memory, reader));
      return;
    }
    default:
      EXPECT_TRUE(test_.memory().try_deallocate(block.memory, own_));
  }
}

void player::receive() {
  std::vector<parcel> arrived;
  {
    const std::lock_guard lock{mutex_};
    arrived.swap(arrived_);
  }
  for (const parcel& each : arrived) {
    EXPECT_TRUE(own_.stream().wait(each.ready));
    own_.check(each.block.memory, each.block.size, each.block.value);
    live_.push_back(each.block);
  }
}

void player::step() {
  receive();
  const bool full = live_.size() >= most_live;
  if (live_.empty() || (!full && below(100) < 55))
    allocate();
  else
    give_up(below(live_.size()));
}

void player::finish() {
  receive();
  others_.clear();
  while (!live_.empty()) give_up(live_.size() - 1);
}

busy_neighbours::busy_neighbours(allocator_test& test) {
  for (std::uint64_t i = 0; i < 2; ++i)
    players_.push_back(std::make_unique<player>(test, test.new_lane(), test.machine->seed() + i));
  for (const auto& each : players_) {
    threads_.emplace_back([this, &test, who = each.get()] {
      EXPECT_EQ(driver::CUDA_SUCCESS, test.cu->ctx_set_current(test.context));
      while (!over_) who->step();
    });
  }
}

void busy_neighbours::stop() {
  over_ = true;
  for (auto& each : threads_) each.join();
  threads_.clear();
  for (const auto& each : players_) each->finish();
  players_.clear();
}

}  // namespace weir::testing_support
