// SPDX-License-Identifier: Apache-2.0
// A .weirtrace under construction: frames go to a hidden file that gets its name when it is whole.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/part_file.hpp"
#include "trace/event_codec.hpp"
#include "trace/names.hpp"
#include "trace/zstd.hpp"
#include "weir/base/result.hpp"
#include "weir/trace/trace.hpp"

namespace weir { inline namespace v0 { namespace trace {

/// The most events of a frame. Frames as long as this compress as well as longer ones.
constexpr std::size_t frame_events = std::size_t{1} << 18;
/// The events of a file's first frame.
constexpr std::size_t first_frame_events = std::size_t{1} << 10;
/// What names of a frame may add up to before the next one is begun.
constexpr std::size_t frame_names = std::size_t{1} << 20;

/// Writes to `<path>.<process>.part` (detail::part_file), which is a readable trace at every moment
/// but for its last frame, and moves it to its place at the end. Without finish() the part stays
/// where it is if anything was written to it, so that what a program recorded before it died can be
/// read.
///
/// After a failure every further call returns that failure. One thread.
class file_writer {
 public:
  /// system: the file cannot be created.
  [[nodiscard]] static result<file_writer> create(const std::string& path, const zstd* library,
                                                  int level);
  ~file_writer();
  file_writer(file_writer&& other) noexcept = default;
  file_writer& operator=(file_writer&&) = delete;

  /// Entries for the tables; they are written before the next events.
  [[nodiscard]] name_encoder& names() noexcept { return names_; }
  /// Writes the pending names. Happens by itself before events.
  [[nodiscard]] result<void> write_names();
  /// `tables` covers all that was put into names() so far.
  [[nodiscard]] result<void> write_events(std::span<const trace_event> events,
                                          const table_sizes& tables);
  /// The last frame, and the file's name.
  [[nodiscard]] result<void> finish();
  /// Removes the part.
  void abandon() noexcept;

  /// How many events the next frame should have: as many as there are before it, so that half of
  /// what a cut file has can be read however early it was cut.
  [[nodiscard]] std::size_t next_frame_events() const noexcept;
  [[nodiscard]] std::uint64_t bytes_written() const noexcept { return written_; }
  [[nodiscard]] const std::string& part() const noexcept { return file_.name(); }

 private:
  file_writer(detail::part_file file, const zstd* library, int level) noexcept;
  [[nodiscard]] result<void> write(std::string_view bytes);
  [[nodiscard]] result<void> fail(const char* problem, int reason);

  detail::part_file file_;
  const zstd* library_;
  int level_;
  name_encoder names_;
  event_encoder events_;
  std::uint64_t event_count_ = 0;
  std::uint64_t written_ = 0;
  result<void> state_;
};

}}}  // namespace weir::v0::trace
