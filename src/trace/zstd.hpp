// SPDX-License-Identifier: Apache-2.0
// libzstd, found at run time, so that the library needs none to be built or to run.
#pragma once

#include <cstddef>

namespace weir { inline namespace v0 { namespace trace {

/// The four calls of libzstd that traces need; their signatures have been stable since 1.0.
struct zstd {
  std::size_t (*compress)(void* to, std::size_t room, const void* from, std::size_t size,
                          int level) = nullptr;
  std::size_t (*decompress)(void* to, std::size_t room, const void* from,
                            std::size_t size) = nullptr;
  std::size_t (*bound)(std::size_t size) = nullptr;
  unsigned (*is_error)(std::size_t code) = nullptr;
};

/// libzstd.so.1, loaded at the first call and kept; null if this machine has none. Any thread.
[[nodiscard]] const zstd* find_zstd() noexcept;

}}}  // namespace weir::v0::trace
