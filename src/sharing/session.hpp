// One connection from the inside: what was given, what came, and what is mapped of it.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "device/state.hpp"
#include "sharing/packet.hpp"
#include "weir/share/session.hpp"

namespace weir::inline v0::sharing {

/// Waits until the socket can do `what` (POLLIN, POLLOUT) or is closed. not_ready: not by then.
[[nodiscard]] result<void> wait_for(int socket, short what,
                                    std::chrono::steady_clock::time_point until);

/// The number that stands for this process; a forked child has another.
[[nodiscard]] std::uint64_t own_number();
/// Counts up; never the same twice in a process.
[[nodiscard]] std::uint64_t next_number() noexcept;

/// Memory that can be given away: handles of its own, mapped, or a block of an allocator.
///
/// Shared by the user's handles and by every session that gave it to somebody who has not let go.
/// Its end waits until the device has done all its queued work.
struct exported {
  explicit exported(weir::device where) : home{detail::device_state::keep(where)} {}
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

  // An allocator's.
  std::optional<caching_allocator> heap;
  memory_pool pool;
  void* block = nullptr;
  /// Somebody who cannot be asked any more may still have it mapped.
  std::atomic<bool> exposed{false};

 private:
  /// Waits until its own memory may go, or sees to it that it goes later.
  [[nodiscard]] result<void> end_mappings();
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

/// The taking side of one grant: its end is the news that it was let go.
class grant {
 public:
  grant(std::shared_ptr<session> from, std::uint64_t number) noexcept
      : from_{std::move(from)}, number_{number} {}
  ~grant();
  grant(const grant&) = delete;
  grant& operator=(const grant&) = delete;

  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }
  [[nodiscard]] session& from() const noexcept { return *from_; }
  /// not_permitted: revoked; peer_closed: the exporter is gone. Looks whether news came.
  [[nodiscard]] result<void> check() const;

 private:
  friend class session;
  std::shared_ptr<session> from_;
  std::uint64_t number_;
  bool revoked_ = false;  // under the session's lock
};

/// What was received and not opened.
struct incoming {
  std::optional<share_ticket> ticket;  // none: a note
  std::vector<std::byte> note;
  std::vector<descriptor> descriptors;
  std::shared_ptr<sharing::grant> grant;
};

/// Memory that was opened. Any thread.
///
/// Let go, by close() or its end, only when the devices that reach it have done all their queued
/// work. While a capture forbids to wait for that it stays: close() says so, and what has lost its
/// owner goes later (keep_until_rest).
class imported {
 public:
  imported(std::shared_ptr<grant> given, const share_ticket& ticket, std::shared_ptr<mapped> where);
  imported(std::shared_ptr<grant> given, const share_ticket& ticket, weir::device home,
           device_address legacy);
  ~imported();
  imported(const imported&) = delete;
  imported& operator=(const imported&) = delete;

  [[nodiscard]] result<device_address> address() const;
  [[nodiscard]] device_address mapped_at() const noexcept;
  [[nodiscard]] const share_ticket& ticket() const noexcept { return ticket_; }
  [[nodiscard]] result<void> allow(weir::device who) const;
  [[nodiscard]] result<void> close() noexcept;

 private:
  /// What is held, as long as it is open. The grant goes last: only then the exporter may hear of
  /// it.
  struct holding {
    std::shared_ptr<grant> given;  // null: closed
    std::shared_ptr<mapped> where;
    std::shared_ptr<detail::device_state> legacy_home;
    device_address legacy = 0;

    holding() = default;
    holding(holding&& other) noexcept = default;
    holding& operator=(holding&& other) noexcept = default;
    ~holding();
    /// Unmaps it; nobody may use it any more.
    [[nodiscard]] result<void> end() noexcept;
  };
  [[nodiscard]] result<void> wait_for_devices();

