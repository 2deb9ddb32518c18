// SPDX-License-Identifier: Apache-2.0
// weir::stream_pool: the driver's stream-ordered pool (cuMemPoolCreate, cuMemAllocFromPoolAsync),
// and stream_allocation, which owns its memory.
//
//   auto pool = weir::stream_pool::create(gpu, {.initial = 1_GiB}).value();
//   {
//     auto scratch = pool.allocate_owned(64_MiB, stream).value();
//     launch(scratch.data(), stream);
//   }                                            // freed in the stream's order
//   weir::any_resource memory = pool;            // or as a resource
//
// docs/pools.md explains when to use it and what it costs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "weir/base/bytes.hpp"
#include "weir/base/error.hpp"
#include "weir/base/export.hpp"
#include "weir/base/print.hpp"
#include "weir/base/result.hpp"
#include "weir/device/cuda_mr_calls.hpp"
#include "weir/device/device.hpp"
#include "weir/device/stream.hpp"
#include "weir/device/virtual_memory.hpp"
#include "weir/driver/types.hpp"
#include "weir/pool/memory_owner.hpp"

namespace weir { inline namespace v0 {

namespace pools {
class stream_pool_state;
}  // namespace pools

/// How a pool can be shared with other processes.
enum class stream_pool_handles : std::uint8_t {
  none,              ///< it cannot
  posix_descriptor,  ///< as a file descriptor
};

/// "none", "posix_descriptor".
[[nodiscard]] WEIR_API std::string_view name(stream_pool_handles handles) noexcept;
[[nodiscard]] inline std::string to_string(stream_pool_handles handles) {
  return std::string{name(handles)};
}

/// The choices of a stream_pool.
struct stream_pool_config {
  /// Reserved when the pool is created, so that the first allocations do not wait for memory.
  bytes initial{};
  /// The most that is reserved, in the driver's whole units (32 MiB on an H200); 0: the device's
  /// memory.
  bytes max{};
  /// How much unused memory stays reserved when the host synchronises. The driver's default, 0,
  /// releases everything at each synchronisation; the default here keeps everything. A threshold
  /// below the initial size is raised to what the driver reserved for it.
  bytes threshold = bytes::max();
  stream_pool_handles handles = stream_pool_handles::none;  ///< whether it can be shared

  /// Which memory freed on another stream an allocation may get; see stream_pool_attribute.
  bool reuse_follow_event_dependencies = true;
  bool reuse_opportunistic = true;
  bool reuse_internal_dependencies = true;

  /// invalid_argument: `initial` or `threshold` is above `max`. A threshold of bytes::max() always
  /// means everything.
  [[nodiscard]] WEIR_API result<void> validate() const;

  friend bool operator==(const stream_pool_config&, const stream_pool_config&) = default;
};

/// "initial 1 GiB, max unlimited, threshold unlimited, …": every member, on one line.
[[nodiscard]] WEIR_API std::string to_string(const stream_pool_config& config);

/// The driver's attributes of a pool, by the driver's numbers.
enum class stream_pool_attribute : int {
  /// Memory freed before an event that the allocating stream waits for. 0 or 1.
  reuse_follow_event_dependencies = 1,
  /// Memory whose free has completed, also if no stream waited for it. 0 or 1.
  reuse_opportunistic = 2,
  /// Memory whose free is pending: the driver makes the allocating stream wait for it. 0 or 1.
  reuse_internal_dependencies = 3,
  release_threshold = 4,  ///< unused bytes that stay reserved when the host synchronises
  reserved = 5,           ///< bytes that the pool holds; read only
  reserved_peak = 6,      ///< the most bytes held; setting it to 0 sets it to the current value
  used = 7,               ///< bytes in use; read only
  used_peak = 8,          ///< the most bytes in use; set like reserved_peak
};

/// "reuse_follow_event_dependencies", "release_threshold", …
[[nodiscard]] WEIR_API std::string_view name(stream_pool_attribute attribute) noexcept;
[[nodiscard]] inline std::string to_string(stream_pool_attribute attribute) {
  return std::string{name(attribute)};
}

/// The driver's figures, which include all users of the pool in the process, and weir's own count.
struct stream_pool_stats {
  bytes reserved{};                      ///< held by the pool
  bytes reserved_peak{};                 ///< the most held since reset_peaks()
  bytes used{};                          ///< in use, in requested sizes
  bytes used_peak{};                     ///< the most in use since reset_peaks()
  std::uint64_t active_allocations = 0;  ///< allocated through this pool's handles and not freed
  std::uint64_t active_allocations_peak = 0;  ///< the most of these since reset_peaks()
  bytes active_bytes{};                       ///< the requested size of these

