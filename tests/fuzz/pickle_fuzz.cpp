// Any bytes as a PyTorch snapshot: refused, or a recording that can be exported and read again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "formats/torch_snapshot.hpp"
#include "trace/event_codec.hpp"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes{reinterpret_cast<const char*>(data), size};
  const weir::formats::input_limits small{.bytes = 1 << 24, .events = 1 << 14};
  const auto read = weir::formats::read_torch_snapshot(bytes, "fuzz", small);
  if (!read) {
    require(!read.error().message().empty());
    return 0;
  }
  weir::trace::event_encoder encoder;
  std::string violation;
  static_cast<void>(encoder.encode(read->events, weir::trace::table_sizes::of(*read), violation));
  require(violation.empty());
  require(weir::formats::read_torch_snapshot(weir::formats::torch_snapshot_of(*read), "again")
              .has_value());
  return 0;
}
