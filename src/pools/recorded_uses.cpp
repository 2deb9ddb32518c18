// SPDX-License-Identifier: Apache-2.0
// Recording streams for live blocks, and waiting for them when the block is freed.
#include "pools/recorded_uses.hpp"

#include <cstddef>
#include <new>
#include <optional>

#include "device/finished_work.hpp"

namespace weir { inline namespace v0 { namespace pools {

result<void> recorded_uses::add(const void* block, const stream_ref& stream) {
  WEIR_TRY_VALUE(capturing, stream.is_capturing());
  if (capturing) {
    return error{{.code = errc::capture_forbidden,
                  .detail = "a stream that is being captured cannot be recorded for this memory; "
                            "make the stream that frees it wait for it inside the capture"}};
  }
  ends_.listen_on(stream.device());
  const detail::mutex_lock lock{mutex_};
  uses_[block].add(stream);
  count_.store(uses_.size(), std::memory_order_release);
  return {};
}

result<void> recorded_uses::gather(const void* block, awaited_work& work) {
  const detail::mutex_lock lock{mutex_};
  const auto entry = uses_.find(block);
  if (entry == uses_.end()) return {};
  return entry->second.gather(work, stream_uses::captures::refused);
}

result<void> recorded_uses::wait_for_devices(const void* block) {
  for (std::size_t number = 0;; ++number) {
    std::optional<weir::device> next;
    {
      const detail::mutex_lock lock{mutex_};
      const auto entry = uses_.find(block);
      if (entry != uses_.end()) next = entry->second.device_of(number);
    }
    if (!next) return {};
    const context_scope there{*next};
    WEIR_TRY(detail::wait_for_all_work(there));
  }
}

result<void> recorded_uses::queue_before(const void* block, const stream_ref& stream) try {
  if (has_none()) return {};
  awaited_work work;
  WEIR_TRY(gather(block, work));
  if (work.empty()) return {};
  WEIR_TRY_VALUE(capturing, stream.is_capturing());
  if (capturing) {
    return error{{.code = errc::capture_forbidden,
                  .detail = "the memory was recorded for streams outside of this capture"}};
  }
  return work.queue_before(stream);
} catch (const std::bad_alloc&) {  // the memory goes back all the same
  return wait_for_devices(block);
}

result<void> recorded_uses::wait(const void* block) try {
  if (has_none()) return {};
  awaited_work work;
  WEIR_TRY(gather(block, work));
  return work.wait();
} catch (const std::bad_alloc&) {  // the memory goes back all the same
  return wait_for_devices(block);
}

void recorded_uses::forget(const void* block) noexcept {
  if (has_none()) return;
  const detail::mutex_lock lock{mutex_};
  uses_.erase(block);
  count_.store(uses_.size(), std::memory_order_release);
}

void recorded_uses::stream_closing(const stream_ref& stream) noexcept {
  const detail::mutex_lock lock{mutex_};
  for (auto& [block, uses] : uses_) uses.stream_closing(stream);
}

}}}  // namespace weir::v0::pools
