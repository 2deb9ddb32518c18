// Patterns in the blocks of a replay: written in stream order, looked for before the free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "replay/script.hpp"
#include "weir/device/device.hpp"
#include "weir/device/event.hpp"
#include "weir/device/stream.hpp"

namespace weir::inline v0::replay {

/// Shows whether blocks keep what their streams wrote there. A pattern that is not there any more
/// was overwritten by work on another block: two blocks had the same bytes at the same time, or one
/// was handed out before its user's work was done.
///
/// Every block is filled at its allocation and eight words of it are copied out, on the freeing or
/// recorded stream, later. Nothing waits until the copies fill a buffer. One thread at a time; the
/// errors of calls are thrown as weir::failure.
class patterns {
 public:
  /// `whole`: fill all of each block instead of the words that are looked at; for real devices,
  /// which do that in no time. `calls` outlives it.
  patterns(device gpu, const driver::table& calls, bool whole, std::size_t blocks);
  ~patterns();
  patterns(const patterns&) = delete;
  patterns& operator=(const patterns&) = delete;

  void write(const step& now, void* block, const stream_ref& on);
  /// Queues a look at `block` on `on`, behind the write.
  void look(const step& now, void* block, const stream_ref& on);
  /// Waits for the looks; how many blocks were not as written, so far.
  [[nodiscard]] std::uint64_t mismatches();

 private:
  static constexpr std::size_t words = 8;
  static constexpr std::size_t room = 4096;  // looks before somebody waits

  struct shape {
    std::size_t rows = 0;
    std::size_t pitch = 0;
  };
  [[nodiscard]] static shape shape_of(std::uint64_t size);
  void order(const stream_ref& first, const stream_ref& then, const context_scope& bound);
  void settle();

  struct expectation {
    std::uint32_t value = 0;
    std::size_t rows = 0;
  };

  device gpu_;
  const driver::table& calls_;
  bool whole_;
  std::uint32_t* found_ = nullptr;     // pinned; `words` for each look
  std::vector<expectation> expected_;  // one for each look under way
  std::vector<stream_ref> lookers_;    // streams with looks under way
  std::vector<stream_ref> written_on_;
  std::vector<std::uint32_t> writer_;  // by block: index into written_on_
  event mark_;
  std::uint64_t mismatches_ = 0;
};

}  // namespace weir::inline v0::replay
