// SPDX-License-Identifier: Apache-2.0
// Why a request cannot be met: every figure of the report, and its words.
#include "heap/heap_fixture.hpp"

namespace weir::testing_support { namespace {

using ::testing::ElementsAre;

const tag weights = tag::named("report test: weights").value();
const tag scratch = tag::named("report test: scratch").value();

MATCHER_P2(is_share, stream, size, "") { return arg.stream == stream && arg.size == size; }
MATCHER_P2(is_group, size, blocks, "") { return arg.size == size && arg.blocks == blocks; }

std::string number_of(const stream& of) { return std::to_string(of.id().number()); }

class report_test : public heap_test {
 protected:
  /// What the driver has left.
  [[nodiscard]] bytes device_free() const { return gpu().memory_info().value().free; }
  /// The context's, which is nobody's.
  static constexpr bytes overhead{std::uint64_t{64} << 20};
};

TEST_F(report_test, every_figure_is_its_own) {
  const auto one = new_stream();
  const auto two = new_stream();
  const auto three = new_stream();
  const auto reader = new_stream();
  auto other = make();
  void* const elsewhere = other.allocate(42_MiB, one);
  auto memory = make();
  const auto pool = memory.create_pool("apart").value();
  const auto unused = memory.create_pool("never used").value();
  std::vector<void*> live;
  {
    const tag_scope as{weights};
    live.push_back(memory.allocate(300_MiB, one));
  }
  {
    const tag_scope as{scratch};
    for (int i = 0; i < 3; ++i) live.push_back(memory.allocate(10_MiB, one));
    live.push_back(memory.allocate(25_MiB, one));
  }
  live.push_back(memory.allocate(1000_B, one));
  live.push_back(pool.allocate(61_MiB, one));
  memory.deallocate(pool.allocate(20_MiB, one), one);
  void* const awaited = memory.allocate(24_MiB, one);
  void* const awaited_twice = memory.allocate(6_MiB, one);
  void* const of_one = memory.allocate(11_MiB, one);
  live.push_back(memory.allocate(1_KiB, one));
  void* const of_two = memory.allocate(100_MiB, two);
  void* const of_three = memory.allocate(50_MiB, three);
  const auto held_one = hold(one);
  const auto held_two = hold(two);
  const auto held_three = hold(three);
  const auto held_reader = hold(reader);
  write(one, of_one, 11_MiB);
  write(two, of_two, 100_MiB);
  write(three, of_three, 50_MiB);
  write(reader, awaited, 24_MiB);
  ASSERT_TRUE(memory.record_stream(awaited, reader));
  ASSERT_TRUE(memory.record_stream(awaited_twice, reader));
  ASSERT_TRUE(memory.record_stream(awaited_twice, two));
  memory.deallocate(awaited, one);
  memory.deallocate(awaited_twice, one);
  memory.deallocate(of_three, three);
  memory.deallocate(of_one, one);
  memory.deallocate(of_two, two);
  memory.deallocate(memory.allocate(3_MiB, one), one);  // stays in the thread's cache

  ASSERT_TRUE(memory.set_limit(1_GiB));  // not before: near a limit memory is placed otherwise
  EXPECT_EQ(memory.explain(500_MiB, one).advice, "The request fits.");
  ASSERT_TRUE(memory.set_limit(scratch, 800_MiB));
  const tag_scope as{scratch};
  const auto about = memory.explain(600_MiB, one);
  EXPECT_EQ(about.requested, 600_MiB);
  EXPECT_EQ(about.stream, one.id());
  EXPECT_EQ(about.tag, scratch);
  EXPECT_EQ(about.tag_limit, 800_MiB);
  EXPECT_EQ(about.limit, 1_GiB);
  EXPECT_EQ(about.stats, memory.stats());
  EXPECT_EQ(about.device_total, 2_GiB);
  EXPECT_EQ(about.elsewhere, overhead + 42_MiB);
  EXPECT_EQ(about.device_free, 2_GiB - about.elsewhere - about.stats.reserved.current);
  ASSERT_EQ(about.tags.size(), 3u);
  EXPECT_EQ(about.tags[0].tag, weights);
  EXPECT_EQ(about.tags[1].tag, tag{});
  EXPECT_EQ(about.tags[2].tag, scratch);
  for (const tag_stats& each : about.tags) EXPECT_EQ(each.stats, memory.stats(each.tag));
  EXPECT_THAT(about.largest,
              ElementsAre(is_group(300_MiB, 1u), is_group(61_MiB, 1u), is_group(10_MiB, 3u),
                          is_group(25_MiB, 1u), is_group(1_KiB, 2u)));
  // What was left of the last growth lies behind it, and is that stream's now.
  EXPECT_THAT(about.bound,
              ElementsAre(is_share(two.id(), 100_MiB), is_share(three.id(), 52_MiB - 2_KiB),
                          is_share(one.id(), 8_MiB)));
  EXPECT_THAT(about.awaited, ElementsAre(is_share(reader.id(), 30_MiB), is_share(two.id(), 6_MiB)));
  EXPECT_EQ(about.largest_free, 8_MiB) << "others have longer ones";
  // Handles that are free in part: before and behind what is free for the first stream, before what
  // the second and third have, and in the pool.
  EXPECT_EQ(about.fragments, 2_MiB + (2_MiB - 2_KiB) + 1_MiB);
  EXPECT_EQ(about.other_pools, 21_MiB);
  EXPECT_EQ(about.stats.thread_cached, 3_MiB);
  EXPECT_EQ(about.stats.reserved.current, 630_MiB);
  EXPECT_EQ(
      about.advice,
      "The allocator's limit of 1 GiB is in the way: 416 MiB are live, 630 MiB reserved. Raise "
      "it by 22 MiB, or free 22 MiB. 100 MiB are bound to stream " +
          number_of(two) +
          ": synchronise it, or free on the stream that allocates next. 52 MiB are bound to "
          "stream " +
          number_of(three) +
          ": synchronise it, or free on the stream that allocates next. 30 MiB wait for recorded "
          "streams (" +
          number_of(reader) + ", " + number_of(two) +
          "): synchronise them. 21 MiB are cached by private pools and graphs: close those that "
          "are no longer needed.");
  for (void* const p : live) memory.deallocate(p, one);
  other.deallocate(elsewhere, one);
}

TEST_F(report_test, at_most_eight_sizes_are_named_those_that_hold_most) {
  auto memory = make();
  const auto stream = new_stream();
  std::vector<void*> live;
  for (std::uint64_t i = 1; i <= 9; ++i) live.push_back(memory.allocate(i * 1_MiB, stream));
  live.push_back(memory.allocate(1_MiB, stream));
  live.push_back(memory.allocate(1_MiB, stream));
  // Of equals the smaller size comes first.
  EXPECT_THAT(memory.explain(1_KiB, stream).largest,
              ElementsAre(is_group(9_MiB, 1u), is_group(8_MiB, 1u), is_group(7_MiB, 1u),
                          is_group(6_MiB, 1u), is_group(5_MiB, 1u), is_group(4_MiB, 1u),
                          is_group(1_MiB, 3u), is_group(3_MiB, 1u)));
  for (void* const p : live) memory.deallocate(p, stream);
}

TEST_F(report_test, of_streams_with_equal_shares_the_one_known_first_comes_first) {
  auto memory = make({.thread_cache = {}});
  const auto one = new_stream();
  const auto two = new_stream();
  const auto three = new_stream();
  void* const of_one = memory.allocate(32_MiB, one);
  void* const of_two = memory.allocate(32_MiB, two);
  void* const of_three = memory.allocate(32_MiB, three);
  void* const awaited = memory.allocate(8_MiB, one);
  const auto held_one = hold(one);
  const auto held_two = hold(two);
  const auto held_three = hold(three);
  write(one, of_one, 32_MiB);
  write(two, of_two, 32_MiB);
  write(three, of_three, 32_MiB);
  ASSERT_TRUE(memory.record_stream(awaited, two));
  ASSERT_TRUE(memory.record_stream(awaited, three));
  memory.deallocate(awaited, one);
  memory.deallocate(of_three, three);
  memory.deallocate(of_two, two);
  memory.deallocate(of_one, one);
  const auto about = memory.explain(1_KiB, one);
  EXPECT_THAT(about.bound, ElementsAre(is_share(one.id(), 32_MiB), is_share(two.id(), 32_MiB),
                                       is_share(three.id(), 32_MiB)));
  EXPECT_THAT(about.awaited, ElementsAre(is_share(two.id(), 8_MiB), is_share(three.id(), 8_MiB)));
}

TEST_F(report_test, a_stream_that_it_does_not_know_has_nothing_of_its_own) {
  auto memory = make({.thread_cache = {}});
  const auto known = new_stream();
  const auto stranger = new_stream();
  void* const p = memory.allocate(32_MiB, known);
  const auto held = hold(known);
  write(known, p, 32_MiB);
  memory.deallocate(p, known);
  EXPECT_EQ(memory.explain(1_KiB, known).stream, known.id());
  EXPECT_EQ(memory.explain(1_KiB, known).largest_free, 32_MiB);
  for (const auto& about :
       {memory.explain(1_KiB, stranger), memory.explain(1_KiB, stream::create(gpu(1)).value())}) {
    EXPECT_EQ(about.stream, stream_id{});
    EXPECT_EQ(about.largest_free, 0_B);
    EXPECT_THAT(about.bound, ElementsAre(is_share(known.id(), 32_MiB)));
  }
}

TEST_F(report_test, a_driver_that_does_not_answer_has_nothing) {
  auto memory = make();
  const auto stream = new_stream();
  void* const p = memory.allocate(32_MiB, stream);
  EXPECT_EQ(memory.explain(1_KiB, stream).device_free, 2_GiB - overhead - 32_MiB);
  EXPECT_EQ(memory.explain(1_KiB, stream).elsewhere, overhead);
  machine->fail(driver::call::mem_get_info, 1, driver::CUDA_ERROR_UNKNOWN);
  const auto about = memory.explain(1_KiB, stream);
  EXPECT_EQ(about.device_free, 0_B);
  EXPECT_EQ(about.elsewhere, 0_B);
  EXPECT_EQ(about.device_total, 2_GiB);
  memory.deallocate(p, stream);
  ASSERT_TRUE(memory.close());
  const auto closed = memory.explain(1_MiB, stream);
  EXPECT_EQ(closed.requested, 1_MiB);
  EXPECT_EQ(closed.device_total, 0_B);
  EXPECT_EQ(closed.advice, "");
}

TEST_F(report_test, the_advice_names_the_limit_and_what_is_missing) {
  auto memory = make({.limit = 512_MiB, .thread_cache = {}});
  const auto stream = new_stream();
  void* const p = memory.allocate(400_MiB, stream);
  const std::string limit = "The allocator's limit of 512 MiB is in the way: 400 MiB are live, ";
  EXPECT_EQ(memory.explain(112_MiB, stream).advice, "The request fits.");
  EXPECT_EQ(memory.explain(113_MiB, stream).advice,
            limit + "400 MiB reserved. Raise it by 1 MiB, or free 1 MiB.");
  // What is cached helps.
  void* const cached = memory.allocate(100_MiB, stream);
  memory.deallocate(cached, stream);
  EXPECT_EQ(memory.explain(100_MiB, stream).advice, "The request fits.");
  EXPECT_EQ(memory.explain(113_MiB, stream).advice,
            limit + "500 MiB reserved. Raise it by 1 MiB, or free 1 MiB.");
  EXPECT_EQ(memory.explain(600_MiB, stream).advice,
            limit + "500 MiB reserved. Raise it by 488 MiB.")
      << "freeing all would not do";
  // Without a limit, what the device has left counts.
  ASSERT_TRUE(memory.set_limit(bytes::max()));
  const bytes room = device_free();
  EXPECT_EQ(memory.explain(100_MiB + room, stream).advice, "The request fits.");
  EXPECT_EQ(memory.explain(102_MiB + room, stream).advice,
            "Other users of the device hold 64 MiB of the device's 2 GiB: have them release 2 MiB, "
            "or free as much here.");
  EXPECT_EQ(memory.explain(200_GiB, stream).advice,
            "The request is larger than the device, which has 2 GiB. Request less.");
  memory.deallocate(p, stream);
}

TEST_F(report_test, what_a_graph_keeps_serves_nobody_else) {
  auto memory = make({.limit = 512_MiB, .thread_cache = {}});
  const auto stream = new_stream();
  const auto graphs = memory.create_pool("graphs", {.for_graphs = true}).value();
  memory.deallocate(graphs.allocate(200_MiB, stream), stream);
  EXPECT_EQ(memory.explain(300_MiB, stream).advice, "The request fits.");
  EXPECT_EQ(memory.explain(313_MiB, stream).advice,
            "The allocator's limit of 512 MiB is in the way: 0 B are live, 200 MiB reserved. Raise "
            "it by 1 MiB. 200 MiB are cached by private pools and graphs: close those that are no "
            "longer needed.");
}

TEST_F(report_test, a_limit_is_not_to_be_raised_where_the_device_has_no_more) {
  auto memory = make({.limit = 512_MiB, .thread_cache = {}});
  auto other = make({.thread_cache = {}});
  const auto stream = new_stream();
  void* const p = memory.allocate(400_MiB, stream);
  void* const q = other.allocate(1_GiB, stream);
  const bytes room = device_free();
  ASSERT_EQ(room, 2_GiB - overhead - 400_MiB - 1_GiB);
  const std::string limit =
      "The allocator's limit of 512 MiB is in the way: 400 MiB are live, 400 MiB reserved. ";
  EXPECT_EQ(memory.explain(room, stream).advice,
            limit + "Raise it by " + to_string(room - 112_MiB) + ".");
  EXPECT_EQ(memory.explain(room + 2_MiB, stream).advice,
            limit + "Raising it alone does not help, with " + to_string(room) +
                " free of the device's 2 GiB. Request less.");
  memory.deallocate(p, stream);
  other.deallocate(q, stream);
}

TEST_F(report_test, the_words_are_the_figures) {
  memory_report about;
  about.requested = 500_MiB;
  about.stream = stream_id{7};
  about.tag = scratch;
  about.limit = 1_GiB;
  about.device_free = 11_MiB;
  about.device_total = 12_MiB;
  about.stats.requested.current = 13_MiB;
  about.stats.allocated.current = 14_MiB;
  about.stats.blocks.current = 15;
  about.stats.reserved.current = 16_MiB;
  about.stats.cached = 17_MiB;
  about.stats.thread_cached = 18_MiB;
  about.stats.pending = 19_MiB;
  for (const tag each : {weights, tag{}, scratch}) about.tags.push_back({each, {}});
  about.tags[0].stats.allocated.current = 20_MiB;
  about.tags[0].stats.blocks.current = 21;
  about.tags[1].stats.allocated.current = 22_MiB;
  about.tags[1].stats.blocks.current = 23;
  about.largest = {{24_MiB, 25}, {26_MiB, 27}};
  about.awaited = {{stream_id{28}, 29_MiB}};
  about.bound = {{stream_id{30}, 31_MiB}, {stream_id{32}, 33_MiB}};
  about.largest_free = 34_MiB;
  about.fragments = 35_MiB;
  about.other_pools = 36_MiB;
  about.elsewhere = 37_MiB;
  about.advice = "Buy a larger one.";
  EXPECT_EQ(to_string(about),
            "not enough memory for 500 MiB on stream 7, tag \"report test: scratch\"\n"
            "  live: 14 MiB in 15 blocks, 13 MiB requested\n"
            "    tag \"report test: weights\": 20 MiB in 21 blocks\n"
            "    untagged: 22 MiB in 23 blocks\n"
            "    25 blocks of: 24 MiB\n"
            "    27 blocks of: 26 MiB\n"
            "  waiting for recorded streams: 19 MiB\n"
            "    waiting for stream 28: 29 MiB\n"
            "  cached: 17 MiB, 18 MiB of it by threads, longest piece 34 MiB, in fragments 35 MiB\n"
            "    bound to stream 30: 31 MiB\n"
            "    bound to stream 32: 33 MiB\n"
            "  cached by other pools: 36 MiB\n"
            "  reserved: 16 MiB, limit 1 GiB\n"
            "  device: 12 MiB, free 11 MiB, used outside this allocator 37 MiB\n"
            "  Buy a larger one.\n");
  about.limit = bytes::max();
  about.other_pools = {};
  EXPECT_THAT(about.text(), ::testing::HasSubstr("    bound to stream 32: 33 MiB\n"
                                                 "  reserved: 16 MiB, no limit\n"));
}

/// Whoever throws says what the report says.
TEST_F(report_test, goes_with_what_is_thrown) {
  auto memory = make({.limit = 64_MiB});
  const auto pool = memory.create_pool("apart").value();
  const auto stream = new_stream();
  void* const p = memory.allocate(40_MiB, stream);
  const tag_scope as{weights};
  const auto thrown = [&](const auto& request) -> std::string {
    try {
      request();
    } catch (const out_of_memory& caught) {
      EXPECT_EQ(caught.reason().code(), errc::out_of_memory);
      EXPECT_EQ(caught.reason().requested(), 48_MiB);
      EXPECT_EQ(
          std::string{caught.what()},
          "out_of_memory: not enough memory for the request (48 MiB): stream " + number_of(stream) +
              ", tag \"report test: weights\": The allocator's limit of 64 MiB is in the way: "
              "40 MiB are live, 40 MiB reserved. Raise it by 24 MiB, or free 24 MiB.");
      return caught.report();
    }
    return "nothing was thrown";
  };
  const auto by_allocator = thrown([&] { static_cast<void>(memory.allocate(48_MiB, stream)); });
  EXPECT_EQ(by_allocator, memory.explain(48_MiB, stream).text());
  const auto by_pool = thrown([&] { static_cast<void>(pool.allocate(48_MiB, stream)); });
  EXPECT_EQ(by_pool, memory.explain(48_MiB, stream).text());
  memory.deallocate(p, stream);
}

}  // namespace
}  // namespace weir::testing_support
