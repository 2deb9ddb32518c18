// SPDX-License-Identifier: Apache-2.0
// The peak of reserved and suspended memory of a bare core.
#include "heap/suspended_peak.hpp"

#include <cstdint>

#include "heap/bare_core.hpp"
#include "heap/heap_fixture.hpp"

namespace weir::testing_support { namespace {

class suspended_peak_test : public heap_test {
 protected:
  /// The peak after so much was reserved.
  [[nodiscard]] std::uint64_t peak_at(std::uint64_t reserved) {
    const detail::mutex_lock lock{core.mutex_};
    core.placement_.reserved = reserved;
    part.note_growth();
    return part.read();
  }

  bare_core core{gpu(), {}};
  heap::suspended_peak part{core};
};

TEST_F(suspended_peak_test, counts_from_the_first_suspension_on) {
  EXPECT_EQ(peak_at(7), 0u) << "until then it is that of what is reserved";
  {
    const detail::mutex_lock lock{core.mutex_};
    part.begin();
  }
  EXPECT_EQ(peak_at(5), 5u);
  EXPECT_EQ(peak_at(3), 5u);
  EXPECT_EQ(peak_at(6), 6u);
}

TEST_F(suspended_peak_test, begins_again_at_what_is_reserved) {
  {
    const detail::mutex_lock lock{core.mutex_};
    part.begin();
  }
  EXPECT_EQ(peak_at(5), 5u);
  EXPECT_EQ(peak_at(2), 5u);
  {
    const detail::mutex_lock lock{core.mutex_};
    part.reset();
    EXPECT_EQ(part.read(), 2u);
  }
  EXPECT_EQ(peak_at(3), 3u);
}

}}  // namespace weir::testing_support
