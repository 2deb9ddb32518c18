// torch's memory pools on one device: who holds them, and whose requests go to them.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_set>
#include <vector>

#include "weir/allocator/caching_allocator.hpp"

namespace weir_torch {

using c10::MempoolId_t;

/// torch knows a pool by a pair of numbers; here each is a weir pool that keeps its memory.
///
/// A pool lives while somebody counts on it (acquire, release): graphs, MemPool objects, scopes.
/// Between begin() and end() requests that the filter takes go to the pool; the filter is torch's,
/// and asks whether the stream is in its capture, or whether this is its thread. While a scope is
/// open the allocator is told that captures may be under way.
///
/// Any thread. A filter is called under the lock, and no call of weir is made under it that could
/// come back here.
class pool_table {
 public:
  using filter = std::function<bool(cudaStream_t)>;
  struct route {
    MempoolId_t id;
    weir::memory_pool memory;
    weir::stream_ref begun_on;
  };

  pool_table(weir::caching_allocator& memory, std::function<void()> changed)
      : memory_{memory}, changed_{std::move(changed)} {}
  pool_table(const pool_table&) = delete;
  pool_table& operator=(const pool_table&) = delete;

  void acquire(MempoolId_t id);
  void release(MempoolId_t id);
  [[nodiscard]] int uses(MempoolId_t id) const;
  /// The pool; empty if nobody holds it any more.
  [[nodiscard]] weir::memory_pool find(MempoolId_t id) const;
  void set_last_resort(MempoolId_t id, bool value);
  /// Pools to try when there is no other memory.
  [[nodiscard]] std::vector<weir::memory_pool> last_resorts() const;
  /// torch's name of a weir pool, also of one that is gone; {0, 0} is the allocator's own.
  [[nodiscard]] MempoolId_t name_of(weir::pool_id pool) const;

  void begin(MempoolId_t id, filter takes, const weir::stream_ref& current);
  void end(MempoolId_t id);
  /// Where a request on this stream goes; none: to the allocator itself.
  [[nodiscard]] std::optional<route> find_route(cudaStream_t stream) const;
  /// Whether requests and frees must come by.
  [[nodiscard]] bool wanted() const noexcept { return wanted_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool capturing() const;

  /// The block was given to a stream of a capture that nobody could name, in the name of another:
  /// it must not be reused while captures are under way.
  void hold(void* block);
  /// Whether the block is held: then it is freed when the last scope ends.
  [[nodiscard]] bool keep_back(void* block);

 private:
  struct entry {
    weir::memory_pool memory;
    int uses = 0;
    bool last_resort = false;
  };
  struct scope {
    MempoolId_t id;
    filter takes;
    weir::stream_ref begun_on;
  };

  entry& known(MempoolId_t id);
  void update() noexcept { wanted_ = !scopes_.empty() || !held_.empty(); }

  weir::caching_allocator& memory_;
  const std::function<void()> changed_;
  std::atomic<bool> wanted_{false};
  mutable std::mutex mutex_;
  std::map<MempoolId_t, entry> pools_;
  std::map<weir::pool_id, MempoolId_t> names_;
  std::vector<scope> scopes_;  // the last one that takes a request gets it
  weir::capture_notice notice_;
  std::unordered_set<void*> held_;
  std::vector<void*> freed_while_held_;
};

}  // namespace weir_torch
