// SPDX-License-Identifier: Apache-2.0
// Tags: one number a name, numbers without gaps, and what is refused.
#include "weir/observe/tag.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <thread>

namespace weir { namespace {

TEST(tag, has_one_number_a_name) {
  const tag first = tag::named("tag test one").value();
  const tag second = tag::named("tag test two").value();
  EXPECT_NE(first.number(), 0);
  EXPECT_EQ(second.number(), first.number() + 1);
  EXPECT_EQ(tag::named("tag test one").value(), first);
  EXPECT_EQ(tag::named("tag test two").value(), second);
  EXPECT_EQ(first.name(), "tag test one");
  EXPECT_EQ(second.name(), "tag test two");
  EXPECT_LT(first, second);
}

TEST(tag, is_found_by_its_number) {
  static int round = 0;  // a name that no earlier round of the test has made
  const std::string name = "tag test newest " + std::to_string(round++);
  const tag newest = tag::named(name).value();
  for (std::uint16_t number = 1; number <= newest.number(); ++number) {
    const tag known = tag::numbered(number).value();
    EXPECT_EQ(known.number(), number);
    EXPECT_FALSE(known.name().empty()) << number;
    EXPECT_EQ(tag::named(known.name()).value(), known) << known.name();
  }
  EXPECT_EQ(tag::numbered(newest.number()).value().name(), name);
  for (const int number : {newest.number() + 1, newest.number() + 2, 0xffff}) {
    const auto unknown = tag::numbered(static_cast<std::uint16_t>(number));
    ASSERT_FALSE(unknown) << number;
    EXPECT_EQ(unknown.error(), error{{.code = errc::not_found}}) << number;
  }
}

TEST(tag, without_a_name_is_number_zero) {
  EXPECT_EQ(tag{}.number(), 0);
  EXPECT_EQ(tag{}.name(), "");
  EXPECT_EQ(tag::numbered(0).value(), tag{});
}

TEST(tag, takes_names_of_1_to_255_bytes) {
  EXPECT_EQ(tag::named("x").value().name(), "x");
  const std::string longest(255, 'x');
  EXPECT_EQ(tag::named(longest).value().name(), longest);
  for (const std::string& name : {std::string{}, std::string(256, 'x')}) {
    const auto refused = tag::named(name);
    ASSERT_FALSE(refused) << name.size();
    EXPECT_EQ(refused.error(),
              (error{{.code = errc::invalid_argument, .detail = "name must have 1 to 255 bytes"}}));
  }
}

// What is wrong with the last tags that there can be; "" if nothing is.
std::string wrong_at_the_limit() {
  for (int i = 0;; ++i) {
    const auto made = tag::named("tag test " + std::to_string(i));
    if (made && made->number() == tag::most) break;
    if (!made || made->number() > tag::most) return "not as many tags as there may be";
  }
  const tag last = tag::numbered(tag::most).value();
  if (tag::named(last.name()).value() != last) return "the last tag is not found by name";
  if (tag::numbered(tag::most + 1)) return "there is a tag beyond the last";
  const auto refused = tag::named("tag test one too many");
  if (refused) return "one tag too many";
  if (refused.error() !=
      error{{.code = errc::limit_exceeded, .detail = "a process can have 1024 tags; reuse one"}})
    return "another error: " + refused.error().message();
  return "";
}

// Names last as long as their process: a child of its own is filled with them.
TEST(tag, is_refused_when_there_are_as_many_as_may_be) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const std::string wrong = wrong_at_the_limit();
    if (!wrong.empty()) std::fprintf(stderr, "%s\n", wrong.c_str());
    ::_exit(wrong.empty() ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(tag_scope, nests_and_is_the_threads_own) {
  const tag outer = tag::named("tag test outer").value();
  const tag inner = tag::named("tag test inner").value();
  EXPECT_EQ(current_tag(), tag{});
  {
    const tag_scope around{outer};
    EXPECT_EQ(current_tag(), outer);
    {
      const tag_scope within{inner};
      EXPECT_EQ(current_tag(), inner);
      tag elsewhere = inner;
      std::thread{[&] { elsewhere = current_tag(); }}.join();
      EXPECT_EQ(elsewhere, tag{});
    }
    EXPECT_EQ(current_tag(), outer);
  }
  EXPECT_EQ(current_tag(), tag{});
}

}  // namespace
}  // namespace weir
