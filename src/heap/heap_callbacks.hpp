// SPDX-License-Identifier: Apache-2.0
// The user's callbacks that may free memory for a request.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "base/mutex.hpp"
#include "heap/heap_core.hpp"
#include "heap/private_pools.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/base/bytes.hpp"
#include "weir/base/result.hpp"

namespace weir { inline namespace v0 { namespace heap {

/// The callbacks of a heap: those that come before growth, and those that come before a request
/// fails.
///
/// A callback runs without the heap's lock and may call the heap. Requests from inside one call no
/// callbacks, of whatever heap. A callback that is removed while another thread runs it ends there;
/// what it holds is then destroyed by that thread, without the lock.
///
/// Owned by the central heap. Any thread may call what takes the lock; the rest is for a search for
/// room, which holds it.
class heap_callbacks {
  using callback_map = std::unordered_map<std::uint64_t, std::shared_ptr<out_of_memory_callback>>;

 public:
  /// What take_all() took; ends without the lock, since what callbacks hold may use the heap.
  struct taken {
    callback_map before_failure{};
    callback_map before_growth{};
  };

  explicit heap_callbacks(heap_core& core) noexcept : core_{core} {}
  heap_callbacks(const heap_callbacks&) = delete;
  heap_callbacks& operator=(const heap_callbacks&) = delete;

  /// The key that remove() takes; 0: the heap is closed.
  [[nodiscard]] std::uint64_t add(out_of_memory_callback callback) WEIR_EXCLUDES(core_.mutex_);
  [[nodiscard]] std::uint64_t add_before_growth(out_of_memory_callback callback)
      WEIR_EXCLUDES(core_.mutex_);
  void remove(std::uint64_t key) noexcept WEIR_EXCLUDES(core_.mutex_);

  // With the lock. run() and run_before_growth() let go of it while the callbacks run, keep the
  // pool alive, and throw callback_exception if one throws.

  /// Whether run() would call any: there are some, and this thread is not inside one.
  [[nodiscard]] bool any() const noexcept;
  /// Whether one of them claims to have freed something.
  [[nodiscard]] result<bool> run(pool_state& pool, bytes needed);
  /// False: there are none, or this thread is inside one.
  [[nodiscard]] result<bool> run_before_growth(pool_state& pool, bytes needed);
  /// The heap is being closed.
  [[nodiscard]] taken take_all() noexcept;

 private:
  [[nodiscard]] result<bool> run_all(const callback_map& chosen, pool_state& pool, bytes needed)
      WEIR_REQUIRES(core_.mutex_);

  heap_core& core_;
  callback_map before_failure_ WEIR_GUARDED_BY(core_.mutex_);
  callback_map before_growth_ WEIR_GUARDED_BY(core_.mutex_);
  std::uint64_t next_key_ WEIR_GUARDED_BY(core_.mutex_) = 1;
};

}}}  // namespace weir::v0::heap
