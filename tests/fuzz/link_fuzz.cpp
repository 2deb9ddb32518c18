// SPDX-License-Identifier: Apache-2.0
// A process at the other end of a link that says anything: each message is what it must be, an
// offer, a note or one error, and nothing that it does costs this process memory or descriptors.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fuzz_input.hpp"
#include "sharing/packet.hpp"
#include "support/this_process.hpp"
#include "weir/device/runtime.hpp"
#include "weir/share/session.hpp"
#include "weir/sim/machine.hpp"

// The machine lives on from input to input and remembers, which libFuzzer takes for a leak to look
// for each time.
extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }  // NOLINT: their name

namespace weir::fuzz { namespace {

using namespace std::chrono_literals;
using sharing::packet_kind;
using testing_support::open_descriptors;

/// The machine, and memory of the other process, for all inputs.
class link_fixture {
 public:
  link_fixture() {
    sim::machine_options settings;
    settings.devices.assign(2, {.capacity = bytes{256 << 20}, .context_overhead = bytes{16 << 20}});
    machine_ = sim::machine::create(settings).value();
    machine_->on_hazard([](const sim::hazard& found) { require(false, found.message()); });
    runtime_ = runtime::open_simulated(machine_).value();
    unit = gpu().capabilities().granularity;
    const context_scope bound{gpu()};
    theirs_.emplace(physical_handle::create(gpu(), unit, {.posix_descriptor = true}).value());
    good = vmm::export_descriptor(bound, theirs_->get()).value();
    nothing = descriptor{::open("/dev/null", O_RDWR | O_CLOEXEC)};
    // The simulator opens the file behind plain memory once, when the first is allocated, as waits
    // for a device do.
    driver::CUdeviceptr little = 0;
    require(bound.driver().mem_alloc(&little, 1) == driver::CUDA_SUCCESS &&
                bound.driver().mem_free(little) == driver::CUDA_SUCCESS,
            "no plain memory");
    set_error_handler([](const error& failed, void*) noexcept { require(false, failed.message()); },
                      nullptr);
    used_ = used();
  }

  [[nodiscard]] device gpu() const { return runtime_->device(device_id{0}).value(); }
  [[nodiscard]] const std::shared_ptr<runtime>& machine() const noexcept { return runtime_; }
  void require_nothing_left() const { require(used() == used_, "memory of the device is lost"); }

  bytes unit{};
  descriptor good;     // memory of the size that a unit has
  descriptor nothing;  // no memory

 private:
  [[nodiscard]] bytes used() const { return machine_->used(device_id{0}); }

  std::shared_ptr<sim::machine> machine_;
  std::shared_ptr<runtime> runtime_;
  std::optional<physical_handle> theirs_;
  bytes used_{};
};

/// What receive() must answer next.
struct expectation {
  errc failure{};           // none: one of the two
  std::uint64_t grant = 0;  // an offer; 0: a note
  std::vector<std::byte> note{};
};

/// One input: what the other side says and what this side does, by turns.
class conversation {
 public:
  conversation(link_fixture& fixture, fuzz_input input) : fixture_{fixture}, input_{input} {
    auto [ours, theirs] = share_channel::pair().value();
    other_.emplace(std::move(theirs));
    require(
        other_->send(sharing::encode_number(packet_kind::hello, other_number), {}, 0ms).has_value(),
        "no greeting");
    link_.emplace(share_link::open(fixture.machine(), std::move(ours), {.limit = 0ms}).value());
    require(other_->receive(0ms).has_value(), "no greeting from here");
  }

  void run() {
    while (!input_.at_end()) step();
    end();
  }

 private:
  static constexpr std::uint64_t other_number = 0x1234;
  static constexpr std::size_t most_waiting = 32;

  void step() {
    switch (input_.below(16)) {
      case 0:
        return say(as_bytes(input_.text(200)), {});
      case 1:
      case 2:
        return say_number();
      case 3:
        return say(sharing::encode_note(as_bytes(std::string(input_.number() % 2000, 'x'))), {});
      case 4:
      case 5:
      case 6:
        return say_offer();
      case 7:
        return close_other();
      case 8:
        return offer();
      case 9:
        return revoke();
      case 10:
        return look();
      case 11:
        return drain();
      case 12:
        return drop();
      default:
        return receive();
    }
  }

