// Exporting recordings as Chrome traces.
#include "formats/chrome_trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/memory_map.hpp"
#include "formats/output.hpp"

namespace weir::inline v0::formats {
namespace {

/// A JSON string. Bytes that are no ASCII letter are escaped one by one: names come from programs
/// and may be anything, and a reader that gets invalid UTF-8 refuses the whole file.
std::string json_text(std::string_view text) {
  std::string out = "\"";
  for (const char letter : text) {
    const auto code = static_cast<unsigned char>(letter);
    if (letter == '"' || letter == '\\') {
      out += '\\';
      out += letter;
    } else if (code < 0x20 || code >= 0x7f) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", code);
    } else {
      out += letter;
    }
  }
  return out += '"';
}

class chrome_writer {
 public:
  chrome_writer(const recording& source, const chrome_options& options)
      : source_{source}, options_{options} {
    by_tag_.resize(source.tags.size());
    has_reserved_ = has_events(source, trace_kind::reserve);
  }

  std::string write() && {
    append("{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
    item("{{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{{\"name\":{}}}}}",
         json_text(source_.program.empty() ? "weir" : source_.program));
    for (std::size_t i = 0; i < source_.threads.size(); ++i) {
      item(
          "{{\"ph\":\"M\",\"pid\":1,\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":"
          "\"thread {}\"}}}}",
          i, source_.threads[i]);
    }
    for (const trace_event& each : source_.events) add(each);
    counters();
    append("\n]}}\n");
    return fmt::to_string(out_);
  }

 private:
  struct live_block {
    std::uint64_t number;
    std::uint64_t size;
    std::uint16_t tag;
  };

  template <class... Values>
  void append(fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Values>(values)...);
  }
  template <class... Values>
  void item(fmt::format_string<Values...> format, Values&&... values) {
    if (!first_) append(",\n");
    first_ = false;
    append(format, std::forward<Values>(values)...);
  }
  [[nodiscard]] static double microseconds(std::uint64_t time) noexcept {
    return static_cast<double>(time) / 1000;
  }
  [[nodiscard]] std::string name_of(std::uint64_t size, std::uint16_t tag) const {
    std::string name = std::to_string(size) + " bytes";
    if (tag != 0 && tag < source_.tags.size()) name += " (" + source_.tags[tag] + ")";
    return json_text(name);
  }

  void add(const trace_event& event) {
    if (changed_ && event.time / 1000 != last_time_ / 1000) counters();
    last_time_ = event.time;
    switch (event.kind) {
      case trace_kind::allocate: {
        const live_block block{next_number_++, event.size, event.tag};
        live_[event.address] = block;
        count(block, true);
        if (options_.blocks) slice('b', event, block);
        return;
      }
      case trace_kind::deallocate:
        if (const auto entry = live_.find(event.address); entry != live_.end()) {
          count(entry->second, false);
          if (options_.blocks) slice('e', event, entry->second);
          live_.erase(entry);
        }
        return;
      case trace_kind::reserve:
        reserved_ += event.size;
        changed_ = true;
        return;
      case trace_kind::release:
        reserved_ -= std::min(reserved_, event.size);
        changed_ = true;
        return;
      case trace_kind::marker:
        return moment(event,
                      event.other < source_.texts.size() ? source_.texts[event.other] : "marker");
      case trace_kind::out_of_memory:
        return moment(event, "out of memory: " + std::to_string(event.size) + " bytes");
      case trace_kind::reusable:
        return;
      default:
        return moment(event, name(event.kind));
    }
  }

  void count(const live_block& block, bool begins) {
    const std::uint64_t change = begins ? block.size : std::uint64_t{0} - block.size;
    requested_ += change;
    if (block.tag < by_tag_.size()) by_tag_[block.tag] += change;
    changed_ = true;
  }

  void slice(char phase, const trace_event& event, const live_block& block) {
    item(
        "{{\"ph\":\"{}\",\"cat\":\"block\",\"pid\":1,\"tid\":{},\"id\":{},\"ts\":{:.3f},"
        "\"name\":{},\"args\":{{\"address\":\"{:#x}\",\"stream\":{}}}}}",
        phase, event.thread, block.number, microseconds(event.time), name_of(block.size, block.tag),
        event.address, event.stream < source_.streams.size() ? source_.streams[event.stream] : 0);
  }

  void moment(const trace_event& event, std::string_view text) {
    item("{{\"ph\":\"i\",\"s\":\"p\",\"pid\":1,\"tid\":{},\"ts\":{:.3f},\"name\":{}}}",
         event.thread, microseconds(event.time), json_text(text));
  }

  void counters() {
    if (!changed_) return;
    changed_ = false;
    item("{{\"ph\":\"C\",\"pid\":1,\"ts\":{:.3f},\"name\":\"memory\",\"args\":{{\"live\":{}",
         microseconds(last_time_), requested_);
    // A recording without reservations leaves it out, rather than say 0.
    if (has_reserved_) append(",\"reserved\":{}", reserved_);
    append("}}}}");
    if (by_tag_.size() < 2) return;
    item("{{\"ph\":\"C\",\"pid\":1,\"ts\":{:.3f},\"name\":\"live by tag\",\"args\":{{",
         microseconds(last_time_));
    for (std::size_t i = 0; i < by_tag_.size(); ++i)
      append("{}{}:{}", i == 0 ? "" : ",", json_text(i == 0 ? "no tag" : source_.tags[i]),
             by_tag_[i]);
    append("}}}}");
  }

  const recording& source_;
  chrome_options options_;
  fmt::memory_buffer out_;
  bool has_reserved_ = false;
  bool first_ = true;
  bool changed_ = false;
  std::uint64_t last_time_ = 0;
  std::uint64_t requested_ = 0;
  std::uint64_t reserved_ = 0;
  std::uint64_t next_number_ = 1;
  std::vector<std::uint64_t> by_tag_;
  std::unordered_map<std::uint64_t, live_block> live_;
};

}  // namespace

std::string chrome_trace_of(const recording& recording, const chrome_options& options) {
  return chrome_writer{recording, options}.write();
}

result<void> write_chrome_trace(const recording& recording, const std::string& path,
                                const chrome_options& options) {
  return write_file(path, chrome_trace_of(recording, options));
}

}  // namespace weir::inline v0::formats
