// SPDX-License-Identifier: Apache-2.0
// One connection and its state: the grants of either side, the received messages, the mappings.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/mutex.hpp"
#include "device/state.hpp"
#include "sharing/device_idle.hpp"
#include "sharing/message.hpp"
#include "sharing/packet.hpp"
#include "sharing/peer_process.hpp"
#include "weir/share/session.hpp"

namespace weir { inline namespace v0 { namespace sharing {

/// The number that stands for this process; a forked child has another.
[[nodiscard]] std::uint64_t own_number();
/// Counts up; never the same twice in a process.
[[nodiscard]] std::uint64_t next_number() noexcept;

struct orphaned_mappings;

/// Memory that can be exported: handles of its own, mapped, or a block of an allocator.
///
/// Shared by the user's handles and by every session with an outstanding grant of it. Its
/// destructor waits until the device has done all its queued work.
struct exported {
  explicit exported(weir::device device);
  ~exported();
  exported(const exported&) = delete;
  exported& operator=(const exported&) = delete;

  std::shared_ptr<detail::device_state> home;
  const std::uint64_t object = next_number();
  bytes size{};
  bytes unit{};
  device_address address = 0;
  std::vector<vmm::physical> pieces;

  // Its own memory.
  std::optional<address_range> range;
  std::vector<physical_handle> handles;
  std::vector<mapping> mappings;  // behind the range, which must outlive them
  /// For what is above, should it outlive this object.
  std::shared_ptr<orphaned_mappings> orphans;
  keeping_place place;

  // An allocator's.
  std::optional<caching_allocator> heap;
  memory_pool pool;
  void* block = nullptr;
  /// A process without a connection may still have it mapped.
  std::atomic<bool> exposed{false};

 private:
  /// Waits until its own memory may be unmapped. After an error it stays mapped until a later wait
  /// for the device succeeds.
  [[nodiscard]] result<void> end_mappings() noexcept;
};

/// Handles of another process, mapped here.
struct mapped {
  weir::device home;
  address_range range;
  std::vector<mapping> mappings;
  bytes piece{};

  [[nodiscard]] result<void> close() noexcept;
};

class session;

/// The importing side of one grant: its destructor releases it.
class grant {
 public:
  grant(std::shared_ptr<session> origin, std::uint64_t number);
  ~grant();
  grant(const grant&) = delete;
  grant& operator=(const grant&) = delete;

  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }
  [[nodiscard]] session& origin() const noexcept { return *origin_; }
  /// The message of its end, made before: to release it needs no host memory.
  [[nodiscard]] std::list<std::vector<std::byte>> take_closed_message() noexcept {
    return std::move(closed_message_);
  }
  /// not_permitted: revoked; peer_closed: the exporter is gone. Reads the messages that have come.
  [[nodiscard]] result<void> check() const;

 private:
  std::shared_ptr<session> origin_;
  std::uint64_t number_;
  std::list<std::vector<std::byte>> closed_message_;
};

/// An offer or a note that was received and not opened.
struct incoming {
  std::optional<share_ticket> ticket;  // none: a note
  std::vector<std::byte> note;
  std::vector<descriptor> descriptors;
  std::shared_ptr<sharing::grant> grant;
};

/// Memory that was opened. Any thread.
///
/// Released, by close() or its destructor, only when the devices that reach it have done all their
/// queued work. If a device cannot be waited for, close() returns why and leaves it open; memory
/// that is destroyed then is reported, and stays mapped until a later wait for the device succeeds.
/// Nobody waits with the lock held.
class imported {
 public:
  imported(std::shared_ptr<grant> source, const share_ticket& ticket,
           std::shared_ptr<mapped> memory);
  imported(std::shared_ptr<grant> source, const share_ticket& ticket, weir::device home,
           device_address legacy);
  ~imported();
  imported(const imported&) = delete;
  imported& operator=(const imported&) = delete;

  [[nodiscard]] result<device_address> address() const WEIR_EXCLUDES(mutex_);
  [[nodiscard]] device_address mapped_at() const noexcept WEIR_EXCLUDES(mutex_);
  [[nodiscard]] const share_ticket& ticket() const noexcept { return ticket_; }
  [[nodiscard]] result<void> allow(weir::device accessor) const WEIR_EXCLUDES(mutex_);
  [[nodiscard]] result<void> close() noexcept WEIR_EXCLUDES(mutex_);

 private:
  /// The memory, as long as it is open. The grant goes last: only then may the exporter learn of
  /// it.
  struct holding {
    std::shared_ptr<grant> source;  // null: closed
    std::shared_ptr<mapped> memory;
    std::shared_ptr<detail::device_state> legacy_home;
    device_address legacy = 0;

