// SPDX-License-Identifier: Apache-2.0
// Reading RMM's logs.
#include "formats/rmm_log.hpp"

#include <algorithm>
#include <optional>

#include "formats/builder.hpp"
#include "formats/lines.hpp"

namespace weir { inline namespace v0 { namespace formats {
namespace {

constexpr std::string_view rmm_columns = "Thread,Time,Action,Pointer,Size,Stream";
constexpr std::uint64_t minute = 60ULL * 1'000'000'000;
constexpr std::uint64_t day = 24 * 60 * minute;

/// "0x7f…", "7f…", "0", "(nil)".
std::optional<std::uint64_t> hexadecimal(std::string_view text) {
  if (text == "(nil)") return 0;
  if (text.starts_with("0x") || text.starts_with("0X")) text.remove_prefix(2);
  return number(text, 16);
}

/// "13:05:59.123456", or with other fractions of a second, as nanoseconds.
std::optional<std::uint64_t> time_of_day(std::string_view text) {
  const auto dot = text.find('.');
  std::string_view fraction = dot == text.npos ? std::string_view{} : text.substr(dot + 1);
  text = text.substr(0, dot);
  if (text.size() != 8 || text[2] != ':' || text[5] != ':' || fraction.size() > 9)
    return std::nullopt;
  const auto hours = number(text.substr(0, 2));
  const auto minutes = number(text.substr(3, 2));
  const auto seconds = number(text.substr(6, 2));
  auto rest = fraction.empty() ? std::optional<std::uint64_t>{0} : number(fraction);
  if (!hours || !minutes || !seconds || !rest || *hours > 23 || *minutes > 59 || *seconds > 60)
    return std::nullopt;
  for (std::size_t i = fraction.size(); i < 9 && *rest != 0; ++i) *rest *= 10;
  return ((*hours * 60 + *minutes) * 60 + *seconds) * 1'000'000'000 + *rest;
}

class rmm_reader {
 public:
  /// What is wrong with the line; null if nothing.
  const char* add(std::string_view line) {
    const auto parts = fields<6>(line);
    if (!parts) return "not Thread,Time,Action,Pointer,Size,Stream";
    const auto& [thread_text, time_text, action, pointer_text, size_text, stream_text] = *parts;
    const auto thread = number(thread_text);
    const auto time = time_of_day(time_text);
    const auto pointer = hexadecimal(pointer_text);
    const auto size = number(size_text);
    const auto stream = hexadecimal(stream_text);
    if (!time) return "not a time of day";
    if (!thread || !pointer || !size || !stream) return "not a number";
    trace_event event{.time = since_start(*time), .address = *pointer, .size = *size};
    event.stream = builder_.stream(*stream);
    event.thread = builder_.thread(*thread);
    if (action == "allocate") {
      add_missing_free(event);
      if (!builder_.has_room(*size)) return no_room;
      event.kind = trace_kind::allocate;
    } else if (action == "free") {
      if (builder_.live(*pointer) == nullptr) return nullptr;
      event.size = builder_.live(*pointer)->size;
      event.kind = trace_kind::deallocate;
    } else if (action == "allocate failure") {
      event.address = 0;
      event.kind = trace_kind::out_of_memory;
    } else {
      return "unknown action; expected allocate, allocate failure or free";
    }
    builder_.add(event);
    return nullptr;
  }

  [[nodiscard]] std::size_t size() { return builder_.draft().events.size(); }
  recording finish() && { return std::move(builder_).finish(); }

 private:
  /// A log that was switched off for a while lacks frees; the memory was free when it was had
  /// again.
  void add_missing_free(trace_event event) {
    const auto* const block = builder_.live(event.address);
    if (block == nullptr) return;
    event.kind = trace_kind::deallocate;
    event.size = block->size;
    event.stream = block->stream;
    builder_.add(event);
  }

  /// Threads write their lines a little out of order; half a day back is another day, and almost a
  /// day ahead the day before.
  std::uint64_t since_start(std::uint64_t now) noexcept {
    if (!last_) start_ = now;
    const std::uint64_t last = last_.value_or(now);
    std::uint64_t total = days_ + now;
    if (now > last && now - last > day - minute) {
      total -= std::min(total, day);
    } else {
      if (now < last && last - now > day / 2) total = (days_ += day) + now;
      last_ = now;
    }
    return total < start_ ? 0 : total - start_;
  }

  recording_builder builder_;
  std::optional<std::uint64_t> last_;
  std::uint64_t start_ = 0;
  std::uint64_t days_ = 0;
};

}  // namespace

bool is_rmm_log(std::string_view text) noexcept { return text.starts_with(rmm_columns); }

result<recording> read_rmm_log(std::string_view text, std::string_view name,
                               const input_limits& limits) {
  rmm_reader reader;
  WEIR_TRY(for_each_line(text, [&](std::string_view line, std::size_t count) -> result<void> {
    if (line == rmm_columns || line.empty()) return {};
    if (const char* const problem = reader.add(line)) return bad_line(name, count, problem);
    if (reader.size() > limits.events) {
      return error{
          {.code = errc::limit_exceeded, .detail = std::string{name} + ": too many events"}};
    }
    return {};
  }));
  return std::move(reader).finish();
}

}}}  // namespace weir::v0::formats
