// SPDX-License-Identifier: Apache-2.0
// Contract of the allocator: requests and frees of every size, and what is refused.
#include "allocator_contract/allocator_test.hpp"
#include "weir/sim/machine.hpp"

namespace weir::testing_support { namespace {

class requests : public allocator_test {};
WEIR_ALLOCATOR_CONTRACT(requests);

const bytes all_sizes[] = {1_B,         4_B,     511_B,         512_B,           513_B,
                           4_KiB,       100_KiB, 512_KiB,       512_KiB + 512_B, 1_MiB,
                           1_MiB + 1_B, 2_MiB,   2_MiB + 512_B, 10_MiB,          33_MiB};

TEST_P(requests, blocks_of_every_size_are_apart_and_come_back) {
  lane& on = new_lane();
  bytes reserved;
  for (int round = 0; round < 2; ++round) {
    std::vector<filled_block> live;
    for (const bytes size : all_sizes) {
      live.push_back(make(size, on));
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(live.back().memory) % 512, 0U);
      EXPECT_EQ(memory().size_of(live.back().memory).value(), size);
      expect_books();
    }
    EXPECT_EQ(memory().stats().blocks.current, std::size(all_sizes));
    expect_snapshot();
    if (round == 0) reserved = memory().stats().reserved.peak;
    for (const auto& each : live) {
      finish(each, on);
      expect_books();
    }
    expect_snapshot();
  }
  if (checks_under_test() == debug_checks::off) {
    EXPECT_EQ(memory().stats().reserved.peak, reserved)
        << "the second round fits where the first was";
  }
}

TEST_P(requests, a_size_that_comes_again_costs_no_driver_call_for_memory) {
  lane& on = new_lane();
  for (const bytes size : {512_B, 100_KiB, 2_MiB, 33_MiB}) {
    finish(make(size, on), on);
    const std::uint64_t created = memory().stats().handles_created;
    for (int i = 0; i < 20; ++i) finish(make(size, on), on);
    EXPECT_EQ(memory().stats().handles_created, created) << to_string(size);
  }
}

TEST_P(requests, blocks_are_aligned_as_asked) {
  lane& on = new_lane();
  std::vector<filled_block> live;
  for (bytes alignment = 1_B; alignment <= 2_MiB; alignment = alignment * 2) {
    for (const bytes size : {700_B, 300_KiB}) {
      const filled_block made{memory().allocate(size, on, alignment), size, new_value()};
      const std::uint64_t least = std::max(alignment, 512_B).count();
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(made.memory) % least, 0U);
      on.fill(made.memory, made.size, made.value);
      live.push_back(made);
    }
    expect_books();
  }
  expect_snapshot();
  for (const auto& each : live) finish(each, on);
}

TEST_P(requests, nothing_is_a_null_pointer) {
  lane& on = new_lane();
  EXPECT_EQ(memory().allocate(0_B, on), nullptr);
  EXPECT_TRUE(memory().try_deallocate(nullptr, on));
  EXPECT_TRUE(memory().try_deallocate(nullptr));
  memory().deallocate(nullptr, 0_B, on);
  EXPECT_EQ(memory().stats().allocations, 0U);
  EXPECT_EQ(memory().stats().frees, 0U);
  EXPECT_EQ(memory().stats().reserved.peak, 0_B);
}

TEST_P(requests, impossible_requests_are_refused) {
  lane& on = new_lane();
  EXPECT_EQ(code_of(memory().try_allocate(bytes::max(), on)), errc::size_overflow);
  EXPECT_EQ(code_of(memory().try_allocate(bytes::max() - 511_B, on)), errc::size_overflow);
  for (const bytes alignment : {0_B, 3_B, 513_B, 3_MiB, 4_MiB})
    EXPECT_EQ(code_of(memory().try_allocate(1_KiB, on, alignment)), errc::bad_alignment);
  EXPECT_THROW(static_cast<void>(memory().allocate(bytes::max(), on)), failure);
  expect_books();
}

TEST_P(requests, foreign_pointers_are_refused) {
  lane& on = new_lane();
  auto other = caching_allocator::create(where(), {.policy = policy()}).value();
  const filled_block mine = make(1_MiB, on);
  void* const theirs = other.allocate(1_MiB, on);
  int local = 0;
  for (void* const wrong : {static_cast<void*>(&local),
                            static_cast<void*>(static_cast<char*>(mine.memory) + 512), theirs}) {
    EXPECT_EQ(code_of(memory().try_deallocate(wrong, on)), errc::foreign_pointer);
    EXPECT_EQ(code_of(memory().record_stream(wrong, on)), errc::foreign_pointer);
    EXPECT_EQ(code_of(memory().size_of(wrong)), errc::foreign_pointer);
  }
  memory().deallocate(&local, on);
  const auto reported = heard.take();
  ASSERT_EQ(reported.size(), 1U);
  EXPECT_EQ(reported.front().code(), errc::foreign_pointer);
  EXPECT_TRUE(other.try_deallocate(theirs, on));
  EXPECT_TRUE(other.close());
  EXPECT_EQ(code_of(other.try_allocate(1_KiB, on)), errc::closed);
  finish(mine, on);
}

