// SPDX-License-Identifier: Apache-2.0
// Words of the command line: ranges and corrections.
#include "words.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weir::command { namespace {

TEST(words, ranges_are_said_in_words) {
  EXPECT_EQ(between(1, 8)("1"), "");
  EXPECT_EQ(between(1, 8)("8"), "");
  EXPECT_EQ(between(1, 8)("0"), "expected a number from 1 to 8, got 0");
  EXPECT_EQ(between(1, 8)("9"), "expected a number from 1 to 8, got 9");
  EXPECT_EQ(between(0.5, 2.0)("x"), "expected a number from 0.5 to 2, got x");
  EXPECT_EQ(at_least(1)("1"), "");
  EXPECT_EQ(at_least(1)("0"), "expected a number of at least 1, got 0");
  EXPECT_EQ(at_least(0.0)("-5"), "expected a number of at least 0, got -5");
}

TEST(words, whole_numbers_do_not_wrap) {
  EXPECT_EQ(whole_number()("0"), "");
  EXPECT_EQ(whole_number()("18446744073709551615"), "");
  for (const char* const text : {"-1", "", "1.5", "+1", "0x1", " 1", "18446744073709551616"})
    EXPECT_EQ(whole_number()(text), std::string{"expected a whole number from 0, got "} + text);
}

TEST(words, one_of_several_words_is_accepted) {
  EXPECT_EQ(one_of({"table", "csv", "json"})("csv"), "");
  EXPECT_EQ(one_of({"table", "csv", "json"})("xml"), "expected table, csv or json, got xml");
  EXPECT_EQ(one_of({"table"})(""), "expected table, got an empty word");
}

TEST(words, sizes_need_a_unit) {
  const auto refusal = [](const std::string& text, bool zero = false) {
    const auto size = size_argument("--card", text, zero);
    return size ? to_string(*size) : size.error().detail();
  };
  EXPECT_EQ(refusal("12GiB"), "12 GiB");
  EXPECT_EQ(refusal("12 GB"), "11.18 GiB");
  EXPECT_EQ(refusal("0", true), "0 B");
  EXPECT_EQ(refusal("12"), "--card: expected a size with a unit, such as 24GiB or 24GB, got 12");
  EXPECT_EQ(refusal("0"),
            "--card: expected a size greater than zero, such as 24GiB or 24GB, got 0");
  EXPECT_EQ(refusal("much"), "--card: expected a size, such as 24GiB or 24GB, got much");
  EXPECT_EQ(refusal(""), "--card: expected a size, such as 24GiB or 24GB, got an empty word");
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
  EXPECT_EQ(correct({"repaly"}), "unknown command \"repaly\"; did you mean \"replay\"?");
  EXPECT_EQ(correct({"xyzzy"}), "unknown command \"xyzzy\"");
  EXPECT_EQ(correct({"reblxy"}), "unknown command \"reblxy\"; did you mean \"replay\"?");
  EXPECT_EQ(correct({"rexxxx"}), "unknown command \"rexxxx\"") << "more than half would change";
  EXPECT_EQ(correct({"--versoin", "top"}),
            "unknown option \"--versoin\"; did you mean \"--version\"?");
  EXPECT_EQ(correct({"replay", "trace", "--polcy=all"}),
            "unknown option \"--polcy\"; did you mean \"--policy\"?");
}

TEST_F(correction_test, has_nothing_to_suggest_where_nothing_is_known) {
  const CLI::App nothing{"", "weir"};
  const char* const said[] = {"weir", "replay"};
  EXPECT_EQ(correction(nothing, 2, said), "unknown command \"replay\"");
}

TEST_F(correction_test, finds_nothing_wrong_with_words_that_are_known) {
  EXPECT_EQ(correct({}), "");
  EXPECT_EQ(correct({"replay", "top", "any", "-x", "--policy=y", "--fit"}), "");
  EXPECT_EQ(correct({"replay", "--", "--polcy"}), "");
  EXPECT_EQ(correct({"-x", "top"}), "");
}

}  // namespace
}  // namespace weir::command
