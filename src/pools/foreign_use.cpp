// SPDX-License-Identifier: Apache-2.0
// Events behind the work of streams of other devices, and waits for them.
#include "pools/foreign_use.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "device/finished_work.hpp"
#include "device/state.hpp"
#include "order/stream_order.hpp"

namespace weir { inline namespace v0 { namespace pools {

std::shared_ptr<const event> event_behind(const stream_ref& stream) noexcept try {
  const context_scope bound{stream.device()};
  const thread_capture_mode_guard relaxed{stream.device()};
  if (!bound || !relaxed) return nullptr;
  auto mark = event::create(stream.device());
  if (!mark) return nullptr;
  const auto recorded = detail::record_behind(*mark, stream, bound);
  if (!recorded || !*recorded) return nullptr;
  return std::make_shared<const event>(*std::move(mark));
} catch (const std::bad_alloc&) {
  return nullptr;
}

result<foreign_use> foreign_use::of(const stream_ref& stream, weir::device home) {
  if (detail::device_state::of(stream.device()).owner != detail::device_state::of(home).owner)
    return error{{.code = errc::bad_stream, .detail = "the stream belongs to another runtime"}};
  if (stream.is_per_thread()) {
    return error{{.code = errc::bad_stream,
                  .detail = "the per-thread default stream cannot be recorded for another device; "
                            "record a created stream"}};
  }
  auto identified = stream.identified();
  if (identified) return foreign_use{*identified};
  error refused = std::move(identified).error();
  if (order::says_gone(refused)) refused.set_code(errc::bad_stream);
  return refused;
}

void foreign_use::end(const std::shared_ptr<const event>& behind) noexcept {
  if (ended_) return;
  ended_ = true;
  // What was recorded at the free is enough.
  if (mark_ == nullptr) mark_ = behind;
}

void foreign_use::free() noexcept {
  if (!ended_) mark_ = event_behind(stream_);
}

bool foreign_use::poll() noexcept {
  if (done_) return true;
  if (mark_ == nullptr && !ended_) mark_ = event_behind(stream_);
  if (mark_ == nullptr) return false;
  const context_scope bound{stream_.device()};
  const thread_capture_mode_guard relaxed{stream_.device()};
  if (!bound) return done_ = detail::does_no_work(bound.error());
  if (!relaxed) return false;
  const auto reached = mark_->is_complete(bound);
  done_ = reached ? *reached : detail::does_no_work(reached.error());
  return done_;
}

void foreign_wait::add(const foreign_use& use) {
  if (use.mark() == nullptr) return add(use.device());
  if (std::find(marks_.begin(), marks_.end(), use.mark()) == marks_.end())
    marks_.push_back(use.mark());
}

void foreign_wait::add(weir::device device) {
  if (std::find(devices_.begin(), devices_.end(), device) == devices_.end())
    devices_.push_back(device);
}

result<void> foreign_wait::wait() {
  for (const auto& mark : marks_) {
    const context_scope there{mark->device()};
    const thread_capture_mode_guard relaxed{mark->device()};
    // Trouble with a mark is trouble of one stream; the wait for all work tells of every stream.
    if (!there || !relaxed || !mark->synchronize()) add(mark->device());
  }
  for (const weir::device each : devices_) {
    const context_scope there{each};
    auto waited = detail::wait_for_all_work(there);
    if (!waited && !detail::does_no_work(waited.error())) return waited;
  }
  return {};
}

bool foreign_wait::covers(const foreign_use& use) const noexcept {
  return std::find(marks_.begin(), marks_.end(), use.mark()) != marks_.end() ||
         std::find(devices_.begin(), devices_.end(), use.device()) != devices_.end();
}

}}}  // namespace weir::v0::pools
