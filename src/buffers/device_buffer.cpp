// Device buffers: owning memory of a resource, growing it, and passing it between streams.
#include "weir/buffer/device_buffer.hpp"

#include <algorithm>
#include <cstddef>

#include "buffers/queue_wait.hpp"
#include "weir/buffer/copy.hpp"
#include "weir/device/event.hpp"

namespace weir::inline v0 {

result<device_buffer> device_buffer::create(any_resource memory, bytes size,
                                            const stream_ref& stream, contents initial,
                                            bytes alignment) {
  if (!memory) return error{.code = errc::invalid_argument, .detail = "an empty resource"};
  WEIR_TRY_VALUE(data, memory.try_allocate(size, stream, alignment));
  device_buffer buffer;
  buffer.memory_ = std::move(memory);
  buffer.stream_ = stream;
  buffer.data_ = data;
  buffer.size_ = buffer.capacity_ = size;
  buffer.alignment_ = alignment;
  if (initial == contents::zeroed) WEIR_TRY(fill_bytes(data, 0, size, stream));
  return buffer;
}

device_buffer::~device_buffer() {
  if (data_ != nullptr) memory_.deallocate(data_, capacity_, *stream_);
}

device_buffer::device_buffer(device_buffer&& other) noexcept
    : memory_{std::move(other.memory_)},
      stream_{std::exchange(other.stream_, std::nullopt)},
      data_{std::exchange(other.data_, nullptr)},
      size_{std::exchange(other.size_, {})},
      capacity_{std::exchange(other.capacity_, {})},
      alignment_{other.alignment_} {}

device_buffer& device_buffer::operator=(device_buffer&& other) noexcept {
  if (this == &other) return *this;
  if (data_ != nullptr) memory_.deallocate(data_, capacity_, *stream_);
  memory_ = std::move(other.memory_);
  stream_ = std::exchange(other.stream_, std::nullopt);
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, {});
  capacity_ = std::exchange(other.capacity_, {});
  alignment_ = other.alignment_;
  return *this;
}

result<void> device_buffer::close() noexcept {
  if (!stream_) return {};
  const any_resource memory = std::move(memory_);
  const stream_ref stream = *stream_;
  const raw_memory held = release();
  if (held.data == nullptr) return {};
  return memory.try_deallocate(held.data, held.size, stream);
}

device_buffer::raw_memory device_buffer::release() noexcept {
  const raw_memory released{std::exchange(data_, nullptr), std::exchange(capacity_, {})};
  size_ = {};
  stream_.reset();
  memory_ = {};
  return released;
}

result<void> device_buffer::move_to(bytes capacity, bytes kept) {
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
  WEIR_TRY(buffers::queue_wait(next, *stream_));
  stream_ = next;
  return {};
}

result<void> device_buffer::record_stream(const stream_ref& other) {
  if (!stream_) return errc::moved_from;
  return buffers::queue_wait(*stream_, other);
}

namespace {

result<void> check_part(const device_buffer& buffer, bytes offset, bytes size) {
  if (!buffer) return errc::moved_from;
  if (offset <= buffer.size() && size <= buffer.size() - offset) return {};
  return error{.code = errc::invalid_argument,
               .requested = size,
               .detail = "a copy over the end of a buffer"};
}

}  // namespace

result<void> copy_between(device_buffer& to, bytes to_offset, const device_buffer& from,
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
  // The source must not be freed before the copy is over: without the event this call waits for it.
  return ordered ? ordered : stream.synchronize();
}

}  // namespace weir::inline v0
