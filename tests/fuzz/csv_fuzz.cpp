// SPDX-License-Identifier: Apache-2.0
// Any text as a CSV trace, peaks, or compressed data: refused, or a sound recording.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "formats/csv_trace.hpp"
#include "formats/open.hpp"
#include "fuzz_input.hpp"
#include "sound_recording.hpp"

namespace {

using namespace weir;
using fuzz::require;

constexpr formats::input_limits small{.bytes = 1 << 22, .events = 1 << 10};

void check(const result<recording>& read) {
  if (!read) return require(!read.error().detail().empty(), "no reason");
  require(read->events.size() <= small.events, "more events than allowed");
  fuzz::require_sound(*read);
  fuzz::require_exportable(*read);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text{reinterpret_cast<const char*>(data), size};
  check(formats::read_csv_trace(text, "fuzz", small));
  check(formats::read_recording_from(text, "fuzz", small));
  const auto peaks = formats::read_csv_peaks(text, "fuzz", "x");
  if (peaks) require(peaks->empty() || peaks->size() == 2, "peaks of one policy");
  return 0;
}
