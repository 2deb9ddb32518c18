// SPDX-License-Identifier: Apache-2.0
// Requests and frees of a host arena.
#include "host/arena.hpp"

#include <algorithm>
#include <new>
#include <unordered_map>
#include <utility>

#include "base/host_memory.hpp"
#include "device/per_process.hpp"
#include "observe/misuse.hpp"
#include "weir/base/checked.hpp"

namespace weir { inline namespace v0 { namespace host {

using detail::mutex_lock;

namespace {

/// A stream that was asked is done within microseconds; to pin memory takes far longer.
constexpr int most_looks = 32;
constexpr bytes largest_alignment{std::uint64_t{2} << 20};

struct shared_arenas {
  detail::mutex mutex;
  std::unordered_map<const detail::device_state*, std::weak_ptr<arena>> by_device;
};

observe::accused_block accused(const block& told) noexcept {
  const bool live = told.state == block_state::live;
  auto known = tag::numbered(told.tag);
  return {.address = told.address,
          .size = bytes{live ? told.requested : told.size},
          .tag = known ? *known : tag{},
          .stream = {},
          .life = {}};
}

}  // namespace

result<std::shared_ptr<arena>> arena::create(weir::device device, host_arena_options options) try {
  if (detail::device_state::of(device).forked()) return detail::fork_error();
  if (options.write_combined && options.pinning == host_pinning::registered_memory)
    return error{{.code = errc::invalid_argument,
                  .detail =
                      "write-combined memory cannot be registered; use host_pinning::automatic "
                      "or driver_memory"}};
  return std::make_shared<arena>(device, options);
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<std::shared_ptr<arena>> arena::of(weir::device device, host_arena_options options) try {
  static constinit detail::per_process<shared_arenas> shared;
  const detail::device_state& home = detail::device_state::of(device);
  if (home.forked()) return detail::fork_error();
  shared_arenas& known = shared.get();
  const mutex_lock lock{known.mutex};
  std::weak_ptr<arena>& place = known.by_device[&home];
  if (auto there = place.lock()) return there;
  WEIR_TRY_VALUE(made, create(device, options));
  place = made;
  return std::move(made);
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

arena::arena(weir::device device, host_arena_options options)
    : device_{device},
      home_{detail::device_state::keep(device)},
      options_{options},
      limit_{options.limit.count()},
      freed_{device, mutex_},
      demand_{options.max_ahead.count()},
      helpers_{*this, options.max_ahead == bytes{} && options.threads == 0 ? 0 : options.threads} {}

result<arena::request> arena::make_request(bytes size, bytes alignment) {
  if (!is_power_of_two(alignment.count()) || alignment > largest_alignment)
    return error{{.code = errc::bad_alignment, .requested = alignment}};
  const auto rounded = checked_round_up(size, bytes{granularity});
  // Sums of a size, an alignment and pages stay far from the largest number.
  if (!rounded || rounded->count() >> 62 != 0)
    return error{{.code = errc::size_overflow, .requested = size}};
  return request{.size = rounded->count(),
                 .alignment = std::max(alignment.count(), granularity),
                 .requested = size.count()};
}

result<void> arena::usable() const {
  if (closed_) return errc::closed;
  return {};
}

// --- For parts of weir ---------------------------------------------------------------------------

result<void*> arena::take(bytes size, bytes alignment) try {
  if (home_->forked()) return detail::fork_error();
  WEIR_TRY_VALUE(wanted, make_request(size, alignment));
  if (size == bytes{}) return static_cast<void*>(nullptr);
  const mutex_lock lock{mutex_};
  WEIR_TRY_VALUE(room, find_room(wanted));
  return hand_out(*room, wanted, nullptr, {});
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

void arena::give(void* pointer) noexcept {
  if (pointer == nullptr || home_->forked()) return;
  std::optional<error> failed;
  {
    const mutex_lock lock{mutex_};
    const auto found = find_live(pointer);
    if (found) {
      block& gone = **found;
      count_free(gone, {});
      give_to_fit(gone);
    } else {
      failed = found.error();
    }
  }
  if (failed) report_error(*failed);
}

// --- In stream order -----------------------------------------------------------------------------

result<void*> arena::allocate(bytes size, const stream_ref& stream, bytes alignment) try {
  if (home_->forked()) return detail::fork_error();
  WEIR_TRY_VALUE(wanted, make_request(size, alignment));
  if (size == bytes{}) return static_cast<void*>(nullptr);
  wanted.ordered = true;
  WEIR_TRY(freed_.listen_to(stream));
  const mutex_lock lock{mutex_};
  WEIR_TRY(usable());
  WEIR_TRY_VALUE(use, freed_.use_of(stream));
  WEIR_TRY_VALUE(room, find_room(wanted));
  void* const memory = hand_out(*room, wanted, &use, stream.known_id());
  if (fit_.free_bytes() < in_use() / (2 * demand::rest_share)) pin_more_ahead();
  return memory;
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<void> arena::deallocate(void* pointer, const stream_ref* stream) try {
  if (home_->forked()) return detail::fork_error();
  if (pointer == nullptr) return {};
  if (stream != nullptr) WEIR_TRY(freed_.listen_to(*stream));
  const mutex_lock lock{mutex_};
  WEIR_TRY_VALUE(live, find_live(pointer));
  if (stream != nullptr) {
    WEIR_TRY_VALUE(use, freed_.use_of(*stream));
    freed_blocks::add(*live, use);
  }
  count_free(*live, stream == nullptr ? stream_id{} : stream->known_id());
  freed_.push(*live);
  return {};
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<void> arena::record_stream(const void* pointer, const stream_ref& stream) try {
  if (home_->forked()) return detail::fork_error();
  if (pointer == nullptr) return errc::invalid_argument;
  WEIR_TRY(freed_.listen_to(stream));
  const mutex_lock lock{mutex_};
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  block* live = live_.find(address);
  if (live == nullptr) {
    live = fit_.block_at(address);
    if (live == nullptr || live->state != block_state::live) {
      WEIR_TRY_VALUE(none, find_live(pointer));
      live = none;
    }
  }
  WEIR_TRY_VALUE(use, freed_.use_of(stream));
  freed_blocks::add(*live, use);
  emit({.kind = memory_event_kind::record_stream,
        .device = device_.id(),
        .stream = stream.known_id(),
        .address = live->address});
  return {};
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<void> arena::release_stream(const stream_ref& stream) try {
  if (home_->forked()) return detail::fork_error();
  const mutex_lock lock{mutex_};
  return freed_.release_stream(stream);
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

bool arena::owns(const void* pointer) const {
  if (pointer == nullptr || home_->forked()) return false;
  const mutex_lock lock{mutex_};
  const block* const at = fit_.block_at(reinterpret_cast<std::uintptr_t>(pointer));
  return at != nullptr && at->state == block_state::live;
}

// --- Finding room --------------------------------------------------------------------------------

/// Free memory, then memory that streams have completed, then new memory.
result<block*> arena::find_room(const request& wanted) {
  WEIR_TRY(usable());
  block* found = fit_.take(wanted.size, wanted.alignment);
  if (found == nullptr) {
    WEIR_TRY_VALUE(completed, find_completed(wanted));
    found = completed;
  }
  if (found == nullptr) return find_by_pinning(wanted);
  found->waited = false;
  return found;
}

result<block*> arena::find_completed(const request& wanted) {
  if (freed_.empty()) return static_cast<block*>(nullptr);
  WEIR_TRY(freed_.poll());
  retire();
  block* found = fit_.take(wanted.size, wanted.alignment);
  for (int looks = 0; looks < most_looks && found == nullptr && !freed_.empty(); ++looks) {
    WEIR_TRY(freed_.look());
    retire();
    found = fit_.take(wanted.size, wanted.alignment);
  }
  return found;
}

void* arena::hand_out(block& chosen, const request& wanted, const block_use* use,
                      stream_id stream) {
  try {
    live_.prepare();
    if (use != nullptr) freed_blocks::add(chosen, *use);
  } catch (const std::bad_alloc&) {
    give_to_fit(chosen);
    throw;
  }
  chosen.ordered = wanted.ordered;
  chosen.requested = wanted.requested;
  chosen.tag = current_tag().number();
  live_.insert(chosen);
  ++stats_.allocations;
  ++(chosen.waited ? stats_.misses : stats_.hits);
  stats_.requested.set(stats_.requested.current + bytes{wanted.requested});
  stats_.allocated.set(stats_.allocated.current + bytes{chosen.size});
  stats_.blocks.set(stats_.blocks.current + 1);
  emit({.kind = memory_event_kind::allocate,
        .tag = chosen.tag,
        .device = device_.id(),
        .stream = stream,
        .address = chosen.address,
        .size = wanted.requested,
        .rounded = chosen.size});
  return reinterpret_cast<void*>(chosen.address);
}

result<block*> arena::find_live(const void* pointer) const {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  if (block* const live = live_.find(address)) return live;
  const block* const at = fit_.block_at(address);
  if (at == nullptr) return observe::foreign_pointer(address, "host arena");
  if (at->state == block_state::live) return observe::foreign_pointer(address, accused(*at));
  return observe::double_free(address, accused(*at));
}

void arena::count_free(const block& freed, stream_id stream) noexcept {
  live_.erase(freed);
  ++stats_.frees;
  stats_.requested.set(stats_.requested.current - bytes{freed.requested});
  stats_.allocated.set(stats_.allocated.current - bytes{freed.size});
  stats_.blocks.set(stats_.blocks.current - 1);
  emit({.kind = memory_event_kind::deallocate,
        .tag = freed.tag,
        .device = device_.id(),
        .stream = stream,
        .address = freed.address,
        .size = freed.requested,
        .rounded = freed.size});
}

void arena::give_to_fit(block& gone) noexcept {
  segment& home = *gone.home;
  fit_.give(gone);
  if (!home.is_idle()) return;
  home.idle_since = steady_time();
  if (home.memory.origin == memory_origin::pageable) release_pageable(home);
}

void arena::retire() noexcept {
  freed_.take_completed([this](block& done) {
    mutex_.assert_held();
    give_to_fit(done);
  });
}

}}}  // namespace weir::v0::host
