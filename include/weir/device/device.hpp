// SPDX-License-Identifier: Apache-2.0
// A device of a runtime, its capabilities, and the scope that makes its context current.
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

/// What a device can do, queried once when its runtime is opened. A capability that the driver is
/// too old to report counts as absent.
struct device_capabilities {
  int compute_major = 0;    ///< 9 for compute capability 9.0
  int compute_minor = 0;    ///< 0 for compute capability 9.0
  int multiprocessors = 0;  ///< number of multiprocessors
  int copy_engines = 0;     ///< copies that can run at the same time as kernels
  bytes l2_cache{};         ///< the size of the L2 cache

  bool unified_addressing = false;        ///< host and device addresses are in one address space
  bool integrated = false;                ///< shares its memory with the host
  bool stream_priorities = false;         ///< streams can have priorities
  bool stream_memory_operations = false;  ///< streams can wait for and write values in memory

  // Virtual memory
  bool virtual_memory = false;      ///< physical memory can be mapped at chosen addresses
  bytes granularity{};              ///< the unit of physical handles; 0 without virtual memory
  bytes recommended_granularity{};  ///< the unit that communication libraries use
  bool posix_descriptors = false;   ///< handles can be sent to other processes as descriptors
  bool fabric_handles = false;      ///< handles can be sent to other nodes; may still be refused
  bool multicast = false;           ///< memory of several devices behind one address

  // Pools
  bool memory_pools = false;            ///< stream-ordered pools (cuMemPoolCreate)
  unsigned pool_handle_types = 0;       ///< CUmemAllocationHandleType bits that pools can export
  bool host_memory_pools = false;       ///< stream-ordered pools in host memory
  bool host_numa_memory_pools = false;  ///< the same on a chosen node of the host

  // Memory of the host
  bool managed_memory = false;             ///< cuMemAllocManaged
  bool concurrent_managed_access = false;  ///< the host can use managed memory while work runs
  bool managed_access_from_host = false;   ///< the host reaches managed memory without migration
  bool pageable_memory_access = false;     ///< the device reaches the host's pageable memory
  bool host_page_tables = false;           ///< pageable access goes through the host's page tables
  bool host_register = false;              ///< existing host memory can be pinned
  bool host_pointer_for_registered = false;  ///< registered memory has one address on both sides
  bool host_virtual_memory = false;          ///< physical handles in host memory
  bool host_numa_virtual_memory = false;     ///< the same on a chosen node of the host
  int host_numa_node = -1;                   ///< the nearest node of the host; -1 if unknown

  // Network
  bool rdma = false;                      ///< network cards reach plain device memory
  bool rdma_with_virtual_memory = false;  ///< they also reach mapped memory
  bool dma_buf = false;                   ///< memory can be exported as a DMA-BUF descriptor
};

/// The numbers by name, and on a second line the names of the capabilities that are present.
[[nodiscard]] WEIR_API std::string to_string(const device_capabilities& capabilities);

/// A device's memory as the driver reports it, for all processes together.
struct memory_info {
  bytes free;   ///< not used by any process
  bytes total;  ///< the size of the device's memory
};

/// "12 GiB of 140 GiB free".
[[nodiscard]] WEIR_API std::string to_string(const memory_info& info);

/// The range of stream priorities. Smaller numbers have precedence, so greatest <= least.
struct priority_range {
  int least = 0;     ///< the number of the lowest priority
  int greatest = 0;  ///< the number of the highest priority
};

/// One device of a runtime: a reference, as cheap to copy as a pointer.
///
/// Always refers to a device that existed when its runtime was opened. Owns nothing: it is valid
/// while the runtime, or any stream, event, range, handle or mapping created from it, exists.
/// Thread-safe. Reading its properties costs a load; calls that return a result query the driver.
///
/// The device's primary context, which the CUDA runtime and frameworks use too, is retained by the
/// first call that needs it and released with the runtime. Listing devices creates no context,
/// which would cost hundreds of megabytes.
class WEIR_API device {
 public:
  /// The number of the device in its runtime, from 0.
  [[nodiscard]] device_id id() const noexcept;
  /// The driver's name of the device, e.g. "NVIDIA H200".
  [[nodiscard]] std::string_view name() const noexcept;
  /// The size of the device's memory.
  [[nodiscard]] bytes total_memory() const noexcept;
  /// What the device can do, as queried when the runtime was opened.
  [[nodiscard]] const device_capabilities& capabilities() const noexcept;
  /// "0000:18:00.0"
  [[nodiscard]] std::string_view pci_bus_id() const noexcept;
  /// The UUID of the device; empty if the driver does not report it.
  [[nodiscard]] const std::optional<std::array<std::uint8_t, 16>>& uuid() const noexcept;

  /// Free and total memory now. Creates the device's context.
  [[nodiscard]] result<weir::memory_info> memory_info() const;
  /// The range of priorities for stream_options::priority. Creates the device's context.
  [[nodiscard]] result<priority_range> stream_priorities() const;
  /// Waits for all work of the device's context. Not allowed while a stream is being captured.
  result<void> synchronize() const;

  /// Whether this device can access the memory of `other`. A device can access its own.
  [[nodiscard]] result<bool> can_access_peer(device other) const;
  /// Allow, or stop allowing, this device to access memory that `other` allocated with
  /// allocate_plain(). Mapped handles and pools have access rights of their own (vmm::set_access).
  /// Idempotent.
  result<void> enable_peer_access(device other) const;
  result<void> disable_peer_access(device other) const;

  /// The primary context, for interoperation with code that needs one.
  [[nodiscard]] result<driver::CUcontext> context() const;
  /// The table of driver calls of its runtime.
  [[nodiscard]] const driver::table& driver() const noexcept;
  /// The CUDA version that the driver supports; 13000 is CUDA 13.0.
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

/// Makes a device's context current for the calling thread and restores the previous one, or none,
/// at the end of the scope. The thread's context stack is otherwise unchanged.
///
/// A scope that could not be entered converts to false, and every call made with it returns its
/// error(). Calls that take a scope do not enter one themselves, so code that makes many calls in a
/// row enters once. All other calls of this layer enter a scope themselves.
///
/// Must end on the thread and in the block that created it. Costs one cuCtxGetCurrent (about 10 ns)
/// if the context is already current, otherwise a push and a pop.
///
/// After fork() a scope of the child cannot be entered (driver_gone), before any driver call is
/// made.
class WEIR_API context_scope {
 public:
  /// Makes the device's context current; test the scope for success.
  [[nodiscard]] explicit context_scope(weir::device device) noexcept;
  ~context_scope();
  context_scope(const context_scope&) = delete;
  context_scope& operator=(const context_scope&) = delete;

  /// Whether the context is current.
  explicit operator bool() const noexcept { return failure_ == failure::none; }
  /// Why the scope could not be entered; only meaningful if it converts to false.
  [[nodiscard]] weir::error error() const;

  /// The device whose context it makes current.
  [[nodiscard]] weir::device device() const noexcept { return device_; }
  /// The table of driver calls of its runtime.
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
