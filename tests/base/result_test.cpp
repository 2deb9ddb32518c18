// SPDX-License-Identifier: Apache-2.0
// result<T>: a value or an error, never both, never neither.
#include "weir/base/result.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace weir { namespace {

result<int> half(int n) {
  if (n % 2 != 0) return error{{.code = errc::invalid_argument, .detail = std::to_string(n)}};
  return n / 2;
}

result<int> quarter(int n) {
  WEIR_TRY_VALUE(first, half(n));
  WEIR_TRY_VALUE(second, half(first));
  return second;
}

result<void> check_even(int n) {
  WEIR_TRY(half(n));
  return {};
}

TEST(result, holds_a_value) {
  const result<int> good = half(4);
  ASSERT_TRUE(good);
  EXPECT_TRUE(good.has_value());
  EXPECT_EQ(*good, 2);
  EXPECT_EQ(good.value(), 2);
}

TEST(result, holds_an_error) {
  const result<int> bad = half(3);
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.code(), errc::invalid_argument);
  EXPECT_EQ(bad.error().detail(), "3");
  EXPECT_EQ(half(3).value_or(7), 7);
  EXPECT_EQ(half(8).value_or(7), 4);
}

TEST(result, is_made_from_a_bare_code) {
  const result<std::string> bad = errc::not_found;
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error(), (error{{.code = errc::not_found}}));
  const result<void> nothing = errc::not_found;
  ASSERT_FALSE(nothing);
  EXPECT_EQ(nothing.code(), errc::not_found);
}

TEST(result, goes_on_with_its_value) {
  EXPECT_EQ(half(8).and_then(half), half(4));
  EXPECT_EQ(half(6).and_then(half).code(), errc::invalid_argument);
  EXPECT_EQ(half(5).and_then(half).error().detail(), "5");
  const result<int> good = half(8);
  EXPECT_EQ(good.and_then(half).value(), 2);
  EXPECT_EQ(good.transform([](int n) { return std::to_string(n); }), result<std::string>{"4"});
  EXPECT_EQ(half(5).transform([](int n) { return n + 1; }).error().detail(), "5");
  int seen = 0;
  EXPECT_TRUE(good.transform([&](int n) { seen = n; }));
  EXPECT_EQ(seen, 4);
  auto moved = result<std::unique_ptr<int>>{std::make_unique<int>(3)}.transform(
      [](std::unique_ptr<int> owned) { return *owned + 1; });
  EXPECT_EQ(moved.value(), 4);
}

TEST(result, goes_on_with_its_error) {
  const auto seven = [](const error& reason) -> result<int> {
    if (reason.code() == errc::invalid_argument) return 7;
    return reason;
  };
  EXPECT_EQ(half(3).or_else(seven).value(), 7);
  EXPECT_EQ(half(4).or_else(seven).value(), 2);
  EXPECT_EQ(result<int>{errc::closed}.or_else(seven).code(), errc::closed);
  const auto named = [](error reason) {
    reason.set_detail("half of " + reason.detail());
    return reason;
  };
  EXPECT_EQ(half(3).transform_error(named).error().detail(), "half of 3");
  EXPECT_EQ(half(3).error_or(error{errc::closed}).detail(), "3");
  EXPECT_EQ(half(4).error_or(error{errc::closed}).code(), errc::closed);
  const result<int> bad = half(3);
  EXPECT_EQ(bad.value_or(7), 7);
}

TEST(result, is_equal_where_both_have_the_same) {
  EXPECT_EQ(half(4), half(5 - 1));
  EXPECT_NE(half(4), half(6));
  EXPECT_NE(half(4), half(3));
  EXPECT_EQ(half(3), half(3));
  EXPECT_NE(half(3), half(5)) << "their details differ";
  EXPECT_EQ(check_even(4), result<void>{});
  EXPECT_NE(check_even(3), result<void>{});
  EXPECT_EQ(result<void>{errc::closed}, result<void>{errc::closed});
}

TEST(result, of_nothing_goes_on_too) {
  EXPECT_EQ(check_even(4).and_then([] { return half(2); }).value(), 1);
  EXPECT_EQ(check_even(3).and_then([] { return half(2); }).error().detail(), "3");
  EXPECT_EQ(check_even(4).transform([] { return 5; }).value(), 5);
  EXPECT_EQ(check_even(3).transform([] { return 5; }).error().detail(), "3");
  EXPECT_TRUE(check_even(3).or_else([](const error&) { return result<void>{}; }));
  EXPECT_EQ(check_even(3).error_or(error{errc::closed}).detail(), "3");
  EXPECT_EQ(check_even(4).error_or(error{errc::closed}).code(), errc::closed);
}

TEST(result, value_throws_the_error) {
  EXPECT_THROW(static_cast<void>(half(3).value()), failure);
  const result<int> full = errc::out_of_memory;
  EXPECT_THROW(static_cast<void>(full.value()), out_of_memory);
  const result<void> nothing = errc::out_of_memory;
  EXPECT_THROW(nothing.value(), std::bad_alloc);
  EXPECT_NO_THROW(result<void>{}.value());
}

TEST(result, moves_what_cannot_be_copied) {
  result<std::unique_ptr<int>> made = std::make_unique<int>(5);
  EXPECT_EQ(**made, 5);
  const std::unique_ptr<int> taken = std::move(made).value();
  EXPECT_EQ(*taken, 5);
  result<std::unique_ptr<int>> again = std::make_unique<int>(6);
  const std::unique_ptr<int> moved = *std::move(again);
  EXPECT_EQ(*moved, 6);
}

TEST(result, reaches_members) {
  result<std::string> text = std::string{"weir"};
  EXPECT_EQ(text->size(), 4u);
  text.value() += "!";
  EXPECT_EQ(*text, "weir!");
}

TEST(result, passes_errors_up) {
  EXPECT_EQ(*quarter(8), 2);
  EXPECT_EQ(quarter(6).error().detail(), "3");  // the inner failure, untouched
  EXPECT_EQ(quarter(5).error().detail(), "5");
  EXPECT_TRUE(check_even(2));
  EXPECT_EQ(check_even(9).error().detail(), "9");
}

}  // namespace
}  // namespace weir
