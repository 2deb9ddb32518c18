// torch's streams as weir's.
#include "streams.hpp"

#include <algorithm>
#include <bit>
#include <tuple>

namespace weir_torch {

const weir::stream_ref& stream_table::find(c10::cuda::CUDAStream stream,
                                           std::optional<weir::stream_ref>& scratch) {
  const std::int64_t id = stream.id();
  const bool own = id == 0 || is_kept(id);
  note(handed_, id);
  const weir::stream_ref* ref =
      own ? kept_[static_cast<std::size_t>(id)].load(std::memory_order_acquire) : nullptr;
  if (own && ref == nullptr) ref = keep(id, stream.stream());
  if (ref == nullptr) return scratch.emplace(device_, stream.stream());
  last_ = {this, id, ref->is_legacy() ? nullptr : ref->handle(), ref};
  return *ref;
}

const weir::stream_ref& stream_table::find(cudaStream_t handle,
                                           std::optional<weir::stream_ref>& scratch) {
  if (handle == nullptr) {
    return look_up(c10::cuda::getDefaultCUDAStream(index_), scratch);
  }
  for (const bool again : {false, true}) {
    // A handle that was not met yet may still be one of torch's own.
    if (again && !ask_all()) break;
    const std::lock_guard lock{mutex_};
    const auto found = own_by_handle_.find(handle);
    if (found == own_by_handle_.end()) continue;
    note(handed_, found->second.id);
    last_ = {this, found->second.id, handle, found->second.ref};
    return *found->second.ref;
  }
  return scratch.emplace(device_, handle);
}

const weir::stream_ref* stream_table::keep(std::int64_t id, cudaStream_t handle) {
  const auto asked = weir::stream_ref{device_, handle}.identified();
  if (!asked) return nullptr;
  const std::lock_guard lock{mutex_};
  auto& place = kept_[static_cast<std::size_t>(id)];
  if (const auto* const there = place.load(std::memory_order_relaxed)) return there;
  const weir::stream_ref* const made = remember(*asked);
  own_by_handle_.emplace(handle, own_stream{id, made});
  place.store(made, std::memory_order_release);
  return made;
}

const weir::stream_ref* stream_table::remember(const weir::stream_ref& identified) {
  const weir::stream_ref*& place = by_id_[identified.known_id().number()];
  if (place == nullptr) place = &refs_.emplace_back(identified);
  return place;
}

int stream_table::count_priorities() {
  const auto [least, greatest] = c10::cuda::CUDAStream::priority_range();
  return least - greatest + 1;
}

cudaStream_t stream_table::own_handle(std::int64_t id) const {
  const c10::Stream named{c10::Stream::UNSAFE, c10::Device{c10::kCUDA, index_}, id};
  return c10::cuda::CUDAStream{c10::cuda::CUDAStream::UNCHECKED, named}.stream();
}

bool stream_table::ask_all() {
  if (asked_all_.load(std::memory_order_acquire)) return false;
  bool answered = true;
  const int priorities = count_priorities();
  for (int priority = 0; priority < priorities; ++priority) {
    for (int index = 0; index < handed_out::streams; ++index) {
      const std::int64_t id = own_id(priority, index);
      if (kept_[static_cast<std::size_t>(id)].load(std::memory_order_relaxed) != nullptr) continue;
      const cudaStream_t handle = own_handle(id);
      if (handle == nullptr) return true;  // torch makes all of them at once, and has not yet
      answered = keep(id, handle) != nullptr && answered;
    }
  }
  asked_all_.store(answered, std::memory_order_release);
  return true;
}

void stream_table::look_at_turns(int priorities) {
  // The one that torch makes last: while it is not there, none was handed out, and to take one
  // would make them all.
  if (own_handle(own_id(priorities - 1, handed_out::streams - 1)) == nullptr) return;
  handed_.look(priorities, [this](int priority) {
    // The smaller, the more urgent: torch's priorities are 0, -1, ...
    return index_in_turn(c10::cuda::getStreamFromPool(-priority, index_).id());
  });
}

void stream_table::tell(std::vector<weir::stream_ref>& known) noexcept {
  try {
    const auto tell_one = [&](std::int64_t id, cudaStream_t handle) {
      const weir::stream_ref* ref =
          kept_[static_cast<std::size_t>(id)].load(std::memory_order_acquire);
      if (ref == nullptr) ref = keep(id, handle);
      if (ref != nullptr) known.push_back(*ref);
    };
    // By way of torch, whose streams can be asked for once it has counted its devices.
    tell_one(0, c10::cuda::getDefaultCUDAStream(index_).stream());
    int priorities = priorities_.load(std::memory_order_relaxed);
    if (priorities == 0) {
      priorities = std::min(count_priorities(), handed_out::most_priorities);
      priorities_.store(priorities, std::memory_order_relaxed);
    }
    look_at_turns(priorities);
    for (int priority = 0; priority < priorities; ++priority) {
      for (std::uint32_t left = handed_.of(priority); left != 0; left &= left - 1) {
        const std::int64_t id = own_id(priority, std::countr_zero(left));
        if (const cudaStream_t handle = own_handle(id); handle != nullptr) tell_one(id, handle);
      }
    }
  } catch (...) {
    // Nothing may leave here. What was not told is told by the next call.
  }
}

void stream_table::identify_all(c10::cuda::CUDAStream also) {
  static_cast<void>(ask_all());
  const std::int64_t id = also.id();
  if (id == 0 || is_kept(id)) {
    std::optional<weir::stream_ref> unused;
    static_cast<void>(look_up(also, unused));
  } else if (const auto asked = weir::stream_ref{device_, also.stream()}.identified(); asked) {
    const std::lock_guard lock{mutex_};
    static_cast<void>(remember(*asked));
  }
}

std::optional<weir::stream_ref> stream_table::with_id(weir::stream_id id) const {
  const std::lock_guard lock{mutex_};
  const auto found = by_id_.find(id.number());
  if (found == by_id_.end()) return std::nullopt;
  return *found->second;
}

cudaStream_t stream_table::handle_of(weir::stream_id id) const {
  const auto known = with_id(id);
  if (!known || known->is_legacy()) return nullptr;
  return known->handle();
}

}  // namespace weir_torch
