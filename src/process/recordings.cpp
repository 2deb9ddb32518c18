// SPDX-License-Identifier: Apache-2.0
// Starting recordings at the creation of an allocator, and ending them with the process.
#include "process/recordings.hpp"

#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/environment.hpp"
#include "base/file.hpp"
#include "base/part_file.hpp"
#include "heap/heap_view.hpp"
#include "process/process_scoped.hpp"
#include "weir/base/options.hpp"
#include "weir/trace/recorder.hpp"

namespace weir { inline namespace v0 { namespace process {
namespace {

struct recording {
  std::unique_ptr<weir::recorder> recorder;
  observer_registration registration;
};

/// Completes the files. The recorders stay: allocators that outlive this still call them.
struct stop_recorders {
  void operator()(const std::vector<recording>& recordings) const {
    for (const recording& each : recordings) static_cast<void>(each.recorder->close());
  }
};

/// The name of the next recording: "run.weirtrace", "run.2.weirtrace", …; %p is the process.
/// The first one's path, or with the next number before its ending. Files that are there stay, but
/// for one that the program names itself: the variable of the environment counts for the program's
/// children, too, and for what a script runs one after the other.
std::string next_path(std::string path, bool replaces_first) {
  static std::atomic<int> count{0};
  if (const auto placeholder = path.find("%p"); placeholder != path.npos)
    path.replace(placeholder, 2, std::to_string(::getpid()));
  for (;;) {
    const int number = ++count;
    std::string name = detail::numbered_path(path, number);
    if (number == 1 && replaces_first) return name;
    if (!detail::identity_at(name)) return name;
  }
}

result<void> record(caching_allocator& allocator, std::string path, bool stacks) {
  const weir::device gpu = allocator.device();
  WEIR_TRY_VALUE(started, recorder::start(path, {.stacks = stacks,
                                                 .device = std::string{gpu.name()},
                                                 .device_capacity = gpu.total_memory()}));
  WEIR_TRY_VALUE(registration, allocator.add_observer(*started));
  process_scoped<recording, stop_recorders>::get().keep(
      heap::heap_view{allocator}.events(), {std::move(started), std::move(registration)});
  return {};
}

}  // namespace

result<void> record_if_requested(caching_allocator& allocator, const allocator_options& settings) {
  const std::string_view requested = detail::environment_value("WEIR_RECORD");
  if (settings.record != "off" && settings.record != requested)
    return record(allocator, next_path(settings.record, true), settings.record_stacks);
  if (requested.empty() || requested == "off") return {};
  options variables;
  variables.record_stacks = settings.record_stacks;
  const std::string_view stacks = detail::environment_value("WEIR_RECORD_STACKS");
  if (!stacks.empty()) {
    if (const auto parsed = set(variables, "record_stacks", stacks); !parsed)
      detail::report_unavailable("WEIR_RECORD_STACKS", parsed.error());
  }
  const auto begun =
      record(allocator, next_path(std::string{requested}, false), variables.record_stacks);
  if (!begun) detail::report_unavailable("WEIR_RECORD", begun.error());
  return {};
}

}}}  // namespace weir::v0::process
