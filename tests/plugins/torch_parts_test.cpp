// SPDX-License-Identifier: Apache-2.0
// The torch plug-in's own parts: rings, counters, devices by page, snapshots in torch's terms.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/reports.hpp"
#include "torch/byte_counters.hpp"
#include "torch/device_by_page.hpp"
#include "torch/held_blocks.hpp"
#include "torch/memory_limit.hpp"
#include "torch/padded_blocks.hpp"
#include "torch/pool_names.hpp"
#include "torch/pool_reserves.hpp"
#include "torch/ring.hpp"
#include "torch/running_sums.hpp"
#include "torch/segment_table.hpp"
#include "torch/setting_text.hpp"
#include "torch/size_rounding.hpp"
#include "torch/torch_snapshot.hpp"
#include "torch/tracker_failure.hpp"
#include "torch/uncached_blocks.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/device/stream.hpp"
#include "weir/sim/machine.hpp"

namespace weir_torch { namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using namespace weir::literals;

TEST(ring, keeps_the_last_entries_oldest_first) {
  ring<int> last;
  last.set_capacity(3);
  for (int i = 1; i <= 5; ++i) last.add(i);
  EXPECT_THAT(last.all(), ElementsAre(3, 4, 5));
}

TEST(size_rounding, is_to_512_bytes_unless_told_otherwise) {
  size_rounding rounding;
  EXPECT_FALSE(rounding.rounds_up());
  rounding.set({0, 1, 1});
  EXPECT_FALSE(rounding.rounds_up());
  EXPECT_EQ(rounding.round(1), 512u);
  EXPECT_EQ(rounding.round(512), 512u);
  EXPECT_EQ(rounding.round(513), 1024u);
  EXPECT_EQ(rounding.round((5 << 20) + 1), (5u << 20) + 512);
}

TEST(size_rounding, cuts_the_way_to_the_next_power_of_two_into_equal_parts) {
  size_rounding rounding;
  rounding.set(std::vector<std::size_t>(16, 4));
  EXPECT_TRUE(rounding.rounds_up());
  EXPECT_EQ(rounding.round(100), 512u);
  EXPECT_EQ(rounding.round(2048), 2048u) << "no more than 512 bytes a part";
  EXPECT_EQ(rounding.round(2049), 2560u);
  EXPECT_EQ(rounding.round(1 << 20), 1u << 20);
  EXPECT_EQ(rounding.round((1 << 20) + 1), 5u << 18);
  EXPECT_EQ(rounding.round(84 << 20), 96u << 20);
  EXPECT_EQ(rounding.round(127 << 20), 128u << 20);
  EXPECT_EQ(rounding.round(std::size_t{1} << 40), std::size_t{1} << 40);
  EXPECT_EQ(rounding.round(~std::size_t{0}), ~std::size_t{0}) << "no sum overflows";
}

TEST(size_rounding, has_a_number_for_each_power_of_two_from_1_mib_to_64_gib) {
  size_rounding rounding;
  rounding.set({2, 0, 8, 0, 0, 0, 8, 2, 2, 1, 1, 1, 1, 1, 1, 4});
  EXPECT_EQ(rounding.round(600 << 10), 768u << 10) << "below 1 MiB as from there";
  EXPECT_EQ(rounding.round((1 << 20) + 1), 3u << 19);
  EXPECT_EQ(rounding.round((2 << 20) + 1), (2u << 20) + 512);
  EXPECT_EQ(rounding.round((4 << 20) + 1), 9u << 19);
  EXPECT_EQ(rounding.round(84 << 20), 88u << 20);
  EXPECT_EQ(rounding.round(400 << 20), 512u << 20);
  EXPECT_EQ(rounding.round((std::size_t{40} << 30) + 1), std::size_t{48} << 30);
  EXPECT_EQ(rounding.round((std::size_t{256} << 30) + 1), std::size_t{320} << 30) << "and above";
  rounding.set({});
  EXPECT_FALSE(rounding.rounds_up());
  EXPECT_EQ(rounding.round(84 << 20), 84u << 20);
}

TEST(setting_text, is_cut_between_commas_without_white_space) {
  EXPECT_THAT(setting_parts(" a : 1,\tb:[ 2:3 , >:4 ] "), ElementsAre("a:1", "b:[2:3", ">:4]"));
  EXPECT_THAT(setting_parts(""), ElementsAre(""));
}

TEST(setting_text, keeps_all_but_the_native_backend) {
  EXPECT_EQ(without_native_backend("backend: native, max_split_size_mb:64"),
            "max_split_size_mb:64");
  EXPECT_EQ(without_native_backend("roundup_power2_divisions:[2:4,>:1],backend:native"),
            "roundup_power2_divisions:[2:4,>:1]");
  EXPECT_EQ(without_native_backend("backend:cudaMallocAsync"), "backend:cudaMallocAsync");
}

TEST(setting_text, says_that_segments_expand_whatever_it_said) {
  EXPECT_EQ(with_expandable_segments(""), "expandable_segments:True");
  EXPECT_EQ(with_expandable_segments("expandable_segments:False"), "expandable_segments:True");
  EXPECT_EQ(with_expandable_segments(
                "roundup_power2_divisions:[2:4,>:1], expandable_segments : False,backend:native,"),
            "roundup_power2_divisions:[2:4,>:1],backend:native,expandable_segments:True");
  EXPECT_EQ(with_expandable_segments("expandable_segments_reserve:2"),
            "expandable_segments_reserve:2,expandable_segments:True");
}

TEST(memory_limit, is_the_smaller_of_torchs_fraction_and_weirs_options) {
  weir::options settings;
  EXPECT_EQ(memory_limit(settings, 100_GiB, 1.0), weir::bytes::max());
  EXPECT_EQ(memory_limit(settings, 100_GiB, 0.5), 50_GiB);
  EXPECT_EQ(memory_limit(settings, 3_B, 0.5), 2_B) << "rounded";
  EXPECT_EQ(memory_limit(settings, 100_GiB, 0.0), 0_B);
  settings.heap_limit = 40_GiB;
  EXPECT_EQ(memory_limit(settings, 100_GiB, 1.0), 40_GiB);
  EXPECT_EQ(memory_limit(settings, 100_GiB, 0.5), 40_GiB);
  EXPECT_EQ(memory_limit(settings, 100_GiB, 0.25), 25_GiB);
  settings.heap_limit_percent = 30;
  EXPECT_EQ(memory_limit(settings, 100_GiB, 0.5), 30_GiB);
  EXPECT_EQ(memory_limit(settings, 100_GiB, 1.0), 30_GiB);
}

TEST(padded_blocks, tell_what_was_requested_and_the_padding_of_all) {
  padded_blocks blocks;
  int a = 0, b = 0;
  EXPECT_FALSE(blocks.any());
  EXPECT_TRUE(blocks.add(&a, 1000, 2048)) << "the first";
  EXPECT_FALSE(blocks.add(&b, 3000, 4096));
  EXPECT_TRUE(blocks.any());
  EXPECT_EQ(blocks.padding(), 1048u + 1096u);
  EXPECT_EQ(blocks.requested_of(&b), 3000u);
  blocks.remove(&a);
  blocks.remove(&a);
  EXPECT_EQ(blocks.padding(), 1096u);
  EXPECT_EQ(blocks.requested_of(&a), std::nullopt);
  blocks.remove(&b);
  EXPECT_FALSE(blocks.any());
  EXPECT_EQ(blocks.padding(), 0u);
}

TEST(uncached_blocks, are_removed_once) {
  uncached_blocks blocks;
  int a = 0, b = 0;
  EXPECT_FALSE(blocks.any());
  blocks.add(&a);
  blocks.add(&b);
  EXPECT_TRUE(blocks.contains(&a));
  EXPECT_TRUE(blocks.remove(&a));
  EXPECT_FALSE(blocks.remove(&a));
  EXPECT_FALSE(blocks.contains(&a));
  EXPECT_TRUE(blocks.any());
  EXPECT_TRUE(blocks.remove(&b));
  EXPECT_FALSE(blocks.any());
}

TEST(ring, keeps_its_newest_when_it_becomes_smaller_and_goes_on_when_larger) {
  ring<int> last;
  last.set_capacity(4);
  for (int i = 1; i <= 6; ++i) last.add(i);
  last.set_capacity(2);
  EXPECT_THAT(last.all(), ElementsAre(5, 6));
  last.set_capacity(3);
  last.add(7);
  last.add(8);
  EXPECT_THAT(last.all(), ElementsAre(6, 7, 8));
  last.clear();
  EXPECT_THAT(last.all(), IsEmpty());
}

TEST(ring, has_room_for_one_entry_at_least) {
  ring<int> last;
  last.set_capacity(0);
  last.add(1);
  last.add(2);
  EXPECT_THAT(last.all(), ElementsAre(2));
}

// --- segment_table ------------------------------------------------------------------------------

using change = segment_change::kind;
constexpr weir::pool_id own{0};
constexpr weir::pool_id other{1};

TEST(segment_table, tells_new_segments_from_extensions) {
  segment_table segments;
  segment_table::changes told;
  segments.reserve(100, 10, own, false, told);
  segments.reserve(110, 10, own, false, told);    // behind it
  segments.reserve(90, 10, own, false, told);     // in front of it
  segments.reserve(120, 10, other, false, told);  // of another pool
  segments.reserve(200, 10, own, false, told);
  EXPECT_THAT(told, ElementsAre(segment_change{change::alloc, 100, 10, own},
                                segment_change{change::map, 110, 10, own},
                                segment_change{change::map, 90, 10, own},
                                segment_change{change::alloc, 120, 10, other},
                                segment_change{change::alloc, 200, 10, own}));
}

TEST(segment_table, frees_a_segment_as_it_was_allocated_and_unmaps_its_extensions) {
  segment_table segments;
  segment_table::changes told;
  segments.reserve(100, 10, own, false, told);
  segments.reserve(110, 10, own, false, told);
  told.clear();
  segments.release(110, 10, own, told);
  segments.release(100, 10, own, told);
  EXPECT_THAT(told, ElementsAre(segment_change{change::unmap, 110, 10, own},
                                segment_change{change::free, 100, 10, own}));
  EXPECT_THAT(segments.all(), IsEmpty());
}

TEST(segment_table, frees_a_segment_whole_when_a_part_goes_and_allocates_the_rest_anew) {
  segment_table segments;
  segment_table::changes told;
  segments.reserve(100, 30, other, false, told);
  told.clear();
  segments.release(110, 10, other, told);
  EXPECT_THAT(told, ElementsAre(segment_change{change::free, 100, 30, other},
                                segment_change{change::alloc, 100, 10, other},
                                segment_change{change::alloc, 120, 10, other}));
  told.clear();
  segments.release(100, 10, other, told);
  EXPECT_THAT(told, ElementsAre(segment_change{change::free, 100, 10, other}));
}

TEST(segment_table, has_the_segments_of_a_snapshot_after_a_merge) {
  segment_table segments;
  segment_table::changes told;
  segments.reserve(100, 10, own, false, told);
  segments.reserve(110, 10, own, false, told);
  segments.reserve(120, 10, other, false, told);
  segments.merge();
  told.clear();
  segments.release(110, 10, own, told);  // an extension before the merge
  EXPECT_THAT(told, ElementsAre(segment_change{change::free, 100, 20, own},
                                segment_change{change::alloc, 100, 10, own}));
}

TEST(segment_table, frees_a_segment_that_was_merged_into_one_before_it_with_that) {
  segment_table segments;
  segment_table::changes told;
  segments.reserve(110, 10, own, false, told);
  segments.reserve(100, 10, own, false, told);  // in front of it
  segments.merge();
  told.clear();
  segments.release(100, 10, own, told);
  EXPECT_THAT(told, ElementsAre(segment_change{change::free, 110, 10, own},
                                segment_change{change::free, 100, 20, own},
                                segment_change{change::alloc, 110, 10, own}));
}

TEST(segment_table, unmaps_what_it_does_not_know_and_replaces_what_it_knows_already) {
  segment_table segments;
  segment_table::changes told;
  segments.release(100, 10, own, told);
  EXPECT_THAT(told, ElementsAre(segment_change{change::unmap, 100, 10, own}));
  segments.reserve(100, 30, own, false, told);
  told.clear();
  segments.reserve(110, 10, own, false, told);
  EXPECT_THAT(told, ElementsAre(segment_change{change::map, 110, 10, own}));
  std::uint64_t mapped = 0;
  for (const auto& segment : segments.all()) mapped += segment.size;
  EXPECT_EQ(mapped, 30U);
  told.clear();
  segments.release(95, 10, own, told);  // half of it unknown
  EXPECT_THAT(told, ElementsAre(segment_change{change::unmap, 95, 5, own},
                                segment_change{change::free, 100, 10, own},
                                segment_change{change::alloc, 105, 5, own}));
}

TEST(segment_table, keeps_whole_segments_apart_though_they_lie_side_by_side) {
  segment_table segments;
  segment_table::changes told;
  segments.reserve(100, 10, own, true, told);
  segments.reserve(110, 10, own, true, told);
  segments.merge();
  segments.release(110, 10, own, told);
  EXPECT_THAT(told, ElementsAre(segment_change{change::alloc, 100, 10, own},
                                segment_change{change::alloc, 110, 10, own},
                                segment_change{change::free, 110, 10, own}));
}

TEST(segments_of, numbers_segments_as_their_memory_is) {
  weir::pool_snapshot pool;
  for (const std::uint64_t address : {0x1000U, 0x1200U, 0x8000U})
    pool.blocks.push_back(
        {.address = address, .size = weir::bytes{512}, .state = weir::block_state::live});
  pool.physical = {{0x1000, weir::bytes{1024}, 7}, {0x8000, weir::bytes{512}, 3}};
  const auto segments = segments_of(pool);
  ASSERT_EQ(segments.size(), 2U);
  EXPECT_EQ(segments[0].number, 7U);
  EXPECT_EQ(segments[1].number, 3U);
}

// --- pool_reserves ------------------------------------------------------------------------------

TEST(pool_reserves, keeps_the_counters_of_a_pool_that_is_gone_until_they_are_reset) {
  using counters = pool_reserves::counters;
  constexpr pool_reserves::pool one{0, 1};
  constexpr pool_reserves::pool two{7, 0};
  pool_reserves reserves;
  reserves.note(one, 100, 150);
  reserves.note(two, 40, 40);
  reserves.note(one, 60, 150);
  EXPECT_EQ(reserves.all().at(one), (counters{60, 150, 100, 40}));
  EXPECT_EQ(reserves.all().at(two), (counters{40, 40, 40, 0}));
  reserves.reset_sums();
  EXPECT_EQ(reserves.all().at(one), (counters{60, 150, 0, 0}));
  reserves.reset_peaks();
  EXPECT_EQ(reserves.all().at(one), (counters{60, 60, 0, 0}));
  reserves.note(one, 0, 0);
  EXPECT_EQ(reserves.all().at(one), (counters{0, 60, 0, 60}));
  EXPECT_THAT(reserves.with_memory(), ElementsAre(two));
}

TEST(pool_names, forget_pools_that_ended_when_there_are_twice_as_many) {
  using names = pool_names<std::pair<int, int>>;
  names ids;
  for (int i = 1; i <= 256; ++i) {
    EXPECT_FALSE(ids.is_due()) << i;
    ids.add(weir::pool_id{static_cast<std::uint32_t>(i)}, {0, i});
  }
  EXPECT_TRUE(ids.is_due());
  const auto known = ids.all();
  ids.add(weir::pool_id{300}, {0, 300});
  ids.forget_ended(known, {weir::pool_id{}, weir::pool_id{7}, weir::pool_id{9}});
  EXPECT_EQ(ids.size(), 3u) << "two that live, and one that came since";
  EXPECT_FALSE(ids.is_due());
  EXPECT_EQ(ids.find(weir::pool_id{7}), (std::pair{0, 7}));
  EXPECT_EQ(ids.find(weir::pool_id{8}), (std::pair{0, 0}));
  EXPECT_EQ(ids.find(weir::pool_id{300}), (std::pair{0, 300}));
  for (int i = 1000; i < 1509; ++i) ids.add(weir::pool_id{static_cast<std::uint32_t>(i)}, {1, i});
  EXPECT_TRUE(ids.is_due());
  ids.forget_ended({}, {});
  EXPECT_FALSE(ids.is_due()) << "all of them live";
}

TEST(pool_names, forget_with_a_pool_that_ended_that_it_was_to_be_emptied) {
  using names = pool_names<std::pair<int, int>>;
  names ids;
  constexpr weir::pool_id ended{1}, alive{2}, apart{3}, later{4};
  for (const weir::pool_id pool : {ended, alive, apart}) {
    ids.add(pool, {0, 5});
    ids.add_released(pool, pool == apart ? std::pair{0, 6} : std::pair{0, 5});
  }
  const auto known = ids.all();
  ids.add(later, {0, 5});
  ids.add_released(later, {0, 5});
  ids.forget_ended(known, {alive});
  EXPECT_EQ(ids.released(), 2u) << "two of them have ended";
  EXPECT_THAT(ids.take_released({0, 5}), ElementsAre(alive, later));
  EXPECT_THAT(ids.take_released({0, 5}), IsEmpty());
  EXPECT_THAT(ids.take_released({0, 6}), IsEmpty());
}

TEST(held_blocks, keep_the_first_free_of_each_until_they_are_taken) {
  held_blocks blocks;
  int a = 0, b = 0, c = 0;
  EXPECT_FALSE(blocks.defer_free(&a)) << "not held";
  blocks.hold(&a);
  blocks.hold(&b);
  blocks.hold(&c);
  EXPECT_FALSE(blocks.is_freed(&b));
  EXPECT_TRUE(blocks.defer_free(&b));
  EXPECT_TRUE(blocks.defer_free(&a));
  EXPECT_TRUE(blocks.is_freed(&b));
  EXPECT_FALSE(blocks.defer_free(&b)) << "a second free";
  EXPECT_FALSE(blocks.release(&b)) << "freed already";
  EXPECT_THAT(blocks.take_freed(), ElementsAre(&b, &a));
  EXPECT_THAT(blocks.take_freed(), IsEmpty());
  EXPECT_FALSE(blocks.is_freed(&b)) << "may be another block's by now";
  EXPECT_FALSE(blocks.empty());
  EXPECT_TRUE(blocks.release(&c));
  EXPECT_FALSE(blocks.release(&c));
  EXPECT_TRUE(blocks.empty());
}

std::string thrown_by(const tracker_failure& kept) {
  try {
    kept.rethrow();
  } catch (const std::runtime_error& thrown) {
    return thrown.what();
  }
  return {};
}

void throw_in_tracker(const char* what) {
  try {
    throw std::runtime_error{what};
  } catch (...) {
    tracker_failure::note_current();
  }
}

TEST(tracker_failure, keeps_the_first_exception_for_the_innermost_request) {
  const tracker_failure outer;
  {
    const tracker_failure inner;
    EXPECT_EQ(thrown_by(inner), "");
    throw_in_tracker("first");
    throw_in_tracker("second");
    EXPECT_EQ(thrown_by(inner), "first");
  }
  EXPECT_EQ(thrown_by(outer), "");
  throw_in_tracker("third");
  EXPECT_EQ(thrown_by(outer), "third");
  std::thread{[&] {
    const tracker_failure other;
    throw_in_tracker("fourth");
    EXPECT_EQ(thrown_by(other), "fourth");
  }}.join();
  EXPECT_EQ(thrown_by(outer), "third");
}

TEST(tracker_failure, is_an_error_where_no_request_is_under_way) {
  weir::testing_support::reports heard;
  throw_in_tracker("nobody's");
  const auto reported = heard.take();
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_EQ(reported[0].code(), weir::errc::internal);
}

TEST(byte_counters, adds_up_threads_also_those_that_ended) {
  static byte_counters& counters = *new byte_counters;  // as it is used: never destroyed
  counters.add(1, 100);
  std::thread{[&] {
    counters.add(1, 1000);
    counters.add(2, 5);
  }}.join();
  std::thread{[&] { counters.add(1, 512); }}.join();
  EXPECT_EQ(counters.read(1).requested, 1612U);
  EXPECT_EQ(counters.read(1).rounded, 512U + 1024U + 512U);
  EXPECT_EQ(counters.read(2).requested, 5U);
  EXPECT_EQ(counters.read(0).requested, 0U);
  counters.add(3, 1000, 1500);  // a block that is larger than its request needs
  EXPECT_EQ(counters.read(3).requested, 1000U);
  EXPECT_EQ(counters.read(3).rounded, 1536U);
}

TEST(running_sums, are_what_was_counted_while_nobody_allocates) {
  using values = running_sums::values;
  running_sums sums;
  EXPECT_EQ(sums.update(0, 0), (values{0, 0}));
  EXPECT_EQ(sums.update(100, 100), (values{100, 0}));
  EXPECT_EQ(sums.update(150, 30), (values{150, 120}));
}

TEST(running_sums, differ_by_what_is_live_and_never_fall) {
  using values = running_sums::values;
  running_sums sums;
  EXPECT_EQ(sums.update(100, 160), (values{160, 0})) << "60 are not counted yet";
  EXPECT_EQ(sums.update(100, 40), (values{160, 120})) << "and still not";
  EXPECT_EQ(sums.update(130, 90), (values{210, 120}));
  EXPECT_EQ(sums.update(210, 0), (values{210, 210})) << "all of them are";
  EXPECT_EQ(sums.update(250, 40), (values{250, 210}));
}

TEST(running_sums, of_a_program_with_threads_add_up_at_every_reading) {
  running_sums sums;
  std::uint64_t counted = 0, live = 0, before_allocated = 0, before_freed = 0, state = 1;
  const auto random = [&] { return (state = state * 6364136223846793005ULL + 1) >> 40; };
  std::vector<std::uint64_t> blocks;
  std::vector<std::uint64_t> not_counted;
  for (int step = 0; step < 10'000; ++step) {
    if (random() % 2 == 0 || blocks.empty()) {
      blocks.push_back(random() % 1000 + 1);
      live += blocks.back();
      not_counted.push_back(blocks.back());
    } else {
      live -= blocks.back();
      blocks.pop_back();
    }
    if (not_counted.size() > random() % 4) {
      counted += not_counted.back();
      not_counted.pop_back();
    }
    const auto now = sums.update(counted, live);
    ASSERT_EQ(now.allocated - now.freed, live);
    ASSERT_GE(now.allocated, before_allocated);
    ASSERT_GE(now.freed, before_freed);
    before_allocated = now.allocated;
    before_freed = now.freed;
  }
  for (const std::uint64_t size : not_counted) counted += size;
  EXPECT_EQ(sums.update(counted, live).allocated, counted) << "nothing is counted twice";
}

TEST(device_by_page, finds_the_device_of_a_page_unless_it_had_several) {
  device_by_page devices;
  auto* const address = reinterpret_cast<void*>(0x7f00'0020'0000);
  EXPECT_EQ(devices.find(address), device_by_page::none);
  devices.set(address, 3);
  EXPECT_EQ(devices.find(address), 3);
  EXPECT_EQ(devices.find(reinterpret_cast<void*>(0x7f00'003f'ffff)), 3);
  EXPECT_EQ(devices.find(reinterpret_cast<void*>(0x7f00'0040'0000)), device_by_page::none);
  devices.set(address, 3);
  EXPECT_EQ(devices.find(address), 3);
  devices.set(reinterpret_cast<void*>(0x7f00'0020'0200), 0);
  EXPECT_EQ(devices.find(address), device_by_page::unknown);
  devices.set(address, 3);
  EXPECT_EQ(devices.find(address), device_by_page::unknown) << "for good";
  auto* const beyond = reinterpret_cast<void*>(std::uintptr_t{1} << 48);
  devices.set(beyond, 1);
  EXPECT_EQ(devices.find(beyond), device_by_page::unknown) << "the table ends there";
  EXPECT_EQ(devices.find(reinterpret_cast<void*>(~std::uintptr_t{0})), device_by_page::unknown);
}

class torch_snapshot : public testing::Test {
 protected:
  /// Queued work is done when somebody waits for it.
  static std::shared_ptr<weir::runtime> open() {
    weir::sim::machine_options settings;
    settings.devices.assign(1,
                            weir::sim::device_spec{.capacity = 2_GiB, .context_overhead = 64_MiB});
    settings.mode = weir::sim::progress::manual;
    return weir::runtime::open_simulated(weir::sim::machine::create(settings).value()).value();
  }

