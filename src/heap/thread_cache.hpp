// SPDX-License-Identifier: Apache-2.0
// What a thread keeps of the memory it freed, so that its next requests need no lock.
//
// The states of a block of the allocator's own pool, and the functions that change them:
//
//   stored ------------------------ fit ------------------------> live
//     ^                           fast_free, keep_large,          |  ^  fast_allocate,
//     |                                     cached_free,          |  |  take_large,
//     |                                                     keep  v  |  cached_allocate
//     |<-- flush_bins, flush_half, flush_large ------------- binned, large
//     |                                                        ^
//     |                                         take_in_remote |
//     |<-- close ------------------------------------------- remote <-- hand_back_aside --- aside
//     |                                         take_in_remote |                              |
//     |                                                        v         leave_aside_unplaced |
//     '<-- flush_unplaced ---------------------------------- unplaced <-----------------------'
//
//   live ---> aside: free_to_owner, where the block's home is another thread's cache
//   live ---> stored: locked_free, free_locked, where no cache takes it
//
//   Two threads free a live block at once, one of them its home's owner without the lock:
//
//   live ---> aside: the other thread's claim()
//   aside ---> aside and binned: the owner, in fast_free or cached_free, read `kind` before that
//   aside and binned ---> binned: the other thread's free was the second, and is reported
//
//   stored    free memory in the pool's store
//   live      handed out
//   binned    in a list by size of a cache, which is the block's home
//   large     the one block above 1 MiB that a cache keeps
//   aside     freed by another thread than that of its home; several go home together
//   remote    home, in the list of the cache that other threads write
//   unplaced  found no place in its home; whoever has the lock next flushes it
//
// Blocks that are binned or large are of kind thread_cached. Those that are aside, remote or
// unplaced are claimed, of kind given_back, and not counted as freed yet. All stay in the address
// table.
//
// The owner writes `kind` without a read-modify-write, so only who sees all that it wrote can say
// which of two frees was the first: the owner itself (take_in_remote), or who has stopped it or
// waited until it was outside (flush_given, begin_free). A claimed block whose kind is not
// given_back then was freed by its owner first, and may even be handed out again. The claim lasts
// until that is decided: nobody else sets the block aside, and the lists of claimed blocks run
// through members of their own. A block whose claim is open is not returned to its store
// (end_claims_on).
//
// A block above 1 MiB has no home and is not claimed. Who frees it without the lock sets its kind
// from live to questioned, and sees then whether the record is that block's: begin_free().
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "heap/accounts.hpp"
#include "heap/asymmetric_barrier.hpp"
#include "heap/vocabulary.hpp"
#include "weir/base/ids.hpp"
#include "weir/observe/events.hpp"

