// SPDX-License-Identifier: Apache-2.0
// Addresses and physical memory: reserve a range, create handles, map them, grant access.
//
// The functions of weir::vmm are the driver's virtual memory calls with checked arguments. They own
// nothing and are for code that keeps track of many handles itself. Each class below owns one
// object.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "weir/base/bytes.hpp"
#include "weir/base/export.hpp"
#include "weir/base/print.hpp"
#include "weir/base/result.hpp"
#include "weir/device/device.hpp"
#include "weir/driver/types.hpp"

namespace weir { inline namespace v0 {

/// An address as devices see it.
using device_address = driver::CUdeviceptr;

/// A file descriptor that is closed with this object; -1 if empty. One thread at a time.
class WEIR_API descriptor {
 public:
  descriptor() noexcept = default;
  /// Takes ownership of an open descriptor.
  explicit descriptor(int number) noexcept : number_{number} {}
  ~descriptor();
  descriptor(descriptor&& other) noexcept : number_{std::exchange(other.number_, -1)} {}
  descriptor& operator=(descriptor&& other) noexcept;

  /// Whether it owns a descriptor.
  explicit operator bool() const noexcept { return number_ >= 0; }
  /// The number of the descriptor, -1 if empty; ownership stays here.
  [[nodiscard]] int get() const noexcept { return number_; }
  /// Passes ownership to the caller; empty afterwards.
  [[nodiscard]] int release() noexcept { return std::exchange(number_, -1); }

 private:
  int number_ = -1;
};

/// The required capabilities of a physical handle.
struct physical_properties {
  bool posix_descriptor = false;  ///< can be exported as a descriptor
  bool fabric = false;            ///< can be exported over the fabric: not_supported yet
  bool rdma = false;              ///< network cards can reach it

  friend bool operator==(const physical_properties&, const physical_properties&) = default;
};

/// The names of those that are set, "posix_descriptor, rdma"; "none".
[[nodiscard]] WEIR_API std::string to_string(const physical_properties& properties);

/// What a device may do with mapped memory.
enum class access_rights : std::uint8_t {
  none,        ///< no access
  read,        ///< read only
  read_write,  ///< read and write
};

/// "none", "read", "read_write".
[[nodiscard]] WEIR_API std::string to_string(access_rights rights);

/// `size` rounded up to the device's unit of physical handles. invalid_argument: zero;
/// size_overflow: it does not fit; not_supported: the device has no virtual memory.
[[nodiscard]] WEIR_API result<bytes> round_to_granularity(device owner, bytes size);
/// The same with the recommended unit, for communication libraries.
[[nodiscard]] WEIR_API result<bytes> round_to_recommended(device owner, bytes size);

namespace vmm {

/// The driver's handle of physical memory, and its size. Owns nothing.
struct physical {
  driver::CUmemGenericAllocationHandle handle = 0;  ///< the driver's number
  bytes size{};                                     ///< which the driver cannot report

