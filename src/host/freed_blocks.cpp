// SPDX-License-Identifier: Apache-2.0
// Uses of blocks, by device.
#include "host/freed_blocks.hpp"

#include <algorithm>
#include <new>

#include "device/finished_work.hpp"

namespace weir { inline namespace v0 { namespace host {

using detail::mutex_lock;
using order::driver_access;

result<void> freed_blocks::listen_to(const stream_ref& stream) {
  const bool at_home = stream.device() == home_->handle();
  if (at_home && listens_at_home_.load(std::memory_order_acquire)) return {};
  if (detail::device_state::of(stream.device()).owner != home_->owner)
    return error{{.code = errc::bad_stream,
                  .detail = "the stream belongs to another runtime than the host arena; name a "
                            "stream of the arena's runtime"}};
  ends_.listen_on(stream.device());
  if (at_home) listens_at_home_.store(true, std::memory_order_release);
  return {};
}

device_order* freed_blocks::order_of(weir::device device) const noexcept {
  for (const auto& each : orders_)
    if (each->device() == device) return each.get();
  return nullptr;
}

result<block_use> freed_blocks::use_of(const stream_ref& stream) {
  std::size_t index = 0;
  while (index < orders_.size() && !(orders_[index]->device() == stream.device())) ++index;
  if (index == orders_.size())
    orders_.push_back(std::make_unique<device_order>(stream.device(), mutex_));
  driver_access driver{stream.device()};
  WEIR_TRY_VALUE(slot, orders_[index]->slot_of(stream, driver));
  return block_use{static_cast<std::uint32_t>(index), {slot, 0}};
}

void freed_blocks::add(block& live, block_use use) {
  const auto known = std::find_if(live.uses.begin(), live.uses.end(),
                                  [&](const block_use& each) { return each.device == use.device; });
  if (known == live.uses.end()) {
    live.uses.push_back(use);
  } else {
    known->stamp = use.stamp;
  }
}

void freed_blocks::push(block& freed) noexcept {
  for (block_use& each : freed.uses) each.stamp = orders_[each.device]->now(each.stamp.stream);
  freed.state = block_state::pending;
  bytes_ += freed.size;
  pending_.push_back(freed);
}

bool freed_blocks::is_completed(const block& freed) const noexcept {
  return std::all_of(freed.uses.begin(), freed.uses.end(), [&](const block_use& each) {
    return orders_[each.device]->completed(each.stamp);
  });
}

result<bool> freed_blocks::poll() {
  bool came_on = false;
  for (const auto& each : orders_) {
    driver_access driver{each->device()};
    WEIR_TRY_VALUE(progress, each->poll(driver));
    came_on = came_on || progress;
  }
  return came_on;
}

result<bool> freed_blocks::look() {
  bool came_on = false;
  for (const auto& each : orders_) {
    driver_access driver{each->device()};
    WEIR_TRY_VALUE(progress, each->look(driver));
    came_on = came_on || progress;
  }
  return came_on;
}

result<void> freed_blocks::wait() {
  // By index: without the lock further devices may be added.
  for (std::size_t index = 0; index < orders_.size(); ++index) {
    device_order& each = *orders_[index];
    if (!each.any_behind()) continue;
    driver_access driver{each.device()};
    WEIR_TRY(each.wait_for_streams(driver));
  }
  return {};
}

result<void> freed_blocks::wait_for_all_work() {
  for (std::size_t index = 0; index < orders_.size(); ++index) {
    device_order& each = *orders_[index];
    driver_access driver{each.device()};
    auto waited = each.wait_for_all_work(driver);
    if (!waited && !detail::does_no_work(waited.error())) return waited;
  }
  return {};
}

result<void> freed_blocks::release_stream(const stream_ref& stream) {
  device_order* const known = order_of(stream.device());
  if (known == nullptr || stream.is_legacy() || stream.is_per_thread()) return {};
  driver_access driver{stream.device()};
  WEIR_TRY_VALUE(identified, stream.identified());
  return known->end_stream(identified, driver);
}

void freed_blocks::stream_closing(const stream_ref& stream) noexcept {
  if (home_->forked()) return;
  driver_access driver{stream.device()};
  const mutex_lock lock{mutex_};
  device_order* const known = order_of(stream.device());
  if (known != nullptr) detail::report_failure(known->end_stream(stream, driver));
}

std::uint64_t freed_blocks::events_recorded() const noexcept {
  std::uint64_t recorded = 0;
  for (const auto& each : orders_) recorded += each->events_recorded();
  return recorded;
}

std::size_t freed_blocks::footprint() const noexcept {
  std::size_t total = 0;
  for (const auto& each : orders_) total += each->footprint();
  return total;
}

}}}  // namespace weir::v0::host