  // --- The other side ----------------------------------------------------------------------------

  static std::vector<std::byte> as_bytes(const std::string& text) {
    const auto raw = std::as_bytes(std::span{text});
    return {raw.begin(), raw.end()};
  }

  void say_number() {
    constexpr packet_kind kinds[] = {packet_kind::closed, packet_kind::closed, packet_kind::revoke,
                                     packet_kind::revoke, packet_kind::hello,  packet_kind{9}};
    const packet_kind kind = input_.one_of(kinds);
    if (kind == packet_kind::revoke && accepted_.size() > 500) return;  // there are no more answers
    std::uint64_t number = input_.number();
    // One that means something: of a grant of this side, or of its own.
    if (kind == packet_kind::closed && !granted_.empty() && input_.chance(2))
      number = granted_[input_.below(granted_.size())];
    if (kind == packet_kind::revoke && input_.chance(2)) number = 1 + input_.below(last_grant_ + 1);
    say(sharing::encode_number(kind, number),
        input_.chance(8) ? std::vector{fixture_.good.get()} : std::vector<int>{});
  }

  void say_offer() {
    share_ticket ticket{.device = fixture_.gpu().uuid().value(),
                        .exporter = other_number,
                        .object = 1 + input_.below(3),
                        .grant = last_grant_ + 1,
                        .size = fixture_.unit,
                        .piece = fixture_.unit,
                        .pieces = 1};
    std::vector<int> descriptors{fixture_.good.get()};
    for (std::size_t lies = input_.below(4); lies > 0; --lies) lie(ticket, descriptors);
    auto raw = sharing::encode_offer(ticket);
    if (input_.chance(12)) raw[input_.next() % raw.size()] ^= std::byte{input_.next()};
    if (input_.chance(12)) raw.resize(input_.next() % raw.size() + 1);
    say(raw, descriptors);
  }

  void lie(share_ticket& ticket, std::vector<int>& descriptors) {
    switch (input_.below(14)) {
      case 0:
        ticket.kind = static_cast<share_kind>(1 + input_.below(5));
        if (ticket.kind == share_kind::memory) return;
        ticket.piece = {};
        ticket.pieces = ticket.kind == share_kind::pool ? 1 : 0;
        descriptors.resize(ticket.pieces, fixture_.good.get());
        if (ticket.kind == share_kind::pool || ticket.kind == share_kind::event) ticket.size = {};
        return;
      case 1:
        ticket.rights = static_cast<access_rights>(input_.below(4));
        return;
      case 2:
        ticket.device[input_.below(16)] ^= input_.next();
        return;
      case 3:
        ticket.exporter = input_.number();
        return;
      case 4:
        ticket.object = input_.number();
        return;
      case 5:
        ticket.grant = input_.number();
        return;
      case 6:
        ticket.size = bytes{input_.number()};
        return;
      case 7:
        ticket.offset = bytes{input_.number()};
        return;
      case 8:
        ticket.piece = bytes{input_.number()};
        return;
      case 9:
        ticket.first = static_cast<std::uint32_t>(input_.number());
        return;
      case 10:
        ticket.pieces = static_cast<std::uint32_t>(input_.number());
        return;
      case 11:
        ticket.payload[input_.below(64)] = std::byte{input_.next()};
        return;
      case 12:
        descriptors.assign(input_.below(4), fixture_.good.get());
        return;
      default:
        descriptors.assign(1, fixture_.nothing.get());
    }
  }

  void say(std::span<const std::byte> raw, const std::vector<int>& descriptors) {
    if (!other_ || raw.empty() || said_.size() + expected_.size() > most_waiting) return;
    if (!other_->send(raw, descriptors, 0ms)) return;  // the socket is full
    said_.push_back({{raw.begin(), raw.end()}, descriptors.size()});
    if (const auto known = sharing::decode_packet(raw); known && known->kind == packet_kind::offer)
      last_grant_ = std::max(last_grant_, known->ticket.grant % 1024);
  }

