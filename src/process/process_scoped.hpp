// Objects that belong to the process: kept until it ends, then ended in one place.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

namespace weir { inline namespace v0 { namespace process {

/// What is done with the objects when the process ends, unless their class says otherwise.
struct destroy_objects {
  template <class T>
  void operator()(std::vector<T>& objects) const {
    objects.clear();
  }
};

/// All objects of type T that this process keeps.
///
/// `End` is called with them once, when the process that kept the first of them ends normally
/// (atexit). It is not called in a forked child: the objects are the parent's, and the lock may
/// have been held by a thread that the child does not have. The store itself is never destroyed,
/// because allocators may outlive every static object. Any thread may call keep().
template <class T, class End = destroy_objects>
class process_scoped {
 public:
  static process_scoped& get() {
    static process_scoped& instance = *new process_scoped;
    static const int registered = std::atexit([] { instance.end(); });
    static_cast<void>(registered);
    return instance;
  }

  /// Throws std::bad_alloc, and then destroys `object`.
  void keep(T object) {
    const std::lock_guard lock{mutex_};
    objects_.push_back(std::move(object));
  }

 private:
  void end() {
    if (::getpid() != process_) return;
    const std::lock_guard lock{mutex_};
    End{}(objects_);
  }

  const pid_t process_ = ::getpid();
  std::mutex mutex_;
  std::vector<T> objects_;
};

}}}  // namespace weir::v0::process
