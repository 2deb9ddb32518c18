// Members of the process.
#include "sharing/budget_option.hpp"

#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

#include "base/mutex.hpp"
#include "weir/share/budget.hpp"

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

  result<void> join(caching_allocator& allocator, std::string_view text) {
    WEIR_TRY_VALUE(options, parse_budget(text));
    WEIR_TRY_VALUE(member, budget_member::join(allocator, options));
    const detail::mutex_lock lock{mutex_};
    members_.push_back(std::move(member));
    return {};
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

}  // namespace

result<void> join_if_enabled(caching_allocator& allocator, const allocator_options& settings) {
  if (settings.budget != "off") return process_members::get().join(allocator, settings.budget);
  const char* const variable = secure_getenv("WEIR_BUDGET");
  if (variable == nullptr || *variable == '\0' || std::string_view{variable} == "off") return {};
  if (const auto joined = process_members::get().join(allocator, variable); !joined)
    report_error(joined.error());
  return {};
}

}  // namespace weir::inline v0::budget
