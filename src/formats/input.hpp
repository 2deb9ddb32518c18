// SPDX-License-Identifier: Apache-2.0
// Files as bytes: read whole, inflated if they are compressed, within bounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "weir/base/result.hpp"

namespace weir { inline namespace v0 { namespace formats {

/// The most that a reader accepts, so that a hostile file cannot take all memory.
struct input_limits {
  std::uint64_t bytes = std::uint64_t{8} << 30;     ///< inflated
  std::uint64_t events = std::uint64_t{256} << 20;  ///< of the recording

  /// These, or less for a small file: what inflates a thousandfold is not believed beyond 256 MiB.
  [[nodiscard]] input_limits of_file(std::uint64_t size) const noexcept;
};

/// The whole of a file as it is; of the standard input for "-". not_found, limit_exceeded, or
/// system with the path.
[[nodiscard]] result<std::string> read_file(const std::string& path,
                                            const input_limits& limits = {});

/// The same of a regular file only: a pipe or a device is system, and is not waited for.
[[nodiscard]] result<std::string> read_regular_file(const std::string& path,
                                                    const input_limits& limits = {});

/// The content of gzip or zstd data, also of several pieces one after the other; anything else
/// comes back as it is. system: damaged or cut; limit_exceeded: more than limits.bytes.
[[nodiscard]] result<std::string> decompress(std::string bytes, const input_limits& limits = {});

}}}  // namespace weir::v0::formats
