// SPDX-License-Identifier: Apache-2.0
// Pinned host memory that devices access in place: mapped_buffer allocates it, registered_memory
// pins existing memory.
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

/// The choices of a mapped_buffer.
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
/// They are initialised to zero bytes.
///
/// Access is not ordered: the host must wait for a stream before it reads what the stream's work
/// wrote. For small data that both sides use; for bulk data a copy is faster. Pinning is slow, so
/// keep the buffer. Freed with this object, which waits for all running work. Keeps its runtime
/// alive. One thread at a time may move or close it.
template <class T>
class mapped_buffer {
  static_assert(std::is_trivially_copyable_v<T> && !std::is_const_v<T>);

 public:
  /// The element type.
  using value_type = T;

  /// Empty, like one that was closed or moved from.
  mapped_buffer() noexcept = default;
  /// A buffer of `count` zero elements. invalid_argument: `count` is zero; size_overflow: the size
  /// does not fit; bad_alignment: the driver's memory is not aligned for T.
  [[nodiscard]] static result<mapped_buffer> create(weir::device device, std::size_t count,
                                                    mapped_options settings = {}) {
    WEIR_TRY_VALUE(size, detail::size_of_elements(count, sizeof(T)));
    WEIR_TRY_VALUE(memory, detail::mapped_block::create(device, size, bytes{alignof(T)}, settings));
    mapped_buffer buffer;
    buffer.memory_ = std::move(memory);
    return buffer;
  }
  /// Waits for all running work, frees the memory now and returns the driver's result.
  result<void> close() noexcept { return memory_.close(); }
  /// Whether it owns memory.
  explicit operator bool() const noexcept { return memory_.host() != nullptr; }

  /// The host address of the first element.
  [[nodiscard]] T* data() noexcept { return static_cast<T*>(memory_.host()); }
  [[nodiscard]] const T* data() const noexcept { return static_cast<const T*>(memory_.host()); }
  /// The number of elements.
  [[nodiscard]] std::size_t size() const noexcept { return memory_.size().count() / sizeof(T); }
  /// Whether there are no elements.
  [[nodiscard]] bool empty() const noexcept { return size() == 0; }
  /// The elements, for the host.
  [[nodiscard]] std::span<T> span() noexcept { return {data(), size()}; }
  [[nodiscard]] std::span<const T> span() const noexcept { return {data(), size()}; }
  /// One element, for the host; `index` is not checked.
  [[nodiscard]] T& operator[](std::size_t index) noexcept { return data()[index]; }
  [[nodiscard]] const T& operator[](std::size_t index) const noexcept { return data()[index]; }

  /// The same elements at the address that devices use.
  [[nodiscard]] device_span<T> on_device() noexcept {
    return {reinterpret_cast<T*>(memory_.on_device()), size()};
  }

 private:
  detail::mapped_block memory_;
};

/// The choices of a registered_memory.
struct register_options {
  /// The memory is that of a device on the bus, mapped into this process.
  bool io_memory = false;
  /// Devices will only read it; needed for memory that the process may not write.
  bool read_only = false;
};

/// Existing host memory, pinned in place and mapped for every device while this object exists.
///
/// Does not own the memory, which must outlive it and keep its address. Registering costs as much
/// as pinning. Unregistered with this object, which waits for all running work. Keeps its runtime
/// alive. One thread at a time may move or close it.
class WEIR_API registered_memory {
 public:
  /// Empty, like one that was closed or moved from.
  registered_memory() noexcept = default;
  /// Pins `memory` and maps it for all devices. invalid_argument: it is null, empty, or not memory
  /// of this process; already_mapped: part of it is registered; not_supported: the device does not
  /// support it. After a failure nothing is registered.
  [[nodiscard]] static result<registered_memory> create(weir::device device,
                                                        std::span<std::byte> memory,
                                                        register_options settings = {});
  /// The same for memory that the process may not write; devices may only read it.
  [[nodiscard]] static result<registered_memory> create(weir::device device,
                                                        std::span<const std::byte> memory);
  ~registered_memory();
  registered_memory(registered_memory&& other) noexcept;
  registered_memory& operator=(registered_memory&& other) noexcept;

  /// Unregisters the memory now and returns the driver's result. Empty afterwards, also on failure.
  /// If a wait for the work of other devices fails, the memory stays registered; the error says how
  /// much.
  result<void> close() noexcept;
  /// Whether memory is registered by this object.
  explicit operator bool() const noexcept { return home_ != nullptr; }

  /// The host address of the memory; null if empty.
  [[nodiscard]] const void* data() const noexcept { return host_; }
  /// The number of registered bytes.
  [[nodiscard]] bytes size() const noexcept { return size_; }
  /// Whether nothing is registered.
  [[nodiscard]] bool empty() const noexcept { return size_ == bytes{}; }
  /// The registered bytes.
  [[nodiscard]] std::span<const std::byte> span() const noexcept {
    return {static_cast<const std::byte*>(host_), static_cast<std::size_t>(size_.count())};
  }
  /// The address of the first byte for devices.
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
