// The parts of a replay by themselves: patterns and turns.
#include <gtest/gtest.h>

#include <thread>

#include "replay/patterns.hpp"
#include "replay/replay_threads.hpp"
#include "weir/device/runtime.hpp"
#include "weir/device/virtual_memory.hpp"
#include "weir/sim/machine.hpp"

namespace weir::replay {
namespace {

class pattern_tests : public ::testing::TestWithParam<bool> {
 protected:
  pattern_tests() {
    const context_scope bound{gpu_};
    memory_ = reinterpret_cast<void*>(allocate_plain(bound, bytes{size}).value());
  }
  ~pattern_tests() override {
    const context_scope bound{gpu_};
    EXPECT_TRUE(free_plain(bound, reinterpret_cast<driver::CUdeviceptr>(memory_)));
  }

  static constexpr std::uint64_t size = 1 << 20;
  std::shared_ptr<sim::machine> machine_ = sim::machine::create().value();
  std::shared_ptr<runtime> runtime_ = runtime::open_simulated(machine_).value();
  device gpu_ = runtime_->device(device_id{0}).value();
  stream first_ = stream::create(gpu_).value();
  stream second_ = stream::create(gpu_).value();
  void* memory_ = nullptr;
};

TEST_P(pattern_tests, are_found_where_nobody_else_wrote) {
  patterns checked{gpu_, runtime_->driver(), GetParam(), 2};
  const step block{.size = size, .block = 0};
  checked.write(block, memory_, first_);
  checked.queue_check(block, memory_, first_);
  checked.queue_check(block, memory_, second_);  // ordered behind the write, on another stream
  EXPECT_EQ(0u, checked.mismatches());
  EXPECT_TRUE(machine_->hazards().empty());
}

TEST_P(pattern_tests, are_missed_where_another_block_had_the_same_bytes) {
  patterns checked{gpu_, runtime_->driver(), GetParam(), 3};
  const step block{.size = size, .block = 0};
  const step overlapping{.size = size / 2, .block = 1};
  checked.write(block, memory_, first_);
  checked.write(overlapping, memory_, first_);
  checked.queue_check(block, memory_, first_);
  checked.queue_check(overlapping, memory_, first_);
  EXPECT_EQ(1u, checked.mismatches());
}

TEST_P(pattern_tests, fit_into_blocks_of_any_size) {
  patterns checked{gpu_, runtime_->driver(), GetParam(), 64};
  std::uint32_t number = 0;
  for (const std::uint64_t block_size : {1, 3, 4, 7, 8, 33, 511, 4097}) {
    const step block{.size = block_size, .block = number++};
    checked.write(block, memory_, first_);
    checked.queue_check(block, memory_, first_);
  }
  EXPECT_EQ(0u, checked.mismatches());
}

TEST_P(pattern_tests, are_checked_however_many_there_are) {
  patterns checked{gpu_, runtime_->driver(), GetParam(), 1};
  const step block{.size = 64, .block = 0};
  checked.write(block, memory_, first_);
  for (int i = 0; i < 5000; ++i) checked.queue_check(block, memory_, first_);
  EXPECT_EQ(0u, checked.mismatches());
}

INSTANTIATE_TEST_SUITE_P(fills, pattern_tests, ::testing::Bool(),
                         [](const auto& whole) { return whole.param ? "whole" : "words"; });

TEST(replay_threads, each_is_a_thread_of_its_own_and_turns_come_in_order) {
  replay_threads three{3};
  std::vector<std::thread::id> threads(3);
  std::vector<std::size_t> order;
  for (const std::size_t index : {2, 0, 1, 0, 2}) {
    three.run(index, [&, index] {
      order.push_back(index);
      if (threads[index] == std::thread::id{}) threads[index] = std::this_thread::get_id();
      EXPECT_EQ(threads[index], std::this_thread::get_id());
    });
  }
  EXPECT_EQ((std::vector<std::size_t>{2, 0, 1, 0, 2}), order);
  EXPECT_NE(threads[0], threads[1]);
  EXPECT_NE(threads[1], threads[2]);
  EXPECT_NE(threads[0], std::this_thread::get_id());
}

TEST(replay_threads, an_exception_of_one_arrives_at_the_caller) {
  replay_threads two{2};
  EXPECT_THROW(two.run(1, [] { throw std::runtime_error{"no"}; }), std::runtime_error);
  bool ran = false;
  two.run(1, [&] { ran = true; });
  EXPECT_TRUE(ran);
}

TEST(replay_threads, of_one_is_the_caller) {
  replay_threads one{1};
  EXPECT_TRUE(one.is_single());
  std::thread::id thread;
  one.run(0, [&] { thread = std::this_thread::get_id(); });
  EXPECT_EQ(std::this_thread::get_id(), thread);
}

}  // namespace
}  // namespace weir::replay
