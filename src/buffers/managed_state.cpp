// Managed memory and its users.
#include "buffers/managed_state.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "weir/base/checked.hpp"
#include "weir/driver/table.hpp"

namespace weir::inline v0::buffers {

using driver::call;
using driver::check;

namespace {

/// The driver's least alignment of managed memory.
constexpr bytes managed_alignment{256};

/// Host views of global memory on devices without concurrent managed access: while there is one,
/// nothing may be queued on the device, whatever it uses. One register for all buffers, because the
/// rule is about all of them. Any thread.
class viewed_devices {
 public:
  void add(const detail::device_state& viewed) WEIR_EXCLUDES(mutex_) {
    const detail::mutex_lock lock{mutex_};
    viewed_.push_back(&viewed);
  }
  void remove(const detail::device_state& viewed) noexcept WEIR_EXCLUDES(mutex_) {
    const detail::mutex_lock lock{mutex_};
    const auto position = std::find(viewed_.begin(), viewed_.end(), &viewed);
    if (position != viewed_.end()) viewed_.erase(position);
  }
  [[nodiscard]] bool contains(const detail::device_state& home) WEIR_EXCLUDES(mutex_) {
    const detail::mutex_lock lock{mutex_};
    return std::find(viewed_.begin(), viewed_.end(), &home) != viewed_.end();
  }