  void close_other() {
    if (!input_.chance(4)) return;
    drain();
    other_.reset();
  }

  /// What this side has sent; it releases each grant once.
  void drain() {
    if (!other_) return;
    for (;;) {
      const auto message = other_->receive(0ms);
      if (!message) return require(message.code() == errc::not_ready, "a broken socket");
      const auto read = sharing::decode_packet(message->content);
      require(read.has_value(), "this side sent what it would refuse");
      if (read->kind != packet_kind::closed) continue;
      hear_closed(read->number);
    }
  }

  void hear_closed(std::uint64_t number) {
    const auto place = accepted_.find(number);
    require(place != accepted_.end(), "a grant that was not given, or twice");
    accepted_.erase(place);
  }

  // --- What this side makes of it ---------------------------------------------------------------

  /// As the link does in every call: all that has come is looked at.
  void look_at_messages() {
    for (; !said_.empty(); said_.pop_front())
      hear(said_.front().content, said_.front().descriptors);
  }

  void hear(std::span<const std::byte> raw, std::size_t descriptors) {
    const auto read = sharing::decode_packet(raw);
    if (!read) return refuse(read.code());
    if (read->kind == packet_kind::offer) return hear_offer(read->ticket, descriptors);
    if (descriptors != 0) return refuse(errc::invalid_argument);
    switch (read->kind) {
      case packet_kind::note:
        if (read->note.size() > share_link::most_note) return refuse(errc::invalid_argument);
        expected_.push_back({.note = {read->note.begin(), read->note.end()}});
        return;
      case packet_kind::revoke: {
        if (const auto open = open_.find(read->number); open != open_.end()) {
          open->second = true;
          return;
        }
        const auto waiting = std::erase_if(expected_, [&](const expectation& each) {
          return each.failure == errc{} && each.grant == read->number;
        });
        // What is not in use here is said to be released, once more if it was before.
        if (waiting == 0) accepted_.insert(read->number);
        return;
      }
      case packet_kind::closed:
        outstanding_.erase(read->number);
        return;
      default:
        return refuse(errc::invalid_argument);
    }
  }

  void hear_offer(const share_ticket& ticket, std::size_t descriptors) {
    if (ticket.exporter != other_number || ticket.grant <= last_heard_)
      return refuse(errc::not_permitted);
    last_heard_ = ticket.grant;
    accepted_.insert(ticket.grant);  // one that is refused is released as well
    if (descriptors != ticket.pieces) return refuse(errc::invalid_argument);
    expected_.push_back({.grant = ticket.grant});
  }

  void refuse(errc code) { expected_.push_back({.failure = code}); }

  void receive() {
    auto received = link_->receive(0ms);
    look_at_messages();
    if (expected_.empty()) {
      const errc code = other_ ? errc::not_ready : errc::peer_closed;
      return require(!received && received.code() == code, "a message out of nothing");
    }
    const expectation next = std::move(expected_.front());
    expected_.pop_front();
    if (next.failure != errc{}) {
      require(!received && received.code() == next.failure, "refused for another reason");
      return require(!received.error().message().empty(), "no reason");
    }
    require(received.has_value(), received ? "" : received.error().message());
    require(received->is_note() == (next.grant == 0), "a note for an offer, or the reverse");
    if (next.grant == 0) {
      const auto note = received->note();
      return require(std::equal(note.begin(), note.end(), next.note.begin(), next.note.end()),
                     "another note");
    }
    require(received->ticket().grant == next.grant, "another offer");
    open(*received);
  }

  void open(share_offer& offer) {
    const share_ticket ticket = offer.ticket();
    open_.emplace(ticket.grant, false);
    switch (input_.below(8)) {
      case 0:
        if (const auto opened = offer.open_event(); !opened) require_refused(opened.error());
        break;
      case 1:
        if (const auto opened = offer.open_pool(); !opened) require_refused(opened.error());
        break;
      case 2:
        break;  // never opened
      default: {
        auto opened = offer.open_memory();
        if (!opened) {
          require_refused(opened.error());
          break;
        }
        require(opened->size() == ticket.size && opened->rights() == ticket.rights,
                "other memory than was offered");
        require(opened->mapped_at() != 0, "memory at no address");
        imported_.emplace_back(ticket.grant, *std::move(opened));
        return;
      }
    }
    const share_offer gone = std::move(offer);
    open_.erase(ticket.grant);
  }