  const share_ticket ticket_;
  mutable std::mutex mutex_;
  holding held_;
  mutable std::vector<weir::device> reached_by_;
  std::optional<weir::device> busy_;  // of those, with a capture
  device_address address_ = 0;
};

/// A connection whose other end is known.
///
/// Lives as long as a link or an import of it: an import's end must be told. Everything below is
/// under its lock, which is never held while waiting for the other process. A forked child's copy
/// says nothing: the connection is the parent's.
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

  [[nodiscard]] result<void> check();
  [[nodiscard]] result<void> send(std::span<const std::byte> content,
                                  std::span<const int> descriptors, timeout limit);

  /// Completes the ticket and sends it. What is tracked counts as given until it is let go.
  [[nodiscard]] result<share_grant> give(share_ticket ticket, weir::device where,
                                         std::span<const int> descriptors,
                                         std::shared_ptr<exported> what, bool tracked);
  [[nodiscard]] result<void> revoke(std::uint64_t number, timeout limit);
  [[nodiscard]] std::size_t outstanding();

  [[nodiscard]] result<std::unique_ptr<incoming>> receive(timeout limit);
  void let_go(const grant& which) noexcept;
  [[nodiscard]] result<void> check(const grant& which);

  /// The mapping of a ticket's handles: the one that there is, or a new one.
  [[nodiscard]] result<std::shared_ptr<mapped>> map(const share_ticket& ticket,
                                                    std::span<const descriptor> descriptors);
  /// One import of it less; the last one unmaps.
  [[nodiscard]] result<void> unmap(std::shared_ptr<mapped> where) noexcept;

 private:
  using clock = std::chrono::steady_clock;
  struct entry {
    std::optional<error> wrong{};
    std::optional<share_ticket> ticket{};
    std::vector<std::byte> note{};
    std::vector<descriptor> descriptors{};
  };
  using mapping_key = std::tuple<std::uint64_t, std::uint32_t, std::uint32_t, access_rights>;

  [[nodiscard]] result<void> greet();
  [[nodiscard]] bool has_room() const noexcept;
  void pump();
  void take(share_message& message);
  [[nodiscard]] result<entry> take_offer(const share_ticket& ticket, share_message& message);
  void take_revocation(std::uint64_t number);
  [[nodiscard]] bool flush();
  [[nodiscard]] bool peer_ended(timeout limit) const noexcept;

  /// The lock, and what the other side let go while it was held: that ends when the lock is free,
  /// because its end may wait for the device and tell other sessions.
  class locked {
   public:
    explicit locked(session& of) : of_{of}, lock_{of.mutex_} {}
    ~locked() {
      ended_.swap(of_.ended_);
      lock_.unlock();
    }
    locked(const locked&) = delete;
    locked& operator=(const locked&) = delete;

   private:
    session& of_;
    std::vector<std::shared_ptr<exported>> ended_;
    std::unique_lock<std::mutex> lock_;
  };
  /// The other side has let go of it.
  void end_grant(std::uint64_t number);

  const std::shared_ptr<runtime> machine_;
  const share_channel channel_;
  const share_link_options settings_;
  const pid_t owner_ = own_process();
  share_peer peer_{};         // fixed by greet()
  std::uint64_t theirs_ = 0;  // the other process's number; fixed by greet()
  descriptor process_;        // the other process itself; fixed by greet()

  std::mutex give_mutex_;  // grants are sent in the order of their numbers

  std::mutex mutex_;
  bool gone_ = false;
  std::deque<entry> queue_;
  std::size_t queued_descriptors_ = 0;
  std::deque<std::vector<std::byte>> unsent_;  // news that found no room
  std::uint64_t last_grant_ = 0;               // of theirs
  std::map<std::uint64_t, grant*> received_;
  std::map<std::uint64_t, std::shared_ptr<exported>> granted_;
  std::vector<std::shared_ptr<exported>> ended_;  // were granted_

  std::mutex map_mutex_;
  std::map<mapping_key, std::weak_ptr<mapped>> mapped_;

  [[nodiscard]] static pid_t own_process() noexcept;
};

}  // namespace weir::inline v0::sharing
