// SPDX-License-Identifier: Apache-2.0
// Records of slots and handles.
#include "placement/arena_slots.hpp"

#include <algorithm>

namespace weir { inline namespace v0 { namespace placement {

void arena_slots::prepare(std::size_t more_handles, std::size_t top) {
  const auto make_room = [](auto& list, std::size_t count) {
    if (count > list.capacity()) list.reserve(std::max(count, 2 * list.capacity()));
  };
  make_room(handles_, handles_.size() + more_handles);
  make_room(spare_handles_, handles_.size() + more_handles);  // each may become one
  make_room(slots_, top);
}

handle_number arena_slots::add(const vmm::physical& memory) noexcept {
  handle_number number = 0;
  if (spare_handles_.empty()) {
    number = static_cast<handle_number>(handles_.size());
    handles_.emplace_back();
  } else {
    number = spare_handles_.back();
    spare_handles_.pop_back();
  }
  handles_[number] = {.memory = memory,
                      .slots = static_cast<std::uint32_t>(memory.size.count() / slot_size_)};
  return number;
}

void arena_slots::discard(handle_number number) noexcept {
  handles_[number] = {};
  spare_handles_.push_back(number);
}

void arena_slots::enter(handle_number number, std::uint32_t slot, bool returns) noexcept {
  handle_record& moved = handles_[number];
  moved.slot = slot;
  for (std::uint32_t i = slot; i < slot + moved.slots; ++i) {
    slots_[i].current = number;
    if (!returns) continue;
    slots_[i].retained = 0;
    slots_[i].retained_offset = 0;
  }
  if (returns) --moved.retained;
}

void arena_slots::leave(handle_number number) noexcept {
  handle_record& moved = handles_[number];
  for (std::uint32_t i = 0; i < moved.slots; ++i)
    slots_[moved.slot + i] = {.retained = number, .retained_offset = i};
  ++moved.retained;
}

void arena_slots::erase(handle_number number) noexcept {
  const handle_record& gone = handles_[number];
  for (std::uint32_t i = gone.slot; i < gone.slot + gone.slots; ++i) slots_[i] = {};
  discard(number);
}

void arena_slots::drop_retained(std::uint64_t first) noexcept {
  handle_record& from = handles_[slots_[first].retained];
  for (std::uint64_t i = first; i < first + from.slots; ++i) {
    slots_[i].retained = 0;
    slots_[i].retained_offset = 0;
  }
  --from.retained;
}

void arena_slots::clear() {
  slots_.clear();
  handles_.assign(1, {});
  spare_handles_.clear();
}

}}}  // namespace weir::v0::placement
