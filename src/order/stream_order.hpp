// SPDX-License-Identifier: Apache-2.0
// How far the streams of a device have come: epochs, the marks that close them, and waits for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "device/state.hpp"
#include "order/awaited_marks.hpp"
#include "order/stable_vector.hpp"
#include "order/stamp.hpp"
#include "weir/base/ids.hpp"
#include "weir/base/options.hpp"
#include "weir/base/result.hpp"
#include "weir/device/device.hpp"
#include "weir/device/event.hpp"
#include "weir/device/stream.hpp"

namespace weir { inline namespace v0 { namespace order {

/// Of two epochs the one that came first.
[[nodiscard]] constexpr epoch earlier(epoch a, epoch b) noexcept { return is_after(a, b) ? b : a; }
[[nodiscard]] constexpr epoch later(epoch a, epoch b) noexcept { return is_after(a, b) ? a : b; }

/// Whether an answer means "there is no such stream", as opposed to a device in trouble.
[[nodiscard]] bool says_gone(const error& reason) noexcept;

/// What a stream_order promises, and what it may rely on.
struct order_rules {
  crossing_rule crossing = crossing_rule::all_work;
  /// Streams that nobody watches may be destroyed without notice, so they are asked only in calls
  /// that name them.
  bool allow_unreleased_streams = false;
  /// Captures may take streams without a declaration, so streams that nobody watches are marked
  /// only in calls that name them, too.
  bool undeclared_captures = false;
};

/// Says when freed memory may leave its stream.
///
/// Time is cut into epochs, the same for all streams. What is freed is stamped with the open one;
/// close() ends it and marks the streams: an event behind everything queued on each of them so far.
/// An epoch is completed when every stream has reached a mark made at its end or later. Then all
/// work that was queued on any known stream when a block was freed is done, whether or not anybody
/// declared that it uses the block. Under crossing_rule::declared_uses the stream that freed it
/// alone must have reached its mark, and no other is marked.
///
/// Known are the streams that were met by name, every weir::stream, and those that are watched
/// (weir/device/stream_watch.hpp). A stream is known by its driver id: two that had the same handle
/// one after the other are two slots. A stream first met now holds up every epoch that is not
/// completed yet. A stream that cannot be asked now (captured, another thread's default stream, a
/// stranger that this call does not name) holds up what is closed until it can be. One that turns
/// out to be destroyed (lost) holds it up until all work was waited for: all_work_completed().
///
/// No call here queries a stream: a capture may have taken it meanwhile, and would be spoiled. An
/// event record would only become part of it, and is then not counted. For the same reason only
/// streams that are neither weir's nor watched are asked for their id, because their handles may be
/// other streams' by now, and none of them while a capture is declared, which might take them.
/// Neither is the legacy stream marked then: an event record on it invalidates the capture of a
/// stream that synchronises with it. Once a capture that nobody declared was seen, another thread
/// may begin the next one at any time: then the legacy stream is marked only in calls that name it
/// if it was beside such a capture, and waits are queued only where no bystander has to wait.
///
/// No call here waits. Whoever has to wait takes awaited_marks, or cut(), and waits without the
/// lock.
///
/// Owned by one allocator or pool, whose lock every call needs. Calls that need host memory throw
/// std::bad_alloc and leave everything as it was, but for marks and waits that are already queued.
class stream_order {
 public:
  explicit stream_order(weir::device device, order_rules rules = {});
  ~stream_order();
  stream_order(const stream_order&) = delete;
  stream_order& operator=(const stream_order&) = delete;

  // --- Streams ----------------------------------------------------------------------------------

