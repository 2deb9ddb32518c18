// SPDX-License-Identifier: Apache-2.0
// Any bytes as a .weirtrace: refused, or a sound recording.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "fuzz_input.hpp"
#include "sound_recording.hpp"
#include "trace/frame.hpp"
#include "weir/trace/trace_file.hpp"

namespace {

using weir::fuzz::require;

void check(std::string_view bytes) {
  const weir::trace_limits small{.events = 1 << 14, .bytes = 1 << 22};
  const auto read = weir::read_trace_from(bytes, small);
  if (!read) return require(!read.error().message().empty(), "no reason");
  require(read->events.size() <= small.events, "more events than allowed");
  if (read->damage) {
    require(read->damage->offset <= bytes.size(), "damage behind the end");
    require(!read->damage->reason.empty(), "damage without a reason");
  }
  weir::fuzz::require_sound(*read);
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
