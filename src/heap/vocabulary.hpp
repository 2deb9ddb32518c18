// SPDX-License-Identifier: Apache-2.0
// The words of the heap, and the names from lower components that all of it uses.
//
// Words:
//   unit          512 bytes; sizes inside the heap count in units
//   block         a piece of address space with a record: live, cached, pending, a run or a hole
//   run           a free piece in a store: of one stream, or quiescent
//   epoch, stamp  a cut through time, the same for all streams; a stream and an epoch
//   completed     all work queued by the end of an epoch is done
//   quiescent     freed memory whose stamp is completed: any stream may use it
//   pending       freed, but a recorded stream may still use it
//   flush         thread cache → store;  free: user → cache or store;  trim, release: → driver
//   handle, slot  physical memory of the driver; a granule of addresses that one is mapped to
//   hole          addresses that no handle is mapped to as its current place
//   store         where a pool's blocks lie: an arena, or PyTorch's segments (component placement)
//   account       a pool and a tag, as one number; its ledger counts what is live
//   suspended     of a pool: its memory went to the driver, its blocks and addresses stay
//   reason        why a thread's cache must leave its fast path (thread_cache.hpp)
#pragma once

#include "base/host_memory.hpp"
#include "order/pending_frees.hpp"
#include "order/stamp.hpp"
#include "placement/backing_store.hpp"
#include "placement/block.hpp"

namespace weir { inline namespace v0 { namespace heap {

using detail::no_host_memory;

using order::no_stream;
using order::stamp;
using order::stream_slot;

using placement::backing_store;
using placement::block;
using placement::block_index;
using placement::block_kind;
using placement::block_store;
using placement::fetch;
using placement::is_classic;
using placement::make_backing_store;
using placement::most_units;
using placement::no_block;
using placement::placement_context;
using placement::request;
using placement::store_traits;
using placement::to_bytes;
using placement::unit;
using placement::units_for;

}}}  // namespace weir::v0::heap
