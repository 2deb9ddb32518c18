// SPDX-License-Identifier: Apache-2.0
// Patterns in the blocks of a replay: written in stream order, checked before the free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "replay/script.hpp"
#include "weir/device/device.hpp"
#include "weir/device/event.hpp"
#include "weir/device/stream.hpp"

namespace weir { inline namespace v0 { namespace replay {

/// Checks whether blocks keep what their streams wrote there. A pattern that is not there any more
/// was overwritten by work on another block: two blocks had the same bytes at the same time, or one
/// was handed out before its user's work was done.
///
/// Every block is filled at its allocation and eight words of it are copied out, on the freeing or
/// recorded stream, later. Nothing waits until the copies fill a buffer. One thread at a time; the
/// errors of calls are thrown as weir::failure.
class patterns {
 public:
  /// `whole`: fill all of each block instead of the words that are checked; for real devices,
  /// which do that in no time. `calls` outlives it.
  patterns(device gpu, const driver::table& calls, bool whole, std::size_t blocks);
  ~patterns();
  patterns(const patterns&) = delete;
  patterns& operator=(const patterns&) = delete;

  void write(const step& request, void* block, const stream_ref& stream);
  /// Queues a copy of the block's words on `stream`, behind the write.
  void queue_check(const step& request, void* block, const stream_ref& stream);
  /// Waits for the copies; how many blocks were not as written, so far.
  [[nodiscard]] std::uint64_t mismatches();

 private:
  static constexpr std::size_t words = 8;
  static constexpr std::size_t most_checks = 4096;  // before the caller waits for them

  struct shape {
    std::size_t rows = 0;
    std::size_t pitch = 0;
  };
  [[nodiscard]] static shape shape_of(std::uint64_t size);
  void order(const stream_ref& first, const stream_ref& second, const context_scope& bound);
  void finish_checks();

  struct expectation {
    std::uint32_t value = 0;
    std::size_t rows = 0;
  };

  device gpu_;
  const driver::table& calls_;
  bool whole_;
  std::uint32_t* copies_ = nullptr;           // pinned; `words` for each check
  std::vector<expectation> expected_;         // one for each check under way
  std::vector<stream_ref> checking_streams_;  // with checks under way
  std::vector<stream_ref> writing_streams_;
  std::vector<std::uint32_t> writer_;  // by block: index into writing_streams_
  event event_;
  std::uint64_t mismatches_ = 0;
};

}}}  // namespace weir::v0::replay
