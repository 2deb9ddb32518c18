// SPDX-License-Identifier: Apache-2.0
// A process that is short of addresses or of descriptors.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>

#include "support/this_process.hpp"

namespace weir::testing_support {

/// While it lives, the system gives the process no more than that of something.
class system_limit {
 public:
  using resource = decltype(RLIMIT_AS);
  system_limit(resource of, std::uint64_t most) : of_{of} {
    EXPECT_EQ(::getrlimit(of_, &before_), 0);
    const rlimit now{.rlim_cur = most, .rlim_max = before_.rlim_max};
    EXPECT_EQ(::setrlimit(of_, &now), 0);
  }
  ~system_limit() { EXPECT_EQ(::setrlimit(of_, &before_), 0); }
  system_limit(const system_limit&) = delete;
  system_limit& operator=(const system_limit&) = delete;

  static system_limit further_addresses(std::uint64_t most) {
    return {RLIMIT_AS, mapped_bytes() + most};
  }
  static system_limit no_further_descriptor() {
    const int next = ::dup(STDOUT_FILENO);
    EXPECT_GE(next, 0);
    ::close(next);
    return {RLIMIT_NOFILE, static_cast<std::uint64_t>(next)};
  }

 private:
  resource of_;
  rlimit before_{};
};

}  // namespace weir::testing_support
