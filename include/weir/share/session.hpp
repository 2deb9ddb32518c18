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
// docs/sharing.md tells who is protected from whom, and from what not.
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

/// One export of an object; never used twice in a process.
using share_grant = id<struct share_grant_kind, std::uint64_t>;

struct shared_memory_options {
  /// The size of the handles that the memory consists of, rounded up to the granularity; 0 is one
  /// handle for all of it. The driver maps handles whole, so this is the grain in which parts of
  /// the memory can be offered. A handle costs about 60 µs on either side.
  bytes unit{};
};

/// Memory that can be offered to other processes.
///
/// A shared handle, as cheap to copy as a shared_ptr; empty if default-made. Mapped at address(),
/// readable and writable by its device. Freed when the last handle is gone and every importer has
/// released it or died: memory of its own after waiting for all work that is queued on the device,
/// a block as the allocator frees it. Any thread.
class WEIR_API shared_memory {
 public:
  shared_memory() noexcept = default;

  /// Memory of its own. not_supported: the device cannot export; limit_exceeded: more handles than
  /// can be sent at once (240): take a larger unit.
  [[nodiscard]] static result<shared_memory> create(weir::device device, bytes size,
                                                    shared_memory_options settings = {});
  /// A block of a caching_allocator's exportable pool (pool_options), in whole handles, so that no
  /// neighbour is exported with it: `size` is rounded up to the granularity. The block is freed to
  /// the pool, for the stream it was allocated for, once nobody can reach it any more; if the other
  /// process closed its link without a release, it stays allocated and that is reported
  /// (not_ready). Memory of the pool is not cleared between its users.
  [[nodiscard]] static result<shared_memory> allocate(const caching_allocator& from,
                                                      const memory_pool& pool, bytes size,
                                                      const stream_ref& stream);

  explicit operator bool() const noexcept { return state_ != nullptr; }
  // The rest needs memory that is not empty.
  [[nodiscard]] device_address address() const noexcept;
  [[nodiscard]] bytes size() const noexcept;  ///< as asked for
  [[nodiscard]] bytes unit() const noexcept;  ///< of each handle
  [[nodiscard]] weir::device device() const noexcept;

 private:
  friend class share_link;
  explicit shared_memory(std::shared_ptr<sharing::exported> shared) noexcept
      : state_{std::move(shared)} {}

  std::shared_ptr<sharing::exported> state_;
};

/// The part of memory that is offered, and its access rights.
///
/// Only the handles that the part lies in are sent. Of those the other process can reach all; it
/// gets offset and size, and weir shows it no more.
struct share_view {
  bytes offset{};
  bytes size{};  ///< 0: up to the end
  access_rights rights = access_rights::read_write;
};

/// Memory of another process, mapped here.
///
/// A shared handle; empty if default-made (moved_from). address() is the beginning of the offered
/// part. Released when the last copy is gone or close() was called, after all work that is queued
/// on the devices that reach it, on whatever stream: both wait for that, and then tell the
/// exporter. Parts in the same handles are mapped once. Keeps its link's connection open. Any
/// thread.
class WEIR_API imported_memory {
 public:
  imported_memory() noexcept = default;
  explicit operator bool() const noexcept { return state_ != nullptr; }

  /// The address, if it may be used now. not_permitted: it was revoked; peer_closed: the exporter
  /// is gone; closed. Reads the messages that have come: two system calls.
  [[nodiscard]] result<device_address> address() const;
  /// The address without that check; 0 if closed. Memory that was revoked, or whose exporter died,
  /// stays mapped until it is closed.
  [[nodiscard]] device_address mapped_at() const noexcept;
  [[nodiscard]] bytes size() const noexcept;
  [[nodiscard]] access_rights rights() const noexcept;
  /// Lets another device reach it, with the granted rights. not_supported: legacy memory.
  result<void> allow(device accessor) const;
  /// Waits for the devices, unmaps, unless other imports share the mapping, and tells the exporter;
  /// returns the driver's answer. Captures stay valid. If a device cannot be waited for, it stays
  /// open. If the last copy goes then, that is reported, and the memory stays mapped until a later
  /// wait for the device succeeds.
  result<void> close() const;

 private:
  friend class share_offer;
  explicit imported_memory(std::shared_ptr<sharing::imported> shared) noexcept
      : state_{std::move(shared)} {}

  std::shared_ptr<sharing::imported> state_;
};

/// A received offer, whose ticket was checked, or a note.
///
/// Nothing is imported before open_…(), which leaves the offer empty (moved_from); an offer that is
/// destroyed unopened is released to the exporter. Opening it as another kind than it is is
/// invalid_argument and changes nothing. One thread at a time.
class WEIR_API share_offer {
 public:
  ~share_offer();
  share_offer(share_offer&& other) noexcept;
  share_offer& operator=(share_offer&& other) noexcept;

