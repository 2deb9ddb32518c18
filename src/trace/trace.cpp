// Names of what happens in a recording.
#include "weir/trace/trace.hpp"

namespace weir::inline v0 {

std::string_view name(trace_kind kind) noexcept {
  switch (kind) {
    case trace_kind::allocate:
      return "allocate";
    case trace_kind::deallocate:
      return "deallocate";
    case trace_kind::reusable:
      return "reusable";
    case trace_kind::record_stream:
      return "record_stream";
    case trace_kind::wait:
      return "wait";
    case trace_kind::reserve:
      return "reserve";
    case trace_kind::move:
      return "move";
    case trace_kind::release:
      return "release";
    case trace_kind::out_of_memory:
      return "out_of_memory";
    case trace_kind::capture_begin:
      return "capture_begin";
    case trace_kind::capture_end:
      return "capture_end";
    case trace_kind::pool_created:
      return "pool_created";
    case trace_kind::pool_released:
      return "pool_released";
    case trace_kind::limit:
      return "limit";
    case trace_kind::marker:
      return "marker";
  }
  return {};
}

}  // namespace weir::inline v0
