// SPDX-License-Identifier: Apache-2.0
// The text of a struct: its members by name.
#pragma once

#include <concepts>
#include <string>
#include <string_view>
#include <utility>

#include "weir/base/print.hpp"

namespace weir { inline namespace v0 { namespace detail {

/// "name value, name value", over one or several lines.
class member_list {
 public:
  member_list& add(std::string_view member, std::string_view value) {
    if (!text_.empty()) text_ += text_.ends_with('\n') ? "" : ", ";
    text_.append(member).append(" ").append(value);
    return *this;
  }
  template <std::integral Number>
  member_list& add(std::string_view member, Number value) {
    return add(member, std::string_view{std::to_string(value)});
  }
  template <printable Value>
  member_list& add(std::string_view member, const Value& value) {
    return add(member, std::string_view{to_string(value)});
  }
  /// The next member begins a line.
  member_list& next_line() {
    text_ += '\n';
    return *this;
  }

  [[nodiscard]] std::string text() && { return std::move(text_); }

 private:
  std::string text_;
};

}}}  // namespace weir::v0::detail
