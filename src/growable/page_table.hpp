// SPDX-License-Identifier: Apache-2.0
// The pages of a reservation and their states.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "weir/base/bytes.hpp"
#include "weir/base/result.hpp"
#include "weir/growable/growable_memory.hpp"

namespace weir { inline namespace v0 { namespace growable {

using page_number = std::uint32_t;

enum class page_state : std::uint8_t {
  empty,      ///< without memory
  changing,   ///< in a plan that is not committed
  ahead,      ///< with memory, ready to be committed
  committed,  ///< the caller's
  held,       ///< decommitted; a graph keeps its memory
  away,       ///< committed or held, and suspended
};

/// The state of every page, and how many pages are in each state.
///
/// Always true: the counts add up to count(); committed_end() is the number behind the last
/// committed page. Makes no driver call. Owned by a reservation, under its mutex. Changes do not
/// fail; the constructor may throw std::bad_alloc. Costs one byte and a counter for each page.
class page_table {
 public:
  explicit page_table(std::size_t count);

  [[nodiscard]] std::size_t count() const noexcept { return states_.size(); }
  [[nodiscard]] page_state operator[](page_number page) const noexcept { return states_[page]; }
  [[nodiscard]] std::uint64_t count_of(page_state state) const noexcept {
    return counts_[static_cast<std::size_t>(state)];
  }
  void set(page_number page, page_state state) noexcept;
  /// The number of the page behind the last committed one; 0: none is.
  [[nodiscard]] page_number committed_end() const noexcept { return committed_end_; }
  [[nodiscard]] std::uint64_t committed_peak() const noexcept { return committed_peak_; }

  /// How many graphs and holds keep the page.
  [[nodiscard]] std::uint32_t holds(page_number page) const noexcept { return holds_[page]; }
  void add_hold(page_number page) noexcept { ++holds_[page]; }
  void drop_hold(page_number page) noexcept { --holds_[page]; }

 private:
  std::vector<page_state> states_;
  std::vector<std::uint32_t> holds_;
  std::array<std::uint64_t, 6> counts_{};
  page_number committed_end_ = 0;
  std::uint64_t committed_peak_ = 0;
};

/// Which pages of a reservation byte ranges mean.
struct page_ranges {
  bytes page{};
  bytes size{};  // of what may be committed

  /// Every page that a range touches, each once, in ascending order. invalid_argument: a range goes
  /// beyond the size.
  [[nodiscard]] result<std::vector<page_number>> touched_by(
      std::span<const byte_range> ranges) const;
  /// Every page that lies in a range as a whole. What is beyond the size is left out.
  [[nodiscard]] std::vector<page_number> within(std::span<const byte_range> ranges,
                                                std::size_t pages) const;
};

}}}  // namespace weir::v0::growable
