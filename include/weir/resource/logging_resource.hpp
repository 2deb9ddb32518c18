// SPDX-License-Identifier: Apache-2.0
// An adaptor that logs every request, in the format of RMM's logs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "weir/base/export.hpp"
#include "weir/resource/resource.hpp"

namespace weir { inline namespace v0 {

/// Takes whole rows, the line end included; the first is the header. Called by one thread at a
/// time.
using csv_sink = std::function<result<void>(std::string_view row)>;

/// Writes a row of comma-separated values for each request that goes through to another resource:
///
///   Thread,Time,Action,Pointer,Size,Stream
///   4711,09:26:53.589793,allocate,0x7f0a00000000,1048576,0x1
///
/// Thread is the system's number, Time the local time of day in microseconds, Action one of
/// "allocate", "allocate failure" (Pointer is then "(nil)") and "free", Size the requested size,
/// Stream the handle in hexadecimal. Programs that read the logs of RMM's logging adaptor read
/// these. Zero bytes and null pointers leave no row.
///
/// A free is written before it is passed on, an allocation after it succeeded, so a pointer's rows
/// are in order: no "allocate" of it stands before the "free" that made it possible.
///
/// The log never changes the outcome of a request. A row that cannot be written is lost and
/// counted, and the first error kept: log_state().
///
/// A shared handle, never empty; keeps the upstream alive. Any thread. Costs a lock and the sink;
/// the file's is one write to the system for each row, so that a program that crashes leaves a
/// whole log.
class WEIR_API logging_resource {
 public:
  /// invalid_argument: the upstream or the sink is empty.
  [[nodiscard]] static result<logging_resource> create(any_resource upstream, csv_sink sink);
  /// To a file, which is created or emptied. system: it cannot be opened.
  [[nodiscard]] static result<logging_resource> create(any_resource upstream,
                                                       const std::string& path);
  logging_resource(const logging_resource&) = default;
  logging_resource& operator=(const logging_resource&) = default;

  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = default_alignment) const;
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream) const;
  result<void> record_stream(void* pointer, const stream_ref& stream) const;

  /// The error that lost the first row, if one was lost since the last reset_counters().
  [[nodiscard]] result<void> log_state() const;
  [[nodiscard]] std::uint64_t lost_rows() const;
  /// No row counts as lost, and the error is forgotten.
  void reset_counters() const;

  [[nodiscard]] any_resource upstream() const;
  [[nodiscard]] weir::device device() const;
  [[nodiscard]] memory_kind kind() const noexcept;
  /// Whether the handle means a resource.
  explicit operator bool() const noexcept { return state_ != nullptr; }
  friend bool operator==(const logging_resource&, const logging_resource&) noexcept = default;

 private:
  struct state;
  explicit logging_resource(std::shared_ptr<state> shared) noexcept : state_{std::move(shared)} {}

  std::shared_ptr<state> state_;
};

static_assert(stream_resource<logging_resource>);

}}  // namespace weir::v0
