// weir::stream_pool: the driver's own stream-ordered pool, with an owner for what it hands out.
//
//   auto pool = weir::stream_pool::create(gpu, {.initial = 1_GiB}).value();
//   {
//     auto scratch = pool.allocate_owned(64_MiB, stream).value();
//     launch(scratch.get(), stream);
//   }                                            // freed in the stream's order
//   weir::any_resource memory = pool;            // or as a resource
//
// docs/pools.md tells when to use it and what it costs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "weir/base/bytes.hpp"
#include "weir/base/error.hpp"
#include "weir/base/export.hpp"
#include "weir/base/result.hpp"
#include "weir/device/device.hpp"
#include "weir/device/stream.hpp"
#include "weir/device/virtual_memory.hpp"
#include "weir/driver/types.hpp"

namespace weir::inline v0 {

namespace pools {
class stream_pool_state;
}  // namespace pools

/// How a pool can be sent to other processes.
enum class stream_pool_handles : std::uint8_t { none, posix_descriptor };

/// What a pool is to be.
struct stream_pool_config {
  /// Reserved when the pool is made, so that the first allocations need not wait for memory.
  bytes initial{};
  /// No more than this is reserved, in the driver's whole units (32 MiB on an H200); 0: as much as
  /// the device has.
  bytes max{};
  /// What stays reserved, unused, when the host synchronises. The driver's own default, 0, gives
  /// everything back at each synchronisation; ours keeps everything. With an initial size it is
  /// raised to what the driver reserved for that.
  bytes threshold = bytes::max();
  stream_pool_handles handles = stream_pool_handles::none;

  // Which memory freed on another stream an allocation may get; see stream_pool_attribute.
  bool reuse_follow_event_dependencies = true;
  bool reuse_opportunistic = true;
  bool reuse_internal_dependencies = true;

  /// invalid_argument: `initial` or `threshold` above `max`, or `initial` above `threshold`, which
  /// would not stay. A threshold of bytes::max() means everything, whatever `max` is.
  [[nodiscard]] WEIR_API result<void> validate() const;

  friend bool operator==(const stream_pool_config&, const stream_pool_config&) = default;
};

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
  reserved_high = 6,  ///< can be set to 0, which means: to what is reserved now
  used = 7,           ///< read only
  used_high = 8,      ///< like reserved_high
};

/// "reuse_follow_event_dependencies", "release_threshold", …
[[nodiscard]] WEIR_API std::string_view name(stream_pool_attribute which) noexcept;

/// The driver's figures, which count everybody who uses the pool, and our own count.
struct stream_pool_usage {
  bytes reserved{};
  bytes reserved_high{};
  bytes used{};  ///< as asked for, without rounding
  bytes used_high{};
  std::uint64_t active_allocations = 0;  ///< made through this pool's handles, not freed
  std::uint64_t peak_allocations = 0;
  bytes active_bytes{};  ///< as asked for
};

/// What was not freed when a pool was closed.
struct stream_pool_remains {
  std::uint64_t allocations = 0;
  bytes size{};
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
/// one. Raw memory still live then is reported to the error handler (already_freed, with count and
/// bytes).
///
/// **Books.** Every live allocation is kept in a table, so that a wrong pointer and a second free
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
/// same); already_freed: the pool was closed; driver_gone: after a fork, or when the driver is shut
/// down.
class WEIR_API stream_pool {
 public:
  /// invalid_argument: see stream_pool_config; not_supported: the device has no pools, or none that
  /// can be sent as descriptors; out_of_memory: there is no room for the initial size.
  [[nodiscard]] static result<stream_pool> create(weir::device where,
                                                  stream_pool_config wanted = {});
  /// The device's own pool, which cudaMallocAsync uses too: the same handle each time. It cannot be
  /// closed, cannot be shared, and its threshold is the driver's until somebody sets it.
  [[nodiscard]] static result<stream_pool> default_of(weir::device where);
  /// The pool behind a descriptor of another process; the descriptor stays the caller's. Such a
  /// pool hands out nothing (not_supported): only import_pointer() and peers work. invalid_handle:
  /// the descriptor is not that of a pool.
  [[nodiscard]] static result<stream_pool> import_descriptor(weir::device where, int number);

  [[nodiscard]] weir::device device() const noexcept;
  /// As it was given; what can be changed later is asked of the driver.
  [[nodiscard]] const stream_pool_config& config() const noexcept;
  [[nodiscard]] bool is_default() const noexcept;
  [[nodiscard]] bool is_imported() const noexcept;
  /// For code that speaks to the driver itself; null once closed.
  [[nodiscard]] driver::CUmemoryPool handle() const noexcept;

  /// Destroys the pool now and says what was not freed. That memory stays good, and its owners and
  /// try_deallocate() can still free it; the driver lets the pool go with the last of it. If the
  /// driver refuses, the pool stays as it was. not_permitted: the default pool; invalid_argument:
  /// an imported pool with imported pointers; already_freed: closed before.
  result<stream_pool_remains> close();

  // --- Memory -----------------------------------------------------------------------------------

