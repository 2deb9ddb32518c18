// SPDX-License-Identifier: Apache-2.0
// A limit in bytes, and the requests that want a share of it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>

#include "base/mutex.hpp"
#include "weir/base/bytes.hpp"

namespace weir { inline namespace v0 { namespace resources {

/// How much of a limit is used: by memory that is live, and by requests that are under way.
///
/// Always: both together are within the limit, unless that was lowered. A request that would fit if
/// those under way failed waits for them, so that one that is refused makes no other one fail. It
/// does not wait where it would never end: for requests of its own thread, and for those whose user
/// is being called to free memory. And never for longer than `longest_wait`.
///
/// Owned by a limiting_resource. Any thread.
class budget {
 public:
  static constexpr std::chrono::seconds longest_wait{10};

  /// Throws std::bad_alloc.
  explicit budget(bytes limit) : limit_{limit.count()} {}

  [[nodiscard]] bytes limit() const noexcept { return bytes{limit_.load()}; }
  void set_limit(bytes limit) noexcept WEIR_EXCLUDES(mutex_);
  /// Of live memory.
  [[nodiscard]] bytes live() const noexcept { return bytes{live_.load()}; }
  /// Live memory was freed.
  void free(bytes size) noexcept WEIR_EXCLUDES(mutex_);

  /// The share of a request that is under way. On the stack of its thread.
  class share {
   public:
    share(budget& from, bytes size) noexcept;
    /// What was taken is free again, unless it was kept.
    ~share();
    share(const share&) = delete;
    share& operator=(const share&) = delete;

    /// False: there is no room, and nothing was taken.
    [[nodiscard]] bool take();
    /// The request was met: its share is live memory's.
    void keep() noexcept;

   private:
    friend class budget;
    friend class user_call;

    budget& from_;
    const std::uint64_t size_;
    bool taken_ = false;
    unsigned user_calls_ = 0;  // nested; of user_call
    share* const enclosing_;   // of the same thread, of whatever budget
  };

  /// While it lives, the calling thread runs code of the user's to free memory, so nobody waits for
  /// its requests.
  class user_call {
   public:
    user_call() noexcept { set(true); }
    ~user_call() { set(false); }
    user_call(const user_call&) = delete;
    user_call& operator=(const user_call&) = delete;

   private:
    static void set(bool in_user_call) noexcept;
  };

 private:
  [[nodiscard]] bool fits(std::uint64_t size, std::uint64_t taken) const noexcept;
  [[nodiscard]] bool is_own_request(const share& asking) const noexcept;

  std::atomic<std::uint64_t> limit_;
  std::atomic<std::uint64_t> live_{0};
  detail::mutex mutex_;
  std::uint64_t under_way_ WEIR_GUARDED_BY(mutex_) = 0;
  std::uint64_t in_user_calls_ WEIR_GUARDED_BY(mutex_) = 0;  // of these
  std::condition_variable_any changed_;
};

}}}  // namespace weir::v0::resources
