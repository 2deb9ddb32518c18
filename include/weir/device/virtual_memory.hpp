// SPDX-License-Identifier: Apache-2.0
// Addresses and physical memory: reserve a range, create handles, map them, grant access.
//
// The functions of weir::vmm are the driver's virtual memory calls with their rules checked; they
// own nothing and serve code that does its own bookkeeping of many handles. The classes below own
// one thing each.
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

/// A file descriptor that is closed with this object. -1 is none. Owned by one thread at a time.
class WEIR_API descriptor {
 public:
  descriptor() noexcept = default;
  explicit descriptor(int number) noexcept : number_{number} {}
  ~descriptor();
  descriptor(descriptor&& other) noexcept : number_{std::exchange(other.number_, -1)} {}
  descriptor& operator=(descriptor&& other) noexcept;

  explicit operator bool() const noexcept { return number_ >= 0; }
  [[nodiscard]] int get() const noexcept { return number_; }
  /// Gives the descriptor up to the caller.
  [[nodiscard]] int release() noexcept { return std::exchange(number_, -1); }

 private:
  int number_ = -1;
};

/// What a physical handle is to be capable of.
struct physical_properties {
  bool posix_descriptor = false;  ///< can be exported as a descriptor
  bool fabric = false;            ///< over the fabric: not_supported until weir can export it
  bool rdma = false;              ///< network cards can reach it

  friend bool operator==(const physical_properties&, const physical_properties&) = default;
};

/// The names of those that are set, "posix_descriptor, rdma"; "none".
[[nodiscard]] WEIR_API std::string to_string(const physical_properties& properties);

enum class access_rights : std::uint8_t { none, read, read_write };

/// "none", "read", "read_write".
[[nodiscard]] WEIR_API std::string to_string(access_rights rights);

/// `size` rounded up to the device's unit of physical handles. invalid_argument: zero;
/// size_overflow: no such number; not_supported: the device has no virtual memory.
[[nodiscard]] WEIR_API result<bytes> round_to_granularity(device owner, bytes size);
/// The same for communication libraries, which ask for the recommended unit.
[[nodiscard]] WEIR_API result<bytes> round_to_recommended(device owner, bytes size);

namespace vmm {

/// The driver's name for physical memory, with its size, which the driver does not tell. Owns
/// nothing.
struct physical {
  driver::CUmemGenericAllocationHandle handle = 0;
  bytes size{};

  friend bool operator==(const physical&, const physical&) = default;
};

/// Rights of one device, as the driver takes them. Make it once, use it for every call.
using access = driver::CUmemAccessDesc;
[[nodiscard]] WEIR_API access access_for(device accessor,
                                         access_rights rights = access_rights::read_write) noexcept;

// Every function needs an entered scope and returns its error otherwise. Sizes and addresses must
// be multiples of the device's granularity: a size that is not (or is zero) is invalid_argument, an
// address that is not is bad_alignment; neither reaches the driver.

/// Addresses without memory, aligned to the granularity or to `alignment` if that is more. The
/// driver need not follow `hint`.
[[nodiscard]] WEIR_API result<device_address> reserve(const context_scope& scope, bytes size,
                                                      bytes alignment = {},
                                                      device_address hint = 0);
/// Exactly what reserve() returned; nothing may be mapped in it.
WEIR_API result<void> free(const context_scope& scope, device_address base, bytes size);

/// Memory without addresses. not_supported: the device has not the capability asked for.
[[nodiscard]] WEIR_API result<physical> create(const context_scope& scope, bytes size,
                                               physical_properties properties = {});
/// Releases the handle. Allowed while mapped: the memory goes with its last mapping.
WEIR_API result<void> release(const context_scope& scope, const physical& memory);

/// Maps the whole handle; the driver maps no parts. Not accessible before set_access().
WEIR_API result<void> map(const context_scope& scope, device_address address,
                          const physical& memory);
/// Maps the handles one behind the other from `address` on: all, or none if one fails.
WEIR_API result<void> map(const context_scope& scope, device_address address,
                          std::span<const physical> memory);
/// Unmaps everything in the range, which must not cut a mapping in two. The caller sees to it that
/// no queued work still uses it.
WEIR_API result<void> unmap(const context_scope& scope, device_address address, bytes size);
/// Grants rights over a wholly mapped range. One call over many mappings costs what many cost.
WEIR_API result<void> set_access(const context_scope& scope, device_address address, bytes size,
                                 std::span<const access> rights);

/// A descriptor that stands for the memory; another process imports it.
[[nodiscard]] WEIR_API result<descriptor> export_descriptor(const context_scope& scope,
                                                            const physical& memory);
/// The memory behind a descriptor, which stays the caller's. `size` is what the exporter says.
[[nodiscard]] WEIR_API result<physical> import_descriptor(const context_scope& scope, int number,
                                                          bytes size);

}  // namespace vmm