  friend bool operator==(const stream_pool_stats&, const stream_pool_stats&) = default;
};

/// "reserved 64 MiB (peak 128 MiB), …": every member, on one line.
[[nodiscard]] WEIR_API std::string to_string(const stream_pool_stats& stats);

/// What was not freed when a pool was closed.
struct stream_pool_remains {
  std::uint64_t allocations = 0;  ///< how many
  bytes size{};                   ///< the sum of their requested sizes

  friend bool operator==(const stream_pool_remains&, const stream_pool_remains&) = default;
};

/// A pointer of a shared pool, in the driver's opaque bytes, for another process.
struct stream_pool_pointer {
  std::array<std::byte, 64> data{};  ///< the driver's CUmemPoolPtrExportData
  friend bool operator==(const stream_pool_pointer&, const stream_pool_pointer&) = default;
};

class stream_allocation;

/// A stream-ordered pool of the driver, on one device.
///
/// **Order.** As for caching_allocator: work queued on the stream of the allocation from then on
/// may use the memory; work queued on the stream of the free until then may still use it. Memory
/// can be freed on any stream of any device of the runtime that has been made to wait for the work
/// on other streams.
///
/// **Ownership.** A shared handle, as cheap to copy as a shared_ptr; equal handles refer to the
/// same pool. Keeps its runtime alive. The pool is destroyed with its last handle; every
/// stream_allocation holds one. Other memory that is live then is reported to the error handler
/// (still_live, with count and bytes).
///
/// **Table.** Every live allocation is in a table, so that wrong pointers and second frees are
/// detected before the driver call. A second free is told from a foreign pointer for at least the
/// last four thousand frees.
///
/// **Threads.** Thread-safe.
///
/// **Cost.** An allocation and its free take two driver calls (660–960 ns together on an H200),
/// eight small ones for context and capture, and short locks of the pool. No exclusive lock is held
/// during a driver call.
///
/// **Capture.** No call invalidates a capture. An allocation on a stream that is being captured
/// becomes a node of the graph. It takes memory of the graph, not of the pool, is not counted here,
/// and lives from its allocation node to its free node in each launch. A free on the captured
/// stream becomes a free node. If the graph does not free the memory, each launch leaves it live,
/// to be freed with try_deallocate() before the next; the table keeps such addresses. Memory
/// allocated outside a capture cannot be freed inside it (capture_forbidden). The legacy stream
/// cannot be used while a stream that synchronises with it is being captured.
///
/// **Bad input.** Zero bytes give null, and freeing null does nothing; allocate_owned() of zero
/// bytes is invalid_argument. bad_alignment: not a power of two, or above 2 MiB; size_overflow: the
/// size does not fit; bad_stream: a stream of another runtime, or one known to be destroyed;
/// foreign_pointer and double_free; invalid_argument: freed with another size than it was allocated
/// with (the memory is freed anyway); closed: the pool is closed; moved_from: the handle was moved
/// from; driver_gone: after a fork, or when the driver is shut down.
class WEIR_API stream_pool : public cuda_mr_calls<stream_pool> {
 public:
  /// A new pool of the device. invalid_argument: see stream_pool_config::validate(); not_supported:
  /// the device has no stream-ordered pools, or cannot export them as descriptors; out_of_memory:
  /// not enough memory for the initial size.
  [[nodiscard]] static result<stream_pool> create(weir::device device,
                                                  stream_pool_config config = {});
  /// The device's default pool, which cudaMallocAsync uses too; always the same handle. It cannot
  /// be closed or shared, and it keeps the driver's threshold until it is set.
  [[nodiscard]] static result<stream_pool> default_of(weir::device device);
  /// The pool of a descriptor from another process; the descriptor stays the caller's. Such a pool
  /// cannot allocate (not_supported): only import_pointer() and peers work. invalid_handle: the
  /// descriptor is not one of a pool.
  [[nodiscard]] static result<stream_pool> import_descriptor(weir::device device, int number);