  /// The slot of a stream that the call names, made at first sight. The id costs driver calls
  /// unless it is known.
  [[nodiscard]] result<stream_slot> slot_of(const stream_ref& stream, const context_scope& bound);
  /// The same for a stream whose id is known: no driver call.
  [[nodiscard]] stream_slot meet(const stream_ref& stream, stream_id id);
  /// The same for one that was met before and can still be asked; nobody if it was not, or cannot.
  [[nodiscard]] stream_slot meet_again(stream_id id) noexcept;
  /// The slot of an id that was met before; nobody if it was not.
  [[nodiscard]] stream_slot known(stream_id id) const noexcept;
  [[nodiscard]] stream_id id(stream_slot slot) const noexcept { return entries_[slot].id; }
  [[nodiscard]] stream_ref ref(stream_slot slot) const noexcept;
  /// Slots are 1 … count().
  [[nodiscard]] stream_slot count() const noexcept {
    return static_cast<stream_slot>(entries_.size() - 1);
  }
  /// Whether the stream can no longer be asked.
  [[nodiscard]] bool gone(stream_slot slot) const noexcept {
    return entries_[slot].lost || entries_[slot].ended;
  }
  /// Whether no other stream that is still there was ever named. Walks over them.
  [[nodiscard]] bool alone(stream_slot slot) const noexcept;
  /// Whether a capture is known to be under way: of a stream that can be asked, of the calling
  /// thread's default stream, or of a stream that synchronises with the legacy stream.
  [[nodiscard]] result<bool> any_capturing(const context_scope& bound);
  /// The stream is about to be destroyed: it is marked for the last time and never asked again,
  /// unless somebody names it once more. After an error it is lost: only all_work_completed() tells
  /// of its work.
  result<void> end_stream(stream_slot slot, const context_scope& bound) noexcept;
  /// The same for a stream with a known id, named in a request or not: work on it may use memory
  /// that it never asked for. Without host memory for a slot it is lost. The calling thread's
  /// default stream needs no known id.
  result<void> end_stream(const stream_ref& stream, const context_scope& bound) noexcept;
  /// The same where it cannot be asked any more.
  void lose(stream_slot slot) noexcept;

  // --- Epochs -----------------------------------------------------------------------------------

  /// The open epoch; something is stamped with it from now on.
  [[nodiscard]] stamp now(stream_slot slot) noexcept {
    entry& stream = entries_[slot];
    stream.stamped = open_;
    used_ = true;
    return {slot, open_};
  }
  /// Counts a request that no cache of a thread's could serve.
  void add_request(stream_slot slot) noexcept {
    ++requests_;
    ++entries_[slot].requests;
  }
  /// Counts memory that a stream freed. True once that is worth marks though nobody asked: where
  /// several streams share memory, what one frees should not stay its own for long. That is after
  /// `some` bytes in 16 frees for each stream that is marked then, after `much` in three for each,
  /// or after 24 times that in any number: the more streams there are, the more frees share the
  /// cost. Where no other stream made a request for long, nothing is worth marks until one does.
  [[nodiscard]] bool add_freed(stream_slot slot, std::uint64_t size, std::uint64_t some,
                               std::uint64_t much) noexcept;

  /// Whether memory freed at the stamp may leave its stream.
  [[nodiscard]] bool completed(stamp freed) const noexcept {
    if (freed.stream == no_stream) return true;
    if (!all_work()) return stream_completed(freed);
    return !is_after(freed.epoch, entries_[freed.stream].quiescent);
  }
  /// Whether that stream alone has done what it had been given by the end of the epoch.
  [[nodiscard]] bool stream_completed(stamp used) const noexcept {
    if (used.stream == no_stream) return true;
    const entry& stream = entries_[used.stream];
    return stream.finished || !is_after(used.epoch, stream.completed);
  }
  /// An epoch of which a stamp of the stream's is completed.
  [[nodiscard]] epoch completed_epoch(stream_slot slot) const noexcept {
    return all_work() ? entries_[slot].quiescent : entries_[slot].completed;
  }
  /// Whether something is stamped with an epoch of the stream that is not completed.
  [[nodiscard]] bool behind(stream_slot slot) const noexcept {
    return slot != no_stream && !completed({slot, entries_[slot].stamped});
  }
  [[nodiscard]] bool any_behind() const noexcept;
  /// The same for what was stamped by the end of that epoch alone.
  [[nodiscard]] bool any_behind(epoch until) const noexcept;
  [[nodiscard]] epoch open_epoch() const noexcept { return open_; }
  /// The newest epoch that has ended.
  [[nodiscard]] epoch last_ended() const noexcept { return open_ - 1; }
  /// Ends the open epoch and returns its number. Marks of streams that end later, and streams that
  /// are lost later, belong to later epochs.
  [[nodiscard]] epoch cut() noexcept;

  // --- Marks ------------------------------------------------------------------------------------

