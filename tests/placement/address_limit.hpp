// A process that is short of addresses.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdint>

#include "support/this_process.hpp"

namespace weir::inline v0::placement {

/// While it lives, the process gets no more than so many further bytes of addresses.
class address_limit {
 public:
  explicit address_limit(std::uint64_t more) {
    EXPECT_EQ(getrlimit(RLIMIT_AS, &before_), 0);
    const rlimit now{.rlim_cur = testing_support::mapped_bytes() + more,
                     .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_AS, &now), 0);
  }
  ~address_limit() { EXPECT_EQ(setrlimit(RLIMIT_AS, &before_), 0); }
  address_limit(const address_limit&) = delete;
  address_limit& operator=(const address_limit&) = delete;

 private:
  rlimit before_{};
};

}  // namespace weir::inline v0::placement
