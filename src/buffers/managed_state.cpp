// Managed memory and who may be using it.
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

/// What the driver aligns managed memory to at least.
constexpr bytes managed_alignment{256};

/// Host views of global memory on devices without concurrent managed access: while there is one,
/// nothing may be queued on the device, whatever it uses. One register for all buffers, because the
/// rule is about all of them.
class resting_devices {
 public:
  void add(const detail::device_state& which) {
    const std::lock_guard lock{lock_};
    resting_.push_back(&which);
  }
  void remove(const detail::device_state& which) noexcept {
    const std::lock_guard lock{lock_};
    const auto found = std::find(resting_.begin(), resting_.end(), &which);
    if (found != resting_.end()) resting_.erase(found);
  }
  [[nodiscard]] bool has(const detail::device_state& which) {
    const std::lock_guard lock{lock_};
    return std::find(resting_.begin(), resting_.end(), &which) != resting_.end();
  }

 private:
  std::mutex lock_;
  std::vector<const detail::device_state*> resting_;
};

resting_devices& resting() {
  static auto* const all = new resting_devices;  // buffers may outlive the statics
  return *all;
}

error view_lives() {
  return {.code = errc::not_ready, .detail = "the host looks at managed memory"};
}

bool concurrent(weir::device where) { return where.capabilities().concurrent_managed_access; }

}  // namespace

managed_state::managed_state(weir::device where, bytes size, bytes alignment, attachment mode)
    : home_{detail::device_state::keep(where)}, size_{size}, alignment_{alignment}, mode_{mode} {}

result<void> managed_state::allocate() {
  // Where the driver's alignment does not suffice: room to begin later.
  const auto whole =
      alignment_ > managed_alignment ? checked_add(size_, alignment_) : std::optional{size_};
  if (!whole) return error{.code = errc::size_overflow, .requested = size_};
  const context_scope bound{device()};
  if (!bound) return bound.error();
  const thread_capture_mode_guard relaxed{device()};
  const unsigned flags =
      mode_ == attachment::global ? driver::CU_MEM_ATTACH_GLOBAL : driver::CU_MEM_ATTACH_HOST;
  WEIR_TRY(check(call::mem_alloc_managed,
                 bound.driver().mem_alloc_managed(&base_, whole->count(), flags), *whole));
  first_ = *checked_round_up(base_, alignment_.count());
  if (first_ - base_ + size_.count() > whole->count()) return errc::bad_alignment;
  return {};
}

managed_state::~managed_state() {
  detail::report_failure(free());
  if (home_->forked()) return;
  for (detail::device_state* each : watched_) detail::remove_listener(*each, *this);
}

attachment managed_state::attached() const {
  const std::lock_guard lock{lock_};
  return mode_;
}

// --- Users
// ----------------------------------------------------------------------------------------

void managed_state::watch(weir::device where) {
  const std::lock_guard lock{watch_lock_};
  auto& state = detail::device_state::of(where);
  if (std::find(watched_.begin(), watched_.end(), &state) != watched_.end()) return;
  watched_.reserve(watched_.size() + 1);
  detail::add_listener(state, *this);
  watched_.push_back(&state);
}

bool managed_state::exclusive(weir::device where) const noexcept {
  return mode_ == attachment::global && !concurrent(where);
}

result<void> managed_state::may_use(const stream_ref& stream) const {
  if (views_ != 0) return view_lives();
  if (concurrent(stream.device())) return {};
  if (resting().has(detail::device_state::of(stream.device()))) return view_lives();
  if (mode_ == attachment::host) {
    return error{.code = errc::not_permitted, .detail = "the memory is attached to the host"};
  }
  if (mode_ == attachment::single && attached_to_ != stream) {
    return error{.code = errc::bad_stream, .detail = "the memory is attached to another stream"};
  }
  return {};
}

void managed_state::note(const stream_ref& stream) {
  if (std::find(users_.begin(), users_.end(), stream) == users_.end()) users_.push_back(stream);
}

result<void> managed_state::use_on(const stream_ref& stream) {
  if (&stream.device().driver() != home_->calls) {
    return error{.code = errc::bad_stream, .detail = "a stream of another runtime"};
  }
  watch(stream.device());
  const std::lock_guard lock{lock_};
  WEIR_TRY(may_use(stream));
  note(stream);
  return {};
}

