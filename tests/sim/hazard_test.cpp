// SPDX-License-Identifier: Apache-2.0
// Hazards as text: what a report says, and what it advises.
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>

#include "weir/sim/machine.hpp"

namespace weir::sim { namespace {

using namespace std::chrono_literals;

const stream_id host{0};
const stream_id one{1};
const stream_id two{2};

party at(stream_id stream, party_action action = party_action::access, std::uint64_t step = 0) {
  return {.label = "work", .stream = stream, .extent = {100, 10}, .action = action, .step = step};
}

std::string remedy(hazard_kind kind, party first, party second) {
  return hazard{.kind = kind, .first = std::move(first), .second = std::move(second)}.remedy();
}

std::string wait_by_event(const std::string& first, const std::string& second) {
  return "record an event on stream " + first + " after the first, and let stream " + second +
         " wait for it before the second";
}

// --- Remedies ------------------------------------------------------------------------------------

TEST(remedy_of_a_race, between_nodes_of_one_launch_is_an_edge_of_the_graph) {
  const auto replayed = party_action::replayed;
  const auto access = party_action::access;
  EXPECT_EQ(remedy(hazard_kind::race, at(one, replayed), at(one, replayed)),
            "make one node of the graph depend on the other");
  EXPECT_EQ(remedy(hazard_kind::race, at(one, replayed), at(two, replayed)),
            wait_by_event("1", "2"));
  EXPECT_EQ(remedy(hazard_kind::race, at(one, replayed), at(one, access)), wait_by_event("1", "1"));
  EXPECT_EQ(remedy(hazard_kind::race, at(one, access), at(one, replayed)), wait_by_event("1", "1"));
}

TEST(remedy_of_a_race, with_the_end_of_a_lifetime_is_to_wait_before_it) {
  const auto lifetime = party_action::lifetime;
  EXPECT_EQ(remedy(hazard_kind::freed_in_use, at(one), at(host, lifetime)),
            "wait for stream 1 before the memory is removed");
  EXPECT_EQ(remedy(hazard_kind::freed_in_use, at(one, lifetime), at(two)),
            "queue the use before the memory is freed, and let stream 1 wait for stream 2 first");
  EXPECT_EQ(remedy(hazard_kind::freed_in_use, at(one), at(two)), wait_by_event("1", "2"));
  EXPECT_EQ(remedy(hazard_kind::race, at(one, lifetime), at(two)), wait_by_event("1", "2"));
}

/// A block of [100, 110) that takes up to 116, from step 3 to step 6.
block_life past_block() {
  return {.extent = {100, 10},
          .rounded = 16,
          .allocated_on = one,
          .freed_on = one,
          .allocated_step = 3,
          .freed_step = 6};
}

const std::string declare_the_use =
    "call record_stream() for stream 2 before the block is freed, or free it on stream 2, or let "
    "stream 1 wait for an event after the first before it is freed";

TEST(remedy_of_a_race, with_the_end_of_a_block_is_to_declare_the_use) {
  const auto advice = [](range used, std::uint64_t step) {
    party first = at(two, party_action::access, step);
    first.extent = used;
    return hazard{.kind = hazard_kind::freed_in_use,
                  .first = first,
                  .second = at(host, party_action::lifetime, 9),
                  .blocks = {past_block()}}
        .remedy();
  };
  const std::string wait = "wait for stream 2 before the memory is removed";
  EXPECT_EQ(advice({100, 10}, 4), declare_the_use);
  EXPECT_EQ(advice({100, 10}, 5), declare_the_use);
  EXPECT_EQ(advice({100, 10}, 3), wait) << "before there was the block";
  EXPECT_EQ(advice({100, 10}, 6), wait) << "when it was free";
  EXPECT_EQ(advice({115, 1}, 4), declare_the_use) << "the last byte that it takes";
  EXPECT_EQ(advice({116, 1}, 4), wait) << "behind it";
  EXPECT_EQ(advice({90, 11}, 4), declare_the_use) << "its first byte";
  EXPECT_EQ(advice({90, 10}, 4), wait) << "before it";
}

TEST(remedy_of_a_race, with_the_next_owner_of_the_bytes_is_to_declare_the_use) {
  const auto advice = [](std::uint64_t first, std::uint64_t second, bool handed_out_again = true) {
    hazard reported{.kind = hazard_kind::race,
                    .first = at(two, party_action::access, first),
                    .second = at(one, party_action::access, second),
                    .blocks = {past_block()}};
    if (handed_out_again) reported.blocks.push_back({.extent = {100, 10}, .allocated_step = 7});
    return reported.remedy();
  };
  const std::string wait = wait_by_event("2", "1");
  EXPECT_EQ(advice(4, 8), declare_the_use);
  EXPECT_EQ(advice(5, 7), declare_the_use);
  EXPECT_EQ(advice(4, 8, false), wait);
  EXPECT_EQ(advice(3, 8), wait);
  EXPECT_EQ(advice(6, 8), wait);
  EXPECT_EQ(advice(4, 6), wait);
}

TEST(remedy_of_a_race,
     with_a_fill_of_freed_memory_on_the_allocators_own_stream_is_to_declare_the_use) {
  const auto advice = [](stream_id filling, std::uint64_t step) {
    return hazard{.kind = hazard_kind::race,
                  .first = at(two, party_action::access, 4),
                  .second = at(filling, party_action::access, step),
                  .blocks = {past_block()}}
        .remedy();
  };
  EXPECT_EQ(advice(stream_id{10}, 8), declare_the_use);
  EXPECT_EQ(advice(stream_id{10}, 5), wait_by_event("2", "10")) << "before the free";
}

TEST(remedy_of_a_bad_access, depends_on_the_block_that_it_missed) {
  hazard reported{.kind = hazard_kind::bad_access, .first = {}, .second = {}};
  EXPECT_EQ(reported.remedy(),
            "map the memory, and grant the device access, before work on it is queued");
  reported.blocks = {past_block()};
  EXPECT_EQ(reported.remedy(),
            "queue the last use before the block is freed: its memory was returned to the driver");
  const std::string use_less =
      "stay within the block's size; the neighbouring addresses are unmapped";
  reported.blocks.push_back({.extent = {100, 10}, .allocated_step = 7});
  EXPECT_EQ(reported.remedy(), use_less);
  reported.blocks.clear();
  reported.nearest = past_block();
  EXPECT_EQ(reported.remedy(), use_less);
}

// --- Messages ------------------------------------------------------------------------------------

TEST(hazard_message, tells_both_sides_and_the_lives_of_the_bytes) {
  hazard reported{.kind = hazard_kind::race,
                  .first = {.label = "kernel fill",
                            .stream = one,
                            .order = 3,
                            .extent = {0x1000, 32},
                            .writes = true,
                            .queued = 1234ns,
                            .action = party_action::replayed,
                            .step = 9,
                            .stream_name = "producer"},
                  .second = {.label = "host read", .order = 4, .extent = {0x1010, 8}},
                  .shared = {0x1010, 8}};
  reported.blocks.push_back({.extent = {0x1000, 64},
                             .rounded = 64,
                             .tag = tag::named("weights").value(),
                             .allocated_on = one,
                             .allocated = 5ns,
                             .freed_on = two,
                             .freed = 1000ns,
                             .recorded = {two},
                             .allocated_step = 1,
                             .freed_step = 2});
  reported.blocks.push_back({.extent = {0x1000, 32}, .allocated_on = two, .allocated = 1100ns});
  EXPECT_EQ(reported.message(),
            "race: two unordered accesses: 8 bytes at 0x1010\n"
            "  first:  kernel fill, node 3 of a graph launched on stream 1 (producer), writes "
            "[0x1000, 0x1020), 32 bytes, queued at 1.234 us\n"
            "  second: host read, operation 4 of the host, reads [0x1010, 0x1018), 8 bytes, queued "
            "at 0.000 us\n"
            "  block:  0x1000, 64 B, tag \"weights\", allocated on stream 1 at 0.005 us, recorded "
            "for stream 2, freed on stream 2 at 1.000 us\n"
            "  later:  0x1000, 32 B, allocated on stream 2 at 1.100 us\n"
            "  no stream, event or host order puts the first before the second\n"
            "  remedy: let the host wait for stream 1 (producer), or for an event after the first");
}

TEST(hazard_message, begins_with_what_is_wrong) {
  const auto headline = [](hazard_kind kind) {
    hazard reported{.kind = kind, .first = {}, .second = {}, .shared = {0x10, 2}};
    const std::string text = to_string(reported);
    EXPECT_EQ(text, reported.message());
    return text.substr(0, text.find('\n'));
  };
  EXPECT_EQ(headline(hazard_kind::race), "race: two unordered accesses: 2 bytes at 0x10");
  EXPECT_EQ(headline(hazard_kind::use_after_free), "use after free: 2 bytes at 0x10");
  EXPECT_EQ(headline(hazard_kind::freed_in_use),
            "memory removed while queued work may still use it: 2 bytes at 0x10");
  EXPECT_EQ(headline(hazard_kind::bad_access),
            "access to unmapped or inaccessible addresses: 2 bytes at 0x10");
  EXPECT_EQ(headline(hazard_kind::out_of_bounds), "access outside an allocation: 2 bytes at 0x10");
}

TEST(hazard_message, says_what_order_is_missing_where_one_is) {
  const auto says_so = [](hazard_kind kind) {
    const hazard reported{.kind = kind, .first = at(one), .second = at(two)};
    return reported.message().find(
               "\n  no stream, event or host order puts the first before the second\n") !=
           std::string::npos;
  };
  EXPECT_TRUE(says_so(hazard_kind::race));
  EXPECT_TRUE(says_so(hazard_kind::freed_in_use));
  EXPECT_FALSE(says_so(hazard_kind::use_after_free));
  EXPECT_FALSE(says_so(hazard_kind::bad_access));
  EXPECT_FALSE(says_so(hazard_kind::out_of_bounds));
}

TEST(hazard_message, says_where_each_side_was_queued) {
  const auto second = [](stream_id stream, std::uint64_t order, party_action action) {
    const hazard reported{
        .first = at(one),
        .second = {.label = "work", .stream = stream, .order = order, .action = action}};
    const std::string text = reported.message();
    const std::size_t from = text.find("\n  second: work, ") + 17;
    return text.substr(from, text.find(", queued at", from) - from);
  };
  const std::string nothing = "[0x0, 0x0), 0 bytes";
  EXPECT_EQ(second(one, 2, party_action::access), "operation 2 of stream 1, reads " + nothing);
  EXPECT_EQ(second(host, 2, party_action::access), "operation 2 of the host, reads " + nothing);
  EXPECT_EQ(second(one, 0, party_action::access), "by stream 1, reads " + nothing);
  EXPECT_EQ(second(one, 2, party_action::lifetime), "operation 2 of stream 1, " + nothing);
  EXPECT_EQ(second(one, 2, party_action::captured), "captured on stream 1, reads " + nothing);
  EXPECT_EQ(second(one, 2, party_action::replayed),
            "node 2 of a graph launched on stream 1, reads " + nothing);
  EXPECT_EQ(second(one, 0, party_action::replayed),
            "node of a graph launched on stream 1, reads " + nothing);
}

TEST(hazard_message, tells_one_side_where_there_is_no_other_and_the_block_nearby) {
  const party side{.label = "copy", .stream = two, .extent = {0x2000, 4}};
  hazard reported{
      .kind = hazard_kind::bad_access, .first = side, .second = side, .shared = {0x2000, 4}};
  const std::string head =
      "access to unmapped or inaccessible addresses: 4 bytes at 0x2000\n"
      "  copy, by stream 2, reads [0x2000, 0x2004), 4 bytes, queued at 0.000 us";
  EXPECT_EQ(reported.message(), head +
                                    "\n  remedy: map the memory, and grant the device access, "
                                    "before work on it is queued");
  const auto nearby = [&](range block) {
    reported.nearest = block_life{.extent = block, .allocated_on = one};
    const std::string text = reported.message();
    const std::size_t from = text.find("\n  nearby: ");
    return from == std::string::npos ? text : text.substr(from, text.find(", ", from) - from);
  };
  EXPECT_EQ(nearby({0x1ff0, 16}), "\n  nearby: 1 byte after 0x1ff0");
  EXPECT_EQ(nearby({0x1ff0, 8}), "\n  nearby: 9 bytes after 0x1ff0");
  EXPECT_EQ(nearby({0x2004, 8}), "\n  nearby: 1 byte before 0x2004");
  EXPECT_EQ(nearby({0x2008, 8}), "\n  nearby: 5 bytes before 0x2008");
}

TEST(hazard_message, leaves_a_side_out_that_nobody_knows) {
  hazard reported{.kind = hazard_kind::out_of_bounds,
                  .first = {},
                  .second = {.label = "copy", .stream = two, .order = 1, .extent = {0x2000, 4}},
                  .shared = {0x2000, 4}};
  const std::string rest =
      "copy, operation 1 of stream 2, reads [0x2000, 0x2004), 4 bytes, queued at 0.000 us\n"
      "  remedy: allocate the full size you use; bytes added by rounding are not yours";
  const std::string head = "access outside an allocation: 4 bytes at 0x2000";
  EXPECT_EQ(reported.message(), head + "\n  " + rest);
  reported.first = {.label = "free", .stream = one, .action = party_action::lifetime};
  EXPECT_EQ(reported.message(), head +
                                    "\n  first:  free, by stream 1, [0x0, 0x0), 0 bytes, queued at "
                                    "0.000 us\n  second: " +
                                    rest);
}

// --- Kinds and counts ----------------------------------------------------------------------------

TEST(hazard_kinds, are_called_what_they_are) {
  EXPECT_EQ(to_string(hazard_kind::race), "race");
  EXPECT_EQ(to_string(hazard_kind::use_after_free), "use_after_free");
  EXPECT_EQ(to_string(hazard_kind::freed_in_use), "freed_in_use");
  EXPECT_EQ(to_string(hazard_kind::bad_access), "bad_access");
  EXPECT_EQ(to_string(hazard_kind::out_of_bounds), "out_of_bounds");
}

TEST(migrations, are_told_by_where_the_pages_went) {
  EXPECT_EQ(to_string(migration_counts{.to_device = 3, .to_host = 2, .evicted = 1}),
            "to_device 3, to_host 2, evicted 1");
}

}  // namespace
}  // namespace weir::sim
