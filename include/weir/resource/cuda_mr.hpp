// SPDX-License-Identifier: Apache-2.0
// cuda_resource: resources of weir as resources of cuda::mr, for CCCL 3.0 (CUDA 13.0) and later.
//
//   auto memory = weir::caching_allocator::create(gpu).value();
//   cuda::stream_ref stream{cuda_stream};
//   void* p = memory.allocate(stream, 1 << 20, 256);
//   memory.deallocate(stream, p, 1 << 20, 256);
//
// With this header a caching_allocator, bin_pool, pinned_pool and stream_pool are resources of
// cuda::mr themselves; a cuda_resource is one for every other resource of weir. From CCCL 3.2 on
// they also become a cuda::mr::resource_ref<cuda::mr::device_accessible>.
//
// Needs CCCL's headers, which come with the CUDA toolkit; nothing else of weir includes this one.
// CCCL 3.0 shows cuda::mr only where LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE is defined: a
// file that includes CCCL's <cuda/memory_resource> before this header defines it itself.
#pragma once

#ifndef LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE
#define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE
#endif
#include <cuda/memory_resource>
#include <cuda/stream_ref>

#include <cstddef>
#include <utility>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/pool/bin_pool.hpp"
#include "weir/pool/pinned_pool.hpp"
#include "weir/pool/stream_pool.hpp"
#include "weir/resource/resource.hpp"
#include "weir/resource/synchronous_resource.hpp"

namespace weir { inline namespace v0 {

namespace detail {

/// A null stream is the legacy one, or the thread's own where the program is compiled for that, as
/// everywhere in CUDA.
inline stream_ref ref_of(weir::device device, ::CUstream_st* stream) {
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
  if (stream == nullptr) return stream_ref::per_thread(device);
#endif
  return {device, stream};
}

}  // namespace detail

// --- Allocators and pools
// -------------------------------------------------------------------------

template <class Memory>
template <detail::cuda_stream Stream>
void* cuda_mr_calls<Memory>::allocate(Stream stream, std::size_t size,
                                      std::size_t alignment) const {
  const Memory& memory = static_cast<const Memory&>(*this);
  return memory.allocate(bytes{size}, detail::ref_of(memory.device(), stream.get()),
                         bytes{alignment});
}

template <class Memory>
template <detail::cuda_stream Stream>
void cuda_mr_calls<Memory>::deallocate(Stream stream, void* pointer, std::size_t size,
                                       std::size_t /*alignment*/) const noexcept {
  const Memory& memory = static_cast<const Memory&>(*this);
  memory.deallocate(pointer, bytes{size}, detail::ref_of(memory.device(), stream.get()));
}

template <class Memory>
template <std::same_as<std::size_t> Size>
void* cuda_mr_calls<Memory>::allocate_sync(Size size, std::size_t alignment) const {
  const Memory& memory = static_cast<const Memory&>(*this);
  const stream_ref legacy = stream_ref::legacy(memory.device());
  void* const pointer = memory.allocate(bytes{size}, legacy, bytes{alignment});
  // The memory may come with a wait for other work, queued on that stream.
  const result<void> waited = pointer == nullptr ? result<void>{} : legacy.synchronize();
  if (!waited) {
    memory.deallocate(pointer, bytes{size}, legacy);
    raise(waited.error());
  }
  return pointer;
}

template <class Memory>
template <std::same_as<std::size_t> Size>
void cuda_mr_calls<Memory>::deallocate_sync(void* pointer, Size size,
                                            std::size_t /*alignment*/) const noexcept {
  const Memory& memory = static_cast<const Memory&>(*this);
  memory.deallocate(pointer, bytes{size}, stream_ref::legacy(memory.device()));
}

template <class Memory>
template <detail::cuda_stream Stream>
void* cuda_mr_calls<Memory>::allocate_async(std::size_t size, std::size_t alignment,
                                            Stream stream) const {
  return allocate(stream, size, alignment);
}

template <class Memory>
template <detail::cuda_stream Stream>
void cuda_mr_calls<Memory>::deallocate_async(void* pointer, std::size_t size, std::size_t alignment,
                                             Stream stream) const noexcept {
  deallocate(stream, pointer, size, alignment);
}

template <class Memory>
template <std::same_as<std::size_t> Size>
void* cuda_mr_calls<Memory>::allocate(Size size, std::size_t alignment) const {
  return allocate_sync(size, alignment);
}

template <class Memory>
template <std::same_as<std::size_t> Size>
void cuda_mr_calls<Memory>::deallocate(void* pointer, Size size,
                                       std::size_t alignment) const noexcept {
  deallocate_sync(pointer, size, alignment);
}

/// Declares for cuda::mr who can access the memory: devices, and for pinned memory the host.
constexpr void get_property(const caching_allocator&, ::cuda::mr::device_accessible) noexcept {}
constexpr void get_property(const block_pool&, ::cuda::mr::device_accessible) noexcept {}
constexpr void get_property(const stream_pool&, ::cuda::mr::device_accessible) noexcept {}
constexpr void get_property(const pinned_pool&, ::cuda::mr::host_accessible) noexcept {}

// --- Every other resource
// -------------------------------------------------------------------------

/// A resource of weir with the interface of cuda::mr, with the names of CCCL 3.0 (allocate_async)
/// and of 3.1 and later (stream first, _sync).
///
/// A shared handle, never empty. Calls without a stream go through a synchronous_resource. Equal if
/// the resources are. Any thread. Allocating throws weir::out_of_memory, which is a std::bad_alloc,
/// or weir::failure; failures of frees go to the error handler.
///
/// HostAccessible says that the memory has that property, too: such a resource stands on managed or
/// pinned memory only.
template <bool HostAccessible>
class basic_cuda_resource {
 public:
  /// The alignment of requests without one.
  static constexpr std::size_t default_alignment = weir::default_alignment.count();

