// SPDX-License-Identifier: Apache-2.0
// Any text as an RMM log: refused with the line that is wrong, or a sound recording. And any log
// that RMM could have written is read as what happened.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "formats/rmm_log.hpp"
#include "fuzz_input.hpp"
#include "sound_recording.hpp"

namespace weir::fuzz { namespace {

constexpr formats::input_limits small{.bytes = 1 << 22, .events = 64};
constexpr std::string_view header = "Thread,Time,Action,Pointer,Size,Stream\n";

// --- Any text ------------------------------------------------------------------------------------

/// "fuzz:7: why": the line is one of the text's.
void require_line(const error& refusal, std::uint64_t lines) {
  std::string_view detail = refusal.detail();
  require(detail.starts_with("fuzz:"), "an error without the file's name");
  detail.remove_prefix(5);
  std::uint64_t line = 0;
  const auto [end, status] = std::from_chars(detail.data(), detail.data() + detail.size(), line);
  require(status == std::errc{} && line >= 1 && line <= lines, "a line that is not there");
  require(std::string_view{end}.size() > 2, "no reason");
}

void read_any(std::string_view text) {
  const auto lines = static_cast<std::uint64_t>(std::count(text.begin(), text.end(), '\n')) + 1;
  const auto read = formats::read_rmm_log(text, "fuzz", small);
  if (!read) {
    if (read.code() == errc::limit_exceeded) return require(lines >= small.events, "no such limit");
    require(read.code() == errc::invalid_argument, "an error of another kind");
    return require_line(read.error(), lines);
  }
  require(read->events.size() <= small.events, "more events than allowed");
  require(read->streams.size() <= lines && read->threads.size() <= lines, "tables from nowhere");
  require(read->real_addresses && !read->damage, "another kind of recording");
  require_sound(*read);
  require_exportable(*read);
}

// --- What RMM writes ----------------------------------------------------------------------------

/// A program whose requests are logged; knows what its log must be read as.
class logged_program {
 public:
  explicit logged_program(fuzz_input input) : input_{input} {
    now_ = input_.number() % day;
    while (!input_.at_end() && expected_.size() + 2 <= small.events && fits_) request();
  }

  void check() const {
    const auto read = formats::read_rmm_log(text_, "fuzz", small);
    if (!fits_)
      return require(!read && read.code() == errc::invalid_argument, "a sum that wraps was read");
    require(read.has_value(), read ? "" : read.error().message());
    require(read->events == expected_, "events that did not happen:\n" + text_);
    if (!streams_.empty()) require(read->streams == streams_, "streams in another order");
    if (!threads_.empty()) require(read->threads == threads_, "threads in another order");
  }

 private:
  static constexpr std::uint64_t microsecond = 1000;
  static constexpr std::uint64_t second = 1'000'000 * microsecond;
  static constexpr std::uint64_t day = 24 * 3600 * second;

  struct block {
    std::uint64_t size = 0;
    std::uint32_t stream = 0;
  };

  void request() {
    constexpr std::uint64_t pauses[] = {0,      1,           microsecond,   999 * microsecond,
                                        second, 59 * second, 3600 * second, 11 * 3600 * second};
    now_ += input_.one_of(pauses);
    // Threads take the time before they wait for their turn to write.
    const std::uint64_t late = input_.chance(4) ? input_.next() * microsecond : 0;
    const std::uint64_t time = printed(late < now_ ? now_ - late : 0);
    if (text_.empty()) start_ = time;
    const unsigned choice = input_.next();
    const std::uint64_t thread = 1000 + input_.below(3);
    const std::uint64_t stream = input_.below(3) * 0x55d0a0;
    const std::uint64_t pointer = 0x7f00'0000'0000 + choice % 5 * 512;
    const std::uint64_t size = input_.number();
    trace_event event{.time = time < start_ ? 0 : time - start_, .address = pointer, .size = size};
    if (!expected_.empty()) event.time = std::max(event.time, expected_.back().time);
    event.stream = static_cast<std::uint32_t>(number_in(streams_, stream));
    event.thread = static_cast<std::uint16_t>(number_in(threads_, thread));
    switch (choice / 64) {
      case 0:
      case 1:
        allocate(event);
        return line(thread, time, "allocate", fmt::format("{:#x}", pointer), size, stream);
      case 2:
        free(event);
        return line(thread, time, "free", fmt::format("{:#x}", pointer), size, stream);
      default:
        event.address = 0;
        event.kind = trace_kind::out_of_memory;
        expected_.push_back(event);
        return line(thread, time, "allocate failure", "(nil)", size, stream);
    }
  }

  void allocate(trace_event event) {
    if (const auto lost = live_.find(event.address); lost != live_.end()) {
      trace_event missing = event;  // its free was not logged
      missing.kind = trace_kind::deallocate;
      missing.size = lost->second.size;
      missing.stream = lost->second.stream;
      expected_.push_back(missing);
      live_bytes_ -= lost->second.size;
    }
    fits_ = event.size <= UINT64_MAX - live_bytes_;
    live_bytes_ += event.size;
    event.kind = trace_kind::allocate;
    expected_.push_back(event);
    live_[event.address] = {event.size, event.stream};
  }

  void free(trace_event event) {
    const auto freed = live_.find(event.address);
    if (freed == live_.end()) return;
    event.kind = trace_kind::deallocate;
    event.size = freed->second.size;
    expected_.push_back(event);
    live_bytes_ -= freed->second.size;
    live_.erase(freed);
  }

  void line(std::uint64_t thread, std::uint64_t time, std::string_view action,
            std::string_view pointer, std::uint64_t size, std::uint64_t stream) {
    if (text_.empty()) text_ = header;
    const std::uint64_t seconds = time / second;
    fmt::format_to(std::back_inserter(text_), "{},{:02}:{:02}:{:02}", thread, seconds / 3600 % 24,
                   seconds / 60 % 60, seconds % 60);
    if (digits_ != 0)
      fmt::format_to(std::back_inserter(text_), ".{:0{}}", time % second / tick(), digits_);
    fmt::format_to(std::back_inserter(text_), ",{},{},{},{}{:x}\n", action, pointer, size,
                   stream % 2 == 0 ? "0x" : "", stream);
  }

  /// In nanoseconds, as much of a second as the log has digits for.
  [[nodiscard]] std::uint64_t tick() const {
    std::uint64_t ticks = 1;
    for (int i = digits_; i < 9; ++i) ticks *= 10;
    return ticks;
  }
  [[nodiscard]] std::uint64_t printed(std::uint64_t time) const { return time - time % tick(); }

  static std::size_t number_in(std::vector<std::uint64_t>& seen, std::uint64_t key) {
    const auto found = std::find(seen.begin(), seen.end(), key);
    const auto number = static_cast<std::size_t>(found - seen.begin());
    if (found == seen.end()) seen.push_back(key);
    return number;
  }

  fuzz_input input_;
  int digits_ = static_cast<int>(input_.below(4)) * 3;
  std::uint64_t now_ = 0;
  std::uint64_t start_ = 0;
  std::string text_;
  std::map<std::uint64_t, block> live_;
  std::uint64_t live_bytes_ = 0;
  bool fits_ = true;  // what lives has fewer bytes than there are addresses
  std::vector<trace_event> expected_;
  std::vector<std::uint64_t> streams_;
  std::vector<std::uint64_t> threads_;
};

}  // namespace
}  // namespace weir::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  weir::fuzz::read_any({reinterpret_cast<const char*>(data), size});
  weir::fuzz::logged_program{weir::fuzz::fuzz_input{{data, size}}}.check();
  return 0;
}
