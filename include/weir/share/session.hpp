// SPDX-License-Identifier: Apache-2.0
// Memory, pools and events between processes: exported objects, the link they are offered over, and
// imported ones.
//
//   auto link = weir::share_link::open(machine, std::move(channel)).value();
//   auto memory = weir::shared_memory::create(gpu, 64_MiB).value();
//   auto grant = link.offer(memory).value();
//
// and in the other process
//
//   auto link = weir::share_link::open(machine, std::move(channel)).value();
//   auto imported = link.receive(1s).value().open_memory().value();
//   launch(imported.address().value());
//
// docs/sharing.md explains which errors of the other process are detected, and which are not.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/base/bytes.hpp"
#include "weir/base/export.hpp"
#include "weir/base/ids.hpp"
#include "weir/base/result.hpp"
#include "weir/device/device.hpp"
#include "weir/device/event.hpp"
#include "weir/device/runtime.hpp"
#include "weir/device/stream.hpp"
#include "weir/device/virtual_memory.hpp"
#include "weir/pool/stream_pool.hpp"
#include "weir/share/channel.hpp"
#include "weir/share/ticket.hpp"

namespace weir { inline namespace v0 {

namespace sharing {
class session;
class grant;
class imported;
struct exported;
struct incoming;
}  // namespace sharing

/// The number of one export of an object; unique in its process.
using share_grant = id<struct share_grant_kind, std::uint64_t>;

/// The choices of a shared_memory.
struct shared_memory_options {
  /// The size of the memory's handles, rounded up to the granularity; 0: one handle for all of it.
  /// The driver maps only whole handles, so this is the unit in which parts of the memory can be
  /// offered. A handle costs about 60 µs on either side.
  bytes unit{};
};

/// Memory that can be offered to other processes.
///
/// A shared handle, as cheap to copy as a shared_ptr; empty if default-constructed. Mapped at
/// address(), readable and writable by its device. Freed when the last handle has ended and every
/// importer has released it or ended. Memory of create() then waits for all work that is queued on
/// the device; a block of allocate() is freed to its allocator. Thread-safe.
class WEIR_API shared_memory {
 public:
  shared_memory() noexcept = default;

  /// New memory of the device. not_supported: the device cannot export memory; limit_exceeded: more
  /// handles than can be sent at once (240); use a larger unit.
  [[nodiscard]] static result<shared_memory> create(weir::device device, bytes size,
                                                    shared_memory_options settings = {});
  /// A block of a caching_allocator's exportable pool (pool_options), in whole handles, so that no
  /// neighbour is exported with it: `size` is rounded up to the granularity. The block is freed to
  /// the pool, on the stream it was allocated for, when no process can access it any more. If the
  /// other process closes its link without a release, the block stays allocated and that is
  /// reported (not_ready). Memory of the pool is not cleared between its users.
  [[nodiscard]] static result<shared_memory> allocate(const caching_allocator& from,
                                                      const memory_pool& pool, bytes size,
                                                      const stream_ref& stream);

  /// Whether it refers to memory. The next functions require that.
  explicit operator bool() const noexcept { return state_ != nullptr; }
  /// Where the memory is mapped in this process.
  [[nodiscard]] device_address address() const noexcept;
  [[nodiscard]] bytes size() const noexcept;  ///< the requested size
  [[nodiscard]] bytes unit() const noexcept;  ///< the size of each handle
  /// The device of the memory.
  [[nodiscard]] weir::device device() const noexcept;

 private:
  friend class share_link;
  explicit shared_memory(std::shared_ptr<sharing::exported> shared) noexcept
      : state_{std::move(shared)} {}

  std::shared_ptr<sharing::exported> state_;
};

/// The part of memory that is offered, and its access rights.
///
/// Only the handles that contain the part are sent. The driver lets the other process access these
/// handles completely; weir gives it the offset and size of the part only.
struct share_view {
  bytes offset{};                                    ///< from the start of the memory
  bytes size{};                                      ///< 0: up to the end
  access_rights rights = access_rights::read_write;  ///< what the other process may do
};

/// Memory of another process, mapped here.
///
/// A shared handle; empty if default-constructed (moved_from). address() is the start of the
/// offered part. The end of the last copy, or close(), waits for all work that is queued on the
/// devices that can access it, then unmaps it and notifies the exporter. Parts in the same handles
/// are mapped once. Keeps its link's connection open. Thread-safe.
class WEIR_API imported_memory {
 public:
  imported_memory() noexcept = default;
  explicit operator bool() const noexcept { return state_ != nullptr; }

  /// The address, if it may be used now. not_permitted: it was revoked; peer_closed: the exporter
  /// has ended; closed. Reads pending messages: two system calls.
  [[nodiscard]] result<device_address> address() const;
  /// The address without that check; 0 if closed. Memory that was revoked, or whose exporter has
  /// ended, stays mapped until it is closed.
  [[nodiscard]] device_address mapped_at() const noexcept;
  /// The size of the offered part.
  [[nodiscard]] bytes size() const noexcept;
  /// What this process may do with it.
  [[nodiscard]] access_rights rights() const noexcept;
  /// Lets another device access it with the granted rights. not_supported: legacy memory.
  result<void> allow(device accessor) const;
  /// Waits for the devices, unmaps the memory unless other imports share the mapping, and notifies
  /// the exporter. Returns the driver's result. Captures stay valid. If a wait fails, it stays
  /// open; if the last copy ends then, that is reported, and the memory stays mapped until a later
  /// wait succeeds.
  result<void> close() const;

 private:
  friend class share_offer;
  explicit imported_memory(std::shared_ptr<sharing::imported> shared) noexcept
      : state_{std::move(shared)} {}

