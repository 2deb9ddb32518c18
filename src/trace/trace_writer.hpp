// SPDX-License-Identifier: Apache-2.0
// Merged records as events of a file: the tables that give streams, tags and pools their numbers.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "trace/event_codec.hpp"
#include "trace/file_writer.hpp"
#include "trace/ring.hpp"
#include "trace/stacks.hpp"
#include "weir/base/result.hpp"

namespace weir { inline namespace v0 { namespace trace {

/// Owns the file of a recording in progress. One thread.
class trace_writer {
 public:
  /// Times are written from `start` on, in ticks.
  trace_writer(file_writer file, std::uint64_t start) noexcept;

  void begin(const std::string& program, const std::string& device, std::uint64_t capacity);
  /// Records of this number are of the thread with that system id.
  void add_thread(std::uint16_t number, std::uint64_t thread);
  void add_text(const std::string& text);
  void add_stack(const stack_table::addresses& stack);

  /// Appends records as a frame, and all tables that they need.
  [[nodiscard]] result<void> write(const std::vector<record>& records);
  [[nodiscard]] result<void> finish(std::uint64_t dropped);
  /// There will be no file.
  void abandon() noexcept { file_.abandon(); }

  [[nodiscard]] std::uint64_t events() const noexcept { return written_; }
  [[nodiscard]] std::uint64_t file_size() const noexcept { return file_.bytes_written(); }

 private:
  void spill_names();
  [[nodiscard]] trace_event translate(const record& source);
  [[nodiscard]] std::uint32_t stream(std::uint64_t id);
  [[nodiscard]] std::uint16_t tag(std::uint16_t number);
  [[nodiscard]] std::uint16_t pool(std::uint32_t id);

  file_writer file_;
  std::uint64_t start_;
  double nanoseconds_per_tick_;
  table_sizes tables_;
  std::unordered_map<std::uint64_t, std::uint32_t> streams_;
  std::unordered_map<std::uint16_t, std::uint16_t> tags_;
  std::unordered_map<std::uint32_t, std::uint16_t> pools_;
  std::unordered_map<void*, std::uint32_t> frames_;
  std::vector<trace_event> events_;
  std::uint64_t last_time_ = 0;
  std::uint64_t written_ = 0;
};

}}}  // namespace weir::v0::trace
