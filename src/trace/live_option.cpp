// Live pages that nobody owns.
#include "trace/live_option.hpp"

#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

#include "weir/trace/live_page.hpp"

namespace weir::inline v0::trace {
namespace {

/// Never destroyed: allocators may outlive every static object. The pages go when the process ends.
class process_pages {
 public:
  static process_pages& get() {
    static process_pages& only = *new process_pages;
    static const int registered = std::atexit([] { only.end(); });
    static_cast<void>(registered);
    return only;
  }

  result<void> publish(caching_allocator& made) {
    const std::lock_guard lock{mutex_};
    WEIR_TRY_VALUE(page, live_page::publish(made));
    all_.push_back(std::move(page));
    return {};
  }

 private:
  /// Not in a child: the pages are its parent's, and so may be the lock.
  void end() {
    if (::getpid() != process_) return;
    const std::lock_guard lock{mutex_};
    all_.clear();
  }

  const pid_t process_ = ::getpid();
  std::mutex mutex_;
  std::vector<std::unique_ptr<live_page>> all_;
};

}  // namespace

result<void> publish_if_wanted(caching_allocator& made, const options& settings) {
  if (settings.live) return process_pages::get().publish(made);
  const char* const variable = secure_getenv("WEIR_LIVE");
  if (variable == nullptr || *variable == '\0') return {};
  options asked;
  result<void> done = set(asked, "live", variable);
  if (done && asked.live) done = process_pages::get().publish(made);
  if (!done) report_error(done.error());
  return {};
}

}  // namespace weir::inline v0::trace
