// SPDX-License-Identifier: Apache-2.0
// Text of files and of other processes, as terminals get it.
#include "printable.hpp"

#include <gtest/gtest.h>

namespace weir::command { namespace {

TEST(printable_text, has_no_control_characters) {
  EXPECT_EQ("?]0;title??[2J", printable("\033]0;title\a\033[2J"));
  EXPECT_EQ("a?b?c?", printable("a\nb\rc\x7f"));
  EXPECT_EQ("?31m", printable("\xc2\x9b"
                              "31m"));  // CSI in one character
  EXPECT_EQ("a\nb?", printable_lines("a\nb\033"));
  EXPECT_EQ("", printable_lines(""));
}

/// A terminal in eight-bit mode takes them as C1 control characters.
TEST(printable_text, has_no_control_characters_in_single_bytes) {
  EXPECT_EQ("?31m", printable("\x9b"
                              "31m"));
  EXPECT_EQ("a??\xa0", printable("a\x80\x9f\xa0"));
  EXPECT_EQ("\xe6\xa8?", printable("\xe6\xa8\x1b"));
  EXPECT_EQ("\xe6?", printable("\xe6\x9b")) << "half a letter";
}

TEST(printable_text, is_shown_in_its_order) {
  EXPECT_EQ("gpj?exe", printable("gpj\xe2\x80\xae"
                                 "exe"));
  EXPECT_EQ("???", printable("\xe2\x80\xaa\xe2\x81\xa6\xe2\x81\xa9"));
  EXPECT_EQ("\xe2\x80\xa9\xe2\x80\xaf\xe2\x81\xa5\xe2\x81\xaa",
            printable("\xe2\x80\xa9\xe2\x80\xaf\xe2\x81\xa5\xe2\x81\xaa"));
}

TEST(printable_text, keeps_what_people_write) {
  EXPECT_EQ("Größe = 2 µs, 模型", printable("Größe = 2 µs, 模型"));
  EXPECT_EQ("\xc2", printable("\xc2"));
}

}  // namespace
}  // namespace weir::command