  /// Captures may be under way until resume(): until then no stream is asked, nothing is recorded,
  /// nobody is waited for, and whoever wants that gets the answer that it cannot be had. Counted.
  void pause() noexcept { ++pauses_; }
  void resume() noexcept { pauses_ -= pauses_ == 0 ? 0 : 1; }
  void end_pauses() noexcept { pauses_ = 0; }
  [[nodiscard]] bool paused() const noexcept { return pauses_ != 0; }
  /// Whether a capture of any stream was declared.
  [[nodiscard]] bool expects_captures() const noexcept { return captures_expected_ != 0; }
  /// The same for one stream: a capture of it was declared.
  void expect_capture(stream_slot slot, bool expected) noexcept {
    bool& known = entries_[slot].capture_expected;
    if (known != expected) expected ? ++captures_expected_ : --captures_expected_;
    known = expected;
  }

  /// Ends the open epoch, if anything is stamped with it, and marks what completes the epochs of
  /// the stream. A stream that cannot be asked now is marked by a later call.
  result<void> close(stream_slot slot, const context_scope& bound);
  /// The same for what any stream freed but `spared`, whose memory is its own to use already.
  result<void> close_others(stream_slot spared, const context_scope& bound);
  /// Ends the open epoch and marks every stream that can be asked, whoever freed memory.
  result<void> mark_streams(const context_scope& bound);
  /// Events behind all work of every stream now, for a thread that may wait for long and should
  /// sleep. `complete`: whether there is one of every stream whose work counts.
  struct work_of_all {
    awaited_marks marks;
    bool complete = true;
  };
  [[nodiscard]] work_of_all events_behind_all(const context_scope& bound);
  /// Ends the open epoch and marks these streams alone: somebody waits for them to complete it.
  result<void> close_for(const std::vector<stamp>& used, const context_scope& bound);
  /// For who waits without the lock: ends the open epoch and returns an event behind everything
  /// that the stream was given. Null: it cannot be asked now. The event comes back by
  /// done_waiting().
  [[nodiscard]] result<std::shared_ptr<event>> event_behind(stream_slot slot,
                                                            const context_scope& bound);
  /// The event of event_behind() is reached, or nobody waits for it any more: then without a stamp.
  void done_waiting(std::shared_ptr<event> waited, std::optional<stamp> reached) noexcept;
  /// Looks which marks are reached. True if a stream came on.
  result<bool> poll(const context_scope& bound);
  /// For who waits without the lock: the newest mark of every stream that is not known to have
  /// reached it; or the oldest mark of all. Empty: there is none.
  [[nodiscard]] awaited_marks unreached_marks() const;
  [[nodiscard]] awaited_marks oldest_mark() const;
  /// Adds what a thread waits for on behalf of memory freed at the stamp: of every stream that
  /// keeps the memory now, the first mark behind the work that counts. What streams are given
  /// later, and streams that are met later, do not matter then. False: one of them has no such
  /// mark.
  [[nodiscard]] bool add_marks_for(stamp freed, awaited_marks& marks) const;
  /// The same for the work of the stamp's stream alone.
  [[nodiscard]] bool add_mark_of_stream(stamp used, awaited_marks& marks) const;
  /// Those that are known to be part of a capture.
  [[nodiscard]] std::vector<stream_slot> captured_streams(const context_scope& bound);
  /// All work that was queued on any stream before cut() returned `until` has completed. What the
  /// `captured` streams freed stays theirs: captured work runs when its graph is launched.
  void all_work_completed(epoch until, const std::vector<stream_slot>& captured = {}) noexcept;

  /// Makes work queued on `waiter` from now on wait for what keeps the memory of the stamp on its
  /// stream. False: that cannot be had now, for one because the waiter is being captured.
  ///
  /// Every other stream is made to wait as well: one that waited for `waiter` before the request
  /// may use the memory without a further wait, as it may where memory never leaves its stream.
  result<bool> wait(stream_slot waiter, stamp freed, const context_scope& bound);
  /// The same for the work of the stamp's stream alone.
  result<bool> wait_for_stream(stream_slot waiter, stamp used, const context_scope& bound);
  /// Whether wait() for it would succeed without a mark.
  [[nodiscard]] bool can_wait_for(stamp freed) const noexcept {
    return completed(freed) || is_marked(freed);
  }

  [[nodiscard]] std::uint64_t events_recorded() const noexcept { return events_recorded_; }
  [[nodiscard]] std::uint64_t waits_queued() const noexcept { return waits_queued_; }
  [[nodiscard]] std::size_t footprint() const noexcept;

 private:
  friend class named_stream;
  friend class unnamed_stream;