    holding() = default;
    holding(holding&& other) noexcept = default;
    holding& operator=(holding&& other) noexcept = default;
    ~holding();
    /// Unmaps it; nobody may use it any more.
    [[nodiscard]] result<void> end() noexcept;
  };
  /// A device that reaches the memory.
  struct accessor {
    weir::device device;
    keeping_place place{};
    bool is_idle = false;  // since a wait of close()
  };
  /// Waits for each accessor that there is. With the lock it is then closed, or stays as it was.
  [[nodiscard]] result<void> wait_for_accessors() WEIR_EXCLUDES(mutex_);

  const share_ticket ticket_;
  std::shared_ptr<detail::device_state> home_;
  mutable detail::mutex mutex_;
  std::shared_ptr<holding> held_ WEIR_GUARDED_BY(mutex_) = std::make_shared<holding>();
  mutable std::vector<accessor> accessors_ WEIR_GUARDED_BY(mutex_);
  device_address address_ WEIR_GUARDED_BY(mutex_) = 0;
};

/// A connection whose other end is known.
///
/// Lives as long as a link or an import of it: an import's release must be sent. Any thread; its
/// lock is never held while waiting for the other process. A forked child's copy sends nothing: the
/// connection is the parent's.
class session : public std::enable_shared_from_this<session> {
 public:
  using timeout = share_channel::timeout;

  [[nodiscard]] static result<std::shared_ptr<session>> open(std::shared_ptr<runtime> machine,
                                                             share_channel channel,
                                                             share_link_options settings);
  session(std::shared_ptr<runtime> machine, share_channel channel, share_link_options settings)
      : machine_{std::move(machine)}, channel_{std::move(channel)}, settings_{settings} {}
  ~session();
  session(const session&) = delete;
  session& operator=(const session&) = delete;

  [[nodiscard]] share_peer peer() const noexcept { return peer_; }
  [[nodiscard]] const share_link_options& settings() const noexcept { return settings_; }
  /// The device with this UUID, as this process knows it.
  [[nodiscard]] result<weir::device> find_device(const std::array<std::uint8_t, 16>& uuid) const;

  [[nodiscard]] result<void> check() WEIR_EXCLUDES(mutex_);
  [[nodiscard]] result<void> send(std::span<const std::byte> content,
                                  std::span<const int> descriptors, timeout limit)
      WEIR_EXCLUDES(mutex_);

  /// Completes the ticket and sends it. A tracked grant is outstanding until it is released.
  [[nodiscard]] result<share_grant> send_offer(share_ticket ticket, weir::device home,
                                               std::span<const int> descriptors,
                                               std::shared_ptr<exported> memory, bool tracked)
      WEIR_EXCLUDES(send_mutex_, mutex_);
  [[nodiscard]] result<void> revoke(std::uint64_t number, timeout limit) WEIR_EXCLUDES(mutex_);
  [[nodiscard]] std::size_t outstanding() WEIR_EXCLUDES(mutex_);

  [[nodiscard]] result<std::unique_ptr<incoming>> receive(timeout limit) WEIR_EXCLUDES(mutex_);
  void release(grant& released) noexcept WEIR_EXCLUDES(mutex_);
  [[nodiscard]] result<void> check(const grant& used) WEIR_EXCLUDES(mutex_);

  /// The mapping of a ticket's handles: the one that there is, or a new one.
  [[nodiscard]] result<std::shared_ptr<mapped>> map(const share_ticket& ticket,
                                                    std::span<const descriptor> descriptors)
      WEIR_EXCLUDES(map_mutex_);
  /// One import of it less; the last one unmaps.
  [[nodiscard]] result<void> unmap(std::shared_ptr<mapped> memory) noexcept
      WEIR_EXCLUDES(map_mutex_);

 private:
  using clock = std::chrono::steady_clock;
  /// A message for receive(), or the error that it will return.
  struct queued_message {
    std::optional<error> failure{};
    std::optional<share_ticket> ticket{};
    std::vector<std::byte> note{};
    std::vector<descriptor> descriptors{};
  };
  using exports = std::map<std::uint64_t, std::shared_ptr<exported>>;  // by grant
  using mapping_key = std::tuple<std::uint64_t, std::uint32_t, std::uint32_t, access_rights>;

  /// A call that waits for messages. Those that another thread has read are not in the socket any
  /// more: whoever reads some rings for all that listen.
  class listener {
   public:
    explicit listener(session& owner) noexcept : owner_{owner} {}
    ~listener() { owner_.forget(*this); }
    listener(const listener&) = delete;
    listener& operator=(const listener&) = delete;

