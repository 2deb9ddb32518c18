// SPDX-License-Identifier: Apache-2.0
// An adaptor that counts: how much is allocated now, at most, and in total.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "weir/base/export.hpp"
#include "weir/resource/resource.hpp"

namespace weir { inline namespace v0 {

/// A number of bytes or of allocations that goes up and down.
template <class Amount>
struct running_count {
  std::int64_t current = 0;  ///< signed: within a section more may be freed than is allocated in it
  Amount peak{};             ///< the most that current was, at least 0
  Amount total{};            ///< all that was ever added

  friend bool operator==(const running_count&, const running_count&) = default;
};

/// Of successful allocations, in requested sizes; zero bytes count for nothing.
struct resource_stats {
  running_count<weir::bytes> bytes;
  running_count<std::uint64_t> allocations;

  friend bool operator==(const resource_stats&, const resource_stats&) = default;
};

/// "3 KiB in 2 allocations, at most 5 KiB in 3, in total 12 KiB in 9".
[[nodiscard]] WEIR_API std::string to_string(const resource_stats& stats);

/// Counts the allocations of another resource. Sections of a program can be counted apart: see
/// push().
///
/// Always: all numbers are of one moment. A shared handle, never empty; keeps the upstream alive.
/// Any thread. Costs two short locks. Bad input: as said in resources.hpp.
class WEIR_API statistics_resource {
 public:
  /// invalid_argument: the upstream is empty.
  [[nodiscard]] static result<statistics_resource> create(any_resource upstream);
  statistics_resource(const statistics_resource&) = default;
  statistics_resource& operator=(const statistics_resource&) = default;

  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = default_alignment) const;
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream) const;
  result<void> record_stream(void* pointer, const stream_ref& stream) const;

  /// Of the section that is being counted: since the latest push() that was not popped.
  [[nodiscard]] resource_stats stats() const;
  /// The section's peaks become the current numbers, at least 0.
  void reset_peaks() const;
  /// The section's totals become zero.
  void reset_counters() const;
  /// Begins a section with all counters at zero; returns those of the enclosing section. Sections
  /// are the resource's, not the thread's.
  resource_stats push() const;
  /// Ends the section, adds its counters to the enclosing one and returns them. invalid_argument:
  /// there was no push().
  result<resource_stats> pop() const;

  [[nodiscard]] any_resource upstream() const;
  [[nodiscard]] weir::device device() const;
  [[nodiscard]] memory_kind kind() const noexcept;
  /// Whether the handle means a resource.
  explicit operator bool() const noexcept { return state_ != nullptr; }
  friend bool operator==(const statistics_resource&, const statistics_resource&) noexcept = default;

 private:
  struct state;
  explicit statistics_resource(std::shared_ptr<state> shared) noexcept
      : state_{std::move(shared)} {}

  std::shared_ptr<state> state_;
};

static_assert(stream_resource<statistics_resource>);

}}  // namespace weir::v0
