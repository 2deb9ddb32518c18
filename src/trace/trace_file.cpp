// Whole .weirtrace files, from and to recordings.
#include "trace/trace_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>
#include <variant>

#include "trace/event_codec.hpp"
#include "trace/file_writer.hpp"
#include "trace/frame.hpp"
#include "trace/names.hpp"
#include "trace/varint.hpp"

namespace weir::inline v0 {
namespace trace {
namespace {

std::uint32_t version_of(std::string_view header) noexcept {
  std::uint32_t value = 0;
  for (unsigned i = 0; i < 4; ++i)
    value |= std::uint32_t{static_cast<unsigned char>(header[magic.size() + i])} << (8 * i);
  return value;
}

/// Reads frames into a recording until the end or the first damage.
class trace_reader {
 public:
  trace_reader(std::string_view bytes, const trace_limits& most, const zstd* library) noexcept
      : frames_{bytes, library}, most_{most} {}

  [[nodiscard]] result<recording> read() {
    while (!ended_ && !read_.damage) WEIR_TRY(step());
    if (!read_.damage && !frames_.at_end())
      read_.damage = {frames_.offset(), "something follows the end"};
    if (read_.streams.empty()) read_.streams.push_back(0);
    if (read_.threads.empty()) read_.threads.push_back(0);
    return std::move(read_);
  }

 private:
  [[nodiscard]] result<void> step() {
    const std::uint64_t offset = frames_.offset();
    if (frames_.at_end()) {
      read_.damage = {offset, "the file has no end: its writer was stopped, or it was cut"};
      return {};
    }
    size_ += frames_.next_size();
    if (size_ > most_.bytes)
      return error{.code = errc::limit_exceeded, .detail = "the trace is larger than allowed"};
    WEIR_TRY_VALUE(next, frames_.next());
    if (auto* const damage = std::get_if<trace_damage>(&next)) {
      read_.damage = std::move(*damage);
      return {};
    }
    const frame& found = std::get<frame>(next);
    if (found.kind == frame_kind::events &&
        found.records > most_.events - std::min<std::uint64_t>(most_.events, read_.events.size()))
      return error{.code = errc::limit_exceeded,
                   .detail = "the trace has more events than allowed"};
    if (const char* const wrong = take(found)) read_.damage = {offset, wrong};
    return {};
  }

  [[nodiscard]] const char* take(const frame& found) {
    switch (found.kind) {
      case frame_kind::names:
        return decode_names(found.content, found.records, read_);
      case frame_kind::events:
        return events_.decode(found.content, found.records, table_sizes::of(read_), read_.events);
      case frame_kind::end: {
        byte_reader bytes{found.content};
        const auto total = bytes.varint();
        if (!total || *total != read_.events.size()) return "the end names another count of events";
        ended_ = true;
        return nullptr;
      }
    }
    return "no frame begins here";
  }

