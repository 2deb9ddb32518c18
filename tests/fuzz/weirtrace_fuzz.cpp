// Any bytes as a .weirtrace: refused, or a recording that keeps its promises and can be written.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "trace/event_codec.hpp"
#include "trace/frame.hpp"
#include "weir/trace/trace_file.hpp"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void check(std::string_view bytes) {
  const auto read = weir::read_trace_from(bytes, {.events = 1 << 16, .bytes = 1 << 22});
  if (!read) {
    require(!read.error().message().empty());
    return;
  }
  if (read->damage) require(read->damage->offset <= bytes.size() && !read->damage->reason.empty());
  weir::trace::event_encoder encoder;
  std::string violation;
  const auto tables = weir::trace::table_sizes::of(*read);
  if (read->events.size() <= weir::trace::most_records) {
    static_cast<void>(encoder.encode(read->events, tables, violation));
    require(violation.empty());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes{reinterpret_cast<const char*>(data), size};
  check(bytes);
  // Checksums keep a fuzzer out; so the same as the content of a frame, whose kind is the first
  // byte.
  if (size < 2) return 0;
  std::string file = weir::trace::file_header();
  const auto kind = static_cast<weir::trace::frame_kind>(1 + data[0] % 3);
  weir::trace::put_frame(file, kind, data[1], bytes.substr(2), nullptr, 0);
  check(file);
  return 0;
}
