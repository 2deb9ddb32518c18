// SPDX-License-Identifier: Apache-2.0
// The recorded traces that the tests of the component replay play.
#pragma once

#include <initializer_list>
#include <string>

#include "replay/script.hpp"
#include "weir/trace/trace.hpp"

namespace weir::replay {

/// traces/<name>.weirtrace.
[[nodiscard]] const recording& recorded(const std::string& name);

/// A recording of these events; streams, threads, pools and tags are as many as they name.
[[nodiscard]] recording recording_of(std::initializer_list<trace_event> events);

inline constexpr std::uint64_t millisecond = 1'000'000;  // in the time of events

/// Events at one nanosecond after the other.
[[nodiscard]] trace_event allocate(std::uint64_t time, std::uint64_t address, std::uint64_t size,
                                   std::uint32_t stream = 0);
[[nodiscard]] trace_event event_at(std::uint64_t time, trace_kind kind, std::uint64_t address,
                                   std::uint32_t stream = 0);

}  // namespace weir::replay
