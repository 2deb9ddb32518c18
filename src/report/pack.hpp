// SPDX-License-Identifier: Apache-2.0
// The encoding of numbers and texts in the page: packed, deflated, and written as base64.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace weir { inline namespace v0 { namespace report {

/// Packs numbers and texts one after the other; viewer/js/unpack.js reads them in the same order.
/// Numbers take 7 bits a byte, lowest first. Texts are bytes with their length, so that nothing in
/// them can mean anything to the page.
class packer {
 public:
  packer& number(std::uint64_t value);
  /// Small if close to 0 on either side.
  packer& difference(std::uint64_t value, std::uint64_t previous);
  packer& text(std::string_view value);
  packer& flag(bool value) { return number(value ? 1 : 0); }

  [[nodiscard]] const std::string& packed() const noexcept { return packed_; }

 private:
  std::string packed_;
};

/// Deflate without a header, what browsers call "deflate-raw".
[[nodiscard]] std::string deflated(std::string_view plain);

[[nodiscard]] std::string base64(std::string_view plain);

}}}  // namespace weir::v0::report