  /// Throws out_of_memory or failure.
  [[nodiscard]] void* allocate(bytes size, const stream_ref& stream, bytes alignment = bytes{256}) {
    return try_allocate(size, stream, alignment).value();
  }
  /// Above `max`, or where the device is full, the pool waits for the device, gives back what is
  /// idle and tries once more before it says out_of_memory. What is idle is the driver's to say: it
  /// releases memory only after the host has waited for the stream that freed it. A request larger
  /// than `max` is out_of_memory at once.
  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = bytes{256});
  /// What is wrong goes to the error handler.
  void deallocate(void* pointer, bytes size, const stream_ref& stream) noexcept;
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream);
  /// The same, freed with its owner.
  [[nodiscard]] result<stream_allocation> allocate_owned(bytes size, const stream_ref& stream,
                                                         bytes alignment = bytes{256});

  // --- Attributes -------------------------------------------------------------------------------

  /// Flags are 0 or 1, the others bytes. not_supported: the pool is imported.
  [[nodiscard]] result<std::uint64_t> attribute(stream_pool_attribute which) const;
  /// invalid_argument: a flag that is neither 0 nor 1, a threshold above `max`, a high mark that is
  /// not 0, or a figure that is read only.
  result<void> set_attribute(stream_pool_attribute which, std::uint64_t value);

  [[nodiscard]] result<bytes> threshold() const;
  result<void> set_threshold(bytes keep);
  /// `rule` is one of the three reuse attributes.
  [[nodiscard]] result<bool> reuse(stream_pool_attribute rule) const;
  result<void> set_reuse(stream_pool_attribute rule, bool allowed);

  /// Five driver calls at most; each figure is of its own moment.
  [[nodiscard]] result<stream_pool_usage> usage() const;
  /// The high marks and the peak fall to what is now.
  result<void> reset_highs();
  /// Gives unused memory back to the device while at least `keep` stays reserved; how much went.
  /// Waits for nothing: memory whose free the host has not waited for stays.
  result<bytes> trim(bytes keep = {});

  // --- Peers ------------------------------------------------------------------------------------

  /// Lets `other` use the pool's memory, what is allocated already included. not_supported: it
  /// cannot reach this device; invalid_argument: it is this device or of another runtime.
  result<void> enable_peer(weir::device other);
  result<void> disable_peer(weir::device other);
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
  [[nodiscard]] result<stream_allocation> import_pointer(const stream_pool_pointer& from,
                                                         const stream_ref& stream);

  friend bool operator==(const stream_pool&, const stream_pool&) noexcept = default;

 private:
  friend class stream_allocation;
  explicit stream_pool(std::shared_ptr<pools::stream_pool_state> inside) noexcept
      : inside_{std::move(inside)} {}

  std::shared_ptr<pools::stream_pool_state> inside_;
};

/// Memory of a stream_pool that is freed with this object, on its stream.
///
/// Owns memory unless moved from, freed, released or default-made. Keeps its pool alive, closed or
/// not. Its stream must live until the free, unless it is a weir::stream: if that was closed, the
/// free waits for the device. The per-thread stream is that of whoever frees. An owner made in a
/// capture frees in that capture; once it is over the memory is the graph's, and the owner only
/// lets go. One thread at a time.
class WEIR_API stream_allocation {
 public:
  stream_allocation() noexcept = default;
  ~stream_allocation();
  stream_allocation(stream_allocation&& other) noexcept;
  stream_allocation& operator=(stream_allocation&& other) noexcept;

  /// Whether it owns memory.
  explicit operator bool() const noexcept { return address_ != nullptr; }
  /// Whether it was freed by free().
  [[nodiscard]] bool is_freed() const noexcept { return freed_; }
  /// Null if it owns none.
  [[nodiscard]] void* get() const noexcept { return address_; }
  /// As asked for. Of an imported pointer: what the driver says, 0 if it does not.
  [[nodiscard]] bytes size() const noexcept { return size_; }
  /// The stream it will be freed on; needs one that was not default-made or moved from, like
  /// pool().
  [[nodiscard]] stream_ref stream() const noexcept { return *stream_; }
  [[nodiscard]] stream_pool pool() const noexcept { return stream_pool{pool_}; }

  /// On its stream, or on another that has been made to wait for the work on it. double_free: freed
  /// before; already_freed: it owns nothing. If the driver refuses, the memory stays owned.
  result<void> free();
  result<void> free(const stream_ref& stream);
  /// Gives the memory up to the caller, who frees it with pool().try_deallocate().
  [[nodiscard]] void* release() noexcept { return std::exchange(address_, nullptr); }

 private:
  friend class stream_pool;
  stream_allocation(std::shared_ptr<pools::stream_pool_state> pool, void* address, bytes size,
                    const stream_ref& stream) noexcept
      : pool_{std::move(pool)}, address_{address}, size_{size}, stream_{stream} {}
  void let_go() noexcept;
  [[nodiscard]] result<void> owned() const;

  std::shared_ptr<pools::stream_pool_state> pool_;
  void* address_ = nullptr;
  bytes size_{};
  std::optional<stream_ref> stream_;
  bool freed_ = false;
};

/// From the default pool of the stream's device.
[[nodiscard]] WEIR_API result<stream_allocation> stream_alloc(bytes size, const stream_ref& stream);
WEIR_API result<void> stream_free(stream_allocation& memory);
WEIR_API result<void> stream_free(stream_allocation& memory, const stream_ref& stream);

}  // namespace weir::inline v0
