// SPDX-License-Identifier: Apache-2.0
// The state of the pools that cache freed blocks: bin_pool, pinned_pool, buffer_pool.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/any_size.hpp"
#include "base/host_memory.hpp"
#include "base/mutex.hpp"
#include "base/releases_under_way.hpp"
#include "device/state.hpp"
#include "order/driver_access.hpp"
#include "order/stream_ends.hpp"
#include "order/stream_order.hpp"
#include "order/stream_waiter.hpp"
#include "pools/block_source.hpp"
#include "pools/block_table.hpp"
#include "pools/memory_home.hpp"
#include "pools/size_bins.hpp"
#include "weir/pool/block_pool.hpp"

namespace weir { inline namespace v0 { namespace pools {

using order::driver_access;

/// How much is cached of what was freed, and for how long.
struct cache_limits {
  cache_limits(bytes most = bytes::max(), crossing_rule rule = crossing_rule::all_work) noexcept
      : max_cached{most}, crossing{rule} {}
  bytes max_cached;
  crossing_rule crossing;
  std::chrono::nanoseconds max_idle_time = std::chrono::nanoseconds::max();
  /// Asked only where max_idle_time is a limit.
  std::function<std::chrono::nanoseconds()> clock;

  /// The time, where idle time is bounded.
  [[nodiscard]] std::chrono::nanoseconds now() const {
    return clock ? clock() : std::chrono::nanoseconds{};
  }
};

/// The size of the block that serves `size` bytes. size_overflow: there is none.
[[nodiscard]] result<bytes> block_size(bytes size);

/// Blocks of one device: live, cached in bins, pending, or on their way to or from the driver.
///
/// The table owns every block, in whatever state. Memory is allocated from the source and released
/// to it without the lock, and streams are waited for without it, so that nobody who needs the lock
/// waits, too: neither a call of the pool nor the end of a stream. Blocks on their way are counted
/// nowhere but in `reserved`. Events are recorded and queried with the lock held, on requests that
/// found no block of their own stream.
///
/// To release blocks needs no host memory. Shared by pools and owners; any thread. After close()
/// live blocks are still taken back; in a forked child nothing is touched.
class block_cache final : public memory_home,
                          private detail::stream_listener,
                          private order::stream_waiter_host {
 public:
  [[nodiscard]] static result<std::shared_ptr<block_cache>> create(weir::device device,
                                                                   block_source source,
                                                                   cache_limits limits);
  block_cache(weir::device device, block_source source, cache_limits limits);
  ~block_cache() override;
  block_cache(const block_cache&) = delete;
  block_cache& operator=(const block_cache&) = delete;

  [[nodiscard]] result<void*> allocate(bytes size, const stream_ref& stream, bytes alignment);
  /// A block that is known to be free for the stream: nobody is asked. not_found: there is none.
  [[nodiscard]] result<void*> allocate_cached(bytes size, const stream_ref& stream,
                                              bytes alignment);
  /// detail::any_size: the size is not checked. Null: the stream it was allocated for.
  result<void> deallocate(void* pointer, bytes expected, const stream_ref* stream);
  result<void> free_owned(void* memory, bytes size, const stream_ref* stream) override {
    return deallocate(memory, size, stream);
  }
  result<void> record_stream(void* pointer, const stream_ref& stream) override;
  result<void> release_stream(const stream_ref& stream);

  [[nodiscard]] weir::device device() const noexcept { return device_; }
  /// Whether the host uses the memory, in no stream's order.
  [[nodiscard]] bool host_touches() const noexcept { return source_.host_touches; }
  [[nodiscard]] block_pool_stats stats() const;
  void reset_peaks();
  void reset_counters();
  result<bytes> trim(bytes keep);
  result<bytes> empty_cache();
  result<void> set_threshold(bytes limit);
  [[nodiscard]] bytes threshold() const;
  result<void> close();

 private:
  struct block_request {
    bytes size;
    bytes alignment;
    std::uint64_t rounded;
    stream_slot slot = order::no_stream;
    std::vector<foreign_use> foreign{};  // the stream, if it is of another device
  };

  // block_cache.cpp
  void stream_closing(const stream_ref& stream) noexcept override;
  /// A use by a stream of another device, whose end the pool is told of from now on.
  [[nodiscard]] result<foreign_use> meet_foreign(const stream_ref& stream) WEIR_EXCLUDES(mutex_);
  void end_foreign(const stream_ref& stream) noexcept WEIR_REQUIRES(mutex_);
  /// A stream for stand_in_slot(), if there is none yet. Its end takes the lock.
  [[nodiscard]] result<std::optional<weir::stream>> make_stand_in() WEIR_EXCLUDES(mutex_);
  /// The slot that a request of a stream of another device is counted for: that of a stream of the
  /// pool's device on which nothing is queued. `made` is taken if there is none yet.
  [[nodiscard]] stream_slot stand_in_slot(std::optional<weir::stream>& made) WEIR_REQUIRES(mutex_);
  [[nodiscard]] static result<block_request> make_request(bytes size, bytes alignment);
  [[nodiscard]] result<stream_slot> slot_of(const stream_ref& stream, driver_access& driver)
      WEIR_REQUIRES(mutex_);
  [[nodiscard]] block* take_cached(const block_request& request) noexcept WEIR_REQUIRES(mutex_);
  void* hand_out(block& chosen, block_request& request) noexcept WEIR_REQUIRES(mutex_);
  void* hand_out_cached(block& chosen, block_request& request) noexcept WEIR_REQUIRES(mutex_);
  /// A new block of the source, for hand_out_fresh(). Lets go of the lock meanwhile.
  [[nodiscard]] result<block*> allocate_fresh(const block_request& request, driver_access& driver)
      WEIR_REQUIRES(mutex_);
  void* hand_out_fresh(block& fresh, block_request& request) noexcept WEIR_REQUIRES(mutex_);
  void put_in_cache(block& freed, stream_slot slot, std::chrono::nanoseconds now) noexcept
      WEIR_REQUIRES(mutex_);

  // block_order.cpp
  /// Runs `work` without the lock, for waits. Returns whether requests can still be served: another
  /// thread may have closed the pool meanwhile. Everything else that was read before has to be read
  /// again.
  template <class Work>
  [[nodiscard]] result<void> without_lock(const Work& work) WEIR_REQUIRES(mutex_) {
    {
      const detail::mutex_unlock unlocked{mutex_};
      work();
    }
    return usable();
  }
  /// closed: the pool serves no more requests.
  [[nodiscard]] result<void> usable() const WEIR_REQUIRES(mutex_);
  void retire() override WEIR_REQUIRES(mutex_);
  [[nodiscard]] bool others_completed(block& pending) const noexcept WEIR_REQUIRES(mutex_);
  /// A cached block that is free for the request once it was asked how far the streams have come.
  [[nodiscard]] result<block*> poll_for_cached(const block_request& request, driver_access& driver)
      WEIR_REQUIRES(mutex_);
  /// Marks the streams and reads how far they have come. What `spared` freed is its own to use
  /// already.
  result<void> update_progress(stream_slot spared, driver_access& driver) WEIR_REQUIRES(mutex_);
  /// Waits for what was freed by now, without the lock. Closed pools wait, too: a request asks
  /// usable() before it goes on.
  result<void> wait_for_streams(driver_access& driver) WEIR_REQUIRES(mutex_);
  /// The same for streams of other devices alone.
  result<void> wait_for_foreign_streams() WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<block*> take_behind_wait(const block_request& request, driver_access& driver)
      WEIR_REQUIRES(mutex_);

  // block_release.cpp
  [[nodiscard]] bool is_idle_too_long(const block* cached, std::chrono::nanoseconds now) const
      WEIR_REQUIRES(mutex_);
  /// Whether no more than so much is cached, and nothing for too long.
  [[nodiscard]] bool is_within(bytes max_cached) const WEIR_REQUIRES(mutex_);
  /// The longest unused of those that are quiescent: while more than `max_cached` bytes are cached,
  /// or they are too old.
  [[nodiscard]] block_list take_victims(bytes max_cached) WEIR_REQUIRES(mutex_);
  void take_victim(block& victim, block_list& victims) noexcept WEIR_REQUIRES(mutex_);
  /// Lets go of the lock meanwhile. What the driver does not take is cached again.
  result<bytes> release(block_list victims, driver_access& driver) WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<void> release_unlocked(block_list& victims, block_list& gone,
                                              driver_access& driver) WEIR_EXCLUDES(mutex_);
  void cache_again(block_list& refused) noexcept WEIR_REQUIRES(mutex_);
  /// Down to `max_cached`, waiting for streams if need be.
  result<bytes> release_down_to(bytes max_cached, driver_access& driver) WEIR_REQUIRES(mutex_);
  /// Releases the block of that free, after waiting for the streams that may use it and for no
  /// others. Of other blocks, what is quiescent goes with it.
  result<bytes> release_freed(std::uint64_t number, driver_access& driver) WEIR_REQUIRES(mutex_);
  /// Waits for those that may use the block. False: one of them has no mark.
  [[nodiscard]] result<bool> wait_for_users(const block& bound, driver_access& driver)
      WEIR_REQUIRES(mutex_);
  void enforce_limits(driver_access& driver) noexcept WEIR_REQUIRES(mutex_);
  /// The last resort of a request that the driver refused: with what is cached released. `ended`:
  /// how many releases had ended when it was asked.
  [[nodiscard]] result<void*> allocate_after_release(block_request& request, driver_access& driver,
                                                     error refusal, std::uint64_t ended)
      WEIR_REQUIRES(mutex_);
  [[nodiscard]] error no_room(const block_request& request, error refusal) const
      WEIR_REQUIRES(mutex_);

  // block_cache_end.cpp
  /// Reports what is live, waits, and no longer listens to the ends of streams. Then releases the
  /// blocks, and reports what is kept and what failed. Whoever is told is told without the lock.
  void end() noexcept WEIR_EXCLUDES(mutex_);
  /// Of a cache that ends with live blocks: what they are.
  [[nodiscard]] error leak() const noexcept WEIR_REQUIRES(mutex_);
  /// Waits until nothing can be using any block. An error: that is not known.
  [[nodiscard]] result<void> wait_for_all_users(driver_access& driver) WEIR_REQUIRES(mutex_);
  /// Releases every block but those that may be in use; returns how large these are. `outcome` is
  /// the first failure.
  [[nodiscard]] bytes release_idle_blocks(bool all_are_idle, driver_access& driver,
                                          result<void>& outcome) noexcept WEIR_REQUIRES(mutex_);

  const weir::device device_;
  const std::shared_ptr<detail::device_state> home_;
  const block_source source_;
  order::stream_ends ends_{*this};

  mutable detail::mutex mutex_;
  stream_id legacy_stream_ WEIR_GUARDED_BY(mutex_){};  // 0: not asked yet
  cache_limits limits_ WEIR_GUARDED_BY(mutex_);
  bool closed_ WEIR_GUARDED_BY(mutex_) = false;
  order::stream_order order_ WEIR_GUARDED_BY(mutex_);
  order::stream_waiter waiter_ WEIR_GUARDED_BY(mutex_){mutex_, order_, *this};
  std::optional<weir::stream> stand_in_ WEIR_GUARDED_BY(mutex_);  // see stand_in_slot()
  block_table blocks_ WEIR_GUARDED_BY(mutex_){order_};
  size_bins cached_ WEIR_GUARDED_BY(mutex_);
  block_list pending_ WEIR_GUARDED_BY(mutex_);
  /// Cached blocks that no bin could be made for: the host had no memory. retire() tries again.
  block_list without_bin_ WEIR_GUARDED_BY(mutex_);
  detail::releases_under_way releases_ WEIR_GUARDED_BY(mutex_);
  block_pool_stats stats_ WEIR_GUARDED_BY(mutex_);  // but for waits and events
  std::uint64_t waits_at_reset_ WEIR_GUARDED_BY(mutex_) = 0;
  std::uint64_t events_at_reset_ WEIR_GUARDED_BY(mutex_) = 0;
  std::uint64_t next_order_ WEIR_GUARDED_BY(mutex_) = 0;
};

}}}  // namespace weir::v0::pools
