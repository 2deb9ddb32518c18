// SPDX-License-Identifier: Apache-2.0
// torch's memory pools on one device: their use counts, and the requests that go to them.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "compat.hpp"
#include "held_blocks.hpp"
#include "pool_names.hpp"
#include "weir/allocator/caching_allocator.hpp"

namespace weir_torch {

/// torch names a pool by a pair of numbers; here each is a weir pool that keeps its memory: in
/// PyTorch's segments where a program made it as a MemPool, in an arena where a capture did or
/// where it is to be suspended.
///
/// A pool lives while its use count is above zero (acquire, release): graphs, MemPool objects,
/// scopes. Between begin() and end() requests that the filter accepts go to the pool; the filter is
/// torch's, and tests whether the stream is in its capture, or whether this is its thread. While a
/// scope is open that can be a capture's the allocator knows that captures may be under way: any
/// scope, unless torch marks captures; then one that requests come to without a mark is none.
///
/// torch ends and begins the scope of a capture in the middle of it, for the parts of a graph that
/// run on a condition. That ends nothing here: the capture is asked for where the mark is missing.
///
/// Any thread. A filter is called under the lock, and no call of weir is made under it that could
/// come back here.
class pool_table {
 public:
  using stream_filter = std::function<bool(cudaStream_t)>;
  struct route {
    MempoolId_t id;
    weir::memory_pool memory;
    weir::stream_ref origin;  ///< the stream that the scope was opened on, or one before it
    bool in_segments = false;
  };

  /// The stream that a scope is opened on.
  struct origin {
    weir::stream_ref stream;
    bool is_torchs_own = false;  ///< others can be destroyed any time, and must not be asked about
  };

  pool_table(weir::caching_allocator& memory, std::function<void()> on_change)
      : memory_{memory}, on_change_{std::move(on_change)} {}
  pool_table(const pool_table&) = delete;
  pool_table& operator=(const pool_table&) = delete;

  /// One use more of the pool, which is made with these options if there is none.
  void acquire(MempoolId_t id, weir::pool_options options);
  void release(MempoolId_t id);
  /// Waits for the streams and releases what is free in MemPools of this id that nobody uses any
  /// more. For destructors of theirs: what goes wrong is reported.
  void empty_released(MempoolId_t id) noexcept;
  [[nodiscard]] int use_count(MempoolId_t id) const;
  /// The pool; empty if it is not in use any more.
  [[nodiscard]] weir::memory_pool find(MempoolId_t id) const;
  /// Those that are in use.
  [[nodiscard]] std::vector<std::pair<MempoolId_t, weir::memory_pool>> all() const;
  /// Whether the pool serves requests outside of it that find no memory.
  void set_fallback(MempoolId_t id, bool value);
  [[nodiscard]] bool has_fallback() const noexcept {
    return has_fallback_.load(std::memory_order_relaxed);
  }
  /// The pool's segments are not to be split. Only before its first request.
  void set_no_split(MempoolId_t id);
  /// The pool's memory is an arena in large pieces that can be suspended, instead of PyTorch's
  /// segments. Only before its first request, and not of a pool with an allocator of its own or
  /// without splits.
  void make_suspendable(MempoolId_t id, weir::suspendable_options how);
  /// torch's id of a weir pool, also of one that was released; {0, 0} is the allocator's own.
  [[nodiscard]] MempoolId_t torch_id_of(weir::pool_id pool) const;

  void begin(MempoolId_t id, stream_filter filter, origin current);
  void end(MempoolId_t id);
  void mark_capture_begin();
  void mark_capture_end();
  /// The pool that a request on this stream goes to; none: to the allocator itself.
  [[nodiscard]] std::optional<route> find_route(cudaStream_t stream);
  /// Whether requests and frees must take the slow path.
  [[nodiscard]] bool is_active() const noexcept {
    return is_active_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] bool is_capturing() const;

  /// The block was allocated for a captured stream that could not be identified, in the name of
  /// another: it must not be reused while captures are under way.
  void hold(void* block);
  /// Whether the block is held: then it is freed when the last scope ends.
  [[nodiscard]] bool defer_free(void* block);
  /// Whether a free of the block was deferred, and has not been made yet.
  [[nodiscard]] bool is_free_deferred(void* block) const;

 private:
  struct entry {
    weir::memory_pool memory;
    int use_count = 0;
    bool is_fallback = false;
    bool is_mem_pool = false;           // a program's, no capture's
    std::optional<origin> last_origin;  // of torch's own streams
    weir::pool_options options;
  };
  struct scope {
    MempoolId_t id;
    stream_filter filter;
    origin opened_on;
    bool can_be_capture = true;
  };

  [[nodiscard]] weir::memory_pool create(MempoolId_t id, const weir::pool_options& options);
  /// Forgets the ids of pools that have ended, if there are many.
  void forget_ended_pools();
  entry& find_or_throw(MempoolId_t id);
  /// The pool is made anew with other options, which it must not have served requests without.
  template <class Change>
  void replace(MempoolId_t id, const char* reason, const Change& change);
  /// Whether a capture may be under way. Needs the lock.
  [[nodiscard]] bool captures_possible() const;
  void update() noexcept;

  weir::caching_allocator& memory_;
  const std::function<void()> on_change_;
  std::atomic<bool> is_active_{false};
  std::atomic<bool> has_fallback_{false};
  mutable std::mutex mutex_;
  std::map<MempoolId_t, entry> pools_;
  pool_names<MempoolId_t> torch_ids_;
  std::vector<scope> scopes_;  // the last one whose filter accepts a request gets it
  int marked_captures_ = 0;
  weir::capture_guard notice_;
  bool has_notice_ = false;
  held_blocks held_;
};

}  // namespace weir_torch
