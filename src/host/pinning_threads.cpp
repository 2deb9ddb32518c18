// SPDX-License-Identifier: Apache-2.0
// The queue of pieces and its threads.
#include "host/pinning_threads.hpp"

#include <new>
#include <system_error>
#include <utility>

#include "base/condition.hpp"
#include "base/signals_blocked.hpp"

namespace weir { inline namespace v0 { namespace host {

using detail::mutex_lock;
using detail::mutex_unlock;

pinning_threads::~pinning_threads() { stop(); }

bool pinning_threads::start_thread() noexcept {
  try {
    if (threads_ == nullptr) threads_ = std::make_unique<std::vector<std::thread>>();
    if (threads_->size() >= most_) return !threads_->empty();
    threads_->reserve(most_);
    const detail::signals_blocked quiet;
    threads_->emplace_back([this] { run(); });
    return true;
  } catch (const std::bad_alloc&) {
  } catch (const std::system_error&) {
  }
  return threads_ != nullptr && !threads_->empty();
}

bool pinning_threads::post(pinning_piece piece) noexcept {
  const mutex_lock lock{mutex_};
  if (stopped_ || most_ == 0) return false;
  if (idle_ <= pieces_.size() && !start_thread()) return false;
  try {
    pieces_.push_back(piece);
  } catch (const std::bad_alloc&) {
    return false;
  }
  queued_ += piece.size;
  changed_.notify_all();
  return true;
}

std::uint64_t pinning_threads::queued() const noexcept {
  const mutex_lock lock{mutex_};
  return queued_;
}

void pinning_threads::wait_until_idle() {
  mutex_lock lock{mutex_};
  while (queued_ != 0) detail::wait_on(changed_, mutex_);
}

void pinning_threads::run() noexcept {
  std::optional<std::chrono::nanoseconds> next_look;
  mutex_lock lock{mutex_};
  while (!stopped_) {
    if (pieces_.empty()) {
      ++idle_;
      const auto longest = std::chrono::steady_clock::now() +
                           next_look.value_or(std::chrono::nanoseconds{std::chrono::hours{24}});
      const bool timed_out = changed_.wait_until(mutex_, longest) == std::cv_status::timeout;
      --idle_;
      if (!timed_out || stopped_ || !pieces_.empty() || !next_look) continue;
      const mutex_unlock unlocked{mutex_};
      next_look = work_.give_back_idle();
      continue;
    }
    const pinning_piece piece = pieces_.front();
    pieces_.pop_front();
    {
      const mutex_unlock unlocked{mutex_};
      work_.pin_ahead(piece);
      next_look = work_.give_back_idle();
    }
    queued_ -= piece.size;
    changed_.notify_all();
  }
}

void pinning_threads::stop() noexcept {
  std::unique_ptr<std::vector<std::thread>> ended;
  {
    const mutex_lock lock{mutex_};
    stopped_ = true;
    for (const pinning_piece& each : pieces_) queued_ -= each.size;
    pieces_.clear();
    ended = std::move(threads_);
    changed_.notify_all();
  }
  if (ended == nullptr) return;
  for (std::thread& each : *ended) each.join();
}

void pinning_threads::abandon() noexcept { static_cast<void>(threads_.release()); }

}}}  // namespace weir::v0::host
