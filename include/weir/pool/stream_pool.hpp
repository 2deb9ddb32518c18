// SPDX-License-Identifier: Apache-2.0
// weir::stream_pool is the driver's stream-ordered pool (cuMemPoolCreate, cuMemAllocFromPoolAsync),
// with an owner for what it hands out.
//
//   auto pool = weir::stream_pool::create(gpu, {.initial = 1_GiB}).value();
//   {
//     auto scratch = pool.allocate_owned(64_MiB, stream).value();
//     launch(scratch.data(), stream);
//   }                                            // freed in the stream's order
//   weir::any_resource memory = pool;            // or as a resource
//
// docs/pools.md tells when to use it and what it costs.
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

/// How a pool can be sent to other processes.
enum class stream_pool_handles : std::uint8_t { none, posix_descriptor };

/// "none", "posix_descriptor".
[[nodiscard]] WEIR_API std::string_view name(stream_pool_handles handles) noexcept;
[[nodiscard]] inline std::string to_string(stream_pool_handles handles) {
  return std::string{name(handles)};
}

/// What a pool is to be.
struct stream_pool_config {
  /// Reserved when the pool is made, so that the first allocations need not wait for memory.
  bytes initial{};
  /// No more than this is reserved, in the driver's whole units (32 MiB on an H200); 0: as much as
  /// the device has.
  bytes max{};
  /// What stays reserved, unused, when the host synchronises. The driver's own default, 0, gives
  /// everything back at each synchronisation; ours keeps everything. One below the initial size is
  /// raised to what the driver reserved for that, which would not stay otherwise.
  bytes threshold = bytes::max();
  stream_pool_handles handles = stream_pool_handles::none;

  // Which memory freed on another stream an allocation may get; see stream_pool_attribute.
  bool reuse_follow_event_dependencies = true;
  bool reuse_opportunistic = true;
  bool reuse_internal_dependencies = true;

  /// invalid_argument: `initial` or `threshold` above `max`. A threshold of bytes::max() means
  /// everything, whatever `max` is.
  [[nodiscard]] WEIR_API result<void> validate() const;

  friend bool operator==(const stream_pool_config&, const stream_pool_config&) = default;
};

/// "initial 1 GiB, max unlimited, threshold unlimited, …": every member, on one line.
[[nodiscard]] WEIR_API std::string to_string(const stream_pool_config& config);

/// The driver's attributes of a pool, by the driver's numbers.
enum class stream_pool_attribute : int {
  /// Memory freed before an event that the allocating stream waits for. 0 or 1.
  reuse_follow_event_dependencies = 1,
  /// Memory whose free has happened, whether or not anybody waited for it. 0 or 1.
  reuse_opportunistic = 2,
  /// Memory whose free is pending: the driver makes the allocating stream wait for it. 0 or 1.
  reuse_internal_dependencies = 3,
  release_threshold = 4,
  reserved = 5,       ///< read only
  reserved_peak = 6,  ///< can be set to 0, which means: to what is reserved now
  used = 7,           ///< read only
  used_peak = 8,      ///< like reserved_peak
};

/// "reuse_follow_event_dependencies", "release_threshold", …
[[nodiscard]] WEIR_API std::string_view name(stream_pool_attribute attribute) noexcept;
[[nodiscard]] inline std::string to_string(stream_pool_attribute attribute) {
  return std::string{name(attribute)};
}

/// The driver's figures, which count everybody who uses the pool, and our own count. Nothing in it
/// counts up for ever.
struct stream_pool_stats {
  bytes reserved{};
  bytes reserved_peak{};
  bytes used{};  ///< as asked for, without rounding
  bytes used_peak{};
  std::uint64_t active_allocations = 0;  ///< made through this pool's handles, not freed
  std::uint64_t active_allocations_peak = 0;
  bytes active_bytes{};  ///< as asked for

  friend bool operator==(const stream_pool_stats&, const stream_pool_stats&) = default;
};

/// "reserved 64 MiB (peak 128 MiB), …": every member, on one line.
[[nodiscard]] WEIR_API std::string to_string(const stream_pool_stats& stats);

/// What was not freed when a pool was closed.
struct stream_pool_remains {
  std::uint64_t allocations = 0;
  bytes size{};

  friend bool operator==(const stream_pool_remains&, const stream_pool_remains&) = default;
};

/// A pointer of a shared pool, in the driver's opaque bytes, for another process.
struct stream_pool_pointer {
  std::array<std::byte, 64> data{};
  friend bool operator==(const stream_pool_pointer&, const stream_pool_pointer&) = default;
};

class stream_allocation;

