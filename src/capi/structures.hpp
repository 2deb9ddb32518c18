// SPDX-License-Identifier: Apache-2.0
// Structures and texts between programs and libraries of different age.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "weir.h"
#include "weir/base/bytes.hpp"
#include "weir/base/result.hpp"
#include "weir/observe/stats.hpp"

namespace weir { inline namespace v0 { namespace capi {

template <std::size_t Size>
void copy_text(char (&into)[Size], std::string_view text) noexcept {
  const std::size_t length = std::min(text.size(), Size - 1);
  std::memcpy(into, text.data(), length);
  into[length] = '\0';
}

/// Writes a text to a caller's buffer of `capacity` bytes.
[[nodiscard]] inline result<void> hand_out_text(std::string_view text, char* into,
                                                std::uint64_t capacity, std::uint64_t* length) {
  if (into == nullptr && capacity != 0)
    return error{{.code = errc::invalid_argument, .detail = "text is null"}};
  if (capacity != 0) {
    const std::size_t copied = std::min<std::size_t>(text.size(), capacity - 1);
    std::memcpy(into, text.data(), copied);
    into[copied] = '\0';
  }
  if (length != nullptr) *length = text.size();
  return {};
}

/// A size for a caller that may not care.
[[nodiscard]] inline result<void> write_size(const result<bytes>& size, std::uint64_t* into) {
  if (!size) return size.error();
  if (into != nullptr) *into = size->count();
  return {};
}

/// No structure of any version is larger. A larger struct_size was never set by the program.
inline constexpr std::size_t most_struct_size = 65536;

[[nodiscard]] inline bool is_struct_size(std::size_t size, std::size_t first) noexcept {
  return size >= first && size <= most_struct_size;
}

[[nodiscard]] inline error wrong_size(std::size_t size, std::size_t first) {
  return {{.code = errc::bad_version,
           .detail = "struct_size must be from " + std::to_string(first) + " to " +
                     std::to_string(most_struct_size) + ", got " + std::to_string(size)}};
}

/// Writes `known` over a structure of `size` bytes, which may be newer (longer) than ours: what
/// this library does not know is zero, and struct_size says what it does know.
template <class Info>
void write_over(Info known, void* into, std::size_t size) noexcept {
  known.struct_size = sizeof(Info);
  auto* const to = static_cast<std::byte*>(into);
  std::memcpy(to, &known, sizeof(Info));
  std::memset(to + sizeof(Info), 0, size - sizeof(Info));
}

template <class Info>
[[nodiscard]] result<void> check_size(const Info* into, const char* parameter = "info") {
  if (into == nullptr)
    return error{{.code = errc::invalid_argument, .detail = std::string{parameter} + " is null"}};
  if (!is_struct_size(into->struct_size, sizeof(Info)))
    return wrong_size(into->struct_size, sizeof(Info));
  return {};
}

/// Hands `known` to a caller whose structure may be of another age than ours.
template <class Info>
[[nodiscard]] result<void> hand_out(const Info& known, Info* into) {
  WEIR_TRY(check_size(into));
  write_over(known, into, into->struct_size);
  return {};
}

/// bad_version: a structure of `size` bytes has something to say behind its first `known` ones.
[[nodiscard]] inline result<void> check_unknown_members(const void* from, std::size_t known,
                                                        std::size_t size) {
  const auto* const rest = static_cast<const std::byte*>(from) + known;
  if (std::all_of(rest, rest + (size - known), [](std::byte b) { return b == std::byte{}; }))
    return {};
  return error{{.code = errc::bad_version,
                .detail = "the structure is larger than this version of weir knows, and its "
                          "further members are not zero; use a newer weir"}};
}

/// Takes a structure from a caller; null is `initial`. bad_version: too short, or it has something
/// to say that this library does not understand.
template <class Info>
[[nodiscard]] result<Info> take_in(const Info* from, const Info& initial) {
  if (from == nullptr) return initial;
  const std::size_t size = from->struct_size;
  if (!is_struct_size(size, sizeof(Info))) return wrong_size(size, sizeof(Info));
  WEIR_TRY(check_unknown_members(from, sizeof(Info), size));
  Info known;
  std::memcpy(&known, from, sizeof(Info));
  return known;
}

/// An array of the caller's, whose elements are as far apart as the first one's struct_size says.
template <class Info>
class array_argument {
 public:
  [[nodiscard]] static result<array_argument> of(Info* first, std::uint64_t capacity) {
    if (capacity == 0) return array_argument{nullptr, 0};
    WEIR_TRY(check_size(first, "the array"));
    return array_argument{reinterpret_cast<std::byte*>(first), first->struct_size};
  }
  void write(std::uint64_t index, const Info& known) noexcept {
    write_over(known, first_ + index * stride_, stride_);
  }

 private:
  array_argument(std::byte* first, std::size_t stride) noexcept : first_{first}, stride_{stride} {}

  std::byte* first_;
  std::size_t stride_;
};

[[nodiscard]] inline weir_gauge to_c(const gauge& from) noexcept {
  return {.current = from.current, .peak = from.peak};
}
[[nodiscard]] inline weir_gauge to_c(const byte_gauge& from) noexcept {
  return {.current = from.current.count(), .peak = from.peak.count()};
}
[[nodiscard]] weir_memory_stats to_c(const memory_stats& from) noexcept;

}}}  // namespace weir::v0::capi
