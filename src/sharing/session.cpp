// SPDX-License-Identifier: Apache-2.0
// A connection: the greeting, the messages of either side, and the outstanding grants.
#include "sharing/session.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "base/host_memory.hpp"
#include "sharing/deadline.hpp"

namespace weir { inline namespace v0 { namespace sharing {
namespace {

using std::chrono::milliseconds;

// The most that the other side can make this process keep. Beyond it, its messages stay with the
// kernel, which bounds them, too.
constexpr std::size_t most_queued = 64;
constexpr std::size_t most_unsent = 1024;  // of answers that the other side does not read
constexpr std::size_t most_queued_descriptors = 2 * std::size_t{most_share_pieces};

/// How long a process whose socket is closed already may take to exit.
constexpr milliseconds exit_grace{200};

error peer_closed() { return {{.code = errc::peer_closed}}; }
error not_permitted(const char* reason) {
  return {{.code = errc::not_permitted, .detail = reason}};
}
error bad_message(const char* reason) {
  return {{.code = errc::invalid_argument, .detail = reason}};
}

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

grant::grant(std::shared_ptr<session> origin, std::uint64_t number)
    : origin_{std::move(origin)},
      number_{number},
      closed_message_{encode_number(packet_kind::closed, number)} {}

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
  const auto deadline = deadline_after(settings_.limit);
  WEIR_TRY(channel_.send(encode_number(packet_kind::hello, own_number()), {}, settings_.limit));
  request_sender(channel_.get(), true);
  auto received = receive_until(channel_.get(), deadline);
  request_sender(channel_.get(), false);
  if (!received) return std::move(received).error();
  if (received->refusal) return *std::move(received->refusal);
  share_message& answer = received->message;
  const bool has_descriptors = !answer.descriptors.empty();
  close_received(std::move(answer.descriptors));
  if (!settings_.other_users && answer.from.user != ::geteuid()) {
    return not_permitted("the other process belongs to another user");
  }
  WEIR_TRY_VALUE(greeting, decode_packet(answer.content));
  if (greeting.kind != packet_kind::hello || has_descriptors) {
    return bad_message("the other process sent no greeting");
  }
  peer_ = answer.from;
  peer_number_ = greeting.number;
  peer_process_ = peer_process{std::move(received->sender), peer_.process};
  return {};
}

/// Reads what has come and nobody will receive: to close the socket would close descriptors in it,
/// which may take as long as their sender likes.
void session::drain() {
  ::shutdown(channel_.get(), SHUT_RD);  // from here on there are no more
  for (;;) {
    auto left = receive_now(channel_.get());
    if (!left || !*left) return;
    share_message& message = (*left)->message;
    close_received(std::move(message.descriptors));
    if (message.from != peer_) continue;
    const auto decoded = decode_packet(message.content);
    if (decoded && decoded->kind == packet_kind::offer) release_refused(decoded->ticket);
    if (decoded && decoded->kind == packet_kind::closed) end_grant(decoded->number);
  }
}

session::~session() {
  if (owner_ != ::getpid()) return;
  const session_lock lock{*this};
  try {
    receive_pending();
    // Offers that were never received.
    for (const queued_message& message : queue_)
      if (message.ticket)
        unsent_.push_back(encode_number(packet_kind::closed, message.ticket->grant));
    drain();
    static_cast<void>(flush());
  } catch (const std::bad_alloc&) {
    // The other side learns of the end from the socket.
  }
  if (outgoing_grants_.empty() ||
      peer_process_.has_exited(peer_closed_ ? exit_grace : milliseconds{0}))
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
    return error{{.code = errc::system, .detail = std::string{"eventfd: "} + std::strerror(errno)}};
  }
  bells_.push_back(call.bell_.get());
  return {};
}

result<void> session::wait(const listener& call, clock::time_point deadline) const {
  // Messages that are not what the caller waits for must not keep it beyond its time.
  if (clock::now() >= deadline)
    return error{{.code = errc::not_ready,
                  .detail = "the deadline passed before the other process answered"}};
  WEIR_TRY(
      wait_for_events(channel_.get(), POLLIN, deadline, {call.bell_.get(), peer_process_.get()}));
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
  // Before the socket is read: what the other process sent it sent before its end. Others may hold
  // its socket open, those that it has forked, say.
  if (!peer_exited_ && peer_process_.has_exited(milliseconds{0})) peer_exited_ = has_news = true;
  while (!peer_closed_ && has_room()) {
    // Before the message is read, so that it is not lost where the host has no memory.
    std::list<queued_message> place(1);
    auto received = receive_now(channel_.get());
    if (received && !*received && !peer_exited_) break;
    has_news = true;
    if (!received || !*received) {
      peer_closed_ = true;
      break;
    }
    std::optional<queued_message> outcome;
    try {
      outcome = handle(**received);
    } catch (const std::bad_alloc&) {
      outcome = queued_message{.failure = detail::no_host_memory()};
      close_received(std::move((*received)->message.descriptors));
    }
    if (!outcome) continue;
    queued_descriptors_ += outcome->descriptors.size();
    place.front() = *std::move(outcome);
    queue_.splice(queue_.end(), place);
  }
  if (peer_exited_)  // a dead process has nothing mapped
    while (!outgoing_grants_.empty()) end_grant(outgoing_grants_.begin()->first);
  if (!has_news) return;
  for (const int bell : bells_) static_cast<void>(::eventfd_write(bell, 1));
}

void session::end_grant(std::uint64_t number) {
  const auto ending = outgoing_grants_.find(number);
  if (ending == outgoing_grants_.end()) return;
  ended_.insert(outgoing_grants_.extract(ending));  // needs no host memory
}

std::optional<session::queued_message> session::handle(socket_message& received) {
  share_message& message = received.message;
  const auto refuse = [&](error reason) {
    close_received(std::move(message.descriptors));
    return queued_message{.failure = std::move(reason)};
  };
  if (message.from != peer_)
    return refuse(not_permitted("a message came from an unexpected process"));
  auto decoded = decode_packet(message.content);
  const auto refuse_all = [&](error reason) WEIR_REQUIRES(mutex_) {
    if (decoded && decoded->kind == packet_kind::offer) release_refused(decoded->ticket);
    return refuse(std::move(reason));
  };
  if (received.refusal) return refuse_all(*std::move(received.refusal));
  if (std::any_of(message.descriptors.begin(), message.descriptors.end(), may_close_slowly))
    return refuse_all(bad_message("a received descriptor is a socket or a file, expected memory"));
  if (!decoded) return refuse(std::move(decoded).error());
  if (decoded->kind == packet_kind::offer) {
    auto offer = handle_offer(decoded->ticket, message);
    if (!offer) return refuse_all(std::move(offer).error());
    return *std::move(offer);
  }
  if (!message.descriptors.empty())
    return refuse(bad_message("the message carries unexpected descriptors"));
  switch (decoded->kind) {
    case packet_kind::note:
      if (decoded->note.size() > share_link::most_note)
        return refuse(bad_message("the note is too long"));
      // In the memory that is there: a note is not lost where the host has none.
      message.content.erase(
          message.content.begin(),
          message.content.end() - static_cast<std::ptrdiff_t>(decoded->note.size()));
      return queued_message{.note = std::move(message.content)};
    case packet_kind::revoke:
      handle_revocation(decoded->number);
      return std::nullopt;
    case packet_kind::closed:
      end_grant(decoded->number);
      return std::nullopt;
    case packet_kind::hello:
    case packet_kind::offer:
      break;
  }
  return refuse(bad_message("the other process sent a second greeting"));
}

result<session::queued_message> session::handle_offer(const share_ticket& ticket,
                                                      share_message& message) {
  if (ticket.exporter != peer_number_)
    return not_permitted("the ticket belongs to another process");
  // Grants count up: one that does not was seen before.
  if (ticket.grant <= last_incoming_grant_) return not_permitted("the ticket was already received");
  if (message.descriptors.size() != ticket.pieces) {
    return bad_message("the number of descriptors does not match the ticket");
  }
  last_incoming_grant_ = ticket.grant;
  return queued_message{.ticket = ticket, .descriptors = std::move(message.descriptors)};
}

void session::release_refused(const share_ticket& ticket) {
  // One that came before may be in use.
  if (ticket.exporter != peer_number_ || ticket.grant <= last_incoming_grant_) return;
  last_incoming_grant_ = ticket.grant;
  answer_closed(ticket.grant);
}

void session::answer_closed(std::uint64_t number) {
  // A process that asks and does not read gets no more answers than this.
  if (!flush() && unsent_.size() >= most_unsent) return;
  unsent_.push_back(encode_number(packet_kind::closed, number));
  static_cast<void>(flush());
}

void session::handle_revocation(std::uint64_t number) {
  if (const auto open = incoming_grants_.find(number); open != incoming_grants_.end()) {
    open->second = true;
    return;
  }
  const auto waiting = std::find_if(queue_.begin(), queue_.end(), [&](const queued_message& each) {
    return each.ticket && each.ticket->grant == number;
  });
  // Elsewhere: it was released, or never came here whole. It is not in use, and that is said again.
  answer_closed(number);
  if (waiting == queue_.end()) return;
  queued_descriptors_ -= waiting->descriptors.size();
  queue_.erase(waiting);
}

result<std::unique_ptr<incoming>> session::take_first() {
  queued_message& first = queue_.front();
  auto message = std::make_unique<incoming>();
  if (first.ticket) {
    const std::uint64_t number = first.ticket->grant;
    const auto entry = incoming_grants_.emplace(number, false).first;
    try {
      message->grant = std::make_shared<grant>(shared_from_this(), number);
    } catch (const std::bad_alloc&) {
      incoming_grants_.erase(entry);
      throw;
    }
  }
  queued_message next = std::move(first);
  queue_.pop_front();
  queued_descriptors_ -= next.descriptors.size();
  if (next.failure) return *std::move(next.failure);
  message->ticket = next.ticket;
  message->note = std::move(next.note);
  message->descriptors = std::move(next.descriptors);
  return message;
}

result<std::unique_ptr<incoming>> session::receive(timeout limit) {
  if (owner_ != ::getpid()) return detail::fork_error();
  const auto deadline = deadline_after(limit);
  listener self{*this};
  for (;;) {
    {
      const session_lock lock{*this};
      static_cast<void>(flush());
      receive_pending();
      if (!queue_.empty()) return take_first();
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
  if (is_peer_gone()) return peer_closed();
  return {};
}

result<void> session::check(const grant& used) {
  if (owner_ != ::getpid()) return detail::fork_error();
  const session_lock lock{*this};
  static_cast<void>(flush());
  receive_pending();
  if (incoming_grants_.at(used.number()))
    return not_permitted("the other process revoked the memory");
  if (is_peer_gone()) return peer_closed();
  return {};
}

void session::release(grant& released) noexcept {
  if (owner_ != ::getpid()) return;
  const session_lock lock{*this};
  incoming_grants_.erase(released.number());
  unsent_.splice(unsent_.end(), released.take_closed_message());
  try {
    static_cast<void>(flush());
  } catch (const std::bad_alloc&) {
    // The next call sends it.
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
  const auto deadline = deadline_after(limit);
  for (;;) {
    short events = POLLOUT;
    {
      const session_lock lock{*this};
      receive_pending();  // two sides that only send would wait for each other
      if (is_peer_gone()) return peer_closed();
      if (flush()) {
        auto sent = channel_.send(content, descriptors, milliseconds{0});
        if (sent || sent.code() != errc::not_ready) return sent;
      }
      if (has_room()) events = POLLIN | POLLOUT;
    }
    WEIR_TRY(wait_for_events(channel_.get(), events, deadline, {peer_process_.get(), -1}));
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
    return error{{.code = errc::not_supported, .detail = "the device has no UUID"}};
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
  result<void> sent;
  try {
    sent = send(encode_offer(ticket), descriptors, settings_.limit);
  } catch (const std::bad_alloc&) {
    sent = detail::no_host_memory();
  }
  if (!sent) {
    const session_lock lock{*this};
    end_grant(ticket.grant);
    return std::move(sent).error();
  }
  return share_grant{ticket.grant};
}

result<void> session::revoke(std::uint64_t number, timeout limit) {
  if (owner_ != ::getpid()) return detail::fork_error();
  const auto deadline = deadline_after(limit);
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
        if (!peer_process_.has_exited(exit_grace)) return peer_closed();
        end_grant(number);
        return {};
      }
      if (!has_room()) return error{{.code = errc::not_ready, .detail = "unread messages"}};
      if (limit > timeout{0}) WEIR_TRY(listen(self));
    }
    WEIR_TRY(wait(self, deadline));
  }
}

std::size_t session::outstanding() {
  if (owner_ != ::getpid()) return 0;  // the grants are the parent's
  const session_lock lock{*this};
  try {
    receive_pending();
  } catch (const std::bad_alloc&) {
    // As far as it is known.
  }
  return outgoing_grants_.size();
}

}}}  // namespace weir::v0::sharing
