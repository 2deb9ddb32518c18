// SPDX-License-Identifier: Apache-2.0
// The state of a recorder: the rings of the threads, and the thread that drains them.
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
#include "trace/trace_writer.hpp"
#include "weir/trace/recorder.hpp"

namespace weir { inline namespace v0 { namespace trace {

/// The calling thread's ring of the collector that it wrote to last.
struct local_ring {
  std::uint64_t collector = 0;  ///< its serial number, which no other one gets; 0 is none
  trace::ring* ring = nullptr;
};
// Initial-exec: one load from a register's offset, also inside the shared library.
extern constinit thread_local local_ring last_ring __attribute__((tls_model("initial-exec")));

/// Collects the events of a recording in progress: each thread adds them to a ring of its own, and
/// one worker thread drains the rings, merges their records and writes them to the file.
///
/// The mutex guards the list of rings, the texts and the state that flush() and stop() wait for; it
/// is never held while records are merged or written, so a thread that waits for room in its ring,
/// which may hold an allocator's lock, never waits for itself.
class event_collector {
 public:
  event_collector(trace_writer writer, recorder_options options);
  ~event_collector();

  [[nodiscard]] result<void> begin();
  /// `caller` is the return address with which the event's stack begins; null: it has none.
  void add(const memory_event& event, const void* caller) noexcept;
  void marker(std::string_view text) noexcept;
  result<void> flush();
  result<void> stop();
  [[nodiscard]] recorder_stats stats() const;
  /// In a child of the process that began it: there is no thread to drain rings.
  [[nodiscard]] bool is_forked() const noexcept;

  /// Counts forks of this process; see is_forked().
  static void prepare() noexcept;

 private:
  [[nodiscard]] ring* own_ring() noexcept;
  [[nodiscard]] ring* open_ring() noexcept;
  /// Writes a record that `fill` completes.
  template <class Fill>
  void put(ring& target, const Fill& fill) noexcept;
  template <class Fill>
  void put_shared(const Fill& fill) noexcept;
  [[nodiscard]] std::shared_ptr<ring> add_ring();
  [[nodiscard]] bool wait_for_room(ring& target) noexcept;
  void wake() noexcept;

  // --- The worker -----------------------------------------------------------------------------
  void run();
  [[nodiscard]] result<void> drain_rings(bool all);
  void fail(const error& reason) noexcept;

  const recorder_options options_;
  const std::uint64_t serial_;
  const std::uint32_t forks_at_start_;
  std::atomic<bool> recording_{true};

  mutable std::mutex mutex_;
  std::condition_variable wake_up_;
  std::condition_variable done_;
  std::vector<std::shared_ptr<ring>> rings_;
  std::vector<std::string> texts_;  // not yet in the file
  std::uint32_t text_count_ = 0;
  std::uint16_t ring_count_ = 0;
  std::mutex shared_ring_mutex_;       // before mutex_
  std::shared_ptr<ring> shared_ring_;  // of threads that are past their end
  bool woken_ = false;
  bool stopping_ = false;
  std::uint64_t flushes_requested_ = 0;
  std::uint64_t flushes_done_ = 0;
  std::uint64_t dropped_before_ = 0;  // by rings that were removed
  recorder_stats stats_;
  result<void> status_;
  bool ended_ = false;

  stack_table stacks_;
  std::thread worker_;
  std::mutex join_mutex_;

  // Of the worker alone.
  trace_writer writer_;
  merger merger_;
  std::vector<record> merged_;
  std::size_t stacks_written_ = 0;
};

}}}  // namespace weir::v0::trace
