// The streams an allocator has met, and how far each of them is known to have come.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>

#include "heap/block.hpp"
#include "heap/mutation.hpp"
#include "weir/device.hpp"
#include "weir/event.hpp"
#include "weir/ids.hpp"
#include "weir/result.hpp"
#include "weir/stats.hpp"
#include "weir/stream.hpp"

namespace weir::inline v0::heap {

/// Work of a stream up to the end of an epoch.
struct stamp {
  stream_slot stream = nobody;
  heap::epoch epoch = 0;

  friend bool operator==(const stamp&, const stamp&) = default;
};

/// Whether an answer means "there is no such stream", as opposed to a device in trouble.
[[nodiscard]] bool says_gone(const error& reason) noexcept;

/// Streams by slot, each with its epochs.
///
/// A stream's life is cut into epochs. What is freed is stamped with the open one; close() records
/// one event behind everything queued so far and opens the next. Events are reached in order, so
/// passed() only grows. A stream is known by its driver id: two streams that had the same handle
/// one after the other are two slots.
///
/// A stream that can no longer be asked (destroyed, or its handle belongs to another stream now) is
/// lost: its open epoch is never closed by an event, only by device_synchronized(). The per-thread
/// default stream of a thread can be asked on that thread only.
///
/// Needs the heap's lock.
class streams {
 public:
  explicit streams(weir::device where);
  ~streams();
  streams(const streams&) = delete;
  streams& operator=(const streams&) = delete;

  /// The slot of a stream, made at first sight. The id costs driver calls unless it is known.
  [[nodiscard]] result<stream_slot> slot_of(const stream_ref& stream, const context_scope& bound);
  /// The same for a stream whose id is known: no driver call.
  [[nodiscard]] stream_slot meet(const stream_ref& stream, stream_id id);
  /// The slot of an id that was met before; nobody if it was not.
  [[nodiscard]] stream_slot known(stream_id id) const noexcept;
  [[nodiscard]] stream_id id(stream_slot slot) const noexcept { return entries_[slot].id; }
  [[nodiscard]] stream_ref ref(stream_slot slot) const noexcept;
  /// Slots are 1 … count().
  [[nodiscard]] stream_slot count() const noexcept {
    return static_cast<stream_slot>(entries_.size() - 1);
  }

  /// The open epoch, marked as used: something is stamped with it.
  [[nodiscard]] stamp now(stream_slot slot) noexcept {
    // All that a released stream will ever do is behind its last event.
    if (entries_[slot].released) return {slot, entries_[slot].open - 1};
    entries_[slot].used = !mutated(mutation::epoch_not_marked);
    return {slot, entries_[slot].open};
  }
  /// Counts memory that was freed in the open epoch. True once it is worth an event though nobody
  /// asked: where several streams share memory, what one frees should not stay its own for long.
  /// That is after `some` bytes in at least 16 frees, so that the event costs each of them little,
  /// or after `much` in any number.
  [[nodiscard]] bool add_freed(stream_slot slot, std::uint64_t size, std::uint64_t some,
                               std::uint64_t much) noexcept {
    if (slot == nobody) return false;
    entry& stream = entries_[slot];
    stream.freed += size;
    ++stream.frees;
    if (stream.freed < much && (stream.freed < some || stream.frees < 16)) return false;
    if (!alone(slot)) return true;
    stream.freed = 0;  // so that the others are looked at seldom, however many there were
    stream.frees = 0;
    return false;
  }
  /// Whether every other stream that was met has come to its end. Walks over them.
  [[nodiscard]] bool alone(stream_slot slot) const noexcept {
    for (stream_slot other = 1; other <= count(); ++other)
      if (other != slot && !lost(other)) return false;
    return true;
  }
  /// The newest epoch that the stream is known to have passed.
  [[nodiscard]] epoch passed(stream_slot slot) const noexcept { return entries_[slot].passed; }
  [[nodiscard]] bool has_passed(stamp what) const noexcept {
    const epoch ahead = mutated(mutation::one_epoch_too_many) ? 1 : 0;
    return what.stream == nobody || !is_after(what.epoch, entries_[what.stream].passed + ahead);
  }

  /// Captures may be under way until resume(): until then no stream is asked, nothing is recorded,
  /// nobody is waited for, and whoever wants that gets the answer that it cannot be had. Counted.
  void pause() noexcept { ++pauses_; }
  void resume() noexcept { pauses_ -= pauses_ == 0 ? 0 : 1; }
  void end_pauses() noexcept { pauses_ = 0; }
  [[nodiscard]] bool paused() const noexcept { return pauses_ != 0; }

