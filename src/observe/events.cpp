// SPDX-License-Identifier: Apache-2.0
// Memory events as text.
#include <string>

#include "base/hexadecimal.hpp"
#include "weir/observe/events.hpp"

namespace weir { inline namespace v0 {

event_sink::~event_sink() = default;
bool event_sink::wants_existing() const noexcept { return false; }
void event_sink::on_existing(const memory_event& /*event*/) noexcept {}

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
    case memory_event_kind::suspended:
      return "suspended";
    case memory_event_kind::resumed:
      return "resumed";
  }
  return "unknown";
}

std::string to_string(memory_event_kind kind) { return std::string{name(kind)}; }

std::string to_string(const memory_event& event) {
  std::string text{name(event.kind)};
  const auto add_address = [&](const char* label, std::uint64_t address) {
    if (address != 0) text += label + detail::hexadecimal(address);
  };
  const auto add_number = [&](const char* label, std::uint64_t number) {
    if (number != 0) text += label + std::to_string(number);
  };
  add_address(" ", event.address);
  add_address(" from ", event.other_address);
  add_number(" size ", event.size);
  add_number(" rounded ", event.rounded);
  add_number(" stream ", event.stream.number());
  add_number(" for stream ", event.other.number());
  add_number(" pool ", event.pool.number());
  add_number(" tag ", event.tag);
  add_number(" device ", static_cast<std::uint64_t>(event.device.number()));
  return text;
}

}}  // namespace weir::v0