  frame_reader frames_;
  trace_limits most_;
  event_decoder events_;
  recording read_;
  std::uint64_t size_ = 0;
  bool ended_ = false;
};

result<void> write_names(const recording& from, file_writer& to) {
  name_encoder& names = to.names();
  const auto spill = [&]() -> result<void> {
    return names.content().size() < frame_names ? result<void>{} : to.write_names();
  };
  if (!from.program.empty()) names.text(name_kind::program, from.program);
  if (!from.device.empty()) names.text(name_kind::device, from.device);
  if (from.device_capacity != 0) names.number(name_kind::device_capacity, from.device_capacity);
  if (!from.real_addresses) names.number(name_kind::made_up_addresses, 1);
  if (from.dropped != 0) names.number(name_kind::dropped, from.dropped);
  for (const recorded_peak& each : from.peaks) names.peak(each);
  const auto texts = [&](name_kind kind, const std::vector<std::string>& all,
                         std::size_t first) -> result<void> {
    for (std::size_t i = first; i < all.size(); ++i) {
      names.text(kind, all[i]);
      WEIR_TRY(spill());
    }
    return {};
  };
  WEIR_TRY(texts(name_kind::tag, from.tags, 1));
  WEIR_TRY(texts(name_kind::pool, from.pools, 1));
  for (const std::uint64_t each : from.streams) names.number(name_kind::stream, each);
  WEIR_TRY(spill());
  for (const std::uint64_t each : from.threads) names.number(name_kind::thread, each);
  WEIR_TRY(texts(name_kind::text, from.texts, 0));
  WEIR_TRY(texts(name_kind::frame, from.frames, 0));
  for (const auto& each : from.stacks) {
    names.stack(each);
    WEIR_TRY(spill());
  }
  return to.write_names();
}

}  // namespace

result<recording> read_trace_with(std::string_view bytes, const trace_limits& most,
                                  const zstd* library) {
  if (!is_trace(bytes))
    return error{.code = errc::invalid_argument, .detail = "the bytes are no .weirtrace"};
  if (bytes.size() < file_header_size) {
    recording nothing;
    nothing.streams = {0};
    nothing.threads = {0};
    nothing.damage = {bytes.size(), "the file is cut in its header"};
    return nothing;
  }
  if (const std::uint32_t version = version_of(bytes); version != format_version) {
    return error{.code = errc::bad_version,
                 .detail = "the trace has version " + std::to_string(version) + ", not " +
                           std::to_string(format_version)};
  }
  if (bytes.substr(0, file_header_size) != file_header())
    return error{.code = errc::invalid_argument, .detail = "the trace's header is damaged"};
  return trace_reader{bytes, most, library}.read();
}

result<void> write_trace_with(const recording& what, const std::string& path,
                              const trace_writing& how, const zstd* library) {
  if (how.level < 0 || how.level > 19)
    return error{.code = errc::invalid_argument, .detail = "a level is 0 to 19"};
  WEIR_TRY_VALUE(file, file_writer::create(path, library, how.level));
  const auto write = [&]() -> result<void> {
    WEIR_TRY(write_names(what, file));
    const auto tables = table_sizes::of(what);
    for (std::span<const trace_event> rest{what.events}; !rest.empty();) {
      const auto now = rest.first(std::min(rest.size(), frame_events));
      WEIR_TRY(file.write_events(now, tables));
      rest = rest.subspan(now.size());
    }
    return file.finish();
  };
  const auto done = write();
  if (!done) file.abandon();
  return done;
}

}  // namespace trace

bool is_trace(std::string_view bytes) noexcept {
  return bytes.substr(0, trace::magic.size()) == trace::magic;
}

result<recording> read_trace_from(std::string_view bytes, const trace_limits& most) {
  return trace::read_trace_with(bytes, most, trace::find_zstd());
}

result<recording> read_trace(const std::string& path, const trace_limits& most) {
  const auto failed = [&](int reason) {
    return error{.code = reason == ENOENT ? errc::not_found : errc::system,
                 .detail = path + ": " + std::strerror(reason)};
  };
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file{std::fopen(path.c_str(), "rb"),
                                                             std::fclose};
  if (!file) return failed(errno);
  std::string bytes;
  for (std::size_t used = 0;;) {
    if (used > most.bytes)
      return error{.code = errc::limit_exceeded, .detail = path + ": larger than allowed"};
    bytes.resize(std::max<std::size_t>(2 * used, std::size_t{1} << 16));
    const std::size_t got = std::fread(bytes.data() + used, 1, bytes.size() - used, file.get());
    used += got;
    if (got == 0) {
      if (std::ferror(file.get()) != 0) return failed(errno);
      bytes.resize(used);
      break;
    }
  }
  auto read = read_trace_from(bytes, most);
  if (!read) {
    error why = std::move(read).error();
    why.detail = path + ": " + why.detail;
    return why;
  }
  return read;
}

result<void> write_trace(const recording& what, const std::string& path, const trace_writing& how) {
  return trace::write_trace_with(what, path, how, trace::find_zstd());
}

}  // namespace weir::inline v0