  /// Whether requests are served: not moved from and not closed.
  explicit operator bool() const noexcept;
  /// The device of the pool. This and the next functions throw moved_from if the handle was moved
  /// from.
  [[nodiscard]] weir::device device() const;
  /// The configuration at creation; attribute() has the current values.
  [[nodiscard]] const stream_pool_config& config() const;
  /// Whether it is the device's default pool.
  [[nodiscard]] bool is_default() const;
  /// Whether it was imported from another process.
  [[nodiscard]] bool is_imported() const;
  /// The driver's handle, for code that calls the driver itself; null after close().
  [[nodiscard]] driver::CUmemoryPool handle() const;

  /// Destroys the pool now and returns what was not freed. That memory stays valid, and its owners
  /// and try_deallocate() can still free it; the driver destroys the pool with the last of it. If
  /// the driver refuses, the pool is unchanged. not_permitted: it is the default pool;
  /// invalid_argument: it is an imported pool with imported pointers; closed: it was closed before.
  result<stream_pool_remains> close() const;

  // --- Memory -----------------------------------------------------------------------------------

  // cuda::mr's, which weir/resource/cuda_mr.hpp defines.
  using cuda_mr_calls::allocate;
  using cuda_mr_calls::deallocate;

  /// Memory for work queued on `stream` from now on. Throws out_of_memory or failure.
  [[nodiscard]] void* allocate(bytes size, const stream_ref& stream,
                               bytes alignment = default_alignment) const {
    return try_allocate(size, stream, alignment).value();
  }
  /// The same, but returns the error. If `max` is reached or the device is full, the pool waits for
  /// the device, releases idle memory and tries once more before out_of_memory. The driver treats
  /// memory as idle only after the host has waited for the stream that freed it. A request larger
  /// than `max` is out_of_memory at once.
  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = default_alignment) const;
  /// Frees memory. Errors of the first forms go to the error handler, with the address and the
  /// size. The forms with a size also check that it is the requested size.
  void deallocate(void* pointer, const stream_ref& stream) const noexcept;
  void deallocate(void* pointer, bytes size, const stream_ref& stream) const noexcept;
  result<void> try_deallocate(void* pointer, const stream_ref& stream) const;
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream) const;
  /// Declares that work queued on `stream` until the free may use the memory, too: the stream of
  /// the free then waits for it. The stream may belong to any device of the runtime. Costs a lock,
  /// and an event at the free. A stream that is not a weir::stream must exist until then.
  /// capture_forbidden: the stream is being captured now, or at the free; inside a capture make the
  /// stream of the free wait for it instead.
  result<void> record_stream(void* pointer, const stream_ref& stream) const;
  /// try_allocate() with an owner that frees the memory. invalid_argument: zero bytes.
  [[nodiscard]] result<stream_allocation> allocate_owned(bytes size, const stream_ref& stream,
                                                         bytes alignment = default_alignment) const;

  // --- Attributes -------------------------------------------------------------------------------

  /// The current value: 0 or 1 for flags, bytes for the others. not_supported: the pool is
  /// imported.
  [[nodiscard]] result<std::uint64_t> attribute(stream_pool_attribute attribute) const;
  /// Changes a value. invalid_argument: a flag is neither 0 nor 1, a threshold is above `max`, a
  /// peak is not 0, or the attribute is read only.
  result<void> set_attribute(stream_pool_attribute attribute, std::uint64_t value) const;

