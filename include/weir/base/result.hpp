// SPDX-License-Identifier: Apache-2.0
// result<T>: a value or an error, for calls that do not throw.
#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include "weir/base/error.hpp"

namespace weir { inline namespace v0 {

template <class T>
class result;

namespace detail {

template <class Type>
inline constexpr bool is_result = false;
template <class T>
inline constexpr bool is_result<result<T>> = true;

}  // namespace detail

/// Either a T or the error that prevented it, with the interface of std::expected<T, error>. Test
/// it before use. value() throws if there is an error, so `f().value()` is the throwing form of any
/// call that returns a result.
template <class T>
class [[nodiscard]] result {
  static_assert(!std::is_reference_v<T> && !std::is_same_v<std::remove_cv_t<T>, weir::error>);

 public:
  /// The type of the value.
  using value_type = T;
  /// The type of the error.
  using error_type = weir::error;

  /// Success with this value.
  result(T value) : state_{std::in_place_index<0>, std::move(value)} {}
  /// Failure with this error.
  result(weir::error reason) : state_{std::in_place_index<1>, std::move(reason)} {}
  /// Failure with an error that has only a code.
  result(errc code) : result{weir::error{code}} {}

  /// Whether it holds a value.
  [[nodiscard]] bool has_value() const noexcept { return state_.index() == 0; }
  /// The same as has_value().
  explicit operator bool() const noexcept { return has_value(); }

  /// The value. Throws out_of_memory or failure if there is an error; see raise().
  [[nodiscard]] T& value() & {
    if (!has_value()) raise(error());
    return **this;
  }
  /// The value, or an exception for the error.
  [[nodiscard]] const T& value() const& {
    if (!has_value()) raise(error());
    return **this;
  }
  /// The value, moved out, or an exception for the error.
  [[nodiscard]] T value() && {
    if (!has_value()) raise(error());
    return *std::move(*this);
  }
  /// The value, or `other` if there is an error.
  [[nodiscard]] T value_or(T other) const& { return has_value() ? **this : std::move(other); }
  /// The value, moved out, or `other` if there is an error.
  [[nodiscard]] T value_or(T other) && {
    return has_value() ? *std::move(*this) : std::move(other);
  }

  /// Unchecked: has_value() must be true.
  T& operator*() & noexcept { return held<0>(state_); }
  const T& operator*() const& noexcept { return held<0>(state_); }
  T&& operator*() && noexcept { return std::move(held<0>(state_)); }
  T* operator->() noexcept { return std::addressof(held<0>(state_)); }
  const T* operator->() const noexcept { return std::addressof(held<0>(state_)); }

  /// Unchecked: has_value() must be false.
  [[nodiscard]] const weir::error& error() const& noexcept { return held<1>(state_); }
  [[nodiscard]] weir::error&& error() && noexcept { return std::move(held<1>(state_)); }
  /// The error's code; only meaningful without a value.
  [[nodiscard]] errc code() const noexcept { return error().code(); }
  /// The error, or `other` if there is a value.
  [[nodiscard]] weir::error error_or(weir::error other) const {
    return has_value() ? std::move(other) : error();
  }

  /// `next(value)`, which returns a result, or this error.
  template <class Next>
  auto and_then(Next&& next) const& {
    using returned = std::remove_cvref_t<std::invoke_result_t<Next, const T&>>;
    static_assert(detail::is_result<returned>);
    return has_value() ? std::invoke(std::forward<Next>(next), **this) : returned{error()};
  }
  template <class Next>
  auto and_then(Next&& next) && {
    using returned = std::remove_cvref_t<std::invoke_result_t<Next, T>>;
    static_assert(detail::is_result<returned>);
    return has_value() ? std::invoke(std::forward<Next>(next), *std::move(*this))
                       : returned{std::move(*this).error()};
  }
  /// A result of `change(value)`, or this error.
  template <class Change>
  auto transform(Change&& change) const& {
    using returned = result<std::remove_cv_t<std::invoke_result_t<Change, const T&>>>;
    if (!has_value()) return returned{error()};
    return result_of<returned>([&] { return std::invoke(std::forward<Change>(change), **this); });
  }
  template <class Change>
  auto transform(Change&& change) && {
    using returned = result<std::remove_cv_t<std::invoke_result_t<Change, T>>>;
    if (!has_value()) return returned{std::move(*this).error()};
    return result_of<returned>(
        [&] { return std::invoke(std::forward<Change>(change), *std::move(*this)); });
  }
  /// This value, or `other(error)`, which returns a result<T>.
  template <class Other>
  result or_else(Other&& other) const& {
    return has_value() ? *this : result{std::invoke(std::forward<Other>(other), error())};
  }
  template <class Other>
  result or_else(Other&& other) && {
    return has_value() ? std::move(*this)
                       : result{std::invoke(std::forward<Other>(other), std::move(*this).error())};
  }
  /// This value, or the error `change(error)`.
  template <class Change>
  result transform_error(Change&& change) const& {
    return has_value() ? *this : result{std::invoke(std::forward<Change>(change), error())};
  }

