// SPDX-License-Identifier: Apache-2.0
// weir::recorder: writes the memory events of an allocator to a .weirtrace file as they happen.
//
//   auto recorder = weir::recorder::start("run.weirtrace").value();
//   auto registration = memory.add_observer(*recorder).value();
//   launch(memory, stream);
//   registration.close();
//   recorder->close().value();
//
// An unmodified program is recorded if the option `record` or the environment variable WEIR_RECORD
// names a file.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "weir/base/bytes.hpp"
#include "weir/base/export.hpp"
#include "weir/base/print.hpp"
#include "weir/base/result.hpp"
#include "weir/observe/events.hpp"
#include "weir/observe/tag.hpp"

namespace weir { inline namespace v0 {

namespace trace {
class event_collector;
}

/// The choices of a recorder.
struct recorder_options {
  /// How many unwritten events a thread can have, 64 bytes each; 16 to 2^24, rounded up to a power
  /// of two.
  std::uint32_t ring_events = std::uint32_t{1} << 15;
  /// Whether an event is dropped and counted if its thread has that many; otherwise the thread
  /// waits for the writer.
  bool drop_when_full = false;
  /// Whether allocations and frees are recorded with their call stacks; costs some microseconds
  /// each.
  bool stacks = false;
  /// zstd's level, 1 to 19; 0 stores uncompressed.
  int level = 3;
  /// How often events are written to the file: the most that a crash loses.
  std::chrono::milliseconds flush_every{200};
  std::string program{};    ///< for titles; the process's name if empty
  std::string device{};     ///< the device's name, for titles
  bytes device_capacity{};  ///< the device's memory; 0 if unknown
};

/// The counters of a recorder.
struct recorder_stats {
  std::uint64_t written = 0;  ///< events in the file
  std::uint64_t dropped = 0;  ///< events lost because a ring was full
  std::uint64_t threads = 0;  ///< threads that caused events
  bytes file_size{};          ///< written so far
};

/// An observer that writes the events of one allocator to a file, on a background thread.
///
/// Every event that was received before close() is in the file, in a possible order, unless it was
/// dropped (drop_when_full) or the disk was full. The file gets its name at close(); until then,
/// and after a crash, it is a readable trace named `<path>.<process>.part`. If the file cannot be
/// written, recording ends; the error goes to the error handler and is returned by close(), and an
/// existing file of that name is unchanged.
///
/// If the allocator is already in use, the recording starts with what it holds: reservations, and
/// live blocks, which have no stack.
///
/// Use it for one allocator only, because pools and addresses are identified by their numbers. Must
/// outlive its registration. Thread-safe, except that no other call may run during the destructor.
/// In a forked child it does nothing. An event costs its thread some ten nanoseconds.
class WEIR_API recorder final : public event_sink {
 public:
  /// Starts a recording. invalid_argument: an option is out of range; system: the file cannot be
  /// created; no_host_memory: the host is out of memory, and there is no file.
  [[nodiscard]] static result<std::unique_ptr<recorder>> start(
      const std::string& path, const recorder_options& options = {});
  /// As close(); failures go to the error handler.
  ~recorder() override;
  recorder(const recorder&) = delete;
  recorder& operator=(const recorder&) = delete;

  /// As event_sink says; the recorder wants existing memory, too.
  void on_event(const memory_event& event) noexcept override;
  [[nodiscard]] bool wants_existing() const noexcept override { return true; }
  void on_existing(const memory_event& event) noexcept override;
  /// Adds a remark between the events; steps of a program are separated by markers.
  void marker(std::string_view text) noexcept;

  /// Waits until everything received so far is in the file.
  result<void> flush();
  /// Ends the recording; later events are ignored. Idempotent.
  result<void> close();
  /// The counters so far.
  [[nodiscard]] recorder_stats stats() const;

 private:
  explicit recorder(std::unique_ptr<trace::event_collector> state) noexcept;

  std::unique_ptr<trace::event_collector> state_;
};

/// "written 1200, dropped 0, threads 4, file_size 18 KiB".
[[nodiscard]] WEIR_API std::string to_string(const recorder_stats& stats);

}}  // namespace weir::v0
