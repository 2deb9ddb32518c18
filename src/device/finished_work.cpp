// SPDX-License-Identifier: Apache-2.0
// Waiting on the host for queued work, without breaking stream captures.
#include "device/finished_work.hpp"

#include <utility>

#include "device/state.hpp"

namespace weir { inline namespace v0 { namespace detail {

using driver::call;
using driver::check;

result<bool> is_outside_captures(const stream_ref& stream, const context_scope& bound) {
  WEIR_TRY(check_scope(bound, stream.device()));
  auto status = driver::CU_STREAM_CAPTURE_STATUS_NONE;
  const auto native = bound.driver().stream_is_capturing(stream.handle(), &status);
  if (native == driver::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return false;
  WEIR_TRY(check(call::stream_is_capturing, native));
  return status == driver::CU_STREAM_CAPTURE_STATUS_NONE;
}

result<bool> record_behind(event& mark, const stream_ref& stream, const context_scope& bound) {
  WEIR_TRY_VALUE(outside, is_outside_captures(stream, bound));
  if (!outside) return false;
  auto recorded = mark.record(stream, bound);
  if (!recorded && is_refused_for_capture(recorded.error())) return false;
  WEIR_TRY(recorded);
  // Another thread may have begun to capture the stream in between. The event is part of that
  // capture then: it says nothing about earlier work, and a query would invalidate the capture.
  return is_outside_captures(stream, bound);
}

result<void> wait_for_all_work(const context_scope& bound) {
  if (!bound) return bound.error();
  const thread_capture_mode_guard relaxed{bound.device()};
  if (!relaxed) return relaxed.error();
  const auto& calls = bound.driver();
  // A free that fails says nothing about the work, and is tried again only to lose no memory.
  driver::CUdeviceptr little = 0;
  if (calls.mem_alloc(&little, 1) == driver::CUDA_SUCCESS) {
    auto waited = check(call::mem_free, calls.mem_free(little));
    if (!waited) static_cast<void>(calls.mem_free(little));
    return waited;
  }
  void* page = nullptr;
  const auto pinned = calls.mem_host_alloc(&page, 4096, 0);
  if (pinned == driver::CUDA_SUCCESS) {
    auto waited = check(call::mem_free_host, calls.mem_free_host(page));
    if (!waited) static_cast<void>(calls.mem_free_host(page));
    return waited;
  }
  error refused = driver::make_error(call::mem_host_alloc, pinned);
  if (refused.code() == errc::out_of_memory) refused.set_code(errc::no_host_memory);
  return refused;
}

namespace {

/// An event behind the stream's work. Nothing: the stream is not outside captures.
result<std::optional<event>> event_behind(const stream_ref& stream, const context_scope& bound) {
  WEIR_TRY_VALUE(mark, event::create(stream.device()));
  WEIR_TRY_VALUE(recorded, record_behind(mark, stream, bound));
  if (!recorded) return std::optional<event>{};
  return std::optional<event>{std::move(mark)};
}

/// Of an event that was recorded in a capture which has ended since.
bool is_captured_event(const error& reason) noexcept {
  return reason.native() == driver::CUDA_ERROR_CAPTURED_EVENT;
}

}  // namespace

result<void> wait_for_work(const stream_ref& stream, const context_scope& bound) {
  if (!bound) return bound.error();
  const thread_capture_mode_guard relaxed{bound.device()};
  if (!relaxed) return relaxed.error();
  WEIR_TRY_VALUE(behind, event_behind(stream, bound));
  if (behind) {
    auto reached = behind->synchronize();
    if (reached || !is_captured_event(reached.error())) return reached;
  }
  return wait_for_all_work(bound);
}

result<std::optional<bool>> has_finished_work(const stream_ref& stream,
                                              const context_scope& bound) {
  if (!bound) return bound.error();
  const thread_capture_mode_guard relaxed{bound.device()};
  if (!relaxed) return relaxed.error();
  WEIR_TRY_VALUE(behind, event_behind(stream, bound));
  if (!behind) return std::optional<bool>{};
  auto reached = behind->is_complete(bound);
  if (!reached && is_captured_event(reached.error())) return std::optional<bool>{};
  if (!reached) return std::move(reached).error();
  return std::optional<bool>{*reached};
}

}}}  // namespace weir::v0::detail
