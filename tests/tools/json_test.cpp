// SPDX-License-Identifier: Apache-2.0
// The JSON of the command: order of members, numbers, and bytes that are no text.
#include "json.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace {

using weir::command::json;
using weir::command::json_text;

/// `text` as it comes back from the JSON that is written of it.
std::string read_back(std::string_view text) {
  return json::parse(json_text(text)).get<std::string>();
}

TEST(json, members_stay_in_the_order_in_which_they_were_added) {
  json value{{"name", "weir"}, {"count", 2}, {"good", true}, {"nothing", nullptr}};
  value["list"] = json::array({1, 2});
  value["empty"] = json::array();
  EXPECT_EQ(json_text(value),
            "{\n"
            "  \"name\": \"weir\",\n"
            "  \"count\": 2,\n"
            "  \"good\": true,\n"
            "  \"nothing\": null,\n"
            "  \"list\": [\n"
            "    1,\n"
            "    2\n"
            "  ],\n"
            "  \"empty\": []\n"
            "}\n");
}

TEST(json, numbers_keep_every_digit) {
  EXPECT_EQ(json_text(std::numeric_limits<std::uint64_t>::max()), "18446744073709551615\n");
  EXPECT_EQ(json_text(std::numeric_limits<std::int64_t>::min()), "-9223372036854775808\n");
  EXPECT_EQ(json_text(0.1), "0.1\n");
  EXPECT_EQ(json_text(std::numeric_limits<double>::infinity()), "null\n");
}

TEST(json, text_comes_back_as_it_was) {
  for (const std::string_view text :
       {std::string_view{""}, std::string_view{"a\"b\\c\n\r\t"},
        std::string_view{"\0\x01\x1f\x7f", 4}, std::string_view{"\xc3\xbc\xe2\x82\xac"},
        std::string_view{"\xf0\x9f\x98\x80"}}) {
    EXPECT_EQ(read_back(text), text);
  }
  EXPECT_EQ(json_text("\xc3\xbc \x7f\n"), "\"\xc3\xbc \x7f\\n\"\n") << "and can be read as it is";
}

TEST(json, bytes_that_are_no_text_are_replaced) {
  const std::string replacement = "\xef\xbf\xbd";
  EXPECT_EQ(read_back("a\x80z"), "a" + replacement + "z");  // a continuation on its own
  EXPECT_EQ(read_back("\xc3"), replacement);                // cut off at the end
  EXPECT_EQ(read_back("\xff"), replacement);
  // An overlong form and a surrogate: whatever is read, it is text.
  EXPECT_FALSE(read_back("\xc0\xaf").empty());
  EXPECT_FALSE(read_back("\xed\xa0\x80").empty());
}

}  // namespace
