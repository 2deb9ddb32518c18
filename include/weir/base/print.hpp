// SPDX-License-Identifier: Apache-2.0
// Writes every value of weir that has a text, to_string(value), to a stream and, where the standard
// library has std::format, through that: std::cout << allocator.stats(), std::format("{}", size).
#pragma once

#include <concepts>
#include <ostream>
#include <string>
#include <version>
#if defined(__cpp_lib_format)
#include <format>
#endif

namespace weir { inline namespace v0 {

/// A type whose to_string() is found beside it.
template <class T>
concept printable = requires(const T& value) {
  { to_string(value) } -> std::same_as<std::string>;
};

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
