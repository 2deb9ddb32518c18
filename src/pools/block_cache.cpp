// SPDX-License-Identifier: Apache-2.0
// Requests and frees: which block serves whom, and what is counted.
#include "pools/block_cache.hpp"

#include <algorithm>
#include <bit>
#include <new>
#include <string>
#include <utility>

#include "pools/guarded.hpp"
#include "weir/base/checked.hpp"

namespace weir { inline namespace v0 { namespace pools {

using detail::mutex_lock;
using detail::mutex_unlock;
using order::no_stream;

namespace {

constexpr std::uint64_t smallest_step = 512;
constexpr std::uint64_t sizes_per_power = 8;

error wrong_size(bytes requested, bytes expected) noexcept {
  error reason{{.code = errc::invalid_argument, .requested = expected}};
  try {
    reason.set_detail("the block was freed with " + to_string(expected) +
                      ", but it was allocated with " + to_string(requested));
  } catch (const std::bad_alloc&) {  // then without details
  }
  return reason;
}

}  // namespace

result<bytes> block_size(bytes size) {
  const std::uint64_t power = std::bit_floor(std::max(size.count(), std::uint64_t{1}));
  const std::uint64_t step = std::max(power / sizes_per_power, smallest_step);
  const auto rounded = checked_round_up(size, bytes{step});
  if (!rounded) return error{{.code = errc::size_overflow, .requested = size}};
  return *rounded;
}

result<std::shared_ptr<block_cache>> block_cache::create(weir::device device, block_source source,
                                                         cache_limits limits) {
  return guarded([&]() -> result<std::shared_ptr<block_cache>> {
    auto cache = std::make_shared<block_cache>(device, std::move(source), std::move(limits));
    if (cache->home_->forked()) return detail::fork_error();
    const auto legacy = stream_ref::legacy(device).id();
    // Beside a capture the legacy stream cannot be asked: then whoever names it first asks.
    if (!legacy && legacy.code() != errc::capture_forbidden) return legacy.error();
    if (legacy) {
      const mutex_lock lock{cache->mutex_};
      cache->legacy_stream_ = *legacy;
    }
    cache->ends_.listen_on(device);
    return cache;
  });
}

block_cache::block_cache(weir::device device, block_source source, cache_limits limits)
    : device_{device},
      home_{detail::device_state::keep(device)},
      source_{std::move(source)},
      limits_{std::move(limits)},
      order_{device, {.crossing = limits_.crossing}} {}

// --- Streams -------------------------------------------------------------------------------------

result<stream_slot> block_cache::slot_of(const stream_ref& stream, driver_access& driver) {
  if (stream.device() != device_)
    return error{{.code = errc::bad_stream,
                  .detail = "the stream belongs to another device than the pool; "
                            "pass a stream of the pool's device"}};
  const stream_id id = stream.is_legacy() ? legacy_stream_ : stream.known_id();
  if (id != stream_id{}) return order_.meet(stream, id);
  WEIR_TRY(driver.entered());
  auto slot = order_.slot_of(stream, driver.enter());
  if (!slot && order::says_gone(slot.error())) {
    error reason = std::move(slot).error();
    reason.set_code(errc::bad_stream);
    return reason;
  }
  if (slot && stream.is_legacy()) legacy_stream_ = order_.id(*slot);
  return slot;
}

result<foreign_use> block_cache::meet_foreign(const stream_ref& stream) {
  WEIR_TRY_VALUE(use, foreign_use::of(stream, device_));
  ends_.listen_on(stream.device());
  return use;
}

void block_cache::end_foreign(const stream_ref& stream) noexcept {
  std::shared_ptr<const event> behind;
  bool any = false;
  blocks_.for_each([&](block& each) {
    for (foreign_use& use : each.foreign) {
      if (!use.is_of(stream)) continue;
      if (!std::exchange(any, true)) behind = event_behind(stream);
      use.end(behind);
    }
  });
}

result<std::optional<weir::stream>> block_cache::make_stand_in() {
  {
    const mutex_lock lock{mutex_};
    if (stand_in_) return std::optional<weir::stream>{};
  }
  WEIR_TRY_VALUE(made, stream::create(device_));
  return std::optional<weir::stream>{std::move(made)};
}

stream_slot block_cache::stand_in_slot(std::optional<weir::stream>& made) {
  if (!stand_in_) stand_in_.swap(made);
  return order_.meet(stand_in_->ref(), stand_in_->id());
}

result<void> block_cache::release_stream(const stream_ref& stream) {
  if (home_->forked()) return detail::fork_error();
  driver_access driver{device_};
  if (stream.device() != device_) {
    WEIR_TRY_VALUE(use, foreign_use::of(stream, device_));
    const mutex_lock lock{mutex_};
    if (!use.stream().is_legacy()) end_foreign(use.stream());
    return {};
  }
  const mutex_lock lock{mutex_};
  WEIR_TRY_VALUE(slot, slot_of(stream, driver));
  if (order_.ref(slot).is_legacy() || order_.ref(slot).is_per_thread()) return {};
  return order_.end_stream(slot, driver.enter());
}

void block_cache::stream_closing(const stream_ref& stream) noexcept {
  if (home_->forked()) return;
  driver_access driver{device_};
  const mutex_lock lock{mutex_};
  if (stream.device() != device_) return end_foreign(stream);
  detail::report_failure(order_.end_stream(stream, driver.enter()));
}

// --- Requests ------------------------------------------------------------------------------------

result<block_cache::block_request> block_cache::make_request(bytes size, bytes alignment) {
  if (!is_power_of_two(alignment.count()) || alignment > largest_alignment)
    return error{{.code = errc::bad_alignment, .requested = alignment}};
  // Room to align in the block, whatever block it will be.
  const auto with_slack =
      checked_add(size, std::max(alignment, default_alignment) - default_alignment);
  if (!with_slack) return error{{.code = errc::size_overflow, .requested = size}};
  WEIR_TRY_VALUE(rounded, block_size(*with_slack));
  return block_request{.size = size, .alignment = alignment, .rounded = rounded.count()};
}

result<void*> block_cache::allocate(bytes size, const stream_ref& stream, bytes alignment) {
  if (home_->forked()) return detail::fork_error();
  WEIR_TRY_VALUE(request, make_request(size, alignment));
  if (size == bytes{}) return static_cast<void*>(nullptr);

  const bool is_foreign = stream.device() != device_ && source_.host_touches;
  std::optional<weir::stream> stand_in;  // its end takes the lock
  if (is_foreign) {
    WEIR_TRY_VALUE(use, meet_foreign(stream));
    request.foreign.push_back(use);
    WEIR_TRY_VALUE(made, make_stand_in());
    stand_in = std::move(made);
  }
  driver_access driver{device_};
  const mutex_lock lock{mutex_};
  WEIR_TRY(usable());
  WEIR_TRY_VALUE(
      slot, is_foreign ? result<stream_slot>{stand_in_slot(stand_in)} : slot_of(stream, driver));
  request.slot = slot;
  block* cached = take_cached(request);
  if (cached == nullptr) {
    WEIR_TRY_VALUE(completed, poll_for_cached(request, driver));
    cached = completed;
  }
  if (cached != nullptr) {
    void* const memory = hand_out_cached(*cached, request);
    enforce_limits(driver);
    return memory;
  }
  enforce_limits(driver);
  const std::uint64_t ended = releases_.ended();
  auto fresh = allocate_fresh(request, driver);
  if (fresh) return hand_out_fresh(**fresh, request);
  if (fresh.code() != errc::out_of_memory) return std::move(fresh).error();
  return allocate_after_release(request, driver, std::move(fresh).error(), ended);
}

result<void*> block_cache::allocate_cached(bytes size, const stream_ref& stream, bytes alignment) {
  if (home_->forked()) return detail::fork_error();
  WEIR_TRY_VALUE(request, make_request(size, alignment));
  driver_access driver{device_};
  const mutex_lock lock{mutex_};
  if (closed_) return errc::closed;
  WEIR_TRY_VALUE(slot, slot_of(stream, driver));
  request.slot = slot;
  block* const cached = take_cached(request);
  if (cached == nullptr) return error{{.code = errc::not_found, .requested = size}};
  return hand_out_cached(*cached, request);
}

block* block_cache::take_cached(const block_request& request) noexcept {
  if (!source_.host_touches) {
    block* const own = cached_.take_own(request.rounded, request.slot);
    if (own != nullptr) return own;
  }
  return cached_.take_quiescent(request.rounded);
}

result<block*> block_cache::allocate_fresh(const block_request& request, driver_access& driver) {
  // The record comes first: memory must not be lost because there is no host memory for one.
  block& fresh = blocks_.add();
  fresh.size = request.rounded;
  result<std::uint64_t> base = errc::internal;
  {
    const mutex_unlock unlocked{mutex_};
    base = contained([&]() -> result<std::uint64_t> {
      WEIR_TRY(driver.entered());
      return source_.allocate(driver.enter(), bytes{request.rounded});
    });
  }
  if (!base) {
    blocks_.erase(fresh);
    return std::move(base).error();
  }
  if (blocks_.has(*base)) {
    blocks_.erase(fresh);
    return error{{.code = errc::internal,
                  .requested = request.size,
                  .detail = "the memory_source returned memory that the pool already has"}};
  }
  fresh.base = *base;
  blocks_.place(fresh, *base);
  return &fresh;
}

void* block_cache::hand_out_fresh(block& fresh, block_request& request) noexcept {
  stats_.reserved.set(stats_.reserved.current + bytes{fresh.size});
  ++stats_.misses;
  return hand_out(fresh, request);
}

void* block_cache::hand_out_cached(block& chosen, block_request& request) noexcept {
  stats_.cached -= bytes{chosen.size};
  ++stats_.hits;
  return hand_out(chosen, request);
}

void* block_cache::hand_out(block& chosen, block_request& request) noexcept {
  const std::uint64_t mask = request.alignment.count() - 1;
  const std::uint64_t address = (chosen.base + mask) & ~mask;
  if (address != chosen.address) blocks_.place(chosen, address);
  chosen.state = block_state::live;
  chosen.tag = current_tag();
  chosen.stream = request.slot;
  chosen.requested = request.size.count();
  chosen.freed = {};
  chosen.foreign = std::move(request.foreign);
  ++stats_.allocations;
  stats_.requested.set(stats_.requested.current + request.size);
  stats_.allocated.set(stats_.allocated.current + bytes{chosen.size});
  stats_.blocks.set(stats_.blocks.current + 1);
  return reinterpret_cast<void*>(address);
}

// --- Frees ---------------------------------------------------------------------------------------

result<void> block_cache::deallocate(void* pointer, bytes expected, const stream_ref* stream) {
  if (home_->forked()) return detail::fork_error();
  if (pointer == nullptr) return {};
  std::optional<foreign_use> foreign;
  if (stream != nullptr && stream->device() != device_) {
    WEIR_TRY_VALUE(use, meet_foreign(*stream));
    foreign = use;
  }
  driver_access driver{device_};
  const mutex_lock lock{mutex_};
  WEIR_TRY_VALUE(live, blocks_.find_live(pointer));
  stream_slot slot = live->stream;
  if (foreign) {
    live->add_use(*foreign);
  } else if (stream != nullptr) {
    WEIR_TRY_VALUE(named, slot_of(*stream, driver));
    slot = named;
  }
  cached_.prepare(live->size, slot);
  const std::chrono::nanoseconds now = limits_.now();
  const bytes requested{live->requested};
  put_in_cache(*live, slot, now);
  const std::uint64_t number = live->order;
  // From here on it is freed, whatever else fails.
  if (closed_) {
    const auto released = contained([&] {
      mutex_.assert_held();
      return release_freed(number, driver);
    });
    if (!released) detail::report_failure(released.error());
  }
  if (expected == detail::any_size || expected == requested) return {};
  return wrong_size(requested, expected);
}

void block_cache::put_in_cache(block& freed, stream_slot slot,
                               std::chrono::nanoseconds now) noexcept {
  const bytes size{freed.size};
  ++stats_.frees;
  stats_.requested.set(stats_.requested.current - bytes{freed.requested});
  stats_.allocated.set(stats_.allocated.current - size);
  stats_.blocks.set(stats_.blocks.current - 1);
  stats_.cached += size;
  freed.freed_on = slot;
  freed.freed = order_.now(slot);
  freed.order = next_order_++;
  freed.freed_at = now;
  std::erase_if(freed.others, [&](const stamp& each) { return each.stream == slot; });
  if (freed.others.empty() && freed.foreign.empty()) {
    freed.state = block_state::cached;
    return cached_.put(freed);
  }
  for (stamp& each : freed.others) each = order_.now(each.stream);
  for (foreign_use& each : freed.foreign) each.free();
  freed.state = block_state::pending;
  stats_.pending += size;
  pending_.push_back(freed);
}

result<void> block_cache::record_stream(void* pointer, const stream_ref& stream) {
  if (home_->forked()) return detail::fork_error();
  if (pointer == nullptr) return errc::invalid_argument;
  if (stream.device() != device_) {
    WEIR_TRY_VALUE(use, meet_foreign(stream));
    const mutex_lock lock{mutex_};
    WEIR_TRY_VALUE(live, blocks_.find_live(pointer));
    live->add_use(use);
    return {};
  }
  driver_access driver{device_};
  const mutex_lock lock{mutex_};
  WEIR_TRY_VALUE(live, blocks_.find_live(pointer));
  WEIR_TRY_VALUE(slot, slot_of(stream, driver));
  const auto is_recorded = [slot = slot](const stamp& each) { return each.stream == slot; };
  if (std::none_of(live->others.begin(), live->others.end(), is_recorded))
    live->others.push_back({.stream = slot});
  return {};
}

// --- Counters ------------------------------------------------------------------------------------

block_pool_stats block_cache::stats() const {
  if (home_->forked()) return {};
  const mutex_lock lock{mutex_};
  block_pool_stats snapshot = stats_;
  snapshot.waits = order_.waits_queued() - waits_at_reset_;
  snapshot.events = order_.events_recorded() - events_at_reset_;
  return snapshot;
}

void block_cache::reset_peaks() {
  if (home_->forked()) return;
  const mutex_lock lock{mutex_};
  stats_.requested.reset_peak();
  stats_.allocated.reset_peak();
  stats_.reserved.reset_peak();
  stats_.blocks.reset_peak();
}

void block_cache::reset_counters() {
  if (home_->forked()) return;
  const mutex_lock lock{mutex_};
  stats_.allocations = stats_.frees = stats_.hits = stats_.misses = stats_.failures = 0;
  waits_at_reset_ = order_.waits_queued();
  events_at_reset_ = order_.events_recorded();
}

}}}  // namespace weir::v0::pools
