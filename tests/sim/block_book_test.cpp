// SPDX-License-Identifier: Apache-2.0
// The book of blocks: what is said of a use, and of the blocks that lay there.
#include "sim/block_book.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace weir::sim { namespace {

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
  [[nodiscard]] bool is_right(range touched,
                              block_book::occasion when = block_book::occasion::queued) const {
    return !book.check(touched, when).has_value();
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
  EXPECT_EQ(found.before.extent.address, 0U);
  EXPECT_EQ(found.before.extent.size, 0U);
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
  EXPECT_EQ(found.before.step, 1U);
}

TEST_F(block_books, a_use_that_runs_into_a_freed_block_is_told_of_the_block_it_began_in) {
  tell(memory_event_kind::allocate, 10ns, {base, 1024});
  tell(memory_event_kind::allocate, 20ns, {base + 1024, 1024});
  tell(memory_event_kind::deallocate, 30ns, {base + 1024, 1024});
  const block_fault found = fault_of({base + 1000, 2000});
  EXPECT_EQ(found.kind, hazard_kind::out_of_bounds);
  EXPECT_EQ(found.bytes.address, base + 1024);
  EXPECT_EQ(found.bytes.size, 1024U);
  EXPECT_EQ(found.before.label, "allocate");
  EXPECT_EQ(found.before.queued, 10ns);
  EXPECT_EQ(found.before.step, 1U);
}

TEST_F(block_books, bytes_that_were_given_back_are_nobodys) {
  for (const std::uint64_t each : {0, 1024, 2048})
    tell(memory_event_kind::allocate, 10ns, {base + each, 1024});
  tell(memory_event_kind::deallocate, 20ns, {base + 1024, 1024});
  tell(memory_event_kind::release, 30ns, {base + 1024, 1024});
  EXPECT_TRUE(is_right({base + 1024, 1024}));
  EXPECT_TRUE(is_right({base, 3072})) << "it begins anew behind them";
  EXPECT_THAT(lives({base + 1024, 8}), ElementsAre(10ns)) << "kept for the story";
  tell(memory_event_kind::reserve, 40ns, {base + 1024, 1024});
  const block_fault found = fault_of({base + 1024, 8});
  EXPECT_EQ(found.kind, hazard_kind::use_after_free) << "they are there again";
  EXPECT_EQ(found.before.queued, 20ns);
}

TEST_F(block_books, of_memory_that_is_given_back_in_part_the_rest_stays) {
  tell(memory_event_kind::reserve, 10ns, {base, 4096});
  tell(memory_event_kind::release, 20ns, {base + 1024, 1024});
  EXPECT_TRUE(is_right({base + 1024, 1024}));
  EXPECT_EQ(fault_of({base, 4096}).bytes.size, 1024U);
  EXPECT_EQ(fault_of({base + 1024, 4096}).bytes.address, base + 2048);
  EXPECT_EQ(fault_of({base + 1024, 4096}).bytes.size, 2048U);
}

TEST_F(block_books, a_block_is_live_while_it_is_suspended) {
  tell(memory_event_kind::allocate, 10ns, {base + 1024, 1024});
  tell(memory_event_kind::release, 20ns, {base, 4096});
  EXPECT_TRUE(is_right({base + 1024, 1024}));
  tell(memory_event_kind::reserve, 30ns, {base, 4096});
  EXPECT_TRUE(is_right({base + 1024, 1024}));
  EXPECT_EQ(fault_of({base, 1024}).bytes.size, 1024U) << "memory around it";
  EXPECT_EQ(fault_of({base + 2048, 4096}).bytes.size, 2048U);
  EXPECT_TRUE(is_right({base + 4096, 8}));
  tell(memory_event_kind::deallocate, 40ns, {base + 1024, 1024});
  EXPECT_EQ(fault_of({base + 1024, 8}).kind, hazard_kind::use_after_free);
}

TEST_F(block_books, only_forgotten_bytes_are_nobodys) {
  tell(memory_event_kind::allocate, 10ns, {base, 3072});
  tell(memory_event_kind::deallocate, 20ns, {base, 3072});
  book.forget(base + 1024, 1024);
  EXPECT_TRUE(is_right({base + 1024, 1024}));
  EXPECT_EQ(fault_of({base, 3072}).bytes.size, 1024U);
  EXPECT_EQ(fault_of({base + 1024, 2048}).bytes.address, base + 2048);
}