/// A pool of the driver, on one device.
///
/// **Order.** As caching_allocator: memory allocated for a stream may be used by work queued on it
/// from then on; memory freed on a stream may still be used by work queued on it before. A free may
/// be made on any stream of any device of the runtime, one that has been made to wait for the work
/// on others.
///
/// **Ownership.** A shared handle, as cheap to copy as a shared_ptr; equal handles mean the same
/// pool. Keeps its runtime alive. With the last handle the pool goes; every stream_allocation is
/// one. Raw memory still live then is reported to the error handler (still_live, with count and
/// bytes).
///
/// **Table.** Every live allocation is kept in a table, so that a wrong pointer and a second free
/// are found before the driver sees them. That a pointer was freed twice, and not foreign, is known
/// for the last four thousand frees at least.
///
/// **Threads.** Every call may be made from any thread at any time.
///
/// **Cost.** An allocation and its free: two driver calls (660–960 ns together on an H200) and
/// eight small ones that see to context and capture, besides short locks of the pool. No lock that
/// keeps others out is held around a driver call.
///
/// **Capture.** No call breaks a capture. An allocation on a stream that is being captured becomes
/// a node of the graph: it takes memory of the graph, not of the pool, counts in no figure here,
/// and lives from node to node of each launch. Freed on the captured stream it becomes a free node.
/// If the graph does not free it, each launch leaves it live, to be freed with try_deallocate()
/// before the next; the table knows such addresses for good. What was allocated outside cannot be
/// freed inside (capture_forbidden); nor can the legacy stream be used while a stream that
/// synchronises with it is captured.
///
/// **Bad input.** Zero bytes give null, and freeing null does nothing; an owner of nothing is
/// invalid_argument. bad_alignment: no power of two, or above 2 MiB; size_overflow: no such size;
/// bad_stream: a stream of another runtime, or one known to be destroyed; foreign_pointer and
/// double_free; invalid_argument: another size than was allocated (the memory is freed all the
/// same); closed: the pool was; moved_from: the handle was; driver_gone: after a fork, or when the
/// driver is shut down.
class WEIR_API stream_pool : public cuda_mr_calls<stream_pool> {
 public:
  /// invalid_argument: see stream_pool_config; not_supported: the device has no pools, or none that
  /// can be sent as descriptors; out_of_memory: there is no room for the initial size.
  [[nodiscard]] static result<stream_pool> create(weir::device device,
                                                  stream_pool_config config = {});
  /// The device's own pool, which cudaMallocAsync uses too: the same handle each time. It cannot be
  /// closed, cannot be shared, and its threshold is the driver's until somebody sets it.
  [[nodiscard]] static result<stream_pool> default_of(weir::device device);
  /// The pool behind a descriptor of another process; the descriptor stays the caller's. Such a
  /// pool hands out nothing (not_supported): only import_pointer() and peers work. invalid_handle:
  /// the descriptor is not that of a pool.
  [[nodiscard]] static result<stream_pool> import_descriptor(weir::device device, int number);

  /// Whether requests are served: not moved from and not closed.
  explicit operator bool() const noexcept;
  // A handle that was moved from throws moved_from.
  [[nodiscard]] weir::device device() const;
  /// As it was given; what can be changed later is asked of the driver.
  [[nodiscard]] const stream_pool_config& config() const;
  [[nodiscard]] bool is_default() const;
  [[nodiscard]] bool is_imported() const;
  /// For code that speaks to the driver itself; null once closed.
  [[nodiscard]] driver::CUmemoryPool handle() const;

  /// Destroys the pool now and says what was not freed. That memory stays good, and its owners and
  /// try_deallocate() can still free it; the driver lets the pool go with the last of it. If the
  /// driver refuses, the pool stays as it was. not_permitted: the default pool; invalid_argument:
  /// an imported pool with imported pointers; closed: it was closed before.
  result<stream_pool_remains> close() const;

  // --- Memory -----------------------------------------------------------------------------------

  // cuda::mr's, which weir/resource/cuda_mr.hpp defines.
  using cuda_mr_calls::allocate;
  using cuda_mr_calls::deallocate;

