// Resources of weir as resources of cuda::mr, for CCCL 3.0 (CUDA 13.0) and all later ones.
//
//   auto memory =
//   weir::cuda_resource::create(weir::caching_allocator::create(gpu).value()).value(); void* p =
//   memory.allocate_async(bytes, 256, stream);                       // CCCL 3.0
//   cuda::mr::resource_ref<cuda::mr::device_accessible> any = memory;          // CCCL 3.2
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

#include "weir/resource/resource.hpp"
#include "weir/resource/synchronous_resource.hpp"

namespace weir::inline v0 {

/// Any resource of weir, with the calls that cuda::mr asks for, in the spelling of CCCL 3.0
/// (allocate_async) and of 3.1 and later (stream first, _sync).
///
/// A shared handle, never empty. Calls without a stream go through a synchronous_resource. A null
/// stream is the legacy one, or the thread's own where the program is compiled for that, as
/// everywhere in CUDA. Equal if the resources are. Any thread. Allocating throws
/// weir::out_of_memory, which is a std::bad_alloc, or weir::failure; what goes wrong when memory is
/// given back goes to the error handler.
///
/// HostAccessible says that the memory has that property, too: such a resource can only be made of
/// managed or pinned memory.
template <bool HostAccessible>
class basic_cuda_resource {
 public:
  /// invalid_argument: the resource is empty, or has not the property.
  [[nodiscard]] static result<basic_cuda_resource> create(any_resource memory) {
    if (memory && HostAccessible && !host_accessible(memory.kind()))
      return error{.code = errc::invalid_argument, .detail = "the host cannot use device memory"};
    WEIR_TRY_VALUE(without_stream, synchronous_resource::create(std::move(memory)));
    return basic_cuda_resource{std::move(without_stream)};
  }

  // In a stream's order.
  void* allocate(::cuda::stream_ref stream, std::size_t size, std::size_t alignment = 256) {
    return resource().allocate(bytes{size}, on(stream), bytes{alignment});
  }
  void deallocate(::cuda::stream_ref stream, void* pointer, std::size_t size,
                  std::size_t = 256) noexcept {
    resource().deallocate(pointer, bytes{size}, on(stream));
  }
  void* allocate_async(std::size_t size, std::size_t alignment, ::cuda::stream_ref stream) {
    return allocate(stream, size, alignment);
  }
  void* allocate_async(std::size_t size, ::cuda::stream_ref stream) {
    return allocate(stream, size);
  }
  void deallocate_async(void* pointer, std::size_t size, std::size_t,
                        ::cuda::stream_ref stream) noexcept {
    deallocate(stream, pointer, size);
  }
  void deallocate_async(void* pointer, std::size_t size, ::cuda::stream_ref stream) noexcept {
    deallocate(stream, pointer, size);
  }

  // Outside of any.
  void* allocate_sync(std::size_t size, std::size_t alignment = 256) {
    return memory_.allocate(bytes{size}, bytes{alignment});
  }
  void deallocate_sync(void* pointer, std::size_t size, std::size_t = 256) noexcept {
    memory_.deallocate(pointer, bytes{size});
  }
  void* allocate(std::size_t size, std::size_t alignment = 256) {
    return allocate_sync(size, alignment);
  }
  void deallocate(void* pointer, std::size_t size, std::size_t = 256) noexcept {
    deallocate_sync(pointer, size);
  }

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

  [[nodiscard]] stream_ref on(::cuda::stream_ref stream) const {
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
    if (stream.get() == nullptr) return stream_ref::per_thread(resource().device());
#endif
    return {resource().device(), stream.get()};
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
#else
static_assert(::cuda::mr::resource_with<cuda_resource, ::cuda::mr::device_accessible>);
static_assert(::cuda::mr::synchronous_resource_with<cuda_resource, ::cuda::mr::device_accessible>);
static_assert(!::cuda::mr::resource_with<cuda_resource, ::cuda::mr::host_accessible>);
static_assert(::cuda::mr::resource_with<cuda_host_resource, ::cuda::mr::device_accessible,
                                        ::cuda::mr::host_accessible>);
#endif

}  // namespace weir::inline v0
