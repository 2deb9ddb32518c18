// SPDX-License-Identifier: Apache-2.0
// One allocator's membership in its card's budget: requests, releases, changed shares.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.hpp"
#include "heap/heap_view.hpp"
#include "sharing/budget_page.hpp"
#include "weir/share/budget.hpp"

namespace weir { inline namespace v0 {

/// Shared by the user's object and by the allocator's callback, which outlives it by a call at
/// most. The page's lock is never held while the allocator is called, nor a mutex while another
/// process is waited for.
class budget_member::state : public std::enable_shared_from_this<state> {
 public:
  state(caching_allocator& allocator, const budget_options& options);
  ~state();
  state(const state&) = delete;
  state& operator=(const state&) = delete;

  [[nodiscard]] result<void> start(caching_allocator& allocator, const budget_share& first);
  /// Ends the part. Idempotent.
  void leave() noexcept;

  [[nodiscard]] result<budget_share> share();
  [[nodiscard]] result<void> set_share(const budget_share& share);
  [[nodiscard]] result<bytes> serve() WEIR_EXCLUDES(serve_mutex_);
  /// Of a request or resume that finds no memory: whether others gave way, or it may be tried
  /// again.
  [[nodiscard]] bool ask(bytes needed);

 private:
  using clock = std::chrono::steady_clock;
  using purpose = budget::locked_page::purpose;
  /// Somebody who was asked.
  struct request {
    budget::place member;  // as it was just before
    std::uint64_t amount = 0;
    std::uint64_t number = 0;
    std::uint64_t given = 0;
    bool is_over = false;
  };

  [[nodiscard]] static bool is_among(const std::vector<request>& some,
                                     const budget::place& member) noexcept;

  struct own_page {
    budget::locked_page page;
    std::size_t index = 0;

    [[nodiscard]] const budget::place& place() const noexcept {
      return page.content().places[index];
    }
  };

  [[nodiscard]] bool is_forked() const noexcept;
  [[nodiscard]] result<budget::locked_page> open(purpose why) const;
  /// The page with our place, which is taken anew where somebody removed the page.
  [[nodiscard]] result<own_page> open_own() WEIR_EXCLUDES(mutex_);
  void free_place() noexcept;
  /// The allocator was closed: the place is freed at once, and never taken again.
  void allocator_closed() noexcept WEIR_EXCLUDES(mutex_);
  void run();

  // Giving way.
  void follow(const heap::heap_view& memory, const budget::place& own) WEIR_EXCLUDES(mutex_);
  void pause(const heap::heap_view& memory, std::uint64_t most) WEIR_EXCLUDES(mutex_);
  /// Whether a pause was in the way, which is over now.
  [[nodiscard]] bool wait_for_pause(const heap::heap_view& memory) WEIR_EXCLUDES(mutex_);
  void set_ceiling(const heap::heap_view& memory, std::uint64_t most) WEIR_REQUIRES(mutex_);

  // Asking.
  /// `waited`: until a pause was over, so that there may be room now. Whether others gave way.
  [[nodiscard]] bool ask_others(const heap::heap_view& memory, bytes needed, bool waited);
  [[nodiscard]] result<std::vector<request>> ask_next(bytes held, bytes needed,
                                                      std::uint64_t missing,
                                                      const std::vector<request>& exhausted,
                                                      std::uint64_t& found);
  [[nodiscard]] result<std::vector<request>> ask_to_look(bytes held, bytes needed,
                                                         const std::vector<request>& exhausted)
      WEIR_EXCLUDES(silent_mutex_);
  /// Remembers who did not answer while it was waited for.
  void note_silent(const std::vector<request>& waited) WEIR_EXCLUDES(silent_mutex_);
  [[nodiscard]] std::uint64_t wait_for(std::vector<request>& asked, clock::time_point deadline);
  [[nodiscard]] bool collect(std::vector<request>& asked, bool is_late, std::uint64_t& given);
  [[nodiscard]] std::vector<observe::neighbour> neighbours() const;

  const pid_t process_;
  const weir::device gpu_;
  const bytes capacity_;  // known when the device may be gone, too
  const heap::weak_heap_view memory_;
  const std::string folder_;
  const std::string card_;
  const std::chrono::milliseconds period_;
  const std::chrono::milliseconds patience_;
  budget::place self_;  // who we are; fixed by the constructor
  callback_registration callback_;
  bool is_member_ = false;
  std::atomic<bool> is_closed_{false};  // the allocator is; set before the place is freed

  detail::mutex serve_mutex_;  // one at a time gives way

  detail::mutex silent_mutex_;  // nothing waits with it; taken with the page's lock held
  std::vector<request> silent_ WEIR_GUARDED_BY(silent_mutex_);  // by the last look at them

  mutable detail::mutex mutex_;
  budget_share share_ WEIR_GUARDED_BY(mutex_);  // as last seen
  std::uint64_t applied_ WEIR_GUARDED_BY(mutex_) = 0;
  clock::time_point paused_until_ WEIR_GUARDED_BY(mutex_){};
  bool is_stopping_ WEIR_GUARDED_BY(mutex_) = false;
  std::unique_ptr<std::condition_variable_any> stopped_ =
      std::make_unique<std::condition_variable_any>();
  std::thread thread_;
};

}}  // namespace weir::v0