namespace weir { inline namespace v0 { namespace heap {

/// Blocks above this size (1 MiB) are not kept by size; one of them is kept a thread.
constexpr std::uint32_t most_binned_units = 2048;
/// Blocks behind the work of streams with larger numbers are freed for their home with the lock.
constexpr stream_slot most_given_on = 0xffff;

/// The block is the user's from now on, who asked for so many of its bytes. Every request that
/// finds one ends here.
inline void become_live(block& block, account_number account, std::uint64_t requested,
                        std::uint64_t rounded) noexcept {
  block.become(block_kind::live);
  block.account = account;
  block.out.waste = static_cast<std::uint32_t>(rounded - requested);
}

/// Ends the life of a live block above 1 MiB, which has no home, for who has the heap's lock. Of
/// several threads that free it at once, one gets true; the others free nothing. Whatever may
/// refuse the free comes before.
[[nodiscard]] inline bool begin_free(block& block) noexcept {
  auto was = block_kind::live;
  return block.kind.compare_exchange_strong(was, block_kind::thread_cached,
                                            std::memory_order_relaxed);
}

/// The same without the lock, for the block at this address, between enter() and leave() of the
/// calling thread's cache.
///
/// Where the block was freed before, its record may stand for another block by now, which nobody
/// frees here. That one is `questioned` for a moment. A free that meets this waits until the thread
/// here is outside (central_heap::find_live).
[[nodiscard]] inline bool begin_free(block& block, std::uint64_t address) noexcept {
  auto was = block_kind::live;
  if (!block.kind.compare_exchange_strong(was, block_kind::questioned, std::memory_order_acq_rel,
                                          std::memory_order_relaxed))
    return false;
  if (block.address == address && block.units > most_binned_units) [[likely]] {
    block.become(block_kind::thread_cached);
    return true;
  }
  was = block_kind::questioned;
  block.kind.compare_exchange_strong(was, block_kind::live, std::memory_order_release,
                                     std::memory_order_relaxed);
  return false;
}

/// Frees the live block at this address, up to 1 MiB, for a thread that is not its home's. Of
/// several such threads one gets true; the others free nothing.
///
/// Whether this free or one by the home's owner came first is still open. The owner reads `kind`
/// and writes it some instructions later without a read-modify-write, and so may overwrite what is
/// written here: then its free is the first. Who has claimed the block writes `given_on`,
/// `given_next` and `ahead`, and nothing that the owner uses, until it is decided
/// (thread_cache::take_in_remote, cache_flusher).
[[nodiscard]] inline bool claim(block& block, std::uint64_t address) noexcept {
  if (block.claimed.exchange(true, std::memory_order_acquire)) return false;
  auto was = block_kind::live;
  if (block.kind.compare_exchange_strong(was, block_kind::given_back, std::memory_order_acq_rel,
                                         std::memory_order_relaxed)) {
    if (block.address == address) return true;
    // The record stands for another block by now: nobody frees that one.
    was = block_kind::given_back;
    block.kind.compare_exchange_strong(was, block_kind::live, std::memory_order_release,
                                       std::memory_order_relaxed);
  }
  block.claimed.store(false, std::memory_order_release);
  return false;
}

/// Takes the claim back: the block is live, unless its owner has freed it.
inline void withdraw(block& block) noexcept {
  auto was = block_kind::given_back;
  block.kind.compare_exchange_strong(was, block_kind::live, std::memory_order_release,
                                     std::memory_order_relaxed);
  block.claimed.store(false, std::memory_order_release);
}

/// Ends the claim, by who can see what the home's owner has written: the owner, or whoever has
/// stopped it. True: the block is freed. False: its owner was first, and it is what that made it.
[[nodiscard]] inline bool decide(block& block) noexcept {
  const bool was_first = block.is() == block_kind::given_back;
  if (was_first) block.become(block_kind::thread_cached);
  block.claimed.store(false, std::memory_order_release);
  return was_first;
}

/// The blocks a thread keeps for one stream: a list for every size, last freed first.
///
/// Indexed by size: 8 KiB, of which a thread touches the lines of the sizes it uses.
struct stream_bins {
  stream_id id{};
  stream_slot slot = no_stream;
  std::uint64_t last_used = 0;
  // Whether one of eight sizes was pushed; says nothing about what is left.
  static constexpr std::size_t group = 8;
  std::array<bool, most_binned_units / group + 1> touched{};
  std::array<block_index, most_binned_units + 1> heads{};

  void push(block_index index, block& block) noexcept { push(index, block, block.units); }
  void push(block_index index, block& block, std::uint64_t units) noexcept {
    block_index& head = heads[units];
    block.out.next = head;
    head = index;
    touched[units / group] = true;
  }
  /// Calls `action(size)` for every size that has a list, largest first, as long as it answers
  /// true.
  template <class Action>
  void for_each_size(const Action& action) {
    static_assert(std::endian::native == std::endian::little);
    // The last group stands alone, behind whole words of eight.
    if (touched.back() && !for_each_in_group(touched.size() - 1, action)) return;
    for (std::size_t at = touched.size() - 1; at != 0; at -= 8) {
      std::uint64_t eight = 0;  // mostly nothing
      std::memcpy(&eight, &touched[at - 8], sizeof eight);
      while (eight != 0) {
        const auto top = static_cast<std::size_t>(63 - std::countl_zero(eight)) / 8;
        if (!for_each_in_group(at - 8 + top, action)) return;
        eight &= ~(std::uint64_t{0xff} << top * 8);
      }
    }
  }

