// SPDX-License-Identifier: Apache-2.0
// Blocks and waits on their way between programs that run at once.
#include "mailbox.hpp"

#include <algorithm>
#include <utility>

namespace weir::order_test {

void mailbox::put(message sent) {
  const std::lock_guard lock{mutex_};
  messages_.push_back(std::move(sent));
}

std::optional<mailbox::message> mailbox::take() {
  const std::lock_guard lock{mutex_};
  if (messages_.empty()) return std::nullopt;
  message taken = std::move(messages_.back());
  messages_.pop_back();
  return taken;
}

void mailbox::defer_wait(stream_id home, event until) {
  const std::lock_guard lock{mutex_};
  deferred_[home].push_back(std::move(until));
}

bool mailbox::queue_deferred_waits(stream_id home, const std::function<bool(const event&)>& wait) {
  // Locked throughout: who finds nothing left to wait for relies on the waits being queued.
  const std::lock_guard lock{mutex_};
  const auto waits = deferred_.find(home);
  if (waits == deferred_.end()) return true;
  const bool queued = std::all_of(waits->second.begin(), waits->second.end(), wait);
  deferred_.erase(waits);
  return queued;
}

}  // namespace weir::order_test
