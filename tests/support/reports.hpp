// SPDX-License-Identifier: Apache-2.0
// What went wrong: a result's code, and what reached the error handler meanwhile.
#pragma once

#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "weir/base/error.hpp"

namespace weir::testing_support {

/// The error's code, or nothing where there was none.
template <class Result>
[[nodiscard]] std::optional<errc> code_of(const Result& outcome) {
  if (outcome) return std::nullopt;
  return outcome.code();
}

/// Collects what reaches the process-wide error handler while it lives.
class reports {
 public:
  reports() {
    set_error_handler(
        [](const error& reported, void* self) noexcept {
          auto& collector = *static_cast<reports*>(self);
          const std::lock_guard lock{collector.mutex_};
          collector.errors_.push_back(reported);
        },
        this);
  }
  ~reports() { set_error_handler(nullptr); }
  reports(const reports&) = delete;
  reports& operator=(const reports&) = delete;

  [[nodiscard]] std::vector<error> take() {
    const std::lock_guard lock{mutex_};
    return std::exchange(errors_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<error> errors_;
};

}  // namespace weir::testing_support