  static void require_refused(const error& refusal) {
    require(refusal.code() != errc::internal && refusal.code() != errc::no_host_memory,
            refusal.message());
  }

  void drop() {
    if (imported_.empty()) return;
    const auto place =
        imported_.begin() + static_cast<std::ptrdiff_t>(input_.below(imported_.size()));
    const auto address = place->second.address();
    look_at_messages();
    const bool revoked = open_.at(place->first);
    const errc why = revoked ? errc::not_permitted : errc::peer_closed;
    require(address.has_value() == (!revoked && other_.has_value()), "revoked, or not");
    if (!address) require(address.code() == why, "another reason");
    if (input_.chance(2)) require(place->second.close().has_value(), "it cannot be closed");
    open_.erase(place->first);
    imported_.erase(place);
  }

  void offer() {
    if (!memory_) memory_ = shared_memory::create(fixture_.gpu(), fixture_.unit).value();
    const auto grant =
        link_->offer(memory_, {.offset = bytes{input_.number()}, .size = bytes{input_.number()}});
    look_at_messages();
    if (!grant) return require_refused(grant.error());
    granted_.push_back(grant->number());
    outstanding_.insert(grant->number());
  }

  void revoke() {
    const std::uint64_t number = granted_.empty() || input_.chance(4)
                                     ? input_.number()
                                     : granted_[input_.below(granted_.size())];
    const auto done = link_->revoke(share_grant{number}, 0ms);
    look_at_messages();
    const bool open = outstanding_.contains(number);
    require(done.has_value() || done.code() != errc::not_found || !open,
            "an open grant is unknown");
    if (done) require(!open, "not released, yet revoked");
  }

  void look() {
    const auto alive = link_->check();
    look_at_messages();
    require(alive.has_value() == other_.has_value(), "alive, or not");
    if (other_) require(link_->outstanding() == outstanding_.size(), "another number of grants");
  }

  /// Everything goes; the other side hears of each grant that it is released.
  void end() {
    static_cast<void>(link_->check());
    look_at_messages();
    imported_.clear();
    link_.reset();
    memory_ = {};
    drain_to_the_end();
    if (other_) require(accepted_.empty(), "a grant that was never released");
  }

  void drain_to_the_end() {
    if (!other_) return;
    for (;;) {
      const auto message = other_->receive(0ms);
      if (!message) return require(message.code() == errc::peer_closed, "it does not end");
      const auto read = sharing::decode_packet(message->content);
      require(read.has_value(), "this side sent what it would refuse");
      if (read->kind == packet_kind::closed) hear_closed(read->number);
    }
  }

  struct message {
    std::vector<std::byte> content;
    std::size_t descriptors = 0;
  };

  link_fixture& fixture_;
  fuzz_input input_;
  std::optional<share_channel> other_;
  std::optional<share_link> link_;
  shared_memory memory_;
  std::uint64_t last_grant_ = 0;  // that the other side named
  std::deque<message> said_;      // and not looked at
  std::deque<expectation> expected_;
  std::uint64_t last_heard_ = 0;
  std::multiset<std::uint64_t> accepted_;  // grants of theirs whose release has not arrived there
  std::map<std::uint64_t, bool> open_;     // grants of theirs that are open here: revoked
  std::vector<std::uint64_t> granted_;     // grants of this side
  std::set<std::uint64_t> outstanding_;    // those of them that were not released
  std::vector<std::pair<std::uint64_t, imported_memory>> imported_;
};

}  // namespace
}  // namespace weir::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weir::fuzz;
  static link_fixture fixture;
  static const std::size_t descriptors = open_descriptors();
  conversation{fixture, fuzz_input{{data, size}}}.run();
  fixture.require_nothing_left();
  require(open_descriptors() <= descriptors + 2, "descriptors are lost");
  return 0;
}
