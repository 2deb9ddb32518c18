// SPDX-License-Identifier: Apache-2.0
// Inspection of a heap: figures, snapshots, reports, and the error texts about single blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.hpp"
#include "heap/accounts.hpp"
#include "heap/heap_backup.hpp"
#include "heap/heap_core.hpp"
#include "heap/identified_stream.hpp"
#include "heap/suspended_peak.hpp"
#include "heap/vocabulary.hpp"
#include "observe/misuse.hpp"
#include "observe/shortage.hpp"
#include "weir/allocator/snapshot.hpp"
#include "weir/base/error.hpp"
#include "weir/base/result.hpp"
#include "weir/device/stream.hpp"
#include "weir/observe/stats.hpp"

namespace weir { inline namespace v0 { namespace heap {

/// What an inspector asks of the heap that it inspects. Implemented by the central heap. Every call
/// but identify() is made with the heap's lock.
class inspector_host {
 public:
  /// The stream with its number. Called without the lock; may ask the driver.
  [[nodiscard]] virtual result<identified_stream> identify(const stream_ref& stream) = 0;
  /// What the caches counted goes into the accounts. Called while all caches are stopped.
  virtual void settle_caches() noexcept = 0;
  /// The record of a live block, or why the address is not that of one.
  [[nodiscard]] virtual result<block_index> find_live(const void* pointer) = 0;
  /// The pool of a tag that was declared suspendable; null if it was not.
  [[nodiscard]] virtual const pool_state* suspendable_pool(tag tag) const noexcept = 0;

 protected:
  ~inspector_host() = default;
};

/// The part of a heap that says what the heap holds and why it refused something.
///
/// It changes nothing but where counters and peaks begin. What it returns is consistent: all caches
/// are stopped and settled while it reads. On a closed heap and in a forked child its answers are
/// empty, or the error that says so.
///
/// Owned by the central heap. Any thread may call what takes the lock; the rest is for other parts
/// of the heap, which hold it.
class inspector {
 public:
  /// `heap_size` is the size of the object that this and the core are parts of.
  inspector(heap_core& core, inspector_host& host, suspended_peak& peak, heap_backup& backup,
            std::size_t heap_size) noexcept
      : core_{core}, host_{host}, peak_{peak}, backup_{backup}, heap_size_{heap_size} {}
  inspector(const inspector&) = delete;
  inspector& operator=(const inspector&) = delete;

  // --- Figures and snapshots: inspector.cpp -----------------------------------------------------

  [[nodiscard]] memory_stats stats() WEIR_EXCLUDES(core_.mutex_);
  /// What stats() counts as reserved, for the price of the lock.
  [[nodiscard]] bytes reserved() WEIR_EXCLUDES(core_.mutex_);
  [[nodiscard]] memory_stats stats(tag tag) WEIR_EXCLUDES(core_.mutex_);
  [[nodiscard]] memory_stats stats(pool_id id) WEIR_EXCLUDES(core_.mutex_);
  [[nodiscard]] std::vector<tag_stats> stats_by_tag() WEIR_EXCLUDES(core_.mutex_);
  void reset_peaks() WEIR_EXCLUDES(core_.mutex_);
  void reset_counters() WEIR_EXCLUDES(core_.mutex_);
  [[nodiscard]] allocator_snapshot snapshot() WEIR_EXCLUDES(core_.mutex_);
  [[nodiscard]] pool_snapshot snapshot(pool_id id) WEIR_EXCLUDES(core_.mutex_);
  [[nodiscard]] result<bytes> size_of(const void* pointer) WEIR_EXCLUDES(core_.mutex_);
  [[nodiscard]] result<block_info> block_at(const void* pointer) WEIR_EXCLUDES(core_.mutex_);
  /// What contradicts itself; empty if nothing. For tests.
  [[nodiscard]] std::string check() WEIR_EXCLUDES(core_.mutex_);
  /// The pool as a snapshot shows it. With the lock, the caches settled.
  void describe(const pool_state& pool, pool_snapshot& into) const;
  /// All pools, after the caches are settled. With the lock, all caches stopped.
  [[nodiscard]] std::vector<pool_snapshot> describe_all();

  // --- Why a request could not be met: inspector_report.cpp -------------------------------------

  [[nodiscard]] memory_report explain(bytes size, const stream_ref& stream)
      WEIR_EXCLUDES(core_.mutex_);
  /// The same with the lock, the caches settled.
  [[nodiscard]] memory_report report(bytes size, stream_slot slot);
  /// What stands in the way of a request.
  enum class refusal : std::uint8_t { no_memory, tag_limit };
  /// The error of a request that could not be met: out_of_memory. With the lock.
  [[nodiscard]] error no_room(refusal by, bytes size, tag tag, stream_slot slot);

  // --- Single blocks and addresses: inspector_misuse.cpp ----------------------------------------

  [[nodiscard]] result<std::string> describe_address(const void* pointer)
      WEIR_EXCLUDES(core_.mutex_);
  /// The error of a free, or a question, at an address that has no record. With the lock.
  [[nodiscard]] error why_not_live(std::uint64_t address);
  /// The error of a free of a block that is not live. With the lock.
  [[nodiscard]] error freed_already(const block& block) const;
  /// The error of a heap that ends with live blocks: what they are. With the lock, the caches
  /// settled.
  [[nodiscard]] error leak();
  /// What is known of the latest block there: lines, each begun by a line's end. Empty where
  /// nothing is recorded. With or without the lock.
  [[nodiscard]] std::string life_of(std::uint64_t address) const;

 private:
  /// A request that could not be met, and what would have to change for it to be met.
  struct failure_record {
    bytes size{};
    stream_slot stream = no_stream;
    std::uint64_t frees = 0;
    std::uint64_t limit = 0;
    friend bool operator==(const failure_record&, const failure_record&) = default;
  };

  // With the caches settled.

  [[nodiscard]] memory_stats totals() const noexcept WEIR_REQUIRES(core_.mutex_);
  [[nodiscard]] memory_stats pool_totals(const pool_state& pool) const noexcept
      WEIR_REQUIRES(core_.mutex_);
  [[nodiscard]] memory_stats tag_totals(tag tag) const noexcept WEIR_REQUIRES(core_.mutex_);
  [[nodiscard]] std::vector<tag_stats> tags_in_use() const WEIR_REQUIRES(core_.mutex_);
  /// What a request now would meet, but for what the driver has free.
  [[nodiscard]] observe::shortage shortage_of(bytes size, tag tag, stream_slot slot)
      WEIR_REQUIRES(core_.mutex_);
  /// Nothing: the driver did not answer.
  [[nodiscard]] std::optional<std::uint64_t> device_free() const WEIR_REQUIRES(core_.mutex_);
  [[nodiscard]] observe::accused_block accused_near(const placement::nearest_block& block) const;

  heap_core& core_;
  inspector_host& host_;
  suspended_peak& peak_;
  heap_backup& backup_;
  const std::size_t heap_size_;
  failure_record last_failure_ WEIR_GUARDED_BY(core_.mutex_);
  std::uint64_t blocks_at_reset_ WEIR_GUARDED_BY(core_.mutex_) = 0;
  std::uint64_t waits_at_reset_ WEIR_GUARDED_BY(core_.mutex_) = 0;
  std::uint64_t events_at_reset_ WEIR_GUARDED_BY(core_.mutex_) = 0;
};

}}}  // namespace weir::v0::heap
