// Any text as a CSV trace, an RMM log, peaks, or compressed data: refused, or a recording that
// keeps its promises.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "formats/chrome_trace.hpp"
#include "formats/csv_trace.hpp"
#include "formats/open.hpp"
#include "formats/rmm_log.hpp"
#include "trace/event_codec.hpp"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void check(const weir::result<weir::recording>& read) {
  if (!read) {
    require(!read.error().message().empty());
    return;
  }
  weir::trace::event_encoder encoder;
  std::string violation;
  static_cast<void>(encoder.encode(read->events, weir::trace::table_sizes::of(*read), violation));
  require(violation.empty());
  require(!weir::formats::chrome_trace_of(*read).empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text{reinterpret_cast<const char*>(data), size};
  check(weir::formats::read_csv_trace(text, "fuzz"));
  check(weir::formats::read_rmm_log(text, "fuzz"));
  check(weir::formats::read_recording_from(text, "fuzz", {.bytes = 1 << 22, .events = 1 << 16}));
  static_cast<void>(weir::formats::read_csv_peaks(text, "fuzz", "x"));
  return 0;
}
