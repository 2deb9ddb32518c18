// Reading and making recordings for tests.
#include "replay/traces.hpp"

#include <algorithm>
#include <map>

#include "formats/open.hpp"

namespace weir::replay {

const recording& recorded(const std::string& name) {
  static std::map<std::string, recording> read;
  const auto found = read.find(name);
  if (found != read.end()) return found->second;
  const std::string path = std::string{WEIR_TRACE_FOLDER} + "/" + name + ".trace.gz";
  return read.emplace(name, formats::read_recording(path).value()).first->second;
}

recording made_of(std::initializer_list<trace_event> events) {
  recording made;
  made.events = events;
  for (const trace_event& each : events) {
    made.streams.resize(std::max<std::size_t>(made.streams.size(), each.stream + 1));
    made.threads.resize(std::max<std::size_t>(made.threads.size(), each.thread + 1U));
    made.pools.resize(std::max<std::size_t>(made.pools.size(), each.pool + 1U));
    made.tags.resize(std::max<std::size_t>(made.tags.size(), each.tag + 1U));
  }
  return made;
}

trace_event allocate(std::uint64_t time, std::uint64_t address, std::uint64_t size,
                     std::uint32_t stream) {
  trace_event made = event_at(time, trace_kind::allocate, address, stream);
  made.size = size;
  return made;
}

trace_event event_at(std::uint64_t time, trace_kind kind, std::uint64_t address,
                     std::uint32_t stream) {
  trace_event made;
  made.time = time;
  made.kind = kind;
  made.address = address;
  made.stream = stream;
  return made;
}

}  // namespace weir::replay