  friend bool operator==(const physical&, const physical&) = default;
};

/// The rights of one device, in the driver's format; reusable for many calls.
using access = driver::CUmemAccessDesc;
/// The rights of `accessor` in the driver's format.
[[nodiscard]] WEIR_API access access_for(device accessor,
                                         access_rights rights = access_rights::read_write) noexcept;

// Every function needs an entered scope and returns its error otherwise. Sizes and addresses must
// be multiples of the device's granularity: a size that is not (or is zero) is invalid_argument, an
// address that is not is bad_alignment; neither reaches the driver.

/// Reserves addresses without memory, aligned to the granularity or to `alignment` if that is more.
/// The driver may ignore `hint`.
[[nodiscard]] WEIR_API result<device_address> reserve(const context_scope& scope, bytes size,
                                                      bytes alignment = {},
                                                      device_address hint = 0);
/// Frees exactly the range that reserve() returned; nothing may be mapped in it.
WEIR_API result<void> free(const context_scope& scope, device_address base, bytes size);

/// Creates physical memory without addresses. not_supported: the device lacks a required
/// capability.
[[nodiscard]] WEIR_API result<physical> create(const context_scope& scope, bytes size,
                                               physical_properties properties = {});
/// Releases the handle. Allowed while it is mapped: the memory is freed with its last mapping.
WEIR_API result<void> release(const context_scope& scope, const physical& memory);

/// Maps the whole handle; the driver cannot map parts. Not accessible before set_access().
WEIR_API result<void> map(const context_scope& scope, device_address address,
                          const physical& memory);
/// Maps the handles at consecutive addresses from `address` on: all, or none if one fails.
WEIR_API result<void> map(const context_scope& scope, device_address address,
                          std::span<const physical> memory);
/// Unmaps everything in the range, which must not split a mapping. No queued work may still use it.
WEIR_API result<void> unmap(const context_scope& scope, device_address address, bytes size);
/// Sets the rights of devices for a completely mapped range. One call for many mappings costs as
/// much as many calls.
WEIR_API result<void> set_access(const context_scope& scope, device_address address, bytes size,
                                 std::span<const access> rights);

/// A descriptor of the memory, for import in another process.
[[nodiscard]] WEIR_API result<descriptor> export_descriptor(const context_scope& scope,
                                                            const physical& memory);
/// Imports the memory of a descriptor, which stays the caller's. `size` is the size at the
/// exporter.
[[nodiscard]] WEIR_API result<physical> import_descriptor(const context_scope& scope, int number,
                                                          bytes size);

}  // namespace vmm

/// Allocates plain device memory (cuMemAlloc), for segments that are never remapped. Forbidden
/// during a capture, unless the thread is in relaxed mode (thread_capture_mode_guard). Costs 65–550
/// µs.
[[nodiscard]] WEIR_API result<device_address> allocate_plain(const context_scope& scope,
                                                             bytes size);
/// Frees plain device memory; waits for all running work of the device. Freeing null does nothing.
WEIR_API result<void> free_plain(const context_scope& scope, device_address address);

/// Reserved addresses, freed with this object.
///
/// base() and size() are multiples of the device's granularity. Everything mapped inside must be
/// unmapped before the range ends; otherwise the driver reports an error and the range stays
/// reserved. Keeps its runtime alive. One thread at a time may move or close it.
class WEIR_API address_range {
 public:
  /// Reserves addresses on the device; rules as for vmm::reserve().
  [[nodiscard]] static result<address_range> reserve(weir::device owner, bytes size,
                                                     bytes alignment = {}, device_address hint = 0);
  ~address_range();
  address_range(address_range&& other) noexcept;
  address_range& operator=(address_range&& other) noexcept;

  /// Frees the addresses now and returns the driver's result. Empty afterwards, also on failure.
  result<void> close() noexcept;
  /// Whether it holds a range.
  explicit operator bool() const noexcept { return home_ != nullptr; }

  /// The first address; 0 if empty.
  [[nodiscard]] device_address base() const noexcept { return base_; }
  /// The number of addresses; 0 if empty.
  [[nodiscard]] bytes size() const noexcept { return size_; }
  /// Whether `size` bytes from `address` on lie inside the range.
  [[nodiscard]] bool contains(device_address address, bytes size) const noexcept;

 private:
  friend class mapping;
  address_range(std::shared_ptr<detail::device_state> home, device_address base,
                bytes size) noexcept;
  /// Why the range is empty.
  [[nodiscard]] errc empty_reason() const noexcept {
    return closed_ ? errc::closed : errc::moved_from;
  }

