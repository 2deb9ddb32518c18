// SPDX-License-Identifier: Apache-2.0
// A device of a runtime, what it can do, and the scope that makes its context current.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "weir/base/bytes.hpp"
#include "weir/base/export.hpp"
#include "weir/base/ids.hpp"
#include "weir/base/print.hpp"
#include "weir/base/result.hpp"
#include "weir/driver/table.hpp"

namespace weir { inline namespace v0 {

namespace detail {
struct device_state;
}

/// What a device can do, asked once when its runtime is opened. A question that the driver is too
/// old to understand counts as "no".
struct device_capabilities {
  int compute_major = 0;
  int compute_minor = 0;
  int multiprocessors = 0;
  int copy_engines = 0;
  bytes l2_cache{};

  bool unified_addressing = false;
  bool integrated = false;  ///< shares its memory with the host
  bool stream_priorities = false;
  bool stream_memory_operations = false;

  // Virtual memory
  bool virtual_memory = false;
  bytes granularity{};              ///< the unit of physical handles; 0 without virtual memory
  bytes recommended_granularity{};  ///< the unit that communication libraries ask for
  bool posix_descriptors = false;   ///< handles can be sent to other processes as descriptors
  bool fabric_handles = false;      ///< handles can be sent to other nodes; may still be refused
  bool multicast = false;

  // Pools
  bool memory_pools = false;
  unsigned pool_handle_types = 0;  ///< CUmemAllocationHandleType bits that pools can export
  bool host_memory_pools = false;
  bool host_numa_memory_pools = false;

  // Memory of the host
  bool managed_memory = false;
  bool concurrent_managed_access = false;
  bool managed_access_from_host = false;  ///< the host reaches managed memory without migration
  bool pageable_memory_access = false;
  bool host_page_tables = false;  ///< pageable access goes through the host's page tables
  bool host_register = false;
  bool host_pointer_for_registered = false;  ///< registered memory has one address on both sides
  bool host_virtual_memory = false;
  bool host_numa_virtual_memory = false;
  int host_numa_node = -1;  ///< the nearest node; -1 where the driver does not say

  // Network
  bool rdma = false;
  bool rdma_with_virtual_memory = false;
  bool dma_buf = false;
};

/// The numbers by name, and on a second line the names of what the device can do.
[[nodiscard]] WEIR_API std::string to_string(const device_capabilities& capabilities);

/// What the driver says is free and present on a device, by all processes together.
struct memory_info {
  bytes free;
  bytes total;
};

/// "12 GiB of 140 GiB free".
[[nodiscard]] WEIR_API std::string to_string(const memory_info& info);

/// Priorities of streams: a smaller number goes first, so greatest <= least.
struct priority_range {
  int least = 0;
  int greatest = 0;
};

/// One device of a runtime: a reference, as cheap to copy as a pointer.
///
/// Always refers to a device that existed when its runtime was opened. Owns nothing: it is good as
/// long as the runtime, or any stream, event, range, handle or mapping made from it, is alive. Any
/// thread may use it. Reading its properties costs a load; the calls that return a result query the
/// driver.
///
/// The device's primary context, the one that the CUDA runtime and every framework uses too, is
/// retained at the first call that needs it and released with the runtime: merely listing
/// devices creates no context, which would cost hundreds of megabytes.
class WEIR_API device {
 public:
  [[nodiscard]] device_id id() const noexcept;
  [[nodiscard]] std::string_view name() const noexcept;
  [[nodiscard]] bytes total_memory() const noexcept;
  [[nodiscard]] const device_capabilities& capabilities() const noexcept;
  /// "0000:18:00.0"
  [[nodiscard]] std::string_view pci_bus_id() const noexcept;
  /// Empty where the driver cannot say.
  [[nodiscard]] const std::optional<std::array<std::uint8_t, 16>>& uuid() const noexcept;

  /// What is free now. Creates the device's context.
  [[nodiscard]] result<weir::memory_info> memory_info() const;
  [[nodiscard]] result<priority_range> stream_priorities() const;
  /// Waits for all work of the device's context. Not allowed while a stream is being captured.
  result<void> synchronize() const;

  /// Whether this device can reach the memory of `other`. A device reaches itself.
  [[nodiscard]] result<bool> can_access_peer(device other) const;
  /// Lets this device reach what `other` allocated with allocate_plain(). Mapped handles and pools
  /// are not covered: they carry their own access rights (vmm::set_access). Enabling what is
  /// enabled and disabling what is disabled succeeds.
  result<void> enable_peer_access(device other) const;
  result<void> disable_peer_access(device other) const;

  /// The primary context, for interoperation with code that needs one.
  [[nodiscard]] result<driver::CUcontext> context() const;
  [[nodiscard]] const driver::table& driver() const noexcept;
  [[nodiscard]] int driver_version() const noexcept;

  friend bool operator==(device, device) noexcept = default;

 private:
  friend class runtime;
  friend class context_scope;
  friend struct detail::device_state;
  explicit device(detail::device_state& state) noexcept : state_{&state} {}

  detail::device_state* state_;
};

/// "device 0: NVIDIA H200, 139.8 GiB".
[[nodiscard]] WEIR_API std::string to_string(device owner);

/// Makes a device's context current for the calling thread and puts back what was current before,
/// nothing included. What the user had on the thread's context stack stays as it was.
///
/// A scope that could not be entered converts to false, and every call made with it returns its
/// error(). Calls that take a scope trust it and add nothing to the driver's own cost: code that
/// makes many calls in a row enters once. All other calls of this layer enter a scope by
/// themselves.
///
/// Stays on the thread and in the block where it was made. Costs one cuCtxGetCurrent (about 10 ns)
/// where the context is current already, a push and a pop otherwise.
///
/// After fork() a scope of the child cannot be entered (driver_gone), before any driver call is
/// made.
class WEIR_API context_scope {
 public:
  [[nodiscard]] explicit context_scope(weir::device device) noexcept;
  ~context_scope();
  context_scope(const context_scope&) = delete;
  context_scope& operator=(const context_scope&) = delete;

  explicit operator bool() const noexcept { return failure_ == failure::none; }
  /// Why it could not be entered; only meaningful if it was not.
  [[nodiscard]] weir::error error() const;

  [[nodiscard]] weir::device device() const noexcept { return device_; }
  [[nodiscard]] const driver::table& driver() const noexcept { return *calls_; }

 private:
  enum class failure : std::uint8_t { none, forked, driver };

  weir::device device_;
  const driver::table* calls_;
  driver::CUresult native_ = driver::CUDA_SUCCESS;
  driver::call call_{};
  failure failure_ = failure::none;
  bool pushed_ = false;
};

}}  // namespace weir::v0
