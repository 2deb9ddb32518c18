// Device buffers: owning memory of a resource, growing it, and passing it between streams.
#include "weir/buffer/device_buffer.hpp"

#include <algorithm>
#include <cstddef>

#include "buffers/ordering.hpp"
#include "weir/buffer/copy.hpp"
#include "weir/device/event.hpp"

namespace weir::inline v0 {

result<device_buffer> device_buffer::create(any_resource memory, bytes size,
                                            const stream_ref& stream, bytes alignment) {
  if (!memory) return error{.code = errc::invalid_argument, .detail = "an empty resource"};
  WEIR_TRY_VALUE(data, memory.try_allocate(size, stream, alignment));
  device_buffer made;
  made.memory_ = std::move(memory);
  made.stream_ = stream;
  made.data_ = data;
  made.size_ = made.capacity_ = size;
  made.alignment_ = alignment;
  return made;
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
  const raw_memory given{std::exchange(data_, nullptr), std::exchange(capacity_, {})};
  size_ = {};
  stream_.reset();
  memory_ = {};
  return given;
}

result<void> device_buffer::move_to(bytes capacity, bytes kept) {
  WEIR_TRY_VALUE(fresh, create(memory_, capacity, *stream_, alignment_));
  WEIR_TRY(copy_bytes(fresh.data_, data_, kept, *stream_));
  fresh.size_ = size_;
  *this = std::move(fresh);
  return {};
}

result<void> device_buffer::resize(bytes size) {
  if (!stream_) return errc::already_freed;
  if (size > capacity_) WEIR_TRY(move_to(size, size_));
  size_ = size;
  return {};
}

result<void> device_buffer::resize_discarding(bytes size) {
  if (!stream_) return errc::already_freed;
  if (size > capacity_) WEIR_TRY(move_to(size, {}));
  size_ = size;
  return {};
}

result<void> device_buffer::reserve(bytes size) {
  if (!stream_) return errc::already_freed;
  return size > capacity_ ? move_to(size, size_) : result<void>{};
}

result<void> device_buffer::shrink_to_fit() {
  if (!stream_) return errc::already_freed;
  return size_ < capacity_ ? move_to(size_, size_) : result<void>{};
}

result<void> device_buffer::hand_over(const stream_ref& next) {
  if (!stream_) return errc::already_freed;
  WEIR_TRY(buffers::order(*stream_, next));
  stream_ = next;
  return {};
}

result<void> device_buffer::join(const stream_ref& other) {
  if (!stream_) return errc::already_freed;
  return buffers::order(other, *stream_);
}

namespace {

result<void> check_part(const device_buffer& in, bytes offset, bytes size) {
  if (!in) return errc::already_freed;
  if (offset <= in.size() && size <= in.size() - offset) return {};
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
  const stream_ref& on = to.stream();
  if (on == from.stream()) return copy_bytes(target, source, size, on);
  WEIR_TRY_VALUE(done, event::create(on.device()));  // first: once the copy is queued it is needed
  WEIR_TRY(buffers::order(from.stream(), on));
  const bool peers = to.resource().kind() == memory_kind::device &&
                     from.resource().kind() == memory_kind::device && to.device() != from.device();
  WEIR_TRY(peers ? copy_peer(target, to.device(), source, from.device(), size, on)
                 : copy_bytes(target, source, size, on));
  auto told = done.record(on);
  if (told) told = from.stream().wait(done);
  // The source must not be given back before the copy is over: then this call waits for it.
  return told ? told : on.synchronize();
}

}  // namespace weir::inline v0
