// SPDX-License-Identifier: Apache-2.0
// Tags: names for the purpose of memory, with their own counters, limits and reports.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "weir/base/export.hpp"
#include "weir/base/print.hpp"
#include "weir/base/result.hpp"

namespace weir { inline namespace v0 {

/// A name such as "weights" or "kv cache", known by a small number.
///
/// Two tags of the same name are equal. The number of a name stays the same while the process
/// lives; the tag without a name is 0. As cheap to copy as the number. Any thread.
class WEIR_API tag {
 public:
  /// At most this many names in a process; they are meant for subsystems, not for objects.
  static constexpr std::uint16_t most = 1024;

  constexpr tag() noexcept = default;
  /// The tag of that name, created by its first use. invalid_argument: the name is empty or longer
  /// than 255 bytes; limit_exceeded: the process has `most` names already; no_host_memory.
  [[nodiscard]] static result<tag> named(std::string_view name);
  /// The tag with that number, as in events and snapshots. not_found: no tag has it.
  [[nodiscard]] static result<tag> numbered(std::uint16_t number);

  /// The small number that stands for the name in events and snapshots.
  [[nodiscard]] constexpr std::uint16_t number() const noexcept { return number_; }
  /// Valid until the process ends. Empty for the tag without a name.
  [[nodiscard]] std::string_view name() const noexcept;

  friend constexpr auto operator<=>(tag, tag) noexcept = default;

 private:
  explicit constexpr tag(std::uint16_t number) noexcept : number_{number} {}

  std::uint16_t number_ = 0;
};

/// The tag's name; "(no tag)" for the tag without one.
[[nodiscard]] WEIR_API std::string to_string(tag value);

/// The tag of this thread's allocations: that of its innermost tag_scope.
[[nodiscard]] WEIR_API tag current_tag() noexcept;

/// Gives the allocations of this thread a tag until the end of the scope. Scopes nest. Costs one
/// store at each end. Must end on the thread and in the block that created it.
class WEIR_API tag_scope {
 public:
  /// Allocations of this thread get this tag from here on.
  [[nodiscard]] explicit tag_scope(tag value) noexcept;
  ~tag_scope();
  tag_scope(const tag_scope&) = delete;
  tag_scope& operator=(const tag_scope&) = delete;

 private:
  tag before_;
};

}}  // namespace weir::v0
