// SPDX-License-Identifier: Apache-2.0
// Recordings as text.
#include "weir/trace/trace.hpp"

#include <array>
#include <cinttypes>
#include <cstdio>

#include "base/hexadecimal.hpp"

namespace weir { inline namespace v0 {

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
    case trace_kind::suspended:
      return "suspended";
    case trace_kind::resumed:
      return "resumed";
  }
  return {};
}

std::string to_string(trace_kind kind) {
  const std::string_view known = name(kind);
  if (!known.empty()) return std::string{known};
  return "kind " + std::to_string(static_cast<unsigned>(kind));
}

std::string to_string(const trace_event& event) {
  std::array<char, 32> number{};
  std::snprintf(number.data(), number.size(), "%" PRIu64 ".%09" PRIu64 " s ",
                event.time / 1'000'000'000, event.time % 1'000'000'000);
  std::string text = number.data() + to_string(event.kind);
  const auto add_address = [&](const char* label, std::uint64_t address) {
    if (address != 0) text += label + detail::hexadecimal(address);
  };
  const auto add_number = [&](const char* label, std::uint64_t value) {
    if (value != 0) text += label + std::to_string(value);
  };
  const bool is_move = event.kind == trace_kind::move;
  add_address(" ", event.address);
  add_address(" from ", is_move ? event.extra : 0);
  add_number(" size ", event.size);
  add_number(" rounded ", is_move ? 0 : event.extra);
  add_number(" stream ", event.stream);
  switch (event.kind) {
    case trace_kind::wait:
      add_number(" for stream ", event.other);
      break;
    case trace_kind::marker:
      text += " text " + std::to_string(event.other);
      break;
    default:
      add_number(" stack ", event.other);
      break;
  }
  add_number(" thread ", event.thread);
  add_number(" tag ", event.tag);
  add_number(" pool ", event.pool);
  return text;
}

std::string to_string(const recorded_peak& peak) {
  return peak.policy + ": " + to_string(peak.requested) + " requested, " +
         to_string(peak.reserved) + " reserved";
}

std::string to_string(const trace_damage& damage) {
  return "damaged at byte " + std::to_string(damage.offset) + ": " + damage.reason;
}

std::string to_string(const recording& recording) {
  std::string text = recording.program.empty() ? std::string{"recording"} : recording.program;
  text += ": " + std::to_string(recording.events.size()) + " events, " +
          std::to_string(recording.streams.size()) + " streams, " +
          std::to_string(recording.threads.size()) + " threads";
  if (recording.dropped != 0) text += ", " + std::to_string(recording.dropped) + " dropped";
  if (recording.damage) text += ", " + to_string(*recording.damage);
  return text;
}

}}  // namespace weir::v0