  std::shared_ptr<weir::runtime> machine = open();
  weir::device gpu = machine->device(weir::device_id{0}).value();
  weir::caching_allocator memory = weir::caching_allocator::create(gpu).value();
  weir::stream first = weir::stream::create(gpu).value();
  weir::stream second = weir::stream::create(gpu).value();

  struct totals {
    std::uint64_t size = 0, allocated = 0, active = 0, requested = 0, live = 0, pending = 0;
  };
  totals add_up() const {
    totals sums;
    for (const auto& pool : memory.snapshot().pools) {
      for (const snapshot_segment& segment : segments_of(pool)) {
        sums.size += segment.size;
        sums.allocated += segment.allocated;
        sums.active += segment.active;
        sums.requested += segment.requested;
        std::uint64_t end = segment.address;
        for (const snapshot_block& block : segment.blocks) {
          EXPECT_EQ(block.address, end);
          end += block.size;
          if (block.state == snapshot_block::kind::allocated) ++sums.live;
          if (block.state == snapshot_block::kind::pending_free) ++sums.pending;
        }
        EXPECT_EQ(end, segment.address + segment.size);
      }
    }
    return sums;
  }
  void expect_counters_to_agree() const {
    const auto stats = memory.stats();
    const totals sums = add_up();
    EXPECT_EQ(weir::bytes{sums.size}, stats.reserved.current);
    EXPECT_EQ(weir::bytes{sums.allocated}, stats.allocated.current);
    EXPECT_EQ(weir::bytes{sums.active}, stats.active.current);
    EXPECT_EQ(weir::bytes{sums.requested}, stats.requested.current);
    EXPECT_EQ(sums.live, stats.blocks.current);
    EXPECT_EQ(sums.live + sums.pending, stats.active_blocks.current);
  }
};

TEST_F(torch_snapshot, of_an_allocator_agrees_with_its_counters) {
  std::vector<void*> blocks;
  for (std::uint64_t size : {100U, 3000U, 700'000U, 5'000'000U, 33'000'000U})
    for (int i = 0; i < 3; ++i) blocks.push_back(memory.allocate(weir::bytes{size}, first));
  expect_counters_to_agree();
  for (std::size_t i = 0; i < blocks.size(); i += 2) memory.deallocate(blocks[i], first);
  expect_counters_to_agree();
  auto pool = memory.create_pool("apart").value();
  void* const apart = pool.allocate(3_MiB, second);
  expect_counters_to_agree();
  for (std::size_t i = 1; i < blocks.size(); i += 2) memory.deallocate(blocks[i], first);
  memory.deallocate(apart, second);
  expect_counters_to_agree();
}

TEST_F(torch_snapshot, shows_blocks_that_wait_for_a_recorded_stream) {
  void* const block = memory.allocate(3_MiB, first);
  const weir::context_scope bound{gpu};
  ASSERT_EQ(gpu.driver().memset_d8_async(reinterpret_cast<weir::device_address>(block), 1, 1 << 20,
                                         second.handle()),
            weir::driver::CUDA_SUCCESS);
  memory.record_stream(block, second).value();
  memory.deallocate(block, first);
  EXPECT_EQ(add_up().pending, 1U);
  expect_counters_to_agree();
  second.synchronize().value();
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(add_up().pending, 0U);
  expect_counters_to_agree();
}

TEST_F(torch_snapshot, of_a_pool_in_segments_has_each_of_them) {
  const auto pool = memory.create_pool("segments", {.segments = true}).value();
  std::vector<void*> blocks;
  for (const weir::bytes size : {1_MiB, 1_MiB, 1_MiB, 4_MiB, 4_MiB, 30_MiB})
    blocks.push_back(pool.allocate(size, first));
  std::vector<std::uint64_t> sizes;
  std::vector<std::size_t> counts;
  for (const snapshot_segment& segment : segments_of(pool.snapshot())) {
    sizes.push_back(segment.size >> 20);
    counts.push_back(segment.blocks.size());
  }
  EXPECT_THAT(sizes, testing::UnorderedElementsAre(2, 2, 20, 30));
  EXPECT_THAT(counts, testing::UnorderedElementsAre(2, 2, 3, 1));
  expect_counters_to_agree();
  for (void* const block : blocks) memory.deallocate(block, first);
  expect_counters_to_agree();
}

TEST_F(torch_snapshot, of_a_block_has_the_rest_of_its_segment_that_is_too_small_for_another) {
  const auto pool = memory.create_pool("segments", {.segments = true}).value();
  void* const block = pool.allocate(17_MiB + 1_B, first);
  EXPECT_EQ(memory.block_at(block).value().size, 18_MiB);
  EXPECT_EQ(memory.stats().allocated.current, 18_MiB);
  expect_counters_to_agree();
  memory.deallocate(block, first);
}

TEST(torch_segments, side_by_side_are_not_one) {
  weir::pool_snapshot pool;
  for (std::uint64_t address = 0; address < 4; ++address) {
    weir::block_info block;
    block.address = (address + 8) << 20;
    block.size = 1_MiB;
    block.state = weir::block_state::live;
    block.requested = 1_MiB;
    pool.blocks.push_back(block);
  }
  pool.physical = {{8 << 20, 2_MiB}, {10 << 20, 2_MiB}};
  ASSERT_EQ(segments_of(pool).size(), 1U) << "an arena's handles";
  pool.in_segments = true;
  const auto segments = segments_of(pool);
  ASSERT_EQ(segments.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(segments[i].address, (8 + 2 * i) << 20);
    EXPECT_EQ(segments[i].size, 2U << 20);
    EXPECT_EQ(segments[i].allocated, 2U << 20);
    EXPECT_EQ(segments[i].blocks.size(), 2U);
  }
}

}  // namespace
}  // namespace weir_torch
