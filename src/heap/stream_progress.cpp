// SPDX-License-Identifier: Apache-2.0
// Retiring what streams have completed, after asking or waiting for them.
#include "heap/stream_progress.hpp"

#include <algorithm>
#include <cstdint>
#include <new>
#include <utility>

namespace weir { inline namespace v0 { namespace heap {

void stream_progress::retire(pool_state& pool) noexcept {
  core_.mutex_.assert_held();
  if (pool.memory == nullptr) return;
  for (stream_slot slot = 1; slot <= core_.order_.count(); ++slot) pool.memory->retire(slot);
}

bool stream_progress::retire_all() noexcept {
  core_.mutex_.assert_held();
  for (const auto& each : core_.pools_)
    if (!each->keeps_to_streams()) retire(*each);
  return core_.pending_.take_completed(
      core_.order_, [&](block_index index, stamp freed) { host_.free_waited(index, freed); });
}

bool stream_progress::retire_unnoticed() noexcept {
  core_.mutex_.assert_held();
  const auto bound = [&] {
    core_.mutex_.assert_held();
    std::uint64_t sum = 0;
    for (const auto& each : core_.pools_)
      for (stream_slot slot = 1; each->memory != nullptr && slot <= core_.order_.count(); ++slot)
        sum += each->memory->bound_to(slot);
    return sum;
  };
  const std::uint64_t before = bound();
  const bool taken = retire_all();
  return taken || bound() != before;
}

result<bool> stream_progress::poll_streams(driver_access& driver, stream_slot spared) {
  WEIR_TRY_VALUE(grew, waiter_.poll(spared, driver));
  if (grew) static_cast<void>(retire_all());
  return grew;
}

void stream_progress::poll_marks(driver_access& driver) noexcept {
  core_.mutex_.assert_held();
  if (!driver.entered()) return;
  const auto grew = core_.order_.poll(driver.enter());
  if (grew && *grew) static_cast<void>(retire_all());
}

result<bool> stream_progress::any_capturing(driver_access& driver) {
  core_.mutex_.assert_held();
  if (core_.captures_.any_declared() || core_.order_.paused()) return true;
  WEIR_TRY(driver.entered());
  return core_.order_.any_capturing(driver.enter());
}

result<void> stream_progress::wait_for_streams(driver_access& driver) {
  core_.mutex_.assert_held();
  WEIR_TRY(poll_streams(driver, no_stream));
  if (core_.order_.paused()) return {};
  // Also where nothing is left to wait for: streams that ended may have completed what was freed.
  if (!core_.order_.any_behind()) static_cast<void>(retire_all());
  return waiter_.wait_for_streams(driver);
}

std::vector<weir::device> stream_progress::other_devices() const {
  core_.mutex_.assert_held();
  std::vector<weir::device> others = core_.foreign_uses_.owed_devices();
  for (const vmm::access& each : core_.placement_.rights) {
    const auto reaching = core_.home_->owner->device(device_id{each.location.id});
    if (!reaching || *reaching == core_.device_) continue;
    if (std::find(others.begin(), others.end(), *reaching) == others.end())
      others.push_back(*reaching);
  }
  return others;
}

void stream_progress::marks_begin() noexcept {
  core_.mutex_.assert_held();
  core_.foreign_uses_.join_late(core_.order_);
}

void stream_progress::all_work_wait_begins() noexcept {
  core_.mutex_.assert_held();
  core_.foreign_uses_.wait_begins(core_.order_);
}

void stream_progress::all_work_completed(order::epoch until) noexcept {
  core_.mutex_.assert_held();
  core_.foreign_uses_.waited(until, core_.order_);
}

void stream_progress::share_now() noexcept try {
  driver_access driver{core_.device_};
  share_freed(driver);
} catch (const std::bad_alloc&) {
  // Marks that cannot be made now are made by the next call that needs them.
}

void stream_progress::share_freed(driver_access& driver) {
  const stream_slot slot = std::exchange(to_share_, no_stream);
  if (!driver.entered()) return;
  // Marks of now are seldom reached: they are looked at next time.
  const auto grew = core_.order_.poll(driver.enter());
  static_cast<void>(core_.order_.close(slot, driver.enter()));
  if (grew && *grew) static_cast<void>(retire_all());
}

}}}  // namespace weir::v0::heap
