// SPDX-License-Identifier: Apache-2.0
// Objects that belong to the process and to an allocator: kept until one of them ends.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <memory>
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

/// All objects of type T that this process keeps, each for an allocator.
///
/// The next keep() destroys the objects whose allocators are gone, so that a program which makes
/// allocators one after the other keeps one too many at most. `End` is called with what is left
/// once, when the process that kept the first of them ends normally (atexit). It is not called in a
/// forked child: the objects are the parent's, and the lock may have been held by a thread that the
/// child does not have. The store itself is never destroyed, because allocators may outlive every
/// static object. Any thread may call keep().
template <class T, class End = destroy_objects>
class process_scoped {
 public:
  static process_scoped& get() {
    static process_scoped& instance = *new process_scoped;
    static const int registered = std::atexit([] { instance.end(); });
    static_cast<void>(registered);
    return instance;
  }

  /// `owner` expires with the allocator. Throws std::bad_alloc, and then destroys `object`.
  void keep(std::weak_ptr<const void> owner, T object) {
    std::vector<T> left;  // destroyed without the lock: that may wait for a thread
    const std::lock_guard lock{mutex_};
    if (::getpid() == process_) take_left(left);
    objects_.reserve(objects_.size() + 1);
    owners_.push_back(std::move(owner));
    objects_.push_back(std::move(object));
  }

 private:
  void end() {
    if (::getpid() != process_) return;
    const std::lock_guard lock{mutex_};
    End{}(objects_);
  }

  /// With the lock: moves the objects of allocators that are gone to `out`.
  void take_left(std::vector<T>& out) {
    const auto gone = std::count_if(owners_.begin(), owners_.end(),
                                    [](const auto& each) { return each.expired(); });
    out.reserve(static_cast<std::size_t>(gone));
    // Those that expire meanwhile stay for the next call.
    for (std::size_t i = 0; i < objects_.size() && out.size() < out.capacity();) {
      if (!owners_[i].expired()) {
        ++i;
        continue;
      }
      out.push_back(std::move(objects_[i]));
      objects_.erase(std::next(objects_.begin(), static_cast<std::ptrdiff_t>(i)));
      owners_.erase(std::next(owners_.begin(), static_cast<std::ptrdiff_t>(i)));
    }
  }

  const pid_t process_ = ::getpid();
  std::mutex mutex_;
  std::vector<std::weak_ptr<const void>> owners_;  // of the objects, by their place
  std::vector<T> objects_;
};

}}}  // namespace weir::v0::process
