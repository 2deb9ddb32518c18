// SPDX-License-Identifier: Apache-2.0
// Whole .weirtrace files, from and to recordings.
#include "trace/trace_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <utility>
#include <variant>

#include "base/host_memory.hpp"
#include "trace/event_codec.hpp"
#include "trace/file_writer.hpp"
#include "trace/frame.hpp"
#include "trace/names.hpp"
#include "trace/varint.hpp"

namespace weir { inline namespace v0 {
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
  trace_reader(std::string_view bytes, const trace_limits& limits, const zstd* library)
      : frames_{bytes, library},
        limits_{limits},
        most_names_{limits.most_records(bytes.size())},
        most_events_{std::min(limits.events, most_names_)} {}

  [[nodiscard]] result<recording> read() {
    while (!ended_ && !recording_.damage) WEIR_TRY(read_frame());
    if (!recording_.damage && !frames_.at_end())
      recording_.damage = {frames_.offset(), "data follows the end of the trace"};
    if (recording_.streams.empty()) recording_.streams.push_back(0);
    if (recording_.threads.empty()) recording_.threads.push_back(0);
    return std::move(recording_);
  }

 private:
  [[nodiscard]] result<void> read_frame() {
    const std::uint64_t offset = frames_.offset();
    if (frames_.at_end()) {
      recording_.damage = {
          offset, "the file has no end: the recording was interrupted, or the file was cut"};
      return {};
    }
    size_ += frames_.next_size();
    if (size_ > limits_.bytes)
      return error{{.code = errc::limit_exceeded, .detail = "the trace is larger than allowed"}};
    WEIR_TRY_VALUE(next, frames_.next());
    if (auto* const damage = std::get_if<trace_damage>(&next)) {
      recording_.damage = std::move(*damage);
      return {};
    }
    const frame& next_frame = std::get<frame>(next);
    WEIR_TRY(count(next_frame));
    if (const char* const problem = decode(next_frame)) recording_.damage = {offset, problem};
    return {};
  }

  [[nodiscard]] result<void> count(const frame& next_frame) {
    if (next_frame.kind == frame_kind::end) return {};
    const bool holds_events = next_frame.kind == frame_kind::events;
    const std::uint64_t most = holds_events ? most_events_ : most_names_;
    std::uint64_t& counted = holds_events ? events_read_ : names_read_;
    if (next_frame.records <= most - counted) {
      counted += next_frame.records;
      return {};
    }
    return error{{.code = errc::limit_exceeded,
                  .detail = "the trace has more than " + std::to_string(most) +
                            (holds_events ? " events" : " names") +
                            ", the most that may be read of it"}};
  }

  [[nodiscard]] const char* decode(const frame& next_frame) {
    switch (next_frame.kind) {
      case frame_kind::names:
        return decode_names(next_frame.content, next_frame.records, recording_);
      case frame_kind::events:
        return events_.decode(next_frame.content, next_frame.records, table_sizes::of(recording_),
                              recording_.events);
      case frame_kind::end: {
        byte_reader bytes{next_frame.content};
        const auto total = bytes.varint();
        if (!total || *total != recording_.events.size())
          return "the number of events differs from the one at the end";
        ended_ = true;
        return nullptr;
      }
    }
    return "not the start of a frame";
  }

  frame_reader frames_;
  trace_limits limits_;
  std::uint64_t most_names_;
  std::uint64_t most_events_;
  event_decoder events_;
  recording recording_;
  std::uint64_t size_ = 0;  // of the frames, uncompressed
  std::uint64_t events_read_ = 0;
  std::uint64_t names_read_ = 0;
  bool ended_ = false;
};

result<void> write_names(const recording& recording, file_writer& file) {
  name_encoder& names = file.names();
  const auto spill = [&]() -> result<void> {
    return names.content().size() < frame_names ? result<void>{} : file.write_names();
  };
  if (!recording.program.empty()) names.text(name_kind::program, recording.program);
  if (!recording.device.empty()) names.text(name_kind::device, recording.device);
  if (recording.device_capacity.count() != 0)
    names.number(name_kind::device_capacity, recording.device_capacity.count());
  if (!recording.real_addresses) names.number(name_kind::made_up_addresses, 1);
  if (recording.dropped != 0) names.number(name_kind::dropped, recording.dropped);
  for (const recorded_peak& each : recording.peaks) names.peak(each);
  const auto write_texts = [&](name_kind kind, const std::vector<std::string>& table,
                               std::size_t first) -> result<void> {
    for (std::size_t i = first; i < table.size(); ++i) {
      names.text(kind, table[i]);
      WEIR_TRY(spill());
    }
    return {};
  };
  WEIR_TRY(write_texts(name_kind::tag, recording.tags, 1));
  WEIR_TRY(write_texts(name_kind::pool, recording.pools, 1));
  for (const std::uint64_t each : recording.streams) names.number(name_kind::stream, each);
  WEIR_TRY(spill());
  for (const std::uint64_t each : recording.threads) names.number(name_kind::thread, each);
  WEIR_TRY(write_texts(name_kind::text, recording.texts, 0));
  WEIR_TRY(write_texts(name_kind::frame, recording.frames, 0));
  for (const auto& each : recording.stacks) {
    names.stack(each);
    WEIR_TRY(spill());
  }
  return file.write_names();
}

}  // namespace

