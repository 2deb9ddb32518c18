// SPDX-License-Identifier: Apache-2.0
// Managed memory and its users.
#include "buffers/managed_state.hpp"

#include <new>
#include <utility>

#include "buffers/exclusive_devices.hpp"
#include "device/finished_work.hpp"
#include "pools/all_devices.hpp"
#include "pools/guarded.hpp"
#include "pools/memory_home.hpp"
#include "pools/relaxed_free.hpp"
#include "weir/base/checked.hpp"
#include "weir/driver/table.hpp"

namespace weir { inline namespace v0 { namespace buffers {

using driver::call;
using driver::check;

namespace {

/// The driver's least alignment of managed memory.
constexpr bytes managed_alignment{256};

error view_lives() {
  return {{.code = errc::not_ready,
           .detail = "the host holds a view of this managed memory; end the view first"}};
}

bool is_concurrent(weir::device home) { return home.capabilities().concurrent_managed_access; }

}  // namespace

managed_state::managed_state(weir::device home, bytes size, bytes alignment, attachment mode)
    : home_{detail::device_state::keep(home)}, size_{size}, alignment_{alignment}, mode_{mode} {}

result<void> managed_state::allocate() {
  // Where the driver's alignment does not suffice: room for padding.
  const auto whole =
      alignment_ > managed_alignment ? checked_add(size_, alignment_) : std::optional{size_};
  if (!whole) return error{{.code = errc::size_overflow, .requested = size_}};
  const context_scope bound{device()};
  if (!bound) return bound.error();
  const thread_capture_mode_guard relaxed{device()};
  if (!relaxed) return relaxed.error();
  const unsigned flags =
      attached() == attachment::global ? driver::CU_MEM_ATTACH_GLOBAL : driver::CU_MEM_ATTACH_HOST;
  WEIR_TRY(check(call::mem_alloc_managed,
                 bound.driver().mem_alloc_managed(&base_, whole->count(), flags), *whole));
  first_ = *checked_round_up(base_, alignment_.count());
  if (first_ - base_ + size_.count() > whole->count()) return errc::bad_alignment;
  return {};
}

managed_state::~managed_state() {
  const auto* const memory = reinterpret_cast<const void*>(first_);
  pools::report_failed_free(free(), memory, size_);
  if (!forked()) ends_.stop();
}

attachment managed_state::attached() const {
  if (forked()) return attachment::global;
  const detail::mutex_lock lock{mutex_};
  return mode_;
}

// --- Users ---------------------------------------------------------------------------------------

result<void> managed_state::check_runtime(const stream_ref& stream) const {
  if (&stream.device().driver() == home_->calls) return {};
  return error{{.code = errc::bad_stream, .detail = "the stream belongs to another runtime"}};
}

bool managed_state::needs_idle_devices() const {
  // Memory of one stream that was destroyed: the driver attaches it as it was allocated.
  const bool is_global =
      mode_ == attachment::global || (mode_ == attachment::single && !attached_to_.has_value());
  return is_global && has_exclusive_device(*home_);
}

bool managed_state::is_of_one_stream() const {
  return mode_ == attachment::single && attached_to_ &&
         !(is_concurrent(device()) && is_concurrent(attached_to_->device()));
}

result<void> managed_state::check_use(const stream_ref& stream) const {
  if (views_ != 0) return view_lives();
  if (is_concurrent(stream.device())) return {};
  if (any_exclusive_view(*home_, stream)) return view_lives();
  if (mode_ == attachment::host) {
    return error{
        {.code = errc::not_permitted,
         .detail = "the memory is attached to the host; call attach() for the stream first"}};
  }
  if (mode_ == attachment::single && attached_to_ != stream) {
    return error{
        {.code = errc::bad_stream,
         .detail = "the memory is attached to another stream; use that stream or call attach()"}};
  }
  return {};
}

result<void> managed_state::use_on(const stream_ref& stream) {
  if (forked()) return detail::fork_error();
  WEIR_TRY(check_runtime(stream));
  ends_.listen_on(stream.device());
  const detail::mutex_lock lock{mutex_};
  WEIR_TRY(check_use(stream));
  uses_.add(stream);
  return {};
}

result<void> managed_state::attach(attachment mode, const stream_ref& stream) {
  if (mode == attachment::single && (stream.is_legacy() || stream.is_per_thread())) {
    return error{
        {.code = errc::invalid_argument,
         .detail = "memory cannot be attached to a default stream; pass a created stream"}};
  }
  if (forked()) return detail::fork_error();
  WEIR_TRY(check_runtime(stream));
  ends_.listen_on(stream.device());
  const detail::mutex_lock lock{mutex_};
  if (views_ != 0) return view_lives();
  const context_scope bound{stream.device()};
  WEIR_TRY_VALUE(outside, detail::is_outside_captures(stream, bound));
  if (!outside) return errc::capture_forbidden;
  uses_.add(stream);  // if the driver refuses, it is waited for in vain
  unsigned flags = driver::CU_MEM_ATTACH_GLOBAL;
  if (mode == attachment::host) flags = driver::CU_MEM_ATTACH_HOST;
  if (mode == attachment::single) flags = driver::CU_MEM_ATTACH_SINGLE;
  WEIR_TRY(check(call::stream_attach_mem_async,
                 bound.driver().stream_attach_mem_async(stream.handle(), base_, 0, flags)));
  mode_ = mode;
  attached_to_ = stream;
  return {};
}

void managed_state::stream_closing(const stream_ref& stream) noexcept {
  if (forked()) return;
  const detail::mutex_lock lock{mutex_};
  if (attached_to_ == stream) attached_to_.reset();
  uses_.stream_closing(stream);
}

// --- Views ---------------------------------------------------------------------------------------

result<void> managed_state::gather(pools::awaited_work& work, const event* behind) {
  using captures = pools::stream_uses::captures;
  if (needs_idle_devices()) {
    WEIR_TRY(uses_.gather(work, captures::refused));
    add_exclusive_devices(*home_, work);
    return {};
  }
  if (is_of_one_stream()) {
    uses_.add(*attached_to_);
  } else if (behind != nullptr) {
    // The event may be part of such a capture. To ask the driver would spoil it.
    return uses_.refuse_captures();
  }
  return uses_.gather(work, captures::refused);
}

void managed_state::add_view() {
  if (!kept_idle_ && (needs_idle_devices() || is_of_one_stream())) {
    const idle_part part{is_of_one_stream() ? attached_to_ : std::nullopt};
    begin_exclusive_view(*home_, part);
    kept_idle_ = part;
  }
  ++views_;
}

void managed_state::drop_view() noexcept {
  if (--views_ != 0 || !kept_idle_) return;
  end_exclusive_view(*home_, *kept_idle_);
  kept_idle_.reset();
}

result<void> managed_state::begin_view(patience waiting, const event* behind) {
  if (behind != nullptr && !*behind) return errc::moved_from;
  if (forked()) return detail::fork_error();
  const detail::mutex_lock lock{mutex_};
  if (waiting == patience::do_not_wait) {
    if (needs_idle_devices()) {
      return error{{.code = errc::not_supported,
                    .detail = "this device has no concurrent managed access, so try_view() cannot "
                              "poll; call view(), which waits"}};
    }
    if (is_of_one_stream()) uses_.add(*attached_to_);
    WEIR_TRY_VALUE(done, uses_.poll());
    if (!done) return errc::not_ready;
    add_view();
    return {};
  }
  pools::awaited_work work;
  WEIR_TRY(gather(work, behind));
  // Before the wait: work that is queued from now on would run beside the view.
  add_view();
  result<void> waited;
  {
    const detail::mutex_unlock unlocked{mutex_};
    waited = pools::contained([&]() -> result<void> {
      if (behind != nullptr) {
        const thread_capture_mode_guard relaxed{device()};
        if (!relaxed) return relaxed.error();
        WEIR_TRY(behind->synchronize());
      }
      return work.wait();
    });
  }
  if (!waited) {
    drop_view();
    return waited;
  }
  uses_.clear();  // since the view was counted no stream could be added
  return {};
}

void managed_state::end_view() noexcept {
  if (forked()) return;
  const detail::mutex_lock lock{mutex_};
  drop_view();
}

result<void> managed_state::wait_until_unused() {
  if (forked()) return detail::fork_error();
  const detail::mutex_lock lock{mutex_};
  if (views_ != 0) return view_lives();
  pools::awaited_work work;
  WEIR_TRY(uses_.gather(work, pools::stream_uses::captures::refused));
  ++views_;  // keeps streams away until it is over
  result<void> waited;
  {
    const detail::mutex_unlock unlocked{mutex_};
    waited = pools::contained([&] { return work.wait(); });
  }
  --views_;
  if (waited) uses_.clear();
  return waited;
}

// --- The end -------------------------------------------------------------------------------------

result<void> managed_state::wait_for_users() noexcept {
  pools::awaited_work work;
  const auto gathered = pools::contained([&] {
    const detail::mutex_lock lock{mutex_};
    return uses_.gather(work, pools::stream_uses::captures::ignored);
  });
  if (gathered) return work.wait();
  // There is no host memory to tell them apart with: all devices are waited for.
  const context_scope bound{device()};
  WEIR_TRY(detail::wait_for_all_work(bound));
  return pools::wait_for_other_devices(*home_);
}

result<void> managed_state::free() noexcept {
  if (base_ == 0) return {};
  if (forked()) return detail::fork_error();
  auto idle = pools::contained([&] { return wait_for_users(); });
  const device_address base = std::exchange(base_, 0);
  if (!idle && !detail::does_no_work(idle.error()))
    return pools::kept_memory(std::move(idle).error(), size_);
  const context_scope bound{device()};
  auto freed = pools::free_relaxed(device(), [&] { return free_plain(bound, base); });
  return idle ? std::move(freed) : std::move(idle);
}

}}}  // namespace weir::v0::buffers
