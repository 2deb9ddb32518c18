// SPDX-License-Identifier: Apache-2.0
// What lies between programs: blocks that are sent, and waits that are queued later than they might
// be.
#include <utility>

#include "program.hpp"

namespace weir::order_test {

// --- Deferred waits ------------------------------------------------------------------------------

/// The block's own stream will be made to come after the operation; false if that cannot be had.
bool program::defer_wait(const tracked_block& block, stream_index user, std::uint64_t operation) {
  if (mailbox_ == nullptr) {
    streams_.defer_wait(block.home, user, operation);
    return true;
  }
  // Others need an event; where none can be recorded any more, a stream that has waited stands in.
  const stream_index last = streams_.is_usable(user) ? user : streams_.any();
  if (!streams_.put_after(last, user, operation)) return false;
  auto completion = streams_.publish(last);
  if (!completion) return false;
  mailbox_->defer_wait(block.home_id, *std::move(completion));
  return true;
}

/// The stream comes after all uses of what it freed: now it may use that again.
bool program::queue_deferred_waits(stream_index on) {
  bool queued = streams_.queue_deferred_waits(on);
  if (mailbox_ != nullptr) {
    queued = queued && mailbox_->queue_deferred_waits(streams_.id(on), [&](const event& until) {
      return streams_.wait(on, until);
    });
  }
  fixture_.expect(queued, "a deferred wait cannot be queued");
  return queued;
}

// --- Blocks that are sent ------------------------------------------------------------------------

void program::send() {
  if (live_.empty()) return;
  const std::size_t index = random_.below(live_.size());
  tracked_block& block = live_[index];
  if (block.graph != no_graph) return;
  const stream_index on = streams_.any();
  if (!streams_.put_after(on, block.accesses, true)) return;
  auto ready = streams_.publish(on);
  if (!ready) return;
  mailbox::message sent{block.address, block.size, block.content, block.home_id, std::move(ready)};
  remove_live(index);
  mailbox_->put(std::move(sent));
}

void program::receive() {
  auto received = mailbox_->take();
  if (!received) return;
  const stream_index on = streams_.any();
  if (!streams_.wait(on, *received->ready)) return;
  tracked_block block{.address = received->address,
                      .size = received->size,
                      .content = received->content,
                      .home_id = received->home};
  const bool declares = !fixture_.declares_uses() && !streams_.is_known(on);
  if (declares && !record_stream(block, on)) return;
  block.accesses.add(on, streams_.queue(on), true);
  if (block.content != 0) access(block, on, false);
  add_live(std::move(block));
}

}  // namespace weir::order_test
