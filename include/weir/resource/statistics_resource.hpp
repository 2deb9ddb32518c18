// SPDX-License-Identifier: Apache-2.0
// statistics_resource: an adaptor that counts current, peak and total allocations.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "weir/base/export.hpp"
#include "weir/resource/resource.hpp"

namespace weir { inline namespace v0 {

/// A current amount with its peak and total.
template <class Amount>
struct running_count {
  std::int64_t current = 0;  ///< signed: a section can free more than it allocates
  Amount peak{};             ///< the highest value of current, at least 0
  Amount total{};            ///< the sum of all additions

  friend bool operator==(const running_count&, const running_count&) = default;
};

/// Counters of successful allocations; requests of zero bytes are not counted.
struct resource_stats {
  running_count<weir::bytes> bytes;          ///< the requested sizes
  running_count<std::uint64_t> allocations;  ///< the number of allocations

  friend bool operator==(const resource_stats&, const resource_stats&) = default;
};

/// "3 KiB in 2 allocations, at most 5 KiB in 3, in total 12 KiB in 9".
[[nodiscard]] WEIR_API std::string to_string(const resource_stats& stats);

/// Counts the allocations of another resource. Sections of a program can be counted separately: see
/// push().
///
/// Always: all numbers are a consistent snapshot. A shared handle, never empty; keeps the upstream
/// alive. Thread-safe. Costs two short locks. Bad input: see resources.hpp.
class WEIR_API statistics_resource {
 public:
  /// An adaptor of `upstream`. invalid_argument: the upstream is empty.
  [[nodiscard]] static result<statistics_resource> create(any_resource upstream);
  statistics_resource(const statistics_resource&) = default;
  statistics_resource& operator=(const statistics_resource&) = default;

  /// Allocates in the order of `stream`.
  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = default_alignment) const;
  /// Frees in the order of `stream`, with the size of the request.
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream) const;
  /// Declares that work queued on `stream` until the free may use the memory, too.
  result<void> record_stream(void* pointer, const stream_ref& stream) const;

  /// The counters of the current section: since the latest push() without a pop().
  [[nodiscard]] resource_stats stats() const;
  /// Sets the section's peaks to the current values, at least 0.
  void reset_peaks() const;
  /// Sets the section's totals to zero.
  void reset_counters() const;
  /// Starts a section with all counters at zero; returns those of the enclosing section. Sections
  /// belong to the resource, not to a thread.
  resource_stats push() const;
  /// Ends the section, adds its counters to the enclosing one and returns them. invalid_argument:
  /// no matching push().
  result<resource_stats> pop() const;

  /// The resource that requests go to.
  [[nodiscard]] any_resource upstream() const;
  /// The device of the memory.
  [[nodiscard]] weir::device device() const;
  /// The kind of the memory: that of the upstream.
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
