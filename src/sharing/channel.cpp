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
#include <exception>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "sharing/session.hpp"
#include "weir/share/ticket.hpp"

namespace weir { inline namespace v0 {
namespace {

using channel_clock = std::chrono::steady_clock;
using sharing::wait_for_events;

error system_error(const char* call) {
  return {.code = errc::system, .detail = std::string{call} + ": " + std::strerror(errno)};
}

error peer_closed() { return {.code = errc::peer_closed}; }
error deadline_passed() { return {.code = errc::not_ready, .detail = "the deadline has passed"}; }

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
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return error{.code = errc::invalid_argument,
                 .detail = "a path of " + std::to_string(path.size()) + " characters"};
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

constexpr int socket_kind = SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK;
constexpr std::size_t descriptor_space = CMSG_SPACE(sizeof(int) * most_share_pieces);
constexpr std::size_t credential_space = CMSG_SPACE(sizeof(ucred));

/// Moves descriptors and credentials of the message to `target`; no descriptor stays unowned.
void take_control(msghdr& message, share_message& target) {
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET) continue;
    const std::size_t length = header->cmsg_len - CMSG_LEN(0);
    if (header->cmsg_type == SCM_RIGHTS) {
      std::array<int, most_share_pieces> numbers{};
      const std::size_t count = std::min(length / sizeof(int), numbers.size());
      std::memcpy(numbers.data(), CMSG_DATA(header), count * sizeof(int));
      for (std::size_t i = 0; i < count; ++i) target.descriptors.emplace_back(numbers[i]);
    }
    if (header->cmsg_type == SCM_CREDENTIALS && length >= sizeof(ucred)) {
      ucred sender{};
      std::memcpy(&sender, CMSG_DATA(header), sizeof(sender));
      target.from = {sender.pid, sender.uid};
    }
  }
}

/// One message, or nothing if none is there yet.
result<std::optional<share_message>> receive_now(int socket) {
  share_message received;
  received.content.resize(share_channel::most_content + 1);
  received.descriptors.reserve(most_share_pieces);  // so that taking them over cannot fail half-way
  alignas(cmsghdr) std::array<char, descriptor_space + credential_space> control{};
  iovec content{received.content.data(), received.content.size()};
  msghdr message{};
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t length = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (length < 0) {
    if (errno == EAGAIN || errno == EINTR) return std::optional<share_message>{};
    // The other side closed without having read everything. The kernel says that first; its
    // messages are still to come.
    if (errno == ECONNRESET) return std::optional<share_message>{};
    return system_error("recvmsg");
  }
  take_control(message, received);
  if (length == 0) return peer_closed();
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 ||
      static_cast<std::size_t>(length) > share_channel::most_content) {
    sharing::close_received(std::move(received.descriptors));
    return error{.code = errc::invalid_argument, .detail = "a message that is too large"};
  }
  received.content.resize(static_cast<std::size_t>(length));
  return std::optional{std::move(received)};
}

}  // namespace

namespace sharing {

bool may_close_slowly(const descriptor& each) noexcept {
  int domain = 0;
  socklen_t length = sizeof(domain);
  return ::getsockopt(each.get(), SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 &&
         domain != AF_UNIX;
}

void close_received(std::vector<descriptor> unwanted) noexcept {
  bool is_slow = false;
  for (const descriptor& each : unwanted) {
    if (!may_close_slowly(each)) continue;
    const linger none{.l_onoff = 0, .l_linger = 0};
    static_cast<void>(::setsockopt(each.get(), SOL_SOCKET, SO_LINGER, &none, sizeof(none)));
    is_slow = true;
  }
  if (!is_slow) return;
  try {
    std::thread{[closed = std::move(unwanted)] {}}.detach();
  } catch (const std::exception&) {
    // Without a thread they are closed here; their sender had no time to set the option again.
  }
}

result<void> wait_for_events(int socket, short events,
                             std::chrono::steady_clock::time_point deadline, int bell) {
  for (;;) {
    const auto remaining =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - channel_clock::now());
    // A negative number is passed over.
    std::array<pollfd, 2> polled{{{.fd = socket, .events = events, .revents = 0},
                                  {.fd = bell, .events = POLLIN, .revents = 0}}};
    const auto limit = std::clamp<std::chrono::milliseconds::rep>(remaining.count(), 0, 1 << 30);
    const int ready = ::poll(polled.data(), polled.size(), static_cast<int>(limit));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return system_error("poll");
    if (ready == 0) return deadline_passed();
  }
}

}  // namespace sharing

std::string to_string(const share_peer& peer) {
  return "process " + std::to_string(peer.process) + " of user " + std::to_string(peer.user);
}

