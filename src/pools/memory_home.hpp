// SPDX-License-Identifier: Apache-2.0
// What a memory_owner needs of the pool that its memory is of.
#pragma once

#include <cstdint>

#include "weir/base/bytes.hpp"
#include "weir/base/result.hpp"
#include "weir/device/stream.hpp"

namespace weir { inline namespace v0 { namespace pools {

/// The largest alignment of a request to a pool: the granularity of physical memory.
inline constexpr bytes largest_alignment{std::uint64_t{2} << 20};

/// The part of a pool that its handles and owners share. Any thread.
class memory_home {
 public:
  /// Frees what an owner owns, on the stream it was allocated for or on `stream` if there is one.
  /// On failure it stays allocated.
  virtual result<void> free_owned(void* memory, bytes size, const stream_ref* stream) = 0;
  /// Work queued on `stream` until the memory is freed may use it.
  virtual result<void> record_stream(void* memory, const stream_ref& stream) = 0;

 protected:
  memory_home() = default;
  ~memory_home() = default;
};

/// Reports a free that cannot return its failure, with the address and the size. any_size: the one
/// that the failure names, if it does.
void report_failed_free(const result<void>& outcome, const void* memory, bytes size) noexcept;

}}}  // namespace weir::v0::pools
