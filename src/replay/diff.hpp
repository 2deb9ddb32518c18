// SPDX-License-Identifier: Apache-2.0
// Two recordings side by side: what their programs held at most, and what of it grew.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "weir/trace/trace.hpp"

namespace weir { inline namespace v0 { namespace replay {

/// Bytes and blocks of one kind.
struct holding {
  std::uint64_t bytes = 0;
  std::uint64_t blocks = 0;

  friend bool operator==(const holding&, const holding&) = default;
};

/// What a program held when it held the most: requested bytes, until it freed them.
struct peak_summary {
  holding live{};
  std::uint64_t time = 0;  ///< nanoseconds since the recording began
  std::map<std::string, holding> by_tag;
  std::map<std::string, holding> by_size;  ///< "1 MiB to 2 MiB"
  std::map<std::string, holding> by_site;  ///< of the allocation's stack: formats::site_frame()
  std::uint64_t allocations = 0;           ///< of the whole recording
  std::uint64_t allocated_bytes = 0;
  std::uint64_t reserved_peak = 0;  ///< as recorded; 0 if it is not
  std::uint64_t out_of_memory = 0;
};

[[nodiscard]] peak_summary summarize(const recording& recording);

/// The most physical memory that the recorded allocator had, by the recording's reserves and
/// releases; 0 if it has none.
[[nodiscard]] std::uint64_t recorded_reserved_peak(const recording& recording);

/// One figure of both, equal or not.
struct compared_figure {
  std::string_view title;  ///< "bytes at the peak"
  std::string_view key;    ///< "requested_peak"
  std::uint64_t before = 0;
  std::uint64_t after = 0;
  bool is_size = false;  ///< bytes, not a count
};

/// All figures of the two that are one number.
[[nodiscard]] std::vector<compared_figure> compare(const peak_summary& before,
                                                   const peak_summary& after);

/// One group in both; what is missing on a side is 0 there.
struct changed_group {
  std::string name;
  holding before{};
  holding after{};

  [[nodiscard]] std::int64_t growth() const noexcept {
    return static_cast<std::int64_t>(after.bytes - before.bytes);
  }
};

/// The groups that differ, those that grew most first.
[[nodiscard]] std::vector<changed_group> changes(const std::map<std::string, holding>& before,
                                                 const std::map<std::string, holding>& after);

}}}  // namespace weir::v0::replay
