// SPDX-License-Identifier: Apache-2.0
// Live pages of a program's own: those of others are not seen, and what a crash leaves is not
// theirs.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <optional>

#include "support/scratch.hpp"

namespace weir::testing_support {

/// Names a folder of its own in WEIR_LIVE_FOLDER while it lives, unless one is named already; for a
/// program's static storage. Forked children use their parent's.
class own_live_folder {
 public:
  own_live_folder() {
    if (::getenv("WEIR_LIVE_FOLDER") != nullptr) return;
    folder_.emplace();
    ::setenv("WEIR_LIVE_FOLDER", folder_->path("").c_str(), 1);
  }
  ~own_live_folder() {
    if (::getpid() != owner_ && folder_) static_cast<void>(folder_->release());
  }
  own_live_folder(const own_live_folder&) = delete;
  own_live_folder& operator=(const own_live_folder&) = delete;

 private:
  const pid_t owner_ = ::getpid();
  std::optional<scratch_folder> folder_;
};

}  // namespace weir::testing_support
