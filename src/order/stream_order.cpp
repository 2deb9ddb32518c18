// SPDX-License-Identifier: Apache-2.0
// Epochs of all streams: a few events close many frees.
#include "order/stream_order.hpp"

#include <algorithm>
#include <new>
#include <optional>
#include <utility>

#include "device/finished_work.hpp"
#include "weir/driver/table.hpp"

namespace weir { inline namespace v0 { namespace order {
namespace {

/// The most marks and closings that are kept of a stream. What comes when there are more is told
/// apart no longer, and counts as done a little later.
constexpr std::size_t most_unfinished = 256;

/// So many times a stream's frees are made known though no other stream asked for memory meanwhile.
constexpr std::uint32_t most_for_nobody = 256;

}  // namespace

bool says_gone(const error& reason) noexcept {
  return reason.code() == errc::bad_stream || reason.code() == errc::invalid_handle ||
         reason.native() == driver::CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

stream_order::stream_order(weir::device device, order_rules rules)
    : device_{device},
      rules_{rules},
      watched_{detail::device_state::of(device).known_streams},
      events_{device},
      entries_(1) {}

stream_order::~stream_order() = default;

// --- Streams -------------------------------------------------------------------------------------

stream_slot stream_order::known(stream_id id) const noexcept {
  const auto known = slots_.find(id);
  return known == slots_.end() ? no_stream : known->second;
}

stream_ref stream_order::ref(stream_slot slot) const noexcept {
  return {device_, entries_[slot].handle};
}

result<stream_slot> stream_order::slot_of(const stream_ref& stream, const context_scope& bound) {
  if (stream.device() != device_) return errc::bad_stream;
  auto asked = stream.id(bound);
  if (!asked) {
    // A stream that is being captured cannot be asked. Its handle is the one we know, unless that
    // one's end was told: then the driver may have given the handle to another.
    const auto known = by_handle_.find(stream.handle());
    const bool is_known = known != by_handle_.end() && !gone(known->second);
    if (asked.code() == errc::capture_forbidden && is_known) return known->second;
    return std::move(asked).error();
  }
  return meet(stream, *asked);
}

stream_slot stream_order::meet(const stream_ref& stream, stream_id id) {
  const stream_slot known_slot = known(id);
  const stream_slot slot = known_slot != no_stream ? known_slot : add(stream, id);
  entries_[slot].named = true;
  if (gone(slot)) [[unlikely]]
    revive(slot);
  return slot;
}

stream_slot stream_order::meet_again(stream_id id) noexcept {
  const stream_slot slot = known(id);
  if (slot == no_stream || gone(slot)) return no_stream;
  entries_[slot].named = true;
  return slot;
}

void stream_order::revive(stream_slot slot) noexcept {
  entry& back = entries_[slot];
  if (back.finished) back.marked = back.completed = completed_;
  back.ended = back.lost = back.finished = false;
  // A wait for its last mark was one for all it did; it is none for what comes now.
  for (entry& each : entries_) each.waited_for.erase(slot);
  update();
}

stream_slot stream_order::spare_slot() {
  if (spare_.empty()) {
    spare_.reserve(entries_.size());
    entries_.emplace_back();
    spare_.push_back(count());
  }
  return spare_.back();
}

stream_slot stream_order::add(const stream_ref& stream, stream_id id) {
  // What may throw comes first; until the slot is taken it is a spare one.
  entry fresh;  // its queue of marks takes host memory
  const stream_slot slot = spare_slot();
  told_ends_.reserve(told_ends_.size() + count());
  const auto entered = slots_.emplace(id, slot).first;
  try {
    if (!stream.is_per_thread()) by_handle_.insert_or_assign(stream.handle(), slot);
  } catch (const std::bad_alloc&) {
    slots_.erase(entered);
    throw;
  }
  spare_.pop_back();
  for (entry& each : entries_) each.waited_for.erase(slot);
  entry& met = entries_[slot];
  met = std::move(fresh);
  met.id = id;
  met.handle = stream.handle();
  met.lasting = !rules_.allow_unreleased_streams || stream.is_legacy();
  // What it was given before we knew of it may use what was freed since: it holds that up.
  met.stamped = met.closed = met.quiescent = completed_;
  met.marked = met.completed = completed_;
  update();
  return slot;
}

void stream_order::meet_watched() {
  // Those that could not be met for want of host memory are met the next time.
  std::uint64_t seen = watched_seen_;
  const auto watched = watched_.added_since(seen);
  if (watched.empty()) {
    met_until_ = open_ - 1;
    return;
  }
  std::erase_if(told_ends_, [&](const told_end& end) {
    return std::none_of(watched.begin(), watched.end(), [&](const auto& each) {
      return each.registration == end.registration && each.stream.known_id() == end.stream;
    });
  });
  told_ends_.reserve(told_ends_.size() + count() + watched.size());
  for (const auto& [stream, registration] : watched) {
    const stream_id id = stream.known_id();
    const auto is_it = [&, number = registration](const told_end& end) {
      return end.stream == id && end.registration == number;
    };
    if (std::any_of(told_ends_.begin(), told_ends_.end(), is_it)) continue;
    const stream_slot met = known(id);
    const stream_slot slot = met != no_stream ? met : add(stream, id);
    entries_[slot].lasting = entries_[slot].registered = true;
    if (gone(slot)) revive(slot);  // it was unwatched, and is watched again
  }
  watched_seen_ = seen;
  met_until_ = open_ - 1;
}

bool stream_order::alone(stream_slot slot) const noexcept {
  for (stream_slot other = 1; other <= count(); ++other)
    if (other != slot && entries_[other].named && !gone(other)) return false;
  return true;
}

result<bool> stream_order::any_capturing(const context_scope& bound) {
  for (stream_slot slot = 1; slot <= count(); ++slot) {
    const entry& stream = entries_[slot];
    const bool askable = !gone(slot) && (stream.lasting || slot == named_);
    if (!askable || ref(slot).is_per_thread()) continue;
    const auto outside = detail::is_outside_captures(ref(slot), bound);
    if (!outside || *outside) continue;
    if (!stream.capture_expected) note_capture(ref(slot));
    return true;
  }
  // Default streams, of which the per-thread one is the calling thread's.
  for (const stream_ref& each : {stream_ref::legacy(device_), stream_ref::per_thread(device_)}) {
    const auto outside = detail::is_outside_captures(each, bound);
    if (!outside || *outside) continue;
    note_capture(each);
    return true;
  }
  return false;
}

void stream_order::set_lost(entry& stream) noexcept {
  stream.lost = true;
  stream.lost_in = open_;
}

void stream_order::lose(stream_slot slot) noexcept { set_lost(entries_[slot]); }

result<bool> stream_order::still_there(entry& stream, const context_scope& bound) {
  const stream_ref there{device_, stream.handle};
  // Of a registered stream's end weir is told before. To ask for its id would do harm: a capture
  // that takes the stream in that moment would be spoiled.
  if (stream.registered || there.is_legacy()) return true;
  const auto id = there.id(bound);
  if (id && *id == stream.id) return true;
  if (!id && id.code() == errc::capture_forbidden) return false;
  if (!id && !says_gone(id.error())) return id.error();
  // The per-thread handle means another stream on every thread: ours is there, but not from here.
  if (!there.is_per_thread()) set_lost(stream);
  return false;
}

bool stream_order::may_mark_legacy(stream_slot slot) const noexcept {
  if (captures_expected_ != 0) return false;
  return slot == named_ || !undeclared_beside_legacy_;
}

void stream_order::note_capture(const stream_ref& stream) noexcept {
  if (captures_expected_ != 0) return;  // the stream may have joined one of those
  undeclared_seen_ = true;
  if (stream.is_legacy()) undeclared_beside_legacy_ = true;
}

stream_slot stream_order::captured_thread_stream(const context_scope& bound) {
  const stream_ref own = stream_ref::per_thread(device_);
  const auto outside = detail::is_outside_captures(own, bound);
  if (!outside || *outside) return no_stream;
  const auto id = own.id(bound);  // known from before its capture
  return id ? known(*id) : no_stream;
}

result<bool> stream_order::may_be_asked(stream_slot slot, const context_scope& bound) {
  entry& stream = entries_[slot];
  if (stream.lost || stream.ended || stream.capture_expected) return false;
  if (!stream.lasting && slot != named_) return false;
  const bool asked_for_id = !stream.registered && !ref(slot).is_legacy() && slot != named_;
  if (asked_for_id && (captures_expected_ != 0 || rules_.undeclared_captures)) return false;
  if (ref(slot).is_legacy() && !may_mark_legacy(slot)) return false;
  const auto outside = detail::is_outside_captures(ref(slot), bound);
  if (outside && !*outside) note_capture(ref(slot));
  if (!outside && says_gone(outside.error()) && !ref(slot).is_per_thread()) set_lost(stream);
  if (!outside && !stream.lost) return outside.error();
  if (!outside || !*outside) return false;
  return still_there(stream, bound);
}

bool stream_order::watched_again(stream_id id) const noexcept {
  const told_end now{id, watched_.registration_of(id)};
  return now.registration != 0 &&
         std::find(told_ends_.begin(), told_ends_.end(), now) == told_ends_.end();
}

void stream_order::note_told_end(stream_id id) {
  const std::uint64_t registration = watched_.registration_of(id);
  if (registration == 0) return;
  const auto known = std::find_if(told_ends_.begin(), told_ends_.end(),
                                  [id](const told_end& end) { return end.stream == id; });
  if (known == told_ends_.end()) {
    told_ends_.push_back({id, registration});
  } else {
    known->registration = registration;  // the one before does not come again
  }
}

result<void> stream_order::end_stream(stream_slot slot, const context_scope& bound) noexcept {
  entry& stream = entries_[slot];
  if (gone(slot)) {
    if (!watched_again(stream.id)) return {};
    revive(slot);  // what it was given since is not behind its last mark
  }
  const named_stream named{*this, slot};  // whoever tells of its end has it still
  stream.registered = false;
  // Nothing comes behind this mark, so it does for all epochs that follow as well.
  const epoch last = cut();
  result<bool> marked = false;
  try {
    note_told_end(stream.id);
    marked = record_mark(slot, last, bound);
  } catch (const std::bad_alloc&) {
    marked = errc::no_host_memory;
  }
  stream.ended = marked && *marked;
  // Without a last mark it is not asked again, either.
  if (!stream.ended) set_lost(stream);
  update();
  if (!marked) return marked.error();
  return {};
}

result<void> stream_order::end_stream(const stream_ref& stream,
                                      const context_scope& bound) noexcept {
  stream_id id = stream.known_id();
  try {
    if (stream.is_per_thread()) {
      WEIR_TRY_VALUE(own, stream.id(bound));
      id = own;
    }
    stream_slot slot = known(id);
    if (slot == no_stream) slot = add(stream, id);
    return end_stream(slot, bound);
  } catch (const std::bad_alloc&) {
    lose_unknown();  // whoever needs to know of its work waits without the locks that are held here
    return {};
  }
}

void stream_order::lose_unknown() noexcept {
  if (!lost_unknown_) unknown_completed_ = completed_;
  lost_unknown_ = true;
  static_cast<void>(cut());
  unknown_lost_in_ = open_;
  update();
}

// --- Epochs --------------------------------------------------------------------------------------

bool stream_order::others_take_part(stream_slot slot) noexcept {
  entry& stream = entries_[slot];
  const std::uint64_t others = requests_ - stream.requests;
  const bool asked = std::exchange(stream.others_requests, others) != others;
  stream.marks_for_nobody = asked ? 0 : std::min(stream.marks_for_nobody + 1, most_for_nobody + 1);
  return stream.marks_for_nobody <= most_for_nobody && !alone(slot);
}

bool stream_order::add_freed(stream_slot slot, std::uint64_t size, std::uint64_t some,
                             std::uint64_t much) noexcept {
  if (slot == no_stream) return false;
  entry& stream = entries_[slot];
  stream.freed += size;
  ++stream.frees;
  const std::uint32_t marks = all_work() ? to_mark_ : 1;
  const bool due = (stream.freed >= some && stream.frees >= 16 * marks) ||
                   (stream.freed >= much && stream.frees >= 3 * marks) || stream.freed / 24 >= much;
  if (!due || paused()) return false;
  if (others_take_part(slot)) return true;
  stream.freed = 0;  // so that the others are looked at seldom, however many there were
  stream.frees = 0;
  return false;
}

bool stream_order::any_behind() const noexcept {
  for (stream_slot slot = 1; slot <= count(); ++slot)
    if (behind(slot)) return true;
  return false;
}

bool stream_order::any_behind(epoch until) const noexcept {
  for (stream_slot slot = 1; slot <= count(); ++slot)
    if (behind(slot) && !completed({slot, earlier(entries_[slot].stamped, until)})) return true;
  return false;
}

void stream_order::end_epoch() noexcept {
  if (!used_) return;
  ++open_;
  used_ = false;
}

void stream_order::end_epoch_for_all() {
  meet_watched();
  end_epoch();
  met_until_ = open_ - 1;
}

epoch stream_order::cut() noexcept {
  used_ = true;
  end_epoch();
  return open_ - 1;
}

void stream_order::prepare_closing(entry& stream) {
  stream.closings.reserve(std::min(stream.closings.size() + 1, most_unfinished));
}

void stream_order::close_epochs(entry& stream) noexcept {
  stream.closed = open_ - 1;
  if (stream.closings.size() == most_unfinished) stream.closings.pop_back();
  if (all_work()) stream.closings.push_back(stream.closed);
  stream.freed = 0;
  stream.frees = 0;
}

void stream_order::update() noexcept {
  marked_ = completed_ = lost_unknown_ ? unknown_completed_ : open_ - 1;
  if (all_work()) completed_ = earlier(completed_, met_until_);
  to_mark_ = 0;
  for (stream_slot slot = 1; slot <= count(); ++slot) {
    entry& stream = entries_[slot];
    if (stream.id == stream_id{}) continue;  // spare
    if (!stream.ended && !stream.lost) ++to_mark_;
    if (stream.ended && stream.marks.empty()) stream.finished = true;
    if (stream.finished) {
      if (!stream.named) {
        slots_.erase(stream.id);
        const auto latest = by_handle_.find(stream.handle);
        if (latest != by_handle_.end() && latest->second == slot) by_handle_.erase(latest);
        expect_capture(slot, false);
        stream.id = {};
        spare_.push_back(slot);
      }
      continue;
    }
    if (!stream.ended) marked_ = earlier(marked_, later(stream.marked, stream.completed));
    completed_ = earlier(completed_, stream.completed);
  }
  // So that the epochs of a stream that rests for long stay comparable.
  for (entry& stream : entries_) {
    auto open = stream.closings.begin();
    while (open != stream.closings.end() && !is_after(*open, completed_))
      stream.quiescent = *open++;
    stream.closings.erase(stream.closings.begin(), open);
    if (is_after(stream.stamped, stream.quiescent)) continue;
    stream.quiescent = later(stream.quiescent, completed_);
    stream.stamped = stream.closed = stream.quiescent;
  }
}

// --- Marks ---------------------------------------------------------------------------------------

result<bool> stream_order::record_mark(stream_slot slot, epoch until, const context_scope& bound) {
  entry& stream = entries_[slot];
  WEIR_TRY_VALUE(askable, may_be_asked(slot, bound));
  if (!askable) return false;
  // Behind a kernel that runs for long the newest mark moves on instead of another being made.
  if (stream.marks.size() == most_unfinished) {
    events_.release(std::move(stream.marks.back().reached));
    stream.marks.pop_back();
    stream.marked = stream.marks.back().epoch;
  }
  WEIR_TRY_VALUE(mark_event, record_event(slot, bound));
  if (mark_event == nullptr) return false;
  stream.marks.push_back({until, std::move(mark_event)});
  stream.marked = until;
  return true;
}

result<std::shared_ptr<event>> stream_order::record_event(stream_slot slot,
                                                          const context_scope& bound) {
  WEIR_TRY_VALUE(recorded, events_.acquire());
  const auto marked = recorded->record(ref(slot), bound);
  if (!marked) {
    events_.release(std::move(recorded));
    if (!detail::is_refused_for_capture(marked.error())) return marked.error();
    note_capture(ref(slot));
    return std::shared_ptr<event>{};
  }
  ++events_recorded_;
  // Another thread may have begun to capture the stream in between. The event is the capture's
  // then: it says nothing of earlier work, and whoever waited for it would be captured, too.
  const auto outside = detail::is_outside_captures(ref(slot), bound);
  if (outside && *outside) return std::move(recorded);
  if (outside) note_capture(ref(slot));
  events_.release(std::move(recorded));
  return std::shared_ptr<event>{};
}

result<std::shared_ptr<event>> stream_order::event_behind(stream_slot slot,
                                                          const context_scope& bound) {
  if (paused()) return std::shared_ptr<event>{};
  WEIR_TRY_VALUE(askable, may_be_asked(slot, bound));
  if (!askable) return std::shared_ptr<event>{};
  end_epoch_for_all();
  return record_event(slot, bound);
}

void stream_order::done_waiting(std::shared_ptr<event> waited,
                                std::optional<stamp> reached) noexcept {
  events_.release(std::move(waited));
  if (!reached) return;
  entry& stream = entries_[reached->stream];
  stream.completed = later(stream.completed, reached->epoch);
  stream.marked = later(stream.marked, reached->epoch);
  update();
}

result<void> stream_order::mark_stream(stream_slot slot, const context_scope& bound) {
  if (!owes_mark(entries_[slot])) return {};
  WEIR_TRY(record_mark(slot, open_ - 1, bound));
  return {};
}

result<void> stream_order::mark_all(const context_scope& bound) {
  meet_watched();
  result<void> outcome;
  for (stream_slot slot = 1; slot <= count(); ++slot) {
    auto marked = mark_stream(slot, bound);
    if (!marked && outcome) outcome = std::move(marked);  // the others are marked all the same
  }
  update();
  return outcome;
}

result<void> stream_order::close(stream_slot slot, const context_scope& bound) {
  if (paused()) return {};
  if (!needs_mark(slot)) return {};
  prepare_closing(entries_[slot]);
  if (!is_after(open_, entries_[slot].stamped)) end_epoch();
  close_epochs(entries_[slot]);
  if (all_work()) return mark_all(bound);
  auto marked = mark_stream(slot, bound);
  update();
  return marked;
}

result<void> stream_order::close_others(stream_slot spared, const context_scope& bound) {
  if (paused()) return {};
  if (all_work() && met_until_ != open_ - 1) {  // an epoch ended where nobody could be met
    meet_watched();
    update();
  }
  bool any_open = false;
  bool any_owed = false;
  for (stream_slot slot = 1; slot <= count(); ++slot) {
    any_owed = any_owed || owes_mark(entries_[slot]);
    if (slot == spared || !needs_mark(slot)) continue;
    any_open = true;
    if (!all_work()) WEIR_TRY(close(slot, bound));
  }
  if (!all_work()) return {};
  if (any_open) {
    for (entry& stream : entries_) prepare_closing(stream);
    end_epoch();
    for (stream_slot slot = 1; slot <= count(); ++slot)
      if (slot != spared) close_epochs(entries_[slot]);
  }
  if (any_open || (any_owed && any_behind())) return mark_all(bound);
  return {};
}

result<void> stream_order::mark_streams(const context_scope& bound) {
  if (paused()) return {};
  static_cast<void>(cut());
  return mark_all(bound);
}

stream_order::work_of_all stream_order::events_behind_all(const context_scope& bound) {
  work_of_all work;
  meet_watched();
  for (stream_slot slot = 1; slot <= count(); ++slot) {
    const entry& stream = entries_[slot];
    if (stream.id == stream_id{} || stream.finished) continue;
    if (stream.ended) {
      work.marks.add(stream.marks.back().reached);
      continue;
    }
    const auto askable = may_be_asked(slot, bound);
    auto behind = event::create(device_, {.blocking_sync = true});
    const auto recorded = askable && *askable && behind
                              ? detail::record_behind(*behind, ref(slot), bound)
                              : result<bool>{false};
    if (recorded && *recorded) {
      work.marks.add(std::make_shared<event>(*std::move(behind)));
    } else {
      work.complete = false;
    }
  }
  return work;
}

result<void> stream_order::close_for(const std::vector<stamp>& used, const context_scope& bound) {
  if (paused()) return {};
  end_epoch_for_all();
  result<void> outcome;
  for (const stamp& each : used) {
    auto marked = mark_stream(each.stream, bound);
    if (!marked && outcome) outcome = std::move(marked);
  }
  update();
  return outcome;
}

result<bool> stream_order::poll_stream(entry& stream, const context_scope& bound) {
  bool grew = false;
  while (!stream.marks.empty()) {
    const auto reached = stream.marks.front().reached->is_complete(bound);
    if (!reached && reached.error().native() == driver::CUDA_ERROR_CAPTURED_EVENT) {
      // Of a capture that came and went while it was recorded. A later mark will do for both.
      events_.release(std::move(stream.marks.front().reached));
      stream.marks.pop_front();
      stream.marked = stream.marks.empty() ? stream.completed : stream.marks.back().epoch;
      if (std::exchange(stream.ended, false)) set_lost(stream);
      update();
      continue;
    }
    if (!reached) return reached.error();
    if (!*reached) break;
    stream.completed = later(stream.completed, stream.marks.front().epoch);
    events_.release(std::move(stream.marks.front().reached));
    stream.marks.pop_front();
    grew = true;
  }
  return grew;
}

result<bool> stream_order::poll(const context_scope& bound) {
  if (paused()) return false;
  bool grew = false;
  std::optional<error> failed;
  for (entry& stream : entries_) {
    auto progress = poll_stream(stream, bound);
    if (!progress && !failed) failed = std::move(progress).error();
    grew = grew || (progress && *progress);
  }
  if (grew || failed) update();
  if (failed) return *std::move(failed);
  return grew;
}

awaited_marks stream_order::unreached_marks() const {
  std::vector<std::shared_ptr<const event>> marks;
  for (const entry& stream : entries_)
    if (!stream.marks.empty()) marks.push_back(stream.marks.back().reached);
  return awaited_marks{std::move(marks)};
}

awaited_marks stream_order::oldest_mark() const {
  const mark* oldest = nullptr;
  for (const entry& stream : entries_) {
    if (stream.marks.empty()) continue;
    const mark& first = stream.marks.front();
    if (oldest == nullptr || is_after(oldest->epoch, first.epoch)) oldest = &first;
  }
  if (oldest == nullptr) return {};
  return awaited_marks{{oldest->reached}};
}

bool stream_order::add_marks_for(stamp freed, awaited_marks& marks) const {
  if (completed(freed)) return true;
  if (!all_work()) return add_mark_of_stream(freed, marks);
  if (lost_unknown_) return false;
  for (stream_slot slot = 1; slot <= count(); ++slot) {
    if (entries_[slot].id == stream_id{}) continue;
    if (!add_mark_of_stream({slot, freed.epoch}, marks)) return false;
  }
  return true;
}

bool stream_order::add_mark_of_stream(stamp used, awaited_marks& marks) const {
  if (stream_completed(used)) return true;
  for (const mark& each : entries_[used.stream].marks) {
    if (is_after(used.epoch, each.epoch)) continue;
    marks.add(each.reached);
    return true;
  }
  return false;
}

std::vector<stream_slot> stream_order::captured_streams(const context_scope& bound) {
  std::vector<stream_slot> captured;
  const stream_slot of_thread = captured_thread_stream(bound);
  for (stream_slot slot = 1; slot <= count(); ++slot) {
    if (entries_[slot].id == stream_id{} || gone(slot)) continue;
    if (is_captured(slot, of_thread, bound)) captured.push_back(slot);
  }
  return captured;
}

bool stream_order::is_captured(stream_slot slot, stream_slot of_thread,
                               const context_scope& bound) {
  const entry& stream = entries_[slot];
  if (stream.capture_expected || slot == of_thread) return true;
  // The legacy stream is never captured. Beside a capture it can be given nothing at all. Another
  // thread's default stream cannot be asked, and whoever captures it may never call again.
  if (ref(slot).is_legacy() || ref(slot).is_per_thread() || !(stream.lasting || slot == named_))
    return false;
  const auto outside = detail::is_outside_captures(ref(slot), bound);
  if (outside && !*outside) note_capture(ref(slot));
  return outside && !*outside;
}

void stream_order::all_work_completed(epoch until,
                                      const std::vector<stream_slot>& captured) noexcept {
  if (lost_unknown_) {
    lost_unknown_ = is_after(unknown_lost_in_, until);
    unknown_completed_ = later(unknown_completed_, until);
  }
  for (stream_slot slot = 1; slot <= count(); ++slot) {
    entry& stream = entries_[slot];
    if (std::find(captured.begin(), captured.end(), slot) != captured.end()) continue;
    while (!stream.marks.empty() && !is_after(stream.marks.front().epoch, until)) {
      events_.release(std::move(stream.marks.front().reached));
      stream.marks.pop_front();
    }
    stream.completed = later(stream.completed, until);
    stream.marked = later(stream.marked, until);
    // A stream that was lost by then gets nothing more to do.
    if (stream.lost && !is_after(stream.lost_in, until)) stream.finished = true;
    std::erase_if(stream.closings, [&](epoch each) { return !is_after(each, until); });
    stream.closed = later(stream.closed, until);
    stream.quiescent = later(stream.quiescent, until);
    if (!is_after(stream.stamped, until)) stream.freed = stream.frees = 0;
  }
  update();
}

// --- Waits ---------------------------------------------------------------------------------------

result<bool> stream_order::wait(stream_slot waiter, stamp freed, const context_scope& bound) {
  if (freed.stream == waiter || completed(freed)) return true;
  if (paused()) return false;
  meet_watched();
  if (!is_marked(freed)) {
    WEIR_TRY(close(freed.stream, bound));
    if (!is_marked(freed)) return false;
  }
  if (!all_work()) return wait_for_stream(waiter, freed, bound);
  WEIR_TRY_VALUE(able, all_can_wait(waiter, bound));
  if (!able) return false;
  for (stream_slot other = 1; other <= count(); ++other)
    if (endangers_bystanders(waiter, {other, freed.epoch})) return false;
  for (stream_slot other = 1; other <= count(); ++other) {
    WEIR_TRY_VALUE(waits, queue_waits(waiter, {other, freed.epoch}, bound));
    if (!waits) return false;
  }
  return true;
}

result<bool> stream_order::wait_for_stream(stream_slot waiter, stamp used,
                                           const context_scope& bound) {
  if (used.stream == waiter || stream_completed(used)) return true;
  if (paused()) return false;
  meet_watched();
  WEIR_TRY_VALUE(able, all_can_wait(waiter, bound));
  if (!able || endangers_bystanders(waiter, used)) return false;
  return queue_waits(waiter, used, bound);
}

bool stream_order::endangers_bystanders(stream_slot waiter, stamp used) const noexcept {
  if (!undeclared_seen_ || used.stream == waiter || stream_completed(used)) return false;
  for (stream_slot slot = 1; slot <= count(); ++slot) {
    if (slot == waiter || slot == used.stream || gone(slot)) continue;
    const entry& bystander = entries_[slot];
    const auto queued = bystander.waited_for.find(used.stream);
    if (queued == bystander.waited_for.end() || is_after(used.epoch, queued->second)) return true;
  }
  return false;
}

result<bool> stream_order::all_can_wait(stream_slot waiter, const context_scope& bound) {
  WEIR_TRY_VALUE(able, may_be_asked(waiter, bound));
  if (!able) return false;
  for (stream_slot slot = 1; slot <= count(); ++slot) {
    if (slot == waiter || gone(slot)) continue;
    WEIR_TRY_VALUE(askable, may_be_asked(slot, bound));
    if (!askable && !gone(slot)) return false;
  }
  return true;
}

result<bool> stream_order::queue_waits(stream_slot waiter, stamp used, const context_scope& bound) {
  if (used.stream == waiter || stream_completed(used)) return true;
  const entry& owner = entries_[used.stream];
  if (is_after(used.epoch, owner.marked) && !owner.ended) {
    end_epoch_for_all();
    WEIR_TRY(mark_stream(used.stream, bound));
    update();
  }
  for (stream_slot slot = 1; slot <= count(); ++slot) {
    if (slot == used.stream || gone(slot)) continue;
    WEIR_TRY_VALUE(waits, queue_wait(slot, used, bound));
    if (!waits) return false;
  }
  return true;
}

result<bool> stream_order::queue_wait(stream_slot waiter, stamp used, const context_scope& bound) {
  entry& owner = entries_[used.stream];
  entry& behind = entries_[waiter];
  const auto queued = behind.waited_for.find(used.stream);
  if (queued != behind.waited_for.end() && !is_after(used.epoch, queued->second)) return true;
  // Marks are reached in order: the first for the epoch or a later one will do.
  for (const mark& candidate : owner.marks) {
    const bool last_of_all = owner.ended && &candidate == &owner.marks.back();
    if (is_after(used.epoch, candidate.epoch) && !last_of_all) continue;
    const auto waits = ref(waiter).wait(*candidate.reached, bound);
    if (!waits) {
      // Another thread may have begun to capture the stream since it was asked.
      if (!detail::is_refused_for_capture(waits.error())) return waits.error();
      note_capture(ref(waiter));
      return false;
    }
    ++waits_queued_;
    behind.waited_for[used.stream] = later(used.epoch, candidate.epoch);
    return true;
  }
  return false;
}

std::size_t stream_order::footprint() const noexcept {
  std::size_t total = entries_.size() * sizeof(entry);
  for (const entry& stream : entries_) total += stream.marks.size() * sizeof(mark);
  return total;
}

}}}  // namespace weir::v0::order
