// SPDX-License-Identifier: Apache-2.0
// A disk without room: files of this process may not grow beyond a size.
#pragma once

#include <sys/resource.h>

#include <csignal>

namespace weir::testing_support {

/// While it lives a write beyond `most` bytes fails with EFBIG, on any thread. For a few statements
/// that print nothing: where the test's own output goes to a file it is cut as well.
class file_size_limit {
 public:
  explicit file_size_limit(rlim_t most) : handler_{std::signal(SIGXFSZ, SIG_IGN)} {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit lower{most, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &lower);
  }
  ~file_size_limit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  file_size_limit(const file_size_limit&) = delete;
  file_size_limit& operator=(const file_size_limit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

}  // namespace weir::testing_support
