// SPDX-License-Identifier: Apache-2.0
// Entering the driver only where a call needs it.
#pragma once

#include <optional>

#include "weir/base/result.hpp"
#include "weir/device/device.hpp"
#include "weir/device/event.hpp"

namespace weir { inline namespace v0 { namespace order {

/// The driver, entered when first needed: the context made current and, with it, the thread's
/// capture mode relaxed, so that no question of ours breaks anybody's capture. A slow path that
/// finds room makes no driver call at all. Stays on its thread and in its block.
class driver_access {
 public:
  explicit driver_access(weir::device device) noexcept : device_{device} {}
  driver_access(const driver_access&) = delete;
  driver_access& operator=(const driver_access&) = delete;

  [[nodiscard]] const context_scope& enter() noexcept {
    if (!bound_) {
      bound_.emplace(device_);
      if (*bound_) relaxed_.emplace(device_);
    }
    return *bound_;
  }
  [[nodiscard]] result<void> entered() {
    if (!enter()) return bound_->error();
    if (!*relaxed_) return relaxed_->error();
    return {};
  }

 private:
  weir::device device_;
  std::optional<context_scope> bound_;
  std::optional<thread_capture_mode_guard> relaxed_;
};

}}}  // namespace weir::v0::order
