// The JSON writer of the command: structure, escapes, and bytes that are no text.
#include "json.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace {

using weir::command::json_writer;

std::string quoted(std::string_view text) {
  json_writer out;
  std::string all = out.value(text).text();
  EXPECT_EQ(all.back(), '\n');
  all.pop_back();
  return all;
}

TEST(json, writes_objects_and_arrays_with_commas_between_members) {
  json_writer out;
  out.begin_object();
  out.member("name", "weir").member("count", 2).member("good", true).key("nothing").null();
  out.key("list").begin_array().value(1).value(2);
  out.begin_object().member("inner", false).end_object();
  out.end_array();
  out.end_object();
  EXPECT_EQ(out.text(),
            "{\n"
            "  \"name\": \"weir\",\n"
            "  \"count\": 2,\n"
            "  \"good\": true,\n"
            "  \"nothing\": null,\n"
            "  \"list\": [\n"
            "    1,\n"
            "    2,\n"
            "    {\n"
            "      \"inner\": false\n"
            "    }\n"
            "  ]\n"
            "}\n");
}

TEST(json, writes_empty_containers_on_one_line) {
  json_writer out;
  out.begin_object();
  out.key("a").begin_array().end_array();
  out.key("o").begin_object().end_object();
  out.end_object();
  EXPECT_EQ(out.text(), "{\n  \"a\": [],\n  \"o\": {}\n}\n");
}

TEST(json, writes_numbers_of_every_size) {
  json_writer out;
  out.begin_array();
  out.value(std::numeric_limits<std::uint64_t>::max());
  out.value(std::numeric_limits<std::int64_t>::min());
  out.end_array();
  EXPECT_EQ(out.text(), "[\n  18446744073709551615,\n  -9223372036854775808\n]\n");
}

TEST(json, takes_a_literal_for_text_and_not_for_a_truth) {
  json_writer out;
  EXPECT_EQ(out.value("yes").text(), "\"yes\"\n");
}

TEST(json, escapes_what_json_does_not_allow_in_a_string) {
  EXPECT_EQ(quoted("a\"b\\c"), R"("a\"b\\c")");
  EXPECT_EQ(quoted("\n\r\t"), R"("\n\r\t")");
  EXPECT_EQ(quoted(std::string_view{"\0\x01\x1f\x7f", 4}), R"("\u0000\u0001\u001f\u007f")");
  EXPECT_EQ(quoted(""), "\"\"");
}

TEST(json, escapes_keys_too) {
  json_writer out;
  out.begin_object().member("a\"b", 1).end_object();
  EXPECT_EQ(out.text(), "{\n  \"a\\\"b\": 1\n}\n");
}

TEST(json, keeps_characters_of_two_to_four_bytes) {
  for (const std::string_view text : {"\xc2\x80", "\xc3\xbc", "\xe2\x82\xac", "\xed\x9f\xbf",
                                      "\xee\x80\x80", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(quoted(text), "\"" + std::string{text} + "\"");
  }
}

TEST(json, replaces_each_byte_that_is_no_text) {
  const std::string bad = "\xef\xbf\xbd";
  EXPECT_EQ(quoted("a\x80z"), "\"a" + bad + "z\"");                  // a continuation on its own
  EXPECT_EQ(quoted("\xc3"), "\"" + bad + "\"");                      // cut off at the end
  EXPECT_EQ(quoted("\xc3z"), "\"" + bad + "z\"");                    // cut off before the next
  EXPECT_EQ(quoted("\xc0\xaf"), "\"" + bad + bad + "\"");            // overlong, two bytes
  EXPECT_EQ(quoted("\xe0\x80\xaf"), "\"" + bad + bad + bad + "\"");  // overlong, three
  EXPECT_EQ(quoted("\xed\xa0\x80"), "\"" + bad + bad + bad + "\"");  // a surrogate
  EXPECT_EQ(quoted("\xf4\x90\x80\x80"), "\"" + bad + bad + bad + bad + "\"");  // beyond the last
  EXPECT_EQ(quoted("\xff"), "\"" + bad + "\"");
}

}  // namespace
