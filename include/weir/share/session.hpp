// Memory, pools and events between processes: what is given, over which link, and what is got.
//
//   // One process                                       // The other
//   auto link = share_link::open(machine, channel);      auto link = share_link::open(machine,
//   channel); auto memory = shared_memory::create(gpu, 64_MiB);    auto got =
//   link.receive(1s).open_memory(); link.offer(memory); use(got.address());
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

namespace weir::inline v0 {

namespace sharing {
class session;
class grant;
class imported;
struct exported;
struct incoming;
}  // namespace sharing

/// One act of giving; never used twice in a process.
using share_grant = id<struct share_grant_kind, std::uint64_t>;

struct shared_memory_options {
  /// The size of the handles that the memory is made of, rounded up to the granularity; 0 is one
  /// handle for all of it. The driver maps handles whole, so this is how finely parts of the memory
  /// can be given away. A handle costs about 60 µs on either side.
  bytes unit{};
};

/// Memory that can be given to other processes.
///
/// A shared handle, as cheap to copy as a shared_ptr; empty if default-made. Mapped at address(),
/// readable and writable by its device. Goes when the last handle is gone and everybody it was
/// given to has let go or died: memory of its own after waiting for all work that is queued on the
/// device, a block as the allocator frees it. Any thread.
class WEIR_API shared_memory {
 public:
  shared_memory() noexcept = default;

  /// Memory of its own. not_supported: the device cannot export; limit_exceeded: more handles than
  /// can be sent at once (240): take a larger unit.
  [[nodiscard]] static result<shared_memory> create(weir::device where, bytes size,
                                                    shared_memory_options settings = {});
  /// A block of a caching_allocator's exportable pool (pool_options), in whole handles, so that no
  /// neighbour is given away with it: `size` is rounded up to the granularity. The block goes back
  /// to the pool, for the stream it was allocated for, once nobody can reach it any more; if the
  /// other process closed its link but did not let go, it stays out and that is reported
  /// (not_ready). Memory of the pool is not cleared between its users.
  [[nodiscard]] static result<shared_memory> allocate(const caching_allocator& from,
                                                      const memory_pool& pool, bytes size,
                                                      const stream_ref& stream);

  explicit operator bool() const noexcept { return inside_ != nullptr; }
  // The rest needs memory that is not empty.
  [[nodiscard]] device_address address() const noexcept;
  [[nodiscard]] bytes size() const noexcept;  ///< as asked for
  [[nodiscard]] bytes unit() const noexcept;  ///< of each handle
  [[nodiscard]] weir::device device() const noexcept;

 private:
  friend class share_link;
  explicit shared_memory(std::shared_ptr<sharing::exported> inside) noexcept
      : inside_{std::move(inside)} {}

  std::shared_ptr<sharing::exported> inside_;
};

/// Which part of memory is given, and what may be done with it.
///
/// Only the handles that the part lies in are sent. Of those the other process can reach all; it is
/// told offset and size, and weir shows it no more.
struct share_view {
  bytes offset{};
  bytes size{};  ///< 0: up to the end
  access_rights rights = access_rights::read_write;
};

/// Memory of another process, mapped here.
///
/// A shared handle; empty if default-made. address() is where the part that was given begins. The
/// other process hears of it when the last copy is gone or close() was called, and all work is done
/// that was queued on the devices that reach it, on whatever stream: both wait for that. What was
/// given twice in the same handles is mapped once. Keeps its link's connection open. Any thread.
class WEIR_API imported_memory {
 public:
  imported_memory() noexcept = default;
  explicit operator bool() const noexcept { return inside_ != nullptr; }

  /// The address, if it may be used now. not_permitted: it was revoked; peer_closed: the exporter
  /// is gone; already_freed: closed. Looks whether news came: a system call.
  [[nodiscard]] result<device_address> address() const;
  /// The address without a look; 0 if closed. What was revoked, or whose exporter died, stays
  /// mapped until it is closed.
  [[nodiscard]] device_address mapped_at() const noexcept;
  [[nodiscard]] bytes size() const noexcept;
  [[nodiscard]] access_rights rights() const noexcept;
  /// Lets another device reach it, with the rights that were given. not_supported: legacy memory.
  result<void> allow(device who) const;
  /// Waits for the devices, unmaps, unless other imports share the mapping, and tells the exporter.
  /// Says what came of it. capture_forbidden: a stream is being captured, and waiting would spoil
  /// that; it stays open. One whose last copy goes meanwhile stays mapped until something else is
  /// closed after the capture.
  result<void> close();

 private:
  friend class share_offer;
  explicit imported_memory(std::shared_ptr<sharing::imported> inside) noexcept
      : inside_{std::move(inside)} {}

