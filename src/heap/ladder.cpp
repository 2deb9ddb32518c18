// The rungs between a request that the thread's cache could not serve and out of memory.
#include "heap/ladder.hpp"

#include <exception>
#include <utility>
#include <vector>

#include "order/mutation.hpp"

namespace weir::inline v0::heap {
namespace {

/// Set while this thread runs callbacks: requests from inside do not call them again.
constinit thread_local bool in_callbacks = false;

}  // namespace

result<block_index> ladder::find_room() {
  for (;;) {
    WEIR_TRY(get_ready());
    take_in_own();
    if (fit()) return room_;
    WEIR_TRY_VALUE(rerouted, notice_capture());
    if (rerouted) continue;
    WEIR_TRY_VALUE(retired, retire());
    if (retired && fit()) return room_;
    if (hand_back_own() && fit()) return room_;
    if (hand_back_others() && fit()) return room_;
    WEIR_TRY_VALUE(preferred, grow_if_preferred());
    if (preferred) return room_;
    WEIR_TRY_VALUE(rearranged, rearrange_own());
    if (rearranged) return room_;
    WEIR_TRY_VALUE(behind_waits, rearrange_behind_waits());
    if (behind_waits) return room_;
    WEIR_TRY_VALUE(taken, take_pending_behind_waits());
    if (taken && fit()) return room_;
    WEIR_TRY_VALUE(grown, grow());
    if (grown) return room_;
    WEIR_TRY_VALUE(released, release_elsewhere());
    if (released) return room_;
    WEIR_TRY_VALUE(released_own, release_own());
    if (released_own) return room_;
    WEIR_TRY_VALUE(helped, ask_callbacks());
    if (helped) continue;
    WEIR_TRY_VALUE(waited, wait_for_a_stream());
    if (waited) continue;
    return no_block;
  }
}

result<block_index> ladder::find_room_at(std::uint64_t address) {
  WEIR_TRY(get_ready());
  return from_->memory->fit_at(address, wanted_);
}

/// What must not fail once a block is found: its account, its place in the table, its record.
result<void> ladder::get_ready() {
  if (!from_->takes_requests) {
    return error{.code = errc::invalid_argument,
                 .detail = "a graph's memory serves requests during its capture only"};
  }
  WEIR_TRY_VALUE(number, heap_.accounts_.number_of(from_->id, current_tag()));
  account_ = number;
  WEIR_TRY(heap_.make_table_room());
  if (!heap_.blocks_.prepare(4)) return no_host_memory();
  if (from_->memory == nullptr) {
    WEIR_TRY(driver_.entered());
    const store_traits traits{.policy = heap_.policy_,
                              .exportable = heap_.exportable_ || from_->exportable,
                              .one_slot_handles = from_->exportable,
                              .moves = !from_->retains};
    WEIR_TRY_VALUE(made, make_store(heap_.core_, from_->id, traits, driver_.enter()));
    from_->memory = std::move(made);
  }
  return {};
}

/// The thread's own large block, and what others freed for it.
void ladder::take_in_own() {
  if (own_ == nullptr) return;
  if (own_->has_remote()) own_->take_in_remote(heap_.blocks_);
  if (own_->unplaced != no_block) static_cast<void>(heap_.hand_back_unplaced(*own_));
  if (own_->large != no_block) static_cast<void>(heap_.hand_back_large(*own_));
}

bool ladder::fit() {
  room_ = from_->memory->fit(wanted_);
  return room_ != no_block;
}

result<void> ladder::know_capture(capture_status status) {
  capture_known_ = true;
  capturing_ = status != capture_status::none;
  if (status != capture_status::active || pool_is_fixed_) return {};
  if (mutated(mutation::capture_served_by_the_heap)) return {};
  WEIR_TRY_VALUE(chosen, heap_.capture_pool(stream_, wanted_.stream, driver_));
  from_ = chosen;
  own_ = from_->id == pool_id{} ? own_ : nullptr;
  return {};
}

/// Before the first driver call: a capture that nobody declared gets a pool of its own.
result<bool> ladder::notice_capture() {
  if (capture_known_) return false;
  WEIR_TRY(driver_.entered());
  WEIR_TRY_VALUE(now, stream_.capture(driver_.enter()));
  const pool_state* const before = from_;
  WEIR_TRY(know_capture(now.status));
  return from_ != before;
}

/// Epochs that have completed, of streams that are asked now as well: an idle stream's memory is
/// everybody's at once, and a busy one's at the next look.
result<bool> ladder::retire() {
  if (asks_nobody()) return false;
  WEIR_TRY_VALUE(grew, heap_.poll_streams(driver_, wanted_.stream));
  if (heap_.pools_to_sweep_) heap_.sweep_pools(driver_);
  return grew;
}

bool ladder::hand_back_own() {
  return from_->id == pool_id{} && own_ != nullptr && heap_.hand_back(*own_);
}

bool ladder::hand_back_others() {
  if (from_->id != pool_id{}) return false;
  const thread_caches::stop stopped{heap_.caches_, own_};
  return heap_.hand_back_all();
}

/// A driver without memory for new handles or page tables is no room, as a full arena is: what
/// follows may serve the request all the same.
result<bool> ladder::found(result<block_index> room) {
  if (!room && room.code() == errc::out_of_memory) return false;
  if (!room) return std::move(room).error();
  room_ = *room;
  return room_ != no_block;
}

result<bool> ladder::grow_if_preferred() {
  if (from_->of_graphs() || !from_->memory->prefers_growth(wanted_)) return false;
  return grow();
}

/// Not in a graph's pool: its kernels will use the old addresses again. The store of one that
/// retains moves nothing, but finds runs side by side.
result<bool> ladder::rearrange_own() {
  if (from_->of_capture) return false;
  return found(from_->memory->rearrange(wanted_, store::reach::usable, driver_.enter()));
}

/// Not on a captured stream: it cannot wait for work outside its capture.
result<bool> ladder::rearrange_behind_waits() {
  if (from_->of_graphs() || capturing_ || !heap_.core_.queues_waits) return false;
  return found(from_->memory->rearrange(wanted_, store::reach::behind_wait, driver_.enter()));
}

result<bool> ladder::take_pending_behind_waits() {
  if (from_->of_graphs() || capturing_ || heap_.pending_.empty()) return false;
  if (!heap_.core_.queues_waits) return false;
  // The smallest that is large enough.
  const auto& waiting = heap_.pending_.all();
  std::size_t best = waiting.size();
  for (std::size_t i = 0; i < waiting.size(); ++i) {
    const block& candidate = heap_.blocks_[waiting[i].which];
    const bool fits = candidate.units >= wanted_.units + wanted_.alignment - 1 &&
                      &heap_.pool_of(candidate) == from_;
    if (!fits) continue;
    if (best == waiting.size() || candidate.units < heap_.blocks_[waiting[best].which].units)
      best = i;
  }
  if (best == waiting.size()) return false;
  const pending::waiting& taken = waiting[best];
  if (!mutated(mutation::pending_taken_without_waits)) {
    WEIR_TRY_VALUE(waits, heap_.core_.wait(wanted_.stream, taken.freed, driver_.enter()));
    if (!waits) return false;
    for (const stamp& each : taken.others) {
      WEIR_TRY_VALUE(recorded, heap_.core_.wait_for_stream(wanted_.stream, each, driver_.enter()));
      if (!recorded) return false;
    }
  }
  // Behind the waits the stream may use it as if it had freed it itself.
  const block_index which = heap_.pending_.take(best).which;
  const block& what = heap_.blocks_[which];
  heap_.accounts_.waited(what.account, what.size() - what.out.waste, what.size());
  heap_.give_back(which, heap_.order_.now(wanted_.stream));
  return true;
}

result<bool> ladder::grow() { return found(from_->memory->grow(wanted_, driver_.enter())); }

/// What other pools cache, no more than needed.
result<bool> ladder::release_elsewhere() {
  if (from_->id != pool_id{}) {
    const thread_caches::stop stopped{heap_.caches_, own_};
    static_cast<void>(heap_.hand_back_all());
  }
  if (!asks_nobody()) heap_.sweep_pools(driver_);
  WEIR_TRY_VALUE(grown, grow());
  if (grown) return true;
  for (std::size_t i = 0; i < heap_.pools_.size(); ++i) {
    pool_state& other = *heap_.pools_[i];
    if (&other == from_ || other.memory == nullptr || !heap_.may_release(other)) continue;
    for (;;) {
      WEIR_TRY_VALUE(went, other.memory->release(to_bytes(wanted_.units), driver_.enter()));
      if (went == bytes{}) break;
      WEIR_TRY_VALUE(enough, grow());
      if (enough) return true;
    }
  }
  return false;
}

/// What this pool has free but not in a shape that serves the request.
result<bool> ladder::release_own() {
  if (!heap_.may_release(*from_)) return false;
  WEIR_TRY_VALUE(went, from_->memory->release(bytes::max(), driver_.enter()));
  if (went == bytes{}) return false;
  return grow();
}

/// The user's callbacks, without the lock. Asked again only while that frees something: memory of
/// this allocator, or of the device.
result<bool> ladder::ask_callbacks() {
  if (in_callbacks || heap_.callbacks_.empty() || !callbacks_helped_) return false;
  std::vector<std::shared_ptr<out_of_memory_callback>> all;
  all.reserve(heap_.callbacks_.size());
  for (const auto& [key, each] : heap_.callbacks_) all.push_back(each);
  const std::uint64_t frees_before = heap_.accounts_.total().frees;
  const auto free_before = heap_.core_.device.memory_info();
  ++from_->holders;  // so that it outlives the unlocked time
  in_callbacks = true;
  lock_.unlock();
  bool helped = false;
  std::exception_ptr thrown;
  try {
    for (const auto& each : all) helped = (*each)(to_bytes(wanted_.units)) || helped;
  } catch (...) {
    thrown = std::current_exception();
  }
  lock_.lock();
  in_callbacks = false;
  --from_->holders;
  if (thrown) std::rethrow_exception(thrown);
  WEIR_TRY(heap_.usable());
  {
    const thread_caches::stop stopped{heap_.caches_, own_};
    heap_.settle_caches();
  }
  const auto free_after = heap_.core_.device.memory_info();
  callbacks_helped_ = heap_.accounts_.total().frees != frees_before ||
                      (free_before && free_after && free_after->free > free_before->free);
  return helped || callbacks_helped_;
}

/// The oldest work that memory is bound to; the whole device where a stream cannot be asked any
/// more. Not while anybody captures: that would break it.
result<bool> ladder::wait_for_a_stream() {
  if (capturing_) return false;
  WEIR_TRY_VALUE(somebody, heap_.any_capturing(driver_));
  if (somebody) return false;
  WEIR_TRY_VALUE(grew, heap_.poll_streams(driver_, nobody));
  if (grew) return true;
  WEIR_TRY_VALUE(passed, heap_.order_.synchronize_oldest(driver_.enter()));
  if (passed) {
    static_cast<void>(heap_.retire_all());
    return true;
  }
  return heap_.order_.any_behind() ? heap_.wait_for_device(driver_) : false;
}

}  // namespace weir::inline v0::heap