TEST_F(block_books, what_an_allocator_told_goes_with_it) {
  for (const auto kind : {memory_event_kind::allocate, memory_event_kind::deallocate})
    tell(kind, 10ns, {base, 1024});
  const std::uint64_t first = teller;
  teller = book.join();
  for (const auto kind : {memory_event_kind::allocate, memory_event_kind::deallocate})
    tell(kind, 20ns, {base + 1024, 1024});
  book.leave(first);
  EXPECT_TRUE(is_right({base, 1024}));
  EXPECT_EQ(fault_of({base, 2048}).bytes.address, base + 1024) << "another's stays";
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

TEST_F(block_books, at_most_eight_lives_are_told) {
  for (std::uint64_t i = 0; i < 10; ++i) {
    tell(memory_event_kind::allocate, 10ns, {base + 512 * i, 512});
    tell(memory_event_kind::deallocate, 20ns, {base + 512 * i, 512});
  }
  EXPECT_EQ(lives({base, std::size_t{7} * 512}).size(), 7U);
  EXPECT_EQ(lives({base, std::size_t{8} * 512}).size(), 8U);
  EXPECT_EQ(lives({base, std::size_t{10} * 512}).size(), 8U);
}

TEST_F(block_books, a_life_tells_who_had_the_block) {
  EXPECT_EQ(block_life{}.allocated_step, 0U) << "nobody told of it";
  const tag named = tag::named("weights").value();
  // An allocator's ids have the number of its runtime above the driver's.
  const auto own = [](std::uint64_t number) {
    return stream_id{(std::uint64_t{3} << 48) | number};
  };
  const auto happens = [&](memory_event_kind kind, std::uint64_t on, time_point when) {
    book.on_event(teller,
                  {.kind = kind,
                   .tag = named.number(),
                   .stream = own(on),
                   .address = base,
                   .size = 1000,
                   .rounded = 1024},
                  when, ++step, false);
  };
  happens(memory_event_kind::allocate, 7, 10ns);
  happens(memory_event_kind::record_stream, 8, 20ns);
  happens(memory_event_kind::deallocate, 9, 30ns);
  ASSERT_EQ(book.lives({base, 8}).size(), 1U);
  const block_life told = book.lives({base, 8}).front();
  EXPECT_EQ(told.extent.address, base);
  EXPECT_EQ(told.extent.size, 1000U);
  EXPECT_EQ(told.rounded, 1024U);
  EXPECT_EQ(told.tag, named);
  EXPECT_EQ(told.allocated_on, stream_id{7});
  EXPECT_EQ(told.allocated, 10ns);
  EXPECT_THAT(told.recorded, ElementsAre(stream_id{8}));
  EXPECT_EQ(told.freed_on, stream_id{9});
  EXPECT_EQ(told.freed, 30ns);
}

TEST_F(block_books, a_block_takes_at_least_what_was_asked_for) {
  book.on_event(teller, {.kind = memory_event_kind::allocate, .address = base, .size = 1000}, 10ns,
                ++step, false);
  EXPECT_EQ(book.lives({base, 8}).front().rounded, 1000U);
  EXPECT_TRUE(is_right({base, 1000}));
  EXPECT_TRUE(is_right({base + 1000, 8})) << "nobody told of it";
}

// --- The nearest block ---------------------------------------------------------------------------

class nearest_blocks : public block_books {
 protected:
  static constexpr std::uint64_t reach = std::uint64_t{4} << 20;

  /// When the nearest block was allocated.
  [[nodiscard]] std::optional<time_point> nearest(range to) const {
    const auto found = book.nearest(to);
    return found ? std::optional{found->allocated} : std::nullopt;
  }
};

TEST_F(nearest_blocks, are_less_than_four_mib_away) {
  const range block{base + 2 * reach, 1024};
  const std::uint64_t end = block.address + block.size;
  tell(memory_event_kind::allocate, 10ns, block);
  EXPECT_EQ(nearest({end + reach - 1, 8}), 10ns);
  EXPECT_EQ(nearest({end + reach, 8}), std::nullopt);
  EXPECT_EQ(nearest({block.address - reach - 8 + 1, 8}), 10ns);
  EXPECT_EQ(nearest({block.address - reach - 8, 8}), std::nullopt);
}

TEST_F(nearest_blocks, lie_on_either_side_live_or_freed) {
  tell(memory_event_kind::allocate, 10ns, {base, 1024});
  tell(memory_event_kind::allocate, 20ns, {base + 8192, 1024});
  tell(memory_event_kind::deallocate, 30ns, {base + 8192, 1024});
  EXPECT_EQ(nearest({base + 1024 + 100, 8}), 10ns);
  EXPECT_EQ(nearest({base + 8192 - 100, 8}), 20ns);
  EXPECT_EQ(nearest({base + 1024 + 100, 8192 - 1024 - 200}), 10ns) << "of equals the lower";
  EXPECT_EQ(nearest({base + 1024 + 100, 8192 - 1024 - 199}), 20ns) << "its end is nearer";
}

TEST_F(nearest_blocks, are_seen_over_memory_that_was_never_handed_out) {
  tell(memory_event_kind::reserve, 5ns, {base + reach, 3 * 4096});
  tell(memory_event_kind::allocate, 10ns, {base + reach, 1024});
  EXPECT_EQ(nearest({base + reach + 3 * 4096, 8}), 10ns);
  EXPECT_EQ(nearest({base + reach + 4096, 8}), 10ns);
}

// --- Graphs --------------------------------------------------------------------------------------

class blocks_of_graphs : public block_books {
 protected:
  using occasion = block_book::occasion;
  static constexpr range first{base, 1024};
  static constexpr range second{base + 1024, 1024};
  static constexpr range third{base + 2048, 1024};

  void happens(memory_event_kind kind, pool_id pool, range of = {}, bool capturing = false) {
    book.on_event(
        teller,
        {.kind = kind, .pool = pool, .address = of.address, .size = of.size, .rounded = of.size},
        10ns, ++step, capturing);
  }
  void come_and_go(pool_id pool, range of, bool capturing = false) {
    happens(memory_event_kind::allocate, pool, of, capturing);
    happens(memory_event_kind::deallocate, pool, of, capturing);
  }
  /// Whether uses of these freed bytes are judged when they are captured, and not when launched.
  [[nodiscard]] bool is_of_graphs(range of) const {
    EXPECT_FALSE(is_right(of));
    EXPECT_NE(is_right(of, occasion::captured), is_right(of, occasion::launched));
    return !is_right(of, occasion::captured);
  }
};

TEST_F(blocks_of_graphs, are_judged_when_captured_and_all_others_when_launched) {
  happens(memory_event_kind::capture_begin, pool_id{1});
  come_and_go(pool_id{1}, first);
  come_and_go(pool_id{2}, second);
  come_and_go(pool_id{}, third);
  EXPECT_TRUE(is_of_graphs(first));
  EXPECT_FALSE(is_of_graphs(second));
  EXPECT_FALSE(is_of_graphs(third));
  happens(memory_event_kind::pool_released, pool_id{1});
  EXPECT_FALSE(is_of_graphs(first));
}

TEST_F(blocks_of_graphs, are_those_of_pools_that_gave_or_took_in_a_capture) {
  happens(memory_event_kind::allocate, pool_id{1}, first, true);
  happens(memory_event_kind::deallocate, pool_id{1}, first);
  happens(memory_event_kind::allocate, pool_id{2}, second);
  EXPECT_TRUE(is_right(second, occasion::captured));
  happens(memory_event_kind::deallocate, pool_id{2}, second, true);
  come_and_go(pool_id{}, third, true);
  EXPECT_TRUE(is_of_graphs(first));
  EXPECT_TRUE(is_of_graphs(second));
  EXPECT_FALSE(is_of_graphs(third)) << "in no pool";
}

TEST_F(blocks_of_graphs, are_their_own_allocators_only) {
  happens(memory_event_kind::capture_begin, pool_id{1});
  come_and_go(pool_id{1}, first);
  teller = book.join();
  come_and_go(pool_id{1}, second);
  EXPECT_TRUE(is_of_graphs(first));
  EXPECT_FALSE(is_of_graphs(second));
}

TEST_F(blocks_of_graphs, that_are_not_judged_are_passed_over) {
  happens(memory_event_kind::capture_begin, pool_id{1});
  happens(memory_event_kind::allocate, pool_id{}, first);
  come_and_go(pool_id{1}, second);
  happens(memory_event_kind::allocate, pool_id{}, third);
  EXPECT_TRUE(is_right({base, 3072}, occasion::launched)) << "it begins anew behind them";
  const auto found = book.check({base, 3072}, occasion::captured);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->kind, hazard_kind::use_after_free);
  EXPECT_EQ(found->bytes.address, second.address);
  EXPECT_EQ(found->bytes.size, second.size);
}

}  // namespace
}  // namespace weir::sim
