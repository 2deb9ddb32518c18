// SPDX-License-Identifier: Apache-2.0
// What the C ABI keeps for each thread.
#include "capi/thread_locals.hpp"

#include "base/thread_end.hpp"

namespace weir { inline namespace v0 { namespace capi {

thread_locals::~thread_locals() {
  while (!entered.empty()) entered.pop_back();
  if (reader != nullptr) table::leave(*reader);
}

thread_locals* own_thread_locals() noexcept {
  return detail::until_thread_end<thread_locals>::own();
}

thread_locals* existing_thread_locals() noexcept {
  return detail::until_thread_end<thread_locals>::existing();
}

}}}  // namespace weir::v0::capi