 private:
  template <class Action>
  [[nodiscard]] bool for_each_in_group(std::size_t at, const Action& action) {
    const std::size_t first = at * group;
    const std::size_t count = std::min(group, heads.size() - first);
    // Which of them have one nobody can foretell: no branch asks.
    unsigned filled = 0;
    for (std::size_t i = 0; i < count; ++i)
      filled |= static_cast<unsigned>(heads[first + i] != no_block) << i;
    bool left = false;
    while (filled != 0) {
      const auto top = static_cast<unsigned>(31 - std::countl_zero(filled));
      if (!action(first + top)) return false;
      left = left || heads[first + top] != no_block;
      filled &= ~(1u << top);
    }
    touched[at] = left;
    return true;
  }
};

/// One thread's cache of one allocator.
///
/// The thread that owns it uses it between enter() and leave(), without lock and without an atomic
/// read-modify-write. Everybody else, and the owner's own slow paths, hold the heap's lock; a
/// foreign cache is stopped first (thread_caches::stop), so that its owner is outside and stays
/// there. The owner never waits for the lock while it is inside.
///
/// Kept are live blocks of the allocator's own pool that nobody recorded, up to `most_units` of
/// those by size and one large one. Each is of kind thread_cached and stays in the address table;
/// those by size have their home here. Blocks that came from another cache are set aside until they
/// are handed back to it, or, where that has enough, unplaced until somebody has the lock.
class alignas(64) thread_cache {
 public:
  static constexpr std::size_t most_streams = 8;
  static constexpr std::uint32_t most_unplaced = 32;
  static constexpr std::uint32_t most_turns = 32;
  static constexpr std::uint32_t most_aside = 16;
  /// A table of no stream, never written.
  static stream_bins nothing;

  // Why the owner must leave the fast path: for the lock ...
  static constexpr std::uint32_t stopped = 1;     ///< somebody looks into it
  static constexpr std::uint32_t closed = 2;      ///< the allocator is
  static constexpr std::uint32_t capturing = 4;   ///< ask whether the stream is being captured
  static constexpr std::uint32_t suspended = 64;  ///< the allocator's own memory is
  // ... or for the one that looks more closely.
  static constexpr std::uint32_t observed = 8;  ///< somebody listens
  static constexpr std::uint32_t limited = 16;  ///< a tag has a limit, or a pool of its own
  static constexpr std::uint32_t fenced = 32;   ///< the kernel has no membarrier
  static constexpr std::uint32_t closer_look = observed | limited | fenced;

  /// The number of a cache that is no block's home.
  static constexpr std::uint16_t homeless = 0xffff;

  explicit thread_cache(std::uint16_t own_number) noexcept : number{own_number} {}

  /// What a block of this cache says of its home.
  [[nodiscard]] std::uint16_t home() const noexcept { return number == homeless ? 0 : number; }

  /// The reasons to leave at once; 0: none. Either way leave() follows.
  [[nodiscard]] std::uint32_t enter_fast() noexcept {
    busy.store(1, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);  // for the rest see `fenced`
    const std::uint32_t reasons = attention.load(asymmetric_barrier::load_order);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    return reasons;
  }
  /// False: take the lock, nothing is held. Reasons in `accepted` do not count.
  [[nodiscard]] bool enter(std::uint32_t accepted) noexcept {
    busy.store(1, std::memory_order_relaxed);
    asymmetric_barrier::light();
    const std::uint32_t reasons = attention.load(asymmetric_barrier::load_order);
    asymmetric_barrier::loaded();
    if ((reasons & ~accepted) == 0) return true;
    leave();
    return false;
  }
  void leave() noexcept { busy.store(0, std::memory_order_release); }
  /// For the owner: whether to ask, before anything, if its stream is being captured.
  [[nodiscard]] bool asks_captures() const noexcept {
    return (attention.load(std::memory_order_relaxed) & capturing) != 0;
  }