  /// How much unused memory stays reserved when the host synchronises; bytes::max(): everything.
  [[nodiscard]] result<bytes> threshold() const;
  /// Changes it; bytes::max(): everything.
  result<void> set_threshold(bytes limit) const;
  /// Whether a rule of reuse is allowed; `rule` is one of the three reuse attributes.
  [[nodiscard]] result<bool> reuse(stream_pool_attribute rule) const;
  /// Allows or forbids a rule of reuse.
  result<void> set_reuse(stream_pool_attribute rule, bool allowed) const;

  /// The figures of the pool. At most five driver calls; the figures are not a consistent snapshot.
  [[nodiscard]] result<stream_pool_stats> stats() const;
  /// Sets every peak to the current value.
  result<void> reset_peaks() const;
  /// Releases idle memory to the driver until at most `keep` bytes are reserved, in the driver's
  /// whole units (see `max`). Does not wait: memory stays if the host has not waited for its free.
  /// Returns how much was released.
  result<bytes> trim(bytes keep = {}) const;

  // --- Peers ------------------------------------------------------------------------------------

  /// Lets `other` access the pool's memory, including existing allocations. not_supported: it has
  /// no peer access to this device; invalid_argument: it is this device or belongs to another
  /// runtime.
  result<void> enable_peer(weir::device other) const;
  /// Stops that access.
  result<void> disable_peer(weir::device other) const;
  /// What `other` may do with the pool's memory now.
  [[nodiscard]] result<access_rights> peer_access(weir::device other) const;

  // --- Other processes --------------------------------------------------------------------------

  /// A descriptor for import_descriptor() in another process. not_supported: the pool was created
  /// without posix_descriptor.
  [[nodiscard]] result<descriptor> export_descriptor() const;
  /// The data for import_pointer() in a process that imported the pool. not_supported: the memory
  /// was allocated with an alignment above 256 bytes.
  [[nodiscard]] result<stream_pool_pointer> export_pointer(const void* pointer) const;
  /// Imports an allocation of the exporter. Use it after the allocation has completed there. Every
  /// importer must have freed it, and those frees must be complete, before the exporter frees it.
  /// foreign_pointer: the data is not that of a pointer of this pool; already_mapped: it is already
  /// imported; not_supported: this pool is not imported.
  [[nodiscard]] result<stream_allocation> import_pointer(const stream_pool_pointer& exported,
                                                         const stream_ref& stream) const;

  friend bool operator==(const stream_pool&, const stream_pool&) noexcept = default;

 private:
  friend class stream_allocation;
  explicit stream_pool(std::shared_ptr<pools::stream_pool_state> state) noexcept
      : state_{std::move(state)} {}

  std::shared_ptr<pools::stream_pool_state> state_;
};

/// Memory of a stream_pool that is freed with this object; see memory_owner.
///
/// Keeps its pool alive, also after close(). Its stream must exist until the free, unless it is a
/// weir::stream: if that was closed, the free waits for the device. If another stream frees it,
/// that one must have been made to wait for the work on its own stream; record_stream() covers
/// further ones. A per-thread stream is that of the freeing thread. An owner created in a capture
/// frees in that capture; after it the memory belongs to the graph, and the owner frees nothing.
class WEIR_API stream_allocation : public memory_owner {
 public:
  /// Owns no memory.
  stream_allocation() noexcept = default;

  /// The pool of the memory. Throws moved_from if it was default-constructed or moved from.
  [[nodiscard]] stream_pool pool() const;

 private:
  friend class stream_pool;
  stream_allocation(const std::shared_ptr<pools::stream_pool_state>& pool, void* data, bytes size,
                    const stream_ref& stream) noexcept;
};

/// Allocates from the default pool of the stream's device.
[[nodiscard]] WEIR_API result<stream_allocation> stream_alloc(bytes size, const stream_ref& stream);
/// Frees the memory on its stream, or on `stream`; the same as memory.free().
WEIR_API result<void> stream_free(stream_allocation& memory);
WEIR_API result<void> stream_free(stream_allocation& memory, const stream_ref& stream);

/// "stream_pool of device 0: " and its figures.
[[nodiscard]] WEIR_API std::string to_string(const stream_pool& pool);

}}  // namespace weir::v0