 private:
  detail::mutex mutex_;
  std::vector<const detail::device_state*> viewed_ WEIR_GUARDED_BY(mutex_);
};

viewed_devices& all_viewed() {
  static auto* const devices = new viewed_devices;  // buffers may outlive the statics
  return *devices;
}

error view_lives() {
  return {.code = errc::not_ready, .detail = "the host has a view of managed memory"};
}

bool is_concurrent(weir::device home) { return home.capabilities().concurrent_managed_access; }

}  // namespace

managed_state::managed_state(weir::device home, bytes size, bytes alignment, attachment mode)
    : home_{detail::device_state::keep(home)}, size_{size}, alignment_{alignment}, mode_{mode} {}

result<void> managed_state::allocate() {
  // Where the driver's alignment does not suffice: room for padding.
  const auto whole =
      alignment_ > managed_alignment ? checked_add(size_, alignment_) : std::optional{size_};
  if (!whole) return error{.code = errc::size_overflow, .requested = size_};
  const context_scope bound{device()};
  if (!bound) return bound.error();
  const thread_capture_mode_guard relaxed{device()};
  const unsigned flags =
      attached() == attachment::global ? driver::CU_MEM_ATTACH_GLOBAL : driver::CU_MEM_ATTACH_HOST;
  WEIR_TRY(check(call::mem_alloc_managed,
                 bound.driver().mem_alloc_managed(&base_, whole->count(), flags), *whole));
  first_ = *checked_round_up(base_, alignment_.count());
  if (first_ - base_ + size_.count() > whole->count()) return errc::bad_alignment;
  return {};
}

managed_state::~managed_state() {
  detail::report_failure(free());
  if (home_->forked()) return;
  const detail::mutex_lock lock{watch_mutex_};
  for (detail::device_state* each : watched_) detail::remove_listener(*each, *this);
}

attachment managed_state::attached() const {
  const detail::mutex_lock lock{mutex_};
  return mode_;
}

// --- Users ---------------------------------------------------------------------------------------

void managed_state::watch(weir::device home) {
  const detail::mutex_lock lock{watch_mutex_};
  auto& state = detail::device_state::of(home);
  if (std::find(watched_.begin(), watched_.end(), &state) != watched_.end()) return;
  watched_.reserve(watched_.size() + 1);
  detail::add_listener(state, *this);
  watched_.push_back(&state);
}

bool managed_state::needs_idle_device() const noexcept {
  return mode_ == attachment::global && !is_concurrent(device());
}

result<void> managed_state::check_use(const stream_ref& stream) const {
  if (views_ != 0) return view_lives();
  if (is_concurrent(stream.device())) return {};
  if (all_viewed().contains(detail::device_state::of(stream.device()))) return view_lives();
  if (mode_ == attachment::host) {
    return error{.code = errc::not_permitted, .detail = "the memory is attached to the host"};
  }
  if (mode_ == attachment::single && attached_to_ != stream) {
    return error{.code = errc::bad_stream, .detail = "the memory is attached to another stream"};
  }
  return {};
}

void managed_state::add_user(const stream_ref& stream) {
  if (std::find(users_.begin(), users_.end(), stream) == users_.end()) users_.push_back(stream);
}

result<void> managed_state::record_stream(const stream_ref& stream) {
  if (&stream.device().driver() != home_->calls) {
    return error{.code = errc::bad_stream, .detail = "a stream of another runtime"};
  }
  watch(stream.device());
  const detail::mutex_lock lock{mutex_};
  WEIR_TRY(check_use(stream));
  add_user(stream);
  return {};
}

result<void> managed_state::attach(attachment mode, const stream_ref& stream) {
  if (mode == attachment::single && (stream.is_legacy() || stream.is_per_thread())) {
    return error{.code = errc::invalid_argument,
                 .detail = "memory cannot be attached to a default stream"};
  }
  if (&stream.device().driver() != home_->calls) return errc::bad_stream;
  watch(stream.device());
  const detail::mutex_lock lock{mutex_};
  if (views_ != 0) return view_lives();
  const context_scope bound{stream.device()};
  WEIR_TRY_VALUE(captured, stream.is_capturing(bound));
  if (captured) return errc::capture_forbidden;
  users_.reserve(users_.size() + 1);
  unsigned flags = driver::CU_MEM_ATTACH_GLOBAL;
  if (mode == attachment::host) flags = driver::CU_MEM_ATTACH_HOST;
  if (mode == attachment::single) flags = driver::CU_MEM_ATTACH_SINGLE;
  WEIR_TRY(check(call::stream_attach_mem_async,
                 bound.driver().stream_attach_mem_async(stream.handle(), base_, 0, flags)));
  mode_ = mode;
  attached_to_ = stream;
  add_user(stream);
  return {};
}

void managed_state::stream_closing(const stream_ref& stream) noexcept {
  const detail::mutex_lock lock{mutex_};
  if (attached_to_ == stream) attached_to_.reset();
  const auto user = std::find(users_.begin(), users_.end(), stream);
  if (user == users_.end()) return;
  users_.erase(user);
  // The stream cannot be waited for later; an event can.
  try {
    const auto captured = stream.is_capturing();
    if (captured && *captured) return;
    closed_users_.reserve(closed_users_.size() + 1);
    auto mark = event::create(stream.device());
    if (mark && mark->record(stream)) {
      closed_users_.push_back(*std::move(mark));
      return;
    }
  } catch (const std::bad_alloc&) {
    // Then wait now.
  }
  detail::report_failure(stream.synchronize());
}

// --- Views ---------------------------------------------------------------------------------------

result<bool> managed_state::settle(patience waiting) {
  while (!users_.empty()) {
    const stream_ref& user = users_.back();
    WEIR_TRY_VALUE(captured, user.is_capturing());
    if (captured) return errc::capture_forbidden;
    if (waiting == patience::wait) {
      WEIR_TRY(user.synchronize());
    } else {
      WEIR_TRY_VALUE(done, user.is_complete());
      if (!done) return false;
    }
    users_.pop_back();
  }
  while (!closed_users_.empty()) {
    if (waiting == patience::wait) {
      WEIR_TRY(closed_users_.back().synchronize());
    } else {
      WEIR_TRY_VALUE(done, closed_users_.back().is_complete());
      if (!done) return false;
    }
    closed_users_.pop_back();
  }
  return true;
}

result<void> managed_state::settle_behind(const event* behind, patience waiting) {
  if (needs_idle_device()) {
    if (waiting == patience::do_not_wait) {
      return error{.code = errc::not_supported,
                   .detail = "without concurrent managed access only waiting can tell"};
    }
    WEIR_TRY(settle(waiting));
    return device().synchronize();
  }
  // Without concurrent access all work of that stream matters, not only the recorded one.
  const bool is_single = mode_ == attachment::single && attached_to_ && !is_concurrent(device());
  if (is_single) add_user(*attached_to_);
  if (behind != nullptr && !is_single) {
    WEIR_TRY(behind->synchronize());
    users_.clear();
    closed_users_.clear();
    return {};
  }
  WEIR_TRY_VALUE(done, settle(waiting));
  if (!done) return errc::not_ready;
  return {};
}

result<void> managed_state::begin_view(patience waiting, const event* behind) {
  if (behind != nullptr && !*behind) return errc::moved_from;
  if (home_->forked()) return detail::fork_error();
  const detail::mutex_lock lock{mutex_};
  const bool needs_idle = needs_idle_device();
  // Before the wait: work that is queued from now on would run beside the view.
  if (needs_idle) all_viewed().add(*home_);
  auto settled = settle_behind(behind, waiting);
  if (!settled) {
    if (needs_idle) all_viewed().remove(*home_);
    return settled;
  }
  ++views_;
  return {};
}

void managed_state::end_view() noexcept {
  if (home_->forked()) return;
  const detail::mutex_lock lock{mutex_};
  --views_;
  if (needs_idle_device()) all_viewed().remove(*home_);  // the mode is fixed while a view lives
}

result<void> managed_state::wait_until_unused() {
  const detail::mutex_lock lock{mutex_};
  if (views_ != 0) return view_lives();
  WEIR_TRY(settle(patience::wait));
  return {};
}

result<void> managed_state::free() noexcept {
  if (base_ == 0) return {};
  if (home_->forked()) return detail::fork_error();
  const detail::mutex_lock lock{mutex_};
  // A captured stream cannot be waited for, and runs nothing before its graph is launched.
  std::erase_if(users_, [](const stream_ref& each) {
    const auto captured = each.is_capturing();
    return captured && *captured;
  });
  const context_scope bound{device()};
  const thread_capture_mode_guard relaxed{device()};  // for the waits, too
  result<void> outcome;
  if (auto settled = settle(patience::wait); !settled) outcome = std::move(settled).error();
  auto freed = free_plain(bound, std::exchange(base_, 0));
  return outcome ? freed : outcome;
}

}  // namespace weir::inline v0::buffers
