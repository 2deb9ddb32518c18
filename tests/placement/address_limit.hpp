// A process that is short of addresses.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace weir::inline v0::placement {

/// While it lives, the process gets no more than so many further bytes of addresses.
class address_limit {
 public:
  explicit address_limit(std::uint64_t more) {
    EXPECT_EQ(getrlimit(RLIMIT_AS, &before_), 0);
    std::uint64_t pages = 0;
    std::ifstream{"/proc/self/statm"} >> pages;
    const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    const rlimit now{.rlim_cur = pages * page + more, .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_AS, &now), 0);
  }
  ~address_limit() { EXPECT_EQ(setrlimit(RLIMIT_AS, &before_), 0); }
  address_limit(const address_limit&) = delete;
  address_limit& operator=(const address_limit&) = delete;

 private:
  rlimit before_{};
};

}  // namespace weir::inline v0::placement
