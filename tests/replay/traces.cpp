// SPDX-License-Identifier: Apache-2.0
// Reading and making recordings for tests.
#include "replay/traces.hpp"

#include <algorithm>
#include <map>

#include "formats/open.hpp"

namespace weir::replay {

const recording& recorded(const std::string& name) {
  static std::map<std::string, recording> read;
  const auto known = read.find(name);
  if (known != read.end()) return known->second;
  const std::string path = std::string{WEIR_TRACES_FOLDER} + "/" + name + ".weirtrace";
  return read.emplace(name, formats::read_recording(path).value()).first->second;
}

recording recording_of(std::initializer_list<trace_event> events) {
  recording built;
  built.events = events;
  for (const trace_event& each : events) {
    built.streams.resize(std::max<std::size_t>(built.streams.size(), each.stream + 1));
    built.threads.resize(std::max<std::size_t>(built.threads.size(), each.thread + 1U));
    built.pools.resize(std::max<std::size_t>(built.pools.size(), each.pool + 1U));
    built.tags.resize(std::max<std::size_t>(built.tags.size(), each.tag + 1U));
  }
  return built;
}

trace_event allocate(std::uint64_t time, std::uint64_t address, std::uint64_t size,
                     std::uint32_t stream) {
  trace_event event = event_at(time, trace_kind::allocate, address, stream);
  event.size = size;
  return event;
}

trace_event event_at(std::uint64_t time, trace_kind kind, std::uint64_t address,
                     std::uint32_t stream) {
  trace_event event;
  event.time = time;
  event.kind = kind;
  event.address = address;
  event.stream = stream;
  return event;
}

}  // namespace weir::replay
