// SPDX-License-Identifier: Apache-2.0
// Writing .weirtrace files.
#include "trace/file_writer.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "trace/frame.hpp"
#include "trace/varint.hpp"

namespace weir { inline namespace v0 { namespace trace {

result<file_writer> file_writer::create(const std::string& path, const zstd* library, int level) {
  detail::part_file file;
  if (const int reason = file.create(path); reason != 0)
    return error{{.code = errc::system, .detail = file.name() + ": " + std::strerror(reason)}};
  file_writer writer{std::move(file), library, level};
  WEIR_TRY(writer.write(file_header()));
  writer.written_ = file_header_size;
  return writer;
}

file_writer::file_writer(detail::part_file file, const zstd* library, int level) noexcept
    : file_{std::move(file)}, library_{library}, level_{level} {}

file_writer::~file_writer() {
  if (event_count_ == 0) abandon();
}

void file_writer::abandon() noexcept { file_.remove(); }

result<void> file_writer::fail(const char* problem, int reason) {
  state_ = error{
      {.code = errc::system, .detail = part() + ": " + problem + ": " + std::strerror(reason)}};
  return state_;
}

result<void> file_writer::write(std::string_view bytes) {
  WEIR_TRY(state_);
  const int reason = file_.write(bytes);
  if (reason == 0) return {};
  // A frame that is there in part would be found damaged; what was written before stays good.
  const bool whole = file_.truncate(written_) == 0;
  return fail(whole ? "could not be written" : "could not be written completely", reason);
}

result<void> file_writer::write_names() {
  if (names_.empty()) return state_;
  // Frames have a size that they may not pass; names that pass it are no names.
  if (names_.content().size() > most_frame_bytes || names_.entries() > most_records) {
    state_ = error{{.code = errc::size_overflow, .detail = part() + ": too many names"}};
    return state_;
  }
  std::string out;
  put_frame(out, frame_kind::names, names_.entries(), names_.content(), library_, level_);
  names_.clear();
  WEIR_TRY(write(out));
  written_ += out.size();
  return {};
}

result<void> file_writer::write_events(std::span<const trace_event> events,
                                       const table_sizes& tables) {
  WEIR_TRY(state_);
  WEIR_TRY(write_names());
  if (events.empty()) return {};
  std::string problem;
  const std::string content = events_.encode(events, tables, problem);
  if (!problem.empty()) {
    state_ = error{{.code = errc::invalid_argument, .detail = problem}};
    return state_;
  }
  std::string out;
  put_frame(out, frame_kind::events, static_cast<std::uint32_t>(events.size()), content, library_,
            level_);
  WEIR_TRY(write(out));
  written_ += out.size();
  event_count_ += events.size();
  return {};
}

std::size_t file_writer::next_frame_events() const noexcept {
  return static_cast<std::size_t>(
      std::clamp<std::uint64_t>(event_count_, first_frame_events, frame_events));
}

result<void> file_writer::finish() {
  WEIR_TRY(write_names());
  std::string content;
  put_varint(content, event_count_);
  std::string out;
  put_frame(out, frame_kind::end, 1, content, nullptr, 0);
  WEIR_TRY(write(out));
  written_ += out.size();
  // Some file systems notice only here that there was no room.
  if (const int reason = file_.flush(); reason != 0) return fail("could not be written", reason);
  if (const int reason = file_.close(); reason != 0) return fail("could not be closed", reason);
  if (const int reason = file_.rename(); reason != 0) return fail("could not be renamed", reason);
  return {};
}

}}}  // namespace weir::v0::trace
