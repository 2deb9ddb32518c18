// Writes JSON: always valid, whatever bytes the strings hold.
#pragma once

#include <array>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weir::command {

/// Builds one JSON text, indented for people. Commas, indentation and escapes are its business;
/// that every begin has its end and every member of an object its key is the caller's.
class json_writer {
 public:
  json_writer& begin_object() { return open('{'); }
  json_writer& end_object() { return close('}'); }
  json_writer& begin_array() { return open('['); }
  json_writer& end_array() { return close(']'); }

  json_writer& key(std::string_view name) {
    separate();
    quote(name);
    text_ += ": ";
    after_key_ = true;
    return *this;
  }

  json_writer& value(std::string_view text) {
    separate();
    quote(text);
    return *this;
  }
  // Without this one a literal would become a bool.
  json_writer& value(const char* text) { return value(std::string_view{text}); }
  json_writer& value(bool truth) { return raw(truth ? "true" : "false"); }
  template <std::integral Number>
  json_writer& value(Number number) {
    return raw(std::to_string(number));
  }
  /// The shortest text that reads as the same number; null for what is none.
  json_writer& value(double number) {
    if (!std::isfinite(number)) return null();
    std::array<char, 32> text{};
    const auto end = std::to_chars(text.data(), text.data() + text.size(), number).ptr;
    return raw({text.data(), static_cast<std::size_t>(end - text.data())});
  }
  json_writer& null() { return raw("null"); }

  template <class Value>
  json_writer& member(std::string_view name, const Value& content) {
    return key(name).value(content);
  }

  /// The text so far, with a line end.
  [[nodiscard]] std::string text() const { return text_ + "\n"; }

 private:
  json_writer& open(char bracket) {
    separate();
    text_ += bracket;
    filled_.push_back(false);
    return *this;
  }

  json_writer& close(char bracket) {
    const bool had_content = filled_.back();
    filled_.pop_back();
    if (had_content) new_line();
    text_ += bracket;
    return *this;
  }

  json_writer& raw(std::string_view token) {
    separate();
    text_ += token;
    return *this;
  }

  /// What has to stand between the text so far and the next key or element.
  void separate() {
    if (after_key_) {
      after_key_ = false;
      return;
    }
    if (filled_.empty()) return;
    if (filled_.back()) text_ += ',';
    filled_.back() = true;
    new_line();
  }

  void new_line() {
    text_ += '\n';
    text_.append(2 * filled_.size(), ' ');
  }

  void quote(std::string_view raw_text) {
    text_ += '"';
    while (!raw_text.empty()) {
      const auto first = static_cast<unsigned char>(raw_text.front());
      const std::size_t length = first < 0x80 ? 1 : utf8_length(raw_text);
      if (length == 0) {
        text_ += "\xef\xbf\xbd";  // U+FFFD for a byte that is no text
        raw_text.remove_prefix(1);
        continue;
      }
      if (length == 1) {
        escape(raw_text.front());
      } else {
        text_ += raw_text.substr(0, length);
      }
      raw_text.remove_prefix(length);
    }
    text_ += '"';
  }

  void escape(char letter) {
    switch (letter) {
      case '"':
        text_ += "\\\"";
        return;
      case '\\':
        text_ += "\\\\";
        return;
      case '\n':
        text_ += "\\n";
        return;
      case '\r':
        text_ += "\\r";
        return;
      case '\t':
        text_ += "\\t";
        return;
      default:
        break;
    }
    const auto code = static_cast<unsigned char>(letter);
    if (code >= 0x20 && code != 0x7f) {
      text_ += letter;
      return;
    }
    constexpr std::string_view digits = "0123456789abcdef";
    text_ += "\\u00";
    text_ += digits[code >> 4];
    text_ += digits[code & 15];
  }

  /// The length of the multi-byte character that `text` begins with; 0 if it is not valid UTF-8:
  /// a stray or missing continuation, an overlong form, a surrogate, or beyond U+10FFFF.
  [[nodiscard]] static std::size_t utf8_length(std::string_view text) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned lead = byte(0);
    const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc2 ? 2 : 0;
    if (length == 0 || lead > 0xf4 || text.size() < length) return 0;
    std::uint32_t code = lead & (0xffU >> (length + 1));
    for (std::size_t i = 1; i < length; ++i) {
      if ((byte(i) & 0xc0U) != 0x80) return 0;
      code = (code << 6) | (byte(i) & 0x3fU);
    }
    const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
    const bool surrogate = code >= 0xd800 && code <= 0xdfff;
    return overlong || surrogate || code > 0x10ffff ? 0 : length;
  }

  std::string text_;
  std::vector<bool> filled_;  // for each open bracket: whether something stands in it
  bool after_key_ = false;
};

}  // namespace weir::command
