// Reading traces: inflate, cut into lines, check that each event can have happened.
#include "support/trace.hpp"

#include <zlib.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <memory>
#include <optional>
#include <unordered_map>

namespace weir::testing_support {
namespace {

error bad_line(std::string_view name, std::size_t line, std::string_view reason) {
  return {.code = errc::invalid_argument,
          .detail = std::string{name} + ":" + std::to_string(line) + ": " + std::string{reason}};
}

/// The whole of a file, inflated if it is compressed.
result<std::string> read_all(const std::string& path) {
  errno = 0;
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file{gzopen(path.c_str(), "rb"), gzclose};
  if (!file) {
    return error{.code = errno == ENOENT ? errc::not_found : errc::system, .detail = path};
  }
  std::string text;
  std::vector<char> chunk(std::size_t{1} << 18);
  for (;;) {
    const int length = gzread(file.get(), chunk.data(), static_cast<unsigned>(chunk.size()));
    int state = Z_OK;
    const char* const reason = gzerror(file.get(), &state);
    // A file that ends too early is no error of gzread's.
    if (length < 0 || (length == 0 && state != Z_OK && state != Z_STREAM_END)) {
      return error{.code = errc::system, .detail = path + ": " + reason};
    }
    if (length == 0) return text;
    text.append(chunk.data(), static_cast<std::size_t>(length));
  }
}

std::optional<std::uint64_t> number(std::string_view text) {
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, failed] = std::from_chars(text.data(), end, value);
  if (failed != std::errc{} || stop != end) return std::nullopt;
  return value;
}

/// The comma-separated fields of a line; empty unless there are exactly Count.
template <std::size_t Count>
std::optional<std::array<std::string_view, Count>> fields(std::string_view line) {
  std::array<std::string_view, Count> columns;
  for (std::size_t i = 0; i < Count; ++i) {
    const auto comma = line.find(',');
    if ((comma == std::string_view::npos) != (i == Count - 1)) return std::nullopt;
    columns[i] = line.substr(0, comma);
    line.remove_prefix(i == Count - 1 ? line.size() : comma + 1);
  }
  return columns;
}

/// Calls `see(line, number)` for each line; stops at the first error.
template <class Function>
result<void> for_each_line(std::string_view text, Function see) {
  for (std::size_t count = 1; !text.empty(); ++count) {
    const auto end = text.find('\n');
    WEIR_TRY(see(text.substr(0, end), count));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return {};
}

/// Builds a trace event by event and refuses what cannot have happened.
class trace_builder {
 public:
  /// What is wrong with the line; null if nothing.
  const char* add(std::string_view line) {
    const auto parts = fields<5>(line);
    if (!parts) return "not op,id,bytes,stream,t_us";
    const auto& [op, id_text, size_text, stream_text, time_text] = *parts;
    const auto id = number(id_text);
    const auto stream = number(stream_text);
    const auto time = number(time_text);
    if (!id || !stream || !time) return "not a number";
    trace::event next{.time = *time};
    next.stream =
        streams_.try_emplace(*stream, static_cast<std::uint32_t>(streams_.size())).first->second;
    if (op == "a") return allocate(*id, size_text, next);
    if (!size_text.empty()) return "only an allocation has a size";
    if (op == "r") return advance(*id, trace::event_kind::allocate, trace::event_kind::free, next);
    if (op == "f") return advance(*id, trace::event_kind::free, trace::event_kind::reusable, next);
    return "the operation is none of a, r, f";
  }

  trace finish() && {
    built_.blocks = blocks_.size();
    built_.streams = streams_.size();
    return std::move(built_);
  }

 private:
  struct block_state {
    std::uint32_t block;
    std::uint64_t size;
    trace::event_kind stage;
  };

  const char* allocate(std::uint64_t id, std::string_view size_text, trace::event next) {
    const auto size = number(size_text);
    if (!size) return "not a number";
    next.size = *size;
    next.block = static_cast<std::uint32_t>(blocks_.size());
    if (!blocks_.try_emplace(id, block_state{next.block, next.size, trace::event_kind::allocate})
             .second) {
      return "the block is allocated twice";
    }
    built_.events.push_back(next);
    return nullptr;
  }

  const char* advance(std::uint64_t id, trace::event_kind from, trace::event_kind to,
                      trace::event next) {
    const auto block = blocks_.find(id);
    if (block == blocks_.end()) return "the block was not allocated before";
    if (block->second.stage != from) return "the block is freed out of turn";
    block->second.stage = to;
    next.kind = to;
    next.block = block->second.block;
    next.size = block->second.size;
    built_.events.push_back(next);
    return nullptr;
  }

  trace built_;
  std::unordered_map<std::uint64_t, block_state> blocks_;
  std::unordered_map<std::uint64_t, std::uint32_t> streams_;
};

}  // namespace

result<trace> parse_trace(std::string_view text, std::string_view name) {
  trace_builder building;
  WEIR_TRY(for_each_line(text, [&](std::string_view line, std::size_t count) -> result<void> {
    if (line.starts_with('#')) return {};
    if (const char* const wrong = building.add(line)) return bad_line(name, count, wrong);
    return {};
  }));
  return std::move(building).finish();
}

result<trace> read_trace(const std::string& path) {
  WEIR_TRY_VALUE(text, read_all(path));
  return parse_trace(text, path);
}

result<std::vector<trace_peaks>> parse_trace_peaks(std::string_view text, std::string_view name) {
  std::vector<trace_peaks> rows;
  WEIR_TRY(for_each_line(text, [&](std::string_view line, std::size_t count) -> result<void> {
    if (count == 1) return {};  // the names of the columns
    const auto parts = fields<8>(line);
    if (!parts) return bad_line(name, count, "not eight columns");
    trace_peaks row{.name = std::string{(*parts)[0]}};
    std::size_t column = 1;
    for (std::uint64_t* into :
         {&row.streams, &row.allocations, &row.requested, &row.active, &row.fixed_reserved,
          &row.expandable_requested, &row.expandable_reserved}) {
      const auto value = number((*parts)[column++]);
      if (!value) return bad_line(name, count, "not a number");
      *into = *value;
    }
    rows.push_back(std::move(row));
    return {};
  }));
  return rows;
}

result<std::vector<trace_peaks>> read_trace_peaks(const std::string& path) {
  WEIR_TRY_VALUE(text, read_all(path));
  return parse_trace_peaks(text, path);
}

std::string trace_path(std::string_view file) {
  return std::string{WEIR_TRACE_FOLDER} + "/" + std::string{file};
}

}  // namespace weir::testing_support
