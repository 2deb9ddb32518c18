// SPDX-License-Identifier: Apache-2.0
// stream_allocator: a C++ allocator of a resource and a stream, e.g. for Thrust's temporary memory.
//
//   weir::stream_allocator<char> temporaries{memory, stream};
//   thrust::sort(thrust::cuda::par(temporaries).on(stream.handle()), on_device.data(),
//                on_device.data() + on_device.size());
#pragma once

#include <cstddef>
#include <utility>

#include "weir/base/checked.hpp"
#include "weir/resource/resource.hpp"

namespace weir { inline namespace v0 {

/// An allocator of `memory` in the order of `stream`, which must outlive the memory.
///
/// It constructs and reads nothing, so the memory may be device memory. Equal if resource and
/// stream are equal. Cheap to copy; each thread may use its own copy. Throws out_of_memory or
/// failure.
template <class Value>
class stream_allocator {
 public:
  /// The element type.
  using value_type = Value;

  /// Allocates from `memory` for work on `stream`.
  stream_allocator(any_resource memory, const stream_ref& stream) noexcept
      : memory_{std::move(memory)}, stream_{stream} {}
  /// The same resource and stream for another element type.
  template <class Other>
  stream_allocator(const stream_allocator<Other>& other) noexcept
      : memory_{other.resource()}, stream_{other.stream()} {}

  /// Uninitialised memory for `count` elements. Throws failure with size_overflow if the size does
  /// not fit.
  [[nodiscard]] Value* allocate(std::size_t count) {
    const auto size = checked_multiply(bytes{sizeof(Value)}, count);
    if (!size) raise({{.code = errc::size_overflow}});
    return static_cast<Value*>(memory_.allocate(*size, stream_));
  }
  /// Frees memory of `count` elements in the order of the stream.
  void deallocate(Value* pointer, std::size_t count) noexcept {
    memory_.deallocate(pointer, bytes{sizeof(Value)} * count, stream_);
  }

  /// The resource that it allocates from.
  [[nodiscard]] const any_resource& resource() const noexcept { return memory_; }
  /// The stream in whose order it allocates.
  [[nodiscard]] const stream_ref& stream() const noexcept { return stream_; }
  friend bool operator==(const stream_allocator&, const stream_allocator&) noexcept = default;

 private:
  any_resource memory_;
  stream_ref stream_;
};

}}  // namespace weir::v0
