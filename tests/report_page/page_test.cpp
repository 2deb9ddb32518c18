// SPDX-License-Identifier: Apache-2.0
// The page as a whole: what it carries, what it keeps out, how large it may get.
#include "report/page.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "report/pack.hpp"
#include "samples.hpp"
#include "unpacker.hpp"

namespace weir::report_test { namespace {

using namespace weir::report;
using testing::HasSubstr;
using testing::Not;

std::string page_of(const recording& recorded, const page_limits& limits = {}) {
  return make_page({recorded, "a.weirtrace"}, limits);
}

unpacker index_of(const std::string& page) {
  return unpacker{inflated(from_base64(element(page, "index")))};
}

/// The beginning of the index.
struct about {
  explicit about(unpacker in) {
    EXPECT_EQ(in.number(), 2U);
    in.text();
    file = in.text();
    program = in.text();
    device = in.text();
    in.number();
    dropped = in.number();
    in.number();
    placed_by = in.text();
    if (in.number() == 1) {
      damage_offset = in.number();
      damage = in.text();
    }
    events = in.number();
  }
  std::string file, program, device, placed_by, damage;
  std::uint64_t dropped = 0, damage_offset = 0, events = 0;
};

TEST(report_pack, what_is_packed_comes_out_again) {
  packer in;
  in.number(0).number(127).number(128).number(~std::uint64_t{0}).text("a\0b</script>");
  in.difference(5, 1000).difference(1000, 5).difference(0, ~std::uint64_t{0});
  for (std::size_t length = 0; length < 7; ++length) {
    const std::string padded = in.packed() + std::string(length, 'x');
    EXPECT_EQ(inflated(from_base64(base64(deflated(padded)))), padded);
  }
  std::string long_text;  // that needs more than one of the packer's buffers
  std::mt19937 random{1};
  for (int i = 0; i < 200'000; ++i) long_text += static_cast<char>(random() & 0xff);
  for (const std::string& plain : {std::string{}, long_text})
    EXPECT_EQ(inflated(from_base64(base64(deflated(plain)))), plain);
  unpacker out{in.packed()};
  EXPECT_EQ(out.number(), 0U);
  EXPECT_EQ(out.number(), 127U);
  EXPECT_EQ(out.number(), 128U);
  EXPECT_EQ(out.number(), ~std::uint64_t{0});
  EXPECT_EQ(out.text(), std::string_view{"a"});
  EXPECT_EQ(out.difference(1000), 5U);
  EXPECT_EQ(out.difference(5), 1000U);
  EXPECT_EQ(out.difference(~std::uint64_t{0}), 0U);
  EXPECT_TRUE(out.done());
}

TEST(report_pack, base64_is_of_the_text_and_of_nothing_behind_it) {
  constexpr std::string_view text = "foobar";
  const std::string_view packed[] = {"",         "Zg==",     "Zm8=",    "Zm9v",
                                     "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"};
  for (std::size_t length = 0; length <= text.size(); ++length)
    EXPECT_EQ(base64(text.substr(0, length)), packed[length]);
}

TEST(report_page, is_one_file_that_names_no_other) {
  const std::string page = page_of(training_run(3000));
  EXPECT_EQ(page.rfind("<!doctype html>", 0), 0U);
  for (const char* place : {"@style@", "@script@", "@index@", "@early@", "@store@"}) {
    EXPECT_THAT(page, Not(HasSubstr(place)));
  }
  for (const char* way_out : {"http://", "https://", "src=", "@import", "url(", "fetch("}) {
    EXPECT_THAT(page, Not(HasSubstr(way_out)));
  }
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
}

TEST(report_page, nothing_of_the_recording_stands_in_it_as_text) {
  const recording recorded = sample_named("hostile", 0);
  const std::string page = page_of(recorded);
  EXPECT_THAT(page, Not(HasSubstr("hacked")));
  const std::string same_without = page_of(recording{});
  const auto count = [](const std::string& text, std::string_view word) {
    std::size_t occurrences = 0;
    for (std::size_t position = text.find(word); position != std::string::npos;
         position = text.find(word, position + 1)) {
      ++occurrences;
    }
    return occurrences;
  };
  EXPECT_EQ(count(page, "<"), count(same_without, "<"));
  EXPECT_EQ(about{index_of(page)}.program, hostile_text);
}

TEST(report_page, odd_recordings_have_pages_too) {
  EXPECT_EQ(about{index_of(page_of(recording{}))}.events, 0U);
  EXPECT_EQ(about{index_of(page_of(sample_named("one", 1)))}.events, 1U);
  EXPECT_GT(about{index_of(page_of(sample_named("untagged", 2000)))}.events, 1000U);
  const about unplaced{index_of(page_of(sample_named("unplaced", 2000)))};
  EXPECT_EQ(unplaced.placed_by, "");
  recording only_marker;
  only_marker.events.push_back({.kind = trace_kind::marker});
  EXPECT_EQ(about{index_of(page_of(only_marker))}.events, 1U);
}

TEST(report_page, damage_and_drops_are_said) {
  const about index{index_of(page_of(sample_named("damaged", 2000)))};
  EXPECT_EQ(index.damage_offset, 123'456U);
  EXPECT_EQ(index.damage, "a frame's checksum is wrong");
  EXPECT_EQ(index.dropped, 42U);
}

TEST(report_page, keeps_to_the_size_it_was_given) {
  const recording recorded = training_run(60'000);
  const std::size_t whole = page_of(recorded).size();
  page_limits most;
  most.bytes = whole * 2 / 3;
  const std::string smaller = page_of(recorded, most);
  EXPECT_LE(smaller.size(), most.bytes);
  EXPECT_EQ(about{index_of(smaller)}.events, recorded.events.size());
  most.bytes = 1;  // cannot be: the smallest page there is
  EXPECT_LT(page_of(recorded, most).size(), whole);
}

TEST(report_page, a_thousand_blocks_are_kept_whatever_the_size) {
  recording_writer writer;
  for (std::uint64_t i = 1; i <= 1000; ++i) writer.allocate(i << 20, 1000);
  EXPECT_EQ(page_of(writer.out, {.bytes = 1}), page_of(writer.out));
  writer.allocate(1001 << 20, 1000);
  EXPECT_LT(page_of(writer.out, {.bytes = 1}).size(), page_of(writer.out).size());
}

TEST(report_page, is_limited_unless_told_otherwise) {
  EXPECT_EQ(page_limits{}.bytes, 30'000'000U);
  EXPECT_EQ(page_limits{}.bins, 262'144U);
  EXPECT_EQ(page_limits{}.blocks, 1'000'000U);
}

TEST(report_page, is_the_same_every_time) {
  const recording recorded = training_run(3000);
  EXPECT_EQ(page_of(recorded), page_of(recorded));
}

}  // namespace
}  // namespace weir::report_test
