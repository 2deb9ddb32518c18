// A connection: the greeting, the messages of either side, and the outstanding grants.
#include "sharing/session.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "base/host_memory.hpp"

namespace weir { inline namespace v0 { namespace sharing {
namespace {

using std::chrono::milliseconds;

// The most that the other side can make this process keep. Beyond it, its messages stay with the
// kernel, which bounds them, too.
constexpr std::size_t most_queued = 64;
constexpr std::size_t most_queued_descriptors = 2 * std::size_t{most_share_pieces};

/// How long a process whose socket is closed already may take to exit.
constexpr milliseconds exit_grace{200};

error peer_closed() { return {.code = errc::peer_closed}; }
error not_permitted(const char* reason) { return {.code = errc::not_permitted, .detail = reason}; }
error bad_message(const char* reason) { return {.code = errc::invalid_argument, .detail = reason}; }

}  // namespace

std::uint64_t own_number() {
  static const std::uint64_t drawn = [] {
    std::uint64_t number = 0;
    if (::getrandom(&number, sizeof(number), 0) != static_cast<ssize_t>(sizeof(number))) {
      number =
          static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
    }
    return number;
  }();
  // Multiplying by an odd number is one to one, so that no two processes of one ancestor collide.
  return (drawn ^ static_cast<std::uint64_t>(::getpid()) * 0x9e37'79b9'7f4a'7c15) | 1;
}

std::uint64_t next_number() noexcept {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

pid_t session::own_process() noexcept { return ::getpid(); }

grant::~grant() { origin_->release(*this); }

result<void> grant::check() const { return origin_->check(*this); }

// --- Beginning and end ---------------------------------------------------------------------------

result<std::shared_ptr<session>> session::open(std::shared_ptr<runtime> machine,
                                               share_channel channel, share_link_options settings) {
  if (machine == nullptr || !channel) return errc::invalid_argument;
  auto opened = std::make_shared<session>(std::move(machine), std::move(channel), settings);
  WEIR_TRY(opened->greet());
  return opened;
}

result<void> session::greet() {
  const auto deadline = clock::now() + settings_.limit;
  WEIR_TRY(channel_.send(encode_number(packet_kind::hello, own_number()), {}, settings_.limit));
  const auto remaining = std::chrono::ceil<milliseconds>(deadline - clock::now());
  WEIR_TRY_VALUE(answer, channel_.receive(std::max(remaining, milliseconds{0})));
  if (!settings_.other_users && answer.from.user != ::geteuid()) {
    return not_permitted("a process of another user");
  }
  WEIR_TRY_VALUE(greeting, decode_packet(answer.content));
  if (greeting.kind != packet_kind::hello || !answer.descriptors.empty()) {
    return bad_message("the other side did not greet");
  }
  peer_ = answer.from;
  peer_number_ = greeting.number;
  if (peer_.process > 0) {
    peer_process_ = descriptor{static_cast<int>(::syscall(SYS_pidfd_open, peer_.process, 0U))};
  }
  return {};
}

/// False where the kernel cannot tell.
bool session::has_peer_exited(timeout limit) const noexcept {
  if (!peer_process_) return false;
  pollfd polled{.fd = peer_process_.get(), .events = POLLIN, .revents = 0};
  return ::poll(&polled, 1, static_cast<int>(limit.count())) > 0;
}

session::~session() {
  if (owner_ != ::getpid()) return;
  try {
    receive_pending();
    // Offers that were never received.
    for (const queued_message& message : queue_) {
      if (!message.ticket) continue;
      unsent_.push_back(encode_number(packet_kind::closed, message.ticket->grant));
    }
    static_cast<void>(flush());
  } catch (const std::bad_alloc&) {
    // The other side learns of the end from the socket.
  }
  if (outgoing_grants_.empty() || has_peer_exited(peer_closed_ ? exit_grace : milliseconds{0}))
    return;
  for (const auto& [number, memory] : outgoing_grants_) {
    if (memory != nullptr) memory->exposed.store(true, std::memory_order_relaxed);
  }
}

// --- Waiting -------------------------------------------------------------------------------------

result<void> session::listen(listener& call) {
  if (call.bell_) return {};
  call.bell_ = descriptor{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (!call.bell_) {
    return error{.code = errc::system, .detail = std::string{"eventfd: "} + std::strerror(errno)};
  }
  bells_.push_back(call.bell_.get());
  return {};
}

result<void> session::wait(const listener& call, clock::time_point deadline) const {
  // Messages that are not what the caller waits for must not keep it beyond its time.
  if (clock::now() >= deadline)
    return error{.code = errc::not_ready, .detail = "the deadline has passed"};
  WEIR_TRY(wait_for_events(channel_.get(), POLLIN, deadline, call.bell_.get()));
  eventfd_t rings = 0;
  static_cast<void>(::eventfd_read(call.bell_.get(), &rings));  // it may not have rung
  return {};
}

void session::forget(const listener& call) noexcept {
  if (!call.bell_) return;
  const detail::mutex_lock lock{mutex_};
  std::erase(bells_, call.bell_.get());
}

// --- Receiving ----------------------------------------------------------------------------------

bool session::has_room() const noexcept {
  return queue_.size() < most_queued && queued_descriptors_ < most_queued_descriptors;
}

/// Reads the messages that have come, without waiting.
void session::receive_pending() {
  bool has_news = false;
  while (!peer_closed_ && has_room()) {
    auto message = channel_.receive(milliseconds{0});
    has_news |= message || message.code() != errc::not_ready;
    if (message) {
      handle(*message);
    } else if (message.code() == errc::not_ready) {
      break;
    } else if (message.code() == errc::peer_closed || message.code() == errc::system) {
      peer_closed_ = true;
    } else {
      queue_.push_back({.failure = std::move(message).error()});
    }
  }
  if (peer_closed_ && !outgoing_grants_.empty() && has_peer_exited(milliseconds{0}))
    while (!outgoing_grants_.empty()) end_grant(outgoing_grants_.begin()->first);
  if (!has_news) return;
  for (const int bell : bells_) static_cast<void>(::eventfd_write(bell, 1));
}

void session::end_grant(std::uint64_t number) {
  const auto ending = outgoing_grants_.find(number);
  if (ending == outgoing_grants_.end()) return;
  ended_.push_back(std::move(ending->second));
  outgoing_grants_.erase(ending);
}

void session::handle(share_message& message) {
  const auto refuse = [this](error reason) WEIR_REQUIRES(mutex_) {
    queue_.push_back({.failure = std::move(reason)});
  };
  if (std::any_of(message.descriptors.begin(), message.descriptors.end(), may_close_slowly)) {
    close_received(std::move(message.descriptors));
    return refuse(bad_message("a socket, where descriptors of memory belong"));
  }
  if (message.from != peer_) return refuse(not_permitted("a message of another process"));
  auto decoded = decode_packet(message.content);
  if (!decoded) return refuse(std::move(decoded).error());
  if (decoded->kind == packet_kind::offer) {
    auto offer = handle_offer(decoded->ticket, message);
    if (!offer) return refuse(std::move(offer).error());
    queued_descriptors_ += offer->descriptors.size();
    queue_.push_back(*std::move(offer));
    return;
  }
  if (!message.descriptors.empty()) return refuse(bad_message("descriptors where none belong"));
  switch (decoded->kind) {
    case packet_kind::note:
      if (decoded->note.size() > share_link::most_note)
        return refuse(bad_message("a note too long"));
      queue_.push_back({.note = {decoded->note.begin(), decoded->note.end()}});
      return;
    case packet_kind::revoke:
      return handle_revocation(decoded->number);
    case packet_kind::closed:
      return end_grant(decoded->number);
    case packet_kind::hello:
    case packet_kind::offer:
      break;
  }
  refuse(bad_message("a second greeting"));
}

result<session::queued_message> session::handle_offer(const share_ticket& ticket,
                                                      share_message& message) {
  if (ticket.exporter != peer_number_) return not_permitted("a ticket of another process");
  // Grants count up: one that does not was seen before.
  if (ticket.grant <= last_incoming_grant_) return not_permitted("a ticket that came before");
  last_incoming_grant_ = ticket.grant;
  if (message.descriptors.size() != ticket.pieces) {
    return bad_message("the ticket speaks of another number of descriptors");
  }
  return queued_message{.ticket = ticket, .descriptors = std::move(message.descriptors)};
}

void session::handle_revocation(std::uint64_t number) {
  if (const auto open = incoming_grants_.find(number); open != incoming_grants_.end()) {
    open->second = true;
    return;
  }
  const auto waiting = std::find_if(queue_.begin(), queue_.end(), [&](const queued_message& each) {
    return each.ticket && each.ticket->grant == number;
  });
  if (waiting == queue_.end()) return;  // released, and the message is on its way
  queued_descriptors_ -= waiting->descriptors.size();
  queue_.erase(waiting);
  unsent_.push_back(encode_number(packet_kind::closed, number));
  static_cast<void>(flush());
}

result<std::unique_ptr<incoming>> session::receive(timeout limit) {
  if (owner_ != ::getpid()) return detail::fork_error();
  const auto deadline = clock::now() + limit;
  listener self{*this};
  for (;;) {
    {
      const session_lock lock{*this};
      static_cast<void>(flush());
      receive_pending();
      if (!queue_.empty()) {
        queued_message next = std::move(queue_.front());
        queue_.pop_front();
        queued_descriptors_ -= next.descriptors.size();
        if (next.failure) return *std::move(next.failure);
        auto message =
            std::make_unique<incoming>(incoming{.ticket = next.ticket,
                                                .note = std::move(next.note),
                                                .descriptors = std::move(next.descriptors),
                                                .grant = nullptr});
        if (message->ticket) {
          incoming_grants_.emplace(message->ticket->grant, false);
          message->grant = std::make_shared<grant>(shared_from_this(), message->ticket->grant);
        }
        return message;
      }
      if (peer_closed_) return peer_closed();
      if (limit > timeout{0}) WEIR_TRY(listen(self));
    }
    WEIR_TRY(wait(self, deadline));
  }
}

result<void> session::check() {
  if (owner_ != ::getpid()) return detail::fork_error();
  const session_lock lock{*this};
  static_cast<void>(flush());
  receive_pending();
  if (peer_closed_) return peer_closed();
  return {};
}

result<void> session::check(const grant& used) {
  if (owner_ != ::getpid()) return detail::fork_error();
  const session_lock lock{*this};
  static_cast<void>(flush());
  receive_pending();
  if (incoming_grants_.at(used.number())) return not_permitted("the other process revoked it");
  if (peer_closed_) return peer_closed();
  return {};
}

void session::release(const grant& released) noexcept {
  if (owner_ != ::getpid()) return;
  const session_lock lock{*this};
  incoming_grants_.erase(released.number());
  try {
    unsent_.push_back(encode_number(packet_kind::closed, released.number()));
    static_cast<void>(flush());
  } catch (const std::bad_alloc&) {
    report_error(detail::no_host_memory());
  }
}

// --- Sending ------------------------------------------------------------------------------------

/// Sends the messages that had no room before; whether all were sent.
bool session::flush() {
  while (!unsent_.empty()) {
    const auto sent = channel_.send(unsent_.front(), {}, milliseconds{0});
    if (!sent && sent.code() == errc::not_ready) return false;
    unsent_.pop_front();  // sent, or there is nobody to receive it
  }
  return true;
}

result<void> session::send(std::span<const std::byte> content, std::span<const int> descriptors,
                           timeout limit) {
  if (owner_ != ::getpid()) return detail::fork_error();
  const auto deadline = clock::now() + limit;
  for (;;) {
    short events = POLLOUT;
    {
      const session_lock lock{*this};
      receive_pending();  // two sides that only send would wait for each other
      if (peer_closed_) return peer_closed();
      if (flush()) {
        auto sent = channel_.send(content, descriptors, milliseconds{0});
        if (sent || sent.code() != errc::not_ready) return sent;
      }
      if (has_room()) events = POLLIN | POLLOUT;
    }
    WEIR_TRY(wait_for_events(channel_.get(), events, deadline));
    if (clock::now() >= deadline) return errc::not_ready;
    // Room for a message and room for its descriptors are two things; only one can be polled for.
    std::this_thread::sleep_for(std::chrono::microseconds{200});
  }
}

result<share_grant> session::send_offer(share_ticket ticket, weir::device home,
                                        std::span<const int> descriptors,
                                        std::shared_ptr<exported> memory, bool tracked) {
  if (owner_ != ::getpid()) return detail::fork_error();
  if (!home.uuid()) {
    return error{.code = errc::not_supported, .detail = "the device has no UUID"};
  }
  ticket.device = *home.uuid();
  ticket.exporter = own_number();
  const detail::mutex_lock one_at_a_time{send_mutex_};
  ticket.grant = next_number();
  WEIR_TRY(decode_share_ticket(encode(ticket)));  // nothing leaves that would be refused
  if (tracked) {
    const session_lock lock{*this};
    outgoing_grants_.emplace(ticket.grant, std::move(memory));
  }
  auto sent = send(encode_offer(ticket), descriptors, settings_.limit);
  if (!sent) {
    const session_lock lock{*this};
    end_grant(ticket.grant);
    return std::move(sent).error();
  }
  return share_grant{ticket.grant};
}

result<void> session::revoke(std::uint64_t number, timeout limit) {
  if (owner_ != ::getpid()) return detail::fork_error();
  const auto deadline = clock::now() + limit;
  {
    const session_lock lock{*this};
    receive_pending();
    if (outgoing_grants_.count(number) == 0) return errc::not_found;
  }
  auto sent = send(encode_number(packet_kind::revoke, number), {}, limit);
  if (!sent && sent.code() != errc::peer_closed) return sent;
  listener self{*this};
  for (;;) {
    {
      const session_lock lock{*this};
      receive_pending();
      if (outgoing_grants_.count(number) == 0) return {};
      if (peer_closed_) {
        if (!has_peer_exited(exit_grace)) return peer_closed();
        end_grant(number);
        return {};
      }
      if (!has_room()) return error{.code = errc::not_ready, .detail = "unread messages"};
      if (limit > timeout{0}) WEIR_TRY(listen(self));
    }
    WEIR_TRY(wait(self, deadline));
  }
}

std::size_t session::outstanding() {
  if (owner_ != ::getpid()) return 0;  // the grants are the parent's
  const session_lock lock{*this};
  receive_pending();
  return outgoing_grants_.size();
}

}}}  // namespace weir::v0::sharing
