// SPDX-License-Identifier: Apache-2.0
// logging_resource: an adaptor that logs every request, in the format of RMM's logs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "weir/base/export.hpp"
#include "weir/resource/resource.hpp"

namespace weir { inline namespace v0 {

/// Receives whole rows with their line end; the first is the header. Called from one thread at a
/// time.
using csv_sink = std::function<result<void>(std::string_view row)>;

/// Writes a row of comma-separated values for each request to another resource:
///
///   Thread,Time,Action,Pointer,Size,Stream
///   4711,09:26:53.589793,allocate,0x7f0a00000000,1048576,0x1
///
/// Thread is the system's number, Time the local time of day in microseconds, Action one of
/// "allocate", "allocate failure" (Pointer is then "(nil)") and "free", Size the requested size,
/// Stream the handle in hexadecimal. Programs that read the logs of RMM's logging adaptor read
/// these. Zero bytes and null pointers leave no row.
///
/// A free is written before it is passed on, an allocation after it succeeded. So the rows of a
/// pointer are in order: an "allocate" never precedes the "free" that made it possible.
///
/// Logging never changes the result of a request. A row that cannot be written is lost and counted,
/// and the first error is kept: log_state().
///
/// A shared handle, never empty; keeps the upstream alive. Thread-safe. Costs a lock and the sink.
/// A file gets one system call for each row, so that the log is complete if the program crashes.
class WEIR_API logging_resource {
 public:
  /// An adaptor of `upstream` that writes to `sink`. invalid_argument: one of them is empty.
  [[nodiscard]] static result<logging_resource> create(any_resource upstream, csv_sink sink);
  /// An adaptor that writes to a file, which is created or truncated. system: it cannot be opened.
  [[nodiscard]] static result<logging_resource> create(any_resource upstream,
                                                       const std::string& path);
  logging_resource(const logging_resource&) = default;
  logging_resource& operator=(const logging_resource&) = default;

  /// Allocates in the order of `stream`.
  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = default_alignment) const;
  /// Frees in the order of `stream`, with the size of the request.
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream) const;
  /// Declares that work queued on `stream` until the free may use the memory, too.
  result<void> record_stream(void* pointer, const stream_ref& stream) const;

  /// The error that lost the first row, if one was lost since the last reset_counters().
  [[nodiscard]] result<void> log_state() const;
  /// How many rows were lost since the last reset_counters().
  [[nodiscard]] std::uint64_t lost_rows() const;
  /// Sets lost_rows() to 0 and clears the error.
  void reset_counters() const;

  /// The resource that requests go to.
  [[nodiscard]] any_resource upstream() const;
  /// The device of the memory.
  [[nodiscard]] weir::device device() const;
  /// The kind of the memory: that of the upstream.
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
