// SPDX-License-Identifier: Apache-2.0
// The handle of a host arena.
#include "weir/host/host_arena.hpp"

#include <new>
#include <utility>

#include "base/host_memory.hpp"
#include "base/member_list.hpp"
#include "host/arena.hpp"

namespace weir { inline namespace v0 {
namespace {

host::arena& usable(const std::shared_ptr<host::arena>& state) {
  if (state == nullptr) raise(errc::moved_from);
  return *state;
}

}  // namespace

std::string_view name(host_block_state state) noexcept {
  switch (state) {
    case host_block_state::live:
      return "live";
    case host_block_state::pending:
      return "pending";
    case host_block_state::free:
      break;
  }
  return "free";
}

std::string to_string(const host_arena_stats& stats) {
  detail::member_list members;
  members.add("requested", stats.requested)
      .add("allocated", stats.allocated)
      .add("pinned", stats.pinned)
      .add("blocks", stats.blocks)
      .add("pending", stats.pending)
      .add("free", stats.free)
      .add("pageable", stats.pageable)
      .add("segments", stats.segments)
      .add("allocations", stats.allocations)
      .add("frees", stats.frees)
      .add("hits", stats.hits)
      .add("misses", stats.misses)
      .add("failures", stats.failures)
      .add("pins", stats.pins)
      .add("pins_ahead", stats.pins_ahead)
      .add("unpins", stats.unpins)
      .add("events", stats.events)
      .add("pin_time_ns", stats.pin_time.count());
  return std::move(members).text();
}

result<host_arena> host_arena::create(weir::device device, host_arena_options options) {
  WEIR_TRY_VALUE(state, host::arena::create(device, options));
  return host_arena{std::move(state)};
}

result<host_arena> host_arena::of(weir::device device, host_arena_options options) {
  WEIR_TRY_VALUE(state, host::arena::of(device, options));
  return host_arena{std::move(state)};
}

result<void*> host_arena::try_allocate(bytes size, const stream_ref& stream,
                                       bytes alignment) const {
  if (state_ == nullptr) return errc::moved_from;
  return state_->allocate(size, stream, alignment);
}

void host_arena::deallocate(void* pointer, const stream_ref& stream) const noexcept {
  const auto freed = try_deallocate(pointer, stream);
  if (!freed) report_error(freed.error());
}

result<void> host_arena::try_deallocate(void* pointer, const stream_ref& stream) const {
  if (state_ == nullptr) return errc::moved_from;
  return state_->deallocate(pointer, &stream);
}

result<void> host_arena::try_deallocate(void* pointer) const {
  if (state_ == nullptr) return errc::moved_from;
  return state_->deallocate(pointer, nullptr);
}

result<void> host_arena::record_stream(const void* pointer, const stream_ref& stream) const {
  if (state_ == nullptr) return errc::moved_from;
  return state_->record_stream(pointer, stream);
}

result<void> host_arena::release_stream(const stream_ref& stream) const {
  if (state_ == nullptr) return errc::moved_from;
  return state_->release_stream(stream);
}

bool host_arena::owns(const void* pointer) const { return usable(state_).owns(pointer); }

result<void> host_arena::reserve(bytes size, host_wait wait) const {
  if (state_ == nullptr) return errc::moved_from;
  return state_->reserve(size, wait);
}

result<bytes> host_arena::trim(bytes keep) const {
  if (state_ == nullptr) return errc::moved_from;
  return state_->trim(keep);
}

result<bytes> host_arena::empty_cache() const {
  if (state_ == nullptr) return errc::moved_from;
  return state_->empty_cache();
}

result<void> host_arena::set_limit(bytes limit) const {
  if (state_ == nullptr) return errc::moved_from;
  return state_->set_limit(limit);
}

bytes host_arena::limit() const { return usable(state_).limit(); }

weir::device host_arena::device() const { return usable(state_).device(); }

host_arena_stats host_arena::stats() const { return usable(state_).stats(); }

void host_arena::reset_peaks() const { usable(state_).reset_peaks(); }

host_snapshot host_arena::snapshot() const { return usable(state_).snapshot(); }

result<void> host_arena::add_observer(event_sink& sink) const {
  if (state_ == nullptr) return errc::moved_from;
  return state_->add_observer(sink);
}

void host_arena::remove_observer(event_sink& sink) const noexcept {
  if (state_ != nullptr) state_->remove_observer(sink);
}

result<void> host_arena::close() const {
  if (state_ == nullptr) return errc::moved_from;
  return state_->close();
}

}}  // namespace weir::v0
