// SPDX-License-Identifier: Apache-2.0
// Why a request cannot be met: what is in the way, and each verdict to the word.
#include "observe/shortage.hpp"

#include <gtest/gtest.h>

#include "support/sizes.hpp"

namespace weir::observe { namespace {

using testing_support::gib;
using testing_support::mib;

/// 400 MiB of a device of 1 GiB are reserved, 300 MiB of it live; 600 MiB are free.
shortage sample(std::uint64_t requested) {
  return {.requested = requested,
          .stream = 7,
          .live = 300 * mib,
          .reserved = 400 * mib,
          .free = 100 * mib,
          .longest = 60 * mib,
          .device_total = gib,
          .device_free = 600 * mib};
}

TEST(shortage, says_where_it_was_asked_for) {
  shortage about;
  EXPECT_EQ(place_of(about), "stream 0");
  about.stream = 7;
  about.tag = "weights";
  EXPECT_EQ(place_of(about), "stream 7, tag \"weights\"");
}

TEST(shortage, what_fits_has_nothing_in_the_way) {
  EXPECT_EQ(obstacle_of(shortage{}), obstacle::none);
  EXPECT_EQ(obstacle_of(sample(700 * mib)), obstacle::none);
  EXPECT_EQ(verdict_of(sample(700 * mib)), "The request fits.");
  shortage about = sample(0);
  about.limit = 100 * mib;
  EXPECT_EQ(obstacle_of(about), obstacle::none) << "nothing needs no room";
}

TEST(shortage, the_limit_of_a_tag_comes_first) {
  shortage about = sample(30 * mib);
  about.tag = "weights";
  about.tag_live = 80 * mib;
  about.tag_limit = 110 * mib;
  EXPECT_EQ(obstacle_of(about), obstacle::none);
  about.tag_limit = 100 * mib;
  about.limit = 100 * mib;
  EXPECT_EQ(obstacle_of(about), obstacle::tag_limit);
  EXPECT_EQ(
      verdict_of(about),
      "The limit of tag \"weights\", 100 MiB, is in the way: 80 MiB are live with it. Raise it "
      "by 10 MiB, or free 10 MiB of the tag.");
  about.requested = 200 * mib;
  EXPECT_EQ(
      verdict_of(about),
      "The limit of tag \"weights\", 100 MiB, is in the way: 80 MiB are live with it. Raise it "
      "by 180 MiB.");
  about.requested = shortage::no_limit;
  EXPECT_EQ(obstacle_of(about), obstacle::tag_limit);
}

TEST(shortage, nothing_helps_what_is_larger_than_the_device) {
  EXPECT_EQ(obstacle_of(sample(gib)), obstacle::device);
  EXPECT_EQ(obstacle_of(sample(gib + 1)), obstacle::too_large);
  EXPECT_EQ(verdict_of(sample(200 * gib)),
            "The request is larger than the device, which has 1 GiB. Request less.");
}

TEST(shortage, a_limit_is_raised_or_memory_freed) {
  shortage about = sample(300 * mib);
  about.limit = 600 * mib;
  EXPECT_EQ(obstacle_of(about), obstacle::none) << "what is cached serves, too";
  about.limit = 512 * mib;
  EXPECT_EQ(obstacle_of(about), obstacle::limit);
  EXPECT_EQ(verdict_of(about),
            "The allocator's limit of 512 MiB is in the way: 300 MiB are live, 400 MiB reserved. "
            "Raise it by 88 MiB, or free 88 MiB.");
  about.requested = 600 * mib;  // more than it allows whatever is freed
  EXPECT_EQ(verdict_of(about),
            "The allocator's limit of 512 MiB is in the way: 300 MiB are live, 400 MiB reserved. "
            "Raise it by 388 MiB.");
  about.device_total = 0;
  about.device_free.reset();
  EXPECT_EQ(verdict_of(about),
            "The allocator's limit of 512 MiB is in the way: 300 MiB are live, 400 MiB reserved. "
            "Raise it by 388 MiB.");
}

TEST(shortage, a_limit_is_not_to_be_raised_where_the_device_has_no_more) {
  shortage about = sample(300 * mib);
  about.limit = 512 * mib;
  about.device_free = 150 * mib;
  EXPECT_EQ(verdict_of(about),
            "The allocator's limit of 512 MiB is in the way: 300 MiB are live, 400 MiB reserved. "
            "Raising it alone does not help, with 150 MiB free of the device's 1 GiB. Free 88 MiB "
            "more.");
  about.device_free = 100 * mib;
  about.live = 99 * mib;
  EXPECT_EQ(
      verdict_of(about),
      "The allocator's limit of 512 MiB is in the way: 99 MiB are live, 400 MiB reserved. Raising "
      "it alone does not help, with 100 MiB free of the device's 1 GiB. Request less.");
  // Where only live memory is known, no more than the rest of the device can be free.
  about = {.requested = 500 * mib, .live = 600 * mib, .limit = 700 * mib, .device_total = gib};
  EXPECT_EQ(verdict_of(about),
            "The allocator's limit of 700 MiB is in the way: 600 MiB are live. Raising it alone "
            "does not help, with 424 MiB free of the device's 1 GiB. Free at least 400 MiB more.");
}

TEST(shortage, a_ceiling_of_a_budget_share_is_told_from_the_programs_own_limit) {
  shortage about = sample(111 * mib);
  about.free = 0;
  about.live = 400 * mib;
  about.limit = 510 * mib;
  about.limit_is_ceiling = true;
  EXPECT_EQ(verdict_of(about),
            "The ceiling of the allocator's budget share, 510 MiB, is in the way: 400 MiB are "
            "live, 400 MiB reserved. Raise it by 1 MiB, or free 1 MiB.");
}

TEST(shortage, growth_takes_more_than_the_request_and_meets_the_limit) {
  shortage about = sample(111 * mib);
  about.free = 0;
  about.live = 400 * mib;
  about.limit = 512 * mib;
  EXPECT_EQ(obstacle_of(about), obstacle::none);
  about.failed = true;
  EXPECT_EQ(obstacle_of(about), obstacle::limit);
  EXPECT_EQ(verdict_of(about),
            "The allocator's limit of 512 MiB is in the way: 400 MiB are live, 400 MiB reserved. "
            "Raise it, or free memory.");
}

TEST(shortage, a_device_may_be_full_of_our_own) {
  shortage about = sample(800 * mib);
  about.device_free = 600 * mib;
  EXPECT_EQ(obstacle_of(about), obstacle::device);
  EXPECT_EQ(verdict_of(about),
            "The device is full: of its 1 GiB this allocator has 300 MiB live, others hold 24 MiB. "
            "Free 100 MiB more.");
  about.live = 100 * mib;  // as much as that
  EXPECT_EQ(verdict_of(about),
            "The device is full: of its 1 GiB this allocator has 100 MiB live, others hold 24 MiB. "
            "Free 100 MiB more.");
  about.live = 300 * mib;
  about.device_free = 624 * mib;
  EXPECT_EQ(verdict_of(about),
            "The device is full: of its 1 GiB this allocator has 300 MiB live. Free 76 MiB more.");
  about.device_free = 300 * mib;
  EXPECT_EQ(verdict_of(about),
            "The device is full: of its 1 GiB this allocator has 300 MiB live, others hold 324 "
            "MiB. Request less.");
}

TEST(shortage, others_may_hold_it) {
  shortage about = sample(500 * mib);
  about.device_free = 350 * mib;
  EXPECT_EQ(obstacle_of(about), obstacle::elsewhere);
  EXPECT_EQ(verdict_of(about),
            "Other users of the device hold 274 MiB of the device's 1 GiB: have them release 50 "
            "MiB, or free as much here.");
  about.live = 49 * mib;
  EXPECT_EQ(
      verdict_of(about),
      "Other users of the device hold 274 MiB of the device's 1 GiB: have them release 50 MiB.");
  // A recording does not know what the device had left.
  about = sample(500 * mib);
  about.device_free.reset();
  EXPECT_EQ(obstacle_of(about), obstacle::none);
  about.failed = true;
  EXPECT_EQ(obstacle_of(about), obstacle::elsewhere);
  EXPECT_EQ(verdict_of(about),
            "Other users of the device hold at least 124 MiB of the device's 1 GiB: 300 MiB are "
            "live here, 400 MiB reserved.");
}

TEST(shortage, others_are_named_where_they_are_known) {
  shortage about = sample(500 * mib);
  about.device_free = 350 * mib;
  about.live = 49 * mib;
  about.neighbours = {
      {.name = "small", .process = 7, .priority = -1, .floor = 0, .held = 24 * mib},
      {.name = "large", .process = 9, .priority = 2, .floor = 100 * mib, .held = 250 * mib}};
  EXPECT_EQ(verdict_of(about),
            "Other users of the device hold 274 MiB of the device's 1 GiB: have them release 50 "
            "MiB. Of these: large (process 9, floor 100 MiB, priority 2) holds 250 MiB, small "
            "(process 7, floor 0 B, priority -1) holds 24 MiB.");
  EXPECT_EQ(holders_of({}), "");
  about.limit = 400 * mib;  // they are not what is in the way
  EXPECT_EQ(obstacle_of(about), obstacle::limit);
  EXPECT_EQ(verdict_of(about).find("Of these"), std::string::npos);
}

TEST(shortage, enough_may_be_free_in_pieces) {
  shortage about = sample(80 * mib);
  about.failed = true;
  EXPECT_EQ(obstacle_of(about), obstacle::fragments);
  const std::string pieces =
      "100 MiB are reserved and free, but in pieces of at most 60 MiB; the request needs 80 MiB in "
      "one piece.";
  EXPECT_EQ(verdict_of(about), pieces);
  about.limit = 450 * mib;
  EXPECT_EQ(verdict_of(about), pieces + " Raise the limit of 450 MiB by 30 MiB.");
  about.limit_is_ceiling = true;
  EXPECT_EQ(verdict_of(about), pieces + " Raise the budget share's ceiling of 450 MiB by 30 MiB.");
  about.device_free = 79 * mib;
  EXPECT_EQ(verdict_of(about), pieces);
  about.requested = 120 * mib;  // which the pieces and what the limit leaves would make up
  about.device_free = 600 * mib;
  EXPECT_EQ(obstacle_of(about), obstacle::fragments);
}

TEST(shortage, a_piece_that_is_long_enough_may_be_kept_for_others) {
  shortage about = sample(60 * mib);  // as long as the longest
  about.failed = true;
  EXPECT_EQ(obstacle_of(about), obstacle::fragments);
  EXPECT_EQ(verdict_of(about),
            "100 MiB are reserved and free, 60 MiB of it in one piece, but it is kept for other "
            "streams, or for work that has not completed.");
  about.limit = 450 * mib;
  EXPECT_EQ(verdict_of(about),
            "100 MiB are reserved and free, 60 MiB of it in one piece, but it is kept for other "
            "streams, or for work that has not completed. Raise the limit of 450 MiB by 10 MiB.");
}

TEST(shortage, what_checks_take_is_told_where_something_is_in_the_way) {
  shortage about = sample(30 * mib);
  about.checks = 50 * mib;
  EXPECT_EQ(verdict_of(about), "The request fits.");
  about.tag = "weights";
  about.tag_live = 80 * mib;
  about.tag_limit = 100 * mib;
  EXPECT_EQ(verdict_of(about),
            "The limit of tag \"weights\", 100 MiB, is in the way: 80 MiB are live with it. Raise "
            "it by 10 MiB, or free 10 MiB of the tag. heap_debug uses 50 MiB of the reserved "
            "memory, around blocks and for freed blocks; red_zones uses less than guard_pages.");
}

TEST(shortage, a_driver_may_refuse) {
  shortage about = sample(200 * mib);
  about.failed = true;
  EXPECT_EQ(obstacle_of(about), obstacle::driver);
  EXPECT_EQ(verdict_of(about),
            "The driver refused, though it has 600 MiB free; 300 MiB are live, 400 MiB reserved.");
}

TEST(shortage, what_is_not_known_cannot_be_told) {
  shortage about{.requested = 20 * mib, .live = 30 * mib, .failed = true};
  EXPECT_EQ(obstacle_of(about), obstacle::unknown);
  EXPECT_EQ(verdict_of(about),
            "30 MiB are live. The device's free memory is unknown, so weir cannot say whether it "
            "was full or fragmented.");
  about.device_total = 100 * mib;
  EXPECT_EQ(obstacle_of(about), obstacle::unknown);
  about.reserved = 30 * mib;
  EXPECT_EQ(obstacle_of(about), obstacle::elsewhere);
  about.device_total = 0;
  EXPECT_EQ(obstacle_of(about), obstacle::unknown);
  about.requested = 1;
  EXPECT_EQ(obstacle_of(about), obstacle::unknown) << "nobody said that a byte is free";
}

}  // namespace
}  // namespace weir::observe
