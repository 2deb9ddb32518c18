// Requests and frees: which block serves whom, and what the books say.
#include "pools/block_cache.hpp"

#include <algorithm>
#include <bit>
#include <new>
#include <string>
#include <utility>

#include "weir/base/checked.hpp"
#include "weir/device/virtual_memory.hpp"

namespace weir::inline v0::pools {

using order::nobody;

namespace {

constexpr std::uint64_t smallest_step = 512;
constexpr std::uint64_t sizes_a_power = 8;
constexpr bytes most_alignment{std::uint64_t{2} << 20};

[[nodiscard]] std::uint64_t address_of(const void* pointer) noexcept {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

}  // namespace

result<bytes> block_size(bytes size) {
  const std::uint64_t power = std::bit_floor(std::max(size.count(), std::uint64_t{1}));
  const std::uint64_t step = std::max(power / sizes_a_power, smallest_step);
  const auto rounded = checked_round_up(size, bytes{step});
  if (!rounded) return error{.code = errc::size_overflow, .requested = size};
  return *rounded;
}

// --- From the beginning to the end ---------------------------------------------------------------

result<std::shared_ptr<block_cache>> block_cache::create(weir::device where,
                                                         const block_source& source,
                                                         keeping limits) {
  auto made = std::make_shared<block_cache>(where, source, std::move(limits));
  if (made->home_->forked()) return detail::fork_error();
  WEIR_TRY_VALUE(legacy, stream_ref::legacy(where).id());
  made->legacy_stream_ = legacy;
  detail::add_listener(*made->home_, *made);
  made->listening_ = true;
  return made;
}

block_cache::block_cache(weir::device where, const block_source& source, keeping limits)
    : device_{where},
      home_{detail::device_state::keep(where)},
      source_{source},
      limits_{std::move(limits)},
      order_{where, {.crossing = limits_.crossing}} {}

block_cache::~block_cache() {
  if (home_->forked()) return;
  if (listening_) detail::remove_listener(*home_, *this);
  if (blocks_.empty()) return;
  driver_access driver{device_};
  try {
    if (const auto entered = driver.entered(); !entered) {
      detail::report_failure(entered);
      return;
    }
    if (books_.blocks.current != 0) {
      report_error({.code = errc::already_freed,
                    .requested = bytes{books_.allocated.current},
                    .detail = "a pool went with " + std::to_string(books_.blocks.current) +
                              " live blocks of " + to_string(bytes{books_.allocated.current})});
    }
    result<void> outcome = wait_for_streams(driver);
    for (const auto& [address, each] : blocks_) {
      auto done = source_.give_back(driver.enter(), each.base);
      if (!done && outcome) outcome = std::move(done);
    }
    detail::report_failure(outcome);
  } catch (const std::bad_alloc&) {
    report_error({.code = errc::system});
  }
}

result<void> block_cache::close() {
  if (home_->forked()) return detail::fork_error();
  driver_access driver{device_};
  guard lock{mutex_};
  closed_ = true;
  WEIR_TRY(trim_locked(lock, 0, driver));
  return {};
}

// --- Streams -------------------------------------------------------------------------------------

result<stream_slot> block_cache::meet(const stream_ref& stream, driver_access& driver) {
  if (stream.device() != device_)
    return error{.code = errc::bad_stream, .detail = "the stream is of another device"};
  const stream_id id = stream.is_legacy() ? legacy_stream_ : stream.known_id();
  if (const stream_slot slot = id == stream_id{} ? nobody : order_.known(id); slot != nobody)
    return order_.meet(stream, id);
  WEIR_TRY(driver.entered());
  auto slot = order_.slot_of(stream, driver.enter());
  if (!slot && order::says_gone(slot.error())) {
    error reason = std::move(slot).error();
    reason.code = errc::bad_stream;
    return reason;
  }
  return slot;
}

result<void> block_cache::release_stream(const stream_ref& stream) {
  if (home_->forked()) return detail::fork_error();
  if (stream.device() != device_) return errc::bad_stream;
  driver_access driver{device_};
  const guard lock{mutex_};
  WEIR_TRY_VALUE(slot, meet(stream, driver));
  if (order_.ref(slot).is_legacy() || order_.ref(slot).is_per_thread()) return {};
  WEIR_TRY(driver.entered());
  return order_.end_stream(slot, driver.enter());
}

void block_cache::stream_closing(const stream_ref& which) noexcept {
  try {
    detail::report_failure(release_stream(which));
  } catch (const std::bad_alloc&) {
    report_error({.code = errc::system});
  }
}

// --- Requests ------------------------------------------------------------------------------------

result<void*> block_cache::allocate(bytes size, const stream_ref& stream, bytes alignment) {
  if (home_->forked()) return detail::fork_error();
  if (!is_power_of_two(alignment.count()) || alignment > most_alignment)
    return error{.code = errc::bad_alignment, .requested = alignment};
  if (size == bytes{}) return static_cast<void*>(nullptr);
  // Room to align inside the block, whatever block it will be.
  const auto slack = bytes{std::max(alignment.count(), base_alignment) - base_alignment};
  const auto with_slack = checked_add(size, slack);
  if (!with_slack) return error{.code = errc::size_overflow, .requested = size};
  WEIR_TRY_VALUE(rounded, block_size(*with_slack));
  request wanted{size, alignment, rounded.count()};

  driver_access driver{device_};
  guard lock{mutex_};
  if (closed_) return errc::already_freed;
  WEIR_TRY_VALUE(slot, meet(stream, driver));
  wanted.slot = slot;
  block* found = find_kept(wanted);
  if (found == nullptr) {
    WEIR_TRY_VALUE(freed, look_for_kept(wanted, driver));
    found = freed;
  }
  if (found != nullptr) {
    void* const memory = hand_out_kept(*found, wanted);
    observe_limits(lock, driver);
    return memory;
  }
  observe_limits(lock, driver);
  lock.unlock();
  WEIR_TRY(driver.entered());
  auto fresh = source_.obtain(driver.enter(), rounded);
  if (fresh) return adopt(lock, *fresh, wanted, driver);
  if (fresh.code() != errc::out_of_memory) return std::move(fresh).error();
  return relieve(lock, wanted, driver, std::move(fresh).error());
}

block* block_cache::find_kept(const request& wanted) noexcept {
  if (!source_.host_touches) {
    if (block* const own = kept_.take_own(wanted.rounded, wanted.slot); own != nullptr) return own;
  }
  return kept_.take_free(wanted.rounded);
}

result<void*> block_cache::adopt(guard& lock, std::uint64_t base, const request& wanted,
                                 driver_access& driver) {
  try {
    lock.lock();
    block& made = blocks_.try_emplace(base).first->second;
    made.base = made.address = base;
    made.size = wanted.rounded;
    books_.reserved.set(books_.reserved.current + made.size);
    ++books_.misses;
    return hand_out(made, wanted);
  } catch (const std::bad_alloc&) {
    detail::report_failure(source_.give_back(driver.enter(), base));
    return detail::no_host_memory();
  }
}

void* block_cache::hand_out_kept(block& what, const request& wanted) noexcept {
  books_.cached -= what.size;
  ++books_.hits;
  return hand_out(what, wanted);
}

void* block_cache::hand_out(block& what, const request& wanted) noexcept {
  const std::uint64_t mask = wanted.alignment.count() - 1;
  const std::uint64_t address = (what.base + mask) & ~mask;
  if (address != what.address) {
    auto node = blocks_.extract(what.address);
    node.key() = what.address = address;
    blocks_.insert(std::move(node));
  }
  what.state = block_state::live;
  what.stream = wanted.slot;
  what.requested = wanted.size.count();
  what.freed = {};
  ++books_.allocations;
  books_.requested.set(books_.requested.current + what.requested);
  books_.allocated.set(books_.allocated.current + what.size);
  books_.blocks.set(books_.blocks.current + 1);
  return reinterpret_cast<void*>(address);
}

// --- Frees ---------------------------------------------------------------------------------------

result<block*> block_cache::find_live(const void* pointer) {
  const auto found = blocks_.find(address_of(pointer));
  if (found == blocks_.end()) return errc::foreign_pointer;
  if (found->second.state != block_state::live) return errc::double_free;
  return &found->second;
}

result<void> block_cache::deallocate(void* pointer, bytes expected, const stream_ref* stream) {
  if (home_->forked()) return detail::fork_error();
  if (pointer == nullptr) return {};
  driver_access driver{device_};
  guard lock{mutex_};
  WEIR_TRY_VALUE(what, find_live(pointer));
  stream_slot slot = what->stream;
  if (stream != nullptr) {
    WEIR_TRY_VALUE(named, meet(*stream, driver));
    slot = named;
  }
  kept_.prepare(what->size, slot);
  const bytes requested{what->requested};
  put_away(*what, slot);
  if (closed_) {
    // The block is freed whatever the driver says.
    if (const auto done = trim_locked(lock, 0, driver); !done) detail::report_failure(done.error());
  }
  if (expected != detail::any_size && expected != requested) {
    return error{.code = errc::invalid_argument,
                 .requested = expected,
                 .detail = "a block of " + to_string(requested) + " was freed as one of " +
                           to_string(expected)};
  }
  return {};
}

void block_cache::put_away(block& what, stream_slot slot) noexcept {
  ++books_.frees;
  books_.requested.set(books_.requested.current - what.requested);
  books_.allocated.set(books_.allocated.current - what.size);
  books_.blocks.set(books_.blocks.current - 1);
  books_.cached += what.size;
  what.freed_on = slot;
  what.freed = order_.now(slot);
  what.order = next_order_++;
  if (limits_.clock) what.freed_at = limits_.clock();
  std::erase_if(what.others, [&](const stamp& each) { return each.stream == slot; });
  if (what.others.empty()) {
    what.state = block_state::kept;
    return kept_.put(what);
  }
  for (stamp& each : what.others) each = order_.now(each.stream);
  what.state = block_state::pending;
  books_.pending += what.size;
  pending_.push_back(what);
}

result<void> block_cache::record_stream(void* pointer, const stream_ref& stream) {
  if (home_->forked()) return detail::fork_error();
  if (pointer == nullptr) return errc::invalid_argument;
  driver_access driver{device_};
  const guard lock{mutex_};
  WEIR_TRY_VALUE(what, find_live(pointer));
  WEIR_TRY_VALUE(slot, meet(stream, driver));
  const auto is_it = [slot = slot](const stamp& each) { return each.stream == slot; };
  if (std::none_of(what->others.begin(), what->others.end(), is_it))
    what->others.push_back({.stream = slot});
  return {};
}

// --- Looking -------------------------------------------------------------------------------------

block_pool_stats block_cache::stats() const {
  if (home_->forked()) return {};
  const guard lock{mutex_};
  block_pool_stats now = books_;
  now.waits = order_.waits_queued();
  now.events = order_.events_recorded();
  return now;
}

void block_cache::reset_peaks() {
  if (home_->forked()) return;
  const guard lock{mutex_};
  for (gauge* each : {&books_.requested, &books_.allocated, &books_.reserved, &books_.blocks})
    each->reset_peak();
}

}  // namespace weir::inline v0::pools
