// Live pages of the process.
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
    static process_pages& instance = *new process_pages;
    static const int registered = std::atexit([] { instance.end(); });
    static_cast<void>(registered);
    return instance;
  }

  result<void> publish(caching_allocator& allocator) {
    const std::lock_guard lock{mutex_};
    WEIR_TRY_VALUE(page, live_page::publish(allocator));
    pages_.push_back(std::move(page));
    return {};
  }

 private:
  /// Not in a child: the pages are its parent's, and so may be the lock.
  void end() {
    if (::getpid() != process_) return;
    const std::lock_guard lock{mutex_};
    pages_.clear();
  }

  const pid_t process_ = ::getpid();
  std::mutex mutex_;
  std::vector<std::unique_ptr<live_page>> pages_;
};

}  // namespace

result<void> publish_if_enabled(caching_allocator& allocator, const allocator_options& settings) {
  if (settings.live) return process_pages::get().publish(allocator);
  const char* const variable = secure_getenv("WEIR_LIVE");
  if (variable == nullptr || *variable == '\0') return {};
  options variables;
  result<void> published = set(variables, "live", variable);
  if (published && variables.live) published = process_pages::get().publish(allocator);
  if (!published) report_error(published.error());
  return {};
}

}  // namespace weir::inline v0::trace
