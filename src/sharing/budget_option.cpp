// Members of the process.
#include "sharing/budget_option.hpp"

#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/environment.hpp"
#include "base/mutex.hpp"

namespace weir::inline v0::budget {
namespace {

/// Never destroyed: allocators may outlive every static object. They leave when the process ends.
class process_members {
 public:
  static process_members& get() {
    static process_members& instance = *new process_members;
    static const int registered = std::atexit([] { instance.end(); });
    static_cast<void>(registered);
    return instance;
  }

  void keep(std::unique_ptr<budget_member> member) {
    const detail::mutex_lock lock{mutex_};
    members_.push_back(std::move(member));
  }

 private:
  /// Not in a child: the shares are its parent's, and so may be the lock.
  void end() {
    if (::getpid() != process_) return;
    const detail::mutex_lock lock{mutex_};
    members_.clear();
  }

  const pid_t process_ = ::getpid();
  detail::mutex mutex_;
  std::vector<std::unique_ptr<budget_member>> members_ WEIR_GUARDED_BY(mutex_);
};

result<std::unique_ptr<budget_member>> join(caching_allocator& allocator, std::string_view text) {
  WEIR_TRY_VALUE(options, parse_budget(text));
  return budget_member::join(allocator, options);
}

}  // namespace

result<std::unique_ptr<budget_member>> join_if_enabled(caching_allocator& allocator,
                                                       const allocator_options& settings) {
  const std::string_view requested = detail::environment_value("WEIR_BUDGET");
  if (settings.budget != "off" && settings.budget != requested)
    return join(allocator, settings.budget);
  if (requested.empty() || requested == "off") return std::unique_ptr<budget_member>{};
  auto joined = join(allocator, requested);
  if (joined) return joined;
  detail::report_unavailable("WEIR_BUDGET", joined.error());
  return std::unique_ptr<budget_member>{};
}

void keep(std::unique_ptr<budget_member> member) {
  if (member != nullptr) process_members::get().keep(std::move(member));
}

}  // namespace weir::inline v0::budget
