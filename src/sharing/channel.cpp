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
#include <optional>

#include "sharing/session.hpp"
#include "weir/share/ticket.hpp"

namespace weir::inline v0 {
namespace {

using channel_clock = std::chrono::steady_clock;
using sharing::wait_for;

error system_error(const char* call) {
  return {.code = errc::system, .detail = std::string{call} + ": " + std::strerror(errno)};
}

error peer_closed() { return {.code = errc::peer_closed}; }
error too_late() { return {.code = errc::not_ready, .detail = "the deadline has passed"}; }

/// The kernel is to say who writes: without this, messages carry no credentials.
result<void> ask_for_credentials(int socket) {
  const int on = 1;
  if (::setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0) {
    return system_error("setsockopt");
  }
  return {};
}

result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un where{};
  where.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(where.sun_path)) {
    return error{.code = errc::invalid_argument,
                 .detail = "a path of " + std::to_string(path.size()) + " characters"};
  }
  std::memcpy(where.sun_path, path.data(), path.size());
  return where;
}

constexpr int socket_kind = SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK;
constexpr std::size_t descriptor_space = CMSG_SPACE(sizeof(int) * most_share_pieces);
constexpr std::size_t credential_space = CMSG_SPACE(sizeof(ucred));

/// Takes over what came beside the bytes; nothing is left unclosed whatever it was.
void take_control(msghdr& message, share_message& into) {
  for (cmsghdr* each = CMSG_FIRSTHDR(&message); each != nullptr;
       each = CMSG_NXTHDR(&message, each)) {
    if (each->cmsg_level != SOL_SOCKET) continue;
    const std::size_t length = each->cmsg_len - CMSG_LEN(0);
    if (each->cmsg_type == SCM_RIGHTS) {
      std::array<int, most_share_pieces> numbers{};
      const std::size_t count = std::min(length / sizeof(int), numbers.size());
      std::memcpy(numbers.data(), CMSG_DATA(each), count * sizeof(int));
      for (std::size_t i = 0; i < count; ++i) into.descriptors.emplace_back(numbers[i]);
    }
    if (each->cmsg_type == SCM_CREDENTIALS && length >= sizeof(ucred)) {
      ucred who{};
      std::memcpy(&who, CMSG_DATA(each), sizeof(who));
      into.from = {who.pid, who.uid};
    }
  }
}

/// One message, or nothing if none is there yet.
result<std::optional<share_message>> receive_now(int socket) {
  share_message taken;
  taken.content.resize(share_channel::most_content + 1);
  taken.descriptors.reserve(most_share_pieces);  // so that taking them over cannot fail half-way
  alignas(cmsghdr) std::array<char, descriptor_space + credential_space> control{};
  iovec content{taken.content.data(), taken.content.size()};
  msghdr message{};
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t length = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (length < 0) {
    if (errno == EAGAIN || errno == EINTR) return std::optional<share_message>{};
    // The other side closed without having read everything. That is told first; what it had sent is
    // still to come.
    if (errno == ECONNRESET) return std::optional<share_message>{};
    return system_error("recvmsg");
  }
  take_control(message, taken);
  if (length == 0) return peer_closed();
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 ||
      static_cast<std::size_t>(length) > share_channel::most_content) {
    return error{.code = errc::invalid_argument, .detail = "a message that is too large"};
  }
  taken.content.resize(static_cast<std::size_t>(length));
  return std::optional{std::move(taken)};
}

}  // namespace

namespace sharing {

result<void> wait_for(int socket, short what, std::chrono::steady_clock::time_point until) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - channel_clock::now());
    pollfd one{.fd = socket, .events = what, .revents = 0};
    const auto limit = std::clamp<std::chrono::milliseconds::rep>(left.count(), 0, 1 << 30);
    const int found = ::poll(&one, 1, static_cast<int>(limit));
    if (found > 0) return {};
    if (found < 0 && errno != EINTR) return system_error("poll");
    if (found == 0) return too_late();
  }
}

}  // namespace sharing

result<std::pair<share_channel, share_channel>> share_channel::pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, socket_kind, 0, ends.data()) != 0) return system_error("socketpair");
  share_channel one{descriptor{ends[0]}};
  share_channel two{descriptor{ends[1]}};
  WEIR_TRY(ask_for_credentials(one.get()));
  WEIR_TRY(ask_for_credentials(two.get()));
  return std::pair{std::move(one), std::move(two)};
}

