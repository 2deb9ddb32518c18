// SPDX-License-Identifier: Apache-2.0
// A resource and a stream as a C++ allocator, for libraries that take one: Thrust's temporaries.
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

/// Allocates from `memory` in the order of `stream`, which must outlive the memory.
///
/// Constructs nothing and reads nothing: the memory may be a device's. Equal if resource and stream
/// are. Copies are cheap; any thread may use its own. Throws out_of_memory or failure.
template <class Value>
class stream_allocator {
 public:
  using value_type = Value;

  stream_allocator(any_resource memory, const stream_ref& stream) noexcept
      : memory_{std::move(memory)}, stream_{stream} {}
  template <class Other>
  stream_allocator(const stream_allocator<Other>& other) noexcept
      : memory_{other.resource()}, stream_{other.stream()} {}

  [[nodiscard]] Value* allocate(std::size_t count) {
    const auto size = checked_multiply(bytes{sizeof(Value)}, count);
    if (!size) raise({{.code = errc::size_overflow}});
    return static_cast<Value*>(memory_.allocate(*size, stream_));
  }
  void deallocate(Value* pointer, std::size_t count) noexcept {
    memory_.deallocate(pointer, bytes{sizeof(Value)} * count, stream_);
  }

  [[nodiscard]] const any_resource& resource() const noexcept { return memory_; }
  [[nodiscard]] const stream_ref& stream() const noexcept { return stream_; }
  friend bool operator==(const stream_allocator&, const stream_allocator&) noexcept = default;

 private:
  any_resource memory_;
  stream_ref stream_;
};

}}  // namespace weir::v0
