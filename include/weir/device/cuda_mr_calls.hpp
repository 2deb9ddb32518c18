// SPDX-License-Identifier: Apache-2.0
// The calls of a cuda::mr resource, for types of weir that are one. Declared without CCCL's
// headers; weir/resource/cuda_mr.hpp, which a program includes that uses them, defines them.
#pragma once

#include <concepts>
#include <cstddef>

#include "weir/base/bytes.hpp"

struct CUstream_st;

namespace weir { inline namespace v0 {

namespace detail {

/// cuda::stream_ref, or what looks like it.
template <class Stream>
concept cuda_stream = requires(const Stream& stream) {
  { stream.get() } -> std::convertible_to<::CUstream_st*>;
};

}  // namespace detail

/// Makes `Memory` a resource of cuda::mr: with the stream first and _sync, as CCCL 3.1 and later
/// have it, and with the names of CCCL 3.0 (_async, and without a stream).
///
/// In the order of a stream they mean what allocate() and deallocate() of `Memory` mean. Those
/// without a stream return memory that every stream and, if it is the host's, the host may use at
/// once; it may be freed when no queued work uses it any more.
template <class Memory>
class cuda_mr_calls {
 public:
  /// For work queued on `stream` from now on.
  template <detail::cuda_stream Stream>
  [[nodiscard]] void* allocate(Stream stream, std::size_t size,
                               std::size_t alignment = default_alignment.count()) const;
  /// Work queued on `stream` so far may still use it.
  template <detail::cuda_stream Stream>
  void deallocate(Stream stream, void* pointer, std::size_t size,
                  std::size_t alignment = default_alignment.count()) const noexcept;
  /// For work on any stream.
  template <std::same_as<std::size_t> Size>
  [[nodiscard]] void* allocate_sync(Size size,
                                    std::size_t alignment = default_alignment.count()) const;
  /// No queued work uses it any more.
  template <std::same_as<std::size_t> Size>
  void deallocate_sync(void* pointer, Size size,
                       std::size_t alignment = default_alignment.count()) const noexcept;

  /// allocate() of a stream, by its name in CCCL 3.0.
  template <detail::cuda_stream Stream>
  [[nodiscard]] void* allocate_async(std::size_t size, std::size_t alignment, Stream stream) const;
  /// deallocate() of a stream, by its name in CCCL 3.0.
  template <detail::cuda_stream Stream>
  void deallocate_async(void* pointer, std::size_t size, std::size_t alignment,
                        Stream stream) const noexcept;
  /// allocate_sync(), by its name in CCCL 3.0.
  template <std::same_as<std::size_t> Size>
  [[nodiscard]] void* allocate(Size size, std::size_t alignment) const;
  /// deallocate_sync(), by its name in CCCL 3.0.
  template <std::same_as<std::size_t> Size>
  void deallocate(void* pointer, Size size, std::size_t alignment) const noexcept;

  friend constexpr bool operator==(const cuda_mr_calls&, const cuda_mr_calls&) noexcept = default;

 protected:
  cuda_mr_calls() noexcept = default;
  ~cuda_mr_calls() = default;
  cuda_mr_calls(const cuda_mr_calls&) noexcept = default;
  cuda_mr_calls(cuda_mr_calls&&) noexcept = default;
  cuda_mr_calls& operator=(const cuda_mr_calls&) noexcept = default;
  cuda_mr_calls& operator=(cuda_mr_calls&&) noexcept = default;
};

}}  // namespace weir::v0
