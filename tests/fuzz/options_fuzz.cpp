// SPDX-License-Identifier: Apache-2.0
// Any text as a list of options: it is refused and changes nothing, or what it sets reads back
// equal.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "weir/base/bytes.hpp"
#include "weir/base/options.hpp"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text{reinterpret_cast<const char*>(data), size};

  weir::options set;
  if (const auto done = weir::set_all(set, text); !done) {
    require(done.code() == weir::errc::bad_option);
    require(!done.error().message().empty());
    require(set == weir::options{});
  } else {
    weir::options again;
    require(weir::set_all(again, weir::to_string(set)).has_value());
    require(set == again);
  }

  if (const auto parsed = weir::parse_bytes(text)) {
    require(!weir::to_string(*parsed).empty());
    require(weir::parse_bytes(std::to_string(parsed->count())) == parsed);
  }
  return 0;
}
