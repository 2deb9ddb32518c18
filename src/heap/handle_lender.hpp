// SPDX-License-Identifier: Apache-2.0
// Lends whole physical handles of the allocator to reservations of growable memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "heap/heap_core.hpp"
#include "heap/identified_stream.hpp"
#include "heap/page_mappings.hpp"
#include "heap/stream_progress.hpp"
#include "heap/vocabulary.hpp"
#include "order/driver_access.hpp"
#include "weir/base/bytes.hpp"
#include "weir/base/result.hpp"
#include "weir/device/stream.hpp"

namespace weir { inline namespace v0 { namespace heap {

/// Where a block that is a whole handle may come from.
struct handle_source {
  std::uint64_t address = 0;   // only the handle at this address of the allocator; 0: any
  bool only_free_now = false;  // without a search for room; errc::not_found if there is none
};

/// What the lender asks of the heap. Implemented by the central heap.
class handle_lender_host {
 public:
  [[nodiscard]] virtual result<identified_stream> identify(const stream_ref& stream) = 0;
  // With the heap's lock:
  /// Whether the allocator's own memory comes in handles that can be lent.
  [[nodiscard]] virtual bool lends_handles() const = 0;
  /// A live block of the allocator's own pool that is one handle, of at most that size. Lets go of
  /// the lock as a request does.
  [[nodiscard]] virtual result<block_index> allocate_handle(bytes size,
                                                            const identified_stream& stream,
                                                            const handle_source& from) = 0;
  /// Frees it; no thread's cache takes it.
  [[nodiscard]] virtual result<void> free_handle(std::uint64_t block,
                                                 const identified_stream& stream) = 0;

 protected:
  ~handle_lender_host() = default;
};

/// A range of addresses that handles are lent to, for descriptions.
struct lent_range {
  std::uint64_t base = 0;
  std::uint64_t size = 0;
  std::uint64_t page = 0;
  std::string name;
};

/// Maps free handles of the allocator at addresses of a reservation, and takes them back.
///
///   arena         | block | lent block | free |          the handle stays mapped in the arena
///                               |
///   reservation   |      . | page | . . . |              and is mapped here as well
///
/// A lent handle is a live block of the allocator's own pool. So limits, tags, statistics, budgets,
/// snapshots and the search for room treat it as any other block. Taking a page back frees the
/// block behind all work queued so far (the crossing rule) and makes no driver call: the mapping is
/// left parked. If the same handle can be lent to the same address again, lending makes no driver
/// call either. Otherwise the parked mapping is unmapped once the work of before is complete.
/// Before a handle goes to the driver all its parked mappings are unmapped.
///
/// A page is one handle if one of its size is free or can be created. If only smaller ones are
/// free, they are mapped one behind the other.
///
/// Owned by the central heap. Public functions take the heap's lock, but for those of
/// outside_mappings and end(), which are called with it. Any thread; the caller sees to it that
/// two threads do not lend to or take back the same addresses at the same time.
class handle_lender final : public placement::outside_mappings {
 public:
  handle_lender(heap_core& core, stream_progress& progress, handle_lender_host& host) noexcept
      : core_{core}, progress_{progress}, host_{host} {}
  handle_lender(const handle_lender&) = delete;
  handle_lender& operator=(const handle_lender&) = delete;

  // --- Reservations -----------------------------------------------------------------------------

  /// not_supported: the allocator has no arena (classic policies, heap_debug).
  [[nodiscard]] result<void> add(lent_range range);
  /// Unmaps what is parked in the range, waiting for work that may use it, and forgets the range.
  /// still_live: pages are lent, or mappings could not be unmapped; the addresses must stay
  /// reserved.
  [[nodiscard]] result<void> remove(std::uint64_t base);

  // --- Pages ------------------------------------------------------------------------------------

  /// Maps memory at each of these pages, accessible, for work that is queued on `stream` from now
  /// on. All or nothing. Throws what a callback of the user's throws.
  [[nodiscard]] result<void> lend(std::span<const std::uint64_t> pages, bytes page,
                                  const stream_ref& stream);
  /// Gets what take_back() on the stream needs, so that it cannot fail while the allocator is open.
  [[nodiscard]] result<void> prepare_take_back(const stream_ref& stream);
  /// Work queued so far may still use these pages; afterwards their memory serves others.
  result<void> take_back(std::span<const std::uint64_t> pages, bytes page,
                         const stream_ref& stream);
  /// Waits for all work that was queued so far. capture_forbidden: a stream is being captured.
  [[nodiscard]] result<void> await_all_work();
  /// Unmaps parked pages of the range that no work can use any more. Waits for nothing. Returns how
  /// many bytes were unmapped.
  [[nodiscard]] result<bytes> unmap_parked(std::uint64_t begin, std::uint64_t end);