  /// For the owner: whether somebody seems to listen; inside, `observer` says.
  [[nodiscard]] bool is_observed() const noexcept {
    return (attention.load(std::memory_order_relaxed) & observed) != 0;
  }

  // --- Between enter() and leave(), or with the lock --------------------------------------------

  [[nodiscard]] stream_bins* bins_of(stream_id id) noexcept {
    return current->id == id ? current : search(id);
  }
  [[nodiscard]] stream_bins* bins_of(stream_slot slot) noexcept {
    return current->slot == slot ? current : search(slot);
  }
  /// Whether what happens to this account may be counted here.
  [[nodiscard]] bool counts(account_number account) const noexcept {
    return account < delta_count && !limits[account];
  }
  void count_allocation(account_number account, std::uint64_t requested,
                        std::uint64_t rounded) noexcept {
    sum.count_allocation(requested, rounded);
    if (counts_tags) [[unlikely]]
      deltas[account].count_allocation(requested, rounded);
  }
  void count_free(account_number account, std::uint64_t requested, std::uint64_t rounded) noexcept {
    sum.count_free(requested, rounded);
    if (counts_tags) [[unlikely]]
      deltas[account].count_free(requested, rounded);
  }

  /// Keeps a claimed block, not counted as freed yet, for whoever next has the lock.
  void leave_unplaced(block_index index, block& block) noexcept {
    block.out.given_next = unplaced;
    unplaced = index;
    unplaced_units += block.units;
    ++unplaced_count;
  }
  /// Whether that is worth taking the lock for.
  [[nodiscard]] bool has_enough_unplaced() const noexcept {
    return unplaced_count >= most_unplaced || unplaced_units > bound();
  }
  /// Sets a claimed block aside that came from `owner`: a write to what both threads use costs each
  /// of them as much as all else, so it is made for several. What is aside must all be of one
  /// owner.
  void set_aside(block_index index, block& block, thread_cache& owner) noexcept {
    block.out.given_next = aside.first;
    aside.first = index;
    if (aside.count++ == 0) aside.last = index;
    aside.units += block.units;
    aside.owner = &owner;
  }
  /// Whether that is worth the write: no more than a quarter of what a cache may hold waits for it.
  [[nodiscard]] bool has_enough_aside() const noexcept {
    return aside.count == most_aside || aside.units > bound() / 4;
  }
  /// Hands what is aside back to the cache that the blocks came from. Where that takes no more,
  /// they are left unplaced.
  void hand_back_aside(block_store& blocks) noexcept;
  void leave_aside_unplaced(block_store& blocks) noexcept;
  /// Takes in what other threads freed. What finds no place here is left unplaced, and so is what
  /// the owner had freed before.
  void take_in_remote(block_store& blocks) noexcept;
  /// Leaves unplaced whatever is on its way here or elsewhere.
  void leave_all_unplaced(block_store& blocks) noexcept;

  // --- From any thread --------------------------------------------------------------------------

  /// Leaves blocks that this cache handed out and another thread freed, of so many units together,
  /// linked from `first` to `last`; they are claimed and name the streams of their frees. False:
  /// the cache is closed or has enough.
  [[nodiscard]] bool push_remote(block_index first, block& last, std::uint64_t more) noexcept;
  /// Takes no more from other threads; returns the list of what they left, not counted as freed.
  [[nodiscard]] block_index close_remote() noexcept;
  /// For the owner, who sets a block aside: the one that it set aside eight before. Whoever takes
  /// them in comes to that one eight later, and has it fetched by then.
  [[nodiscard]] block_index left_before(block_index index) noexcept {
    return std::exchange(left_elsewhere[left_count++ % left_elsewhere.size()], index);
  }
  [[nodiscard]] bool has_remote() const noexcept {
    return remote.load(std::memory_order_relaxed) != 0;
  }

