// SPDX-License-Identifier: Apache-2.0
// While it lives the system refuses to start threads, where that can be arranged.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <thread>

namespace weir::testing_support {

/// By asking for more stack than there are addresses. Sanitizers choose stacks of their own and may
/// not care: false then.
class no_threads {
 public:
  no_threads() {
    if (pthread_getattr_default_np(&before_) != 0) return;
    pthread_attr_t huge;
    pthread_attr_init(&huge);
    changed_ = pthread_attr_setstacksize(&huge, std::size_t{1} << 60) == 0 &&
               pthread_setattr_default_np(&huge) == 0;
    pthread_attr_destroy(&huge);
    if (!changed_) return;
    try {
      std::thread{[] {}}.join();
    } catch (const std::system_error&) {
      refused_ = true;
    }
  }
  ~no_threads() {
    if (changed_) pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }
  no_threads(const no_threads&) = delete;
  no_threads& operator=(const no_threads&) = delete;

  explicit operator bool() const noexcept { return refused_; }

 private:
  pthread_attr_t before_{};
  bool changed_ = false;
  bool refused_ = false;
};

}  // namespace weir::testing_support
