// An adaptor that knows every live allocation and where it was made.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "weir/base/export.hpp"
#include "weir/resource/resource.hpp"

namespace weir::inline v0 {

/// One allocation that was not given back.
struct live_allocation {
  void* pointer = nullptr;
  bytes size{};
  ::CUstream_st* stream = nullptr;
  std::uint64_t number = 0;  ///< the how-manieth of its resource, from 1
  std::uint64_t thread = 0;  ///< the system's number of the thread that made it
  std::chrono::system_clock::time_point when{};
  std::vector<void*> stack;  ///< return addresses, innermost first; empty if not asked for

  /// The stack in words, one line a frame. This is where the work is done: reading symbols.
  [[nodiscard]] WEIR_API std::vector<std::string> symbols() const;
};

/// All allocations that are live at one moment, in the order they were made.
struct live_report {
  std::vector<live_allocation> allocations;
  bytes size{};  ///< their sum

  /// In plain words: what was allocated from the same place together, most bytes first.
  [[nodiscard]] WEIR_API std::string text() const;
};

struct tracking_options {
  bool stacks = true;
  /// Frames a stack has at most; 1 … 64.
  std::size_t depth = 24;
};

/// Keeps a record of each live allocation of another resource.
///
/// What is given back with a wrong size, twice, or without having been allocated here is told
/// (invalid_argument, double_free, foreign_pointer), whatever the upstream checks. Records that are
/// left when the last handle goes are reported to the error handler (already_freed, with count and
/// bytes); the memory stays with the upstream.
///
/// A shared handle, never empty; keeps the upstream alive. Any thread. Costs two short locks and,
/// with stacks, the walk up the stack: some microseconds; symbols are looked up only when a report
/// is put in words. Functions of the program itself have names there if it is linked with -rdynamic
/// (CMake: ENABLE_EXPORTS).
class WEIR_API tracking_resource {
 public:
  /// invalid_argument: the upstream is empty, or the depth is out of range.
  [[nodiscard]] static result<tracking_resource> create(any_resource upstream,
                                                        tracking_options settings = {});
  tracking_resource(const tracking_resource&) = default;
  tracking_resource& operator=(const tracking_resource&) = default;

  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = bytes{256});
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream);

  /// What is live now.
  [[nodiscard]] live_report live() const;

  [[nodiscard]] any_resource upstream() const;
  [[nodiscard]] weir::device device() const;
  [[nodiscard]] memory_kind kind() const noexcept;
  friend bool operator==(const tracking_resource&, const tracking_resource&) noexcept = default;

 private:
  struct state;
  explicit tracking_resource(std::shared_ptr<state> inside) noexcept : inside_{std::move(inside)} {}

  std::shared_ptr<state> inside_;
};

static_assert(stream_resource<tracking_resource>);

}  // namespace weir::inline v0
