// SPDX-License-Identifier: Apache-2.0
// weir::recorder: writes what happens to an allocator's memory to a .weirtrace, while it happens.
//
//   auto recorder = weir::recorder::start("run.weirtrace").value();
//   auto registration = memory.add_observer(*recorder).value();
//   launch(memory, stream);
//   registration.close();
//   recorder->close().value();
//
// A program that does not do so is recorded where the option `record` names a file, or the
// environment variable WEIR_RECORD.
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

struct recorder_options {
  /// How many events a thread can have waiting to be written, 64 bytes each; 16 to 2^24, rounded up
  /// to a power of two.
  std::uint32_t ring_events = std::uint32_t{1} << 15;
  /// What happens to an event when its thread has that many waiting: it waits for the writer, or is
  /// dropped and counted.
  bool drop_when_full = false;
  /// Whether allocations and frees carry the stack that led to them; some microseconds each.
  bool stacks = false;
  /// zstd's level, 1 to 19; 0 stores uncompressed.
  int level = 3;
  /// What a crash may lose at most.
  std::chrono::milliseconds flush_every{200};
  std::string program{};  ///< for titles; the process's name if empty
  std::string device{};   ///< its name
  bytes device_capacity{};
};

struct recorder_stats {
  std::uint64_t written = 0;  ///< events in the file
  std::uint64_t dropped = 0;
  std::uint64_t threads = 0;
  bytes file_size{};
};

/// Receives the events of one allocator, and writes them to a file on a thread of its own.
///
/// Every event that was received before close() is in the file, in an order in which it can have
/// happened, unless it was dropped by choice or the disk was full. The file appears under its name
/// at close(); until then, and after a crash, it is a readable trace named `<path>.<process>.part`.
/// If the file cannot be written any further, recording ends, the error goes to the error handler
/// and is what close() returns; what stood under the name stays as it was.
///
/// Where it is added to an allocator that is in use already, the recording begins with what the
/// allocator holds then: reservations, and live blocks, which have no stack.
///
/// One allocator at a time: pools and addresses are told apart by their numbers alone. Outlives its
/// registration with the allocator. Any thread may call anything at any time, but nothing else
/// while the destructor runs. In a forked child it does nothing. An event costs its thread some ten
/// nanoseconds.
class WEIR_API recorder final : public event_sink {
 public:
  /// invalid_argument: an option is out of range; system: the file cannot be created;
  /// no_host_memory: the host has no memory for it, and there is no file.
  [[nodiscard]] static result<std::unique_ptr<recorder>> start(
      const std::string& path, const recorder_options& options = {});
  /// As close(); what fails goes to the error handler.
  ~recorder() override;
  recorder(const recorder&) = delete;
  recorder& operator=(const recorder&) = delete;

  void on_event(const memory_event& event) noexcept override;
  [[nodiscard]] bool wants_existing() const noexcept override { return true; }
  void on_existing(const memory_event& event) noexcept override;
  /// Puts a remark of the user's between the events.
  void marker(std::string_view text) noexcept;

  /// Returns when everything received so far is in the file.
  result<void> flush();
  /// Ends the recording; what is received later is ignored. Twice does no harm.
  result<void> close();
  [[nodiscard]] recorder_stats stats() const;

 private:
  explicit recorder(std::unique_ptr<trace::event_collector> state) noexcept;

  std::unique_ptr<trace::event_collector> state_;
};

/// "written 1200, dropped 0, threads 4, file_size 18 KiB".
[[nodiscard]] WEIR_API std::string to_string(const recorder_stats& stats);

}}  // namespace weir::v0
