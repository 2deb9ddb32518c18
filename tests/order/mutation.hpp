// SPDX-License-Identifier: Apache-2.0
// Deliberate mistakes in the ordering code, so that tests can show that they would notice them.
#pragma once

#include <cstdint>

namespace weir { inline namespace v0 { namespace order {

/// Each is one way to get the order of streams wrong. The library knows of none of them:
/// plant_mistakes.py puts them into a copy of its sources.
enum class mutation : std::uint8_t {
  none,
  free_run_is_everybodys,          ///< what a stream freed is quiescent at once
  foreign_run_absorbed,            ///< a free takes in a neighbour that another stream freed
  older_free_counts,               ///< of two frees that become one run the older one's epoch stays
  one_epoch_too_many,              ///< the epoch after the last one passed counts as passed
  epoch_not_marked,                ///< what is stamped with an epoch does not make it close
  others_work_forgotten,           ///< memory leaves its stream when that stream alone is done
  one_stream_not_marked,           ///< one stream counts as idle whenever an epoch is closed
  unmarked_stream_counts_as_idle,  ///< … one that cannot be asked at the moment
  new_stream_holds_up_nothing,     ///< a stream's work counts only from its first request on
  watched_streams_forgotten,       ///< streams that never ask for memory are not marked
  ended_stream_forgotten,       ///< a stream's work is forgotten when it is about to be destroyed
  lost_stream_forgotten,        ///< … or when it is found to be destroyed
  mark_counts_for_open_epoch,   ///< a mark counts for what is freed after it was made
  wait_for_owner_alone,         ///< a wait for the stream of the free, not for the others
  bystanders_wait_for_nothing,  ///< only the stream that asks waits for the others
  hole_forgets_others_work,     ///< a hole is filled when the stream of its free alone is done
  release_forgets_others_work,  ///< the same for memory that goes back to the driver
  hole_filled_early,            ///< a hole is filled while its old mapping may be in use
  hole_forgets_its_use,         ///< a place that a handle left counts as unused
  mapping_not_retained,         ///< a handle that moves is unmapped at its old place at once
  surplus_is_everybodys,        ///< what a moved handle has to spare is quiescent
  no_wait_for_window,           ///< room behind waits, without the waits
  no_wait_for_borrowed,         ///< another stream's run, without the wait
  wait_for_older_epoch,         ///< a wait for the oldest mark instead of the one needed
  bound_memory_released,        ///< memory goes back to the driver while its stream may use it
  recorded_stream_forgotten,    ///< a recorded stream is not waited for
  first_of_recorded_streams,    ///< the first of several recorded streams to pass is enough
  pending_taken_without_waits,  ///< pending memory is handed out without a wait
  stream_of_free_forgotten,     ///< a free counts for the stream of the allocation
  streams_known_by_handle,      ///< a new stream with an old one's handle is taken for the old
  cache_of_any_stream,          ///< a thread's cache serves one stream with another's block
  large_block_of_any_stream,    ///< the same for the one large block
  device_never_waited_for,      ///< the device counts as idle, but nobody waited for it
  graph_memory_let_go_at_end,   ///< a graph's memory is let go when its capture ends
  graph_memory_without_guards,  ///< … or when its graph goes, though a replay is under way
  capture_served_by_the_heap,   ///< a captured stream gets memory that others get again
  guest_goes_home_at_once,      ///< classic: what another stream freed is the segment's again
  count,
};

inline mutation chosen_mutation = mutation::none;
[[nodiscard]] inline bool mutated(mutation broken) noexcept { return chosen_mutation == broken; }

}}}  // namespace weir::v0::order
