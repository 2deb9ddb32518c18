// Names of memory events.
#include "weir/observe/events.hpp"

namespace weir::inline v0 {

event_sink::~event_sink() = default;

std::string_view name(memory_event_kind kind) noexcept {
  switch (kind) {
    case memory_event_kind::allocate:
      return "allocate";
    case memory_event_kind::deallocate:
      return "deallocate";
    case memory_event_kind::record_stream:
      return "record_stream";
    case memory_event_kind::wait:
      return "wait";
    case memory_event_kind::reserve:
      return "reserve";
    case memory_event_kind::move:
      return "move";
    case memory_event_kind::release:
      return "release";
    case memory_event_kind::out_of_memory:
      return "out_of_memory";
    case memory_event_kind::capture_begin:
      return "capture_begin";
    case memory_event_kind::capture_end:
      return "capture_end";
    case memory_event_kind::pool_created:
      return "pool_created";
    case memory_event_kind::pool_released:
      return "pool_released";
    case memory_event_kind::limit:
      return "limit";
  }
  return "unknown";
}

}  // namespace weir::inline v0
