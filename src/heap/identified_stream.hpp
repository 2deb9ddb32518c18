// SPDX-License-Identifier: Apache-2.0
// Streams as the slow paths of a heap know them: by their number.
#pragma once

#include "heap/heap_core.hpp"
#include "heap/thread_cache.hpp"
#include "heap/vocabulary.hpp"
#include "order/driver_access.hpp"
#include "weir/base/ids.hpp"
#include "weir/base/result.hpp"
#include "weir/device/stream.hpp"

namespace weir { inline namespace v0 { namespace heap {

/// A stream that a call names, and its number.
struct identified_stream {
  stream_ref ref;
  stream_id id{};  // 0: it cannot be asked now
};

/// The number of a stream of the heap's device. bad_stream: it is of another device, or gone.
/// `cache` is the calling thread's and remembers its per-thread stream; null: it has none. Without
/// the heap's lock. May ask the driver.
[[nodiscard]] result<identified_stream> identify(const heap_core& core, const stream_ref& stream,
                                                 thread_cache* cache);
/// The stream's slot, made at first sight. With the heap's lock.
[[nodiscard]] result<stream_slot> slot_of(heap_core& core, const identified_stream& stream,
                                          order::driver_access& driver);

}}}  // namespace weir::v0::heap
