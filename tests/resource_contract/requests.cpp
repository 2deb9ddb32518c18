// SPDX-License-Identifier: Apache-2.0
// Contract of resources: requests and frees, and what is refused.
#include "resource_contract/resource_test.hpp"
#include "weir/resource/plain_resource.hpp"

namespace weir::testing_support { namespace {

class resource_requests : public resource_test {};
WEIR_RESOURCE_CONTRACT(resource_requests);

TEST_P(resource_requests, nothing_is_a_null_pointer) {
  lane& on = new_lane();
  EXPECT_EQ(memory().try_allocate(0_B, on).value(), nullptr);
  EXPECT_TRUE(memory().try_deallocate(nullptr, 0_B, on));
  EXPECT_TRUE(memory().try_deallocate(nullptr, 1_MiB, on));
}

TEST_P(resource_requests, blocks_of_every_size_are_apart_and_come_back) {
  lane& on = new_lane();
  for (int round = 0; round < 2; ++round) {
    std::vector<filled_block> live;
    for (const bytes size : {4_B, 512_B, 516_B, 100_KiB, 1_MiB, 1_MiB + 4_B, 3_MiB}) {
      live.push_back(make(size, on));
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(live.back().memory) % 256, 0U);
    }
    for (const auto& each : live) finish(each, on);
  }
}

TEST_P(resource_requests, alignments_up_to_256_are_kept) {
  lane& on = new_lane();
  std::vector<filled_block> live;
  for (bytes alignment = 1_B; alignment <= 256_B; alignment = alignment * 2) {
    const filled_block block{memory().allocate(700_B, on, alignment), 700_B, new_value()};
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.memory) % alignment.count(), 0U);
    on.fill(block.memory, block.size, block.value);
    live.push_back(block);
  }
  for (const auto& each : live) finish(each, on);
}

TEST_P(resource_requests, impossible_requests_are_refused) {
  lane& on = new_lane();
  for (const bytes size : {bytes::max(), bytes::max() - 255_B})
    EXPECT_EQ(code_of(memory().try_allocate(size, on)), about().no_such_size);
  for (const bytes alignment : {0_B, 3_B, 257_B})
    EXPECT_EQ(code_of(memory().try_allocate(1_KiB, on, alignment)), errc::bad_alignment);
  EXPECT_THROW(static_cast<void>(memory().allocate(1_KiB, on, 3_B)), failure);
  finish(make(1_KiB, on), on);
}

TEST_P(resource_requests, what_no_machine_has_is_refused_and_no_harm_done) {
  if (!about().bounded_by_device) GTEST_SKIP() << "the device is not what bounds it";
  lane& on = new_lane();
  const filled_block before = make(64_KiB, on);
  const auto refused = memory().try_allocate(bytes{std::uint64_t{1} << 46}, on);  // 64 TiB
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.code(), ::testing::AnyOf(errc::out_of_memory, errc::size_overflow));
  finish(make(64_KiB, on), on);
  finish(before, on);
}

TEST_P(resource_requests, foreign_pointers_are_refused) {
  lane& on = new_lane();
  const filled_block own = make(1_MiB, on);
  any_resource other = another();
  void* const theirs = other.allocate(1_MiB, on);
  int local = 0;
  for (void* const wrong : {static_cast<void*>(&local),
                            static_cast<void*>(static_cast<char*>(own.memory) + 512), theirs})
    EXPECT_EQ(code_of(memory().try_deallocate(wrong, 1_MiB, on)), errc::foreign_pointer);
  memory().deallocate(&local, 4_B, on);
  const auto reported = heard.take();
  ASSERT_EQ(reported.size(), 1U);
  EXPECT_EQ(reported.front().code(), errc::foreign_pointer);
  EXPECT_TRUE(other.try_deallocate(theirs, 1_MiB, on));
  finish(own, on);
}

TEST_P(resource_requests, a_second_free_is_refused) {
  lane& on = new_lane();
  for (const bytes size : {512_B, 200_KiB, 3_MiB}) {
    const filled_block block = make(size, on);
    const filled_block neighbour = make(size, on);
    finish(block, on);
    EXPECT_EQ(code_of(memory().try_deallocate(block.memory, size, on)), errc::double_free);
    finish(neighbour, on);
  }
}

