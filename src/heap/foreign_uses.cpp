// SPDX-License-Identifier: Apache-2.0
// Joining streams of other devices, when a block is freed or as soon as that is possible.
#include "heap/foreign_uses.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "device/finished_work.hpp"
#include "order/all_work_wait.hpp"

namespace weir { inline namespace v0 { namespace heap {
namespace {

detail::stream_registry& streams_of(weir::device owner) noexcept {
  return detail::device_state::of(owner).known_streams;
}

/// An event behind all work of the stream. Null: it cannot be had now.
result<std::shared_ptr<const event>> event_behind(const stream_ref& stream) {
  const context_scope bound{stream.device()};
  if (!bound) return bound.error();
  WEIR_TRY_VALUE(mark, event::create(stream.device()));
  WEIR_TRY_VALUE(recorded, detail::record_behind(mark, stream, bound));
  if (!recorded) return std::shared_ptr<const event>{};
  return std::shared_ptr<const event>{std::make_shared<event>(std::move(mark))};
}

}  // namespace

result<foreign_use> foreign_uses::describe(const stream_ref& stream, weir::device home) {
  if (detail::device_state::of(stream.device()).owner != detail::device_state::of(home).owner)
    return error{{.code = errc::bad_stream, .detail = "the stream belongs to another runtime"}};
  if (stream.is_per_thread()) {
    return error{{.code = errc::bad_stream,
                  .detail = "the per-thread default stream cannot be recorded for another device; "
                            "record a created stream"}};
  }
  auto identified = stream.identified();
  if (!identified) {
    error refused = std::move(identified).error();
    if (order::says_gone(refused)) refused.set_code(errc::bad_stream);
    return refused;
  }
  return foreign_use{
      .stream = *identified,
      .registration = streams_of(stream.device()).registration_of(identified->known_id())};
}

result<std::optional<weir::stream>> foreign_uses::make_joint_stream(weir::device home,
                                                                    bool exists) {
  if (exists) return std::optional<weir::stream>{};
  WEIR_TRY_VALUE(created, stream::create(home));
  return std::optional<weir::stream>{std::move(created)};
}

stream_slot foreign_uses::add(block_index index, const foreign_use& use,
                              std::optional<weir::stream>& joint, order::stream_order& order) {
  if (!joint_) joint_ = std::move(joint);
  const stream_slot slot = order.meet(joint_->ref(), joint_->id());
  std::vector<foreign_use>& uses = uses_[index];
  const auto is_known = [&](const foreign_use& each) {
    return each.stream == use.stream && each.registration == use.registration;
  };
  if (std::none_of(uses.begin(), uses.end(), is_known)) {
    owed_.reserve(owed_.size() + count_ + 1);  // every use may become owed
    uses.push_back(use);
    ++count_;
  }
  return slot;
}

void foreign_uses::join(block_index index, order::stream_order& order) noexcept {
  const auto entry = uses_.find(index);
  if (entry == uses_.end()) return;
  count_ -= entry->second.size();
  release_joint_stream(order);
  for (foreign_use& each : entry->second) {
    if (join(each, order)) continue;
    each.owed_since = order.open_epoch();
    owed_.push_back(std::move(each));
  }
  uses_.erase(entry);
  hold_joint_stream(order);
}

/// False: the stream cannot be joined now. One that ended without an event never can.
bool foreign_uses::join(const foreign_use& use, const order::stream_order& order) noexcept try {
  if (order.paused()) return false;
  std::shared_ptr<const event> behind = use.last;
  if (behind == nullptr) {
    const stream_ref& other = use.stream;
    const bool ended =
        use.registration != 0 &&
        streams_of(other.device()).registration_of(other.known_id()) != use.registration;
    if (ended) return false;
    // A declared capture may take in streams of the other device that synchronise with its legacy
    // stream: an event record there would invalidate it.
    if (other.is_legacy() && order.expects_captures()) return false;
    auto marked = event_behind(other);
    if (!marked) return order::does_no_work(marked.error());
    behind = *std::move(marked);
  }
  return behind != nullptr && joint_->wait(*behind);
} catch (const std::bad_alloc&) {
  return false;
}

void foreign_uses::join_late(order::stream_order& order) noexcept {
  if (owed_.empty()) return;
  release_joint_stream(order);
  std::erase_if(owed_, [&](const foreign_use& each) { return join(each, order); });
  hold_joint_stream(order);
}

std::vector<weir::device> foreign_uses::owed_devices() const {
  std::vector<weir::device> devices;
  for (const foreign_use& each : owed_) {
    const weir::device other = each.stream.device();
    if (std::find(devices.begin(), devices.end(), other) == devices.end()) devices.push_back(other);
  }
  return devices;
}

bool foreign_uses::is_captured(const foreign_use& use) noexcept {
  const stream_ref& other = use.stream;
  if (use.last != nullptr) return false;
  if (use.registration != 0 &&
      streams_of(other.device()).registration_of(other.known_id()) != use.registration)
    return false;
  const context_scope there{other.device()};
  const auto outside = detail::is_outside_captures(other, there);
  return outside && !*outside && !other.is_legacy();
}

void foreign_uses::wait_begins(const order::stream_order& order) noexcept {
  for (foreign_use& each : owed_)
    if (is_captured(each)) each.owed_since = order.open_epoch();
}

void foreign_uses::waited(order::epoch until, order::stream_order& order) noexcept {
  if (owed_.empty()) return;
  std::erase_if(owed_,
                [&](const foreign_use& each) { return !order::is_after(each.owed_since, until); });
  hold_joint_stream(order);
}

void foreign_uses::stream_closing(const stream_ref& closing) noexcept try {
  const auto is_it = [&](const foreign_use& each) {
    return each.last == nullptr && each.stream.known_id() == closing.known_id();
  };
  const auto uses_it = [&](const auto& each) {
    return std::any_of(each.second.begin(), each.second.end(), is_it);
  };
  if (std::none_of(uses_.begin(), uses_.end(), uses_it) &&
      std::none_of(owed_.begin(), owed_.end(), is_it))
    return;
  const auto behind = event_behind(closing);
  if (!behind || *behind == nullptr) return;
  for (auto& [index, uses] : uses_)
    for (foreign_use& each : uses)
      if (is_it(each)) each.last = *behind;
  for (foreign_use& each : owed_)
    if (is_it(each)) each.last = *behind;
} catch (const std::bad_alloc&) {
  // It ended without an event: its device is waited for.
}

void foreign_uses::hold_joint_stream(order::stream_order& order) const noexcept {
  const stream_slot joint = order.known(joint_->id());
  if (joint != order::no_stream) order.expect_capture(joint, !owed_.empty());
}

void foreign_uses::release_joint_stream(order::stream_order& order) const noexcept {
  const stream_slot joint = order.known(joint_->id());
  if (joint != order::no_stream) order.expect_capture(joint, false);
}

void foreign_uses::clear() noexcept {
  uses_.clear();
  owed_.clear();
  count_ = 0;
}

void foreign_listening::add(weir::device other) {
  auto home = detail::device_state::keep(other);
  const std::lock_guard lock{mutex_};
  if (ended_ || std::find(homes_.begin(), homes_.end(), home) != homes_.end()) return;
  homes_.reserve(homes_.size() + 1);
  detail::add_listener(*home, listener_);
  homes_.push_back(std::move(home));
}

void foreign_listening::end() noexcept {
  const std::lock_guard lock{mutex_};
  ended_ = true;
  for (const auto& home : homes_) detail::remove_listener(*home, listener_);
  homes_.clear();
}

}}}  // namespace weir::v0::heap