result<recording> read_trace_with(std::string_view bytes, const trace_limits& limits,
                                  const zstd* library) {
  if (!is_trace(bytes))
    return error{{.code = errc::invalid_argument, .detail = "not a .weirtrace file"}};
  if (bytes.size() < file_header_size) {
    recording empty;
    empty.streams = {0};
    empty.threads = {0};
    empty.damage = {bytes.size(), "the file ends within its header"};
    return empty;
  }
  const std::uint32_t version = version_of(bytes);
  if (version < first_version || version > format_version) {
    return error{{.code = errc::bad_version,
                  .detail = "the trace has version " + std::to_string(version) + ", not " +
                            std::to_string(first_version) + " to " +
                            std::to_string(format_version)}};
  }
  if (bytes.substr(0, file_header_size) != file_header(version))
    return error{{.code = errc::invalid_argument, .detail = "the trace's header is damaged"}};
  return trace_reader{bytes, limits, library}.read();
}

result<void> write_trace_with(const recording& recording, const std::string& path,
                              const trace_write_options& options, const zstd* library) {
  if (options.level < 0 || options.level > 19)
    return error{{.code = errc::invalid_argument, .detail = "level must be from 0 to 19"}};
  WEIR_TRY_VALUE(file, file_writer::create(path, library, options.level));
  const auto write_all = [&]() -> result<void> {
    WEIR_TRY(write_names(recording, file));
    const auto tables = table_sizes::of(recording);
    for (std::span<const trace_event> rest{recording.events}; !rest.empty();) {
      const auto batch = rest.first(std::min(rest.size(), file.next_frame_events()));
      WEIR_TRY(file.write_events(batch, tables));
      rest = rest.subspan(batch.size());
    }
    return file.finish();
  };
  const auto written = write_all();
  if (!written) file.abandon();
  return written;
}

}  // namespace trace

bool is_trace(std::string_view bytes) noexcept {
  return bytes.substr(0, trace::magic.size()) == trace::magic;
}

result<recording> read_trace_from(std::string_view bytes, const trace_limits& limits) try {
  return trace::read_trace_with(bytes, limits, trace::find_zstd());
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<recording> read_trace(const std::string& path, const trace_limits& limits) try {
  const auto fail = [&](int reason) {
    return error{{.code = reason == ENOENT ? errc::not_found : errc::system,
                  .detail = path + ": " + std::strerror(reason)}};
  };
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file{std::fopen(path.c_str(), "rb"),
                                                             std::fclose};
  if (!file) return fail(errno);
  std::string bytes;
  for (std::size_t used = 0;;) {
    if (used > limits.bytes)
      return error{{.code = errc::limit_exceeded, .detail = path + ": larger than allowed"}};
    bytes.resize(std::max<std::size_t>(2 * used, std::size_t{1} << 16));
    const std::size_t count = std::fread(bytes.data() + used, 1, bytes.size() - used, file.get());
    used += count;
    if (count == 0) {
      if (std::ferror(file.get()) != 0) return fail(errno);
      bytes.resize(used);
      break;
    }
  }
  auto read = read_trace_from(bytes, limits);
  if (!read) {
    error why = std::move(read).error();
    why.set_detail(path + ": " + why.detail());
    return why;
  }
  return read;
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<void> write_trace(const recording& recording, const std::string& path,
                         const trace_write_options& options) try {
  return trace::write_trace_with(recording, path, options, trace::find_zstd());
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

}}  // namespace weir::v0
