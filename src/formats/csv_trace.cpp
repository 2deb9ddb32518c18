// SPDX-License-Identifier: Apache-2.0
// Reading CSV traces and the peaks beside them.
#include "formats/csv_trace.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "formats/builder.hpp"
#include "formats/lines.hpp"

namespace weir { inline namespace v0 { namespace formats {
namespace {

constexpr std::string_view columns = "op,id,bytes,stream,t_us";

/// Reads lines, each checked against those before it.
class csv_reader {
 public:
  /// What is wrong with the line; null if nothing.
  const char* add(std::string_view line) {
    const auto parts = fields<5>(line);
    if (!parts) return "not op,id,bytes,stream,t_us";
    const auto& [op, id_text, size_text, stream_text, time_text] = *parts;
    const auto id = number(id_text);
    const auto stream = number(stream_text);
    if (!id || !stream) return "not a number";
    std::uint64_t time = 0;
    if (const char* const problem = read_time(time_text, time)) return problem;
    if (!start_) start_ = time;
    time -= std::min(time, *start_);  // what goes back to before the first counts as the first
    trace_event event{.time = time, .address = *id, .stream = builder_.stream(*stream)};
    if (op == "a") return allocate(size_text, event);
    if (!size_text.empty()) return "bytes must be empty for every operation but a";
    if (op == "r") return deallocate(event);
    if (op == "f") return reusable(event);
    if (op == "s") return record_stream(event);
    return "unknown operation; expected a, r, f or s";
  }

  recording finish() && {
    builder_.draft().real_addresses = false;
    return std::move(builder_).finish();
  }
  [[nodiscard]] std::size_t size() { return builder_.draft().events.size(); }

 private:
  /// Microseconds with up to three decimals, as nanoseconds.
  static const char* read_time(std::string_view text, std::uint64_t& out) {
    const auto dot = text.find('.');
    const std::string_view decimals = dot == text.npos ? std::string_view{} : text.substr(dot + 1);
    const auto whole = number(text.substr(0, dot));
    auto rest = decimals.empty() ? std::optional<std::uint64_t>{0} : number(decimals);
    if (!whole || !rest || decimals.size() > 3 || (dot != text.npos && decimals.empty()))
      return "not a number";
    for (std::size_t i = decimals.size(); i < 3; ++i) *rest *= 10;
    if (*whole > UINT64_MAX / 1000 || *rest > UINT64_MAX - *whole * 1000)
      return "the time is out of range";
    out = *whole * 1000 + *rest;
    return nullptr;
  }

  const char* allocate(std::string_view size_text, trace_event event) {
    const auto size = number(size_text);
    if (!size) return "not a number";
    if (builder_.live(event.address) != nullptr) return "the block is allocated twice";
    if (!builder_.has_room(*size)) return no_room;
    pending_.erase(event.address);  // the id is another block's from here on
    event.kind = trace_kind::allocate;
    event.size = *size;
    builder_.add(event);
    return nullptr;
  }

  const char* deallocate(trace_event event) {
    const auto* const block = builder_.live(event.address);
    if (block == nullptr) {
      return pending_.contains(event.address)
                 ? "the block is freed twice, or freed before its release"
                 : "the block was not allocated before";
    }
    event.kind = trace_kind::deallocate;
    event.size = block->size;
    pending_.emplace(event.address, block->size);
    builder_.add(event);
    return nullptr;
  }

  const char* reusable(trace_event event) {
    const auto entry = pending_.find(event.address);
    if (entry == pending_.end()) {
      return builder_.live(event.address) != nullptr
                 ? "the block is freed twice, or freed before its release"
                 : "the block was not allocated before";
    }
    event.kind = trace_kind::reusable;
    event.size = entry->second;
    pending_.erase(entry);
    builder_.add(event);
    return nullptr;
  }

  const char* record_stream(trace_event event) {
    const auto* const block = builder_.live(event.address);
    if (block == nullptr) {
      return pending_.contains(event.address) ? "the block is used after its free"
                                              : "the block was not allocated before";
    }
    event.kind = trace_kind::record_stream;
    builder_.add(event);
    return nullptr;
  }

  recording_builder builder_;
  std::optional<std::uint64_t> start_;
  std::unordered_map<std::uint64_t, std::uint64_t>
      pending_;  // size by id; freed and not yet reusable
};

}  // namespace

bool is_csv_trace(std::string_view text) noexcept {
  std::string_view line = text.substr(0, text.find('\n'));
  while (line.starts_with('#')) {
    if (line.find(columns) != line.npos) return true;
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    line = text.substr(0, text.find('\n'));
  }
  if (line.starts_with(columns)) return true;
  return line.size() > 2 &&
         (line[0] == 'a' || line[0] == 'r' || line[0] == 'f' || line[0] == 's') &&
         fields<5>(line).has_value();
}

result<recording> read_csv_trace(std::string_view text, std::string_view name,
                                 const input_limits& limits) {
  csv_reader reader;
  // An empty line at the end is no event.
  const auto last = text.find_last_not_of("\r\n");
  text = text.substr(0, last == text.npos ? 0 : last + 1);
  bool is_first = true;  // of the lines that are no remarks
  WEIR_TRY(for_each_line(text, [&](std::string_view line, std::size_t count) -> result<void> {
    if (line.starts_with('#')) return {};
    if (std::exchange(is_first, false) && line == columns) return {};
    if (reader.size() >= limits.events) {
      return error{
          {.code = errc::limit_exceeded, .detail = std::string{name} + ": too many events"}};
    }
    if (const char* const problem = reader.add(line)) return bad_line(name, count, problem);
    return {};
  }));
  return std::move(reader).finish();
}

result<std::vector<recorded_peak>> read_csv_peaks(std::string_view text, std::string_view name,
                                                  std::string_view trace) {
  std::vector<recorded_peak> peaks;
  WEIR_TRY(for_each_line(text, [&](std::string_view line, std::size_t count) -> result<void> {
    // trace, streams, allocs, requested, active, default reserved, expandable requested, reserved
    const auto row = fields<8>(line);
    if (!row) return bad_line(name, count, "expected eight columns");
    if (count == 1 || (*row)[0] != trace) return {};
    const auto requested = number((*row)[3]);
    const auto fixed = number((*row)[5]);
    const auto expandable_requested = number((*row)[6]);
    const auto expandable = number((*row)[7]);
    if (!requested || !fixed || !expandable_requested || !expandable)
      return bad_line(name, count, "not a number");
    peaks = {{"torch-default", bytes{*requested}, bytes{*fixed}},
             {"torch-expandable", bytes{*expandable_requested}, bytes{*expandable}}};
    return {};
  }));
  return peaks;
}

}}}  // namespace weir::v0::formats
