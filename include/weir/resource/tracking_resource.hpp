// SPDX-License-Identifier: Apache-2.0
// An adaptor that knows every live allocation and the stack that requested it.
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
  void* pointer = nullptr;
  bytes size{};
  ::CUstream_st* stream = nullptr;
  std::uint64_t number = 0;  ///< counts the allocations of its resource, from 1
  std::uint64_t thread = 0;  ///< the system's number of the thread that requested it
  std::chrono::system_clock::time_point time{};
  std::vector<void*> stack;  ///< return addresses, innermost first; empty without stacks

  /// The stack in words, one line a frame. Reading the symbols is slow.
  [[nodiscard]] WEIR_API std::vector<std::string> symbols() const;
};

/// "#7 4 KiB at 0x7f0a00000000 by thread 4711": one line, without the stack.
[[nodiscard]] WEIR_API std::string to_string(const live_allocation& allocation);

/// All allocations that are live at one moment, in the order of their numbers.
struct live_report {
  std::vector<live_allocation> allocations;
  bytes size{};  ///< their sum
};

/// In words: a line of totals, then the allocations grouped by their stacks, most bytes first.
/// Reads the symbols of one stack a group.
[[nodiscard]] WEIR_API std::string to_string(const live_report& report);

struct tracking_options {
  bool stacks = true;
  /// Frames a stack has at most; 1 … 64.
  std::size_t depth = 24;
};

/// Keeps a record of each live allocation of another resource.
///
/// A free with a wrong size, a second one, and one of memory that was not allocated here are errors
/// (invalid_argument, double_free, foreign_pointer), whatever the upstream checks. Records that
/// remain when the last handle goes are reported to the error handler (still_live, with count and
/// bytes); the memory stays with the upstream.
///
/// A shared handle, never empty; keeps the upstream alive. Any thread. Costs two short locks and,
/// with stacks, the walk up the stack: some microseconds; symbols are looked up only when a report
/// becomes text. Functions of the program itself have names there if it is linked with -rdynamic
/// (CMake: ENABLE_EXPORTS).
class WEIR_API tracking_resource {
 public:
  /// invalid_argument: the upstream is empty, or the depth is out of range.
  [[nodiscard]] static result<tracking_resource> create(any_resource upstream,
                                                        tracking_options settings = {});
  tracking_resource(const tracking_resource&) = default;
  tracking_resource& operator=(const tracking_resource&) = default;

  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = default_alignment) const;
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream) const;
  result<void> record_stream(void* pointer, const stream_ref& stream) const;

  /// The allocations that are live now.
  [[nodiscard]] live_report live() const;

  [[nodiscard]] any_resource upstream() const;
  [[nodiscard]] weir::device device() const;
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
