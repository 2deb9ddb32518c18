// The state of the pools that cache freed blocks: bin_pool, pinned_pool, buffer_pool.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/any_size.hpp"
#include "base/host_memory.hpp"
#include "base/mutex.hpp"
#include "device/state.hpp"
#include "observe/misuse.hpp"
#include "order/driver_access.hpp"
#include "order/stream_order.hpp"
#include "pools/block_source.hpp"
#include "pools/memory_home.hpp"
#include "pools/size_bins.hpp"
#include "weir/pool/block_pool.hpp"

namespace weir::inline v0::pools {

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
};

/// The size of the block that serves `size` bytes. size_overflow: there is none.
[[nodiscard]] result<bytes> block_size(bytes size);

/// Blocks of one device: live, cached in bins, or pending.
///
/// Memory is allocated from the source and released to it without the lock; blocks on their way
/// there are counted nowhere but in `reserved`. Events are recorded and queried with the lock held,
/// on requests that found no block of their own stream. Shared by pools and owners; any thread.
/// After close() live blocks are still taken back; in a forked child nothing is touched.
class block_cache final : public memory_home, private detail::stream_listener {
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
  result<void> record_stream(void* pointer, const stream_ref& stream);
  result<void> release_stream(const stream_ref& stream);

  [[nodiscard]] weir::device device() const noexcept { return device_; }
  [[nodiscard]] block_pool_stats stats() const;
  void reset_peaks();
  void reset_counters();
  result<bytes> trim(bytes keep);
  result<bytes> empty_cache();
  result<void> set_threshold(bytes limit);
  [[nodiscard]] bytes threshold() const;
  result<void> close();

 private:
  using block_table = std::unordered_map<std::uint64_t, block>;  // by the user's address
  /// Blocks on their way to the driver, out of the table: the driver may hand their addresses to
  /// another thread before we hear of it.
  using victim_list = std::vector<block_table::node_type>;

  struct block_request {
    bytes size;
    bytes alignment;
    std::uint64_t rounded;
    stream_slot slot = order::no_stream;
  };

  // block_cache.cpp
  void stream_closing(const stream_ref& stream) noexcept override;
  [[nodiscard]] static result<block_request> make_request(bytes size, bytes alignment);
  [[nodiscard]] result<stream_slot> slot_of(const stream_ref& stream, driver_access& driver)
      WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<block*> find_live(const void* pointer) WEIR_REQUIRES(mutex_);
  [[nodiscard]] error why_not_live(std::uint64_t address) const WEIR_REQUIRES(mutex_);
  [[nodiscard]] observe::accused_block accused(const block& told) const WEIR_REQUIRES(mutex_);
  /// Of a cache that ends with live blocks: what they are.
  [[nodiscard]] error leak() const WEIR_REQUIRES(mutex_);
  [[nodiscard]] block* take_cached(const block_request& request) noexcept WEIR_REQUIRES(mutex_);
  void* hand_out(block& chosen, const block_request& request) noexcept WEIR_REQUIRES(mutex_);
  void* hand_out_cached(block& chosen, const block_request& request) noexcept WEIR_REQUIRES(mutex_);
  /// Lets go of the lock meanwhile.
  [[nodiscard]] result<std::uint64_t> allocate_fresh(const block_request& request,
                                                     driver_access& driver) WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<void*> adopt(std::uint64_t base, const block_request& request,
                                    driver_access& driver) WEIR_REQUIRES(mutex_);
  void put_in_cache(block& freed, stream_slot slot) noexcept WEIR_REQUIRES(mutex_);

  // block_order.cpp
  void retire() WEIR_REQUIRES(mutex_);
  [[nodiscard]] bool others_completed(const block& pending) const noexcept WEIR_REQUIRES(mutex_);
  /// A cached block that is free for the request once it was asked how far the streams have come.
  [[nodiscard]] result<block*> poll_for_cached(const block_request& request, driver_access& driver)
      WEIR_REQUIRES(mutex_);
  /// Marks the streams and reads how far they have come. What `spared` freed is its own to use
  /// already.
  result<void> update_progress(stream_slot spared, driver_access& driver) WEIR_REQUIRES(mutex_);
  result<void> wait_for_streams(driver_access& driver) WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<block*> take_behind_wait(const block_request& request, driver_access& driver)
      WEIR_REQUIRES(mutex_);

  // block_release.cpp
  [[nodiscard]] bool any_idle_too_long() const WEIR_REQUIRES(mutex_);
  [[nodiscard]] bool is_idle_too_long(const block* cached) const WEIR_REQUIRES(mutex_);
  /// The longest unused of those that are quiescent: while more than `max_cached` bytes are cached,
  /// or they are too old.
  [[nodiscard]] victim_list take_victims(bytes max_cached) WEIR_REQUIRES(mutex_);
  /// Lets go of the lock meanwhile. What the driver does not take is cached again.
  result<bytes> release(victim_list victims, driver_access& driver) WEIR_REQUIRES(mutex_);
  /// Down to `max_cached`, waiting for streams if need be.
  result<bytes> release_down_to(bytes max_cached, driver_access& driver) WEIR_REQUIRES(mutex_);
  void enforce_limits(driver_access& driver) noexcept WEIR_REQUIRES(mutex_);
  /// The last resort of a request that the driver refused: with what is cached released.
  [[nodiscard]] result<void*> allocate_after_release(const block_request& request,
                                                     driver_access& driver, error refusal)
      WEIR_REQUIRES(mutex_);

  const weir::device device_;
  const std::shared_ptr<detail::device_state> home_;
  const block_source source_;
  stream_id legacy_stream_{};  // fixed in create()
  bool listening_ = false;

  mutable detail::mutex mutex_;
  cache_limits limits_ WEIR_GUARDED_BY(mutex_);
  bool closed_ WEIR_GUARDED_BY(mutex_) = false;
  order::stream_order order_ WEIR_GUARDED_BY(mutex_);
  block_table blocks_ WEIR_GUARDED_BY(mutex_);
  size_bins cached_ WEIR_GUARDED_BY(mutex_);
  block_list pending_ WEIR_GUARDED_BY(mutex_);
  block_pool_stats stats_ WEIR_GUARDED_BY(mutex_);  // but for waits and events
  std::uint64_t waits_at_reset_ WEIR_GUARDED_BY(mutex_) = 0;
  std::uint64_t events_at_reset_ WEIR_GUARDED_BY(mutex_) = 0;
  std::uint64_t next_order_ WEIR_GUARDED_BY(mutex_) = 0;
};

}  // namespace weir::inline v0::pools
