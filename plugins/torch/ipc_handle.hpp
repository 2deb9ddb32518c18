// SPDX-License-Identifier: Apache-2.0
// The strings by which processes open each other's memory.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weir/base/result.hpp"

namespace weir_torch {

/// The driver's handle of plain memory (cudaIpcMemHandle_t).
using plain_handle = std::array<char, 64>;

/// Physical handles of one size, as descriptors of another process, by their numbers there. Who may
/// trace that process can copy them.
struct process_descriptors {
  std::int32_t process = 0;
  std::uint64_t size = 0;  ///< of each handle
  std::vector<std::int32_t> numbers;

  friend bool operator==(const process_descriptors&, const process_descriptors&) = default;
};

/// Physical handles of any sizes that another process running weir offers: its server's socket, a
/// token, and the sizes of the handles, which lie one behind the other.
struct memory_offer {
  std::array<std::uint8_t, 16> token{};  ///< random; who knows it may fetch
  std::string socket;                    ///< path that the exporter listens on
  std::vector<std::uint64_t> sizes;
  /// Whether processes without weir can be expected to open the memory, by their descriptors.
  bool opens_without_weir = false;

  friend bool operator==(const memory_offer&, const memory_offer&) = default;
};

/// The version of torch's own format that a string begins with. Both are read.
enum class torch_format : std::uint8_t {
  without_kind = 2,  ///< torch 2.12 and earlier
  with_kind = 3,     ///< torch 2.13 and later: says whether descriptors or fabric handles follow
};

/// A handle string, taken apart.
///
/// torch's own allocator writes either `plain` or `descriptors`, and ignores what follows them.
/// weir writes the descriptors, where the handles have one size, and its offer behind them; where
/// they have several, its offer alone, behind a version that torch's own allocator refuses. A weir
/// that opens the string uses the offer, so that it needs no right to trace.
///
/// The same memory gives the same bytes as long as it is shared, so they can be the key of a cache.
struct ipc_handle {
  static constexpr std::size_t max_handles = 65536;

  std::optional<plain_handle> plain;
  std::optional<process_descriptors> descriptors;
  std::optional<memory_offer> offer;

  /// Of an offer, with or without descriptors; or of a plain handle.
  [[nodiscard]] std::string serialize(torch_format format) const;
  /// invalid_argument: not such a string; bad_version: of a later torch or weir; not_supported:
  /// memory that is shared over the fabric.
  [[nodiscard]] static weir::result<ipc_handle> parse(std::string_view text);

  friend bool operator==(const ipc_handle&, const ipc_handle&) = default;
};

}  // namespace weir_torch