/// Plain device memory (cuMemAlloc), for segments that are never remapped. Forbidden while a
/// capture runs, unless the thread is in relaxed mode (thread_capture_mode_guard). 65–550 µs.
[[nodiscard]] WEIR_API result<device_address> allocate_plain(const context_scope& scope,
                                                             bytes size);
/// Waits for all running work of the device. Null is no error.
WEIR_API result<void> free_plain(const context_scope& scope, device_address address);

/// Reserved addresses, freed with this object.
///
/// base() and size() are multiples of the device's granularity. Whatever is mapped inside must be
/// unmapped before the range goes; a range that goes too early is reported by the driver and stays
/// reserved. Keeps its runtime alive. One thread at a time may move or close it.
class WEIR_API address_range {
 public:
  [[nodiscard]] static result<address_range> reserve(weir::device owner, bytes size,
                                                     bytes alignment = {}, device_address hint = 0);
  ~address_range();
  address_range(address_range&& other) noexcept;
  address_range& operator=(address_range&& other) noexcept;

  /// Frees the addresses now and says what came of it. Empty afterwards in any case.
  result<void> close() noexcept;
  explicit operator bool() const noexcept { return home_ != nullptr; }

  [[nodiscard]] device_address base() const noexcept { return base_; }
  [[nodiscard]] bytes size() const noexcept { return size_; }
  /// Whether `size` bytes from `address` on lie inside.
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
/// size() is a multiple of the granularity and never changes. May go before its mappings: the
/// memory lives until the last of them goes. Keeps its runtime alive. One thread at a time may move
/// or close it.
class WEIR_API physical_handle {
 public:
  [[nodiscard]] static result<physical_handle> create(weir::device owner, bytes size,
                                                      physical_properties properties = {});
  /// The memory behind a descriptor of another process; the descriptor stays the caller's.
  [[nodiscard]] static result<physical_handle> import_descriptor(weir::device owner, int number,
                                                                 bytes size);
  ~physical_handle();
  physical_handle(physical_handle&& other) noexcept;
  physical_handle& operator=(physical_handle&& other) noexcept;

  /// Releases the memory now and says what came of it. Empty afterwards in any case.
  result<void> close() noexcept;
  explicit operator bool() const noexcept { return home_ != nullptr; }

  /// not_supported: created without posix_descriptor; moved_from or closed: the handle is empty.
  [[nodiscard]] result<descriptor> export_descriptor() const;

  [[nodiscard]] const vmm::physical& get() const noexcept { return memory_; }
  [[nodiscard]] bytes size() const noexcept { return memory_.size; }
  [[nodiscard]] physical_properties properties() const noexcept { return properties_; }
  /// Needs a handle that was not moved from or closed.
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

/// A whole handle mapped inside a range; unmapped with this object.
///
/// Nothing may touch the addresses before set_access(), nor after this object goes, work still
/// queued on streams included. Owns neither the range, which must outlive it, nor the handle, which
/// need not. Keeps its runtime alive. One thread at a time may move or close it.
class WEIR_API mapping {
 public:
  /// Maps `memory` at `offset` in `range`. bad_alignment: the offset is no multiple of the
  /// granularity; invalid_argument: the handle reaches over the end; moved_from or closed: one of
  /// them is empty; already_mapped or a driver error: something is mapped there.
  [[nodiscard]] static result<mapping> create(const address_range& range, bytes offset,
                                              const physical_handle& memory);
  ~mapping();
  mapping(mapping&& other) noexcept;
  mapping& operator=(mapping&& other) noexcept;

  /// Unmaps now and says what came of it. Empty afterwards in any case.
  result<void> close() noexcept;
  explicit operator bool() const noexcept { return home_ != nullptr; }

  /// moved_from or closed: the mapping is empty.
  result<void> set_access(device accessor, access_rights rights = access_rights::read_write) const;
  result<void> set_access(std::span<const vmm::access> rights) const;

  [[nodiscard]] device_address address() const noexcept { return address_; }
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
