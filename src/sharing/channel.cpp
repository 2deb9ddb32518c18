// SPDX-License-Identifier: Apache-2.0
// The socket under sharing: messages, descriptors, credentials, deadlines.
#include "weir/share/channel.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "base/file.hpp"
#include "base/host_memory.hpp"
#include "sharing/deadline.hpp"
#include "sharing/message.hpp"
#include "weir/share/ticket.hpp"

namespace weir { inline namespace v0 {
namespace {

using channel_clock = std::chrono::steady_clock;
using sharing::deadline_after;
using sharing::wait_for_events;

error system_error(const char* call) {
  return {{.code = errc::system, .detail = std::string{call} + ": " + std::strerror(errno)}};
}

error peer_closed() { return {{.code = errc::peer_closed}}; }
error deadline_passed() {
  return {
      {.code = errc::not_ready, .detail = "the deadline passed before the other process answered"}};
}

/// Has the kernel name the sender: without this, messages carry no credentials.
result<void> request_credentials(int socket) {
  const int enabled = 1;
  if (::setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &enabled, sizeof(enabled)) != 0) {
    return system_error("setsockopt");
  }
  return {};
}

result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.find('\0') != path.npos)
    return error{{.code = errc::invalid_argument, .detail = "the path contains a null character"}};
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return error{{.code = errc::invalid_argument,
                  .detail = "a path of " + std::to_string(path.size()) + " characters"}};
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

/// Whether the process or the system has no descriptor or memory left, which may pass.
bool is_shortage(int code) noexcept {
  return code == EMFILE || code == ENFILE || code == ENOBUFS || code == ENOMEM;
}

constexpr int socket_kind = SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK;
constexpr std::size_t descriptor_space = CMSG_SPACE(sizeof(int) * most_share_pieces);

}  // namespace

std::string to_string(const share_peer& peer) {
  return "process " + std::to_string(peer.process) + " of user " + std::to_string(peer.user);
}

