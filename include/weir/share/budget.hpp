// SPDX-License-Identifier: Apache-2.0
// weir::budget_member: a share of a card's memory for each process, with priorities.
//
//   auto memory = weir::caching_allocator::create(gpu).value();
//   auto member = weir::budget_member::join(memory, {.share = {8_GiB, 20_GiB, 2}}).value();
//
// docs/budget.md is the guide; `weir budget` shows and changes the shares of running processes. An
// unmodified program joins if the option `budget` or the environment variable WEIR_BUDGET is set.
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

/// The share of a card's memory that a member has.
struct budget_share {
  /// The guaranteed memory: others release memory for it. The floors of all members together are at
  /// most the card's memory.
  bytes floor{};
  /// The upper bound of its allocator's limit. A value above the card's memory means all of it.
  bytes ceiling = bytes::max();
  /// Between floor and ceiling, members of lower priority release memory for higher ones. -1000 to
  /// 1000.
  int priority = 0;

  friend bool operator==(const budget_share&, const budget_share&) = default;
};

/// "floor 8 GiB, ceiling 20 GiB, priority 2".
[[nodiscard]] WEIR_API std::string to_string(const budget_share& share);

/// The choices of a budget_member.
struct budget_options {
  budget_share share{};  ///< the share to join with
  /// The member's name: up to 31 printable ASCII characters; empty: the program's name.
  std::string name{};
  /// The folder of the budget files; empty: /dev/shm/weir.budget.<user>. Only the user may have
  /// access.
  std::string folder{};
  /// How often a thread reads the budget file. 0: no thread; the program calls serve().
  std::chrono::milliseconds period{50};
  /// How long a request waits for other members to release memory.
  std::chrono::milliseconds patience{2000};
};

/// "floor=8GiB,ceiling=20GiB,priority=2,name=trainer": any of floor, ceiling, priority, name,
/// folder, period and patience (in ms), each at most once, separated by commas or spaces.
/// bad_option: the text is invalid.
[[nodiscard]] WEIR_API result<budget_options> parse_budget(std::string_view text);

/// The membership of one allocator in the budget of its card.
///
/// While it exists, the allocator's limit is the smaller of the share's ceiling and of the limit
/// that the program set. If a request within the limit finds no memory, other members are asked to
/// release some. A request within this member's floor asks all members above their floors, other
/// requests only members of lower priority; the lowest priority is asked first. A member that is
/// asked releases cached memory and evicts evictable memory (caching_allocator::shrink()), but not
/// below its floor. For 200 ms after that its limit is what it kept. Live memory that is not
/// evictable stays. An allocator may have several shares; the lowest ceiling applies.
///
/// A background thread reads the card's budget file every `period`. Requests of the allocator pay
/// nothing while no member asks. The share ends with this object, with the allocator (its close()
/// or last handle, before that call returns), or with the process, also after a crash. It does not
/// keep the allocator alive. Thread-safe. In a forked child calls return driver_gone, and the share
/// stays the parent's.
class WEIR_API budget_member {
 public:
  /// Joins the budget of the allocator's card. invalid_argument: the floor is above the ceiling, a
  /// name or time is invalid, or the file is not a budget file; limit_exceeded: the floors would
  /// exceed the card, or the card has its most members (the detail lists who holds what);
  /// not_supported: the device has no UUID, or /proc is missing; not_permitted: other users own or
  /// can access the folder or the file; bad_version: another version of weir wrote the file;
  /// not_ready: another process keeps it locked.
  [[nodiscard]] static result<std::unique_ptr<budget_member>> join(
      caching_allocator& allocator, const budget_options& options = {});
  ~budget_member();
  budget_member(const budget_member&) = delete;
  budget_member& operator=(const budget_member&) = delete;

  /// The current share, which other processes may have changed. closed: the allocator is closed.
  [[nodiscard]] result<budget_share> share() const;
  /// Changes the share. Errors as for join(); closed: the allocator is closed.
  result<void> set_share(const budget_share& share) const;
  /// Reads the budget file: adopts a changed share, and releases memory if asked to. Returns how
  /// much was released. closed: the allocator is closed.
  result<bytes> serve() const;

 private:
  class state;
  explicit budget_member(std::shared_ptr<state> shared) noexcept;

  std::shared_ptr<state> state_;
};

// --- From outside --------------------------------------------------------------------------------

/// A member as listed in the budget file.
struct budget_row {
  int process = 0;       ///< the number of its process
  int number = 0;        ///< counts the members of its process, from 1
  std::string name{};    ///< budget_options::name
  budget_share share{};  ///< its current share
  bytes held{};          ///< what its allocator had reserved when it last read the file
  bytes asked{};         ///< what other members wait for it to release
  bytes given{};         ///< what it has released for others so far
};

/// "process 7, number 1, name trainer, floor 8 GiB, …".
[[nodiscard]] WEIR_API std::string to_string(const budget_row& row);

/// The budget of one card.
struct card_budget {
  std::string card{};                 ///< "GPU-…", its UUID
  bytes capacity{};                   ///< the card's memory
  std::vector<budget_row> members{};  ///< those that are running, in the order of the file
};

/// A line for the card, and one for each member.
[[nodiscard]] WEIR_API std::string to_string(const card_budget& budget);

/// The budgets of all cards of this user.
struct budget_listing {
  std::vector<card_budget> cards{};  ///< by UUID
  std::vector<error> refused{};      ///< files that cannot be read, and why
};

/// The cards' figures, and the errors of refused files.
[[nodiscard]] WEIR_API std::string to_string(const budget_listing& listing);

/// Reads all budget files of this user; there may be none. not_permitted: other users can access
/// the folder.
[[nodiscard]] WEIR_API result<budget_listing> read_budgets(const std::string& folder = {});
/// Changes the share of a member, which adopts it when it next reads the file. not_found: the
/// member has ended; otherwise the errors of budget_member::join().
WEIR_API result<void> change_budget(std::string_view card, int process, int number,
                                    const budget_share& share, const std::string& folder = {});
/// Removes the shares of processes that have ended, and returns how many. Joining and asking for
/// memory do this, too.
WEIR_API result<std::size_t> clear_budgets(const std::string& folder = {});

}}  // namespace weir::v0