result<std::pair<share_channel, share_channel>> share_channel::pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, socket_kind, 0, ends.data()) != 0) return system_error("socketpair");
  share_channel first{descriptor{ends[0]}};
  share_channel second{descriptor{ends[1]}};
  WEIR_TRY(request_credentials(first.get()));
  WEIR_TRY(request_credentials(second.get()));
  return std::pair{std::move(first), std::move(second)};
}

result<share_channel> share_channel::adopt(descriptor end) {
  int domain = 0;
  int type = 0;
  socklen_t length = sizeof(int);
  if (::getsockopt(end.get(), SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0 || domain != AF_UNIX ||
      ::getsockopt(end.get(), SOL_SOCKET, SO_TYPE, &type, &length) != 0 || type != SOCK_SEQPACKET) {
    return error{.code = errc::invalid_argument, .detail = "not a Unix socket for messages"};
  }
  WEIR_TRY(request_credentials(end.get()));
  return share_channel{std::move(end)};
}

result<share_channel> share_channel::connect(const std::string& path, timeout limit) {
  WEIR_TRY_VALUE(address, address_of(path));
  const auto deadline = channel_clock::now() + limit;
  descriptor socket{::socket(AF_UNIX, socket_kind, 0)};
  if (!socket) return system_error("socket");
  WEIR_TRY(request_credentials(socket.get()));
  for (;;) {
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) ==
        0) {
      return share_channel{std::move(socket)};
    }
    if (errno == ENOENT || errno == ECONNREFUSED) {
      return error{.code = errc::not_found, .detail = path};
    }
    if (errno == EACCES || errno == EPERM) {
      return error{.code = errc::not_permitted, .detail = path};
    }
    if (errno != EAGAIN && errno != EINTR) return system_error("connect");
    // Full: a Unix socket that waits for a place in the backlog cannot be polled.
    if (channel_clock::now() >= deadline) return deadline_passed();
    ::usleep(1000);
  }
}

result<void> share_channel::send(std::span<const std::byte> content,
                                 std::span<const int> descriptors, timeout limit) const {
  if (!end_) return errc::moved_from;
  if (content.empty() || content.size() > most_content || descriptors.size() > most_share_pieces) {
    return error{.code = errc::invalid_argument, .detail = "the size of a message"};
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
  const auto deadline = channel_clock::now() + limit;
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
}

result<share_message> share_channel::receive(timeout limit) const {
  if (!end_) return errc::moved_from;
  const auto deadline = channel_clock::now() + limit;
  for (;;) {
    WEIR_TRY_VALUE(message, receive_now(end_.get()));
    if (message) return *std::move(message);
    WEIR_TRY(wait_for_events(end_.get(), POLLIN, deadline));
  }
}

result<share_listener> share_listener::listen(std::string path) {
  WEIR_TRY_VALUE(address, address_of(path));
  descriptor socket{::socket(AF_UNIX, socket_kind, 0)};
  if (!socket) return system_error("socket");
  WEIR_TRY(request_credentials(socket.get()));  // accepted sockets inherit it
  // The mode of the socket becomes that of the file: the owner's alone, from the start.
  if (::fchmod(socket.get(), S_IRUSR | S_IWUSR) != 0) return system_error("fchmod");
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    if (errno == EADDRINUSE || errno == EACCES) {
      return error{.code = errc::not_permitted, .detail = path + ": " + std::strerror(errno)};
    }
    return system_error("bind");
  }
  share_listener listener{std::move(socket), std::move(path)};
  if (::listen(listener.socket_.get(), SOMAXCONN) != 0) return system_error("listen");
  return listener;
}

share_listener::share_listener(descriptor socket, std::string path) noexcept
    : socket_{std::move(socket)}, path_{std::move(path)}, owner_{::getpid()} {}

share_listener::~share_listener() { remove(); }

void share_listener::remove() const noexcept {
  if (socket_ && owner_ == ::getpid()) ::unlink(path_.c_str());
}

share_listener& share_listener::operator=(share_listener&& other) noexcept {
  if (this == &other) return *this;
  remove();
  socket_ = std::move(other.socket_);
  path_ = std::move(other.path_);
  owner_ = other.owner_;
  return *this;
}

result<share_channel> share_listener::accept(share_channel::timeout limit) const {
  if (!socket_) return errc::moved_from;
  const auto deadline = channel_clock::now() + limit;
  for (;;) {
    descriptor accepted{::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
    if (accepted) {
      WEIR_TRY(request_credentials(accepted.get()));
      return share_channel{std::move(accepted)};
    }
    if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) return system_error("accept");
    WEIR_TRY(wait_for_events(socket_.get(), POLLIN, deadline));
  }
}

}}  // namespace weir::v0
