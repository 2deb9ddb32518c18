// SPDX-License-Identifier: Apache-2.0
// Taking a share, and waiting for those who may give theirs back.
#include "resources/budget.hpp"

namespace weir { inline namespace v0 { namespace resources {

using detail::mutex_lock;

namespace {

/// The request of this thread that was made last, and by it those around it.
constinit thread_local budget::share* innermost = nullptr;

}  // namespace

void budget::set_limit(bytes limit) noexcept {
  const mutex_lock lock{mutex_};
  limit_ = limit.count();
  changed_.notify_all();
}

void budget::free(bytes size) noexcept {
  const mutex_lock lock{mutex_};
  live_ -= size.count();
  changed_.notify_all();
}

bool budget::fits(std::uint64_t size, std::uint64_t taken) const noexcept {
  const std::uint64_t limit = limit_;
  const std::uint64_t live = live_;
  return live <= limit && taken <= limit - live && size <= limit - live - taken;
}

bool budget::is_own_request(const share& asking) const noexcept {
  for (const share* each = asking.enclosing_; each != nullptr; each = each->enclosing_)
    if (&each->from_ == this) return true;
  return false;
}

budget::share::share(budget& from, bytes size) noexcept
    : from_{from}, size_{size.count()}, enclosing_{innermost} {
  innermost = this;
}

budget::share::~share() {
  innermost = enclosing_;
  if (!taken_) return;
  const mutex_lock lock{from_.mutex_};
  from_.under_way_ -= size_;
  from_.changed_.notify_all();
}

bool budget::share::take() {
  budget& all = from_;
  const bool waits = !all.is_own_request(*this);
  const auto deadline = std::chrono::steady_clock::now() + longest_wait;
  const mutex_lock lock{all.mutex_};
  while (!all.fits(size_, all.under_way_)) {
    if (!waits || !all.fits(size_, all.in_user_calls_)) return false;
    if (all.changed_.wait_until(all.mutex_, deadline) == std::cv_status::timeout) return false;
  }
  all.under_way_ += size_;
  taken_ = true;
  return true;
}

void budget::share::keep() noexcept {
  const mutex_lock lock{from_.mutex_};
  from_.under_way_ -= size_;
  from_.live_ += size_;
  taken_ = false;
  from_.changed_.notify_all();
}

void budget::user_call::set(bool in_user_call) noexcept {
  for (share* each = innermost; each != nullptr; each = each->enclosing_) {
    if (!each->taken_) continue;
    // Only the outermost of nested calls counts.
    if (in_user_call ? each->user_calls_++ != 0 : --each->user_calls_ != 0) continue;
    budget& from = each->from_;
    const mutex_lock lock{from.mutex_};
    if (in_user_call) {
      from.in_user_calls_ += each->size_;
    } else {
      from.in_user_calls_ -= each->size_;
    }
    from.changed_.notify_all();
  }
}

}}}  // namespace weir::v0::resources
