// SPDX-License-Identifier: Apache-2.0
// tracking_resource: an adaptor that records every live allocation with its call stack.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "weir/base/export.hpp"
#include "weir/resource/resource.hpp"

namespace weir { inline namespace v0 {

/// One allocation that was not freed.
struct live_allocation {
  void* pointer = nullptr;          ///< its address
  bytes size{};                     ///< the requested size
  ::CUstream_st* stream = nullptr;  ///< the handle of the stream of the request
  std::uint64_t number = 0;         ///< counts the allocations of its resource, from 1
  std::uint64_t thread = 0;         ///< the system's number of the thread that requested it
  std::chrono::system_clock::time_point time{};  ///< when it was requested
  std::vector<void*> stack;  ///< return addresses, innermost first; empty without stacks

  /// The stack as text, one line for each frame. Reading the symbols is slow.
  [[nodiscard]] WEIR_API std::vector<std::string> symbols() const;
};

/// "#7 4 KiB at 0x7f0a00000000 by thread 4711": one line, without the stack.
[[nodiscard]] WEIR_API std::string to_string(const live_allocation& allocation);

/// A consistent snapshot of all live allocations.
struct live_report {
  std::vector<live_allocation> allocations;  ///< in the order of their numbers
  bytes size{};                              ///< the sum of their sizes
};

/// A line of totals, then the allocations grouped by their stacks, most bytes first. Reads the
/// symbols of one stack for each group.
[[nodiscard]] WEIR_API std::string to_string(const live_report& report);

/// The choices of a tracking_resource.
struct tracking_options {
  bool stacks = true;  ///< whether to record call stacks
  /// The most frames of a stack, from 1 to 64.
  std::size_t depth = 24;
};

/// Records each live allocation of another resource.
///
/// A free with a wrong size, a second free, and a free of other memory are errors
/// (invalid_argument, double_free, foreign_pointer), independent of the upstream's checks. Records
/// that remain at the end of the last handle are reported to the error handler (still_live, with
/// count and bytes); the memory stays with the upstream.
///
/// A shared handle, never empty; keeps the upstream alive. Thread-safe. Costs two short locks and,
/// with stacks, some microseconds to walk the stack; symbols are read only when a report becomes
/// text. Functions of the program itself have names if it is linked with -rdynamic (CMake:
/// ENABLE_EXPORTS).
class WEIR_API tracking_resource {
 public:
  /// An adaptor of `upstream`. invalid_argument: the upstream is empty, or the depth is out of
  /// range.
  [[nodiscard]] static result<tracking_resource> create(any_resource upstream,
                                                        tracking_options settings = {});
  tracking_resource(const tracking_resource&) = default;
  tracking_resource& operator=(const tracking_resource&) = default;

  /// Allocates in the order of `stream`.
  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = default_alignment) const;
  /// Frees in the order of `stream`, with the size of the request.
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream) const;
  /// Declares that work queued on `stream` until the free may use the memory, too.
  result<void> record_stream(void* pointer, const stream_ref& stream) const;

  /// A consistent snapshot of the allocations that are live now.
  [[nodiscard]] live_report live() const;

  /// The resource that requests go to.
  [[nodiscard]] any_resource upstream() const;
  /// The device of the memory.
  [[nodiscard]] weir::device device() const;
  /// The kind of the memory: that of the upstream.
  [[nodiscard]] memory_kind kind() const noexcept;
  /// Whether the handle means a resource.
  explicit operator bool() const noexcept { return state_ != nullptr; }
  friend bool operator==(const tracking_resource&, const tracking_resource&) noexcept = default;

 private:
  struct state;
  explicit tracking_resource(std::shared_ptr<state> shared) noexcept : state_{std::move(shared)} {}

  std::shared_ptr<state> state_;
};

static_assert(stream_resource<tracking_resource>);

}}  // namespace weir::v0
