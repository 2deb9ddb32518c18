// SPDX-License-Identifier: Apache-2.0
// operator<< and, if the standard library has it, std::format for every value of weir that has a
// to_string(): std::cout << allocator.stats(), std::format("{}", size).
#pragma once

#include <concepts>
#include <ostream>
#include <string>
#include <string_view>
#include <version>
#if defined(__cpp_lib_format)
#include <format>
#endif

namespace weir { inline namespace v0 {

namespace detail {
/// Whether T is declared in namespace weir or in a namespace inside it. Other types are not printed
/// by weir, even if they have a to_string() or a type of weir as an argument.
template <class T>
consteval bool is_of_weir() {
  const std::string_view signature = __PRETTY_FUNCTION__;  // "… [with T = weir::v0::bytes]"
  return signature.substr(signature.find("T = ") + 4).starts_with("weir::");
}
}  // namespace detail

/// A type of weir with a to_string() in its own namespace.
template <class T>
concept printable = detail::is_of_weir<T>() && requires(const T& value) {
  { to_string(value) } -> std::same_as<std::string>;
};

/// Writes to_string(value).
template <printable T>
std::ostream& operator<<(std::ostream& out, const T& value) {
  return out << to_string(value);
}

}}  // namespace weir::v0

#if defined(__cpp_lib_format)
template <weir::printable T>
struct std::formatter<T> : std::formatter<std::string> {
  auto format(const T& value, std::format_context& context) const {
    return std::formatter<std::string>::format(to_string(value), context);
  }
};
#endif
