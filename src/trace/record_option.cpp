// Recording because the options or the environment say so.
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/environment.hpp"
#include "base/part_file.hpp"
#include "heap/allocator_created.hpp"
#include "sharing/budget_option.hpp"
#include "trace/live_option.hpp"
#include "weir/trace/recorder.hpp"

namespace weir::inline v0 {
namespace {

/// The process's recorders. They, and this, are never destroyed: allocators may outlive
/// every static object. When the process ends they are stopped.
class process_recorders {
 public:
  static process_recorders& get() {
    static process_recorders& instance = *new process_recorders;
    static const int registered = std::atexit([] { instance.stop(); });
    static_cast<void>(registered);
    return instance;
  }

  result<void> record(caching_allocator& allocator, const std::string& path, bool stacks) {
    const std::lock_guard lock{mutex_};
    recordings_.reserve(recordings_.size() + 1);
    const weir::device gpu = allocator.device();
    WEIR_TRY_VALUE(started, recorder::start(numbered(path, ++count_),
                                            {.stacks = stacks,
                                             .device = std::string{gpu.name()},
                                             .device_capacity = gpu.total_memory()}));
    observer_registration registration = allocator.add_observer(*started);
    recordings_.push_back({std::move(started), std::move(registration)});
    return {};
  }

 private:
  /// "run.weirtrace", "run.2.weirtrace", …; %p is the process.
  static std::string numbered(std::string path, int number) {
    if (const auto placeholder = path.find("%p"); placeholder != path.npos)
      path.replace(placeholder, 2, std::to_string(getpid()));
    return detail::numbered_path(std::move(path), number);
  }

  struct process_recording {
    std::unique_ptr<weir::recorder> recorder;
    observer_registration registration;
  };

  /// Not in a child: the recordings are its parent's, and so may be the lock.
  void stop() {
    if (getpid() != process_) return;
    const std::lock_guard lock{mutex_};
    for (const process_recording& each : recordings_) static_cast<void>(each.recorder->stop());
  }

  std::mutex mutex_;
  std::vector<process_recording> recordings_;
  int count_ = 0;
  const pid_t process_ = getpid();
};

}  // namespace

namespace {

result<void> record_if_enabled(caching_allocator& allocator, const allocator_options& settings) {
  const std::string_view requested = detail::environment_value("WEIR_RECORD");
  if (settings.record != "off" && settings.record != requested)
    return process_recorders::get().record(allocator, settings.record, settings.record_stacks);
  if (requested.empty() || requested == "off") return {};
  options variables;
  variables.record_stacks = settings.record_stacks;
  const std::string_view stacks = detail::environment_value("WEIR_RECORD_STACKS");
  if (!stacks.empty()) {
    if (const auto parsed = set(variables, "record_stacks", stacks); !parsed)
      detail::report_unavailable("WEIR_RECORD_STACKS", parsed.error());
  }
  const auto begun =
      process_recorders::get().record(allocator, std::string{requested}, variables.record_stacks);
  if (!begun) detail::report_unavailable("WEIR_RECORD", begun.error());
  return {};
}

}  // namespace

/// What the options name and cannot be provided is the caller's error. What the environment names
/// must not stop a program that knows nothing of it, also where the program took its options from
/// the environment.
result<void> heap::allocator_created(caching_allocator& allocator,
                                     const allocator_options& settings) try {
  WEIR_TRY_VALUE(member, budget::join_if_enabled(allocator, settings));
  WEIR_TRY_VALUE(page, trace::publish_if_enabled(allocator, settings));
  WEIR_TRY(record_if_enabled(allocator, settings));
  budget::keep(std::move(member));
  trace::keep(std::move(page));
  return {};
} catch (const std::bad_alloc&) {
  return error{.code = errc::no_host_memory, .detail = "no host memory for a recording"};
}

}  // namespace weir::inline v0
