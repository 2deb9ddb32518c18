// SPDX-License-Identifier: Apache-2.0
// Sharing where the host has no memory: whichever allocation fails, it is told, and what was
// exported comes back.
#include <thread>

#include "support/scarce_machine.hpp"
#include "weir/share/session.hpp"

namespace weir::testing_support { namespace {

using namespace weir::literals;
using namespace std::chrono_literals;

class scarce_sharing : public scarce_machine {
 protected:
  scarce_sharing() {
    auto ends = share_channel::pair().value();
    std::thread other{[&] {
      there_.emplace(share_link::open(runtime_, std::move(ends.second), {.limit = 20s}).value());
    }};
    here_.emplace(share_link::open(runtime_, std::move(ends.first), {.limit = 20s}).value());
    other.join();
  }
  [[nodiscard]] const share_link& here() const { return *here_; }
  [[nodiscard]] const share_link& there() const { return *there_; }
  /// Both ends have nothing of each other any more, and the next message is a new one.
  void expect_at_rest() {
    const spared_memory spared;
    for (bool is_over = false; !is_over;) {
      const auto next = there().receive(0ms);
      is_over = !next && next.code() == errc::not_ready;
    }
    EXPECT_TRUE(there().check());
    EXPECT_EQ(here().outstanding(), 0u);
  }

 private:
  std::optional<share_link> here_, there_;
};

TEST_F(scarce_sharing, loses_no_memory) {
  sweep([&] {
    {
      const auto memory = shared_memory::create(gpu(), 4_MiB, {.unit = 2_MiB});
      if (met(memory) && met(here().offer(*memory))) {
        auto offer = there().receive(0ms);
        if (!met(offer)) offer = there().receive(0ms);  // it waits
        if (met(offer)) {
          const auto opened = offer->open_memory();
          if (met(opened)) {
            met(opened->address());
            met(opened->allow(gpu(1)));
            const auto closed = opened->close();
            met(closed);
          }
        }
      }
    }
    expect_at_rest();
  });
}

TEST_F(scarce_sharing, loses_no_block_and_no_revocation) {
  const auto heap = caching_allocator::create(gpu()).value();
  const auto pool = heap.create_pool("shared", {.exportable = true}).value();
  sweep([&] {
    {
      const auto memory = shared_memory::allocate(heap, pool, 2_MiB, one);
      if (met(memory)) {
        const auto grant = here().offer(*memory);
        if (met(grant)) {
          met(here().revoke(*grant, 0ms), errc::not_ready);
          met(there().check());
          met(there().receive(0ms), errc::not_ready);
          met(here().check());
        }
      }
    }
    expect_at_rest();
    const spared_memory spared;
    EXPECT_EQ(pool.stats().blocks.current, 0u);
    EXPECT_TRUE(heap.empty_cache());
  });
}

TEST_F(scarce_sharing, tells_of_messages_that_are_wrong) {
  sweep([&] {
    met(here().send_note(std::as_bytes(std::span{"note"})));
    const auto note = there().receive(0ms);
    if (met(note, errc::not_ready)) {
      EXPECT_TRUE(note->is_note());
    }
    auto ends = share_channel::pair();
    if (met(ends)) {
      met(ends->first.send(std::as_bytes(std::span{"note"}), {}, 0ms));
      met(ends->second.receive(0ms), errc::not_ready);
    }
    met(share_channel::connect("/no/such/path", 0ms), errc::not_found);
    expect_at_rest();
  });
}

}  // namespace
}  // namespace weir::testing_support
