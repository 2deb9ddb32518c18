// SPDX-License-Identifier: Apache-2.0
// Two runs in one page: both whole, and what differs between them.
#include "report/differences.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/page.hpp"
#include "samples.hpp"
#include "support/sizes.hpp"
#include "unpacker.hpp"

namespace weir::report_test { namespace {

using namespace weir::report;
using testing_support::mib;

/// In words, a line an entry.
std::string in_words(std::string packed) {
  unpacker in{std::move(packed)};
  std::string text;
  const auto count = [&] { return std::to_string(in.number()); };
  for (std::uint64_t left = in.number(); left > 0; --left) {
    text += in.text();
    text += in.number() == 1 ? " (size) " : " ";
    text += count() + " ";
    text += count() + "\n";
  }
  for (std::uint64_t left = in.number(); left > 0; --left) {
    text += "by " + in.text();
    text += ", all " + count() + "\n";
    for (std::uint64_t groups = in.number(); groups > 0; --groups) {
      text += "  " + in.text();
      for (int i = 0; i < 4; ++i) text += " " + count();
      text += "\n";
    }
  }
  EXPECT_TRUE(in.done());
  return text;
}

recording run_with(std::uint64_t cache) {
  recording_writer writer;
  writer.out.tags = {"", "weights", "caches"};
  writer.allocate(16 * mib, 3 * mib, 0, 1);
  writer.allocate(32 * mib, cache, 0, 2);
  trace_event& reserved = writer.add(trace_kind::reserve);
  reserved.address = 16 * mib;
  reserved.size = 2 * cache;
  return writer.out;
}

TEST(report_differences, are_those_of_weir_diff) {
  EXPECT_EQ(in_words(pack_differences(run_with(mib), run_with(4 * mib))),
            "bytes at the peak (size) 4194304 7340032\n"
            "blocks at the peak 2 2\n"
            "reserved at most (size) 2097152 8388608\n"
            "allocations 2 2\n"
            "bytes allocated (size) 4194304 7340032\n"
            "out of memory 0 0\n"
            "by tag, all 1\n"
            "  caches 1048576 4194304 1 1\n"
            "by size, all 2\n"
            "  4 MiB to 8 MiB 0 4194304 0 1\n"
            "  1 MiB to 2 MiB 1048576 0 1 0\n"
            "by site, all 1\n"
            "  (no stack) 4194304 7340032 2 2\n");
}

TEST(report_differences, a_hundred_groups_are_named) {
  const auto run = [](std::uint64_t size) {
    recording_writer writer;
    for (int i = 0; i < 101; ++i) {
      writer.out.tags.push_back("tag " + std::to_string(i));
      writer.allocate((i + 1) * mib, size + static_cast<std::uint64_t>(i), 0,
                      static_cast<std::uint16_t>(i + 1));
    }
    return writer.out;
  };
  recording grown = run(5000);
  grown.events[77].size += 1;
  const std::string words = in_words(pack_differences(run(1000), grown));
  EXPECT_THAT(words, testing::HasSubstr("by tag, all 101\n  tag 77 1077 5078 1 1\n"));
  const std::string by_tag =
      words.substr(words.find("by tag"), words.find("by size") - words.find("by tag"));
  EXPECT_EQ(std::count(by_tag.begin(), by_tag.end(), '\n'), 101);
}

TEST(report_page, of_two_has_both_whole) {
  const recording before = run_with(mib);
  const recording after = run_with(4 * mib);
  const std::string page = make_page({before, "before"}, {after, "after"});
  const std::string first = make_page({before, "before"});
  const std::string second = make_page({after, "after"});
  for (const std::string part : {"index", "early", "store"}) {
    EXPECT_EQ(element(page, part), element(first, part)) << part;
    EXPECT_EQ(element(page, "other-" + part), element(second, part)) << part;
    EXPECT_EQ(element(first, "other-" + part), "") << part;
  }
  EXPECT_EQ(inflated(from_base64(element(page, "differences"))), pack_differences(before, after));
  EXPECT_EQ(element(first, "differences"), "");
}

TEST(report_page, of_two_keeps_to_the_size_it_was_given) {
  const recording recorded = training_run(60'000);
  const page_source source{recorded, "training"};
  const std::size_t whole = make_page(source).size();
  const std::string page = make_page(source, source, {.bytes = whole});
  EXPECT_LE(page.size(), whole);
  EXPECT_EQ(element(page, "index"), element(page, "other-index"));
}

}  // namespace
}  // namespace weir::report_test
