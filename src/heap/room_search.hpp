// SPDX-License-Identifier: Apache-2.0
// The way of one request to its memory, rung by rung.
#pragma once

#include <algorithm>

#include "heap/reclaimer.hpp"
#include "heap/rung.hpp"

namespace weir { inline namespace v0 { namespace heap {

/// Looks for room for one request, in the order of find_room(): what is cheap and takes nothing
/// from anybody first, what waits last. Whenever a rung frees anything the search starts over, so
/// that a request fails only when nothing was left to free.
///
/// Lives for one request, with the heap's lock, which is released around callbacks of the user,
/// around an eviction, while the pool itself is suspended, and while the host waits for streams.
class room_search {
 public:
  room_search(reclaimer& heap, order::driver_access& driver, const request& wanted,
              pool_state& pool, const stream_ref& stream, thread_cache* own,
              bool pool_is_fixed) noexcept
      : heap_{heap},
        driver_{driver},
        wanted_{wanted},
        pool_{&pool},
        stream_{stream},
        own_{own},
        pool_is_fixed_{pool_is_fixed} {}
  room_search(const room_search&) = delete;
  room_search& operator=(const room_search&) = delete;

  /// For who has asked already whether the stream is being captured: then the pool changes.
  [[nodiscard]] result<void> know_capture(capture_status status);
  /// A block of kind live; no_block: out of memory.
  [[nodiscard]] result<block_index> find_room();
  /// The same without a driver call, of memory that is free for the stream.
  [[nodiscard]] result<block_index> find_free_room();
  /// The same at exactly that address, or why there is none.
  [[nodiscard]] result<block_index> find_room_at(std::uint64_t address);

  [[nodiscard]] pool_state& pool() const noexcept { return *pool_; }
  [[nodiscard]] account_number account() const noexcept { return account_; }
  /// Whether what was free did not suffice as it lay: memory was moved, taken or waited for.
  [[nodiscard]] bool missed() const noexcept { return rung_ >= rung::move; }
  /// The furthest rung of a search that has ended; none: there was no room.
  [[nodiscard]] heap::rung last_rung() const noexcept { return rung_; }

 private:
  // The rungs. Those that return a bool say whether the search is worth repeating; those named
  // after an act of the store say whether there is room now.
  [[nodiscard]] result<void> prepare();
  [[nodiscard]] result<void> prepare_again();
  void flush_unbinned();
  [[nodiscard]] result<bool> retire_pending();
  [[nodiscard]] bool fit();
  [[nodiscard]] result<bool> notice_capture();
  [[nodiscard]] result<bool> retire_completed();
  [[nodiscard]] bool flush_own();
  [[nodiscard]] bool flush_others();
  [[nodiscard]] result<bool> ask_before_growth();
  [[nodiscard]] bool prefers_growth() const;
  [[nodiscard]] result<bool> rearrange_own();
  [[nodiscard]] result<bool> rearrange_behind_waits();
  [[nodiscard]] result<bool> take_pending_behind_waits();
  [[nodiscard]] result<bool> grow();
  [[nodiscard]] result<bool> fit_in_fallback();
  [[nodiscard]] result<bool> release_cached();
  [[nodiscard]] result<bool> release_own();
  [[nodiscard]] result<bool> await_releases();
  [[nodiscard]] result<bool> evict();
  [[nodiscard]] result<bool> ask_callbacks(bytes needed);
  [[nodiscard]] result<bool> wait_for_oldest();

  [[nodiscard]] result<bool> accept(result<block_index> room);
  void climb(rung to) noexcept { rung_ = std::max(rung_, to); }
  [[nodiscard]] block_index found_on(rung rung) noexcept {
    climb(rung);
    return room_;
  }
  /// Whether events are out of the question: a capture into a pool of graphs of the user's.
  [[nodiscard]] bool asks_no_stream() const noexcept { return capturing_ && pool_->for_graphs; }
  [[nodiscard]] bool is_own_pool() const noexcept { return pool_->id == pool_id{}; }

  reclaimer& heap_;
  order::driver_access& driver_;
  const request wanted_;
  pool_state* pool_;
  stream_ref stream_;
  thread_cache* own_;
  const bool pool_is_fixed_;
  bool capture_known_ = false;
  bool capturing_ = false;
  bool callbacks_help_ = true;
  callback_bound callback_bound_;
  bool asked_before_growth_ = false;
  wait_bound waits_;
  int awaited_releases_ = 0;
  std::uint64_t prepared_at_ = 0;  // releases_ended()
  rung rung_ = rung::free_range;
  account_number account_ = 0;
  block_index room_ = no_block;
};

}}}  // namespace weir::v0::heap