  struct mark {
    order::epoch epoch;  // everything queued by its end is before the event
    std::shared_ptr<event> reached;
  };
  struct entry {
    stream_id id{};
    driver::CUstream handle = nullptr;
    bool named = false;       // by a request or free: it has, or may have, memory
    bool lasting = true;      // it can be asked at any time
    bool registered = false;  // weir's or watched: its end is told
    bool lost = false;        // it was destroyed, and nobody told
    bool ended = false;       // its last mark is behind all it will ever do
    bool finished = false;    // … and is reached
    bool capture_expected = false;
    epoch lost_in = 0;  // if lost: the epoch that was open then
    // Of its memory, each the newest epoch of its kind: of which something is stamped; that may
    // become quiescent; that is quiescent.
    epoch stamped = 0;
    epoch closed = 0;
    epoch quiescent = 0;
    std::vector<epoch> closings;  // what `closed` was, as far as not quiescent
    std::uint64_t freed = 0;      // bytes since it was last closed
    std::uint32_t frees = 0;      // in how many frees
    // How often it asked for memory, how often the others had when its frees were last worth marks,
    // and how many times that was so since one of them asked.
    std::uint64_t requests = 0;
    std::uint64_t others_requests = 0;
    std::uint32_t marks_for_nobody = 0;
    // Of its work, the same: with a mark; with a mark that is reached.
    epoch marked = 0;
    epoch completed = 0;
    std::deque<mark> marks;                             // not known to be reached
    std::unordered_map<stream_slot, epoch> waited_for;  // waits already queued
  };

  [[nodiscard]] bool all_work() const noexcept {
    return rules_.crossing == crossing_rule::all_work;
  }
  [[nodiscard]] bool is_marked(stamp freed) const noexcept {
    const entry& stream = entries_[freed.stream];
    if (!all_work()) return stream.ended || !is_after(freed.epoch, stream.marked);
    return !is_after(freed.epoch, earlier(marked_, stream.closed));
  }
  /// Whether the memory that a stream frees is anybody else's concern.
  [[nodiscard]] bool others_take_part(stream_slot slot) noexcept;
  /// Whether what the stream freed has no mark that will complete it.
  [[nodiscard]] bool needs_mark(stream_slot slot) const noexcept {
    return behind(slot) && !is_marked({slot, entries_[slot].stamped});
  }
  /// Whether the stream has no mark for an epoch that is closed.
  [[nodiscard]] bool owes_mark(const entry& stream) const noexcept {
    return !stream.ended && !stream.lost && is_after(open_ - 1, stream.marked);
  }

  [[nodiscard]] stream_slot add(const stream_ref& stream, stream_id id);
  /// A slot of no stream, which stays in spare_ until it is taken from there.
  [[nodiscard]] stream_slot spare_slot();
  void set_lost(entry& stream) noexcept;
  /// Whoever names or watches a stream that had ended will give it more to do.
  void revive(stream_slot slot) noexcept;
  /// Whether a stream whose end was told is registered anew, and was not met since.
  [[nodiscard]] bool watched_again(stream_id id) const noexcept;
  /// May throw std::bad_alloc, but not for a stream whose end was told before.
  void note_told_end(stream_id id);
  /// Meets the streams that became known elsewhere.
  void meet_watched();
  void end_epoch() noexcept;
  /// The same where streams can be met, which may throw std::bad_alloc.
  void end_epoch_for_all();
  /// What the stream freed in epochs that have ended may become quiescent. prepare_closing() comes
  /// first.
  void close_epochs(entry& stream) noexcept;
  static void prepare_closing(entry& stream);
  result<void> mark_all(const context_scope& bound);
  result<void> mark_stream(stream_slot slot, const context_scope& bound);
  [[nodiscard]] result<bool> record_mark(stream_slot slot, epoch until, const context_scope& bound);
  /// An event recorded on a stream that may be asked. Nothing: a capture took the stream meanwhile.
  [[nodiscard]] result<std::shared_ptr<event>> record_event(stream_slot slot,
                                                            const context_scope& bound);
  /// Whether the driver may be asked about the stream now; finds out if it is lost.
  [[nodiscard]] result<bool> may_be_asked(stream_slot slot, const context_scope& bound);
  /// Whether an event record on the legacy stream cannot meet the beginning of a capture.
  [[nodiscard]] bool may_mark_legacy(stream_slot slot) const noexcept;
  /// The driver said that the stream is not outside captures.
  void note_capture(const stream_ref& stream) noexcept;
  /// The slot of the calling thread's default stream, if that is being captured.
  [[nodiscard]] stream_slot captured_thread_stream(const context_scope& bound);
  [[nodiscard]] bool is_captured(stream_slot slot, stream_slot of_thread,
                                 const context_scope& bound);
  /// A stream that ended without a slot, and without host memory for one, holds up what is not
  /// completed yet.
  void lose_unknown() noexcept;
  /// Whether the handle still is the stream we knew; marks it lost if not.
  [[nodiscard]] result<bool> still_there(entry& stream, const context_scope& bound);
  result<bool> poll_stream(entry& stream, const context_scope& bound);
  /// Whether all streams can be made to wait now, the waiter first of all.
  [[nodiscard]] result<bool> all_can_wait(stream_slot waiter, const context_scope& bound);
  /// Whether a stream that takes no part in the call would be made to wait for the stamp's, though
  /// another thread may begin to capture it in that moment.
  [[nodiscard]] bool endangers_bystanders(stream_slot waiter, stamp used) const noexcept;
  /// Makes all streams wait for the stamp's, for the sake of `waiter`. False: there is no mark.
  result<bool> queue_waits(stream_slot waiter, stamp used, const context_scope& bound);
  result<bool> queue_wait(stream_slot waiter, stamp used, const context_scope& bound);
  /// Derives what is known of all streams from what is known of each.
  void update() noexcept;

