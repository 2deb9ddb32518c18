// SPDX-License-Identifier: Apache-2.0
// result<T>: a value or an error, for calls that do not throw.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include "weir/base/error.hpp"

namespace weir { inline namespace v0 {

/// Either a T or the error that prevented it. Test it before use; value() throws what the error
/// stands for, so `f().value()` is the throwing form of any result-returning call.
template <class T>
class [[nodiscard]] result {
  static_assert(!std::is_reference_v<T> && !std::is_same_v<std::remove_cv_t<T>, weir::error>);

 public:
  using value_type = T;

  result(T value) : state_{std::in_place_index<0>, std::move(value)} {}
  result(weir::error reason) : state_{std::in_place_index<1>, std::move(reason)} {}
  result(errc code) : result{weir::error{.code = code}} {}

  [[nodiscard]] bool has_value() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }

  [[nodiscard]] T& value() & {
    if (!has_value()) raise(error());
    return **this;
  }
  [[nodiscard]] const T& value() const& {
    if (!has_value()) raise(error());
    return **this;
  }
  [[nodiscard]] T value() && {
    if (!has_value()) raise(error());
    return *std::move(*this);
  }
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
  [[nodiscard]] errc code() const noexcept { return error().code; }

 private:
  // std::get would check once more, and throw.
  template <std::size_t Index, class State>
  static auto& held(State& state) noexcept {
    auto* const alternative = std::get_if<Index>(&state);
    if (alternative == nullptr) __builtin_unreachable();
    return *alternative;
  }

  std::variant<T, weir::error> state_;
};

/// Success without a value, or an error.
template <>
class [[nodiscard]] result<void> {
 public:
  using value_type = void;

  result() = default;
  result(weir::error reason) : reason_{std::move(reason)} {}
  result(errc code) : result{weir::error{.code = code}} {}

  [[nodiscard]] bool has_value() const noexcept { return !reason_; }
  explicit operator bool() const noexcept { return has_value(); }
  void value() const {
    if (reason_) raise(*reason_);
  }
  /// Unchecked: has_value() must be false.
  [[nodiscard]] const weir::error& error() const& noexcept { return *reason_; }
  [[nodiscard]] weir::error&& error() && noexcept { return *std::move(reason_); }
  [[nodiscard]] errc code() const noexcept { return reason_->code; }

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
#define WEIR_TRY_VALUE_AS_(holder, variable, expression) \
  auto holder = (expression);                            \
  if (!holder) return std::move(holder).error();         \
  auto& variable = *holder
