// SPDX-License-Identifier: Apache-2.0
// Frames of names: entries of tables, and what is refused.
#include "trace/names.hpp"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weir::testing_support { namespace {

using ::testing::ElementsAre;
using namespace std::string_literals;
using namespace std::string_view_literals;
using trace::decode_names;
using trace::name_encoder;
using trace::name_kind;

constexpr auto short_names = "a frame of names is shorter than its header says";

TEST(names, are_written_byte_by_byte_as_documented) {
  name_encoder names;
  EXPECT_TRUE(names.empty());
  names.text(name_kind::tag, "t");
  names.text(name_kind::pool, "po");
  names.number(name_kind::stream, 300);
  names.number(name_kind::thread, 4);
  names.text(name_kind::text, "");
  names.text(name_kind::frame, "f");
  names.stack({1, 0, 300});
  names.text(name_kind::program, "p");
  names.text(name_kind::device, "d");
  names.number(name_kind::device_capacity, 5);
  names.number(name_kind::made_up_addresses, 1);
  names.number(name_kind::dropped, 6);
  names.peak({"b", bytes{7}, bytes{300}});
  EXPECT_EQ(names.entries(), 13u);
  EXPECT_FALSE(names.empty());
  EXPECT_EQ(names.content(),
            "\x01\x01t\x02\x02po\x03\xac\x02\x04\x04\x05\0\x06\x01"
            "f\x07\x03\x01\0\xac\x02\x08\x01p\x09\x01"
            "d\x0a\x05\x0b\x01\x0c\x06\x0d\x01"
            "b\x07\xac\x02"sv);
  names.clear();
  EXPECT_TRUE(names.empty());
  EXPECT_EQ(names.content(), "");
}

TEST(names, are_appended_to_the_tables) {
  recording read;
  const auto first =
      "\x01\x01t\x02\x02po\x03\xac\x02\x04\x04\x05\0\x06\x01"
      "f\x06\x01g\x07\x02\x01\0\x08\x01p\x09\x01"
      "d\x0a\x05\x0b\x01\x0c\x06\x0d\x01"
      "b\x07\xac\x02"sv;
  EXPECT_EQ(decode_names(first, 14, read), nullptr);
  EXPECT_EQ(decode_names("\x01\x01u\x03\x05\x07\0\x0b\0\x0c\x09"sv, 5, read), nullptr);
  EXPECT_THAT(read.tags, ElementsAre("", "t", "u"));
  EXPECT_THAT(read.pools, ElementsAre("", "po"));
  EXPECT_THAT(read.streams, ElementsAre(300, 5));
  EXPECT_THAT(read.threads, ElementsAre(4));
  EXPECT_THAT(read.texts, ElementsAre(""));
  EXPECT_THAT(read.frames, ElementsAre("f", "g"));
  EXPECT_THAT(read.stacks, ElementsAre(ElementsAre(1, 0), ElementsAre()));
  EXPECT_EQ(read.program, "p");
  EXPECT_EQ(read.device, "d");
  EXPECT_EQ(read.device_capacity, bytes{5});
  EXPECT_TRUE(read.real_addresses) << "what was said last";
  EXPECT_EQ(read.dropped, 9u);
  EXPECT_THAT(read.peaks, ElementsAre(recorded_peak{"b", bytes{7}, bytes{300}}));
}

TEST(names, that_are_cut_are_refused) {
  for (const auto entry :
       {"\x01\x01t"sv, "\x02\x01p"sv, "\x03\xac\x02"sv, "\x04\xac\x02"sv, "\x05\x01t"sv,
        "\x06\x01"
        "f"sv,
        "\x08\x01p"sv,
        "\x09\x01"
        "d"sv,
        "\x0a\xac\x02"sv, "\x0b\x01"sv, "\x0c\xac\x02"sv,
        "\x0d\x01"
        "b\x01\x01"sv}) {
    recording read;
    EXPECT_EQ(decode_names(entry, 1, read), nullptr);
    for (std::size_t length = 0; length < entry.size(); ++length)
      EXPECT_STREQ(decode_names(entry.substr(0, length), 1, read), short_names) << int{entry[0]};
    EXPECT_STREQ(decode_names(entry, 2, read), short_names);
    EXPECT_STREQ(decode_names(entry, 0, read), "a frame of names is longer than its header says");
  }
}

TEST(names, of_peaks_have_numbers_of_64_bits) {
  const auto large = "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"s;
  const auto larger = "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"s;
  const auto peak = "\x0d\x01p"s;
  recording read;
  EXPECT_EQ(decode_names(peak + large + large, 1, read), nullptr);
  EXPECT_STREQ(decode_names(peak + larger + "\x01", 1, read), short_names);
  EXPECT_STREQ(decode_names(peak + "\x01" + larger, 1, read), short_names);
  EXPECT_THAT(read.peaks, ElementsAre(recorded_peak{"p", bytes{UINT64_MAX}, bytes{UINT64_MAX}}));
}

TEST(names, that_do_not_exist_are_refused) {
  recording read;
  EXPECT_STREQ(decode_names("\0\x01"sv, 1, read), "unknown name");
  EXPECT_STREQ(decode_names("\x0e\x01"sv, 1, read), "unknown name");
}

TEST(names, of_stacks_have_frames_that_are_there) {
  recording read;
  read.frames = {"f", "g"};
  EXPECT_STREQ(decode_names("\x07\x01\x02"sv, 1, read), "a stack names an unknown frame");
  EXPECT_EQ(decode_names("\x07\x01\x01"sv, 1, read), nullptr);
  EXPECT_STREQ(decode_names("\x07\x02\x01"sv, 1, read), "a stack is cut");
  EXPECT_STREQ(decode_names("\x07"sv, 1, read), "a stack is cut");
  EXPECT_STREQ(decode_names("\x07\x01\x81"sv, 1, read), "a stack names an unknown frame");
  EXPECT_THAT(read.stacks, ElementsAre(ElementsAre(1)));
}

TEST(names, are_no_more_than_numbers_have_room_for) {
  const auto full = [](auto&& table, std::size_t size, std::string_view entry) {
    recording read;
    table(read).resize(size - 1);
    EXPECT_EQ(decode_names(entry, 1, read), nullptr);
    EXPECT_STREQ(decode_names(entry, 1, read), short_names);
    EXPECT_EQ(table(read).size(), size);
  };
  full(
      [](recording & read) -> auto& { return read.tags; }, 65'536, "\x01\x01t");
  full(
      [](recording & read) -> auto& { return read.pools; }, 65'536, "\x02\x01p");
  full(
      [](recording & read) -> auto& { return read.threads; }, 65'536, "\x04\x01");
}

}  // namespace
}  // namespace weir::testing_support
