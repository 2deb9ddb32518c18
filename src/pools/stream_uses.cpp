// SPDX-License-Identifier: Apache-2.0
// Gathering, polling and waiting for the users of memory.
#include "pools/stream_uses.hpp"

#include <algorithm>
#include <new>
#include <optional>
#include <utility>

#include "device/finished_work.hpp"
#include "pools/thread_stream.hpp"

namespace weir { inline namespace v0 { namespace pools {

namespace {

/// An event behind the stream's work. Null: only a wait for all work of its device can tell.
std::shared_ptr<event> mark_behind(const stream_ref& stream) {
  const context_scope bound{stream.device()};
  auto mark = event::create(stream.device());
  if (!mark) return nullptr;
  const auto recorded = detail::record_behind(*mark, stream, bound);
  if (!recorded || !*recorded) return nullptr;
  return std::make_shared<event>(*std::move(mark));
}

error is_being_captured() {
  return {{.code = errc::capture_forbidden,
           .detail = "a stream that uses the memory is being captured; end the capture first"}};
}

/// Of two outcomes the one that says more about the work that may still run.
void merge(result<void>& outcome, result<void> next) {
  if (next) return;
  if (outcome || detail::does_no_work(outcome.error())) outcome = std::move(next);
}

}  // namespace

// --- Waiting -------------------------------------------------------------------------------------

void awaited_work::add(weir::device device) {
  if (std::find(devices_.begin(), devices_.end(), device) == devices_.end())
    devices_.push_back(device);
}

result<void> awaited_work::wait() const {
  result<void> outcome;
  for (const auto& mark : marks_) {
    const weir::device home = mark->device();
    const thread_capture_mode_guard relaxed{home};
    auto reached = relaxed ? mark->synchronize() : result<void>{relaxed.error()};
    if (reached) continue;
    // Trouble with a mark is trouble of one stream; the wait for all work tells of every stream.
    const context_scope bound{home};
    merge(outcome, detail::wait_for_all_work(bound));
  }
  for (const weir::device each : devices_) {
    const context_scope bound{each};
    merge(outcome, detail::wait_for_all_work(bound));
  }
  return outcome;
}

result<void> awaited_work::queue_before(const stream_ref& later) const {
  const context_scope bound{later.device()};
  const thread_capture_mode_guard relaxed{later.device()};
  if (!relaxed) return relaxed.error();
  for (const auto& mark : marks_) WEIR_TRY(later.wait(*mark));
  result<void> outcome;
  for (const weir::device each : devices_) {
    const context_scope there{each};
    merge(outcome, detail::wait_for_all_work(there));
  }
  return outcome;
}

// --- Users ---------------------------------------------------------------------------------------

void stream_uses::add(const stream_ref& stream) {
  const std::uint64_t thread = detail::thread_of(stream);
  const auto is_it = [&](const use& each) {
    return !each.closed && each.stream == stream && each.thread == thread;
  };
  if (std::none_of(uses_.begin(), uses_.end(), is_it)) uses_.push_back({stream, thread});
}

void stream_uses::stream_closing(const stream_ref& stream) noexcept {
  const std::uint64_t thread = detail::thread_of(stream);
  for (use& each : uses_) {
    if (each.closed || each.stream != stream || each.thread != thread) continue;
    each.closed = true;
    try {
      each.mark = mark_behind(stream);
    } catch (const std::bad_alloc&) {
      // Then its device is waited for.
    }
  }
}

result<void> stream_uses::refuse_captures() const {
  for (const use& each : uses_) {
    if (each.closed || detail::is_of_another_thread(each.thread)) continue;
    WEIR_TRY_VALUE(capturing, each.stream.is_capturing());
    if (capturing) return is_being_captured();
  }
  return {};
}

result<void> stream_uses::gather(awaited_work& into, captures captured) const {
  for (const use& each : uses_) {
    if (each.closed || detail::is_of_another_thread(each.thread)) {
      if (each.mark != nullptr) {
        into.add(each.mark);
      } else {
        into.add(each.stream.device());
      }
      continue;
    }
    if (captured == captures::refused) {
      WEIR_TRY_VALUE(capturing, each.stream.is_capturing());
      if (capturing) return is_being_captured();
    }
    if (auto mark = mark_behind(each.stream); mark != nullptr) {
      into.add(std::move(mark));
    } else {
      into.add(each.stream.device());
    }
  }
  return {};
}

result<bool> stream_uses::is_done(const use& asked) {
  const context_scope bound{asked.stream.device()};
  if (asked.mark != nullptr) {
    const thread_capture_mode_guard relaxed{asked.stream.device()};
    if (!relaxed) return relaxed.error();
    return asked.mark->is_complete(bound);
  }
  if (asked.closed || detail::is_of_another_thread(asked.thread)) {
    return error{{.code = errc::not_supported,
                  .detail = "a closed stream, or another thread's default stream, cannot be "
                            "polled; call view(), which waits"}};
  }
  WEIR_TRY_VALUE(capturing, asked.stream.is_capturing(bound));
  if (capturing) return is_being_captured();
  WEIR_TRY_VALUE(finished, detail::has_finished_work(asked.stream, bound));
  return finished.value_or(false);
}

result<bool> stream_uses::poll() {
  while (!uses_.empty()) {
    WEIR_TRY_VALUE(done, is_done(uses_.back()));
    if (!done) return false;
    uses_.pop_back();
  }
  return true;
}

}}}  // namespace weir::v0::buffers
