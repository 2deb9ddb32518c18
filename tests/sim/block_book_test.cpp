// The book of blocks: what is said of a use, and of the blocks that lay there.
#include "sim/block_book.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace weir::sim {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;

/// An allocator that rounds to 512 bytes. Mostly it tells of one block: 1000 bytes were asked for,
/// and it takes 1024.
class block_books : public testing::Test {
 protected:
  static constexpr std::uint64_t base = 0x10000;

  void tell(memory_event_kind kind, time_point when, range of = {base, 1000}) {
    book.on_event(teller,
                  {.kind = kind,
                   .address = of.address,
                   .size = of.size,
                   .rounded = (of.size + 511) / 512 * 512},
                  when, ++step, false);
  }
  [[nodiscard]] bool is_right(range touched) const {
    return !book.check(touched, block_book::occasion::queued).has_value();
  }
  [[nodiscard]] block_fault fault_of(range touched) const {
    const auto found = book.check(touched, block_book::occasion::queued);
    EXPECT_TRUE(found.has_value());
    return found.value_or(block_fault{});
  }
  void expect_before(const block_fault& found, const std::string& label, time_point when,
                     std::uint64_t at_step) const {
    EXPECT_EQ(found.before.label, label);
    EXPECT_EQ(found.before.extent.address, base);
    EXPECT_EQ(found.before.extent.size, 1000U);
    EXPECT_EQ(found.before.queued, when);
    EXPECT_EQ(found.before.step, at_step);
  }
  /// When the blocks that lay under these bytes were allocated.
  [[nodiscard]] std::vector<time_point> lives(range of) const {
    std::vector<time_point> begun;
    for (const block_life& each : book.lives(of)) begun.push_back(each.allocated);
    return begun;
  }

  block_book book;
  std::uint64_t teller = book.join();
  std::uint64_t step = 0;
};

TEST_F(block_books, a_use_after_the_free_is_told_with_the_time_of_the_free) {
  tell(memory_event_kind::allocate, 10ns);
  tell(memory_event_kind::deallocate, 30ns);
  const block_fault found = fault_of({base + 8, 16});
  EXPECT_EQ(found.kind, hazard_kind::use_after_free);
  EXPECT_EQ(found.bytes.address, base + 8);
  EXPECT_EQ(found.bytes.size, 16U);
  expect_before(found, "deallocate", 30ns, 2);
}

TEST_F(block_books, bytes_that_a_live_block_was_rounded_by_are_out_of_bounds) {
  tell(memory_event_kind::allocate, 10ns);
  const block_fault found = fault_of({base + 1000, 100});
  EXPECT_EQ(found.kind, hazard_kind::out_of_bounds);
  EXPECT_EQ(found.bytes.address, base + 1000);
  EXPECT_EQ(found.bytes.size, 24U);
  expect_before(found, "allocate", 10ns, 1);
}

TEST_F(block_books, memory_that_was_never_handed_out_is_out_of_bounds_of_no_block) {
  tell(memory_event_kind::reserve, 10ns, {base, 4096});
  const block_fault found = fault_of({base + 8, 16});
  EXPECT_EQ(found.kind, hazard_kind::out_of_bounds);
  EXPECT_EQ(found.bytes.address, base + 8);
  EXPECT_EQ(found.bytes.size, 16U);
  EXPECT_EQ(found.before.label, "");
}

TEST_F(block_books, a_use_must_not_run_from_one_block_into_the_next) {
  tell(memory_event_kind::allocate, 10ns, {base, 1024});
  tell(memory_event_kind::allocate, 20ns, {base + 1024, 1024});
  EXPECT_TRUE(is_right({base, 1024}));
  EXPECT_TRUE(is_right({base + 1024, 1024}));
  const block_fault found = fault_of({base + 1000, 100});
  EXPECT_EQ(found.kind, hazard_kind::out_of_bounds);
  EXPECT_EQ(found.bytes.address, base + 1024);
  EXPECT_EQ(found.bytes.size, 76U);
  EXPECT_EQ(found.before.label, "allocate");
  EXPECT_EQ(found.before.queued, 10ns) << "the block that it began in";
}

TEST_F(block_books, a_use_over_bytes_that_nobody_told_of_begins_anew_behind_them) {
  tell(memory_event_kind::allocate, 10ns, {base, 1024});
  tell(memory_event_kind::allocate, 20ns, {base + 2048, 1024});
  EXPECT_TRUE(is_right({base, 3072}));
}

TEST_F(block_books, only_the_first_free_of_a_block_counts) {
  tell(memory_event_kind::allocate, 10ns);
  tell(memory_event_kind::deallocate, 30ns);
  tell(memory_event_kind::deallocate, 50ns);
  expect_before(fault_of({base, 16}), "deallocate", 30ns, 2);
}

TEST_F(block_books, a_free_by_another_allocator_does_not_count) {
  tell(memory_event_kind::allocate, 10ns);
  teller = book.join();
  tell(memory_event_kind::deallocate, 30ns);
  EXPECT_TRUE(is_right({base, 1000}));
}

TEST_F(block_books, a_free_of_a_block_from_before_the_telling_does_not_count) {
  tell(memory_event_kind::deallocate, 30ns);
  EXPECT_TRUE(book.empty());
  EXPECT_TRUE(is_right({base, 1000}));
}

TEST_F(block_books, a_life_has_the_step_of_its_free_only_behind_it) {
  tell(memory_event_kind::allocate, 10ns);
  ASSERT_EQ(book.lives({base, 8}).size(), 1U);
  EXPECT_EQ(book.lives({base, 8}).front().allocated_step, 1U);
  EXPECT_EQ(book.lives({base, 8}).front().freed_step, 0U) << "it is live";
  tell(memory_event_kind::deallocate, 30ns);
  EXPECT_EQ(book.lives({base, 8}).front().freed_step, 2U);
}

TEST_F(block_books, a_life_is_told_once_and_the_oldest_first) {
  tell(memory_event_kind::allocate, 10ns);
  EXPECT_THAT(lives({base, 1024}), ElementsAre(10ns)) << "over what it was rounded by, too";
  tell(memory_event_kind::deallocate, 30ns);
  tell(memory_event_kind::allocate, 50ns);
  EXPECT_THAT(lives({base, 1024}), ElementsAre(10ns, 50ns));
}

TEST_F(block_books, a_life_is_told_of_its_own_bytes_only) {
  for (const auto kind : {memory_event_kind::allocate, memory_event_kind::deallocate}) {
    tell(kind, 10ns, {base, 1024});
    tell(kind, 20ns, {base + 1024, 1024});
  }
  tell(memory_event_kind::allocate, 50ns, {base, 2048});
  EXPECT_THAT(lives({base, 1024}), ElementsAre(10ns, 50ns));
  EXPECT_THAT(lives({base + 1024, 1024}), ElementsAre(20ns, 50ns));
  EXPECT_THAT(lives({base, 2048}), ElementsAre(10ns, 20ns, 50ns));
}

}  // namespace
}  // namespace weir::sim
