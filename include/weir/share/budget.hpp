// SPDX-License-Identifier: Apache-2.0
// weir::budget_member: processes that share a card and give way to each other.
//
//   auto memory = weir::caching_allocator::create(gpu).value();
//   auto member = weir::budget_member::join(memory, {.share = {8_GiB, 20_GiB, 2}}).value();
//
// docs/budget.md is the guide; `weir budget` shows and changes the shares from outside. A program
// as it is joins where the option `budget` is set, or the environment variable WEIR_BUDGET.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/base/bytes.hpp"
#include "weir/base/error.hpp"
#include "weir/base/export.hpp"
#include "weir/base/print.hpp"
#include "weir/base/result.hpp"

namespace weir { inline namespace v0 {

/// What a process may have of a card.
struct budget_share {
  /// What it gets whenever it needs it: others give way. The floors of all members together are at
  /// most the card.
  bytes floor{};
  /// What it never passes: a bound of its allocator's limit. More than the card means the card.
  bytes ceiling = bytes::max();
  /// Between floor and ceiling: who has more is given way to by who has less. -1000 to 1000.
  int priority = 0;

  friend bool operator==(const budget_share&, const budget_share&) = default;
};

/// "floor 8 GiB, ceiling 20 GiB, priority 2".
[[nodiscard]] WEIR_API std::string to_string(const budget_share& share);

struct budget_options {
  budget_share share{};
  /// What others see: up to 31 printable ASCII characters; empty: the program's name.
  std::string name{};
  /// Where the pages are; empty: /dev/shm/weir.budget.<user>. It must be the user's alone.
  std::string folder{};
  /// How often the page is looked at. 0: there is no thread, and the user calls serve().
  std::chrono::milliseconds period{50};
  /// The longest that a request waits for others to give way.
  std::chrono::milliseconds patience{2000};
};

/// "floor=8GiB,ceiling=20GiB,priority=2,name=trainer": any of floor, ceiling, priority, name,
/// folder, period and patience (in ms), each at most once, separated by commas or spaces.
/// bad_option: it cannot be read.
[[nodiscard]] WEIR_API result<budget_options> parse_budget(std::string_view text);

/// One allocator's part in the budget of its card.
///
/// While it lives the allocator's limit is the smaller of the ceiling of its share and of the limit
/// that the program set: set_limit() cannot lift the ceiling, and joining lifts no limit. A request
/// that finds no memory, though the limit allows it, asks others to give way: those that hold more
/// than their floor, if the request is within this one's floor; else only those of lower priority.
/// The lowest priority is asked first. Whoever is asked releases what it caches and evicts what is
/// evictable (caching_allocator::shrink), but nothing below its floor, and takes no more for 200
/// ms: until then its limit is what it kept. Live memory that is not evictable stays: nobody can
/// take it away. An allocator may have several shares; the lowest ceiling counts.
///
/// A thread of its own looks at the card's page every `period`; what the allocator's users pay is
/// nothing while nobody asks. The share ends with this object, when the allocator is closed or its
/// last handle ends, before that call returns, or with the process, however that ends. It does not
/// keep the allocator alive. Any thread; in a forked child calls return driver_gone, and the share
/// stays the parent's.
class WEIR_API budget_member {
 public:
  /// invalid_argument: a floor above the ceiling, a name or time that cannot be, or a page that is
  /// none; limit_exceeded: the floors would pass the card, or all places are taken (the detail says
  /// who has what); not_supported: the device has no UUID, or /proc is not there; not_permitted:
  /// the folder or page belongs to others, or others may use it; bad_version: another weir's page;
  /// not_ready: somebody keeps the page locked.
  [[nodiscard]] static result<std::unique_ptr<budget_member>> join(
      caching_allocator& allocator, const budget_options& options = {});
  ~budget_member();
  budget_member(const budget_member&) = delete;
  budget_member& operator=(const budget_member&) = delete;

  /// As the page has it now: others may have changed it. closed: the allocator was closed.
  [[nodiscard]] result<budget_share> share() const;
  /// The errors of join(). closed: the allocator was closed.
  result<void> set_share(const budget_share& share) const;
  /// Looks at the page: follows a changed share, and gives way if asked. Returns how much memory
  /// was released. closed: the allocator was closed.
  result<bytes> serve() const;

 private:
  class state;
  explicit budget_member(std::shared_ptr<state> shared) noexcept;

  std::shared_ptr<state> state_;
};

// --- From outside --------------------------------------------------------------------------------

/// A member as the page shows it.
struct budget_row {
  int process = 0;
  int number = 0;  ///< of its members, from 1
  std::string name{};
  budget_share share{};
  bytes held{};   ///< what its allocator had reserved when it last looked
  bytes asked{};  ///< what others wait for it to release
  bytes given{};  ///< what it released for others so far
};

/// "process 7, number 1, name trainer, floor 8 GiB, …".
[[nodiscard]] WEIR_API std::string to_string(const budget_row& row);

struct card_budget {
  std::string card{};  ///< "GPU-…", its UUID
  bytes capacity{};
  std::vector<budget_row> members{};  ///< those that are running, in the order of their places
};

/// A line for the card, and one for each member.
[[nodiscard]] WEIR_API std::string to_string(const card_budget& budget);

struct budget_listing {
  std::vector<card_budget> cards{};  ///< by UUID
  std::vector<error> refused{};      ///< pages that cannot be read, and why
};

/// The cards' numbers, and the errors of those that were refused.
[[nodiscard]] WEIR_API std::string to_string(const budget_listing& listing);

/// All pages of this user; none is no error. not_permitted: the folder is not the user's alone.
[[nodiscard]] WEIR_API result<budget_listing> read_budgets(const std::string& folder = {});
/// Changes the share of a member, which follows when it next looks. not_found: it is gone; else the
/// errors of budget_member::join().
WEIR_API result<void> change_budget(std::string_view card, int process, int number,
                                    const budget_share& share, const std::string& folder = {});
/// Takes back the shares of processes that ended, which whoever joins or asks does, too. Returns
/// how many there were.
WEIR_API result<std::size_t> clear_budgets(const std::string& folder = {});

}}  // namespace weir::v0