   private:
    friend class session;
    session& owner_;
    descriptor bell_;  // an eventfd; none before listen()
  };
  /// Messages that are read from now on end its wait().
  [[nodiscard]] result<void> listen(listener& call) WEIR_REQUIRES(mutex_);
  /// not_ready: none came in time.
  [[nodiscard]] result<void> wait(const listener& call, clock::time_point deadline) const
      WEIR_EXCLUDES(mutex_);
  void forget(const listener& call) noexcept WEIR_EXCLUDES(mutex_);

  [[nodiscard]] result<void> greet();
  [[nodiscard]] bool has_room() const noexcept WEIR_REQUIRES(mutex_);
  void receive_pending() WEIR_REQUIRES(mutex_);
  /// What receive() is to return of it, if anything.
  [[nodiscard]] std::optional<queued_message> handle(socket_message& received)
      WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<queued_message> handle_offer(const share_ticket& ticket,
                                                    share_message& message) WEIR_REQUIRES(mutex_);
  /// The offer cannot be used here: the other side need not keep it.
  void release_refused(const share_ticket& ticket) WEIR_REQUIRES(mutex_);
  /// Tells the other side that a grant is not in use here.
  void answer_closed(std::uint64_t number) WEIR_REQUIRES(mutex_);
  /// The first of the queue, which stays there if the host has no memory.
  [[nodiscard]] result<std::unique_ptr<incoming>> take_first() WEIR_REQUIRES(mutex_);
  void drain() WEIR_REQUIRES(mutex_);
  void handle_revocation(std::uint64_t number) WEIR_REQUIRES(mutex_);
  [[nodiscard]] bool flush() WEIR_REQUIRES(mutex_);
  /// Whether the other side closed the link or died; messages of before may be unread.
  [[nodiscard]] bool is_peer_gone() const noexcept WEIR_REQUIRES(mutex_) {
    return peer_closed_ || peer_exited_;
  }
  /// The other side has released it.
  void end_grant(std::uint64_t number) WEIR_REQUIRES(mutex_);

  /// Holds the lock, and the memory whose grants end meanwhile: that is destroyed when the lock is
  /// free, because its destructor may wait for the device and call other sessions.
  class WEIR_THREAD_SAFETY(scoped_lockable) session_lock {
   public:
    [[nodiscard]] explicit session_lock(session& owner)
        WEIR_THREAD_SAFETY(acquire_capability(owner.mutex_))
        : owner_{owner} {
      owner_.mutex_.lock();
    }
    ~session_lock() WEIR_THREAD_SAFETY(release_capability()) {
      ended_.swap(owner_.ended_);
      owner_.mutex_.unlock();
    }
    session_lock(const session_lock&) = delete;
    session_lock& operator=(const session_lock&) = delete;

   private:
    session& owner_;
    exports ended_;
  };

  const std::shared_ptr<runtime> machine_;
  const share_channel channel_;
  const share_link_options settings_;
  const pid_t owner_ = own_process();
  // Fixed by greet().
  share_peer peer_{};
  std::uint64_t peer_number_ = 0;  // the other process's own_number()
  peer_process peer_process_;

  detail::mutex send_mutex_;  // grants are sent in the order of their numbers

  detail::mutex mutex_;
  bool peer_exited_ WEIR_GUARDED_BY(mutex_) = false;
  bool peer_closed_ WEIR_GUARDED_BY(mutex_) = false;  // there is nothing more to be read
  std::list<queued_message> queue_ WEIR_GUARDED_BY(mutex_);
  std::size_t queued_descriptors_ WEIR_GUARDED_BY(mutex_) = 0;
  std::vector<int> bells_ WEIR_GUARDED_BY(mutex_);  // of those who listen
  /// Messages that the socket had no room for.
  std::list<std::vector<std::byte>> unsent_ WEIR_GUARDED_BY(mutex_);
  std::uint64_t last_incoming_grant_ WEIR_GUARDED_BY(mutex_) = 0;
  /// Grants of the other side that are open here, and whether they were revoked.
  std::map<std::uint64_t, bool> incoming_grants_ WEIR_GUARDED_BY(mutex_);
  exports outgoing_grants_ WEIR_GUARDED_BY(mutex_);
  /// Of grants that ended; taken by session_lock.
  exports ended_ WEIR_GUARDED_BY(mutex_);

  detail::mutex map_mutex_;
  std::map<mapping_key, std::weak_ptr<mapped>> mapped_ WEIR_GUARDED_BY(map_mutex_);

  [[nodiscard]] static pid_t own_process() noexcept;
};

}}}  // namespace weir::v0::sharing
