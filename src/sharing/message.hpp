// SPDX-License-Identifier: Apache-2.0
// Single messages of a socket: reading them, waiting for them, and closing what came with them.
#pragma once

#include <array>
#include <chrono>
#include <optional>
#include <vector>

#include "weir/share/channel.hpp"

namespace weir { inline namespace v0 { namespace sharing {

/// A message as it came. Every descriptor of it has an owner.
struct socket_message {
  share_message message;
  descriptor sender{};             ///< a pidfd, after request_sender()
  std::optional<error> refusal{};  ///< why it must not be used; its descriptors are closed then
};

/// One message, or nothing if none is there yet. peer_closed: there will be none any more.
[[nodiscard]] result<std::optional<socket_message>> receive_now(int socket);
/// The next message. not_ready: none came in time.
[[nodiscard]] result<socket_message> receive_until(int socket,
                                                   std::chrono::steady_clock::time_point deadline);

/// Whether messages that are read from now on come with a pidfd of their sender, which names
/// processes of other PID namespaces, too. Needs Linux 6.5; without it they come as before.
void request_sender(int socket, bool enabled) noexcept;

/// Whether it is a socket, or a file or folder that is not in memory. To close one may take as long
/// as its sender likes: a socket of a network by SO_LINGER, a Unix socket by such a socket in its
/// queue, a file by a file system that the sender serves. Memory is none of these.
[[nodiscard]] bool may_close_slowly(const descriptor& each) noexcept;
/// Closes descriptors that another process sent. Where one of those is among them they are closed
/// on a thread of its own, so that no call with a deadline waits.
void close_received(std::vector<descriptor> unwanted) noexcept;

/// Waits until one of `events` (POLLIN, POLLOUT) is ready or the socket is closed, or until one of
/// `others` can be read; negative ones are passed over. not_ready: the deadline has passed.
[[nodiscard]] result<void> wait_for_events(int socket, short events,
                                           std::chrono::steady_clock::time_point deadline,
                                           std::array<int, 2> others = {-1, -1});

}}}  // namespace weir::v0::sharing
