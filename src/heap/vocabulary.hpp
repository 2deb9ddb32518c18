// Names from lower components that the whole heap uses.
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