result<void> managed_state::attach(attachment mode, const stream_ref& stream) {
  if (mode == attachment::single && (stream.is_legacy() || stream.is_per_thread())) {
    return error{.code = errc::invalid_argument,
                 .detail = "memory cannot be attached to a default stream"};
  }
  if (&stream.device().driver() != home_->calls) return errc::bad_stream;
  watch(stream.device());
  const std::lock_guard lock{lock_};
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
  note(stream);
  return {};
}

void managed_state::stream_closing(const stream_ref& which) noexcept {
  const std::lock_guard lock{lock_};
  if (attached_to_ == which) attached_to_.reset();
  const auto found = std::find(users_.begin(), users_.end(), which);
  if (found == users_.end()) return;
  users_.erase(found);
  // Nobody can ask the stream later; an event can be asked.
  try {
    const auto captured = which.is_capturing();
    if (captured && *captured) return;
    marks_.reserve(marks_.size() + 1);
    auto mark = event::create(which.device());
    if (mark && mark->record(which)) {
      marks_.push_back(*std::move(mark));
      return;
    }
  } catch (const std::bad_alloc&) {
    // Then wait now.
  }
  detail::report_failure(which.synchronize());
}

// --- Views
// ----------------------------------------------------------------------------------------

result<bool> managed_state::settle(patience how) {
  while (!users_.empty()) {
    const stream_ref& user = users_.back();
    WEIR_TRY_VALUE(captured, user.is_capturing());
    if (captured) return errc::capture_forbidden;
    if (how == patience::wait) {
      WEIR_TRY(user.synchronize());
    } else {
      WEIR_TRY_VALUE(done, user.ready());
      if (!done) return false;
    }
    users_.pop_back();
  }
  while (!marks_.empty()) {
    if (how == patience::wait) {
      WEIR_TRY(marks_.back().synchronize());
    } else {
      WEIR_TRY_VALUE(done, marks_.back().reached());
      if (!done) return false;
    }
    marks_.pop_back();
  }
  return true;
}

result<void> managed_state::settle_behind(const event* behind, patience how) {
  if (exclusive(device())) {
    if (how == patience::do_not_wait) {
      return error{.code = errc::not_supported,
                   .detail = "without concurrent managed access only waiting tells"};
    }
    WEIR_TRY(settle(how));
    return device().synchronize();
  }
  // Without concurrent access all work of that stream matters, not only what was noted.
  const bool single = mode_ == attachment::single && attached_to_ && !concurrent(device());
  if (single) note(*attached_to_);
  if (behind != nullptr && !single) {
    WEIR_TRY(behind->synchronize());
    users_.clear();
    marks_.clear();
    return {};
  }
  WEIR_TRY_VALUE(done, settle(how));
  if (!done) return errc::not_ready;
  return {};
}

result<void> managed_state::begin_view(patience how, const event* behind) {
  if (behind != nullptr && !*behind) return errc::already_freed;
  if (home_->forked()) return detail::fork_error();
  const std::lock_guard lock{lock_};
  const bool rests = exclusive(device());
  // Before the wait: what is queued from now on would run beside the view.
  if (rests) resting().add(*home_);
  auto settled = settle_behind(behind, how);
  if (!settled) {
    if (rests) resting().remove(*home_);
    return settled;
  }
  ++views_;
  return {};
}

void managed_state::end_view() noexcept {
  if (home_->forked()) return;
  const std::lock_guard lock{lock_};
  --views_;
  if (exclusive(device())) resting().remove(*home_);  // the mode cannot change while one looks
}

result<void> managed_state::rest() {
  const std::lock_guard lock{lock_};
  if (views_ != 0) return view_lives();
  WEIR_TRY(settle(patience::wait));
  return {};
}

result<void> managed_state::free() noexcept {
  if (base_ == 0) return {};
  if (home_->forked()) return detail::fork_error();
  const std::lock_guard lock{lock_};
  // A captured stream cannot be waited for, and runs nothing before its graph is launched.
  std::erase_if(users_, [](const stream_ref& each) {
    const auto captured = each.is_capturing();
    return captured && *captured;
  });
  result<void> outcome;
  if (auto settled = settle(patience::wait); !settled) outcome = std::move(settled).error();
  const context_scope bound{device()};
  const thread_capture_mode_guard relaxed{device()};
  auto freed = free_plain(bound, std::exchange(base_, 0));
  return outcome ? freed : outcome;
}

}  // namespace weir::inline v0::buffers