TEST_P(resource_requests, a_wrong_size_is_told_and_the_block_freed) {
  lane& on = new_lane();
  const filled_block block = make(1_MiB, on);
  EXPECT_EQ(code_of(memory().try_deallocate(block.memory, 2_MiB, on)), errc::invalid_argument);
  EXPECT_EQ(code_of(memory().try_deallocate(block.memory, 1_MiB, on)), errc::double_free);
  finish(make(1_MiB, on), on);
}

TEST_P(resource_requests, a_stream_of_another_device_is_refused) {
  if (runtime()->device_count() < 2) GTEST_SKIP() << "this machine has one device";
  if (about().serves_all_devices) GTEST_SKIP() << "it serves them";
  const auto elsewhere = stream::create(runtime()->device(device_id{1}).value()).value();
  EXPECT_EQ(code_of(memory().try_allocate(1_KiB, elsewhere)), errc::bad_stream);
  lane& on = new_lane();
  const filled_block block = make(1_KiB, on);
  if (about().frees_on_all_devices) {
    EXPECT_TRUE(memory().try_deallocate(block.memory, 1_KiB, elsewhere));
    return;
  }
  EXPECT_EQ(code_of(memory().try_deallocate(block.memory, 1_KiB, elsewhere)), errc::bad_stream);
  finish(block, on);
}

TEST_P(resource_requests, every_kind_of_stream_is_served) {
  lane& own = new_lane();
  const stream_ref bare{gpu(), own.handle()};
  const CUdeviceptr wrong = new_memory(sizeof(word));
  WEIR_OK(cu->memset_d32(wrong, 0, 1));
  WEIR_OK(cu->ctx_synchronize());
  for (const stream_ref& stream : {stream_ref{own}, bare, bare.identified().value(),
                                   stream_ref::legacy(gpu()), stream_ref::per_thread(gpu())}) {
    for (int round = 0; round < 2; ++round) {
      void* const block = memory().allocate(4_KiB, stream);
      const auto at = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(block));
      const word value = new_value();
      WEIR_OK(fill(at, value, 1024, stream.handle()));
      WEIR_OK(check(at, value, 1024, wrong, stream.handle()));
      EXPECT_TRUE(memory().try_deallocate(block, 4_KiB, stream));
    }
    WEIR_OK(cu->ctx_synchronize());  // the counter is every stream's
  }
  EXPECT_EQ(words(wrong, 1).front(), 0U);
}

TEST_P(resource_requests, copies_are_equal_and_others_are_not) {
  lane& on = new_lane();
  const any_resource copy = memory();
  EXPECT_EQ(copy, memory());
  EXPECT_EQ(copy.device(), gpu());
  EXPECT_NE(another(), memory());
  EXPECT_NE(memory(), any_resource{plain_resource::create(gpu()).value()});
  const filled_block block = make(64_KiB, on);
  EXPECT_TRUE(copy.try_deallocate(block.memory, block.size, on));
}

TEST_P(resource_requests, shortage_passes) {
  if (!about().bounded_by_device) GTEST_SKIP() << "the device is not what bounds it";
  lane& on = new_lane();
  finish(make(1_MiB, on), on);
  const bytes free = gpu().memory_info().value().free;
  ASSERT_GT(free, 1_GiB);
  static_cast<void>(new_memory((free - 512_MiB).count()));  // somebody else's, until the end
  for (int round = 0; round < 2; ++round) {
    std::vector<void*> held;
    std::optional<errc> refused;
    while (held.size() < 64 && !refused) {
      const auto pointer = memory().try_allocate(64_MiB, on);
      if (pointer)
        held.push_back(*pointer);
      else
        refused = pointer.code();
    }
    EXPECT_EQ(refused, errc::out_of_memory);
    EXPECT_GE(held.size(), 5U) << "round " << round;
    for (void* const each : held) EXPECT_TRUE(memory().try_deallocate(each, 64_MiB, on));
  }
  finish(make(64_MiB, on), on);
}

}  // namespace
}  // namespace weir::testing_support
