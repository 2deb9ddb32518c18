// SPDX-License-Identifier: Apache-2.0
// Reading the environment, and reporting what it requests and weir cannot provide.
#include "base/environment.hpp"

#include <stdlib.h>  // secure_getenv

#include <mutex>
#include <new>
#include <set>
#include <string>
#include <utility>

namespace weir { inline namespace v0 { namespace detail {

std::string_view environment_value(const char* variable) noexcept {
  const char* const value = ::secure_getenv(variable);
  return value == nullptr ? std::string_view{} : value;
}

void report_unavailable(const char* variable, const error& reason) noexcept try {
  error reported = reason;
  reported.set_detail(std::string{variable} + ": " + reason.detail());
  // Never destroyed: allocators may be made until the process ends.
  static std::mutex& mutex = *new std::mutex;
  static auto& known = *new std::set<std::pair<std::string, errc>>;
  {
    const std::lock_guard lock{mutex};
    if (!known.emplace(variable, reason.code()).second) return;
  }
  report_mistake(reported);
} catch (const std::bad_alloc&) {
  report_mistake(reason);
}

}}}  // namespace weir::v0::detail
