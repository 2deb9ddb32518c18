// SPDX-License-Identifier: Apache-2.0
// The state behind growable_memory: addresses, pages, and who keeps them.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.hpp"
#include "growable/holds.hpp"
#include "growable/page_backup.hpp"
#include "growable/page_change.hpp"
#include "growable/page_table.hpp"
#include "heap/handle_lender.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/virtual_memory.hpp"
#include "weir/growable/growable_memory.hpp"

namespace weir { inline namespace v0 { namespace growable {

/// One reservation of growable memory.
///
/// Knows which page is in which state; the heap's handle_lender maps and unmaps. A commit is a
/// page_change: open() does what can fail, apply() and cancel() end it. Pages of an open change
/// belong to it, so the mutex is not held while memory is looked for: callbacks of the user's may
/// use this object.
///
/// Owned by the handles of users, plans and holds. Any thread. Takes the heap's lock with its own
/// mutex held, never the other way round.
class reservation final {
 public:
  [[nodiscard]] static result<std::shared_ptr<reservation>> create(
      const caching_allocator& allocator, bytes size, const growable_options& options);
  reservation(caching_allocator allocator, address_range range, bytes size,
              const growable_options& options);
  ~reservation();
  reservation(const reservation&) = delete;
  reservation& operator=(const reservation&) = delete;

  [[nodiscard]] std::uint64_t base() const noexcept { return base_; }
  [[nodiscard]] bytes page() const noexcept { return page_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] bytes size() const noexcept WEIR_EXCLUDES(mutex_);
  [[nodiscard]] growable_stats stats() const noexcept WEIR_EXCLUDES(mutex_);
  [[nodiscard]] bool is_committed(byte_range range) const WEIR_EXCLUDES(mutex_);

  // --- Changes ----------------------------------------------------------------------------------

  [[nodiscard]] result<std::unique_ptr<page_change>> open(std::span<const byte_range> commits,
                                                          std::span<const byte_range> decommits,
                                                          const stream_ref& stream)
      WEIR_EXCLUDES(mutex_);
  /// Returns what went wrong although nothing should: for the error handler.
  result<void> apply(page_change& change) noexcept WEIR_EXCLUDES(mutex_);
  void cancel(page_change& change) noexcept WEIR_EXCLUDES(mutex_);

  result<void> decommit(std::span<const byte_range> ranges, const stream_ref& stream)
      WEIR_EXCLUDES(mutex_);
  result<void> commit_ahead(bytes watermark, const stream_ref& stream) WEIR_EXCLUDES(mutex_);
  result<void> resize(bytes size, const stream_ref& stream) WEIR_EXCLUDES(mutex_);
  result<bytes> trim() WEIR_EXCLUDES(mutex_);

  // --- Holds ------------------------------------------------------------------------------------

  [[nodiscard]] result<std::shared_ptr<hold_record>> hold() WEIR_EXCLUDES(mutex_);
  [[nodiscard]] result<void> tie_to_graph(driver::CUgraph graph) WEIR_EXCLUDES(mutex_);
  /// Gives back pages that nobody holds any more.
  void sweep() noexcept WEIR_EXCLUDES(mutex_);

  // --- Suspending: suspension.cpp ---------------------------------------------------------------

  [[nodiscard]] result<bytes> suspend(suspended_contents contents) WEIR_EXCLUDES(mutex_);
  [[nodiscard]] result<void> resume(const stream_ref& stream) WEIR_EXCLUDES(mutex_);

  [[nodiscard]] result<block_handles> handles_under(bytes offset) const WEIR_EXCLUDES(mutex_);
  result<void> close() noexcept WEIR_EXCLUDES(mutex_);

 private:
  using pages = std::vector<page_number>;
  using addresses = std::vector<std::uint64_t>;

  [[nodiscard]] result<void> usable() const WEIR_REQUIRES(mutex_);
  [[nodiscard]] page_ranges ranges() const noexcept WEIR_REQUIRES(mutex_) { return {page_, size_}; }
  [[nodiscard]] std::uint64_t address_of(page_number page) const noexcept {
    return base_ + page * page_.count();
  }
  [[nodiscard]] addresses addresses_of(const pages& of) const;
  /// Which pages a commit needs; they belong to the change from then on.
  [[nodiscard]] result<void> claim(page_change& change, std::span<const byte_range> commits,
                                   std::span<const byte_range> decommits) WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<void> get_memory(page_change& change) WEIR_EXCLUDES(mutex_);
  /// The stream of the change waits for the streams for which adopted pages were lent.
  [[nodiscard]] result<void> order_adopted(const page_change& change) WEIR_EXCLUDES(mutex_);
  void restore(page_change& change) noexcept WEIR_REQUIRES(mutex_);
  /// Of pages that are committed or ahead: they go, unless a graph keeps them.
  [[nodiscard]] result<void> leave(const pages& leaving, const stream_ref& stream)
      WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<void> give_back(const pages& given, const stream_ref& stream)
      WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<void> drop_ahead(page_number from) WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<void> sweep_locked() WEIR_REQUIRES(mutex_);
  /// A stream without work: memory that is freed on it is nobody's before all work is done.
  [[nodiscard]] stream_ref quiet_stream() WEIR_REQUIRES(mutex_);
  void keep_addresses() noexcept WEIR_REQUIRES(mutex_);
  /// Pages of a suspension, and what they were.
  using pages_before = std::vector<page_change::adoption>;
  void restore_states(const pages_before& of) noexcept WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<void> save_and_take_back(const pages_before& leaving,
                                                suspended_contents contents) WEIR_EXCLUDES(mutex_);
  [[nodiscard]] result<void> bring_back(const stream_ref& stream) WEIR_EXCLUDES(mutex_);

  const caching_allocator allocator_;
  heap::handle_lender& lender_;
  const std::uint64_t base_;
  const bytes page_;
  const tag tag_;
  const std::string name_;

  mutable detail::mutex mutex_;
  address_range range_ WEIR_GUARDED_BY(mutex_);
  std::list<std::optional<address_range>> place_to_keep_it_{
      1};  // made ahead: keeping it must not fail
  bytes size_ WEIR_GUARDED_BY(mutex_);
  page_table pages_ WEIR_GUARDED_BY(mutex_);
  /// Of pages that are ahead or held: the stream that may use them. By page.
  std::vector<std::optional<stream_ref>> streams_ WEIR_GUARDED_BY(mutex_);
  holds holds_ WEIR_GUARDED_BY(mutex_);
  std::optional<stream> quiet_ WEIR_GUARDED_BY(mutex_);
  std::uint64_t commits_ WEIR_GUARDED_BY(mutex_) = 0;
  std::uint64_t decommits_ WEIR_GUARDED_BY(mutex_) = 0;
  std::uint32_t changes_ WEIR_GUARDED_BY(mutex_) = 0;  // that are open
  bool closed_ WEIR_GUARDED_BY(mutex_) = false;
  bool suspended_ WEIR_GUARDED_BY(mutex_) = false;  // or on its way there, or back
  bool moving_ WEIR_GUARDED_BY(mutex_) = false;     // on its way
  pages_before away_;                               // as long as it is suspended; of who moves it
  page_backup contents_;                            // the same
};

}}}  // namespace weir::v0::growable
