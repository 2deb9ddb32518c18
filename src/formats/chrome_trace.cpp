// SPDX-License-Identifier: Apache-2.0
// Exporting recordings as Chrome traces.
#include "formats/chrome_trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/labels.hpp"
#include "formats/memory_map.hpp"
#include "formats/output.hpp"
#include "formats/utf8.hpp"

namespace weir { inline namespace v0 { namespace formats {
namespace {

/// A JSON string. Names come from programs and may be anything, and a reader that gets invalid
/// UTF-8 refuses the whole file: bytes that are not become U+FFFD.
std::string json_text(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const std::string_view letter = text.substr(0, std::max<std::size_t>(length, 1));
    const auto code = static_cast<unsigned char>(letter[0]);
    text.remove_prefix(letter.size());
    if (length == 0) {
      out += "\\ufffd";
    } else if (letter == "\"" || letter == "\\") {
      (out += '\\') += letter;
    } else if (code < 0x20 || code == 0x7f) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", code);
    } else {
      out += letter;
    }
  }
  return out += '"';
}

/// The live bytes of tags, as few series: the tags that held most have one each, the others share
/// one, so that a counter's size does not grow with the number of tags. Tags of one name are one.
class tag_series {
 public:
  explicit tag_series(const recording& source) {
    std::map<std::string_view, std::uint64_t> most;  // live, by name
    std::map<std::string_view, std::uint64_t> live;
    std::unordered_map<std::uint64_t, std::pair<std::string_view, std::uint64_t>> blocks;
    for (std::size_t i = 1; i < source.tags.size(); ++i) most[source.tags[i]] = 0;
    for (const trace_event& each : source.events) {
      const bool begins = each.kind == trace_kind::allocate;
      if (!begins && each.kind != trace_kind::deallocate) continue;
      if (const auto old = blocks.find(each.address); old != blocks.end()) {
        live[old->second.first] -= old->second.second;
        blocks.erase(old);
      }
      if (!begins || each.tag == 0 || each.tag >= source.tags.size()) continue;
      const std::string_view name = source.tags[each.tag];
      blocks.emplace(each.address, std::pair{name, each.size});
      most[name] = std::max(most[name], live[name] += each.size);
    }
    choose(source, most);
  }

  /// Of an untagged block, too.
  [[nodiscard]] std::size_t of_tag(std::uint16_t tag) const noexcept {
    return tag < of_tag_.size() ? of_tag_[tag] : 0;
  }
  /// In JSON; the first is of blocks without a tag.
  [[nodiscard]] const std::vector<std::string>& names() const noexcept { return names_; }

 private:
  static constexpr std::size_t most_series = 32;  // besides those of no tag and of the others

  void choose(const recording& source, const std::map<std::string_view, std::uint64_t>& most) {
    std::vector<std::pair<std::string_view, std::uint64_t>> order{most.begin(), most.end()};
    std::stable_sort(order.begin(), order.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    const bool has_others = order.size() > most_series;
    if (has_others) order.resize(most_series);
    std::map<std::string_view, std::size_t> series;
    names_.push_back(json_text(label_beside("no tag", source.tags)));
    of_tag_.assign(source.tags.size(), 0);
    // In the order of the tags, whoever held most.
    for (const auto& [name, size] : order) series.emplace(name, 0);
    for (std::size_t i = 1; i < source.tags.size(); ++i) {
      const auto entry = series.find(source.tags[i]);
      if (entry == series.end()) continue;
      if (entry->second == 0) {
        entry->second = names_.size();
        names_.push_back(json_text(source.tags[i]));
      }
      of_tag_[i] = entry->second;
    }
    if (!has_others) return;
    for (std::size_t i = 1; i < of_tag_.size(); ++i)
      if (of_tag_[i] == 0) of_tag_[i] = names_.size();
    names_.push_back(json_text(label_beside("other tags", source.tags)));
  }

  std::vector<std::size_t> of_tag_;
  std::vector<std::string> names_;
};

class chrome_writer {
 public:
  chrome_writer(const recording& source, const chrome_options& options)
      : source_{source}, options_{options}, series_{source} {
    now_.by_tag.resize(series_.names().size());
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
    end_interval();
    append("\n]}}\n");
    return fmt::to_string(out_);
  }

 private:
  /// The counters of a moment.
  struct counter_values {
    std::uint64_t time = 0;
    std::uint64_t live = 0;
    std::uint64_t reserved = 0;
    std::vector<std::uint64_t> by_tag;
  };
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
    if (changed_ && event.time / 1000 != now_.time / 1000) end_interval();
    now_.time = event.time;
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
        now_.reserved += event.size;
        note_change();
        return;
      case trace_kind::release:
        now_.reserved -= std::min(now_.reserved, event.size);
        note_change();
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
    now_.live += change;
    now_.by_tag[series_.of_tag(block.tag)] += change;
    note_change();
  }

  /// Remembers the most of a microsecond, which is what is drawn of it besides its end.
  void note_change() {
    if (!changed_ || now_.live > most_live_.live) most_live_ = now_;
    if (!changed_ || now_.reserved > most_reserved_.reserved) most_reserved_ = now_;
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

  /// Ends a microsecond: its highest moments, where they are above its last, and the last.
  void end_interval() {
    if (!changed_) return;
    changed_ = false;
    const bool shows_live = most_live_.live > now_.live;
    const bool shows_reserved = most_reserved_.reserved > now_.reserved &&
                                (!shows_live || most_reserved_.reserved > most_live_.reserved);
    const bool live_is_first = most_live_.time <= most_reserved_.time;
    if (shows_live && live_is_first) counters(most_live_);
    if (shows_reserved) counters(most_reserved_);
    if (shows_live && !live_is_first) counters(most_live_);
    counters(now_);
  }

  void counters(const counter_values& at) {
    item("{{\"ph\":\"C\",\"pid\":1,\"ts\":{:.3f},\"name\":\"memory\",\"args\":{{\"live\":{}",
         microseconds(at.time), at.live);
    // A recording without reservations leaves it out, rather than say 0.
    if (has_reserved_) append(",\"reserved\":{}", at.reserved);
    append("}}}}");
    if (series_.names().size() < 2) return;
    item("{{\"ph\":\"C\",\"pid\":1,\"ts\":{:.3f},\"name\":\"live by tag\",\"args\":{{",
         microseconds(at.time));
    for (std::size_t i = 0; i < at.by_tag.size(); ++i)
      append("{}{}:{}", i == 0 ? "" : ",", series_.names()[i], at.by_tag[i]);
    append("}}}}");
  }

  const recording& source_;
  chrome_options options_;
  tag_series series_;
  fmt::memory_buffer out_;
  bool has_reserved_ = false;
  bool first_ = true;
  bool changed_ = false;
  counter_values now_;
  counter_values most_live_;      // since the microsecond began
  counter_values most_reserved_;  // likewise
  std::uint64_t next_number_ = 1;
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

}}}  // namespace weir::v0::formats
