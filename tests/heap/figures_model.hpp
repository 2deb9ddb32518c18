// SPDX-License-Identifier: Apache-2.0
// An exact model of an allocator's figures: what is live and pending, of all, by pool and by tag.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "weir/allocator/caching_allocator.hpp"

namespace weir::testing_support {

/// The figures of the whole allocator, of one pool or of one tag.
struct modelled_figures {
  struct amounts {
    std::uint64_t requested = 0;
    std::uint64_t allocated = 0;
    std::uint64_t blocks = 0;

    amounts& operator+=(const amounts& more) noexcept {
      requested += more.requested;
      allocated += more.allocated;
      blocks += more.blocks;
      return *this;
    }
    amounts& operator-=(const amounts& less) noexcept {
      requested -= less.requested;
      allocated -= less.allocated;
      blocks -= less.blocks;
      return *this;
    }
    void raise_to(const amounts& now) noexcept {
      requested = std::max(requested, now.requested);
      allocated = std::max(allocated, now.allocated);
      blocks = std::max(blocks, now.blocks);
    }
  };

  amounts live;
  amounts pending;
  amounts live_peak;
  amounts active_peak;
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::uint64_t failures = 0;

  [[nodiscard]] amounts active() const noexcept {
    amounts sum = live;
    return sum += pending;
  }
  void raise_peaks() noexcept {
    live_peak.raise_to(live);
    active_peak.raise_to(active());
  }
  void reset_peaks() noexcept {
    live_peak = live;
    active_peak = active();
  }
};

/// What a program of one thread did, counted without caches, pages or deltas.
class figures_model {
 public:
  void allocated(const void* at, bytes size, pool_id pool, tag tag) {
    const std::uint64_t rounded = (size.count() + 511) / 512 * 512;
    const block fresh{{size.count(), rounded, 1}, pool, tag};
    ASSERT_TRUE(blocks_.emplace(at, fresh).second) << "handed out twice";
    for_each_of(pool, tag, [&](modelled_figures& sums) {
      sums.live += fresh.size;
      ++sums.allocations;
      sums.raise_peaks();
    });
  }
  void freed(const void* at) { take(at, false); }
  /// The block was recorded on a stream that still works.
  void freed_pending(const void* at) { pending_.push_back(take(at, true)); }
  void pending_ended() {
    for (const block& each : pending_)
      for_each_of(each.pool, each.tag, [&](modelled_figures& sums) { sums.pending -= each.size; });
    pending_.clear();
  }
  void failed(pool_id pool, tag tag) {
    for_each_of(pool, tag, [](modelled_figures& sums) { ++sums.failures; });
  }
  void reset_peaks() {
    for_all([](modelled_figures& sums) { sums.reset_peaks(); });
  }
  void reset_counters() {
    for_all([](modelled_figures& sums) { sums.allocations = sums.frees = sums.failures = 0; });
  }
  [[nodiscard]] bool any_pending() const noexcept { return !pending_.empty(); }
  [[nodiscard]] std::uint64_t live_with(tag tag) { return tags_[tag.number()].live.allocated; }

  /// Reads all figures of the allocator. Pools that ended are in the totals only.
  void compare(const caching_allocator& memory, const std::vector<tag>& tags) {
    const allocator_snapshot picture = memory.snapshot();
    expect("all", picture.stats, total_);
    for (const pool_snapshot& each : picture.pools)
      expect("pool " + std::to_string(each.id.number()), each.stats, pools_[each.id]);
    for (const tag each : tags)
      expect("tag \"" + std::string{each.name()} + "\"", memory.stats(each), tags_[each.number()]);
  }

 private:
  struct block {
    modelled_figures::amounts size;
    pool_id pool{};
    weir::tag tag{};
  };

