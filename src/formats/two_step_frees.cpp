// SPDX-License-Identifier: Apache-2.0
// Finding the frees of two steps, from the last event back.
#include "formats/two_step_frees.hpp"

#include <unordered_map>

#include "formats/memory_map.hpp"

namespace weir { inline namespace v0 { namespace formats {

two_step_frees::two_step_frees(const recording& recording) {
  if (!has_events(recording, trace_kind::reusable)) return;
  has_both_.resize(recording.events.size());
  enum class step { reusable, both };
  std::unordered_map<std::uint64_t, step> later;  // by address: the steps that were met
  for (std::size_t i = recording.events.size(); i-- != 0;) {
    const trace_event& event = recording.events[i];
    const auto entry = later.find(event.address);
    if (event.kind == trace_kind::reusable) {
      later[event.address] = step::reusable;
    } else if (event.kind == trace_kind::deallocate && entry != later.end()) {
      has_both_[i] = entry->second == step::reusable;
      if (has_both_[i])
        entry->second = step::both;
      else
        later.erase(entry);
    } else if (event.kind == trace_kind::allocate && entry != later.end()) {
      has_both_[i] = entry->second == step::both;
      later.erase(entry);
    }
  }
}

}}}  // namespace weir::v0::formats
