// SPDX-License-Identifier: Apache-2.0
// A thread that carries a move of a heap, and the end of that heap on it.
#pragma once

namespace weir { inline namespace v0 { namespace heap {

class central_heap;
class heap_core;

/// Set while the calling thread carries a queued move of a heap.
///
/// The user's code that runs on a carrier (a progress callback, its destructor, the error handler)
/// may hold the last handle of the heap for a moment. The heap cannot end there: its end waits for
/// the move. It ends with this scope, when the thread needs nothing of the heap any more. That
/// takes no thread and no host memory, so that it cannot fail.
///
/// Owned by the carrier's stack; used by that thread alone.
class carrier_scope {
 public:
  using end_function = void (*)(central_heap*) noexcept;

  explicit carrier_scope(const heap_core& core) noexcept : core_{&core} { current_ = this; }
  ~carrier_scope() {
    current_ = nullptr;
    if (left_ != nullptr) end_(left_);
  }
  carrier_scope(const carrier_scope&) = delete;
  carrier_scope& operator=(const carrier_scope&) = delete;

  /// Whether the calling thread carries a move of that heap.
  [[nodiscard]] static bool is_for(const heap_core& core) noexcept {
    return current_ != nullptr && current_->core_ == &core;
  }
  /// Of a heap whose move the calling thread carries, and that has no handle left.
  static void end_afterwards(central_heap* heap, end_function end) noexcept {
    current_->left_ = heap;
    current_->end_ = end;
  }

 private:
  static inline constinit thread_local carrier_scope* current_ = nullptr;

  const heap_core* const core_;
  central_heap* left_ = nullptr;
  end_function end_ = nullptr;
};

}}}  // namespace weir::v0::heap
