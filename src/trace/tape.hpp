// What a recorder is inside: the rings of the threads, and the thread that empties them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "trace/merge.hpp"
#include "trace/ring.hpp"
#include "trace/stacks.hpp"
#include "trace/transcript.hpp"
#include "weir/trace/recorder.hpp"

namespace weir::inline v0::trace {

/// The calling thread's ring of the tape that it wrote to last.
struct local_ring {
  std::uint64_t tape = 0;  ///< its serial number, which no other one gets; 0 is none
  ring* where = nullptr;
};
// Initial-exec: one load from a register's offset, also inside the shared library.
extern constinit thread_local local_ring here __attribute__((tls_model("initial-exec")));

/// A recording in progress.
///
/// The mutex guards the list of rings, the texts and what flush() and stop() wait for; it is never
/// held while records are merged or written, so a thread that waits for room in its ring, which may
/// hold an allocator's lock, never waits for itself.
class tape {
 public:
  tape(transcript into, recorder_options how);
  ~tape();

  [[nodiscard]] result<void> begin();
  void take(const memory_event& what) noexcept;
  void marker(std::string_view text) noexcept;
  result<void> flush();
  result<void> stop();
  [[nodiscard]] recorder_stats stats() const;
  /// In a child of the process that began it: there is no thread to empty rings.
  [[nodiscard]] bool forked() const noexcept;

  /// Counts forks of this process; see forked().
  static void prepare() noexcept;

 private:
  [[nodiscard]] ring* own_ring() noexcept;
  [[nodiscard]] ring* open_ring() noexcept;
  /// Writes a record that `fill` completes.
  template <class Fill>
  void put(ring& into, const Fill& fill) noexcept;
  template <class Fill>
  void put_late(const Fill& fill) noexcept;
  [[nodiscard]] std::shared_ptr<ring> add_ring();
  [[nodiscard]] bool wait_for_room(ring& into) noexcept;
  void wake() noexcept;

  // --- The thread that empties the rings ------------------------------------------------------
  void run();
  [[nodiscard]] result<void> empty_rings(bool all);
  void fail(const error& why) noexcept;

  const recorder_options how_;
  const std::uint64_t serial_;
  const std::uint32_t born_under_;
  std::atomic<bool> recording_{true};

  mutable std::mutex mutex_;
  std::condition_variable wakes_;
  std::condition_variable done_;
  std::vector<std::shared_ptr<ring>> rings_;
  std::vector<std::string> texts_;  // not yet in the file
  std::uint32_t text_count_ = 0;
  std::uint16_t ring_count_ = 0;
  std::mutex late_mutex_;       // before mutex_
  std::shared_ptr<ring> late_;  // of threads that are past their end
  bool woken_ = false;
  bool stopping_ = false;
  std::uint64_t flushes_asked_ = 0;
  std::uint64_t flushes_done_ = 0;
  std::uint64_t dropped_before_ = 0;  // by rings that are gone
  recorder_stats stats_;
  result<void> state_;
  bool ended_ = false;

  stack_table stacks_;
  std::thread worker_;
  std::mutex joining_;

  // Of the worker alone.
  transcript transcript_;
  merger merger_;
  std::vector<record> merged_;
  std::size_t stacks_told_ = 0;
};

}  // namespace weir::inline v0::trace
