// SPDX-License-Identifier: Apache-2.0
// A simulated card of 2 GiB and a folder for the pages of its budget.
#pragma once

#include <sys/stat.h>

#include <memory>
#include <string>
#include <vector>

#include "heap/heap_fixture.hpp"
#include "sharing/budget_page.hpp"
#include "support/scratch.hpp"
#include "weir/share/budget.hpp"

namespace weir::testing_support {

using namespace std::chrono_literals;

/// A folder of this user alone, gone with this object.
class budget_folder {
 public:
  budget_folder() { EXPECT_EQ(::mkdir(path_.c_str(), 0700), 0); }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  const scratch_folder scratch_;
  const std::string path_ = scratch_.path("pages");
};

/// Allocators of one process that share the card as those of several would: the simulated memory is
/// theirs together. Nobody has a thread unless a test says so.
class budget_test : public heap_test {
 protected:
  static constexpr bytes card_size = 2_GiB;
  static constexpr bytes usable = 2_GiB - 64_MiB;  // without the context

  [[nodiscard]] budget_options options(const char* name, bytes floor, bytes ceiling,
                                       int priority = 0) const {
    return {.share = {floor, ceiling, priority},
            .name = name,
            .folder = pages.path(),
            .period = 0ms,
            .patience = 60s};
  }
  /// One whose thread gives way.
  [[nodiscard]] budget_options serving(const char* name, bytes floor, bytes ceiling,
                                       int priority = 0) const {
    auto made = options(name, floor, ceiling, priority);
    made.period = 2ms;
    return made;
  }
  [[nodiscard]] std::unique_ptr<budget_member> join(caching_allocator& memory,
                                                    const budget_options& how) const {
    auto joined = budget_member::join(memory, how);
    if (!joined) ADD_FAILURE() << joined.error().message();
    return joined ? std::move(*joined) : nullptr;
  }
  [[nodiscard]] std::vector<budget_row> rows() const {
    const auto listing = read_budgets(pages.path());
    if (!listing) ADD_FAILURE() << listing.error().message();
    if (!listing || listing->cards.size() != 1) return {};
    EXPECT_EQ(listing->refused.size(), 0u);
    return listing->cards.front().members;
  }
  [[nodiscard]] budget_row row(const std::string& name) const {
    for (budget_row& each : rows())
      if (each.name == name) return each;
    ADD_FAILURE() << "no member " << name;
    return {};
  }
  /// How often others asked the member for something.
  [[nodiscard]] std::uint64_t requests_of(std::string_view name) const {
    const auto page =
        budget::locked_page::open(pages.path(), card(), budget::locked_page::purpose::look);
    if (!page) return 0;
    for (const budget::place& each : page->content().places)
      if (name == each.name.data()) return each.requests;
    return 0;
  }
  [[nodiscard]] std::string card() const { return budget::card_name(*gpu().uuid()); }
  [[nodiscard]] std::string page_path() const {
    return pages.path() + "/" + card() + "." + std::to_string(detail::process_namespace());
  }
  /// Memory that is cached: reserved, and in no block.
  void cache(caching_allocator& memory, bytes size) const {
    memory.deallocate(memory.allocate(size, on), on);
    ASSERT_EQ(memory.stats().reserved.current, size);
  }
  template <class Condition>
  [[nodiscard]] static bool comes(Condition condition) {
    for (int i = 0; i < 2000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(5ms);
    }
    return false;
  }

  const budget_folder pages;
  const stream on = new_stream();
};

}  // namespace weir::testing_support
