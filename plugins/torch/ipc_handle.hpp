// The string by which another process imports a block's memory.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "weir/base/result.hpp"

namespace weir_torch {

/// Names memory of another process: its server's socket, a token, and the sizes of the physical
/// handles.
///
/// Serialized as bytes that begin with a magic and a version, so that a handle of torch's own
/// allocator or of a later weir is refused with a clear error. The same block gives the same bytes
/// as long as it lives, so they can be the key of a cache.
struct ipc_handle {
  static constexpr std::uint8_t version = 1;
  static constexpr std::size_t max_handles = 4096;

  std::array<std::uint8_t, 16> token{};  ///< random; who knows it may fetch
  std::string socket;                    ///< path that the exporter listens on
  std::vector<std::uint64_t> sizes;      ///< of the physical handles, one behind the other

  [[nodiscard]] std::string serialize() const;
  /// invalid_argument: not such a string; bad_version: of a later version.
  [[nodiscard]] static weir::result<ipc_handle> parse(std::string_view text);

  friend bool operator==(const ipc_handle&, const ipc_handle&) = default;
};

}  // namespace weir_torch
