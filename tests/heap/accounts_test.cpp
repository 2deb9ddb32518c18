// The ledger by pool and tag.
#include "heap/accounts.hpp"

#include <gtest/gtest.h>

#include "weir/base/bytes.hpp"

namespace weir::inline v0::heap {
namespace {

using namespace weir::literals;

const tag first = tag::named("accounts test: first").value();
const tag second = tag::named("accounts test: second").value();

TEST(accounts_test, every_block_is_in_its_tag_its_pool_and_the_total) {
  accounts books;
  books.add_pool(pool_id{7});
  const auto own = books.number_of(pool_id{}, first).value();
  const auto other = books.number_of(pool_id{7}, first).value();
  const auto third = books.number_of(pool_id{7}, second).value();
  EXPECT_EQ(own, first.number());
  EXPECT_FALSE(is_private(own));
  EXPECT_TRUE(is_private(other));
  EXPECT_NE(other, third);
  EXPECT_EQ(books.number_of(pool_id{7}, first).value(), other);
  EXPECT_EQ(books.pool_of(other), pool_id{7});
  EXPECT_EQ(books.tag_of(third), second);

  books.allocated(own, 100, 512);
  books.allocated(other, 1000, 1024);
  books.allocated(third, 1, 512);
  EXPECT_EQ(books.total().requested.current, 1101u);
  EXPECT_EQ(books.total().allocated.current, 2048u);
  EXPECT_EQ(books.of(first)->allocated.current, 1536u);
  EXPECT_EQ(books.of(second)->requested.current, 1u);
  EXPECT_EQ(books.of(pool_id{7})->blocks.current, 2u);

  books.freed(other, 1000, 1024);
  books.pending(other, 1000, 1024);
  memory_stats sums;
  books.total().fill(sums);
  EXPECT_EQ(sums.allocated, (byte_gauge{1024_B, 2048_B}));
  EXPECT_EQ(sums.active.current, 2048_B);
  EXPECT_EQ(sums.pending, 1024_B);
  EXPECT_EQ(sums.requested, (byte_gauge{101_B, 1101_B}));
  EXPECT_EQ(sums.active_requested, (byte_gauge{1101_B, 1101_B}));
  EXPECT_EQ(sums.active_blocks, (gauge{3, 3}));
  EXPECT_EQ(sums.allocations, 3u);
  EXPECT_EQ(sums.frees, 1u);
  books.waited(other, 1000, 1024);
  books.of(first)->fill(sums);
  EXPECT_EQ(sums.active.current, 512_B);
  EXPECT_EQ(sums.active_requested.current, 100_B);
  EXPECT_EQ(sums.active_blocks.current, 1u);
}

TEST(accounts_test, a_peak_counts_what_waits_as_it_was_asked_for) {
  accounts books;
  const auto which = books.number_of(pool_id{}, {}).value();
  books.allocated(which, 1000, 1024);
  books.freed(which, 1000, 1024);
  books.pending(which, 1000, 1024);
  books.allocated(which, 10, 512);
  EXPECT_EQ(books.total().requested.peak, 1000u);
  EXPECT_EQ(books.total().active_requested.peak, 1010u);
  EXPECT_EQ(books.total().active_blocks.peak, 2u);
  books.waited(which, 1000, 1024);
  books.allocated(which, 20, 512);
  books.reset_peaks();
  EXPECT_EQ(books.total().active_requested, (gauge{30, 30}));
  EXPECT_EQ(books.total().active_blocks, (gauge{2, 2}));
}

TEST(accounts_test, what_caches_counted_is_taken_over_once) {
  accounts books;
  const auto which = books.number_of(pool_id{}, {}).value();
  account_delta counted{.requested = 300, .allocated = 1024, .allocations = 3, .frees = 1};
  books.fold(which, counted);
  EXPECT_EQ(counted.allocations, 0u);
  EXPECT_EQ(books.total().allocated.current, 1024u);
  EXPECT_EQ(books.total().allocated.peak, 0u) << "peaks rise when told";
  books.raise_peaks();
  EXPECT_EQ(books.total().allocated.peak, 1024u);
  EXPECT_EQ(books.total().blocks.current, 2u);
  EXPECT_EQ(books.total().hits, 3u);
  account_delta back{.requested = -300, .allocated = -1024, .allocations = 0, .frees = 2};
  books.fold(which, back);
  EXPECT_EQ(books.total().allocated.current, 0u);
  EXPECT_EQ(books.total().requested.current, 0u);
  EXPECT_EQ(books.total().blocks.current, 0u);
}

TEST(accounts_test, a_limit_counts_all_pools) {
  accounts books;
  books.add_pool(pool_id{3});
  EXPECT_FALSE(books.any_limit());
  EXPECT_TRUE(books.may_allocate(first, ~std::uint64_t{0}));
  books.set_limit(first, 2048);
  EXPECT_TRUE(books.limited(first));
  EXPECT_FALSE(books.limited(second));
  books.allocated(books.number_of(pool_id{}, first).value(), 512, 1024);
  books.allocated(books.number_of(pool_id{3}, first).value(), 512, 512);
  EXPECT_TRUE(books.may_allocate(first, 512));
  EXPECT_FALSE(books.may_allocate(first, 513));
  EXPECT_FALSE(books.may_allocate(first, ~std::uint64_t{0}));
  books.set_limit(first, 1000);  // below what is live
  EXPECT_FALSE(books.may_allocate(first, 1));
  books.set_limit(first, bytes::max().count());
  EXPECT_FALSE(books.any_limit());
}

TEST(accounts_test, numbers_of_a_pool_that_is_gone_are_given_again) {
  accounts books;
  account_number most = 0;
  for (std::uint32_t round = 1; round < 200'000; ++round) {
    books.add_pool(pool_id{round});
    const auto made = books.number_of(pool_id{round}, {});
    ASSERT_TRUE(made) << round;
    most = std::max(most, *made);
    books.remove_pool(pool_id{round});
  }
  EXPECT_EQ(most, first_private_account);
}

TEST(accounts_test, there_are_only_so_many_pairs) {
  accounts books;
  std::uint32_t round = 1;
  for (;; ++round) {
    books.add_pool(pool_id{round});
    const auto made = books.number_of(pool_id{round}, {});
    if (made) continue;
    EXPECT_EQ(made.code(), errc::limit_exceeded);
    break;
  }
  EXPECT_EQ(round - 1, 65536u - first_private_account);
  books.remove_pool(pool_id{1});
  EXPECT_TRUE(books.number_of(pool_id{round}, {}));
}

}  // namespace
}  // namespace weir::inline v0::heap
