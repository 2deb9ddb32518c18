// A stream with its number.
#pragma once

#include "weir/base/ids.hpp"
#include "weir/device/stream.hpp"

namespace weir { inline namespace v0 { namespace heap {

/// A stream as the slow paths know it.
struct identified_stream {
  stream_ref ref;
  stream_id id{};  // 0: it cannot be asked now
};

}}}  // namespace weir::v0::heap
