// SPDX-License-Identifier: Apache-2.0
// The text of torch's allocator settings, cut and changed.
#include "setting_text.hpp"

#include <algorithm>
#include <cctype>
#include <cstddef>

namespace weir_torch {
namespace {

std::string without_spaces(const std::string& text) {
  std::string dense;
  for (const char each : text)
    if (std::isspace(static_cast<unsigned char>(each)) == 0) dense += each;
  return dense;
}

/// Those of which `is_kept` says so, with commas between them.
template <class Test>
std::string join_parts(const std::string& text, const Test& is_kept) {
  std::string rest;
  for (const std::string& part : setting_parts(text))
    if (is_kept(part)) rest += rest.empty() ? part : "," + part;
  return rest;
}

}  // namespace

std::vector<std::string> setting_parts(const std::string& text) {
  std::vector<std::string> parts;
  const std::string dense = without_spaces(text);
  for (std::size_t start = 0; start <= dense.size();) {
    const std::size_t end = std::min(dense.find(',', start), dense.size());
    parts.push_back(dense.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

std::string without_native_backend(const std::string& text) {
  return join_parts(text, [](const std::string& part) { return part != "backend:native"; });
}

std::string with_expandable_segments(const std::string& text) {
  const std::string rest = join_parts(text, [](const std::string& part) {
    return !part.empty() && part.rfind("expandable_segments:", 0) != 0;
  });
  return (rest.empty() ? rest : rest + ",") + "expandable_segments:True";
}

}  // namespace weir_torch
