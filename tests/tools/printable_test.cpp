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

TEST(printable_text, keeps_what_people_write) {
  EXPECT_EQ("Größe = 2 µs, 模型", printable("Größe = 2 µs, 模型"));
  EXPECT_EQ("\xc2", printable("\xc2"));
}

}  // namespace
}  // namespace weir::command
