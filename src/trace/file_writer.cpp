// Writing .weirtrace files.
#include "trace/file_writer.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "trace/frame.hpp"
#include "trace/varint.hpp"

namespace weir::inline v0::trace {

result<file_writer> file_writer::create(const std::string& path, const zstd* library, int level) {
  std::string part = path + "." + std::to_string(getpid()) + ".part";
  const int file = open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) {
    const int reason = errno;
    return error{.code = errc::system, .detail = part + ": " + std::strerror(reason)};
  }
  file_writer writer{file, path, std::move(part), library, level};
  WEIR_TRY(writer.write(file_header()));
  writer.written_ = file_header_size;
  return writer;
}

file_writer::file_writer(int file, std::string path, std::string part, const zstd* library,
                         int level) noexcept
    : file_{file},
      path_{std::move(path)},
      part_{std::move(part)},
      library_{library},
      level_{level} {}

file_writer::file_writer(file_writer&& other) noexcept
    : file_{std::exchange(other.file_, -1)},
      path_{std::move(other.path_)},
      part_{std::move(other.part_)},
      library_{other.library_},
      level_{other.level_},
      names_{std::move(other.names_)},
      events_{std::move(other.events_)},
      event_count_{other.event_count_},
      written_{other.written_},
      state_{std::move(other.state_)} {}

file_writer::~file_writer() {
  if (file_ < 0) return;
  close(file_);
  if (event_count_ == 0) unlink(part_.c_str());
}

void file_writer::abandon() noexcept {
  if (file_ < 0) return;
  close(std::exchange(file_, -1));
  unlink(part_.c_str());
}

result<void> file_writer::fail(const char* problem, int reason) {
  state_ =
      error{.code = errc::system, .detail = part_ + ": " + problem + ": " + std::strerror(reason)};
  return state_;
}

result<void> file_writer::write(std::string_view bytes) {
  WEIR_TRY(state_);
  while (!bytes.empty()) {
    const ssize_t count = ::write(file_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int reason = errno;
      // A frame that is there in part would be found damaged; what was written before stays good.
      const bool whole = ftruncate(file_, static_cast<off_t>(written_)) == 0;
      return fail(whole ? "cannot be written" : "cannot be written whole", reason);
    }
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return {};
}

result<void> file_writer::write_names() {
  if (names_.empty()) return state_;
  // Frames have a size that they may not pass; names that pass it are no names.
  if (names_.content().size() > most_frame_bytes || names_.entries() > most_records) {
    state_ = error{.code = errc::size_overflow, .detail = part_ + ": the names are too many"};
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
    state_ = error{.code = errc::invalid_argument, .detail = problem};
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
  if (fsync(file_) != 0 && errno != EINVAL && errno != EROFS)
    return fail("cannot be written", errno);
  const int file = std::exchange(file_, -1);
  if (close(file) != 0) return fail("cannot be closed", errno);
  if (std::rename(part_.c_str(), path_.c_str()) != 0) return fail("cannot be renamed", errno);
  return {};
}

}  // namespace weir::inline v0::trace
