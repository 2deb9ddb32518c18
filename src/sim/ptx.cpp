// SPDX-License-Identifier: Apache-2.0
// A small reader of PTX: tokens, and the declarations outside of function bodies.
#include "sim/ptx.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <optional>
#include <utility>

namespace weir { inline namespace v0 { namespace sim {

using namespace driver;

namespace {

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%' ||
         c == '.';
}

/// Splits text into words (names, directives and numbers, dots included) and single signs; comments
/// and blanks fall away. An empty token is the end.
class token_reader {
 public:
  explicit token_reader(std::string_view text) : rest_{text} {}

  std::string_view next() {
    skip_blanks();
    if (rest_.empty()) return {};
    std::size_t length = 1;
    if (rest_.front() == '"') {
      const std::size_t close = rest_.find('"', 1);
      length = close == std::string_view::npos ? rest_.size() : close + 1;
    } else if (is_word(rest_.front())) {
      while (length < rest_.size() && is_word(rest_[length])) ++length;
    }
    return take(length);
  }

  /// Takes the next token if it is this one.
  bool accept(std::string_view expected) {
    token_reader ahead = *this;
    if (ahead.next() != expected) return false;
    *this = ahead;
    return true;
  }

 private:
  std::string_view take(std::size_t length) {
    const std::string_view taken = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return taken;
  }

  void skip_blanks() {
    for (;;) {
      std::size_t skipped = 0;
      if (rest_.starts_with("//")) {
        skipped = std::min(rest_.find('\n'), rest_.size());
      } else if (rest_.starts_with("/*")) {
        const std::size_t close = rest_.find("*/", 2);
        skipped = close == std::string_view::npos ? rest_.size() : close + 2;
      } else {
        while (skipped < rest_.size() && std::isspace(static_cast<unsigned char>(rest_[skipped]))) {
          ++skipped;
        }
      }
      if (skipped == 0) return;
      rest_.remove_prefix(skipped);
    }
  }

  std::string_view rest_;
};

template <class Number>
std::optional<Number> to_number(std::string_view digits) {
  Number value{};
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

std::optional<std::size_t> size_of_type(std::string_view type) {
  constexpr std::array<std::pair<std::string_view, std::size_t>, 22> sizes{
      {{".b8", 1},    {".u8", 1},     {".s8", 1},     {".b16", 2},    {".u16", 2}, {".s16", 2},
       {".f16", 2},   {".bf16", 2},   {".b32", 4},    {".u32", 4},    {".s32", 4}, {".f32", 4},
       {".f16x2", 4}, {".bf16x2", 4}, {".tf32", 4},   {".b64", 8},    {".u64", 8}, {".s64", 8},
       {".f64", 8},   {".b128", 16},  {".texref", 8}, {".surfref", 8}}};
  for (const auto& [name, size] : sizes) {
    if (name == type) return size;
  }
  return std::nullopt;
}

/// "7.0" is 70. ISA minors have one digit.
std::optional<int> read_version(std::string_view text) {
  const std::size_t dot = text.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const auto major = to_number<int>(text.substr(0, dot));
  const auto minor = to_number<int>(text.substr(dot + 1));
  if (!major || !minor || *major < 0 || *minor < 0 || *minor > 9) return std::nullopt;
  return *major * 10 + *minor;
}

/// "sm_90" and "sm_90a" are 90.
std::optional<int> read_target(std::string_view text) {
  if (!text.starts_with("sm_")) return std::nullopt;
  text.remove_prefix(3);
  if (text.ends_with('a') || text.ends_with('f')) text.remove_suffix(1);
  return to_number<int>(text);
}

/// `.param [.align n] .type [.ptr ...] name [ [count] ]`, after the word .param.
bool read_parameter(token_reader& from, ptx_entry& entry) {
  std::size_t alignment = 0;
  std::optional<std::size_t> element;
  std::string_view word = from.next();
  for (; word.starts_with('.'); word = from.next()) {
    if (word == ".align") {
      const auto value = to_number<std::size_t>(from.next());
      if (!value || *value == 0 || (*value & (*value - 1)) != 0) return false;
      // After .ptr it speaks of what the pointer points at, and so does the space before it.
      if (!element) alignment = *value;
    } else if (!element) {
      element = size_of_type(word);
      if (!element) return false;
    }
  }
  if (!element || word.empty() || !is_word(word.front())) return false;  // `word` is the name
  std::size_t count = 1;
  if (from.accept("[")) {
    const auto value = to_number<std::size_t>(from.next());
    // No kernel may have more than 32,764 bytes of parameters.
    if (!value || *value > 32'764 || !from.accept("]")) return false;
    count = *value;
  }
  alignment = std::max(alignment, *element);
  std::size_t offset = 0;
  if (!entry.parameters.empty())
    offset = entry.parameters.back().offset + entry.parameters.back().size;
  offset = (offset + alignment - 1) / alignment * alignment;
  entry.parameters.push_back({*element * count, offset});
  return true;
}

/// `name [ (parameters) ]`, after the word .entry.
bool read_entry(token_reader& from, ptx_module& module) {
  ptx_entry entry;
  entry.name = from.next();
  if (entry.name.empty() || entry.name.front() == '.' || !is_word(entry.name.front())) return false;
  if (from.accept("(") && !from.accept(")")) {
    do {
      if (!from.accept(".param") || !read_parameter(from, entry)) return false;
    } while (from.accept(","));
    if (!from.accept(")")) return false;
  }
  module.entries.push_back(std::move(entry));
  return true;
}

}  // namespace

CUresult read_ptx(std::string_view text, ptx_module& module) {
  token_reader from{text};
  if (!from.accept(".version")) return CUDA_ERROR_INVALID_IMAGE;
  const auto version = read_version(from.next());
  if (!version || !from.accept(".target")) return CUDA_ERROR_INVALID_PTX;
  const auto target = read_target(from.next());
  if (!target) return CUDA_ERROR_INVALID_PTX;
  module.version = *version;
  module.target = *target;
  int depth = 0;
  for (std::string_view token = from.next(); !token.empty(); token = from.next()) {
    if (token == "{") ++depth;
    if (token == "}" && --depth < 0) return CUDA_ERROR_INVALID_PTX;
    if (token != ".entry" || depth != 0) continue;
    if (!read_entry(from, module)) return CUDA_ERROR_INVALID_PTX;
  }
  return depth == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_PTX;
}

}}}  // namespace weir::v0::sim
