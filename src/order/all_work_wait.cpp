// SPDX-License-Identifier: Apache-2.0
// Waiting for all work of a device and of others.
#include "order/all_work_wait.hpp"

namespace weir { inline namespace v0 { namespace order {

result<void> all_work_wait::wait(const context_scope& bound) const {
  // Trouble with a mark is trouble of one stream; the wait for all work tells of every stream.
  static_cast<void>(marks_.wait());
  WEIR_TRY(detail::wait_for_all_work(bound));
  for (const weir::device other : others_) {
    const context_scope there{other};
    auto done = detail::wait_for_all_work(there);
    if (!done && !does_no_work(done.error())) return done;
  }
  return {};
}

}}}  // namespace weir::v0::order
