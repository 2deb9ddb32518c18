// The ledger: what is held by pool, by tag and in all.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "weir/base/result.hpp"
#include "weir/observe/events.hpp"
#include "weir/observe/stats.hpp"
#include "weir/observe/tag.hpp"

namespace weir::inline v0::heap {

/// A pool and a tag, as one number that fits a block's record. The allocator's own pool comes
/// first: there the number is the tag's.
using account_number = std::uint16_t;
constexpr account_number first_private_account = tag::most + 1;
[[nodiscard]] constexpr bool is_private(account_number account) noexcept {
  return account >= first_private_account;
}

/// What a thread's cache did with the blocks of one account since it was last folded in. A cache
/// line, which a shift finds.
struct alignas(64) account_delta {
  std::int64_t requested = 0;
  std::int64_t allocated = 0;
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  // As they were when `allocated` was at its most; blocks are allocations - frees.
  std::int64_t most_requested = 0;
  std::int64_t most_allocated = 0;
  std::int64_t most_blocks = 0;
};

/// How much more can be live before a peak rises; negative where it would rise at once.
struct headroom {
  std::int64_t requested = 0;
  std::int64_t allocated = 0;
  std::int64_t blocks = 0;
};

/// Sums of one pool, of one tag, or of all.
struct ledger {
  gauge requested;
  gauge allocated;
  gauge active;
  gauge blocks;
  gauge active_requested;
  gauge active_blocks;
  std::uint64_t pending = 0;  // of active, and the same of the two gauges beside it
  std::uint64_t pending_requested = 0;
  std::uint64_t pending_blocks = 0;
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::uint64_t hits = 0;
  std::uint64_t misses = 0;
  std::uint64_t failures = 0;

  void raise_peaks() noexcept;
  /// To what was live when a thread had most of what it counted.
  void raise_peaks(const account_delta& counted) noexcept;
  void reset_peaks() noexcept;
  void reset_counters() noexcept;
  void add_pending() noexcept;
  [[nodiscard]] headroom below_peaks() const noexcept;
  /// The members of memory_stats that a ledger knows.
  void fill(memory_stats& into) const noexcept;
};

/// Every pool's and every tag's ledger, and the total: each block is in one of each, so that the
/// sums agree.
///
/// What happens to one account after the other is counted once, on a page, and entered into the
/// three ledgers when somebody reads them, another account comes, or a peak would rise: the page
/// knows how much more may be live before that. So a request costs one count instead of three, and
/// every peak is what it would be otherwise.
///
/// Owned by the central heap. Never fails but in number_of() and add_pool().
class accounts {
 public:
  accounts();

  /// limit_exceeded: more pairs of private pool and tag than fit a record.
  [[nodiscard]] result<account_number> number_of(pool_id pool, tag tag);
  [[nodiscard]] pool_id pool_of(account_number account) const noexcept {
    return cells_[account].pool;
  }
  [[nodiscard]] tag tag_of(account_number account) const noexcept { return cells_[account].tag; }

  void allocated(account_number account, std::uint64_t requested, std::uint64_t rounded) noexcept;
  /// The same, together with what a thread counted for the account: the peak is not raised by what
  /// was freed before.
  void allocated(account_number account, std::uint64_t requested, std::uint64_t rounded,
                 account_delta& counted) noexcept {
    turn_to(account);
    page_.requested += counted.requested + static_cast<std::int64_t>(requested);
    page_.allocated += counted.allocated + static_cast<std::int64_t>(rounded);
    page_.hits += counted.allocations;
    page_.allocations += counted.allocations + 1;
    page_.frees += counted.frees;
    counted = {};
    if (page_.exceeds_room({})) [[unlikely]]
      raise_peaks_with_page();
  }
  void freed(account_number account, std::uint64_t requested, std::uint64_t rounded) noexcept {
    turn_to(account);
    page_.requested -= static_cast<std::int64_t>(requested);
    page_.allocated -= static_cast<std::int64_t>(rounded);
    ++page_.frees;
  }
  /// A block that was freed begins to wait for streams.
  void pending(account_number account, std::uint64_t requested, std::uint64_t rounded) noexcept;
  /// It has waited.
  void waited(account_number account, std::uint64_t requested, std::uint64_t rounded) noexcept;
  /// What is allocated next was not at hand: memory was moved, taken or waited for.
  void missed(account_number account) noexcept;
  void failed(pool_id pool, tag tag) noexcept;
  /// Takes over what a cache counted and clears it. Peaks rise with raise_peaks() only, so that
  /// several caches can be taken over as of one moment.
  void fold(account_number account, account_delta& counted) noexcept {
    if (counted.allocations == 0 && counted.frees == 0) return;
    turn_to(account);
    page_.requested += counted.requested;
    page_.allocated += counted.allocated;
    page_.hits += counted.allocations;
    page_.allocations += counted.allocations;
    page_.frees += counted.frees;
    counted = {};
  }
  void raise_peaks() noexcept;
  /// Raises the peaks to what was live when the thread had most. `alone`: it counted for no other
  /// account since; otherwise two of its accounts may have had the same memory one after the
  /// other, and only the tag's own peaks are known.
  void raise_peaks(account_number account, const account_delta& counted, bool alone) noexcept {
    turn_to(account);
    if (page_.exceeds_room({counted.most_requested, counted.most_allocated, counted.most_blocks}))
        [[unlikely]]
      raise_peaks_with_page(counted, alone);
  }
  void reset_peaks() noexcept;
  void reset_counters() noexcept;

