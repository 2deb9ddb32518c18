// SPDX-License-Identifier: Apache-2.0
// torch's streams as weir's.
#include "streams.hpp"

#include <algorithm>
#include <bit>
#include <tuple>

namespace weir_torch {

const weir::stream_ref& stream_table::find(c10::cuda::CUDAStream stream,
                                           std::optional<weir::stream_ref>& scratch) {
  const std::int64_t id = stream.id();
  const bool own = id == 0 || is_own(id);
  mark_used(used_, id);
  const weir::stream_ref* ref =
      own ? own_by_id_[static_cast<std::size_t>(id)].load(std::memory_order_acquire) : nullptr;
  if (own && ref == nullptr) ref = identify_own(id, stream.stream());
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
    // A handle that is not known yet may still be one of torch's own.
    if (again && !identify_all_own()) break;
    const std::lock_guard lock{mutex_};
    const auto entry = own_by_handle_.find(handle);
    if (entry == own_by_handle_.end()) continue;
    const own_stream& own = entry->second;
    mark_used(used_, own.id);
    last_ = {this, own.id, handle, own.ref};
    return *own.ref;
  }
  return scratch.emplace(device_, handle);
}

const weir::stream_ref* stream_table::identify_own(std::int64_t id, cudaStream_t handle) {
  const auto identified = weir::stream_ref{device_, handle}.identified();
  if (!identified) return nullptr;
  const std::lock_guard lock{mutex_};
  auto& slot = own_by_id_[static_cast<std::size_t>(id)];
  if (const auto* const known = slot.load(std::memory_order_relaxed)) return known;
  const weir::stream_ref* const ref = store(*identified);
  own_by_handle_.emplace(handle, own_stream{id, ref});
  slot.store(ref, std::memory_order_release);
  return ref;
}

const weir::stream_ref* stream_table::store(const weir::stream_ref& identified) {
  const weir::stream_ref*& slot = refs_by_id_[identified.known_id().number()];
  if (slot == nullptr) slot = &refs_.emplace_back(identified);
  return slot;
}

int stream_table::count_priorities() {
  const auto [least, greatest] = c10::cuda::CUDAStream::priority_range();
  return least - greatest + 1;
}

cudaStream_t stream_table::own_handle(std::int64_t id) const {
  const c10::Stream stream{c10::Stream::UNSAFE, c10::Device{c10::kCUDA, index_}, id};
  return c10::cuda::CUDAStream{c10::cuda::CUDAStream::UNCHECKED, stream}.stream();
}

bool stream_table::identify_all_own() {
  if (all_identified_.load(std::memory_order_acquire)) return false;
  bool all_identified = true;
  const int priorities = count_priorities();
  for (int priority = 0; priority < priorities; ++priority) {
    for (int index = 0; index < used_streams::streams_per_priority; ++index) {
      const std::int64_t id = own_id(priority, index);
      if (own_by_id_[static_cast<std::size_t>(id)].load(std::memory_order_relaxed) != nullptr)
        continue;
      const cudaStream_t handle = own_handle(id);
      if (handle == nullptr) return true;  // torch creates all of them at once, and has not yet
      all_identified = identify_own(id, handle) != nullptr && all_identified;
    }
  }
  all_identified_.store(all_identified, std::memory_order_release);
  return true;
}

void stream_table::probe_used(int priorities) {
  // The one that torch creates last: while it does not exist, none was handed out, and to take one
  // would create them all.
  if (own_handle(own_id(priorities - 1, used_streams::streams_per_priority - 1)) == nullptr) return;
  used_.probe(priorities, [this](int priority) {
    // The smaller, the more urgent: torch's priorities are 0, -1, ...
    return index_of(c10::cuda::getStreamFromPool(-priority, index_).id());
  });
}

void stream_table::append_used(std::vector<weir::stream_ref>& streams) noexcept {
  try {
    const auto append = [&](std::int64_t id, cudaStream_t handle) {
      const weir::stream_ref* ref =
          own_by_id_[static_cast<std::size_t>(id)].load(std::memory_order_acquire);
      if (ref == nullptr) ref = identify_own(id, handle);
      if (ref != nullptr) streams.push_back(*ref);
    };
    // From torch, which has streams once it has counted its devices.
    append(0, c10::cuda::getDefaultCUDAStream(index_).stream());
    int priorities = priorities_.load(std::memory_order_relaxed);
    if (priorities == 0) {
      priorities = std::min(count_priorities(), used_streams::max_priorities);
      priorities_.store(priorities, std::memory_order_relaxed);
    }
    probe_used(priorities);
    for (int priority = 0; priority < priorities; ++priority) {
      for (std::uint32_t rest = used_.of(priority); rest != 0; rest &= rest - 1) {
        const std::int64_t id = own_id(priority, std::countr_zero(rest));
        if (const cudaStream_t handle = own_handle(id); handle != nullptr) append(id, handle);
      }
    }
  } catch (...) {
    // No exception may leave. The streams that are missing are appended by the next call.
  }
}

pool_table::origin stream_table::identify_all(c10::cuda::CUDAStream current) {
  static_cast<void>(identify_all_own());
  std::optional<weir::stream_ref> external;
  const weir::stream_ref& stream = look_up(current, external);
  if (!external) return {.stream = stream, .is_torchs_own = true};
  // By its handle alone it would not be known once it is captured.
  const auto identified = stream.identified();
  if (!identified || identified->known_id() == weir::stream_id{})  // it is a thread's own
    return {.stream = stream, .is_torchs_own = false};
  const std::lock_guard lock{mutex_};
  return {.stream = *store(*identified), .is_torchs_own = false};
}

std::optional<weir::stream_ref> stream_table::with_id(weir::stream_id id) const {
  const std::lock_guard lock{mutex_};
  const auto entry = refs_by_id_.find(id.number());
  if (entry == refs_by_id_.end()) return std::nullopt;
  return *entry->second;
}

cudaStream_t stream_table::handle_of(weir::stream_id id) const {
  const auto stream = with_id(id);
  if (!stream || stream->is_legacy()) return nullptr;
  return stream->handle();
}

}  // namespace weir_torch