  /// The same for one stream: a capture of it was declared.
  void expect_capture(stream_slot slot, bool expected) noexcept {
    entries_[slot].capture_expected = expected;
  }

  /// Ends the open epoch with an event, if anything is stamped with it. Not while the stream is
  /// being captured: then, and for a lost stream, nothing happens and the answer is false.
  result<bool> close(stream_slot slot, const context_scope& bound);
  /// The same without an event where the stream has nothing left to do: then it has passed.
  result<bool> settle(stream_slot slot, const context_scope& bound);
  /// The stream is about to be destroyed: a last event is recorded behind all its work, and it is
  /// never asked again, unless somebody names it once more (met_alive).
  result<void> release(stream_slot slot, const context_scope& bound);
  /// Somebody names the stream: released or not, it does new work.
  void met_alive(stream_slot slot) noexcept { entries_[slot].released = false; }
  /// Looks which events are reached. True if passed() grew.
  result<bool> poll(stream_slot slot, const context_scope& bound);
  /// Waits on the host for everything closed so far; false if there was nothing to wait for.
  result<bool> synchronize(stream_slot slot, const context_scope& bound);
  /// Waits for the slot's oldest closed epoch that is not passed; false if there is none.
  result<bool> synchronize_oldest(stream_slot slot, const context_scope& bound);
  /// Makes work queued on `waiter` from now on wait for `until`, which is closed first if it is
  /// open. False: that cannot be had now (capture, lost stream).
  result<bool> wait(stream_slot waiter, stamp until, const context_scope& bound);
  /// Whether wait() for it would succeed without closing an epoch.
  [[nodiscard]] bool can_wait_for(stamp what) const noexcept {
    return has_passed(what) || what.epoch != entries_[what.stream].open;
  }
  /// The whole device came to rest: every stream passed its open epoch.
  void device_synchronized() noexcept;
  /// Whether the stream can no longer be asked: it is lost or released.
  [[nodiscard]] bool lost(stream_slot slot) const noexcept {
    return entries_[slot].lost || entries_[slot].released;
  }
  /// Whether something is stamped with an epoch that is not passed.
  [[nodiscard]] bool behind(stream_slot slot) const noexcept {
    return entries_[slot].used || !entries_[slot].marks.empty();
  }

  [[nodiscard]] std::uint64_t events_recorded() const noexcept { return events_recorded_; }
  [[nodiscard]] std::uint64_t waits_queued() const noexcept { return waits_queued_; }
  [[nodiscard]] std::size_t footprint() const noexcept;

 private:
  struct mark {
    heap::epoch epoch;
    event reached;
  };
  struct entry {
    stream_id id{};
    driver::CUstream handle = nullptr;
    heap::epoch open = 1;
    heap::epoch passed = 0;
    std::uint64_t freed = 0;  // bytes stamped with `open`
    std::uint32_t frees = 0;  // in how many frees
    bool used = false;        // something is stamped with `open`
    bool lost = false;
    bool released = false;
    bool capture_expected = false;
    std::deque<mark> marks;                                   // closed, not known to be passed
    std::unordered_map<stream_slot, heap::epoch> waited_for;  // waits already queued
  };

  /// close(), captures or not.
  [[nodiscard]] result<bool> close_now(stream_slot slot, const context_scope& bound);
  /// Whether the driver may be asked about the stream now; finds out if it is lost.
  [[nodiscard]] result<bool> may_be_asked(entry& stream, const context_scope& bound);
  /// Nothing of the stream's work is left: it passed its open epoch.
  void came_to_rest(entry& stream) noexcept;
  /// Whether the handle still is the stream we knew; marks it lost if not.
  [[nodiscard]] bool still_there(entry& stream, const context_scope& bound);

  weir::device device_;
  event_pool events_;
  std::deque<entry> entries_;  // 0 is nobody
  std::unordered_map<stream_id, stream_slot> slots_;
  std::unordered_map<driver::CUstream, stream_slot> by_handle_;  // the latest with that handle
  std::uint64_t events_recorded_ = 0;
  std::uint64_t waits_queued_ = 0;
  std::uint32_t pauses_ = 0;
};

}  // namespace weir::inline v0::heap
