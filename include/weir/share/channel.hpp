// SPDX-License-Identifier: Apache-2.0
// share_channel: messages with file descriptors between two processes, over a Unix socket with
// deadlines.
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

/// The sender of a message, as reported by the kernel.
struct share_peer {
  pid_t process = 0;  ///< 0 for a process of another PID namespace
  uid_t user = 0;     ///< its user

  friend bool operator==(const share_peer&, const share_peer&) = default;
};

/// "process 4711 of user 1000".
[[nodiscard]] WEIR_API std::string to_string(const share_peer& peer);

/// A received message. Its descriptors are closed with it.
struct share_message {
  std::vector<std::byte> content;       ///< the bytes of the message
  std::vector<descriptor> descriptors;  ///< the descriptors that came with it
  share_peer from;                      ///< the sender
};

/// One end of a connection that preserves message boundaries (SOCK_SEQPACKET).
///
/// Open unless moved from or closed (moved_from). Every call has a deadline; milliseconds::max()
/// means none. not_ready: the deadline passed; no message is partly sent or received. peer_closed:
/// the other process closed its end or ended, and everything it sent was received. One thread at a
/// time may move or close it; any thread may send and receive.
class WEIR_API share_channel {
 public:
  /// How long a call may wait; milliseconds::max(): without a limit.
  using timeout = std::chrono::milliseconds;
  /// The most bytes of one message.
  static constexpr std::size_t most_content = 4096;

  /// Two connected ends: keep one and let a child process inherit the other.
  [[nodiscard]] static result<std::pair<share_channel, share_channel>> pair();
  /// Takes an end that was inherited or received. invalid_argument: it is not such a socket.
  [[nodiscard]] static result<share_channel> adopt(descriptor end);
  /// Connects to a share_listener. not_found: no process listens there; invalid_argument: the path
  /// is invalid.
  [[nodiscard]] static result<share_channel> connect(const std::string& path, timeout limit);

  /// Whether it is open.
  explicit operator bool() const noexcept { return static_cast<bool>(end_); }
  /// The socket, e.g. for poll(); ownership stays here.
  [[nodiscard]] int get() const noexcept { return end_.get(); }
  /// Passes the socket to the caller.
  [[nodiscard]] descriptor release() noexcept { return std::move(end_); }
  /// Closes this end. Idempotent.
  void close() noexcept { end_ = descriptor{}; }

  /// Sends a message; the descriptors stay the caller's. invalid_argument: too many bytes or
  /// descriptors.
  result<void> send(std::span<const std::byte> content, std::span<const int> descriptors,
                    timeout limit) const;
  /// Receives the next message. invalid_argument: it is empty, too long or has too many
  /// descriptors; limit_exceeded: this process cannot open more descriptors (RLIMIT_NOFILE). Such a
  /// message is dropped and its descriptors are closed; the next one can be received.
  [[nodiscard]] result<share_message> receive(timeout limit) const;

 private:
  explicit share_channel(descriptor end) noexcept : end_{std::move(end)} {}
  friend class share_listener;

  descriptor end_;
};

/// A path that other processes of the same user connect to. The file is removed with this object,
/// unless it was replaced by then. One thread at a time.
class WEIR_API share_listener {
 public:
  /// Creates the socket. invalid_argument: the path is empty, too long or contains a null
  /// character; not_permitted: a file of this name exists.
  [[nodiscard]] static result<share_listener> listen(std::string path);
  ~share_listener();
  share_listener(share_listener&& other) noexcept = default;
  share_listener& operator=(share_listener&& other) noexcept;

  /// Waits for a process that connects. not_ready: none connected in time; system: the process had
  /// no free descriptor during that time.
  [[nodiscard]] result<share_channel> accept(share_channel::timeout limit) const;
  /// The path as given to listen().
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