  [[nodiscard]] bool is_note() const noexcept;
  /// Of a note: the sender's bytes.
  [[nodiscard]] std::span<const std::byte> note() const noexcept;
  /// Of anything else: the description of the offered object.
  [[nodiscard]] const share_ticket& ticket() const noexcept;

  /// Memory and legacy memory. no_device: this process does not see the device; invalid_argument:
  /// the ticket's sizes are not those of the memory; not_permitted: revoked meanwhile; else the
  /// driver's error. Nothing stays mapped then.
  [[nodiscard]] result<imported_memory> open_memory();
  [[nodiscard]] result<event> open_event();
  /// The pool, which hands out nothing here.
  [[nodiscard]] result<stream_pool> open_pool();
  /// An allocation of `pool`, which was opened from a ticket of the same object; freed on `stream`.
  [[nodiscard]] result<stream_allocation> open_allocation(stream_pool& pool,
                                                          const stream_ref& stream);

 private:
  friend class share_link;
  explicit share_offer(std::unique_ptr<sharing::incoming> message) noexcept;

  std::unique_ptr<sharing::incoming> state_;
};

struct share_link_options {
  /// How long a call waits for the other process, unless it has a limit of its own.
  share_channel::timeout limit{5000};
  /// Whether a process of another user may be at the other end.
  bool other_users = false;
};

/// A connection to one other process, over which either side offers and imports.
///
/// Both sides have named their version and themselves (the kernel vouches for the latter); messages
/// of anybody else are refused. What the other side sends is checked before it is used: a bad
/// message is an error of receive() and nothing else. Messages are read by calls; there is no
/// thread in the background. Exported memory stays until the other side releases it, also past the
/// link.
///
/// A shared handle; a link that was moved from must not be used. Any thread; a call that waits does
/// not block others.
class WEIR_API share_link {
 public:
  using timeout = share_channel::timeout;
  static constexpr std::size_t most_note = 1024;

  /// Both sides call it. bad_version: the other side speaks another; not_permitted: another user's
  /// process; not_ready: it did not answer in time; peer_closed.
  [[nodiscard]] static result<share_link> open(std::shared_ptr<runtime> machine,
                                               share_channel channel,
                                               share_link_options settings = {});

  [[nodiscard]] share_peer peer() const noexcept;
  /// peer_closed: the other process closed the link or died. Reads the messages that have come.
  result<void> check() const;

  // --- Offers: each returns when it is sent, and not_ready if there is no room for it in time ----

  result<share_grant> offer(const shared_memory& memory, share_view part = {}) const;
  /// A whole allocation of allocate_plain(), for processes that know no virtual memory. It must be
  /// a multiple of the granularity: the driver exports smaller ones with their neighbours
  /// (not_permitted). The caller keeps it until the other side is done.
  result<share_grant> offer_legacy(weir::device device, device_address address) const;
  /// An interprocess event (event_options), which the caller keeps until the other side is done. A
  /// wait covers the records before it: record, then say so in a note.
  result<share_grant> offer(const event& shared_event) const;
  /// A driver pool that was created with posix_descriptor; no memory is exported with it.
  result<share_grant> offer(const stream_pool& pool) const;
  /// An allocation of such a pool. The other side must have freed its import before the owner frees
  /// it; nobody but the two can see to that (stream_pool::import_pointer).
  result<share_grant> offer(const stream_allocation& allocation) const;
  /// Some bytes of the user's, at most most_note: the purpose of an offer, or that an event was
  /// recorded.
  result<void> send_note(std::span<const std::byte> text) const;

  /// Asks the other side to release a grant and waits for it. not_ready: it has not yet; the memory
  /// stays. not_found: no such grant is outstanding. The driver cannot take memory out of another
  /// process: one that does not obey keeps it until it ends.
  result<void> revoke(share_grant grant) const;
  result<void> revoke(share_grant grant, timeout limit) const;
  /// Grants that were not released.
  [[nodiscard]] std::size_t outstanding() const;

  // --- Imports -----------------------------------------------------------------------------------

  /// The next offer or note. not_ready: none came in time; peer_closed; bad_version,
  /// invalid_argument: the message was none of ours; limit_exceeded: no room for its descriptors
  /// (RLIMIT_NOFILE); not_permitted: its ticket was issued by another process or seen before. After
  /// the last four the next message can be received; the grant of a refused offer is released.
  [[nodiscard]] result<share_offer> receive() const;
  [[nodiscard]] result<share_offer> receive(timeout limit) const;

 private:
  explicit share_link(std::shared_ptr<sharing::session> shared) noexcept
      : state_{std::move(shared)} {}

  std::shared_ptr<sharing::session> state_;
};

}}  // namespace weir::v0
