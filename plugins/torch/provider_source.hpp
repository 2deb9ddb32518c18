// SPDX-License-Identifier: Apache-2.0
// An allocator that somebody made a MemPool with, as the source of the pool's segments.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "weir/device/memory_source.hpp"

namespace weir_torch {

/// Segments from a CUDAPluggableAllocator, NCCL's allocator or any other, by its own functions, as
/// torch's own allocator takes them: on the pool's device, for the thread's current stream.
///
/// Owns the provider together with whoever made it; the last segment that goes back lets it go.
/// Called with weir's lock held. A provider that runs Python needs the GIL for that, as it does
/// under torch's own lock: no thread may wait for this device's memory with the GIL meanwhile.
class provider_source final : public weir::memory_source {
 public:
  using provider_type = c10::cuda::CUDACachingAllocator::CUDAAllocator;

  provider_source(c10::DeviceIndex device, std::shared_ptr<provider_type> provider)
      : device_{device}, provider_{std::move(provider)} {}

  weir::result<void*> allocate(weir::bytes size, const weir::stream_ref& /*stream*/) override try {
    const c10::cuda::CUDAGuard guard{device_};
    void* const segment = provider_->raw_alloc(size.count());
    // Whatever it tried left its mark, which the next kernel launch would take for its own error.
    if (segment == nullptr) static_cast<void>(cudaGetLastError());
    return segment;
  } catch (const c10::OutOfMemoryError&) {
    return nullptr;
  } catch (const c10::Error& failed) {
    return weir::error{
        {.code = weir::errc::driver_error,
         .requested = size,
         .detail = std::string{"the MemPool's allocator: "} + failed.what_without_backtrace()}};
  }

  weir::result<void> deallocate(void* segment, weir::bytes size) override try {
    const c10::cuda::CUDAGuard guard{device_};
    provider_->raw_delete(segment);
    return {};
  } catch (const std::exception& failed) {
    // It counts as taken back: CUDAPluggableAllocator forgets an address before it frees it, and
    // would refuse it for ever.
    weir::report_error({{.code = weir::errc::driver_error,
                         .requested = size,
                         .detail = std::string{"a MemPool's allocator could not free a segment: "} +
                                   failed.what()}});
    return {};
  }

 private:
  const c10::DeviceIndex device_;
  const std::shared_ptr<provider_type> provider_;
};

}  // namespace weir_torch
