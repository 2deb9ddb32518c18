// Exporting recordings as Chrome traces.
#include "formats/chrome_trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/final_state.hpp"
#include "formats/output.hpp"

namespace weir::inline v0::formats {
namespace {

/// A JSON string. Bytes that are no ASCII letter are escaped one by one: names come from programs
/// and may be anything, and a reader that gets invalid UTF-8 refuses the whole file.
std::string json_text(std::string_view text) {
  std::string out = "\"";
  for (const char each : text) {
    const auto code = static_cast<unsigned char>(each);
    if (each == '"' || each == '\\') {
      out += '\\';
      out += each;
    } else if (code < 0x20 || code >= 0x7f) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", code);
    } else {
      out += each;
    }
  }
  return out += '"';
}

class chrome_writer {
 public:
  chrome_writer(const recording& from, const chrome_options& how) : from_{from}, how_{how} {
    by_tag_.resize(from.tags.size());
    tells_reserved_ = tells_of(from, trace_kind::reserve);
  }

  std::string write() && {
    to("{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
    item("{{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{{\"name\":{}}}}}",
         json_text(from_.program.empty() ? "weir" : from_.program));
    for (std::size_t i = 0; i < from_.threads.size(); ++i) {
      item(
          "{{\"ph\":\"M\",\"pid\":1,\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":"
          "\"thread {}\"}}}}",
          i, from_.threads[i]);
    }
    for (const trace_event& each : from_.events) event(each);
    counters();
    to("\n]}}\n");
    return fmt::to_string(out_);
  }

 private:
  struct live_block {
    std::uint64_t number;
    std::uint64_t size;
    std::uint16_t tag;
  };

  template <class... Values>
  void to(fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Values>(values)...);
  }
  template <class... Values>
  void item(fmt::format_string<Values...> format, Values&&... values) {
    if (!first_) to(",\n");
    first_ = false;
    to(format, std::forward<Values>(values)...);
  }
  [[nodiscard]] static double microseconds(std::uint64_t time) noexcept {
    return static_cast<double>(time) / 1000;
  }
  [[nodiscard]] std::string name_of(std::uint64_t size, std::uint16_t tag) const {
    std::string name = std::to_string(size) + " bytes";
    if (tag != 0 && tag < from_.tags.size()) name += " (" + from_.tags[tag] + ")";
    return json_text(name);
  }

  void event(const trace_event& what) {
    if (changed_ && what.time / 1000 != last_time_ / 1000) counters();
    last_time_ = what.time;
    switch (what.kind) {
      case trace_kind::allocate: {
        const live_block made{next_++, what.size, what.tag};
        live_[what.address] = made;
        count(made, true);
        if (how_.blocks) slice('b', what, made);
        return;
      }
      case trace_kind::deallocate:
        if (const auto found = live_.find(what.address); found != live_.end()) {
          count(found->second, false);
          if (how_.blocks) slice('e', what, found->second);
          live_.erase(found);
        }
        return;
      case trace_kind::reserve:
        reserved_ += what.size;
        changed_ = true;
        return;
      case trace_kind::release:
        reserved_ -= std::min(reserved_, what.size);
        changed_ = true;
        return;
      case trace_kind::marker:
        return moment(what, what.other < from_.texts.size() ? from_.texts[what.other] : "marker");
      case trace_kind::out_of_memory:
        return moment(what, "out of memory: " + std::to_string(what.size) + " bytes");
      case trace_kind::reusable:
        return;
      default:
        return moment(what, name(what.kind));
    }
  }

  void count(const live_block& which, bool more) {
    const std::uint64_t change = more ? which.size : std::uint64_t{0} - which.size;
    requested_ += change;
    if (which.tag < by_tag_.size()) by_tag_[which.tag] += change;
    changed_ = true;
  }

  void slice(char phase, const trace_event& what, const live_block& which) {
    item(
        "{{\"ph\":\"{}\",\"cat\":\"block\",\"pid\":1,\"tid\":{},\"id\":{},\"ts\":{:.3f},"
        "\"name\":{},\"args\":{{\"address\":\"{:#x}\",\"stream\":{}}}}}",
        phase, what.thread, which.number, microseconds(what.time), name_of(which.size, which.tag),
        what.address, what.stream < from_.streams.size() ? from_.streams[what.stream] : 0);
  }

  void moment(const trace_event& what, std::string_view text) {
    item("{{\"ph\":\"i\",\"s\":\"p\",\"pid\":1,\"tid\":{},\"ts\":{:.3f},\"name\":{}}}", what.thread,
         microseconds(what.time), json_text(text));
  }

  void counters() {
    if (!changed_) return;
    changed_ = false;
    item("{{\"ph\":\"C\",\"pid\":1,\"ts\":{:.3f},\"name\":\"memory\",\"args\":{{\"live\":{}",
         microseconds(last_time_), requested_);
    // A recording that does not tell of reservations leaves it open, rather than say 0.
    if (tells_reserved_) to(",\"reserved\":{}", reserved_);
    to("}}}}");
    if (by_tag_.size() < 2) return;
    item("{{\"ph\":\"C\",\"pid\":1,\"ts\":{:.3f},\"name\":\"live by tag\",\"args\":{{",
         microseconds(last_time_));
    for (std::size_t i = 0; i < by_tag_.size(); ++i)
      to("{}{}:{}", i == 0 ? "" : ",", json_text(i == 0 ? "no tag" : from_.tags[i]), by_tag_[i]);
    to("}}}}");
  }

  const recording& from_;
  chrome_options how_;
  fmt::memory_buffer out_;
  bool tells_reserved_ = false;
  bool first_ = true;
  bool changed_ = false;
  std::uint64_t last_time_ = 0;
  std::uint64_t requested_ = 0;
  std::uint64_t reserved_ = 0;
  std::uint64_t next_ = 1;
  std::vector<std::uint64_t> by_tag_;
  std::unordered_map<std::uint64_t, live_block> live_;
};

}  // namespace

std::string chrome_trace_of(const recording& what, const chrome_options& how) {
  return chrome_writer{what, how}.write();
}

result<void> write_chrome_trace(const recording& what, const std::string& path,
                                const chrome_options& how) {
  return write_file(path, chrome_trace_of(what, how));
}

}  // namespace weir::inline v0::formats
