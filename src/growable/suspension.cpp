// SPDX-License-Identifier: Apache-2.0
// Pages that leave with their memory, and come back to their addresses.
#include <new>
#include <optional>
#include <utility>

#include "base/host_memory.hpp"
#include "growable/reservation.hpp"

namespace weir { inline namespace v0 { namespace growable {

result<bytes> reservation::suspend(suspended_contents contents) try {
  pages_before leaving;
  {
    const detail::mutex_lock lock{mutex_};
    if (suspended_ && !moving_ && !closed_) return bytes{};
    WEIR_TRY(usable());
    WEIR_TRY(sweep_locked());
    if (changes_ != 0) {
      return error{{.code = errc::not_ready,
                    .detail = "pages are being committed; commit or abort that first"}};
    }
    WEIR_TRY(drop_ahead(0));
    leaving.reserve(pages_.count_of(page_state::committed) + pages_.count_of(page_state::held));
    for (page_number page = 0; page < pages_.count(); ++page)
      if (pages_[page] != page_state::empty) leaving.push_back({page, pages_[page]});
    suspended_ = moving_ = true;
    for (const auto& each : leaving) pages_.set(each.page, page_state::away);
  }
  auto gone = save_and_take_back(leaving, contents);
  const detail::mutex_lock lock{mutex_};
  moving_ = false;
  if (!gone) {
    suspended_ = false;
    restore_states(leaving);
    return std::move(gone).error();
  }
  away_ = std::move(leaving);
  return page_ * away_.size();
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

/// Without the mutex: the work may take long.
result<void> reservation::save_and_take_back(const pages_before& leaving,
                                             suspended_contents contents) try {
  addresses where;
  for (const auto& each : leaving) where.push_back(address_of(each.page));
  std::optional<stream_ref> idle;
  {
    const detail::mutex_lock lock{mutex_};
    idle = quiet_stream();
  }
  WEIR_TRY(lender_.prepare_take_back(*idle));
  WEIR_TRY(lender_.await_all_work());
  if (contents == suspended_contents::keep) WEIR_TRY(contents_.save(where, page_));
  auto taken = lender_.take_back(where, page_, *idle);
  if (!taken) contents_.drop();
  return taken;
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

void reservation::restore_states(const pages_before& of) noexcept {
  for (const auto& each : of) pages_.set(each.page, each.before);
}

result<void> reservation::resume(const stream_ref& stream) {
  WEIR_TRY_VALUE(known, stream.identified());
  {
    const detail::mutex_lock lock{mutex_};
    if (closed_) return errc::closed;
    if (!suspended_) return {};
    if (moving_) {
      return error{{.code = errc::not_ready,
                    .detail = "another thread suspends or resumes the memory; call again"}};
    }
    moving_ = true;
  }
  const auto end = [&](bool came) {
    const detail::mutex_lock lock{mutex_};
    moving_ = false;
    if (!came) return;
    suspended_ = false;
    restore_states(away_);
    away_.clear();
    contents_.drop();
  };
  try {
    auto back = bring_back(known);
    end(back.has_value());
    return back;
  } catch (...) {  // a callback of the user's
    end(false);
    throw;
  }
}

result<void> reservation::bring_back(const stream_ref& stream) {
  addresses where;
  try {
    for (const auto& each : away_) where.push_back(address_of(each.page));
  } catch (const std::bad_alloc&) {
    return detail::no_host_memory();
  }
  if (where.empty()) return {};
  std::optional<tag_scope> counted;
  if (tag_ != tag{}) counted.emplace(tag_);
  WEIR_TRY(lender_.lend(where, page_, stream));
  // The copies run on streams of their own: the memory must be nobody's by then.
  auto back = contents_.size() == bytes{} ? result<void>{} : lender_.await_all_work();
  if (back) back = contents_.restore();
  if (!back) static_cast<void>(lender_.take_back(where, page_, stream));
  return back;
}

}}}  // namespace weir::v0::growable