result<std::pair<share_channel, share_channel>> share_channel::pair() try {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, socket_kind, 0, ends.data()) != 0) return system_error("socketpair");
  share_channel first{descriptor{ends[0]}};
  share_channel second{descriptor{ends[1]}};
  WEIR_TRY(request_credentials(first.get()));
  WEIR_TRY(request_credentials(second.get()));
  return std::pair{std::move(first), std::move(second)};
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<share_channel> share_channel::adopt(descriptor end) try {
  int domain = 0;
  int type = 0;
  socklen_t length = sizeof(int);
  if (::getsockopt(end.get(), SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0 || domain != AF_UNIX ||
      ::getsockopt(end.get(), SOL_SOCKET, SO_TYPE, &type, &length) != 0 || type != SOCK_SEQPACKET) {
    return error{{.code = errc::invalid_argument, .detail = "not a Unix socket for messages"}};
  }
  WEIR_TRY(request_credentials(end.get()));
  return share_channel{std::move(end)};
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<share_channel> share_channel::connect(const std::string& path, timeout limit) try {
  WEIR_TRY_VALUE(address, address_of(path));
  const auto deadline = deadline_after(limit);
  descriptor socket{::socket(AF_UNIX, socket_kind, 0)};
  if (!socket) return system_error("socket");
  WEIR_TRY(request_credentials(socket.get()));
  for (;;) {
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) ==
        0) {
      return share_channel{std::move(socket)};
    }
    if (errno == ENOENT || errno == ECONNREFUSED) {
      return error{{.code = errc::not_found, .detail = path}};
    }
    if (errno == EACCES || errno == EPERM) {
      return error{{.code = errc::not_permitted, .detail = path}};
    }
    if (errno != EAGAIN && errno != EINTR) return system_error("connect");
    // Full: a Unix socket that waits for a place in the backlog cannot be polled.
    if (channel_clock::now() >= deadline) return deadline_passed();
    ::usleep(1000);
  }
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<void> share_channel::send(std::span<const std::byte> content,
                                 std::span<const int> descriptors, timeout limit) const try {
  if (!end_) return errc::moved_from;
  if (content.empty() || content.size() > most_content || descriptors.size() > most_share_pieces) {
    return error{{.code = errc::invalid_argument, .detail = "the size of the message is invalid"}};
  }
  alignas(cmsghdr) std::array<char, descriptor_space> control{};
  iovec part{const_cast<std::byte*>(content.data()), content.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  const auto deadline = deadline_after(limit);
  for (;;) {
    if (::sendmsg(end_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return {};
    if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN) return peer_closed();
    if (errno == EINTR) continue;
    // ETOOMANYREFS: as many descriptors as the kernel allows are under way; that passes as they are
    // received, and like a lack of buffers it cannot be polled for.
    const bool is_transient = errno == ENOBUFS || errno == ETOOMANYREFS;
    if (errno != EAGAIN && !is_transient) return system_error("sendmsg");
    if (channel_clock::now() >= deadline) return deadline_passed();
    if (is_transient) {
      ::usleep(1000);
    } else {
      WEIR_TRY(wait_for_events(end_.get(), POLLOUT, deadline));
    }
  }
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<share_message> share_channel::receive(timeout limit) const try {
  if (!end_) return errc::moved_from;
  WEIR_TRY_VALUE(received, sharing::receive_until(end_.get(), deadline_after(limit)));
  if (received.refusal) return *std::move(received.refusal);
  return std::move(received.message);
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<share_listener> share_listener::listen(std::string path) try {
  WEIR_TRY_VALUE(address, address_of(path));
  descriptor socket{::socket(AF_UNIX, socket_kind, 0)};
  if (!socket) return system_error("socket");
  WEIR_TRY(request_credentials(socket.get()));  // accepted sockets inherit it
  // The mode of the socket becomes that of the file: the owner's alone, from the start.
  if (::fchmod(socket.get(), S_IRUSR | S_IWUSR) != 0) return system_error("fchmod");
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    if (errno == EADDRINUSE || errno == EACCES) {
      return error{{.code = errc::not_permitted, .detail = path + ": " + std::strerror(errno)}};
    }
    return system_error("bind");
  }
  std::string file = detail::absolute_path(path);
  share_listener listener{std::move(socket), std::move(path), std::move(file)};
  if (::listen(listener.socket_.get(), SOMAXCONN) != 0) return system_error("listen");
  return listener;
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

share_listener::share_listener(descriptor socket, std::string path, std::string file) noexcept
    : socket_{std::move(socket)},
      path_{std::move(path)},
      file_{std::move(file)},
      owner_{::getpid()} {
  const auto made = detail::identity_at(file_).value_or(detail::file_identity{});
  device_ = made.device;
  number_ = made.number;
}

share_listener::~share_listener() { remove(); }

void share_listener::remove() const noexcept {
  if (!socket_ || owner_ != ::getpid()) return;
  if (detail::identity_at(file_) == detail::file_identity{device_, number_})
    ::unlink(file_.c_str());
}

share_listener& share_listener::operator=(share_listener&& other) noexcept {
  if (this == &other) return *this;
  remove();
  socket_ = std::move(other.socket_);
  path_ = std::move(other.path_);
  file_ = std::move(other.file_);
  device_ = other.device_;
  number_ = other.number_;
  owner_ = other.owner_;
  return *this;
}

result<share_channel> share_listener::accept(share_channel::timeout limit) const try {
  if (!socket_) return errc::moved_from;
  const auto deadline = deadline_after(limit);
  for (;;) {
    descriptor accepted{::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
    if (accepted) {
      WEIR_TRY(request_credentials(accepted.get()));
      return share_channel{std::move(accepted)};
    }
    if (is_shortage(errno)) {
      // Whoever connected waits on: a descriptor may become free in time.
      if (channel_clock::now() >= deadline) return system_error("accept");
      ::usleep(1000);
      continue;
    }
    if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) return system_error("accept");
    WEIR_TRY(wait_for_events(socket_.get(), POLLIN, deadline));
  }
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

}}  // namespace weir::v0
