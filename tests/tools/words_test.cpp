// SPDX-License-Identifier: Apache-2.0
// Words of the command line: ranges and corrections.
#include "words.hpp"

#include <gtest/gtest.h>

namespace weir::command { namespace {

TEST(words, ranges_are_said_in_words) {
  EXPECT_EQ(between(1, 8)("1"), "");
  EXPECT_EQ(between(1, 8)("8"), "");
  EXPECT_EQ(between(1, 8)("0"), "0 is no number from 1 to 8");
  EXPECT_EQ(between(1, 8)("9"), "9 is no number from 1 to 8");
  EXPECT_EQ(between(0.5, 2.0)("x"), "x is no number from 0.5 to 2");
  EXPECT_EQ(at_least(1)("1"), "");
  EXPECT_EQ(at_least(1)("0"), "0 is no number of 1 or more");
  EXPECT_EQ(at_least(0.0)("-5"), "-5 is no number of 0 or more");
}

TEST(words, whole_numbers_do_not_wrap) {
  EXPECT_EQ(whole_number()("0"), "");
  EXPECT_EQ(whole_number()("18446744073709551615"), "");
  for (const char* const text : {"-1", "", "1.5", "+1", "0x1", " 1", "18446744073709551616"})
    EXPECT_EQ(whole_number()(text), std::string{"expected a whole number from 0, got "} + text);
}

class correction_test : public testing::Test {
 protected:
  correction_test() {
    application_.add_flag("--version");
    auto* const replay = application_.add_subcommand("replay");
    replay->add_flag("--policy");
    replay->add_flag("-f,--fit");
    application_.add_subcommand("top");
  }
  [[nodiscard]] std::string correct(std::vector<const char*> words) const {
    words.insert(words.begin(), "weir");
    return correction(application_, static_cast<int>(words.size()), words.data());
  }

  CLI::App application_{"", "weir"};
};

TEST_F(correction_test, names_the_nearest_that_is_near) {
  EXPECT_EQ(correct({"repaly"}), "\"repaly\" is no command; did you mean \"replay\"?");
  EXPECT_EQ(correct({"xyzzy"}), "\"xyzzy\" is no command");
  EXPECT_EQ(correct({"reblxy"}), "\"reblxy\" is no command; did you mean \"replay\"?");
  EXPECT_EQ(correct({"rexxxx"}), "\"rexxxx\" is no command") << "more than half would change";
  EXPECT_EQ(correct({"--versoin", "top"}),
            "\"--versoin\" is no option; did you mean \"--version\"?");
  EXPECT_EQ(correct({"replay", "trace", "--polcy=all"}),
            "\"--polcy\" is no option; did you mean \"--policy\"?");
}

TEST_F(correction_test, has_nothing_to_suggest_where_nothing_is_known) {
  const CLI::App nothing{"", "weir"};
  const char* const said[] = {"weir", "replay"};
  EXPECT_EQ(correction(nothing, 2, said), "\"replay\" is no command");
}

TEST_F(correction_test, finds_nothing_wrong_with_words_that_are_known) {
  EXPECT_EQ(correct({}), "");
  EXPECT_EQ(correct({"replay", "top", "any", "-x", "--policy=y", "--fit"}), "");
  EXPECT_EQ(correct({"replay", "--", "--polcy"}), "");
  EXPECT_EQ(correct({"-x", "top"}), "");
}

}  // namespace
}  // namespace weir::command
