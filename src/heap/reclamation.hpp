// SPDX-License-Identifier: Apache-2.0
// The acts that make memory free, for a search for room and for a pool that comes back.
#pragma once

#include <cstdint>
#include <string>

#include "heap/cache_flusher.hpp"
#include "heap/capture_pools.hpp"
#include "heap/heap_callbacks.hpp"
#include "heap/heap_core.hpp"
#include "heap/inspector.hpp"
#include "heap/pool_registry.hpp"
#include "heap/reclaimer.hpp"
#include "heap/residency.hpp"
#include "heap/stream_progress.hpp"
#include "heap/vocabulary.hpp"
#include "order/driver_access.hpp"
#include "weir/base/bytes.hpp"
#include "weir/base/result.hpp"
#include "weir/device/stream.hpp"

namespace weir { inline namespace v0 { namespace heap {

/// What reclamation asks of the rest of the heap. Implemented by the central heap. Called with the
/// heap's lock.
class reclamation_host {
 public:
  /// As in residency_host.
  virtual void update_limits() noexcept = 0;
  /// As in stream_progress_host.
  virtual void free_waited(block_index index, stamp freed) noexcept = 0;

 protected:
  ~reclamation_host() = default;
};

/// Carries out what a search for room asks for (reclaimer), and what a pool asks for that is
/// suspended or brought back (residency_host).
///
/// It decides nothing: room_search and residency know the order of the steps. Each step uses the
/// part that it belongs to: thread caches, progress of streams, callbacks, suspension, or the
/// stores of other pools.
///
/// Owned by the central heap. The caller holds the heap's lock. Functions that wait, call the user
/// or release memory let go of it, as reclaimer and residency_host say.
class reclamation final : public reclaimer, public residency_host {
 public:
  /// The parts need not be constructed before the first call.
  reclamation(heap_core& core, cache_flusher& flusher, stream_progress& progress,
              heap_callbacks& callbacks, heap::residency& residency, pool_registry& pools,
              capture_pools& captures, inspector& inspector, reclamation_host& host) noexcept
      : core_{core},
        flusher_{flusher},
        progress_{progress},
        callbacks_{callbacks},
        residency_{residency},
        pools_{pools},
        captures_{captures},
        inspector_{inspector},
        host_{host} {}
  reclamation(const reclamation&) = delete;
  reclamation& operator=(const reclamation&) = delete;

  // --- For a search for room --------------------------------------------------------------------

  [[nodiscard]] result<account_number> prepare(pool_state& pool, bytes needed,
                                               driver_access& driver) override;
  [[nodiscard]] result<pool_state*> capture_pool(const stream_ref& stream, stream_slot slot,
                                                 driver_access& driver) override {
    return captures_.find_pool(stream, slot, driver);
  }
  void flush_unbinned(thread_cache& own) noexcept override;
  bool flush(thread_cache& cache) noexcept override { return flusher_.flush(cache); }
  bool flush_others(thread_cache* own) noexcept override;
  [[nodiscard]] result<bool> retire_completed(stream_slot spared, pool_state& asking,
                                              driver_access& driver) override;
  [[nodiscard]] bool any_pending_like(const request& wanted,
                                      const pool_state& pool) const noexcept override;
  void retire_pending(driver_access& driver) noexcept override { progress_.poll_marks(driver); }
  [[nodiscard]] bool queues_waits() const noexcept override;
  [[nodiscard]] result<bool> take_pending_behind_waits(const request& wanted,
                                                       const pool_state& pool,
                                                       driver_access& driver) override;
  [[nodiscard]] result<fallback_room> fit_in_fallback(const request& wanted) override;
  [[nodiscard]] result<void> sweep_pools(pool_state& asking, driver_access& driver) override {
    return pools_.sweep(asking, driver);
  }
  [[nodiscard]] bool may_release(const pool_state& pool) const noexcept override {
    core_.mutex_.assert_held();
    return pool.may_release(core_.order_);
  }
  [[nodiscard]] result<bool> release_can_help(const request& wanted, const pool_state& asking,
                                              driver_access& driver) override;
  [[nodiscard]] result<bool> wait_can_help(const request& wanted, const pool_state& asking,
                                           driver_access& driver) override;
  [[nodiscard]] result<bytes> release_from_others(pool_state& asking, bytes most,
                                                  driver_access& driver) override;
  [[nodiscard]] result<bytes> release_own(pool_state& asking, driver_access& driver) override;
  [[nodiscard]] result<bool> await_releases(pool_state& asking) override;
  [[nodiscard]] std::uint64_t releases_ended() const noexcept override;
  [[nodiscard]] result<bool> evict(pool_state& asking, bytes needed,
                                   driver_access& driver) override {
    return residency_.evictions().evict(&asking, needed, driver);
  }
  [[nodiscard]] result<callback_answer> ask_callbacks(pool_state& pool, thread_cache* own,
                                                      bytes needed) override;
  [[nodiscard]] result<bool> ask_before_growth(pool_state& pool, bytes needed) override {
    return callbacks_.run_before_growth(pool, needed);
  }
  [[nodiscard]] result<bool> wait_for_oldest(pool_state& asking, wait_bound& bound,
                                             driver_access& driver) override;

  // --- For pools that are suspended or brought back ---------------------------------------------

  void settle_caches() noexcept override { flusher_.settle_caches(); }
  bool flush_all() noexcept override { return flusher_.flush_all(); }
  void flush_caches() noexcept override { flusher_.flush_caches(); }
  void update_limits() noexcept override { host_.update_limits(); }
  [[nodiscard]] result<bool> any_capturing(driver_access& driver) override {
    return progress_.any_capturing(driver);
  }
  [[nodiscard]] result<bool> reclaim_cached(pool_state& asking, bytes needed,
                                            driver_access& driver) override;
  [[nodiscard]] store_traits traits_of(const pool_state& pool) const override;
  [[nodiscard]] std::string shortage_text(bytes needed) override;

 private:
  [[nodiscard]] result<void> make_table_room() WEIR_REQUIRES(core_.mutex_);
  /// What all pools have reserved and not handed out, but for what others than the asking one keep.
  [[nodiscard]] std::uint64_t unused(const pool_state& asking) const noexcept
      WEIR_REQUIRES(core_.mutex_);
  /// Whether the limit and the driver allow so much more.
  [[nodiscard]] result<bool> can_take(std::uint64_t size, driver_access& driver)
      WEIR_REQUIRES(core_.mutex_);

  heap_core& core_;
  cache_flusher& flusher_;
  stream_progress& progress_;
  heap_callbacks& callbacks_;
  heap::residency& residency_;
  pool_registry& pools_;
  capture_pools& captures_;
  inspector& inspector_;
  reclamation_host& host_;
};

}}}  // namespace weir::v0::heap
