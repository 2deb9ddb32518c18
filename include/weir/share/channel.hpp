// SPDX-License-Identifier: Apache-2.0
// Messages with descriptors between two processes of one machine: a Unix socket with deadlines.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weir/base/export.hpp"
#include "weir/base/result.hpp"
#include "weir/device/virtual_memory.hpp"

namespace weir { inline namespace v0 {

/// The sender of a message, as the kernel says. A process of another PID namespace has number 0.
struct share_peer {
  pid_t process = 0;
  uid_t user = 0;

  friend bool operator==(const share_peer&, const share_peer&) = default;
};

/// "process 4711 of user 1000".
[[nodiscard]] WEIR_API std::string to_string(const share_peer& peer);

/// A received message. Its descriptors are closed with it.
struct share_message {
  std::vector<std::byte> content;
  std::vector<descriptor> descriptors;
  share_peer from;
};

/// One end of a connection that keeps messages whole (SOCK_SEQPACKET).
///
/// Open unless moved from or closed (moved_from). Every call has a deadline, which
/// milliseconds::max() puts off for ever; one that passes is not_ready and leaves nothing half sent
/// or half received. A peer that closed its end or died is peer_closed, after everything it had
/// sent was received. One thread at a time may move or close it; any may send and receive.
class WEIR_API share_channel {
 public:
  using timeout = std::chrono::milliseconds;
  static constexpr std::size_t most_content = 4096;

  /// Two ends joined to each other: keep one and let a child process inherit the other.
  [[nodiscard]] static result<std::pair<share_channel, share_channel>> pair();
  /// An end that was inherited or received. invalid_argument: no such socket.
  [[nodiscard]] static result<share_channel> adopt(descriptor end);
  /// To a share_listener. not_found: nobody listens there; invalid_argument: the path is none.
  [[nodiscard]] static result<share_channel> connect(const std::string& path, timeout limit);

  explicit operator bool() const noexcept { return static_cast<bool>(end_); }
  [[nodiscard]] int get() const noexcept { return end_.get(); }
  /// Passes the socket to the caller.
  [[nodiscard]] descriptor release() noexcept { return std::move(end_); }
  void close() noexcept { end_ = descriptor{}; }

  /// The descriptors stay the caller's. invalid_argument: too long or too many.
  result<void> send(std::span<const std::byte> content, std::span<const int> descriptors,
                    timeout limit) const;
  /// invalid_argument: a message that is empty, too long or has too many descriptors;
  /// limit_exceeded: this process has no room for its descriptors (RLIMIT_NOFILE). It is dropped,
  /// its descriptors are closed, the next one can be received.
  [[nodiscard]] result<share_message> receive(timeout limit) const;

 private:
  explicit share_channel(descriptor end) noexcept : end_{std::move(end)} {}
  friend class share_listener;

  descriptor end_;
};

/// A path that other processes of the same user connect to. The file goes with this object, unless
/// something else has its name by then. One thread at a time.
class WEIR_API share_listener {
 public:
  /// invalid_argument: the path is empty, too long or has a byte 0; not_permitted: something is
  /// there already.
  [[nodiscard]] static result<share_listener> listen(std::string path);
  ~share_listener();
  share_listener(share_listener&& other) noexcept = default;
  share_listener& operator=(share_listener&& other) noexcept;

  /// not_ready: nobody came in time; system: the process had no descriptor left all that time.
  [[nodiscard]] result<share_channel> accept(share_channel::timeout limit) const;
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  share_listener(descriptor socket, std::string path, std::string file) noexcept;
  /// Removes the socket's file, but not in a forked child: there it is the parent's.
  void remove() const noexcept;

  descriptor socket_;
  std::string path_;
  std::string file_;  // the same, absolute
  dev_t device_ = 0;  // of the file
  ino_t number_ = 0;
  int owner_;  // the process that listens
};

}}  // namespace weir::v0