  // --- With the lock ----------------------------------------------------------------------------

  /// Counts accounts up to `account` from now on; false where the host has no memory. What was
  /// counted must have been folded in.
  [[nodiscard]] bool make_room(account_number account) noexcept;
  /// Adds a table for a stream; there must be fewer than most_streams. Null: no host memory.
  stream_bins* add_bins(stream_id id, stream_slot slot) noexcept;
  [[nodiscard]] bool has_every_bins() const noexcept { return tables.size() == most_streams; }
  [[nodiscard]] stream_bins* least_recent() noexcept;
  void remove_bins(stream_bins* bins) noexcept;
  /// Whether a table is to make way for the stream, which has none. Not if the streams without a
  /// table take turns: each would lose it before it is of use, and what it holds would have to be
  /// flushed each time. A stream that asks twice in a row gets one.
  [[nodiscard]] bool makes_way_for(stream_slot slot) noexcept;
  /// An empty table is another stream's from now on. A new one would have to be cleared first,
  /// which takes longer than all else that such a request or free does.
  stream_bins* reassign_bins(stream_bins& bins, stream_id id, stream_slot slot) noexcept;
  [[nodiscard]] std::uint64_t held() const noexcept { return units * unit + large_units * unit; }
  [[nodiscard]] std::size_t footprint() const noexcept;

  // The owner's line.
  std::atomic<std::uint32_t> busy{0};
  std::atomic<std::uint32_t> attention{0};
  stream_bins* current = &nothing;  // the table used last
  account_delta* deltas = nullptr;
  std::uint32_t delta_count = 0;
  std::uint16_t number;        // what block.out.home says of blocks whose home this is
  bool refused_large = false;  // the fast path met a free last that was one of a block above 1 MiB
  bool counts_tags = false;    // there are several accounts: `deltas` is used, and not only `sum`
  std::uint64_t units = 0;     // in all tables
  /// Written by the owner with the heap's lock; read by who frees for it, too.
  std::atomic<std::uint64_t> most_units{0};
  [[nodiscard]] std::uint64_t bound() const noexcept {
    return most_units.load(std::memory_order_relaxed);
  }
  event_sink* observer = nullptr;
  block_index large = no_block;
  block_index unplaced = no_block;
  std::uint32_t unplaced_count = 0;
  std::uint64_t unplaced_units = 0;
  std::uint64_t large_units = 0;

  account_delta sum;  // of all accounts

  std::vector<std::unique_ptr<stream_bins>> tables;
  std::vector<account_delta> delta_storage;
  std::vector<bool> limits;  // by account: not served here, because its tag has a limit or pool
  stream_id per_thread_stream{};  // the id of the owner's per-thread stream, once asked
  std::uint64_t clock = 0;
  std::uint32_t turns = 0;  // how many tables made way, less how often another table was found
  stream_slot turned_away = no_stream;  // the last stream that no table made way for
  struct {
    thread_cache* owner = nullptr;  // of all of them
    block_index first = no_block;
    block_index last = no_block;
    std::uint32_t count = 0;
    std::uint64_t units = 0;
  } aside;
  std::array<block_index, 8> left_elsewhere{};  // see left_before()
  std::uint32_t left_count = 0;

  /// Head of the list in the low half, its units in the high half. Others write it: a line of its
  /// own.
  alignas(64) std::atomic<std::uint64_t> remote{0};

 private:
  [[nodiscard]] stream_bins* search(stream_id id) noexcept;
  [[nodiscard]] stream_bins* search(stream_slot slot) noexcept;
};

/// The value of thread_cache::remote that takes no more.
constexpr std::uint64_t remote_closed = ~std::uint64_t{0};

/// All caches of an allocator. Caches are never freed before it: a thread that ends leaves its
/// cache, empty and closed, to the next thread.
///
/// Owned by the central heap, whose lock guards it; at() alone goes without.
class thread_caches {
 public:
  /// `most` bytes a thread; 0: no caches at all.
  explicit thread_caches(std::uint64_t most) noexcept
      : most_{most}, reasons_{asymmetric_barrier::is_free() ? 0 : thread_cache::fenced} {}