result<share_channel> share_channel::adopt(descriptor end) {
  int domain = 0;
  int type = 0;
  socklen_t length = sizeof(int);
  if (::getsockopt(end.get(), SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0 || domain != AF_UNIX ||
      ::getsockopt(end.get(), SOL_SOCKET, SO_TYPE, &type, &length) != 0 || type != SOCK_SEQPACKET) {
    return error{.code = errc::invalid_argument, .detail = "not a Unix socket for messages"};
  }
  WEIR_TRY(ask_for_credentials(end.get()));
  return share_channel{std::move(end)};
}

result<share_channel> share_channel::connect(const std::string& path, timeout limit) {
  WEIR_TRY_VALUE(where, address_of(path));
  const auto until = channel_clock::now() + limit;
  descriptor socket{::socket(AF_UNIX, socket_kind, 0)};
  if (!socket) return system_error("socket");
  WEIR_TRY(ask_for_credentials(socket.get()));
  for (;;) {
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&where), sizeof(where)) == 0) {
      return share_channel{std::move(socket)};
    }
    if (errno == ENOENT || errno == ECONNREFUSED) {
      return error{.code = errc::not_found, .detail = path};
    }
    if (errno == EACCES || errno == EPERM) {
      return error{.code = errc::not_permitted, .detail = path};
    }
    if (errno != EAGAIN && errno != EINTR) return system_error("connect");
    // Full: a Unix socket that waits for a place in the line cannot be polled.
    if (channel_clock::now() >= until) return too_late();
    ::usleep(1000);
  }
}

result<void> share_channel::send(std::span<const std::byte> content,
                                 std::span<const int> descriptors, timeout limit) const {
  if (!end_) return errc::already_freed;
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
  const auto until = channel_clock::now() + limit;
  for (;;) {
    if (::sendmsg(end_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return {};
    if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN) return peer_closed();
    if (errno == EINTR) continue;
    // ETOOMANYREFS: as many descriptors as may be are under way; that passes as they are received,
    // and like a lack of buffers it cannot be polled for.
    const bool passes = errno == ENOBUFS || errno == ETOOMANYREFS;
    if (errno != EAGAIN && !passes) return system_error("sendmsg");
    if (channel_clock::now() >= until) return too_late();
    if (passes) {
      ::usleep(1000);
    } else {
      WEIR_TRY(wait_for(end_.get(), POLLOUT, until));
    }
  }
}

result<share_message> share_channel::receive(timeout limit) const {
  if (!end_) return errc::already_freed;
  const auto until = channel_clock::now() + limit;
  for (;;) {
    WEIR_TRY_VALUE(taken, receive_now(end_.get()));
    if (taken) return *std::move(taken);
    WEIR_TRY(wait_for(end_.get(), POLLIN, until));
  }
}

result<share_listener> share_listener::listen(std::string path) {
  WEIR_TRY_VALUE(where, address_of(path));
  descriptor socket{::socket(AF_UNIX, socket_kind, 0)};
  if (!socket) return system_error("socket");
  WEIR_TRY(ask_for_credentials(socket.get()));  // what is accepted inherits it
  // The mode of the socket becomes that of the file: nobody else's, from the start.
  if (::fchmod(socket.get(), S_IRUSR | S_IWUSR) != 0) return system_error("fchmod");
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&where), sizeof(where)) != 0) {
    if (errno == EADDRINUSE || errno == EACCES) {
      return error{.code = errc::not_permitted, .detail = path + ": " + std::strerror(errno)};
    }
    return system_error("bind");
  }
  share_listener made{std::move(socket), std::move(path)};
  if (::listen(made.socket_.get(), SOMAXCONN) != 0) return system_error("listen");
  return made;
}

share_listener::~share_listener() {
  if (socket_) ::unlink(path_.c_str());
}

share_listener& share_listener::operator=(share_listener&& other) noexcept {
  if (this == &other) return *this;
  if (socket_) ::unlink(path_.c_str());
  socket_ = std::move(other.socket_);
  path_ = std::move(other.path_);
  return *this;
}

result<share_channel> share_listener::accept(share_channel::timeout limit) const {
  if (!socket_) return errc::already_freed;
  const auto until = channel_clock::now() + limit;
  for (;;) {
    descriptor taken{::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
    if (taken) {
      WEIR_TRY(ask_for_credentials(taken.get()));
      return share_channel{std::move(taken)};
    }
    if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) return system_error("accept");
    WEIR_TRY(wait_for(socket_.get(), POLLIN, until));
  }
}

}  // namespace weir::inline v0