  std::shared_ptr<detail::device_state> home_;
  device_address base_ = 0;
  bytes size_{};
  bool closed_ = false;
};

/// Physical memory of a device, released with this object.
///
/// size() is a multiple of the granularity and never changes. It may end before its mappings: the
/// memory exists until the last of them ends. Keeps its runtime alive. One thread at a time may
/// move or close it.
class WEIR_API physical_handle {
 public:
  /// Creates physical memory on the device; rules as for vmm::create().
  [[nodiscard]] static result<physical_handle> create(weir::device owner, bytes size,
                                                      physical_properties properties = {});
  /// The memory behind a descriptor of another process; the descriptor stays the caller's.
  [[nodiscard]] static result<physical_handle> import_descriptor(weir::device owner, int number,
                                                                 bytes size);
  ~physical_handle();
  physical_handle(physical_handle&& other) noexcept;
  physical_handle& operator=(physical_handle&& other) noexcept;

  /// Releases the memory now and returns the driver's result. Empty afterwards, also on failure.
  result<void> close() noexcept;
  /// Whether it holds a handle.
  explicit operator bool() const noexcept { return home_ != nullptr; }

  /// A descriptor of the memory, for another process. not_supported: created without
  /// posix_descriptor; moved_from or closed: the handle is empty.
  [[nodiscard]] result<descriptor> export_descriptor() const;

  /// The driver's handle and its size; ownership stays here.
  [[nodiscard]] const vmm::physical& get() const noexcept { return memory_; }
  /// The size of the memory; 0 if empty.
  [[nodiscard]] bytes size() const noexcept { return memory_.size; }
  /// The capabilities that it was created with.
  [[nodiscard]] physical_properties properties() const noexcept { return properties_; }
  /// The device of the memory. Precondition: the handle was not moved from or closed.
  [[nodiscard]] weir::device device() const noexcept;

 private:
  friend class mapping;
  physical_handle(std::shared_ptr<detail::device_state> home, vmm::physical memory,
                  physical_properties properties) noexcept;
  /// Why the handle is empty.
  [[nodiscard]] errc empty_reason() const noexcept {
    return closed_ ? errc::closed : errc::moved_from;
  }

  std::shared_ptr<detail::device_state> home_;
  vmm::physical memory_{};
  physical_properties properties_{};
  bool closed_ = false;
};

/// A mapping of a whole handle inside a range; unmapped with this object.
///
/// The addresses must not be used before set_access(), nor after this object ends, also not by work
/// that is still queued. Owns neither the range, which must outlive it, nor the handle, which need
/// not. Keeps its runtime alive. One thread at a time may move or close it.
class WEIR_API mapping {
 public:
  /// Maps `memory` at `offset` in `range`. bad_alignment: the offset is not a multiple of the
  /// granularity; invalid_argument: the handle exceeds the end of the range; moved_from or closed:
  /// one of them is empty; already_mapped or a driver error: something is mapped there.
  [[nodiscard]] static result<mapping> create(const address_range& range, bytes offset,
                                              const physical_handle& memory);
  ~mapping();
  mapping(mapping&& other) noexcept;
  mapping& operator=(mapping&& other) noexcept;

  /// Unmaps now and returns the driver's result. Empty afterwards, also on failure.
  result<void> close() noexcept;
  /// Whether it holds a mapping.
  explicit operator bool() const noexcept { return home_ != nullptr; }

  /// Sets the rights of devices for the mapping. moved_from or closed: the mapping is empty.
  result<void> set_access(device accessor, access_rights rights = access_rights::read_write) const;
  result<void> set_access(std::span<const vmm::access> rights) const;

  /// The first address of the mapping; 0 if empty.
  [[nodiscard]] device_address address() const noexcept { return address_; }
  /// The size of the mapped handle; 0 if empty.
  [[nodiscard]] bytes size() const noexcept { return size_; }

 private:
  mapping(std::shared_ptr<detail::device_state> home, device_address address, bytes size) noexcept;
  /// Why the mapping is empty.
  [[nodiscard]] errc empty_reason() const noexcept {
    return closed_ ? errc::closed : errc::moved_from;
  }

  std::shared_ptr<detail::device_state> home_;
  device_address address_ = 0;
  bytes size_{};
  bool closed_ = false;
};

}}  // namespace weir::v0
