// SPDX-License-Identifier: Apache-2.0
// Host memory that devices reach where it is: allocated for it, or registered afterwards.
//
//   auto flags = weir::mapped_buffer<int>::create(gpu, 64).value();    // zeros
//   launch(flags.on_device(), stream);                                 // the kernel writes flags
//   stream.synchronize().value();
//   const int first = flags[0];                                        // and the host reads them
//
//   auto pinned =
//       weir::registered_memory::create(gpu, std::as_writable_bytes(std::span{host})).value();
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "weir/base/bytes.hpp"
#include "weir/base/export.hpp"
#include "weir/base/result.hpp"
#include "weir/buffer/device_span.hpp"
#include "weir/device/device.hpp"
#include "weir/device/virtual_memory.hpp"

namespace weir { inline namespace v0 {

struct mapped_options {
  /// Faster for devices to read over the bus, very slow for the host to read.
  bool write_combined = false;
};

namespace detail {

/// Pinned host memory with its device address: what mapped_buffer<T> is made of.
class WEIR_API mapped_block {
 public:
  mapped_block() noexcept = default;
  [[nodiscard]] static result<mapped_block> create(weir::device device, bytes size, bytes alignment,
                                                   mapped_options settings);
  ~mapped_block();
  mapped_block(mapped_block&& other) noexcept;
  mapped_block& operator=(mapped_block&& other) noexcept;
  result<void> close() noexcept;

  [[nodiscard]] void* host() const noexcept { return host_; }
  [[nodiscard]] device_address on_device() const noexcept { return device_; }
  [[nodiscard]] bytes size() const noexcept { return size_; }

 private:
  std::shared_ptr<device_state> home_;
  void* base_ = nullptr;
  void* host_ = nullptr;
  device_address device_ = 0;
  bytes size_{};
};

}  // namespace detail

/// Elements in pinned host memory that every device of the runtime can read and write over the bus.
/// They begin as zero bytes.
///
/// Nothing orders the host and the devices: the host waits for a stream before it reads what that
/// wrote. For small things that both sides read and write; for bulk data a copy is faster. Pinning
/// is slow, so keep it. Freed with this object, which waits for all running work. Keeps its runtime
/// alive. One thread at a time may move or close it.
template <class T>
class mapped_buffer {
  static_assert(std::is_trivially_copyable_v<T> && !std::is_const_v<T>);

 public:
  using value_type = T;

  mapped_buffer() noexcept = default;
  /// invalid_argument: `count` is zero; size_overflow: there is no such size; bad_alignment: the
  /// driver's memory is not aligned for T.
  [[nodiscard]] static result<mapped_buffer> create(weir::device device, std::size_t count,
                                                    mapped_options settings = {}) {
    WEIR_TRY_VALUE(size, detail::size_of_elements(count, sizeof(T)));
    WEIR_TRY_VALUE(memory, detail::mapped_block::create(device, size, bytes{alignof(T)}, settings));
    mapped_buffer buffer;
    buffer.memory_ = std::move(memory);
    return buffer;
  }
  result<void> close() noexcept { return memory_.close(); }
  explicit operator bool() const noexcept { return memory_.host() != nullptr; }

  [[nodiscard]] T* data() noexcept { return static_cast<T*>(memory_.host()); }
  [[nodiscard]] const T* data() const noexcept { return static_cast<const T*>(memory_.host()); }
  [[nodiscard]] std::size_t size() const noexcept { return memory_.size().count() / sizeof(T); }
  [[nodiscard]] bool empty() const noexcept { return size() == 0; }
  [[nodiscard]] std::span<T> span() noexcept { return {data(), size()}; }
  [[nodiscard]] std::span<const T> span() const noexcept { return {data(), size()}; }
  [[nodiscard]] T& operator[](std::size_t index) noexcept { return data()[index]; }
  [[nodiscard]] const T& operator[](std::size_t index) const noexcept { return data()[index]; }

  /// The same elements as devices see them.
  [[nodiscard]] device_span<T> on_device() noexcept {
    return {reinterpret_cast<T*>(memory_.on_device()), size()};
  }

 private:
  detail::mapped_block memory_;
};

struct register_options {
  /// Memory of a device on the bus, mapped into this process.
  bool io_memory = false;
  /// Devices will only read it; needed for memory that the process may not write.
  bool read_only = false;
};

/// Somebody's host memory, pinned in place and mapped for every device while this object lives.
///
/// Does not own the memory, which must outlive it and keep its address. Registering costs as much
/// as pinning. Unregistered with this object, which waits for all running work. Keeps its runtime
/// alive. One thread at a time may move or close it.
class WEIR_API registered_memory {
 public:
  registered_memory() noexcept = default;
  /// invalid_argument: null, nothing, or not this process's memory; already_mapped: part of it is
  /// registered; not_supported: the device cannot. Whatever fails, nothing stays registered.
  [[nodiscard]] static result<registered_memory> create(weir::device device,
                                                        std::span<std::byte> memory,
                                                        register_options settings = {});
  /// Of memory that the process may not write; devices may only read it.
  [[nodiscard]] static result<registered_memory> create(weir::device device,
                                                        std::span<const std::byte> memory);
  ~registered_memory();
  registered_memory(registered_memory&& other) noexcept;
  registered_memory& operator=(registered_memory&& other) noexcept;

  /// Unregisters now and returns the driver's answer. Empty afterwards in any case. Where work of
  /// other devices cannot be waited for, the memory stays registered: the error says how much.
  result<void> close() noexcept;
  explicit operator bool() const noexcept { return home_ != nullptr; }

  [[nodiscard]] const void* data() const noexcept { return host_; }
  [[nodiscard]] bytes size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == bytes{}; }
  [[nodiscard]] std::span<const std::byte> span() const noexcept {
    return {static_cast<const std::byte*>(host_), static_cast<std::size_t>(size_.count())};
  }
  /// The first byte as devices see it.
  [[nodiscard]] device_address on_device() const noexcept { return device_; }

 private:
  static result<registered_memory> pin(weir::device device, void* first, std::size_t size,
                                       unsigned flags);

  std::shared_ptr<detail::device_state> home_;
  void* host_ = nullptr;
  device_address device_ = 0;
  bytes size_{};
};

}}  // namespace weir::v0
