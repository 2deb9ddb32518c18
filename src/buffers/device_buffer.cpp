// SPDX-License-Identifier: Apache-2.0
// Device buffers: owning memory of a resource, growing it, and passing it between streams.
#include "weir/buffer/device_buffer.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>

#include "buffers/queue_wait.hpp"
#include "device/finished_work.hpp"
#include "pools/all_devices.hpp"
#include "pools/guarded.hpp"
#include "pools/memory_home.hpp"
#include "pools/thread_stream.hpp"
#include "weir/buffer/copy.hpp"
#include "weir/device/event.hpp"

namespace weir { inline namespace v0 {

result<device_buffer> device_buffer::create(any_resource memory, bytes size,
                                            const stream_ref& stream, contents initial,
                                            bytes alignment) {
  return pools::guarded([&]() -> result<device_buffer> {
    if (!memory)
      return error{{.code = errc::invalid_argument,
                    .detail = "the resource is empty; pass one that holds an allocator"}};
    WEIR_TRY_VALUE(data, memory.try_allocate(size, stream, alignment));
    device_buffer buffer;
    buffer.memory_ = std::move(memory);
    buffer.stream_ = stream;
    buffer.thread_ = detail::thread_of(stream);
    buffer.data_ = data;
    buffer.size_ = buffer.capacity_ = size;
    buffer.alignment_ = alignment;
    if (initial == contents::zeroed) WEIR_TRY(fill_bytes(data, 0, size, stream));
    return buffer;
  });
}

device_buffer::~device_buffer() {
  const void* const memory = data_;
  pools::report_failed_free(free(), memory, capacity_);
}

device_buffer::device_buffer(device_buffer&& other) noexcept
    : memory_{std::move(other.memory_)},
      stream_{std::exchange(other.stream_, std::nullopt)},
      thread_{other.thread_},
      data_{std::exchange(other.data_, nullptr)},
      size_{std::exchange(other.size_, {})},
      capacity_{std::exchange(other.capacity_, {})},
      alignment_{other.alignment_} {}

device_buffer& device_buffer::operator=(device_buffer&& other) noexcept {
  if (this == &other) return *this;
  const void* const memory = data_;
  pools::report_failed_free(free(), memory, capacity_);
  memory_ = std::move(other.memory_);
  stream_ = std::exchange(other.stream_, std::nullopt);
  thread_ = other.thread_;
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, {});
  capacity_ = std::exchange(other.capacity_, {});
  alignment_ = other.alignment_;
  return *this;
}

result<void> device_buffer::free() noexcept {
  void* const data = std::exchange(data_, nullptr);
  if (data == nullptr) return {};
  return pools::freed_surely([&]() -> result<void> {
    if (!detail::is_of_another_thread(thread_))
      return memory_.try_deallocate(data, capacity_, *stream_);
    return detail::free_behind_all_work(
        stream_->device(), memory_.device(),
        [&](const stream_ref& idle) { return memory_.try_deallocate(data, capacity_, idle); });
  });
}

result<void> device_buffer::close() noexcept {
  auto freed = free();
  static_cast<void>(release());
  return freed;
}

device_buffer::raw_memory device_buffer::release() noexcept {
  const raw_memory released{std::exchange(data_, nullptr), std::exchange(capacity_, {})};
  size_ = {};
  stream_.reset();
  memory_ = {};
  return released;
}

result<void> device_buffer::check_stream() const {
  if (!stream_) return errc::moved_from;
  if (!detail::is_of_another_thread(thread_)) return {};
  return pools::guarded([]() -> result<void> {
    return error{{.code = errc::bad_stream,
                  .detail =
                      "the buffer belongs to the per-thread default stream of another thread; "
                      "call hand_over() first"}};
  });
}

result<void> device_buffer::move_to(bytes capacity, bytes kept) {
  WEIR_TRY(check_stream());
  {
    const context_scope bound{stream_->device()};
    WEIR_TRY_VALUE(outside, detail::is_outside_captures(*stream_, bound));
    if (!outside) return errc::capture_forbidden;
  }
  WEIR_TRY_VALUE(fresh, create(memory_, capacity, *stream_, contents::undefined, alignment_));
  WEIR_TRY(copy_bytes(fresh.data_, data_, kept, *stream_));
  fresh.size_ = size_;
  *this = std::move(fresh);
  return {};
}

result<void> device_buffer::resize(bytes size) {
  if (!stream_) return errc::moved_from;
  if (size > capacity_) WEIR_TRY(move_to(size, size_));
  size_ = size;
  return {};
}

result<void> device_buffer::resize_discarding(bytes size) {
  if (!stream_) return errc::moved_from;
  if (size > capacity_) WEIR_TRY(move_to(size, {}));
  size_ = size;
  return {};
}

result<void> device_buffer::reserve(bytes size) {
  if (!stream_) return errc::moved_from;
  return size > capacity_ ? move_to(size, size_) : result<void>{};
}

result<void> device_buffer::shrink_to_fit() {
  if (!stream_) return errc::moved_from;
  return size_ < capacity_ ? move_to(size_, size_) : result<void>{};
}

result<void> device_buffer::hand_over(const stream_ref& next) {
  if (!stream_) return errc::moved_from;
  return pools::guarded([&]() -> result<void> {
    if (next.device() != memory_.device()) {
      return error{{.code = errc::bad_stream,
                    .detail = "the stream belongs to another device than the buffer; pass a stream "
                              "of the buffer's device"}};
    }
    if (detail::is_of_another_thread(thread_)) {
      const context_scope bound{stream_->device()};
      WEIR_TRY(detail::wait_for_all_work(bound));
    } else {
      WEIR_TRY(buffers::queue_wait(next, *stream_));
    }
    stream_ = next;
    thread_ = detail::thread_of(next);
    return {};
  });
}

result<void> device_buffer::record_stream(const stream_ref& other) const {
  if (!stream_) return errc::moved_from;
  if (data_ == nullptr) return {};
  return memory_.record_stream(data_, other);
}

result<void> device_buffer::join(const stream_ref& other) {
  WEIR_TRY(check_stream());
  return pools::guarded([&] { return buffers::queue_wait(*stream_, other); });
}

namespace {

result<void> check_part(const device_buffer& buffer, bytes offset, bytes size) {
  WEIR_TRY(buffer.check_stream());
  if (offset <= buffer.size() && size <= buffer.size() - offset) return {};
  return error{{.code = errc::invalid_argument,
                .requested = size,
                .detail = "a copy of " + to_string(size) + " at offset " +
                          std::to_string(offset.count()) + " exceeds the buffer of " +
                          to_string(buffer.size())}};
}

result<void> queue_copy(device_buffer& to, bytes to_offset, const device_buffer& from,
                        bytes from_offset, bytes size) {
  WEIR_TRY(check_part(to, to_offset, size));
  WEIR_TRY(check_part(from, from_offset, size));
  if (size == bytes{}) return {};
  auto* const target = static_cast<std::byte*>(to.data()) + to_offset.count();
  const auto* const source = static_cast<const std::byte*>(from.data()) + from_offset.count();
  const stream_ref& stream = to.stream();
  if (stream == from.stream()) return copy_bytes(target, source, size, stream);
  WEIR_TRY_VALUE(done,
                 event::create(stream.device()));  // first: once the copy is queued it is needed
  WEIR_TRY(buffers::queue_wait(stream, from.stream()));
  const bool is_peer_copy = to.resource().kind() == memory_kind::device &&
                            from.resource().kind() == memory_kind::device &&
                            to.device() != from.device();
  WEIR_TRY(is_peer_copy ? copy_peer(target, to.device(), source, from.device(), size, stream)
                        : copy_bytes(target, source, size, stream));
  auto ordered = done.record(stream);
  if (ordered) ordered = from.stream().wait(done);
  if (ordered) return ordered;
  // The source must not be freed before the copy is over: without the event this call waits for it.
  const context_scope bound{stream.device()};
  return detail::wait_for_work(stream, bound);
}

}  // namespace

result<void> copy_between(device_buffer& to, bytes to_offset, const device_buffer& from,
                          bytes from_offset, bytes size) {
  return pools::guarded([&] { return queue_copy(to, to_offset, from, from_offset, size); });
}

result<void> device_buffer::read(void* to, bytes offset, bytes size) const {
  return pools::guarded([&]() -> result<void> {
    WEIR_TRY(check_part(*this, offset, size));
    if (size == bytes{}) return {};
    if (to == nullptr) return errc::invalid_argument;
    const context_scope bound{stream_->device()};
    WEIR_TRY_VALUE(outside, detail::is_outside_captures(*stream_, bound));
    if (!outside) return errc::capture_forbidden;
    // Not into the caller's memory: where the wait fails, the copy may still be under way.
    auto landing = std::make_unique<std::byte[]>(size.count());
    const auto* const source = static_cast<const std::byte*>(data_) + offset.count();
    WEIR_TRY(copy_bytes(landing.get(), source, size, *stream_));
    auto waited = detail::wait_for_work(*stream_, bound);
    if (!waited) waited = detail::wait_for_all_work(bound);
    if (!waited) {
      if (!detail::does_no_work(waited.error())) static_cast<void>(landing.release());
      return waited;
    }
    std::memcpy(to, landing.get(), size.count());
    return {};
  });
}

std::string to_string(const device_buffer& buffer) {
  if (!buffer) return "closed, released or moved from";
  std::string text = to_string(buffer.size()) + " on device " + to_string(buffer.device().id());
  // A bare handle has no number that is known without a driver call.
  const stream_id id = buffer.stream().known_id();
  if (id != stream_id{}) text += ", stream " + to_string(id);
  return text;
}

}}  // namespace weir::v0
