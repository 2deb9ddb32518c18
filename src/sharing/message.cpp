// SPDX-License-Identifier: Apache-2.0
// Reading messages of a socket, with the descriptors and the sender that the kernel names.
#include "sharing/message.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <string>
#include <thread>
#include <utility>

#include "base/signals_blocked.hpp"
#include "weir/share/ticket.hpp"

namespace weir { inline namespace v0 { namespace sharing {
namespace {

// Of Linux 6.5, newer than the headers of some systems.
constexpr int pass_pidfd = 76;  // SO_PASSPIDFD
constexpr int sent_pidfd = 4;   // SCM_PIDFD

/// The most that the kernel sends with one message (SCM_MAX_FD). There is room for all of them:
/// what does not fit the kernel closes at once, and to close may take long.
constexpr std::size_t most_sent = 253;
constexpr std::size_t control_space =
    CMSG_SPACE(sizeof(int) * most_sent) + CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(sizeof(int));

error message_error(const char* call) {
  return {{.code = errc::system, .detail = std::string{call} + ": " + std::strerror(errno)}};
}

error no_descriptors_left() {
  rlimit most{};
  std::string limit = "its limit";
  if (::getrlimit(RLIMIT_NOFILE, &most) == 0) limit = std::to_string(most.rlim_cur);
  return {
      {.code = errc::limit_exceeded,
       .detail = "the message carries more descriptors than this process may open: it may have " +
                 limit +
                 " open (RLIMIT_NOFILE); close some or raise the limit (ulimit -n), then have the "
                 "message sent again"}};
}

/// Moves descriptors and credentials of the message to `target`; no descriptor stays unowned.
void take_control(msghdr& control, socket_message& target) {
  for (cmsghdr* header = CMSG_FIRSTHDR(&control); header != nullptr;
       header = CMSG_NXTHDR(&control, header)) {
    if (header->cmsg_level != SOL_SOCKET) continue;
    const std::size_t length = header->cmsg_len - CMSG_LEN(0);
    if (header->cmsg_type == SCM_RIGHTS) {
      std::array<int, most_sent> numbers{};
      const std::size_t count = std::min(length / sizeof(int), numbers.size());
      std::memcpy(numbers.data(), CMSG_DATA(header), count * sizeof(int));
      for (std::size_t i = 0; i < count; ++i) target.message.descriptors.emplace_back(numbers[i]);
    }
    if (header->cmsg_type == sent_pidfd && length >= sizeof(int)) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(header), sizeof(number));
      if (number >= 0) target.sender = descriptor{number};
    }
    if (header->cmsg_type == SCM_CREDENTIALS && length >= sizeof(ucred)) {
      ucred sender{};
      std::memcpy(&sender, CMSG_DATA(header), sizeof(sender));
      target.message.from = {sender.pid, sender.uid};
    }
  }
}

/// Why the message must not be used.
std::optional<error> refusal_of(const msghdr& control, std::size_t length,
                                std::size_t descriptors) {
  const auto refuse = [](const char* reason) {
    return error{{.code = errc::invalid_argument, .detail = reason}};
  };
  if (length == 0) return refuse("the message is empty");
  if ((control.msg_flags & MSG_TRUNC) != 0 || length > share_channel::most_content ||
      descriptors > most_share_pieces)
    return refuse("the message is too large");
  if ((control.msg_flags & MSG_CTRUNC) != 0) return no_descriptors_left();
  return std::nullopt;
}

}  // namespace

result<std::optional<socket_message>> receive_now(int socket) {
  socket_message received;
  share_message& message = received.message;
  message.content.resize(share_channel::most_content + 1);
  message.descriptors.reserve(most_sent);  // so that taking them over cannot fail half-way
  alignas(cmsghdr) std::array<char, control_space> space{};
  iovec content{message.content.data(), message.content.size()};
  msghdr control{};
  ssize_t length = -1;
  do {
    control = {};
    control.msg_iov = &content;
    control.msg_iovlen = 1;
    control.msg_control = space.data();
    control.msg_controllen = space.size();
    length = ::recvmsg(socket, &control, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    // ECONNRESET: the other side closed without having read everything. The kernel says that once;
    // its messages are still to come.
  } while (length < 0 && (errno == EINTR || errno == ECONNRESET));
  if (length < 0) {
    if (errno == EAGAIN) return std::optional<socket_message>{};
    return message_error("recvmsg");
  }
  take_control(control, received);
  // The end comes with nothing; an empty message names its sender.
  if (length == 0 && control.msg_controllen == 0) return error{{.code = errc::peer_closed}};
  message.content.resize(static_cast<std::size_t>(length));
  try {
    received.refusal =
        refusal_of(control, static_cast<std::size_t>(length), message.descriptors.size());
  } catch (const std::bad_alloc&) {
    received.refusal = error{{.code = errc::no_host_memory}};
  }
  if (received.refusal) {
    close_received(std::move(message.descriptors));
    message.descriptors.clear();
  }
  return std::optional{std::move(received)};
}

result<socket_message> receive_until(int socket, std::chrono::steady_clock::time_point deadline) {
  for (;;) {
    WEIR_TRY_VALUE(received, receive_now(socket));
    if (received) return *std::move(received);
    WEIR_TRY(wait_for_events(socket, POLLIN, deadline));
  }
}

void request_sender(int socket, bool enabled) noexcept {
  const int number = enabled ? 1 : 0;
  static_cast<void>(::setsockopt(socket, SOL_SOCKET, pass_pidfd, &number, sizeof(number)));
}

namespace {

bool is_socket(const descriptor& each) noexcept {
  int domain = 0;
  socklen_t length = sizeof(domain);
  return ::getsockopt(each.get(), SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0;
}

}  // namespace

bool may_close_slowly(const descriptor& each) noexcept {
  // As it is known here: to ask the file system may take as long.
  struct statx known {};
  if (::statx(each.get(), "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &known) != 0)
    return is_socket(each);
  switch (known.stx_mode & S_IFMT) {
    case S_IFREG:
      return ::fcntl(each.get(), F_GET_SEALS) < 0;  // only files in memory have seals
    case S_IFDIR:
      return true;
    default:
      return is_socket(each);
  }
}

void close_received(std::vector<descriptor> unwanted) noexcept {
  bool is_slow = false;
  for (const descriptor& each : unwanted) {
    if (!may_close_slowly(each)) continue;
    is_slow = true;
    const linger none{.l_onoff = 0, .l_linger = 0};
    static_cast<void>(::setsockopt(each.get(), SOL_SOCKET, SO_LINGER, &none, sizeof(none)));
  }
  if (!is_slow) return;
  try {
    const detail::signals_blocked quiet;
    std::thread{[closed = std::move(unwanted)] {}}.detach();
  } catch (const std::exception&) {
    // Without a thread they are closed here; their sender had no time to set the option again.
  }
}

result<void> wait_for_events(int socket, short events,
                             std::chrono::steady_clock::time_point deadline,
                             std::array<int, 2> others) {
  using std::chrono::milliseconds;
  for (;;) {
    const auto remaining =
        std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now());
    std::array<pollfd, 3> polled{{{.fd = socket, .events = events, .revents = 0},
                                  {.fd = others[0], .events = POLLIN, .revents = 0},
                                  {.fd = others[1], .events = POLLIN, .revents = 0}}};
    // poll() counts in int; what is longer is waited for in parts.
    constexpr milliseconds::rep longest = 1 << 30;
    const auto limit = std::clamp<milliseconds::rep>(remaining.count(), 0, longest);
    const int ready = ::poll(polled.data(), polled.size(), static_cast<int>(limit));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return message_error("poll");
    if (ready == 0 && std::chrono::steady_clock::now() >= deadline)
      return error{{.code = errc::not_ready,
                    .detail = "the deadline passed before the other process answered"}};
  }
}

}}}  // namespace weir::v0::sharing