  std::shared_ptr<sharing::imported> inside_;
};

/// What came over a link: a ticket that was checked, or a note.
///
/// Nothing is imported before open_…(), which takes it and leaves the offer empty; an offer that
/// goes unopened is handed back to the exporter. Asking for another kind than it is is
/// invalid_argument and changes nothing. One thread at a time.
class WEIR_API share_offer {
 public:
  ~share_offer();
  share_offer(share_offer&& other) noexcept;
  share_offer& operator=(share_offer&& other) noexcept;

  [[nodiscard]] bool is_note() const noexcept;
  /// Of a note: what was written.
  [[nodiscard]] std::span<const std::byte> note() const noexcept;
  /// Of anything else: what is offered.
  [[nodiscard]] const share_ticket& ticket() const noexcept;

  /// Memory and legacy memory. no_device: this process does not see the device; invalid_argument:
  /// the sizes told are not those of the memory; not_permitted: revoked meanwhile; else what the
  /// driver said of the descriptors. Nothing stays mapped then.
  [[nodiscard]] result<imported_memory> open_memory();
  [[nodiscard]] result<event> open_event();
  /// The pool, which hands out nothing here.
  [[nodiscard]] result<stream_pool> open_pool();
  /// An allocation of `pool`, which came with a ticket of the same object; freed on `stream`.
  [[nodiscard]] result<stream_allocation> open_allocation(stream_pool& pool,
                                                          const stream_ref& stream);

 private:
  friend class share_link;
  explicit share_offer(std::unique_ptr<sharing::incoming> inside) noexcept;

  std::unique_ptr<sharing::incoming> inside_;
};

struct share_link_options {
  /// How long a call waits for the other process, unless it is told otherwise.
  share_channel::timeout limit{5000};
  /// Whether a process of another user may be at the other end.
  bool other_users = false;
};

/// A connection to one other process, over which either side gives and takes.
///
/// Both sides have said their version and who they are (the kernel vouches for it); messages of
/// anybody else are refused. What the other side sends is checked before it is believed: a bad
/// message is an error of receive() and nothing else. What comes is read when a call looks; nothing
/// happens by itself. What was given stays until the other side lets go, also past the link.
///
/// A shared handle; a link that was moved from must not be used. Any thread; a call that waits does
/// not keep others from working.
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
  /// peer_closed: the other process closed the link or died. Looks whether news came.
  result<void> check() const;

  // --- Giving: each returns when it is sent, and not_ready if there is no room for it in time ----

  result<share_grant> offer(const shared_memory& what, share_view part = {});
  /// A whole allocation of allocate_plain(), for processes that know no virtual memory. It must be
  /// a multiple of the granularity: the driver gives smaller ones away with their neighbours
  /// (not_permitted). The caller keeps it until the other side is done.
  result<share_grant> offer_legacy(weir::device where, device_address address);
  /// An interprocess event (event_options), which the caller keeps until the other side is done. A
  /// wait sees what was recorded before: record, then say so in a note.
  result<share_grant> offer(const event& what);
  /// A driver pool that was made with posix_descriptor; it gives nothing away by itself.
  result<share_grant> offer(const stream_pool& what);
  /// An allocation of such a pool. The other side must have freed its import before the owner frees
  /// it; nobody but the two can see to that (stream_pool::import_pointer).
  result<share_grant> offer(const stream_allocation& what);
  /// Some bytes of the user's, at most most_note: what was offered and what it is for, or that an
  /// event was recorded.
  result<void> send_note(std::span<const std::byte> text);

  /// Takes back what was given: asks the other side to let go and waits for it. not_ready: it has
  /// not yet; the memory stays. not_found: nothing of that number is given. The driver cannot take
  /// memory out of another process: one that does not obey keeps it until it ends.
  result<void> revoke(share_grant which);
  result<void> revoke(share_grant which, timeout limit);
  /// What was given and not let go.
  [[nodiscard]] std::size_t outstanding() const;

  // --- Taking ------------------------------------------------------------------------------------

  /// The next offer or note. not_ready: none came in time; peer_closed; bad_version,
  /// invalid_argument: the message was none of ours; not_permitted: its ticket was issued by
  /// another process or seen before. After the last three the next message can be received.
  [[nodiscard]] result<share_offer> receive();
  [[nodiscard]] result<share_offer> receive(timeout limit);

 private:
  explicit share_link(std::shared_ptr<sharing::session> inside) noexcept
      : inside_{std::move(inside)} {}

  std::shared_ptr<sharing::session> inside_;
};

}  // namespace weir::inline v0