  std::shared_ptr<sharing::imported> state_;
};

/// A received offer, whose ticket was checked, or a note.
///
/// open_memory() and the other open functions import it and leave the offer empty (moved_from). An
/// offer that is destroyed unopened is released to the exporter. invalid_argument: the offer is of
/// another kind; nothing changes. One thread at a time.
class WEIR_API share_offer {
 public:
  ~share_offer();
  share_offer(share_offer&& other) noexcept;
  share_offer& operator=(share_offer&& other) noexcept;

  /// Whether it is a note instead of an exported object.
  [[nodiscard]] bool is_note() const noexcept;
  /// Of a note: the sender's bytes.
  [[nodiscard]] std::span<const std::byte> note() const noexcept;
  /// Of an exported object: its description.
  [[nodiscard]] const share_ticket& ticket() const noexcept;

  /// Imports memory or legacy memory. no_device: this process does not see the device;
  /// invalid_argument: the ticket's sizes do not match the memory; not_permitted: it was revoked;
  /// otherwise the driver's error. After an error nothing is mapped.
  [[nodiscard]] result<imported_memory> open_memory();
  /// Imports an event.
  [[nodiscard]] result<event> open_event();
  /// Imports a pool, which cannot allocate in this process.
  [[nodiscard]] result<stream_pool> open_pool();
  /// Imports an allocation of `pool`, which was opened from a ticket of the same object. It is
  /// freed on `stream`.
  [[nodiscard]] result<stream_allocation> open_allocation(stream_pool& pool,
                                                          const stream_ref& stream);

 private:
  friend class share_link;
  explicit share_offer(std::unique_ptr<sharing::incoming> message) noexcept;

  std::unique_ptr<sharing::incoming> state_;
};

/// The choices of a share_link.
struct share_link_options {
  /// How long a call waits for the other process, unless it has its own limit.
  share_channel::timeout limit{5000};
  /// Whether a process of another user may be at the other end.
  bool other_users = false;
};

/// A connection to one other process, over which both sides offer and import.
///
/// Both sides have exchanged their versions and identities, which the kernel confirms; messages of
/// other processes are refused. Every message is checked before it is used: an invalid message is
/// an error of receive() and has no other effect. Calls read the messages; there is no background
/// thread. Exported memory stays until the other side releases it, also after the link has ended.
///
/// A shared handle; a link that was moved from must not be used. Thread-safe; a call that waits
/// does not block others.
class WEIR_API share_link {
 public:
  /// How long a call may wait.
  using timeout = share_channel::timeout;
  /// The most bytes of a note.
  static constexpr std::size_t most_note = 1024;

  /// Connects with the other process; both sides call it. bad_version: the other side uses another
  /// version; not_permitted: it belongs to another user; not_ready: it did not answer in time;
  /// peer_closed.
  [[nodiscard]] static result<share_link> open(std::shared_ptr<runtime> machine,
                                               share_channel channel,
                                               share_link_options settings = {});

  /// The process at the other end.
  [[nodiscard]] share_peer peer() const noexcept;
  /// Whether the link works; reads pending messages. peer_closed: the other process closed the link
  /// or ended.
  result<void> check() const;

  // --- Offers: each returns when it is sent; not_ready: the other side did not read in time
  // --------

  /// Offers memory, or a part of it.
  result<share_grant> offer(const shared_memory& memory, share_view part = {}) const;
  /// Offers a whole allocation of allocate_plain(), for processes without virtual memory. Its size
  /// must be a multiple of the granularity, because the driver would export its neighbours, too
  /// (not_permitted). The caller keeps it until the other side has released it.
  result<share_grant> offer_legacy(weir::device device, device_address address) const;
  /// Offers an interprocess event (event_options), which the caller keeps until the other side has
  /// released it. A wait covers only earlier records: record first, then send a note.
  result<share_grant> offer(const event& shared_event) const;
  /// Offers a driver pool that was created with posix_descriptor; no memory is exported with it.
  result<share_grant> offer(const stream_pool& pool) const;
  /// Offers an allocation of such a pool. The other side must free its import before the owner
  /// frees it; weir cannot check this (stream_pool::import_pointer()).
  result<share_grant> offer(const stream_allocation& allocation) const;
  /// Sends at most most_note bytes to the other program, e.g. the purpose of an offer, or that an
  /// event was recorded.
  result<void> send_note(std::span<const std::byte> text) const;

  /// Asks the other side to release a grant and waits for it. not_ready: it has not released it;
  /// the memory stays. not_found: no such grant is outstanding. The driver cannot remove memory
  /// from another process: if that process does not comply, it keeps the memory until it ends.
  result<void> revoke(share_grant grant) const;
  result<void> revoke(share_grant grant, timeout limit) const;
  /// The number of grants that the other side has not released.
  [[nodiscard]] std::size_t outstanding() const;

  // --- Imports -----------------------------------------------------------------------------------

  /// Waits for the next offer or note. not_ready: none arrived in time; peer_closed; bad_version or
  /// invalid_argument: the message is invalid; limit_exceeded: this process cannot open more
  /// descriptors (RLIMIT_NOFILE); not_permitted: the ticket belongs to another process or was
  /// already received. After the last four errors the next message can be received; the grant of a
  /// refused offer is released.
  [[nodiscard]] result<share_offer> receive() const;
  [[nodiscard]] result<share_offer> receive(timeout limit) const;

 private:
  explicit share_link(std::shared_ptr<sharing::session> shared) noexcept
      : state_{std::move(shared)} {}

  std::shared_ptr<sharing::session> state_;
};

}}  // namespace weir::v0