  /// Throws out_of_memory or failure.
  [[nodiscard]] void* allocate(bytes size, const stream_ref& stream,
                               bytes alignment = default_alignment) const {
    return try_allocate(size, stream, alignment).value();
  }
  /// Above `max`, or where the device is full, the pool waits for the device, releases what is idle
  /// and tries once more before it says out_of_memory. What is idle is the driver's to say: it
  /// releases memory only after the host has waited for the stream that freed it. A request larger
  /// than `max` is out_of_memory at once.
  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = default_alignment) const;
  /// What is wrong goes to the error handler, with the address and the size. The forms with a size
  /// also check that it is the size that was asked for.
  void deallocate(void* pointer, const stream_ref& stream) const noexcept;
  void deallocate(void* pointer, bytes size, const stream_ref& stream) const noexcept;
  result<void> try_deallocate(void* pointer, const stream_ref& stream) const;
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream) const;
  /// Work queued on `stream` until the memory is freed may use it, too: the stream of the free then
  /// waits for it. The stream may be of any device of the runtime. Costs a lock, and an event at
  /// the free. A stream that is no weir::stream must live until then. capture_forbidden: the stream
  /// is being captured, or is when the memory is freed; inside a capture make the stream of the
  /// free wait for it instead.
  result<void> record_stream(void* pointer, const stream_ref& stream) const;
  /// The same, freed with its owner.
  [[nodiscard]] result<stream_allocation> allocate_owned(bytes size, const stream_ref& stream,
                                                         bytes alignment = default_alignment) const;

  // --- Attributes -------------------------------------------------------------------------------

  /// Flags are 0 or 1, the others bytes. not_supported: the pool is imported.
  [[nodiscard]] result<std::uint64_t> attribute(stream_pool_attribute attribute) const;
  /// invalid_argument: a flag that is neither 0 nor 1, a threshold above `max`, a peak that is not
  /// 0, or a figure that is read only.
  result<void> set_attribute(stream_pool_attribute attribute, std::uint64_t value) const;

  [[nodiscard]] result<bytes> threshold() const;
  result<void> set_threshold(bytes limit) const;
  /// `rule` is one of the three reuse attributes.
  [[nodiscard]] result<bool> reuse(stream_pool_attribute rule) const;
  result<void> set_reuse(stream_pool_attribute rule, bool allowed) const;

  /// Five driver calls at most; each figure is of its own moment.
  [[nodiscard]] result<stream_pool_stats> stats() const;
  /// Every peak becomes the current value.
  result<void> reset_peaks() const;
  /// Releases memory that nothing uses any more to the driver until at most `keep` bytes are
  /// reserved, in the driver's whole units (see `max`). Waits for nothing: memory whose free the
  /// host has not waited for stays. Returns how much was released.
  result<bytes> trim(bytes keep = {}) const;

  // --- Peers ------------------------------------------------------------------------------------

  /// Lets `other` use the pool's memory, what is allocated already included. not_supported: it
  /// cannot reach this device; invalid_argument: it is this device or of another runtime.
  result<void> enable_peer(weir::device other) const;
  result<void> disable_peer(weir::device other) const;
  [[nodiscard]] result<access_rights> peer_access(weir::device other) const;

  // --- Other processes --------------------------------------------------------------------------

  /// For import_descriptor() in another process. not_supported: not made with posix_descriptor.
  [[nodiscard]] result<descriptor> export_descriptor() const;
  /// For import_pointer() in a process that imported the pool. not_supported: memory that was asked
  /// for with an alignment above 256 bytes.
  [[nodiscard]] result<stream_pool_pointer> export_pointer(const void* pointer) const;
  /// Memory of the exporter, to be used once its allocation there has happened. Every importer must
  /// have freed it, and that free must have happened, before the exporter frees it.
  /// foreign_pointer: the bytes are not those of a pointer of this pool; already_mapped: it is
  /// imported already; not_supported: this pool is not imported.
  [[nodiscard]] result<stream_allocation> import_pointer(const stream_pool_pointer& exported,
                                                         const stream_ref& stream) const;

  friend bool operator==(const stream_pool&, const stream_pool&) noexcept = default;

 private:
  friend class stream_allocation;
  explicit stream_pool(std::shared_ptr<pools::stream_pool_state> state) noexcept
      : state_{std::move(state)} {}

  std::shared_ptr<pools::stream_pool_state> state_;
};

/// Memory of a stream_pool that is freed with this object; memory_owner says how.
///
/// Keeps its pool alive, closed or not. Its stream must live until the free, unless it is a
/// weir::stream: if that was closed, the free waits for the device. Another stream that frees it
/// must have been made to wait for the work on its own; record_stream() covers further ones. The
/// per-thread stream is that of whoever frees. An owner made in a capture frees in that capture;
/// once it is over the memory is the graph's, and the owner only lets go.
class WEIR_API stream_allocation : public memory_owner {
 public:
  stream_allocation() noexcept = default;

  /// One that was default-made or moved from throws moved_from.
  [[nodiscard]] stream_pool pool() const;

 private:
  friend class stream_pool;
  stream_allocation(const std::shared_ptr<pools::stream_pool_state>& pool, void* data, bytes size,
                    const stream_ref& stream) noexcept;
};

/// From the default pool of the stream's device.
[[nodiscard]] WEIR_API result<stream_allocation> stream_alloc(bytes size, const stream_ref& stream);
WEIR_API result<void> stream_free(stream_allocation& memory);
WEIR_API result<void> stream_free(stream_allocation& memory, const stream_ref& stream);

/// "stream_pool of device 0: " and its statistics.
[[nodiscard]] WEIR_API std::string to_string(const stream_pool& pool);

}}  // namespace weir::v0
