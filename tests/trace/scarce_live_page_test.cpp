// SPDX-License-Identifier: Apache-2.0
// Live pages where the host has no memory: whichever allocation fails, it is told, and no page, no
// name and no descriptor stays.
#include <unistd.h>

#include "support/live_folder.hpp"
#include "support/scarce_machine.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/trace/live_page.hpp"

namespace weir::testing_support { namespace {

const own_live_folder folder_of_this_program;

class scarce_live_page : public scarce_machine {
 protected:
  /// The number that the next descriptor gets.
  static int next_descriptor() {
    const int number = ::dup(STDERR_FILENO);
    ::close(number);
    return number;
  }
};

TEST_F(scarce_live_page, leaves_nothing_behind) {
  auto memory = caching_allocator::create(gpu()).value();
  const int before = next_descriptor();
  sweep([&] {
    {
      const auto page = live_page::publish(memory);
      if (met(page)) met(read_live_pages(::getpid()));
    }
    const spared_memory spared;
    EXPECT_EQ(read_all_live_pages().views.size(), 0u);
    EXPECT_EQ(next_descriptor(), before);
  });
}

}  // namespace
}  // namespace weir::testing_support