  // --- Inspection -------------------------------------------------------------------------------

  /// What an address of a reservation is; empty: it is in none. With the heap's lock.
  [[nodiscard]] std::string describe(std::uint64_t address) const override;
  /// The blocks of the allocator that are lent to a page, by address.
  [[nodiscard]] std::vector<std::uint64_t> blocks_of(std::uint64_t page, bytes size) const;

  // --- With the heap's lock ---------------------------------------------------------------------

  [[nodiscard]] result<void> unmap(const vmm::physical& memory,
                                   const context_scope& bound) override;
  [[nodiscard]] result<void> unmap_all(const context_scope& bound) override;
  /// Gives another device access to all pages.
  [[nodiscard]] result<void> grant(const vmm::access& peer, const context_scope& bound) override;
  /// The heap is closed and all work is done: nothing is mapped in reservations any more.
  [[nodiscard]] result<void> end(const context_scope& bound) noexcept;

 private:
  /// A handle on its way into a page.
  struct part {
    std::uint64_t block = 0;
    vmm::physical memory{};
  };
  using parts = std::vector<part>;

  // These let go of the lock where a request does.
  [[nodiscard]] result<void> lend_all(std::span<const std::uint64_t> pages, bytes page,
                                      const identified_stream& stream, std::size_t& done)
      WEIR_REQUIRES(core_.mutex_);
  [[nodiscard]] result<void> lend_page(std::uint64_t page, bytes size,
                                       const identified_stream& stream, driver_access& driver)
      WEIR_REQUIRES(core_.mutex_);
  [[nodiscard]] result<bool> lend_again(std::uint64_t page, bytes size,
                                        const identified_stream& stream)
      WEIR_REQUIRES(core_.mutex_);
  [[nodiscard]] result<void> acquire(bytes size, const identified_stream& stream, parts& into)
      WEIR_REQUIRES(core_.mutex_);
  [[nodiscard]] result<void> vacate(std::uint64_t begin, std::uint64_t end, driver_access& driver)
      WEIR_REQUIRES(core_.mutex_);
  [[nodiscard]] result<void> await_use(std::uint64_t begin, std::uint64_t end,
                                       driver_access& driver) WEIR_REQUIRES(core_.mutex_);

  [[nodiscard]] result<void> map_parts(std::uint64_t page, const parts& from, driver_access& driver)
      WEIR_REQUIRES(core_.mutex_);
  [[nodiscard]] result<void> grant_all(std::span<const std::uint64_t> pages, bytes page,
                                       driver_access& driver) WEIR_REQUIRES(core_.mutex_);
  void undo(std::span<const std::uint64_t> pages, bytes page,
            const identified_stream& stream) noexcept WEIR_REQUIRES(core_.mutex_);
  void free_parts(const parts& unused, const identified_stream& stream) noexcept
      WEIR_REQUIRES(core_.mutex_);
  /// The pages' blocks are free, and the mappings parked, as used until now.
  result<void> park(std::uint64_t begin, std::uint64_t end, const identified_stream& stream)
      WEIR_REQUIRES(core_.mutex_);
  [[nodiscard]] result<page_mappings::iterator> unmap_at(page_mappings::iterator mapping,
                                                         const context_scope& bound)
      WEIR_REQUIRES(core_.mutex_);
  [[nodiscard]] const lent_range* range_of(std::uint64_t address) const noexcept
      WEIR_REQUIRES(core_.mutex_);
  /// To the simulated machine's check of accesses, if there is one.
  void tell(memory_event_kind kind, std::uint64_t address, bytes size,
            const identified_stream* stream = nullptr) const noexcept WEIR_REQUIRES(core_.mutex_);

  heap_core& core_;
  stream_progress& progress_;
  handle_lender_host& host_;
  page_mappings mappings_ WEIR_GUARDED_BY(core_.mutex_);
  std::vector<lent_range> ranges_ WEIR_GUARDED_BY(core_.mutex_);
};

}}}  // namespace weir::v0::heap
