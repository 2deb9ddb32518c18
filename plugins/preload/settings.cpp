// SPDX-License-Identifier: Apache-2.0
// Reading the settings of `weir run`, and removing them for children that run without weir.
#include "settings.hpp"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string_view>

namespace weir_preload {

namespace {

std::string_view variable(const char* name) noexcept {
  const char* const value = secure_getenv(name);
  return value != nullptr ? value : "";
}

bool is_on(const char* name) noexcept {
  const std::string_view value = variable(name);
  return !value.empty() && value != "off" && value != "0";
}

/// Whether a word stands in a list that is separated by commas.
bool has_word(std::string_view list, std::string_view word) noexcept {
  while (!list.empty()) {
    const auto comma = list.find(',');
    if (list.substr(0, comma) == word) return true;
    list = comma == list.npos ? std::string_view{} : list.substr(comma + 1);
  }
  return false;
}

/// What children of the program would find, but for what stood there before `weir run`.
void hide_from_children() noexcept {
  const char* const before = secure_getenv("WEIR_RUN_PRELOAD");
  if (before != nullptr && *before != '\0') {
    ::setenv("LD_PRELOAD", before, 1);
  } else {
    ::unsetenv("LD_PRELOAD");
  }
  for (const char* const name : std::array{"WEIR_RUN_PRELOAD", "WEIR_RUN_CHILDREN"})
    ::unsetenv(name);
}

settings read() {
  settings chosen;
  chosen.records_only = is_on("WEIR_RUN_RECORD_ONLY");
  chosen.frees_async = variable("WEIR_RUN_FREE") == "async";
  chosen.keeps_plain = has_word(variable("WEIR_RUN_KEEP"), "cuMemAlloc");
  chosen.keeps_ordered = has_word(variable("WEIR_RUN_KEEP"), "cuMemAllocAsync");
  chosen.is_quiet = is_on("WEIR_RUN_QUIET");
  chosen.record = variable("WEIR_RUN_RECORD");
  // Memory of cuMemAlloc may be used on every stream at once, so none may come behind a queued
  // wait; and streams may be destroyed in ways that nobody tells of.
  weir::options initial;
  initial.heap_allow_unreleased_streams = true;
  auto heap = weir::options_from_environment({}, initial);
  if (heap) {
    chosen.heap = *std::move(heap);
    chosen.heap.heap_queued_waits = false;
  } else {
    chosen.problem = heap.error().message();
  }
  return chosen;
}

/// When the library is loaded: touches no CUDA, as it is loaded into every program below.
[[gnu::constructor]] void begin() noexcept {
  try {
    static_cast<void>(settings::get());
  } catch (...) {
    // No host memory: it is tried again when it is needed.
  }
  if (variable("WEIR_RUN_CHILDREN") == "off") hide_from_children();
}

}  // namespace

const settings& settings::get() {
  static const settings& chosen = *new settings{read()};
  return chosen;
}

std::string trace_path(std::string path, int number, long process, long started) {
  bool names_process = process == started;
  if (const auto placeholder = path.find("%p"); placeholder != path.npos) {
    path.replace(placeholder, 2, std::to_string(process));
    names_process = true;
  }
  std::string insertion;
  if (!names_process) insertion += "." + std::to_string(process);
  if (number != 1) insertion += "." + std::to_string(number);
  const auto dot = path.rfind('.');
  const bool has_ending = dot != path.npos && path.find('/', dot) == path.npos && dot != 0;
  return path.insert(has_ending ? dot : path.size(), insertion);
}

}  // namespace weir_preload
