// What one process tells another so that it can fetch a block's memory: a handle string.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "weir/base/result.hpp"

namespace weir_torch {

/// Names memory of another process: where to ask, what to say, and what comes.
///
/// Travels as bytes that begin with a mark and a version, so that a handle of torch's own allocator
/// or of a later weir is refused with a clear error. The same block gives the same bytes as long as
/// it lives, so they can be the key of a cache.
struct ipc_handle {
  static constexpr std::uint8_t version = 1;
  static constexpr std::size_t most_pieces = 4096;

  std::array<std::uint8_t, 16> ticket{};  ///< random; who knows it may fetch
  std::string socket;                     ///< where the exporter listens
  std::vector<std::uint64_t> pieces;      ///< sizes of the physical handles, one behind the other

  [[nodiscard]] std::string write() const;
  /// invalid_argument: not such a string; bad_version: of a later version.
  [[nodiscard]] static weir::result<ipc_handle> read(std::string_view text);

  friend bool operator==(const ipc_handle&, const ipc_handle&) = default;
};

}  // namespace weir_torch