  /// The end of a watched stream was told here; it may still be in the registry, for those who are
  /// told later, and must not be met anew.
  struct told_end {
    stream_id stream{};
    std::uint64_t registration = 0;
    friend bool operator==(const told_end&, const told_end&) = default;
  };

  const weir::device device_;
  const order_rules rules_;
  std::size_t captures_expected_ = 0;
  detail::stream_registry& watched_;
  std::uint64_t watched_seen_ = 0;
  std::vector<told_end> told_ends_;  // has room for every stream that has not ended
  mark_events events_;
  stable_vector<entry> entries_;    // 0 is nobody
  std::vector<stream_slot> spare_;  // of streams that ended and never had memory; room for all
  std::unordered_map<stream_id, stream_slot> slots_;
  std::unordered_map<driver::CUstream, stream_slot> by_handle_;  // the latest with that handle
  stream_slot named_ = no_stream;                                // by the call under way
  epoch open_ = 1;
  epoch marked_ = 0;     // every stream has a mark for it
  epoch completed_ = 0;  // every stream has reached one
  // Whoever may use what was freed until its end is met: no later epoch completes before that.
  epoch met_until_ = 0;
  bool used_ = false;           // something is stamped with `open_`
  std::uint32_t to_mark_ = 0;   // streams that can have further marks
  std::uint64_t requests_ = 0;  // of all streams
  std::uint64_t events_recorded_ = 0;
  std::uint64_t waits_queued_ = 0;
  std::uint32_t pauses_ = 0;
  bool undeclared_seen_ = false;           // a capture that nobody declared
  bool undeclared_beside_legacy_ = false;  // … of a stream that synchronises with the legacy one
  bool lost_unknown_ = false;              // see lose_unknown(); the epochs as in an entry
  epoch unknown_lost_in_ = 0;
  epoch unknown_completed_ = 0;
};

/// While it lives, the call under way names the stream, which is therefore there and can be asked,
/// whether or not it lasts. Needs the lock of the stream_order at both ends. Whoever lets go of the
/// lock in between takes an unnamed_stream with it.
class named_stream {
 public:
  [[nodiscard]] named_stream(stream_order& in, stream_slot slot) noexcept : in_{in} {
    in_.named_ = slot;
  }
  ~named_stream() { in_.named_ = no_stream; }
  named_stream(const named_stream&) = delete;
  named_stream& operator=(const named_stream&) = delete;

 private:
  stream_order& in_;
};

/// While the lock is released the calls of other threads name theirs; afterwards the stream that
/// was named before is named again. Needs the lock at both ends.
class unnamed_stream {
 public:
  [[nodiscard]] explicit unnamed_stream(stream_order& in) noexcept
      : in_{in}, named_{std::exchange(in.named_, no_stream)} {}
  ~unnamed_stream() { in_.named_ = named_; }
  unnamed_stream(const unnamed_stream&) = delete;
  unnamed_stream& operator=(const unnamed_stream&) = delete;

 private:
  stream_order& in_;
  stream_slot named_;
};

}}}  // namespace weir::v0::order