  friend bool operator==(const result& a, const result& b) requires std::equality_comparable<T> {
    return a.has_value() == b.has_value() && (a.has_value() ? *a == *b : a.error() == b.error());
  }

 private:
  // std::get would check once more, and throw.
  template <std::size_t Index, class State>
  static auto& held(State& state) noexcept {
    auto* const alternative = std::get_if<Index>(&state);
    if (alternative == nullptr) __builtin_unreachable();
    return *alternative;
  }
  template <class Returned, class Call>
  static Returned result_of(Call&& call) {
    if constexpr (std::is_void_v<typename Returned::value_type>) {
      call();
      return {};
    } else {
      return Returned{call()};
    }
  }

  std::variant<T, weir::error> state_;
};

/// Success without a value, or an error.
template <>
class [[nodiscard]] result<void> {
 public:
  /// There is no value.
  using value_type = void;
  /// The type of the error.
  using error_type = weir::error;

  /// Success.
  result() = default;
  /// Failure with this error.
  result(weir::error reason) : reason_{std::move(reason)} {}
  /// Failure with an error that has only a code.
  result(errc code) : result{weir::error{code}} {}

  /// Whether it is a success.
  [[nodiscard]] bool has_value() const noexcept { return !reason_; }
  /// The same as has_value().
  explicit operator bool() const noexcept { return has_value(); }
  /// Throws out_of_memory or failure if there is an error; see raise().
  void value() const {
    if (reason_) raise(*reason_);
  }
  /// Does nothing; for generic code.
  void operator*() const noexcept {}
  /// Unchecked: has_value() must be false.
  [[nodiscard]] const weir::error& error() const& noexcept { return *reason_; }
  [[nodiscard]] weir::error&& error() && noexcept { return *std::move(reason_); }
  /// The error's code. Unchecked: has_value() must be false.
  [[nodiscard]] errc code() const noexcept { return reason_->code(); }
  /// The error, or `other` if it is a success.
  [[nodiscard]] weir::error error_or(weir::error other) const {
    return has_value() ? std::move(other) : error();
  }

  /// As those of result<T>, with calls that take no value.
  template <class Next>
  auto and_then(Next&& next) const {
    using returned = std::remove_cvref_t<std::invoke_result_t<Next>>;
    static_assert(detail::is_result<returned>);
    return has_value() ? std::invoke(std::forward<Next>(next)) : returned{error()};
  }
  template <class Change>
  auto transform(Change&& change) const {
    using changed = std::remove_cv_t<std::invoke_result_t<Change>>;
    if (!has_value()) return result<changed>{error()};
    if constexpr (std::is_void_v<changed>) {
      std::invoke(std::forward<Change>(change));
      return result<changed>{};
    } else {
      return result<changed>{std::invoke(std::forward<Change>(change))};
    }
  }
  template <class Other>
  result or_else(Other&& other) const {
    return has_value() ? *this : result{std::invoke(std::forward<Other>(other), error())};
  }
  template <class Change>
  result transform_error(Change&& change) const {
    return has_value() ? *this : result{std::invoke(std::forward<Change>(change), error())};
  }

  friend bool operator==(const result& a, const result& b) noexcept {
    return a.reason_ == b.reason_;
  }

 private:
  std::optional<weir::error> reason_;  // no error is made where there is none: a free returns this
};

}}  // namespace weir::v0

/// Returns early with the error of `expression`, if it failed. For functions that return a result.
#define WEIR_TRY(expression)                                                            \
  do {                                                                                  \
    if (auto weir_try_ = (expression); !weir_try_) return std::move(weir_try_).error(); \
  } while (false)

/// Declares `variable` with the value of `expression`, or returns early with its error.
#define WEIR_TRY_VALUE(variable, expression) \
  WEIR_TRY_VALUE_AS_(weir_try_##variable##_, variable, expression)
/// Part of WEIR_TRY_VALUE.
#define WEIR_TRY_VALUE_AS_(holder, variable, expression) \
  auto holder = (expression);                            \
  if (!holder) return std::move(holder).error();         \
  auto& variable = *holder
