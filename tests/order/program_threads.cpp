// What programs owe each other: blocks that are sent, and waits that come later than they might.
#include <algorithm>
#include <utility>

#include "program.hpp"

namespace weir::order_test {

void mailbox::put(parcel sent) {
  const std::lock_guard lock{mutex_};
  waiting_.push_back(std::move(sent));
}

std::optional<mailbox::parcel> mailbox::take() {
  const std::lock_guard lock{mutex_};
  if (waiting_.empty()) return std::nullopt;
  parcel taken = std::move(waiting_.back());
  waiting_.pop_back();
  return taken;
}

void mailbox::owe(stream_id home, event until) {
  const std::lock_guard lock{mutex_};
  owed_[home].push_back(std::move(until));
}

bool mailbox::settle(stream_id home, const std::function<bool(const event&)>& wait) {
  // Locked throughout: who finds nothing left to wait for relies on the waits being queued.
  const std::lock_guard lock{mutex_};
  const auto found = owed_.find(home);
  if (found == owed_.end()) return true;
  const bool queued = std::all_of(found->second.begin(), found->second.end(), wait);
  owed_.erase(found);
  return queued;
}

// --- Waits that are owed -------------------------------------------------------------------------

/// The block's own stream will be made to come after the operation; false if that cannot be had.
bool program::owe(const piece& what, lane user, std::uint64_t operation) {
  if (shared_ == nullptr) {
    lanes_.owe(what.home, user, operation);
    return true;
  }
  // Others need an event; where none can be recorded any more, a stream that has waited stands in.
  const lane last = lanes_.usable(user) ? user : lanes_.any();
  if (!lanes_.put_after(last, user, operation)) return false;
  auto done = lanes_.publish(last);
  if (!done) return false;
  shared_->owe(what.home_id, *std::move(done));
  return true;
}

/// The stream comes after all uses of what it freed: now it may use that again.
bool program::settle(lane on) {
  bool settled = lanes_.settle(on);
  if (shared_ != nullptr) {
    settled = settled && shared_->settle(lanes_.id(on), [&](const event& until) {
      return lanes_.wait(on, until);
    });
  }
  at_.expect(settled, "a wait that is owed cannot be queued");
  return settled;
}

// --- Blocks that are sent ------------------------------------------------------------------------

void program::send() {
  if (live_.empty()) return;
  const std::size_t which = random_.below(live_.size());
  piece& what = live_[which];
  if (what.graph != no_graph) return;
  const lane on = lanes_.any();
  if (!lanes_.put_after(on, what.used, true)) return;
  auto ready = lanes_.publish(on);
  if (!ready) return;
  mailbox::parcel sent{what.address, what.size, what.content, what.home_id, std::move(ready)};
  forget(which);
  shared_->put(std::move(sent));
}

void program::receive() {
  auto got = shared_->take();
  if (!got) return;
  const lane on = lanes_.any();
  if (!lanes_.wait(on, *got->ready)) return;
  piece block{
      .address = got->address, .size = got->size, .content = got->content, .home_id = got->home};
  const bool declares = !at_.declares_uses() && !lanes_.is_known(on);
  if (declares && !record_stream(block, on)) return;
  block.used.note(on, lanes_.queue(on), true);
  if (block.content != 0) access(block, on, false);
  take_in(std::move(block));
}

}  // namespace weir::order_test
