// SPDX-License-Identifier: Apache-2.0
// The rungs between a request that the thread's cache could not serve and out of memory.
#include "heap/room_search.hpp"

#include <utility>

namespace weir { inline namespace v0 { namespace heap {
namespace {

/// So many times a search waits for memory that other threads give to the driver. Without a bound
/// it would go on for as long as they do.
constexpr int most_awaited_releases = 8;

}  // namespace

result<block_index> room_search::find_room() {
  for (;;) {
    WEIR_TRY(prepare());
    flush_unbinned();
    WEIR_TRY_VALUE(rerouted_early, retire_pending());
    if (rerouted_early) continue;
    if (fit()) return found_on(rung::free_range);
    WEIR_TRY_VALUE(rerouted, notice_capture());
    if (rerouted) continue;
    WEIR_TRY_VALUE(retired, retire_completed());
    if (retired && fit()) return found_on(rung::completed);
    if (flush_own() && fit()) return found_on(rung::flushed);
    if (flush_others() && fit()) return found_on(rung::flushed);
    if (prefers_growth()) {
      WEIR_TRY_VALUE(asked, ask_before_growth());
      if (asked) continue;
      WEIR_TRY_VALUE(preferred, grow());
      if (preferred) return found_on(rung::growth);
    }
    WEIR_TRY_VALUE(rearranged, rearrange_own());
    if (rearranged) return found_on(rung::move);
    WEIR_TRY_VALUE(behind_waits, rearrange_behind_waits());
    if (behind_waits) return found_on(rung::move_behind_wait);
    WEIR_TRY_VALUE(taken, take_pending_behind_waits());
    if (taken && fit()) return found_on(rung::pending_behind_wait);
    WEIR_TRY_VALUE(asked, ask_before_growth());
    if (asked) continue;
    WEIR_TRY_VALUE(grown, grow());
    if (grown) return found_on(rung::growth);
    WEIR_TRY_VALUE(helped_out, fit_in_fallback());
    if (helped_out) return found_on(rung::fallback);
    WEIR_TRY_VALUE(released, release_cached());
    if (released) return found_on(rung::release);
    WEIR_TRY_VALUE(arrived, await_releases());
    if (arrived) climb(rung::release);
    if (arrived) continue;
    WEIR_TRY_VALUE(evicted, evict());
    if (evicted) climb(rung::eviction);
    if (evicted) continue;
    WEIR_TRY_VALUE(helped, ask_callbacks(to_bytes(wanted_.units)));
    if (helped) climb(rung::callback);
    if (helped) continue;
    WEIR_TRY_VALUE(waited, wait_for_oldest());
    if (waited) climb(rung::wait);
    if (waited) continue;
    climb(rung::none);
    return no_block;
  }
}

result<block_index> room_search::find_free_room() {
  WEIR_TRY(prepare());
  flush_unbinned();
  return pool_->memory->fit(wanted_);
}

result<block_index> room_search::find_room_at(std::uint64_t address) {
  WEIR_TRY(prepare());
  return pool_->memory->fit_at(address, wanted_);
}

result<void> room_search::prepare() {
  if (!pool_->takes_requests) {
    return error{{.code = errc::invalid_argument,
                  .detail = "a graph's pool serves requests during its capture only"}};
  }
  for (;;) {
    auto account = heap_.prepare(*pool_, to_bytes(wanted_.units), driver_);
    if (account) {
      account_ = *account;
      prepared_at_ = heap_.releases_ended();
      return {};
    }
    // A suspended pool that finds no room to come back.
    if (account.code() != errc::out_of_memory) return std::move(account).error();
    WEIR_TRY_VALUE(helped, ask_callbacks(account.error().requested()));
    if (!helped) return std::move(account).error();
    climb(rung::callback);
  }
}

/// What was prepared, if the lock was free since: others may have used it.
result<void> room_search::prepare_again() {
  if (heap_.releases_ended() == prepared_at_) return {};
  return prepare();
}

void room_search::flush_unbinned() {
  if (own_ != nullptr) heap_.flush_unbinned(*own_);
}

/// Memory that its stream used already comes before memory that it never had: a program that
/// records a use of every block would otherwise spread over all that is free. Costs a look at the
/// marks of the recorded streams, so it is for a block that would serve the request exactly. True:
/// the stream is being captured, and the request goes to another pool.
result<bool> room_search::retire_pending() {
  if (!heap_.any_pending_like(wanted_, *pool_)) return false;
  WEIR_TRY_VALUE(rerouted, notice_capture());
  if (!rerouted && !asks_no_stream()) heap_.retire_pending(driver_);
  return rerouted;
}

bool room_search::fit() {
  room_ = pool_->memory->fit(wanted_);
  return room_ != no_block;
}

result<void> room_search::know_capture(capture_status status) {
  capture_known_ = true;
  capturing_ = status != capture_status::none;
  if (status != capture_status::active || pool_is_fixed_) return {};
  WEIR_TRY_VALUE(pool, heap_.capture_pool(stream_, wanted_.stream, driver_));
  pool_ = pool;
  own_ = is_own_pool() ? own_ : nullptr;
  return {};
}

/// Before the first driver call: a capture that nobody declared gets a pool of its own.
result<bool> room_search::notice_capture() {
  if (capture_known_) return false;
  WEIR_TRY(driver_.entered());
  WEIR_TRY_VALUE(capture, stream_.capture(driver_.enter()));
  const pool_state* const before = pool_;
  WEIR_TRY(know_capture(capture.status));
  return pool_ != before;
}

/// Epochs that have completed, of streams that are asked now as well: an idle stream's memory is
/// quiescent at once, and a busy one's at the next look.
result<bool> room_search::retire_completed() {
  if (asks_no_stream()) return false;
  WEIR_TRY_VALUE(retired, heap_.retire_completed(wanted_.stream, *pool_, driver_));
  WEIR_TRY(prepare_again());
  return retired;
}

bool room_search::flush_own() { return is_own_pool() && own_ != nullptr && heap_.flush(*own_); }

bool room_search::flush_others() { return is_own_pool() && heap_.flush_others(own_); }

/// A driver without memory for new handles or page tables is no room, as a full arena is: what
/// follows may serve the request all the same.
result<bool> room_search::accept(result<block_index> room) {
  if (!room && room.code() == errc::out_of_memory) return false;
  if (!room) return std::move(room).error();
  room_ = *room;
  return room_ != no_block;
}

/// Once a request. The lock was free meanwhile, so the search starts over whatever was freed.
result<bool> room_search::ask_before_growth() {
  if (std::exchange(asked_before_growth_, true)) return false;
  return heap_.ask_before_growth(*pool_, to_bytes(wanted_.units));
}

bool room_search::prefers_growth() const {
  return !pool_->of_graphs() && pool_->memory->prefers_growth(wanted_);
}

/// Not in a graph's pool: its kernels will use the old addresses again. The store of one that
/// retains moves nothing, but finds runs side by side.
result<bool> room_search::rearrange_own() {
  if (pool_->of_capture) return false;
  return accept(pool_->memory->rearrange(wanted_, backing_store::reach::usable, driver_.enter()));
}

/// Not on a captured stream: it cannot wait for work outside its capture.
result<bool> room_search::rearrange_behind_waits() {
  if (pool_->of_graphs() || capturing_ || !heap_.queues_waits()) return false;
  return accept(
      pool_->memory->rearrange(wanted_, backing_store::reach::behind_wait, driver_.enter()));
}

result<bool> room_search::take_pending_behind_waits() {
  if (pool_->of_graphs() || capturing_ || !heap_.queues_waits()) return false;
  return heap_.take_pending_behind_waits(wanted_, *pool_, driver_);
}

result<bool> room_search::grow() { return accept(pool_->memory->grow(wanted_, driver_.enter())); }

/// What a pool that helps out has free: a hit there costs nobody his cache.
result<bool> room_search::fit_in_fallback() {
  if (!is_own_pool()) return false;
  WEIR_TRY_VALUE(found, heap_.fit_in_fallback(wanted_));
  if (found.pool == nullptr) return false;
  pool_ = found.pool;
  account_ = found.account;
  room_ = found.block;
  return true;
}

/// What other pools cache, no more than needed; then what this one has free but not in a shape that
/// serves the request.
result<bool> room_search::release_cached() {
  if (!is_own_pool()) static_cast<void>(heap_.flush_others(own_));
  if (!asks_no_stream()) WEIR_TRY(heap_.sweep_pools(*pool_, driver_));
  WEIR_TRY(prepare_again());
  WEIR_TRY_VALUE(helps, heap_.release_can_help(wanted_, *pool_, driver_));
  if (!helps) return false;
  for (;;) {
    WEIR_TRY_VALUE(grown, grow());
    if (grown) return true;
    WEIR_TRY_VALUE(released, heap_.release_from_others(*pool_, to_bytes(wanted_.units), driver_));
    WEIR_TRY(prepare_again());
    if (released == bytes{}) return release_own();
  }
}

result<bool> room_search::release_own() {
  if (!heap_.may_release(*pool_)) return false;
  WEIR_TRY_VALUE(released, heap_.release_own(*pool_, driver_));
  WEIR_TRY(prepare_again());
  if (released == bytes{}) return false;
  return grow();
}

/// Memory that another thread takes out of a cache is in nobody's reach until the driver has it.
result<bool> room_search::await_releases() {
  if (awaited_releases_ == most_awaited_releases) return false;
  WEIR_TRY_VALUE(waited, heap_.await_releases(*pool_));
  awaited_releases_ += waited ? 1 : 0;
  return waited;
}

/// Not while the stream is captured: its work cannot be waited for.
result<bool> room_search::evict() {
  if (capturing_) return false;
  return heap_.evict(*pool_, to_bytes(wanted_.units), driver_);
}

/// Asked again only while that frees something, and gets somewhere.
result<bool> room_search::ask_callbacks(bytes needed) {
  if (!callbacks_help_) return false;
  WEIR_TRY_VALUE(answer, heap_.ask_callbacks(*pool_, own_, needed));
  if (answer.asked) callbacks_help_ = callback_bound_.allows(answer);
  return answer.claimed || answer.freed;
}

result<bool> room_search::wait_for_oldest() {
  if (asks_no_stream()) return false;
  WEIR_TRY_VALUE(helps, heap_.wait_can_help(wanted_, *pool_, driver_));
  if (!helps) return false;
  return heap_.wait_for_oldest(*pool_, waits_, driver_);
}

}}}  // namespace weir::v0::heap