  [[nodiscard]] bool enabled() const noexcept { return most_ != 0; }
  /// What a cache may hold, in units, while so much is reserved: no more than a 1024th, so that the
  /// caches of a small process do not keep it from packing its memory, but enough for any block
  /// that is kept by size.
  [[nodiscard]] std::uint64_t bound_at(std::uint64_t reserved) const noexcept {
    return std::min(most_,
                    std::max<std::uint64_t>(reserved / 1024, most_binned_units * unit / 4 * 5)) /
           unit;
  }
  /// A cache for a thread; null where the host has no memory.
  [[nodiscard]] thread_cache* open() noexcept;
  /// The thread is gone and the cache is empty.
  void recycle(thread_cache& cache) noexcept;
  /// The cache with that number; any thread.
  [[nodiscard]] thread_cache* at(std::uint16_t number) const noexcept {
    return homes_[number].load(std::memory_order_acquire);
  }
  /// Whether that is the number of a cache.
  [[nodiscard]] static bool is_home(std::uint16_t number) noexcept {
    return number != 0 && number < most_homes;
  }

  /// Stops the owners of all caches but `except` (the caller's own) until the end of the scope.
  class stop {
   public:
    explicit stop(thread_caches& all, thread_cache* except) noexcept;
    ~stop();
    stop(const stop&) = delete;
    stop& operator=(const stop&) = delete;

   private:
    thread_caches& all_;
    thread_cache* except_;
    bool any_ = false;
    bool inner_;  // of another one, which has stopped them all
  };

  /// Returns when the owner's calls that had begun before are over, and what they wrote is seen.
  void await_owner(thread_cache& cache) noexcept;

  /// Sets or clears a lasting reason for slow paths, on caches to come as well. Inside a stop.
  void set_reason(std::uint32_t reason, bool on) noexcept;
  void set_observer(event_sink* sink) noexcept;

  template <class Action>
  void for_each(const Action& action) {
    for (auto& each : all_) action(*each);
  }
  template <class Action>
  void for_each(const Action& action) const {
    for (const auto& each : all_) action(std::as_const(*each));
  }
  [[nodiscard]] std::size_t footprint() const noexcept;

 private:
  // A cache beyond these is nobody's home: what it handed out goes to whoever frees it.
  static constexpr std::size_t most_homes = 4096;

  std::uint64_t most_;
  std::uint32_t reasons_;
  bool stopped_{};
  event_sink* observer_ = nullptr;
  std::vector<std::unique_ptr<thread_cache>> all_;
  std::vector<thread_cache*> idle_;
  std::array<std::atomic<thread_cache*>, most_homes> homes_{};
};

/// The cache that this thread used last, and whose it is. Checked by serial: an allocator's address
/// may come again, its serial does not.
struct local_cache {
  /// Of the allocator whose requests the cache serves; 0 inside a pool_scope.
  std::uint64_t serial = 0;
  thread_cache* cache = nullptr;
  /// The same serial while the fast path that emits nothing is worth trying.
  std::uint64_t unobserved = 0;
  /// The size and stream for which the fast path last found everything as it should be, but no
  /// block; 0: none since it was asked.
  std::uint64_t missed_units = 0;
  stream_id missed_stream{};
  /// Of the allocator whose cache it is, whether or not it serves requests.
  std::uint64_t owner = 0;

  /// The cache serves no requests until the allocator has looked where they go. It still has counts
  /// that the allocator needs.
  void stop_serving() noexcept { *this = {.cache = cache, .owner = owner}; }
};
// Initial-exec: one load from a register's offset, also inside the shared library.
extern constinit thread_local local_cache this_thread __attribute__((tls_model("initial-exec")));

}}}  // namespace weir::v0::heap
