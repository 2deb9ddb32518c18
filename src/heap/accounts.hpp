// SPDX-License-Identifier: Apache-2.0
// The ledger: what is held by pool, by tag and in all.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "weir/base/result.hpp"
#include "weir/observe/events.hpp"
#include "weir/observe/stats.hpp"
#include "weir/observe/tag.hpp"

namespace weir { inline namespace v0 { namespace heap {

/// A pool and a tag, as one number that fits a block's record. The allocator's own pool comes
/// first: there the number is the tag's.
using account_number = std::uint16_t;
constexpr account_number first_private_account = tag::most + 1;
[[nodiscard]] constexpr bool is_private(account_number account) noexcept {
  return account >= first_private_account;
}

/// Bytes asked for, bytes taken and blocks: a change of what is live, or a distance to a peak.
struct live_amounts {
  std::int64_t requested = 0;
  std::int64_t allocated = 0;
  std::int64_t blocks = 0;

  friend bool operator==(const live_amounts&, const live_amounts&) = default;
};

/// What a thread's cache did since it was last folded in: with the blocks of one account, or with
/// all of them.
///
/// Knows how much more is live than at the fold, and the most that this was meanwhile, each of the
/// three amounts by itself. It keeps how far an amount is below its most, so that the sign of a
/// difference tells the fast path that the most rises.
///
/// Belongs to a thread_cache, whose rules say who may use it. A cache line, which a shift finds.
class alignas(64) account_delta {
 public:
  void count_allocation(std::uint64_t requested, std::uint64_t rounded) noexcept {
    requested_.add(requested);
    allocated_.add(rounded);
    if (++allocations_ > allowed_) [[unlikely]] {
      most_blocks_ += static_cast<std::int64_t>(allocations_ - allowed_);
      allowed_ = allocations_;
    }
  }
  void count_free(std::uint64_t requested, std::uint64_t rounded) noexcept {
    requested_.subtract(requested);
    allocated_.subtract(rounded);
    ++allowed_;
  }

  /// How much more is live than at the fold; negative where it is less.
  [[nodiscard]] live_amounts change() const noexcept {
    return {requested_.change(), allocated_.change(),
            static_cast<std::int64_t>(allocations_ - frees())};
  }
  /// The most that change() was since the fold, each amount by itself; 0 or more.
  [[nodiscard]] live_amounts most() const noexcept {
    return {requested_.most, allocated_.most, most_blocks_};
  }
  [[nodiscard]] std::uint64_t allocations() const noexcept { return allocations_; }
  [[nodiscard]] std::uint64_t frees() const noexcept {
    return allowed_ - static_cast<std::uint64_t>(most_blocks_);
  }
  [[nodiscard]] bool is_empty() const noexcept { return allocations_ == 0 && allowed_ == 0; }

 private:
  /// Rooms do not lie side by side: compilers would add to two of them as one vector, which takes
  /// more instructions.
  struct amount {
    std::int64_t room = 0;  // most - change()
    std::int64_t most = 0;

    void add(std::uint64_t size) noexcept {
      room -= static_cast<std::int64_t>(size);
      if (room >= 0) [[likely]]
        return;
      // Read again here, so that the fast path needs no register for it.
      std::atomic_signal_fence(std::memory_order_seq_cst);
      most -= room;
      room = 0;
    }
    void subtract(std::uint64_t size) noexcept { room += static_cast<std::int64_t>(size); }
    [[nodiscard]] std::int64_t change() const noexcept { return most - room; }
  };

  amount requested_;
  amount allocated_;
  std::uint64_t allocations_ = 0;
  std::uint64_t allowed_ = 0;  // most_blocks_ + frees(): more allocations raise most_blocks_
  std::int64_t most_blocks_ = 0;
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
  /// To what is live and `more`.
  void raise_peaks(const live_amounts& more) noexcept;
  /// To those of a part of it, which it cannot have been below.
  void raise_peaks(const ledger& part) noexcept;
  void reset_peaks() noexcept;
  void reset_counters() noexcept;
  void add_pending() noexcept;
  /// How much more can be live before a peak rises; negative where it would rise at once.
  [[nodiscard]] live_amounts below_peaks() const noexcept;
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

  void allocated(account_number account, std::uint64_t requested, std::uint64_t rounded) noexcept {
    turn_to(account);
    page_.requested += static_cast<std::int64_t>(requested);
    page_.allocated += static_cast<std::int64_t>(rounded);
    ++page_.allocations;
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
  /// Takes over what a cache counted and clears it. Peaks do not rise: raise them first to what the
  /// cache's owner had, and with raise_peaks() where several caches were taken over.
  void fold(account_number account, account_delta& counted) noexcept {
    if (counted.is_empty()) return;
    turn_to(account);
    const live_amounts change = counted.change();
    page_.requested += change.requested;
    page_.allocated += change.allocated;
    page_.hits += counted.allocations();
    page_.allocations += counted.allocations();
    page_.frees += counted.frees();
    counted = {};
  }
  /// Raises all peaks to what is live, and those of the total to those of its parts: with several
  /// threads it may have missed what a pool or tag has seen.
  void raise_peaks() noexcept;
  /// Raises the peaks of the account's pool and tag and of all to what is live and `more`.
  void raise_peaks(account_number account, const live_amounts& more) noexcept {
    turn_to(account);
    if (page_.exceeds_room(more)) [[unlikely]]
      raise_peaks_with_page(more);
  }
  /// The same of its tag only.
  void raise_tag_peaks(account_number account, const live_amounts& more) noexcept;
  /// The same of all, and of the allocator's own pool.
  void raise_common_peaks(const live_amounts& more) noexcept;
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
  /// While it lives, so much more of a tag with a limit counts as live for may_allocate(): of a
  /// request that looks for room, perhaps without the lock for a while. With the lock on either
  /// end.
  class claim;
  /// How much of the tag requests claim now.
  [[nodiscard]] std::uint64_t claimed(tag tag) const noexcept;
  /// Whether so much more may be live with the tag, beside what is claimed.
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
    std::uint64_t claimed = 0;
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
    live_amounts room;  // of the three ledgers, when it was opened

    /// Whether a peak would rise with so much more live. One expression for one branch.
    [[nodiscard]] bool exceeds_room(const live_amounts& more) const noexcept {
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
  void raise_peaks_with_page(const live_amounts& more) noexcept;

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

class accounts::claim {
 public:
  claim(accounts& books, tag tag, std::uint64_t more) noexcept
      : entry_{books.limited(tag) ? books.tags_[tag.number()].get() : nullptr}, more_{more} {
    if (entry_ != nullptr) entry_->claimed += more_;
  }
  ~claim() {
    if (entry_ != nullptr) entry_->claimed -= more_;
  }
  claim(const claim&) = delete;
  claim& operator=(const claim&) = delete;

 private:
  tag_entry* const entry_;
  const std::uint64_t more_;
};

}}}  // namespace weir::v0::heap
