// SPDX-License-Identifier: Apache-2.0
// Waiting for marks on the host, and the events that they are made of.
#include "order/awaited_marks.hpp"

#include <algorithm>
#include <utility>

#include "weir/driver/table.hpp"

namespace weir { inline namespace v0 { namespace order {

result<void> awaited_marks::wait() const {
  for (const auto& mark : marks_) {
    auto reached = mark->synchronize();
    if (reached) continue;
    // Recorded in a capture that began and ended meanwhile: the next poll drops the mark.
    if (reached.error().native() == driver::CUDA_ERROR_CAPTURED_EVENT) continue;
    return reached;
  }
  return {};
}

result<std::shared_ptr<event>> mark_events::acquire() {
  if (!idle_.empty()) {
    std::shared_ptr<event> reused = std::move(idle_.back());
    idle_.pop_back();
    ++acquired_;
    return reused;
  }
  idle_.reserve(std::min(acquired_ + 1, most_idle));
  WEIR_TRY_VALUE(created, event::create(device_));
  auto shared = std::make_shared<event>(std::move(created));
  ++acquired_;
  return shared;
}

void mark_events::release(std::shared_ptr<event> mark) noexcept {
  --acquired_;
  // Only copies of this one can become more owners, and there are none.
  if (mark.use_count() == 1 && idle_.size() < idle_.capacity()) idle_.push_back(std::move(mark));
}

}}}  // namespace weir::v0::order
