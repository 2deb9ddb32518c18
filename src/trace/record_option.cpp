// Recording because the options or the environment say so.
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "heap/created.hpp"
#include "trace/live_option.hpp"
#include "weir/trace/recorder.hpp"

namespace weir::inline v0 {
namespace {

/// The recorders that nobody owns. They, and this, are never destroyed: allocators may outlive
/// every static object. When the process ends they are stopped.
class process_recorders {
 public:
  static process_recorders& get() {
    static process_recorders& only = *new process_recorders;
    static const int registered = std::atexit([] { only.stop(); });
    static_cast<void>(registered);
    return only;
  }

  result<void> record(caching_allocator& made, const std::string& path, bool stacks) {
    const std::lock_guard lock{mutex_};
    all_.reserve(all_.size() + 1);
    const weir::device gpu = made.device();
    WEIR_TRY_VALUE(
        tape, recorder::start(numbered(path, ++count_), {.stacks = stacks,
                                                         .device = std::string{gpu.name()},
                                                         .device_capacity = gpu.total_memory()}));
    made.set_observer(tape.get());
    all_.push_back(std::move(tape));
    return {};
  }

 private:
  /// "run.weirtrace", "run.2.weirtrace", …; %p is the process.
  static std::string numbered(std::string path, int number) {
    if (const auto at = path.find("%p"); at != path.npos)
      path.replace(at, 2, std::to_string(getpid()));
    if (number == 1) return path;
    const auto dot = path.rfind('.');
    const bool has_ending = dot != path.npos && path.find('/', dot) == path.npos && dot != 0;
    path.insert(has_ending ? dot : path.size(), "." + std::to_string(number));
    return path;
  }

  /// Not in a child: the recordings are its parent's, and so may be the lock.
  void stop() {
    if (getpid() != process_) return;
    const std::lock_guard lock{mutex_};
    for (const auto& each : all_) static_cast<void>(each->stop());
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<recorder>> all_;
  int count_ = 0;
  const pid_t process_ = getpid();
};

const char* variable(const char* name) noexcept {
  const char* const value = secure_getenv(name);
  return value == nullptr || *value == '\0' ? nullptr : value;
}

}  // namespace

/// A file that the options name and that cannot be made is the caller's error; one that the
/// environment names must not stop a program that knows nothing of it.
result<void> heap::allocator_created(caching_allocator& made, const options& settings) try {
  WEIR_TRY(trace::publish_if_wanted(made, settings));
  if (settings.record != "off")
    return process_recorders::get().record(made, settings.record, settings.record_stacks);
  const char* const path = variable("WEIR_RECORD");
  if (path == nullptr || std::string_view{path} == "off") return {};
  const char* const stacks = variable("WEIR_RECORD_STACKS");
  options asked;
  if (stacks != nullptr) {
    if (const auto set_it = set(asked, "record_stacks", stacks); !set_it)
      report_error(set_it.error());
  }
  if (const auto done = process_recorders::get().record(made, path, asked.record_stacks); !done)
    report_error(done.error());
  return {};
} catch (const std::bad_alloc&) {
  return error{.code = errc::system, .detail = "no host memory for a recording"};
}

}  // namespace weir::inline v0