TEST_P(requests, a_second_free_is_refused) {
  lane& on = new_lane();
  for (const bytes size : {512_B, 200_KiB, 3_MiB, 24_MiB}) {
    const filled_block block = make(size, on);
    const filled_block neighbour = make(size, on);
    finish(block, on);
    EXPECT_EQ(code_of(memory().try_deallocate(block.memory, on)), errc::double_free);
    memory().deallocate(block.memory);
    const auto reported = heard.take();
    ASSERT_EQ(reported.size(), 1U);
    EXPECT_EQ(reported.front().code(), errc::double_free);
    finish(neighbour, on);
    expect_books();
  }
}

TEST_P(requests, a_wrong_size_is_told_and_the_block_freed) {
  lane& on = new_lane();
  const filled_block block = make(3_MiB, on);
  EXPECT_EQ(code_of(memory().try_deallocate(block.memory, 4_MiB, on)), errc::invalid_argument);
  EXPECT_EQ(memory().stats().blocks.current, 0U);
  const filled_block again = make(3_MiB, on);
  EXPECT_TRUE(memory().try_deallocate(again.memory, 3_MiB, on));
}

TEST_P(requests, a_stream_of_another_device_is_refused) {
  auto both = runtime::open_table(*cu, "machine under test", machine).value();
  if (both->device_count() < 2) GTEST_SKIP() << "this machine has one device";
  const auto elsewhere = stream::create(both->device(device_id{1}).value()).value();
  EXPECT_EQ(code_of(memory().try_allocate(1_KiB, elsewhere)), errc::bad_stream);
  lane& on = new_lane();
  const filled_block block = make(1_KiB, on);
  EXPECT_EQ(code_of(memory().record_stream(block.memory, elsewhere)), errc::bad_stream);
  EXPECT_EQ(code_of(memory().try_deallocate(block.memory, elsewhere)), errc::bad_stream);
  finish(block, on);
}

TEST_P(requests, a_stream_of_another_machine_is_refused_whatever_its_number) {
  lane& on = new_lane();
  const filled_block block = make(1_KiB, on);
  finish(make(1_KiB, on), on);  // the next would come from this thread's cache
  auto other = runtime::open_simulated(sim::machine::create({}).value()).value();
  const weir::device there = other->device(device_id{0}).value();
  const auto of_driver = [](const stream_ref& which) {
    unsigned long long number = 0;
    const context_scope bound{which.device()};
    EXPECT_EQ(bound.driver().stream_get_id(which.handle(), &number), driver::CUDA_SUCCESS);
    return number;
  };
  // A machine counts its streams up, as any other does.
  std::vector<stream> made;
  do {
    made.push_back(stream::create(there).value());
  } while (of_driver(made.back()) < of_driver(on));
  if (of_driver(made.back()) != of_driver(on)) GTEST_SKIP() << "the number is gone there";
  const stream_ref elsewhere = made.back();
  EXPECT_NE(elsewhere.id().value(), stream_ref{on}.id().value());
  EXPECT_EQ(code_of(memory().try_allocate(1_KiB, elsewhere)), errc::bad_stream);
  EXPECT_EQ(code_of(memory().try_deallocate(block.memory, elsewhere)), errc::bad_stream);
  finish(block, on);
}

TEST_P(requests, every_kind_of_stream_is_served) {
  lane& own = new_lane();
  const stream_ref bare{where(), own.handle()};
  const stream_ref streams[] = {own,
                                bare,
                                bare.identified().value(),
                                stream_ref::legacy(where()),
                                stream_ref::per_thread(where()),
                                stream_ref{where(), nullptr}};
  const CUdeviceptr wrong = new_memory(sizeof(word));
  WEIR_OK(cu->memset_d32(wrong, 0, 1));
  WEIR_OK(cu->ctx_synchronize());
  for (const stream_ref& stream : streams) {
    for (const bytes size : {4_KiB, 3_MiB}) {
      for (int round = 0; round < 3; ++round) {
        void* const block = memory().allocate(size, stream);
        const auto at = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(block));
        const word value = new_value();
        WEIR_OK(fill(at, value, size.count() / sizeof(word), stream.handle()));
        WEIR_OK(check(at, value, size.count() / sizeof(word), wrong, stream.handle()));
        memory().deallocate(block, stream);
      }
      expect_books();
    }
    WEIR_OK(cu->ctx_synchronize());  // the counter is every stream's
  }
  EXPECT_EQ(words(wrong, 1).front(), 0U);
}

}  // namespace
}  // namespace weir::testing_support