  template <class Change>
  void for_each_of(pool_id pool, tag tag, const Change& change) {
    change(total_);
    change(pools_[pool]);
    change(tags_[tag.number()]);
  }
  template <class Change>
  void for_all(const Change& change) {
    change(total_);
    for (auto& [id, sums] : pools_) change(sums);
    for (auto& [number, sums] : tags_) change(sums);
  }
  block take(const void* at, bool waits) {
    const auto entry = blocks_.find(at);
    EXPECT_NE(entry, blocks_.end());
    const block gone = entry->second;
    blocks_.erase(entry);
    for_each_of(gone.pool, gone.tag, [&](modelled_figures& sums) {
      sums.live -= gone.size;
      if (waits) sums.pending += gone.size;
      ++sums.frees;
    });
    return gone;
  }
  static void expect(const std::string& whose, const memory_stats& seen,
                     const modelled_figures& as) {
    SCOPED_TRACE(whose);
    const auto active = as.active();
    EXPECT_EQ(seen.requested, (byte_gauge{bytes{as.live.requested}, bytes{as.live_peak.requested}}))
        << "requested";
    EXPECT_EQ(seen.allocated, (byte_gauge{bytes{as.live.allocated}, bytes{as.live_peak.allocated}}))
        << "allocated";
    EXPECT_EQ(seen.blocks, (gauge{as.live.blocks, as.live_peak.blocks})) << "blocks";
    EXPECT_EQ(seen.active, (byte_gauge{bytes{active.allocated}, bytes{as.active_peak.allocated}}))
        << "active";
    EXPECT_EQ(seen.active_requested,
              (byte_gauge{bytes{active.requested}, bytes{as.active_peak.requested}}))
        << "active requested";
    EXPECT_EQ(seen.active_blocks, (gauge{active.blocks, as.active_peak.blocks})) << "active blocks";
    EXPECT_EQ(seen.pending, bytes{as.pending.allocated}) << "pending";
    EXPECT_EQ(seen.allocations, as.allocations) << "allocations";
    EXPECT_EQ(seen.frees, as.frees) << "frees";
    EXPECT_EQ(seen.failures, as.failures) << "failures";
    EXPECT_EQ(seen.hits + seen.heap_hits + seen.misses, as.allocations) << "hits and misses";
  }

  modelled_figures total_;
  std::map<pool_id, modelled_figures> pools_;
  std::map<std::uint16_t, modelled_figures> tags_;
  std::unordered_map<const void*, block> blocks_;
  std::vector<block> pending_;
};

/// Physical memory as an allocator's events tell it, of all and by pool. One thread.
class reserved_model final : public event_sink {
 public:
  void on_event(const memory_event& event) noexcept override {
    const bool grows = event.kind == memory_event_kind::reserve;
    if (!grows && event.kind != memory_event_kind::release) return;
    for (gauge* const each : {&total_, &pools_[event.pool]})
      each->set(grows ? each->current + event.size : each->current - event.size);
  }
  void reset_peaks() {
    total_.reset_peak();
    for (auto& [id, reserved] : pools_) reserved.reset_peak();
    with_suspended_ = 0;
  }
  [[nodiscard]] bool is_empty() const noexcept { return total_.current == 0; }

  /// The peak with suspended memory is known where every step is followed by a comparison.
  void compare(const caching_allocator& memory, bool after_every_step) {
    const allocator_snapshot picture = memory.snapshot();
    const auto expect = [](const memory_stats& seen, const gauge& told) {
      EXPECT_EQ(seen.reserved, (byte_gauge{bytes{told.current}, bytes{told.peak}}));
      EXPECT_EQ(seen.reserved_and_suspended.current, seen.reserved.current + seen.suspended);
      EXPECT_LE(seen.active.current, seen.reserved_and_suspended.current);
      EXPECT_LE(seen.active.peak, seen.reserved_and_suspended.peak);
      EXPECT_LE(seen.reserved.peak, seen.reserved_and_suspended.peak);
    };
    expect(picture.stats, total_);
    bytes suspended{};
    for (const pool_snapshot& each : picture.pools) {
      expect(each.stats, pools_[each.id]);
      suspended += each.stats.suspended;
    }
    EXPECT_EQ(picture.stats.suspended, suspended);
    with_suspended_ = std::max(with_suspended_, total_.current + suspended.count());
    if (after_every_step) {
      EXPECT_EQ(picture.stats.reserved_and_suspended.peak,
                bytes{std::max(with_suspended_, total_.peak)});
    }
  }

 private:
  gauge total_;
  std::map<pool_id, gauge> pools_;
  std::uint64_t with_suspended_ = 0;
};

}  // namespace weir::testing_support
