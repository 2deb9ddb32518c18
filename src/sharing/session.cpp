// A connection: the greeting, what comes and goes, and who still has what.
#include "sharing/session.hpp"

#include <poll.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace weir::inline v0::sharing {
namespace {

using std::chrono::milliseconds;

// What the other side may make us keep. Beyond it, its messages stay with the kernel, which bounds
// them, too.
constexpr std::size_t most_queued = 64;
constexpr std::size_t most_queued_descriptors = 2 * std::size_t{most_share_pieces};

/// How long the end of a process whose socket is closed already may take.
constexpr milliseconds dying{200};

error link_is_down() { return {.code = errc::peer_closed}; }
error not_allowed(const char* why) { return {.code = errc::not_permitted, .detail = why}; }
error not_ours(const char* why) { return {.code = errc::invalid_argument, .detail = why}; }

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

grant::~grant() { from_->let_go(*this); }

result<void> grant::check() const { return from_->check(*this); }

// --- Beginning and end ---------------------------------------------------------------------------

result<std::shared_ptr<session>> session::open(std::shared_ptr<runtime> machine,
                                               share_channel channel, share_link_options settings) {
  if (machine == nullptr || !channel) return errc::invalid_argument;
  auto made = std::make_shared<session>(std::move(machine), std::move(channel), settings);
  WEIR_TRY(made->greet());
  return made;
}

result<void> session::greet() {
  const auto until = clock::now() + settings_.limit;
  WEIR_TRY(channel_.send(encode_number(packet_kind::hello, own_number()), {}, settings_.limit));
  const auto left = std::chrono::ceil<milliseconds>(until - clock::now());
  WEIR_TRY_VALUE(answer, channel_.receive(std::max(left, milliseconds{0})));
  if (!settings_.other_users && answer.from.user != ::geteuid()) {
    return not_allowed("a process of another user");
  }
  WEIR_TRY_VALUE(said, decode_packet(answer.content));
  if (said.kind != packet_kind::hello || !answer.descriptors.empty()) {
    return not_ours("the other side did not greet");
  }
  peer_ = answer.from;
  theirs_ = said.number;
  if (peer_.process > 0) {
    process_ = descriptor{static_cast<int>(::syscall(SYS_pidfd_open, peer_.process, 0U))};
  }
  return {};
}

/// Whether the other process is no more. False where the kernel cannot tell.
bool session::peer_ended(timeout limit) const noexcept {
  if (!process_) return false;
  pollfd one{.fd = process_.get(), .events = POLLIN, .revents = 0};
  return ::poll(&one, 1, static_cast<int>(limit.count())) > 0;
}

session::~session() {
  if (owner_ != ::getpid()) return;
  try {
    pump();
    // Offers that nobody took.
    for (const entry& each : queue_) {
      if (!each.ticket) continue;
      unsent_.push_back(encode_number(packet_kind::closed, each.ticket->grant));
    }
    static_cast<void>(flush());
  } catch (const std::bad_alloc&) {
    // The other side learns of our end from the socket.
  }
  if (granted_.empty() || peer_ended(gone_ ? dying : milliseconds{0})) return;
  for (const auto& [number, what] : granted_) {
    if (what != nullptr) what->exposed.store(true, std::memory_order_relaxed);
  }
}

// --- What comes ----------------------------------------------------------------------------------

bool session::has_room() const noexcept {
  return queue_.size() < most_queued && queued_descriptors_ < most_queued_descriptors;
}

/// Takes in what has come, without waiting.
void session::pump() {
  while (!gone_ && has_room()) {
    auto message = channel_.receive(milliseconds{0});
    if (message) {
      take(*message);
    } else if (message.code() == errc::not_ready) {
      break;
    } else if (message.code() == errc::peer_closed || message.code() == errc::system) {
      gone_ = true;
    } else {
      queue_.push_back({.wrong = std::move(message).error()});
    }
  }
  if (gone_ && !granted_.empty() && peer_ended(milliseconds{0}))
    while (!granted_.empty()) end_grant(granted_.begin()->first);
}

void session::end_grant(std::uint64_t number) {
  const auto found = granted_.find(number);
  if (found == granted_.end()) return;
  ended_.push_back(std::move(found->second));
  granted_.erase(found);
}

void session::take(share_message& message) {
  const auto refuse = [&](error why) { queue_.push_back({.wrong = std::move(why)}); };
  if (message.from != peer_) return refuse(not_allowed("a message of another process"));
  auto found = decode_packet(message.content);
  if (!found) return refuse(std::move(found).error());
  if (found->kind == packet_kind::offer) {
    auto made = take_offer(found->ticket, message);
    if (!made) return refuse(std::move(made).error());
    queued_descriptors_ += made->descriptors.size();
    queue_.push_back(*std::move(made));
    return;
  }
  if (!message.descriptors.empty()) return refuse(not_ours("descriptors that nobody asked for"));
  switch (found->kind) {
    case packet_kind::note:
      if (found->note.size() > share_link::most_note) return refuse(not_ours("a note too long"));
      queue_.push_back({.note = {found->note.begin(), found->note.end()}});
      return;
    case packet_kind::revoke:
      return take_revocation(found->number);
    case packet_kind::closed:
      return end_grant(found->number);
    case packet_kind::hello:
    case packet_kind::offer:
      break;
  }
  refuse(not_ours("a second greeting"));
}

result<session::entry> session::take_offer(const share_ticket& ticket, share_message& message) {
  if (ticket.exporter != theirs_) return not_allowed("a ticket of another process");
  // Grants count up: one that does not was seen before.
  if (ticket.grant <= last_grant_) return not_allowed("a ticket that came before");
  last_grant_ = ticket.grant;
  if (message.descriptors.size() != ticket.pieces) {
    return not_ours("the ticket speaks of another number of descriptors");
  }
  return entry{.ticket = ticket, .descriptors = std::move(message.descriptors)};
}

void session::take_revocation(std::uint64_t number) {
  if (const auto known = received_.find(number); known != received_.end()) {
    known->second->revoked_ = true;
    return;
  }
  const auto waiting = std::find_if(queue_.begin(), queue_.end(), [&](const entry& each) {
    return each.ticket && each.ticket->grant == number;
  });
  if (waiting == queue_.end()) return;  // let go, and that is on its way
  queued_descriptors_ -= waiting->descriptors.size();
  queue_.erase(waiting);
  unsent_.push_back(encode_number(packet_kind::closed, number));
  static_cast<void>(flush());
}

result<std::unique_ptr<incoming>> session::receive(timeout limit) {
  const auto until = clock::now() + limit;
  for (;;) {
    {
      const locked held{*this};
      static_cast<void>(flush());
      pump();
      if (!queue_.empty()) {
        entry next = std::move(queue_.front());
        queue_.pop_front();
        queued_descriptors_ -= next.descriptors.size();
        if (next.wrong) return *std::move(next.wrong);
        auto made = std::make_unique<incoming>(incoming{.ticket = next.ticket,
                                                        .note = std::move(next.note),
                                                        .descriptors = std::move(next.descriptors),
                                                        .grant = nullptr});
        if (made->ticket) {
          made->grant = std::make_shared<grant>(shared_from_this(), made->ticket->grant);
          received_.emplace(made->ticket->grant, made->grant.get());
        }
        return made;
      }
      if (gone_) return link_is_down();
    }
    WEIR_TRY(wait_for(channel_.get(), POLLIN, until));
  }
}

result<void> session::check() {
  const locked held{*this};
  static_cast<void>(flush());
  pump();
  if (gone_) return link_is_down();
  return {};
}

result<void> session::check(const grant& which) {
  const locked held{*this};
  static_cast<void>(flush());
  pump();
  if (which.revoked_) return not_allowed("the other process took it back");
  if (gone_) return link_is_down();
  return {};
}

void session::let_go(const grant& which) noexcept {
  if (owner_ != ::getpid()) return;
  const locked held{*this};
  received_.erase(which.number());
  try {
    unsent_.push_back(encode_number(packet_kind::closed, which.number()));
    static_cast<void>(flush());
  } catch (const std::bad_alloc&) {
    report_error({.code = errc::system});
  }
}

// --- What goes -----------------------------------------------------------------------------------

/// Sends what found no room before; whether none of it is left.
bool session::flush() {
  while (!unsent_.empty()) {
    const auto sent = channel_.send(unsent_.front(), {}, milliseconds{0});
    if (!sent && sent.code() == errc::not_ready) return false;
    unsent_.pop_front();  // sent, or there is nobody to hear it
  }
  return true;
}

result<void> session::send(std::span<const std::byte> content, std::span<const int> descriptors,
                           timeout limit) {
  const auto until = clock::now() + limit;
  for (;;) {
    short what = POLLOUT;
    {
      const locked held{*this};
      pump();  // two sides that only send would wait for each other
      if (gone_) return link_is_down();
      if (flush()) {
        auto sent = channel_.send(content, descriptors, milliseconds{0});
        if (sent || sent.code() != errc::not_ready) return sent;
      }
      if (has_room()) what = POLLIN | POLLOUT;
    }
    WEIR_TRY(wait_for(channel_.get(), what, until));
    if (clock::now() >= until) return errc::not_ready;
    // Room for a message and room for its descriptors are two things; only one can be polled for.
    std::this_thread::sleep_for(std::chrono::microseconds{200});
  }
}

result<share_grant> session::give(share_ticket ticket, weir::device where,
                                  std::span<const int> descriptors, std::shared_ptr<exported> what,
                                  bool tracked) {
  if (owner_ != ::getpid()) return detail::fork_error();
  if (!where.uuid()) {
    return error{.code = errc::not_supported, .detail = "the device has no UUID"};
  }
  ticket.device = *where.uuid();
  ticket.exporter = own_number();
  const std::lock_guard one_at_a_time{give_mutex_};
  ticket.grant = next_number();
  WEIR_TRY(decode_share_ticket(encode(ticket)));  // nothing leaves that would be refused
  if (tracked) {
    const locked held{*this};
    granted_.emplace(ticket.grant, std::move(what));
  }
  auto sent = send(encode_offer(ticket), descriptors, settings_.limit);
  if (!sent) {
    const locked held{*this};
    end_grant(ticket.grant);
    return std::move(sent).error();
  }
  return share_grant{ticket.grant};
}

result<void> session::revoke(std::uint64_t number, timeout limit) {
  if (owner_ != ::getpid()) return detail::fork_error();
  const auto until = clock::now() + limit;
  {
    const locked held{*this};
    pump();
    if (granted_.count(number) == 0) return errc::not_found;
  }
  auto asked = send(encode_number(packet_kind::revoke, number), {}, limit);
  if (!asked && asked.code() != errc::peer_closed) return asked;
  for (;;) {
    {
      const locked held{*this};
      pump();
      if (granted_.count(number) == 0) return {};
      if (gone_) {
        if (!peer_ended(dying)) return link_is_down();
        end_grant(number);
        return {};
      }
      if (!has_room()) return error{.code = errc::not_ready, .detail = "unread messages"};
    }
    WEIR_TRY(wait_for(channel_.get(), POLLIN, until));
  }
}

std::size_t session::outstanding() {
  const locked held{*this};
  pump();
  return granted_.size();
}

}  // namespace weir::inline v0::sharing
