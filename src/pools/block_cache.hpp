// The inside of the pools that keep freed blocks: bin_pool, pinned_pool, buffer_pool.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/any_size.hpp"
#include "base/host_memory.hpp"
#include "device/state.hpp"
#include "order/driver_access.hpp"
#include "order/stream_order.hpp"
#include "pools/shelves.hpp"
#include "weir/pool/block_pool.hpp"

namespace weir::inline v0::pools {

using order::driver_access;

/// Where blocks come from.
struct block_source {
  result<std::uint64_t> (*obtain)(const context_scope& bound, bytes size);
  result<void> (*give_back)(const context_scope& bound, std::uint64_t base);
  /// The host touches the memory, in no stream's order: the stream of the free must have passed,
  /// too, before a block is reused.
  bool host_touches;
};

extern const block_source plain_memory;
extern const block_source pinned_memory;

/// What is kept of freed blocks.
struct keeping {
  keeping(bytes at_most = bytes::max(), crossing_rule rule = crossing_rule::all_work) noexcept
      : most{at_most}, crossing{rule} {}
  bytes most;
  crossing_rule crossing;
  std::chrono::nanoseconds longest = std::chrono::nanoseconds::max();
  /// Asked only where `longest` is a limit.
  std::function<std::chrono::nanoseconds()> clock;
};

/// Every driver allocation is at least so aligned.
constexpr std::uint64_t base_alignment = 256;

/// The block that serves `size` bytes. size_overflow: there is none.
[[nodiscard]] result<bytes> block_size(bytes size);

/// Blocks of one device: live, kept on shelves, or pending.
///
/// Who obtains memory or gives it back does so without the lock; blocks on their way to the driver
/// are in nobody's books but `reserved`. Events are recorded and asked with the lock held, on
/// requests that found no block of their own stream. Shared by pools and buffers. After close()
/// live blocks are still taken back; in a forked child nothing is touched.
class block_cache final : private detail::stream_listener {
 public:
  [[nodiscard]] static result<std::shared_ptr<block_cache>> create(weir::device where,
                                                                   const block_source& source,
                                                                   keeping limits);
  block_cache(weir::device where, const block_source& source, keeping limits);
  ~block_cache() override;
  block_cache(const block_cache&) = delete;
  block_cache& operator=(const block_cache&) = delete;

  [[nodiscard]] result<void*> allocate(bytes size, const stream_ref& stream, bytes alignment);
  /// detail::any_size: the size is not checked. Null: the stream it was allocated for.
  result<void> deallocate(void* pointer, bytes expected, const stream_ref* stream);
  result<void> record_stream(void* pointer, const stream_ref& stream);
  result<void> release_stream(const stream_ref& stream);

  [[nodiscard]] weir::device device() const noexcept { return device_; }
  [[nodiscard]] block_pool_stats stats() const;
  void reset_peaks();
  result<bytes> trim(bytes keep);
  result<void> set_threshold(bytes most);
  [[nodiscard]] bytes threshold() const;
  result<void> close();

 private:
  using table = std::unordered_map<std::uint64_t, block>;  // by the user's address
  /// Blocks on their way to the driver, out of the table: the driver may hand their addresses to
  /// another thread before we hear of it.
  using leaving = std::vector<table::node_type>;
  using guard = std::unique_lock<std::mutex>;

  struct request {
    bytes size;
    bytes alignment;
    std::uint64_t rounded;
    stream_slot slot = order::nobody;
  };

  // block_cache.cpp, with the lock
  void stream_closing(const stream_ref& which) noexcept override;
  [[nodiscard]] result<stream_slot> meet(const stream_ref& stream, driver_access& driver);
  [[nodiscard]] result<block*> find_live(const void* pointer);
  [[nodiscard]] block* find_kept(const request& wanted) noexcept;
  void* hand_out(block& what, const request& wanted) noexcept;
  void* hand_out_kept(block& what, const request& wanted) noexcept;
  [[nodiscard]] result<void*> adopt(guard& lock, std::uint64_t base, const request& wanted,
                                    driver_access& driver);
  void put_away(block& what, stream_slot slot) noexcept;

  // block_order.cpp, with the lock
  void retire();
  /// A kept block that becomes free for the request when one looks how far the streams have come.
  [[nodiscard]] result<block*> look_for_kept(const request& wanted, driver_access& driver);
  /// What `spared` freed is its own to use already.
  result<void> look_after_all(stream_slot spared, driver_access& driver);
  result<void> wait_for_streams(driver_access& driver);
  [[nodiscard]] result<block*> take_behind_wait(const request& wanted, driver_access& driver);

  // block_release.cpp
  [[nodiscard]] bool any_too_old() const;
  [[nodiscard]] bool too_old(const block* what) const;
  /// The longest unused of those that nobody uses: while more than `keep` bytes are kept, or they
  /// are too old.
  [[nodiscard]] leaving take_over(std::uint64_t keep);
  /// Leaves the lock meanwhile. What the driver does not take is kept again.
  result<bytes> give_back(guard& lock, leaving victims, driver_access& driver);
  result<bytes> trim_locked(guard& lock, std::uint64_t keep, driver_access& driver);
  void observe_limits(guard& lock, driver_access& driver) noexcept;
  [[nodiscard]] result<void*> relieve(guard& lock, const request& wanted, driver_access& driver,
                                      error refused);

  const weir::device device_;
  const std::shared_ptr<detail::device_state> home_;
  const block_source& source_;
  stream_id legacy_stream_{};  // fixed in create()
  bool listening_ = false;

  mutable std::mutex mutex_;
  keeping limits_;
  bool closed_ = false;
  order::stream_order order_;
  table blocks_;
  shelves kept_;
  block_list pending_;
  block_pool_stats books_;
  std::uint64_t next_order_ = 0;
};

}  // namespace weir::inline v0::pools