  /// A cuda::mr resource over `memory`. invalid_argument: the resource is empty, or lacks the
  /// property.
  [[nodiscard]] static result<basic_cuda_resource> create(any_resource memory) {
    if (memory && HostAccessible && !host_accessible(memory.kind()))
      return error{{.code = errc::invalid_argument, .detail = "the host cannot use device memory"}};
    WEIR_TRY_VALUE(synchronous, synchronous_resource::create(std::move(memory)));
    return basic_cuda_resource{std::move(synchronous)};
  }

  /// Allocates in the order of a stream.
  void* allocate(::cuda::stream_ref stream, std::size_t size,
                 std::size_t alignment = default_alignment) const {
    return resource().allocate(bytes{size}, ref_of(stream), bytes{alignment});
  }
  /// Frees in the order of a stream.
  void deallocate(::cuda::stream_ref stream, void* pointer, std::size_t size,
                  std::size_t = default_alignment) const noexcept {
    resource().deallocate(pointer, bytes{size}, ref_of(stream));
  }
  /// The same with the names and order of arguments of CCCL 3.0.
  void* allocate_async(std::size_t size, std::size_t alignment, ::cuda::stream_ref stream) const {
    return allocate(stream, size, alignment);
  }
  void* allocate_async(std::size_t size, ::cuda::stream_ref stream) const {
    return allocate(stream, size);
  }
  void deallocate_async(void* pointer, std::size_t size, std::size_t,
                        ::cuda::stream_ref stream) const noexcept {
    deallocate(stream, pointer, size);
  }
  void deallocate_async(void* pointer, std::size_t size, ::cuda::stream_ref stream) const noexcept {
    deallocate(stream, pointer, size);
  }

  /// Allocates without a stream: all work may use the memory at once.
  void* allocate_sync(std::size_t size, std::size_t alignment = default_alignment) const {
    return memory_.allocate(bytes{size}, bytes{alignment});
  }
  /// Frees without a stream: no work may still use the memory.
  void deallocate_sync(void* pointer, std::size_t size,
                       std::size_t = default_alignment) const noexcept {
    memory_.deallocate(pointer, bytes{size});
  }
  /// The same with the names of CCCL 3.0.
  void* allocate(std::size_t size, std::size_t alignment = default_alignment) const {
    return allocate_sync(size, alignment);
  }
  void deallocate(void* pointer, std::size_t size, std::size_t = default_alignment) const noexcept {
    deallocate_sync(pointer, size);
  }

  /// The resource that requests go to.
  [[nodiscard]] const any_resource& resource() const noexcept { return memory_.upstream(); }

  friend bool operator==(const basic_cuda_resource& a, const basic_cuda_resource& b) noexcept {
    return a.memory_ == b.memory_;
  }
  friend constexpr void get_property(const basic_cuda_resource&,
                                     ::cuda::mr::device_accessible) noexcept {}
  friend constexpr void get_property(const basic_cuda_resource&,
                                     ::cuda::mr::host_accessible) noexcept
      requires(HostAccessible) {}

 private:
  explicit basic_cuda_resource(synchronous_resource memory) noexcept : memory_{std::move(memory)} {}

  [[nodiscard]] stream_ref ref_of(::cuda::stream_ref stream) const {
    return detail::ref_of(resource().device(), stream.get());
  }

  synchronous_resource memory_;
};

/// Memory that devices can use.
using cuda_resource = basic_cuda_resource<false>;
/// Memory that devices and the host can use.
using cuda_host_resource = basic_cuda_resource<true>;

#if CCCL_VERSION < 3001000
static_assert(::cuda::mr::async_resource_with<cuda_resource, ::cuda::mr::device_accessible>);
static_assert(!::cuda::mr::async_resource_with<cuda_resource, ::cuda::mr::host_accessible>);
static_assert(::cuda::mr::async_resource_with<cuda_host_resource, ::cuda::mr::device_accessible,
                                              ::cuda::mr::host_accessible>);
static_assert(::cuda::mr::async_resource_with<caching_allocator, ::cuda::mr::device_accessible>);
static_assert(!::cuda::mr::async_resource_with<caching_allocator, ::cuda::mr::host_accessible>);
static_assert(::cuda::mr::async_resource_with<bin_pool, ::cuda::mr::device_accessible>);
static_assert(::cuda::mr::async_resource_with<stream_pool, ::cuda::mr::device_accessible>);
static_assert(::cuda::mr::async_resource_with<pinned_pool, ::cuda::mr::device_accessible,
                                              ::cuda::mr::host_accessible>);
#else
static_assert(::cuda::mr::resource_with<caching_allocator, ::cuda::mr::device_accessible>);
static_assert(!::cuda::mr::resource_with<caching_allocator, ::cuda::mr::host_accessible>);
static_assert(::cuda::mr::resource_with<bin_pool, ::cuda::mr::device_accessible>);
static_assert(::cuda::mr::resource_with<stream_pool, ::cuda::mr::device_accessible>);
static_assert(::cuda::mr::resource_with<pinned_pool, ::cuda::mr::device_accessible,
                                        ::cuda::mr::host_accessible>);
static_assert(::cuda::mr::resource_with<cuda_resource, ::cuda::mr::device_accessible>);
static_assert(::cuda::mr::synchronous_resource_with<cuda_resource, ::cuda::mr::device_accessible>);
static_assert(!::cuda::mr::resource_with<cuda_resource, ::cuda::mr::host_accessible>);
static_assert(::cuda::mr::resource_with<cuda_host_resource, ::cuda::mr::device_accessible,
                                        ::cuda::mr::host_accessible>);
#endif

}}  // namespace weir::v0