  void add_pool(pool_id pool);
  /// The pool is gone; all its blocks are.
  void remove_pool(pool_id pool) noexcept;

  /// The most that may be live with the tag; bytes::max() is no limit.
  void set_limit(tag tag, std::uint64_t most);
  [[nodiscard]] bool limited(tag tag) const noexcept { return limited(tag.number()); }
  [[nodiscard]] bool limited(std::uint16_t tag_number) const noexcept;
  [[nodiscard]] bool any_limit() const noexcept;
  /// Whether so much more may be live with the tag.
  [[nodiscard]] bool may_allocate(tag tag, std::uint64_t more) const noexcept;
  [[nodiscard]] std::uint64_t limit(tag tag) const noexcept { return limit(tag.number()); }
  [[nodiscard]] std::uint64_t limit(std::uint16_t tag_number) const noexcept;

  [[nodiscard]] const ledger& total() const noexcept {
    enter_page();
    return total_;
  }
  [[nodiscard]] const ledger* of(pool_id pool) const noexcept;
  [[nodiscard]] const ledger* of(tag tag) const noexcept;
  /// Numbers of tags that were used are below this.
  [[nodiscard]] std::size_t tags() const noexcept { return tags_.size(); }
  [[nodiscard]] std::size_t footprint() const noexcept;

 private:
  struct cell {
    pool_id pool{};
    weir::tag tag{};
    ledger* by_pool = nullptr;
    ledger* by_tag = nullptr;
  };
  struct tag_entry {
    ledger sums;
    std::uint64_t limit = bytes::max().count();
  };

  /// What was counted of one account since its ledgers last knew.
  struct page {
    static constexpr std::uint32_t nobodys = ~std::uint32_t{0};
    std::uint32_t account = nobodys;
    std::int64_t requested = 0;
    std::int64_t allocated = 0;
    std::uint64_t allocations = 0;
    std::uint64_t frees = 0;
    std::uint64_t hits = 0;
    headroom room;  // of the three ledgers, when it was opened

    /// Whether a peak would rise with so much more live. One expression for one branch.
    [[nodiscard]] bool exceeds_room(const headroom& more) const noexcept {
      const auto blocks = static_cast<std::int64_t>(allocations - frees);
      return (static_cast<unsigned>(requested + more.requested > room.requested) |
              static_cast<unsigned>(allocated + more.allocated > room.allocated) |
              static_cast<unsigned>(blocks + more.blocks > room.blocks)) != 0;
    }
  };

  /// The page is this account's from here on.
  void turn_to(account_number account) noexcept {
    if (page_.account != account) [[unlikely]]
      open_page(account);
  }
  void open_page(account_number account) noexcept;
  /// Its ledgers know what the page counted, and the page is nobody's: who changes ledgers
  /// otherwise comes here first. Changes no figure that anybody reads, so readers may.
  void enter_page() const noexcept;
  void raise_peaks_with_page() noexcept;
  void raise_peaks_with_page(const account_delta& counted, bool alone) noexcept;

  template <class Change>
  void change(account_number account, const Change& apply) const noexcept;
  [[nodiscard]] ledger& tag_ledger(tag tag);

  mutable page page_;
  mutable ledger total_;
  std::unordered_map<pool_id, std::unique_ptr<ledger>> pools_;
  std::vector<std::unique_ptr<tag_entry>> tags_;  // by number; null: never used
  std::vector<cell> cells_;                       // by account number
  std::unordered_map<std::uint64_t, account_number> private_;
  std::vector<account_number> unused_;  // private numbers that may be given again
};

}  // namespace weir::inline v0::heap
