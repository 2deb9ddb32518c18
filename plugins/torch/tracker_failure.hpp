// SPDX-License-Identifier: Apache-2.0
// What a trace tracker throws inside a request, kept for the request.
#pragma once

#include <exception>

namespace weir_torch {

/// While it lives, the first exception that a tracker throws for a segment which this thread makes
/// weir take is kept: it is thrown with weir's lock held, and the request must fail with it. What
/// is thrown otherwise is reported as an error.
class [[nodiscard]] tracker_failure {
 public:
  tracker_failure() noexcept;
  ~tracker_failure();
  tracker_failure(const tracker_failure&) = delete;
  tracker_failure& operator=(const tracker_failure&) = delete;

  /// Throws it, if there was one.
  void rethrow() const {
    if (thrown_ != nullptr) std::rethrow_exception(thrown_);
  }
  /// Takes the exception that is being handled, for the innermost that lives on this thread.
  static void note_current() noexcept;

 private:
  std::exception_ptr thrown_;
  tracker_failure* const outer_;
};

}  // namespace weir_torch
