// SPDX-License-Identifier: Apache-2.0
// A list of releases through the stacks of the threads that make them.
#include "base/releases_under_way.hpp"

#include "base/condition.hpp"

namespace weir { inline namespace v0 { namespace detail {

releases_under_way::release::release(releases_under_way& all) noexcept
    : all_{all}, thread_{std::this_thread::get_id()}, number_{++all.last_number_} {
  after_ = all_.first_;
  if (after_ != nullptr) after_->before_ = this;
  all_.first_ = this;
}

releases_under_way::release::~release() {
  (before_ != nullptr ? before_->after_ : all_.first_) = after_;
  if (after_ != nullptr) after_->before_ = before_;
  ++all_.ended_;
  all_.changed_.notify_all();
}

bool releases_under_way::any_until(std::uint64_t number) const noexcept {
  for (const release* each = first_; each != nullptr; each = each->after_)
    if (each->number_ <= number) return true;
  return false;
}

bool releases_under_way::wait_for_others(mutex& held) {
  if (first_ == nullptr) return false;
  for (const release* each = first_; each != nullptr; each = each->after_)
    if (each->thread_ == std::this_thread::get_id()) return false;
  const std::uint64_t last = last_number_;
  while (any_until(last)) wait_on(changed_, held);
  return true;
}

}}}  // namespace weir::v0::detail
