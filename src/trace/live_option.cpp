// Live pages of the process.
#include "trace/live_option.hpp"

#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "base/environment.hpp"

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

  void keep(std::unique_ptr<live_page> page) {
    const std::lock_guard lock{mutex_};
    pages_.push_back(std::move(page));
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

result<std::unique_ptr<live_page>> publish_if_enabled(caching_allocator& allocator,
                                                      const allocator_options& settings) {
  const std::string_view value = detail::environment_value("WEIR_LIVE");
  options variables;
  result<void> read;
  if (!value.empty()) read = set(variables, "live", value);
  if (!read) detail::report_unavailable("WEIR_LIVE", read.error());
  if (!variables.live && !settings.live) return std::unique_ptr<live_page>{};
  auto published = live_page::publish(allocator);
  if (published || !variables.live) return published;
  detail::report_unavailable("WEIR_LIVE", published.error());
  return std::unique_ptr<live_page>{};
}

void keep(std::unique_ptr<live_page> page) {
  if (page != nullptr) process_pages::get().keep(std::move(page));
}

}  // namespace weir::inline v0::trace
