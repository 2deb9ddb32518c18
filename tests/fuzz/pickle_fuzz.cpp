// SPDX-License-Identifier: Apache-2.0
// Any bytes as a PyTorch snapshot: refused, or a sound recording.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "formats/torch_snapshot.hpp"
#include "fuzz_input.hpp"
#include "sound_recording.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weir;
  const std::string_view bytes{reinterpret_cast<const char*>(data), size};
  const formats::input_limits small{.bytes = 1 << 24, .events = 1 << 14};
  const auto read = formats::read_torch_snapshot(bytes, "fuzz", small);
  if (!read) {
    fuzz::require(!read.error().detail().empty(), "no reason");
    return 0;
  }
  fuzz::require(read->events.size() <= small.events, "more events than allowed");
  fuzz::require_sound(*read);
  fuzz::require_exportable(*read);
  return 0;
}
