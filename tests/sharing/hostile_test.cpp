// SPDX-License-Identifier: Apache-2.0
// Everything the other process may do wrong, by mistake or not: each is one error, and nothing
// more.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <set>
#include <thread>

#include "sharing/deadline.hpp"
#include "sharing/session.hpp"
#include "sharing/sharing_fixture.hpp"

namespace weir::testing_support { namespace {

using sharing::encode_number;
using sharing::encode_offer;
using sharing::packet_kind;
using timer = std::chrono::steady_clock;

/// Sockets are closed on threads of their own: its end waits until these have ended.
class closing_threads {
 public:
  closing_threads() = default;
  ~closing_threads() {
    for (int i = 0; i < 5'000 && running_threads() > before_; ++i) std::this_thread::sleep_for(1ms);
  }
  closing_threads(const closing_threads&) = delete;
  closing_threads& operator=(const closing_threads&) = delete;

 private:
  const std::size_t before_ = running_threads();
};

/// A link whose other end is a liar, who has greeted as one should.
class hostile_peer : public sharing_test {
 protected:
  void SetUp() override {
    sharing_test::SetUp();
    if (machine == nullptr || IsSkipped()) return;
    descriptors_before_ = open_descriptors();
    auto [ours, theirs] = share_channel::pair().value();
    other.emplace(liar{std::move(theirs)});
    other->say(encode_number(packet_kind::hello, other->number));
    link.emplace(share_link::open(machine_runtime, std::move(ours), {.limit = 20ms}).value());
    expect_heard(packet_kind::hello, sharing::own_number());
    EXPECT_EQ(link->peer(), (share_peer{::getpid(), ::geteuid()}));
    memory = shared_memory::create(gpu(), unit()).value();
    const context_scope bound{gpu()};
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(cu->mem_retain_allocation_handle(
                  &handle, reinterpret_cast<void*>(static_cast<std::uintptr_t>(memory.address()))),
              CUDA_SUCCESS);
    good = vmm::export_descriptor(bound, {handle, unit()}).value();
    EXPECT_EQ(cu->mem_release(handle), CUDA_SUCCESS);
  }
  void TearDown() override {
    link.reset();
    other.reset();
    memory = {};
    good = descriptor{};
    // A driver may keep a few of its own from now on; what was sent here is gone.
    if (machine != nullptr) {
      EXPECT_LT(open_descriptors(), descriptors_before_ + 4);
    }
    sharing_test::TearDown();
  }

  [[nodiscard]] share_ticket ticket(std::uint64_t grant = 1) const {
    auto forged = ticket_of(other->number, gpu(), unit());
    forged.grant = grant;
    return forged;
  }
  [[nodiscard]] std::span<const int> one(const descriptor& number) {
    passed_ = number.get();
    return {&passed_, 1};
  }
  [[nodiscard]] auto opened() { return link->receive(1s).value().open_memory(); }
  /// The next message of this side, as the other one gets it.
  [[nodiscard]] share_message heard() const { return other->end.receive(1s).value(); }
  [[nodiscard]] bool hears_nothing() const {
    return code_of(other->end.receive(0ms)) == errc::not_ready;
  }
  void expect_heard(packet_kind kind, std::uint64_t number) const {
    const auto message = heard();
    const auto read = sharing::decode_packet(message.content).value();
    EXPECT_EQ(read.kind, kind);
    EXPECT_EQ(read.number, number);
    EXPECT_TRUE(message.descriptors.empty());
  }
  /// Sends notes until there is room for no more; how many there were.
  std::size_t fill_up() const {
    const std::vector<std::byte> note(share_link::most_note);
    std::size_t count = 0;
    while (link->send_note(note)) ++count;
    return count;
  }
  /// After all that went wrong, what is right still works.
  void expect_usable(std::uint64_t grant) {
    other->offer(ticket(grant), one(good));
    auto taken = opened();
    ASSERT_EQ(code_of(taken), std::nullopt);
    EXPECT_EQ(code_of(taken->address()), std::nullopt);
  }

  std::optional<liar> other;
  std::optional<share_link> link;
  shared_memory memory;
  descriptor good;

 private:
  std::size_t descriptors_before_ = 0;
  int passed_ = -1;
};
WEIR_CONTRACT(hostile_peer);

/// A TCP socket whose close() waits for 20 s: bytes that nobody reads, and SO_LINGER.
descriptor lingering_socket(descriptor& reader) {
  const descriptor waiting{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const plain = reinterpret_cast<sockaddr*>(&address);
  descriptor writer{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  if (::bind(waiting.get(), plain, length) != 0 || ::listen(waiting.get(), 1) != 0 ||
      ::getsockname(waiting.get(), plain, &length) != 0 ||
      ::connect(writer.get(), plain, length) != 0)
    return {};
  reader = descriptor{::accept4(waiting.get(), nullptr, nullptr, SOCK_CLOEXEC)};
  ::fcntl(writer.get(), F_SETFL, O_NONBLOCK);
  const std::vector<char> bytes_sent(65536);
  while (::write(writer.get(), bytes_sent.data(), bytes_sent.size()) > 0) {
  }
  const linger long_wait{.l_onoff = 1, .l_linger = 20};
  ::setsockopt(writer.get(), SOL_SOCKET, SO_LINGER, &long_wait, sizeof(long_wait));
  return writer;
}

/// Sends any message, also one that no channel would send.
void send_raw(int end, std::string_view content, std::span<const int> descriptors) {
  std::vector<char> control(CMSG_SPACE(descriptors.size_bytes()));
  iovec part{const_cast<char*>(content.data()), content.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
  std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  ASSERT_EQ(::sendmsg(end, &message, 0), static_cast<ssize_t>(content.size()));
}
std::string text_of_note(std::string_view text) {
  const auto raw = sharing::encode_note(as_note(text));
  return {reinterpret_cast<const char*>(raw.data()), raw.size()};
}

/// Each way to send a socket that closes slowly, and what is said of it.
struct slow_message {
  const char* reason;
  std::function<void(int end, int slow)> send;
};
const std::vector<slow_message>& slow_messages() {
  static const std::vector<slow_message> all = {
      {"invalid_argument: a received descriptor is a socket or a file, expected memory",
       [](int end, int slow) {
         send_raw(end, text_of_note("x"), {&slow, 1});
       }},
      {"invalid_argument: the message is empty",
       [](int end, int slow) {
         send_raw(end, "", {&slow, 1});
       }},
      {"invalid_argument: a received descriptor is a socket or a file, expected memory",
       [](int end, int slow) {  // in the queue of another one
         int ends[2];
         ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
         const descriptor from{ends[0]};
         const descriptor to{ends[1]};
         send_raw(from.get(), "y", {&slow, 1});
         send_raw(end, text_of_note("x"), {&ends[1], 1});
       }},
      {"invalid_argument: the message is too large",
       [](int end, int slow) {  // behind all that a ticket can speak of
         const descriptor nothing{::open("/dev/null", O_RDWR | O_CLOEXEC)};
         std::vector<int> many(253, nothing.get());
         many.back() = slow;
         send_raw(end, text_of_note("x"), many);
       }},
      {"invalid_argument: the message is too large",
       [](int end, int slow) {
         send_raw(end, std::string(5000, 'x'), {&slow, 1});
       }},
  };
  return all;
}

TEST_P(hostile_peer, may_not_hold_up_calls_by_sockets_that_close_slowly) {
  const closing_threads closing;
  for (std::size_t i = 0; i < slow_messages().size(); ++i) {
    SCOPED_TRACE(i);
    descriptor reader;
    auto slow = lingering_socket(reader);
    if (!slow) GTEST_SKIP() << "no network";
    slow_messages()[i].send(other->end.get(), slow.get());
    slow = descriptor{};  // the copy that is under way is the last
    const auto begin = timer::now();
    EXPECT_EQ(reason_of(link->receive(1s)), slow_messages()[i].reason);
    EXPECT_TRUE(link->check());
    EXPECT_LT(timer::now() - begin, 10s);
  }
  expect_usable(1);
}

TEST_P(hostile_peer, may_not_hold_up_the_end_of_a_link_either) {
  const closing_threads closing;
  for (int i = 0; i < 64; ++i) other->say(sharing::encode_note({}));  // as many as are taken in
  std::vector<descriptor> readers;
  for (const slow_message& each : slow_messages()) {
    auto slow = lingering_socket(readers.emplace_back());
    if (!slow) GTEST_SKIP() << "no network";
    each.send(other->end.get(), slow.get());
  }
  other->offer(ticket(1), one(good));
  const auto begin = timer::now();
  link.reset();
  EXPECT_LT(timer::now() - begin, 10s);
  expect_heard(packet_kind::closed, 1);
}

// --- Forked copies -------------------------------------------------------------------------------

TEST_P(hostile_peer, does_not_lose_messages_to_a_forked_child) {
  other->say(sharing::encode_note({}));
  const pid_t child = ::fork();  // touches no driver
  if (child == 0) {
    const bool refused = code_of(link->check()) == errc::driver_gone &&
                         code_of(link->receive(0ms)) == errc::driver_gone &&
                         code_of(link->send_note({})) == errc::driver_gone &&
                         link->outstanding() == 0;
    ::_exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(link->receive(1s)) << "the message is the parent's";
  EXPECT_TRUE(hears_nothing());
}

// --- Greeting ------------------------------------------------------------------------------------

class hostile_greeting : public sharing_test {
 protected:
  result<share_link> open_after(const std::function<void(share_channel&)>& act) {
    auto [ours, theirs] = share_channel::pair().value();
    act(theirs);
    return share_link::open(machine_runtime, std::move(ours), {.limit = 50ms});
  }
};
WEIR_CONTRACT(hostile_greeting);

TEST_P(hostile_greeting, of_another_version) {
  const auto opened = open_after([](share_channel& end) {
    auto raw = encode_number(packet_kind::hello, 1);
    raw[4] = std::byte{2};
    EXPECT_TRUE(end.send(raw, {}, 1s));
  });
  EXPECT_EQ(reason_of(opened), "bad_version: link version 2");
}

TEST_P(hostile_greeting, that_is_none) {
  const auto say = [&](std::vector<std::byte> raw, std::span<const int> descriptors = {}) {
    return reason_of(
        open_after([&](share_channel& end) { EXPECT_TRUE(end.send(raw, descriptors, 1s)); }));
  };
  const std::string no_greeting = "invalid_argument: the other process sent no greeting";
  const descriptor nothing{::open("/dev/null", O_RDWR | O_CLOEXEC)};
  const int number = nothing.get();
  EXPECT_EQ(say(std::vector<std::byte>(16)),
            "invalid_argument: the received data is not a message of weir");
  EXPECT_EQ(say(std::vector<std::byte>(1)), "invalid_argument: the received message is incomplete");
  EXPECT_EQ(say(encode_number(packet_kind::closed, 1)), no_greeting);
  EXPECT_EQ(say(sharing::encode_note({})), no_greeting);
  EXPECT_EQ(say(encode_number(packet_kind::hello, 1), {&number, 1}), no_greeting);
  EXPECT_EQ(say(encode_number(packet_kind::hello, 1)), "");
}

TEST_P(hostile_greeting, may_not_hold_up_the_call_by_a_socket_that_closes_slowly) {
  const closing_threads closing;
  descriptor reader;
  auto slow = lingering_socket(reader);
  if (!slow) GTEST_SKIP() << "no network";
  const auto begin = timer::now();
  const auto opened = open_after([&](share_channel& end) {
    const int number = slow.get();
    EXPECT_TRUE(end.send(encode_number(packet_kind::hello, 1), {&number, 1}, 1s));
    slow = descriptor{};
  });
  EXPECT_EQ(reason_of(opened), "invalid_argument: the other process sent no greeting");
  EXPECT_LT(timer::now() - begin, 10s);
}

TEST_P(hostile_greeting, that_does_not_come) {
  const auto begin = timer::now();
  EXPECT_EQ(code_of(open_after([](share_channel&) {})), errc::not_ready);
  EXPECT_LT(timer::now() - begin, 5s);
  EXPECT_EQ(code_of(open_after([](share_channel& end) { end.close(); })), errc::peer_closed);
  auto ends = share_channel::pair().value();
  EXPECT_EQ(code_of(share_link::open(nullptr, std::move(ends.first))), errc::invalid_argument);
  ends.second.close();
  EXPECT_EQ(code_of(share_link::open(machine_runtime, std::move(ends.second))),
            errc::invalid_argument);
}

TEST_P(hostile_greeting, of_another_user) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become somebody else";
  for (const bool allowed : {false, true}) {
    auto [ours, theirs] = share_channel::pair().value();
    const pid_t child = ::fork();  // touches no driver
    ASSERT_GE(child, 0);
    if (child == 0) {
      if (::setuid(65534) != 0) ::_exit(1);
      const auto sent = theirs.send(encode_number(packet_kind::hello, 1), {}, 1s);
      ::_exit(sent ? 0 : 2);
    }
    const auto opened =
        share_link::open(machine_runtime, std::move(ours), {.limit = 20s, .other_users = allowed});
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
    if (allowed) {
      ASSERT_EQ(reason_of(opened), "");
      EXPECT_EQ(opened->peer(), (share_peer{child, 65534}));
    } else {
      EXPECT_EQ(reason_of(opened), "not_permitted: the other process belongs to another user");
    }
  }
}

// --- Tickets -------------------------------------------------------------------------------------

TEST_P(hostile_peer, sends_tickets_of_another_version) {
  auto raw = encode_offer(ticket());
  raw[8 + 8] = std::byte{2};
  other->say(raw, one(good));
  EXPECT_EQ(reason_of(link->receive(1s)), "bad_version: ticket version 2");
  expect_usable(1);
}

TEST_P(hostile_peer, sends_cut_and_bent_messages) {
  const auto raw = encode_offer(ticket());
  for (std::size_t length = 1; length < raw.size(); length += 5) {
    other->say(std::span{raw}.first(length), one(good));
    EXPECT_TRUE(code_of(link->receive(1s)).has_value()) << length;
  }
  for (std::size_t i = 0; i < raw.size(); ++i) {
    auto bent = raw;
    bent[i] ^= std::byte{0x41};
    other->say(bent, one(good));
    EXPECT_TRUE(code_of(link->receive(1s)).has_value()) << i;
  }
  expect_usable(1);
}

TEST_P(hostile_peer, lies_about_sizes) {
  auto lie = ticket(1);
  lie.piece = unit() * 2;  // twice what the handle is
  lie.size = unit() * 2;
  other->offer(lie, one(good));
  EXPECT_TRUE(code_of(opened()).has_value());

  lie = ticket(2);
  lie.piece = lie.size = unit() * (1 << 20);
  other->offer(lie, one(good));
  EXPECT_TRUE(code_of(opened()).has_value());

  lie = ticket(3);
  lie.piece = lie.size = unit() - 1_B;  // no size that a handle has
  other->offer(lie, one(good));
  EXPECT_EQ(code_of(opened()), errc::invalid_argument);

  const auto larger = shared_memory::create(gpu(), unit() * 2).value();
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cu->mem_retain_allocation_handle(
                &handle, reinterpret_cast<void*>(static_cast<std::uintptr_t>(larger.address()))),
            CUDA_SUCCESS);
  const auto number = vmm::export_descriptor(context_scope{gpu()}, {handle, unit() * 2}).value();
  ASSERT_EQ(cu->mem_release(handle), CUDA_SUCCESS);
  other->offer(ticket(4), one(number));  // half of what the handle is
  EXPECT_TRUE(code_of(opened()).has_value());
  expect_usable(5);
}

TEST_P(hostile_peer, changes_its_mind_about_a_handle) {
  other->offer(ticket(1), one(good));
  const auto first = opened().value();
  auto lie = ticket(2);
  lie.piece = lie.size = unit() * 2;
  other->offer(lie, one(good));
  EXPECT_EQ(reason_of(opened()),
            "invalid_argument: the size of a received handle does not match the offer");
  EXPECT_TRUE(first.address());
}

TEST_P(hostile_peer, names_a_device_that_is_not_here) {
  auto lie = ticket();
  lie.device.fill(0xee);
  other->offer(lie, one(good));
  EXPECT_EQ(reason_of(opened()), "no_device: this process does not see the device");
}

TEST_P(hostile_peer, names_another_device_than_the_memory_s) {
  if (machine_runtime->device_count() < 2) GTEST_SKIP() << "there is one device";
  auto lie = ticket();
  lie.device = machine_runtime->device(device_id{1}).value().uuid().value();
  other->offer(lie, one(good));
  EXPECT_EQ(reason_of(opened()), "invalid_argument: the memory belongs to another device");
}

TEST_P(hostile_peer, replays_tickets_and_passes_on_those_of_others) {
  const std::string seen = "not_permitted: the ticket was already received";
  other->offer(ticket(5), one(good));
  EXPECT_TRUE(opened());
  other->offer(ticket(5), one(good));
  EXPECT_EQ(reason_of(link->receive(1s)), seen);
  other->offer(ticket(4), one(good));
  EXPECT_EQ(reason_of(link->receive(1s)), seen);
  auto foreign = ticket(6);
  foreign.exporter = other->number + 1;
  other->offer(foreign, one(good));
  EXPECT_EQ(reason_of(link->receive(1s)), "not_permitted: the ticket belongs to another process");
  other->offer(ticket(6));  // counts, though nothing comes of it
  EXPECT_EQ(code_of(link->receive(1s)), errc::invalid_argument);
  other->offer(ticket(6), one(good));
  EXPECT_EQ(reason_of(link->receive(1s)), seen);
  expect_usable(7);
}

TEST_P(hostile_peer, lets_another_process_speak) {
  const pid_t child = ::fork();  // touches no driver
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto sent = other->end.send(encode_number(packet_kind::closed, 1), {}, 1s);
    ::_exit(sent ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_EQ(reason_of(link->receive(1s)),
            "not_permitted: a message came from an unexpected process");
  expect_usable(1);
}

// --- Descriptors ---------------------------------------------------------------------------------

TEST_P(hostile_peer, sends_another_number_of_descriptors) {
  const std::string another =
      "invalid_argument: the number of descriptors does not match the ticket";
  const std::string none = "invalid_argument: the message carries unexpected descriptors";
  other->offer(ticket(1));
  EXPECT_EQ(reason_of(link->receive(1s)), another);
  const int two[] = {good.get(), good.get()};
  other->offer(ticket(2), two);
  EXPECT_EQ(reason_of(link->receive(1s)), another);
  const std::vector<int> many(most_share_pieces, good.get());
  other->offer(ticket(3), many);
  EXPECT_EQ(reason_of(link->receive(1s)), another);
  other->say(sharing::encode_note(as_note("x")), one(good));
  EXPECT_EQ(reason_of(link->receive(1s)), none);
  other->say(encode_number(packet_kind::closed, 1), many);
  EXPECT_EQ(reason_of(link->receive(1s)), none);
  expect_usable(4);
}

// The other side keeps what it offered until it is released: also what could not be received.
TEST_P(hostile_peer, need_not_keep_what_was_refused) {
  const closing_threads closing;
  other->offer(ticket(1));
  EXPECT_EQ(code_of(link->receive(1s)), errc::invalid_argument);
  expect_heard(packet_kind::closed, 1);
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const descriptor first{ends[0]};
  const descriptor second{ends[1]};
  other->offer(ticket(2), one(first));
  EXPECT_EQ(code_of(link->receive(1s)), errc::invalid_argument);
  expect_heard(packet_kind::closed, 2);

  other->offer(ticket(3), one(good));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto refused = link->receive(1s);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(reason_of(refused),
            "limit_exceeded: the message carries more descriptors than this process may open: it "
            "may have 0 open (RLIMIT_NOFILE); close some or raise the limit (ulimit -n), then have "
            "the message sent again");
  expect_heard(packet_kind::closed, 3);
  other->offer(ticket(3), one(good));
  EXPECT_EQ(reason_of(link->receive(1s)), "not_permitted: the ticket was already received");
  EXPECT_TRUE(hears_nothing());
  expect_usable(4);
}

TEST_P(hostile_peer, asks_and_does_not_read) {
  fill_up();
  for (std::uint64_t grant = 1; grant <= 3000; ++grant) {
    other->say(encode_number(packet_kind::revoke, grant));
    EXPECT_TRUE(link->check());
  }
  std::uint64_t answers = 0;
  for (bool heard_any = true; heard_any;) {
    EXPECT_TRUE(link->check());
    heard_any = false;
    while (auto message = other->end.receive(0ms)) {
      heard_any = true;
      const auto read = sharing::decode_packet(message->content).value();
      if (read.kind == packet_kind::note) continue;
      EXPECT_EQ(read.kind, packet_kind::closed);
      EXPECT_EQ(read.number, ++answers);
    }
  }
  EXPECT_EQ(answers, 1024u);
  expect_usable(1);
}

TEST_P(hostile_peer, is_waited_for_as_long_as_it_takes) {
  constexpr auto forever = std::chrono::milliseconds::max();
  for (const auto limit :
       {forever, std::chrono::milliseconds{std::chrono::hours{24 * 365 * 300}}, forever - 1ms}) {
    std::atomic<pid_t> number{0};
    std::atomic<bool> is_done{false};
    std::thread waiting{[&] {
      number = ::gettid();
      EXPECT_EQ(reason_of(link->receive(limit)), "");
      is_done = true;
    }};
    while (number == 0 || (!is_done && !is_asleep(number))) std::this_thread::yield();
    EXPECT_FALSE(is_done);
    other->say(sharing::encode_note({}));
    waiting.join();
  }
  EXPECT_EQ(code_of(link->receive(std::chrono::milliseconds::min())), errc::not_ready);
  EXPECT_EQ(sharing::deadline_after(forever), timer::time_point::max());
  const auto past = sharing::deadline_after(-forever);
  EXPECT_LE(past, timer::now());
  EXPECT_GT(sharing::deadline_after(1h), timer::now() + 59min);
}

TEST_P(hostile_peer, that_says_nothing_costs_no_time) {
  const auto thread_time = [] {
    timespec used{};
    EXPECT_EQ(::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used), 0);
    return std::chrono::seconds{used.tv_sec} + std::chrono::nanoseconds{used.tv_nsec};
  };
  std::atomic<bool> waits{true};
  std::thread waiting{[&] {
    const auto before = thread_time();
    EXPECT_EQ(code_of(link->receive(200ms)), errc::not_ready);
    EXPECT_LT(thread_time() - before, 50ms) << "it sleeps until something comes";
    waits = false;
  }};
  // Whoever else looks for messages, and finds none, wakes nobody.
  while (waits) {
    EXPECT_EQ(link->outstanding(), 0u);
    EXPECT_EQ(code_of(other->end.receive(5ms)), errc::not_ready);
  }
  waiting.join();
}

TEST_P(hostile_peer, is_not_to_blame_where_somebody_closed_the_descriptor) {
  other->offer(ticket(1), one(good));
  std::vector<bool> before(1024);
  for (int i = 0; i < 1024; ++i) before[static_cast<std::size_t>(i)] = ::fcntl(i, F_GETFD) != -1;
  auto offer = link->receive(1s).value();
  int received = 0;
  while (received < 1024 &&
         (before[static_cast<std::size_t>(received)] || ::fcntl(received, F_GETFD) == -1))
    ++received;
  ASSERT_LT(received, 1024);
  ::close(received);
  EXPECT_EQ(reason_of(offer.open_memory()),
            "invalid_argument: a received descriptor is not memory");
  // What the offer closes is open again, and its own.
  ASSERT_EQ(::fcntl(good.get(), F_DUPFD_CLOEXEC, received), received);
}

TEST_P(hostile_peer, sends_descriptors_of_other_things) {
  const closing_threads closing;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const descriptor reads{ends[0]};
  const descriptor writes{ends[1]};
  const descriptor nothing{::open("/dev/null", O_RDWR | O_CLOEXEC)};
  const descriptor folder{::open("/", O_RDONLY | O_CLOEXEC)};
  const descriptor socket{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
  const descriptor file{::memfd_create("weir test", MFD_CLOEXEC)};
  ASSERT_EQ(::ftruncate(file.get(), 4 << 20), 0);
  std::uint64_t grant = 0;
  const descriptor stored{::open("/proc/self/exe", O_RDONLY | O_CLOEXEC)};
  for (const descriptor* each : {&socket, &folder, &stored}) {
    other->offer(ticket(++grant), one(*each));
    EXPECT_EQ(reason_of(link->receive(1s)),
              "invalid_argument: a received descriptor is a socket or a file, expected memory")
        << grant;
  }
  for (const descriptor* each : {&reads, &writes}) {
    other->offer(ticket(++grant), one(*each));
    EXPECT_EQ(reason_of(opened()), "invalid_argument: a received descriptor is not memory")
        << grant;
  }
  for (const descriptor* each : {&nothing, &file}) {  // the driver may know them
    other->offer(ticket(++grant), one(*each));
    EXPECT_TRUE(code_of(opened()).has_value()) << grant;
  }
  other->offer({.kind = share_kind::pool,
                .device = gpu().uuid().value(),
                .exporter = other->number,
                .object = 1,
                .grant = ++grant,
                .pieces = 1},
               one(file));
  EXPECT_TRUE(code_of(link->receive(1s).value().open_pool()).has_value());
  expect_usable(++grant);
}

TEST_P(hostile_peer, sends_handles_that_the_driver_did_not_make) {
  const auto nonsense = [&](share_kind kind, bytes size, std::uint64_t grant) {
    share_ticket forged{.kind = kind,
                        .device = gpu().uuid().value(),
                        .exporter = other->number,
                        .object = 1,
                        .grant = grant,
                        .size = size};
    other->offer(forged);
    return link->receive(1s).value();
  };
  EXPECT_TRUE(code_of(nonsense(share_kind::legacy_memory, unit(), 1).open_memory()).has_value());
  EXPECT_TRUE(code_of(nonsense(share_kind::event, {}, 2).open_event()).has_value());
  expect_usable(3);
}

TEST_P(hostile_peer, sends_notes_that_are_too_long) {
  const std::string text(share_link::most_note, 'x');
  other->say(sharing::encode_note(as_note(text + "x")));
  EXPECT_EQ(reason_of(link->receive(1s)), "invalid_argument: the note is too long");
  other->say(sharing::encode_note(as_note(text)));
  EXPECT_EQ(text_of(link->receive(1s).value()), text);
}

TEST_P(hostile_peer, sends_messages_that_are_too_large) {
  const std::vector<char> large(share_channel::most_content + 1);
  ASSERT_EQ(::send(other->end.get(), large.data(), large.size(), 0),
            static_cast<ssize_t>(large.size()));
  EXPECT_EQ(reason_of(link->receive(1s)), "invalid_argument: the message is too large");
  expect_usable(1);
}

// --- Time ----------------------------------------------------------------------------------------

TEST_P(hostile_peer, floods_with_offers) {
  const std::size_t before = open_descriptors();
  std::uint64_t grant = 0;
  result<void> sent;
  while (sent) sent = other->end.send(encode_offer(ticket(++grant)), one(good), 0ms);
  EXPECT_EQ(sent.code(), errc::not_ready);
  EXPECT_TRUE(link->check());  // looks, and takes in no more than it may
  EXPECT_EQ(open_descriptors(), before + 64);
  std::size_t received = 0;
  while (link->receive(0ms)) ++received;
  EXPECT_EQ(received, grant - 1);
  EXPECT_EQ(open_descriptors(), before);
}

TEST_P(hostile_peer, floods_with_descriptors) {
  const std::size_t before = open_descriptors();
  const std::vector<int> many(most_share_pieces, good.get());
  const auto offer = [&](std::uint64_t grant) {
    auto large = ticket(grant);
    large.pieces = most_share_pieces;
    large.size = unit() * most_share_pieces;
    other->offer(large, many);
  };
  for (const std::uint64_t grant : {1, 2, 3}) offer(grant);
  EXPECT_TRUE(link->check());
  EXPECT_EQ(open_descriptors(), before + 480);
  {
    const auto taken = link->receive(0ms).value();  // makes room for another
    EXPECT_EQ(taken.ticket().grant, 1u);
    EXPECT_TRUE(link->check());
    EXPECT_EQ(open_descriptors(), before + 720);
  }
  EXPECT_EQ(open_descriptors(), before + 480);
  EXPECT_EQ(link->receive(0ms).value().ticket().grant, 2u);
  EXPECT_EQ(link->receive(0ms).value().ticket().grant, 3u);
  EXPECT_EQ(open_descriptors(), before);

  // An offer that is revoked before it was received makes room, too.
  offer(4);
  other->say(encode_number(packet_kind::revoke, 4));
  for (const std::uint64_t grant : {5, 6}) offer(grant);
  EXPECT_TRUE(link->check());
  EXPECT_EQ(open_descriptors(), before + 480);
  EXPECT_EQ(link->receive(0ms).value().ticket().grant, 5u);
  EXPECT_EQ(link->receive(0ms).value().ticket().grant, 6u);
}

TEST_P(hostile_peer, sends_more_than_anybody_receives) {
  const auto grant = link->offer(memory).value();
  for (int i = 0; i < 64; ++i) other->say(sharing::encode_note({}));
  other->say(encode_number(packet_kind::closed, grant.number()));
  EXPECT_EQ(reason_of(link->revoke(grant, 20s)), "not_ready: unread messages");
  EXPECT_EQ(link->outstanding(), 1u);
  EXPECT_TRUE(link->receive(0ms).value().is_note());
  EXPECT_EQ(link->outstanding(), 0u);
}

TEST_P(hostile_peer, does_not_read) {
  const auto begin = timer::now();
  const auto grant = link->offer(memory).value();
  const std::size_t count = fill_up();
  EXPECT_EQ(code_of(link->send_note({})), errc::not_ready);
  EXPECT_EQ(code_of(link->offer(memory)), errc::not_ready);
  EXPECT_EQ(code_of(link->revoke(grant, 10ms)), errc::not_ready);
  EXPECT_EQ(link->outstanding(), 1u);  // nothing more was offered
  EXPECT_LT(timer::now() - begin, 30s);
  EXPECT_EQ(heard().descriptors.size(), 1u);
  for (std::size_t i = 0; i < count; ++i)
    EXPECT_EQ(sharing::decode_packet(heard().content).value().kind, packet_kind::note);
  EXPECT_TRUE(hears_nothing());
  EXPECT_TRUE(link->send_note({}));
}

TEST_P(hostile_peer, neither_reads_nor_stops_sending) {
  const auto grant = link->offer(memory).value();
  fill_up();
  for (int i = 0; i < 64; ++i) other->say(sharing::encode_note({}));
  // It was not asked to release anything: what it sends has nothing to do with that.
  EXPECT_EQ(reason_of(link->revoke(grant, 10ms)),
            "not_ready: the deadline passed before the other process answered");
  EXPECT_EQ(link->outstanding(), 1u);
}

// What had no room is sent by the next call, whichever it is, and before what that one sends.
TEST_P(hostile_peer, hears_late_what_it_had_no_room_for) {
  other->offer(ticket(1), one(good));
  const auto kept = opened().value();
  std::uint64_t grant = 1;
  const std::vector<std::function<void()>> calls = {
      [&] { EXPECT_TRUE(link->check()); },
      [&] { EXPECT_EQ(code_of(link->receive(0ms)), errc::not_ready); },
      [&] { EXPECT_TRUE(kept.address()); },
      [&] { EXPECT_TRUE(link->send_note({})); },
  };
  for (std::size_t i = 0; i < calls.size(); ++i) {
    SCOPED_TRACE(i);
    other->offer(ticket(++grant), one(good));
    std::optional<share_offer> dropped = link->receive(1s).value();
    const std::size_t count = fill_up();
    dropped.reset();
    for (std::size_t j = 0; j < count; ++j) static_cast<void>(heard());
    EXPECT_TRUE(hears_nothing());
    calls[i]();
    expect_heard(packet_kind::closed, grant);
  }
  EXPECT_EQ(sharing::decode_packet(heard().content).value().kind, packet_kind::note);
}

// Two sides that only send do not wait for each other: who sends receives.
TEST_P(hostile_peer, only_sends_like_this_one) {
  const std::vector<std::byte> note = sharing::encode_note(std::vector<std::byte>(1024));
  while (other->end.send(note, {}, 0ms)) {
  }
  EXPECT_EQ(code_of(other->end.send(note, {}, 0ms)), errc::not_ready);
  EXPECT_TRUE(link->send_note({}));
  EXPECT_EQ(code_of(other->end.send(note, {}, 0ms)), std::nullopt);
}

/// Keeps a thread that waits from waking up: it is in the handler of a signal meanwhile.
class held_thread {
 public:
  explicit held_thread(std::thread& waiting) {
    is_held = false;
    may_go = false;
    struct sigaction holding {};
    holding.sa_handler = [](int) {
      is_held = true;
      const timespec moment{0, 100'000};
      while (!may_go) ::nanosleep(&moment, nullptr);
    };
    EXPECT_EQ(::sigaction(SIGUSR1, &holding, &before_), 0);
    EXPECT_EQ(::pthread_kill(waiting.native_handle(), SIGUSR1), 0);
    while (!is_held) std::this_thread::yield();
  }
  ~held_thread() {
    may_go = true;
    EXPECT_EQ(::sigaction(SIGUSR1, &before_, nullptr), 0);
  }
  held_thread(const held_thread&) = delete;
  held_thread& operator=(const held_thread&) = delete;

 private:
  static inline std::atomic<bool> is_held{false};
  static inline std::atomic<bool> may_go{false};
  struct sigaction before_ {};
};

// Any thread may read a message that another one waits for.
TEST_P(hostile_peer, is_heard_by_who_waits_whoever_reads_its_messages) {
  const auto grant = link->offer(memory).value();
  static_cast<void>(heard());
  const auto while_waiting = [&](const std::function<void()>& wait, const auto& message) {
    std::atomic<pid_t> number{0};
    std::atomic<bool> is_done{false};
    std::thread waiting{[&] {
      number = ::gettid();
      wait();
      is_done = true;
    }};
    while (number == 0 || (!is_done && !is_asleep(number))) std::this_thread::yield();
    EXPECT_FALSE(is_done);
    if (!is_done) {
      const held_thread asleep{waiting};
      message();
      EXPECT_TRUE(link->check());  // takes the message in
    }
    waiting.join();
  };
  while_waiting([&] { EXPECT_EQ(code_of(link->receive(5s)), std::nullopt); },
                [&] { other->say(sharing::encode_note(as_note("x"))); });
  while_waiting([&] { EXPECT_EQ(code_of(link->revoke(grant, 5s)), std::nullopt); },
                [&] { other->say(encode_number(packet_kind::closed, grant.number())); });
  EXPECT_EQ(link->outstanding(), 0u);
}

// A message without room waits for it, as long as the link's limit says.
TEST_P(hostile_peer, reads_late) {
  auto [ours, theirs] = share_channel::pair().value();
  liar slow{std::move(theirs)};
  slow.say(encode_number(packet_kind::hello, slow.number));
  const int number = ours.get();
  auto patient = share_link::open(machine_runtime, std::move(ours), {.limit = 20s}).value();
  EXPECT_TRUE(slow.end.receive(1s)) << "the greeting";
  const auto fill = [&] {
    const std::vector<std::byte> note = sharing::encode_note(std::vector<std::byte>(1024));
    std::size_t count = 0;
    while (::send(number, note.data(), note.size(), MSG_DONTWAIT) > 0) ++count;
    return count;
  };
  const pid_t sender = ::gettid();
  std::atomic<bool> is_sent{false};
  const auto once_it_waits = [&](const std::function<void()>& act) {
    while (!is_sent && !is_asleep(sender)) std::this_thread::yield();
    act();
  };
  const std::size_t count = fill();
  EXPECT_GT(count, 0u);
  std::thread reader{[&] {
    once_it_waits([&] {
      for (std::size_t i = 0; i < count; ++i) EXPECT_TRUE(slow.end.receive(1s));
    });
  }};
  EXPECT_EQ(reason_of(patient.send_note(as_note("late"))), "");
  is_sent = true;
  reader.join();
  EXPECT_EQ(slow.end.receive(1s).value().content, sharing::encode_note(as_note("late")));

  EXPECT_GT(fill(), 0u);
  is_sent = false;
  std::thread closer{[&] { once_it_waits([&] { slow.end.close(); }); }};
  EXPECT_EQ(code_of(patient.send_note({})), errc::peer_closed);
  is_sent = true;
  closer.join();
}

TEST_P(hostile_peer, closes_early) {
  other->offer(ticket(1), one(good));
  const auto before = opened().value();
  other->offer(ticket(2), one(good));
  other->end.close();
  auto offer = link->receive(1s).value();  // what it sent is still good
  EXPECT_EQ(code_of(link->receive(1s)), errc::peer_closed);
  EXPECT_EQ(code_of(offer.open_memory()), errc::peer_closed);
  EXPECT_EQ(code_of(before.address()), errc::peer_closed);
  EXPECT_EQ(code_of(link->check()), errc::peer_closed);
  EXPECT_EQ(code_of(link->offer(memory)), errc::peer_closed);
  EXPECT_EQ(code_of(link->send_note({})), errc::peer_closed);
  EXPECT_EQ(link->outstanding(), 0u);
}

// A number that somebody closed: nothing comes through it any more, and nothing is to be read.
TEST_P(hostile_peer, is_gone_where_the_socket_is) {
  auto [ours, theirs] = share_channel::pair().value();
  const liar second{std::move(theirs)};
  second.say(encode_number(packet_kind::hello, second.number));
  const int number = ours.get();
  auto cut = share_link::open(machine_runtime, std::move(ours), {.limit = 20ms}).value();
  second.say(sharing::encode_note(as_note("lost")));
  const descriptor nothing{::eventfd(0, EFD_CLOEXEC)};
  ASSERT_EQ(::dup3(nothing.get(), number, O_CLOEXEC), number);
  EXPECT_EQ(code_of(cut.check()), errc::peer_closed);
  EXPECT_EQ(code_of(cut.receive(20ms)), errc::peer_closed);
  EXPECT_EQ(code_of(cut.send_note({})), errc::peer_closed);
}

TEST_P(hostile_peer, closes_with_memory_of_this_one) {
  const auto grant = link->offer(memory).value();
  other->end.close();
  EXPECT_EQ(code_of(link->revoke(grant, 1s)), errc::peer_closed);  // it lives, and may have it
  EXPECT_EQ(link->outstanding(), 1u);
}

TEST_P(hostile_peer, lets_go_of_what_it_never_had) {
  other->say(encode_number(packet_kind::closed, 12345));
  other->say(encode_number(packet_kind::revoke, 12345));
  EXPECT_TRUE(link->check());
  expect_heard(packet_kind::closed, 12345);
  EXPECT_TRUE(hears_nothing());
  const auto grant = link->offer(memory).value();
  EXPECT_EQ(code_of(link->revoke(share_grant{grant.number() + 1}, 0ms)), errc::not_found);
  EXPECT_EQ(link->outstanding(), 1u);
  other->say(encode_number(packet_kind::closed, grant.number()));
  EXPECT_EQ(link->outstanding(), 0u);
  other->say(encode_number(packet_kind::hello, 5));
  EXPECT_EQ(reason_of(link->receive(1s)),
            "invalid_argument: the other process sent a second greeting");
}

// --- What this side says, as the other one reads it ----------------------------------------------

class spoken_on_a_link : public hostile_peer {};
WEIR_CONTRACT(spoken_on_a_link);

TEST_P(spoken_on_a_link, are_tickets_of_what_is_offered) {
  const auto read = [&] { return sharing::decode_packet(heard().content).value().ticket; };
  const auto uuid = gpu().uuid().value();
  const auto grant = link->offer(memory, {.rights = access_rights::read}).value();
  const share_ticket first = read();
  EXPECT_EQ(first, (share_ticket{.kind = share_kind::memory,
                                 .rights = access_rights::read,
                                 .device = uuid,
                                 .exporter = sharing::own_number(),
                                 .object = first.object,
                                 .grant = grant.number(),
                                 .size = unit(),
                                 .piece = unit(),
                                 .pieces = 1}));
  const auto second_memory = shared_memory::create(gpu(), unit()).value();
  const auto later = link->offer(second_memory).value();
  const share_ticket second = read();
  EXPECT_GT(later.number(), grant.number());
  EXPECT_EQ(second.grant, later.number());
  EXPECT_EQ(second.rights, access_rights::read_write);
  EXPECT_NE(second.object, first.object);
  EXPECT_EQ(link->outstanding(), 2u);

  const CUdeviceptr plain = new_memory(unit().count() * 2);
  const auto legacy_grant = link->offer_legacy(gpu(), plain).value();
  const share_ticket legacy = read();
  EXPECT_EQ(legacy.kind, share_kind::legacy_memory);
  EXPECT_EQ(legacy.grant, legacy_grant.number());
  EXPECT_EQ(legacy.size, unit() * 2);
  EXPECT_EQ(legacy.device, uuid);
  EXPECT_EQ(link->outstanding(), 3u);

  const auto mark = event::create(gpu(), {.interprocess = true}).value();
  const auto exported = mark.export_handle().value();
  const auto event_grant = link->offer(mark).value();
  const share_ticket of_event = read();
  EXPECT_EQ(of_event.kind, share_kind::event);
  EXPECT_EQ(of_event.grant, event_grant.number());
  EXPECT_EQ(std::memcmp(of_event.payload.data(), &exported, 64), 0);
  EXPECT_EQ(link->outstanding(), 3u);  // events and pools are not

  const auto pool =
      stream_pool::create(gpu(), {.handles = stream_pool_handles::posix_descriptor}).value();
  const auto pool_grant = link->offer(pool).value();
  const auto pool_message = heard();
  const share_ticket of_pool = sharing::decode_packet(pool_message.content).value().ticket;
  EXPECT_EQ(of_pool.kind, share_kind::pool);
  EXPECT_EQ(of_pool.grant, pool_grant.number());
  EXPECT_EQ(of_pool.object, reinterpret_cast<std::uintptr_t>(pool.handle()));
  EXPECT_EQ(pool_message.descriptors.size(), 1u);

  const auto stream = weir::stream::create(gpu()).value();
  auto block = pool.allocate_owned(3_MiB, stream).value();
  const auto pointer = pool.export_pointer(block.data()).value();
  const auto block_grant = link->offer(block).value();
  const share_ticket of_block = read();
  EXPECT_EQ(of_block.kind, share_kind::pool_pointer);
  EXPECT_EQ(of_block.grant, block_grant.number());
  EXPECT_EQ(of_block.object, of_pool.object);
  EXPECT_EQ(of_block.size, 3_MiB);
  EXPECT_EQ(of_block.payload, pointer.data);
  EXPECT_EQ(link->outstanding(), 3u);
  EXPECT_TRUE(block.free());
  EXPECT_TRUE(stream.synchronize());
}

TEST_P(spoken_on_a_link, are_the_handles_of_a_part) {
  const auto large = shared_memory::create(gpu(), unit() * 4, {.unit = unit()}).value();
  struct part {
    bytes offset;
    bytes size;
    std::uint32_t first;
    std::uint32_t pieces;
    bytes granted;
  };
  const bytes one_byte = 1_B;
  for (const part& each : {
           part{{}, {}, 0, 4, unit() * 4},
           part{{}, unit(), 0, 1, unit()},
           part{{}, unit() + one_byte, 0, 2, unit() + one_byte},
           part{unit() - one_byte, one_byte, 0, 1, one_byte},
           part{unit() - one_byte, one_byte * 2, 0, 2, one_byte * 2},
           part{unit(), unit(), 1, 1, unit()},
           part{unit() + one_byte, {}, 1, 3, unit() * 3 - one_byte},
           part{unit() * 4 - one_byte, {}, 3, 1, one_byte},
           part{unit() * 3, unit(), 3, 1, unit()},
       }) {
    SCOPED_TRACE(to_string(each.offset) + ", " + to_string(each.size));
    ASSERT_EQ(reason_of(link->offer(large, {.offset = each.offset, .size = each.size})), "");
    const auto message = heard();
    const share_ticket ticket = sharing::decode_packet(message.content).value().ticket;
    EXPECT_EQ(message.descriptors.size(), each.pieces);
    EXPECT_EQ(ticket.first, each.first);
    EXPECT_EQ(ticket.pieces, each.pieces);
    EXPECT_EQ(ticket.offset, each.offset - unit() * each.first);
    EXPECT_EQ(ticket.size, each.granted);
    EXPECT_EQ(ticket.piece, unit());
  }
  const std::string outside =
      "invalid_argument: the part exceeds the memory, or its access rights are invalid";
  for (const share_view& each : {
           share_view{.offset = unit() * 4},
           share_view{.offset = unit(), .size = unit() * 3 + one_byte},
           share_view{.size = unit() * 4 + one_byte},
           share_view{.offset = one_byte, .size = bytes::max()},
           share_view{.rights = access_rights::none},
       }) {
    const auto refused = link->offer(large, each);
    EXPECT_EQ(reason_of(refused), outside);
    EXPECT_EQ(refused.error().requested(), each.size);
  }
  EXPECT_EQ(code_of(link->offer(shared_memory{})), errc::invalid_argument);
  EXPECT_TRUE(hears_nothing());
}

TEST_P(spoken_on_a_link, are_refusals_of_legacy_memory_that_is_not_alone) {
  const CUdeviceptr memory_of_two = new_memory(unit().count());
  EXPECT_EQ(reason_of(link->offer_legacy(gpu(), memory_of_two + 512)),
            "invalid_argument: the pointer is not the start of an allocation");
  EXPECT_EQ(reason_of(link->offer_legacy(gpu(), new_memory(4096))),
            "not_permitted: size must be a multiple of " + to_string(unit()) +
                "; otherwise neighbouring memory would be exported");
  EXPECT_EQ(code_of(link->offer_legacy(gpu(), memory_of_two)), std::nullopt);
}

TEST_P(spoken_on_a_link, is_what_was_offered_and_never_received) {
  other->offer(ticket(3), one(good));
  other->say(sharing::encode_note(as_note("between")));
  EXPECT_TRUE(link->check());  // takes these in
  other->offer(ticket(5), one(good));
  link.reset();
  expect_heard(packet_kind::closed, 3);
  expect_heard(packet_kind::closed, 5);
  EXPECT_EQ(code_of(other->end.receive(1s)), errc::peer_closed);
}

TEST_P(spoken_on_a_link, is_revocation_and_release) {
  const auto grant = link->offer(memory).value();
  static_cast<void>(heard());
  EXPECT_EQ(code_of(link->revoke(grant, 0ms)), errc::not_ready);
  expect_heard(packet_kind::revoke, grant.number());

  other->offer(ticket(7), one(good));
  auto taken = opened().value();
  EXPECT_TRUE(hears_nothing());
  other->say(encode_number(packet_kind::revoke, 7));
  EXPECT_EQ(reason_of(taken.address()), "not_permitted: the other process revoked the memory");
  EXPECT_TRUE(hears_nothing()) << "it is still mapped";
  EXPECT_TRUE(taken.close());
  expect_heard(packet_kind::closed, 7);
}

TEST_P(spoken_on_a_link, ends_without_a_word_about_legacy_memory) {
  ASSERT_TRUE(link->offer_legacy(gpu(), new_memory(unit().count())));
  link.reset();  // the caller keeps the memory, whatever the other side does
}

// The connection is the parent's: a forked child's copies say nothing, and are refused.
TEST_P(spoken_on_a_link, is_nothing_by_a_forked_child) {
  const auto grant = link->offer(memory).value();
  static_cast<void>(heard());
  other->offer(ticket(1), one(good));
  other->offer(ticket(2), one(good));
  std::optional<share_offer> received = link->receive(1s).value();
  EXPECT_TRUE(link->check());  // the second waits
  const std::uint64_t number = sharing::own_number();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int failed = 0;
    if (sharing::own_number() == number) failed |= 1;
    if (code_of(link->offer(memory)) != errc::driver_gone) failed |= 2;
    if (code_of(link->revoke(grant, 0ms)) != errc::driver_gone) failed |= 4;
    received.reset();
    link.reset();
    ::_exit(failed);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(hears_nothing());
  EXPECT_EQ(link->outstanding(), 1u);
  received.reset();
  expect_heard(packet_kind::closed, 1);
}

TEST(numbers_of_sharing, are_never_used_twice) {
  const std::uint64_t first = sharing::next_number();
  EXPECT_NE(first, 0u);
  EXPECT_EQ(sharing::next_number(), first + 1);
  EXPECT_NE(sharing::own_number(), 0u);
  EXPECT_EQ(sharing::own_number(), sharing::own_number());
}

TEST(numbers_of_sharing, differ_between_the_children_of_a_process) {
  std::set<std::uint64_t> numbers{sharing::own_number()};
  for (int i = 0; i < 8; ++i) {  // most likely with process numbers that follow each other
    int ends[2] = {-1, -1};
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const descriptor reading{ends[0]};
    const descriptor writing{ends[1]};
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const std::uint64_t number = sharing::own_number();
      ::_exit(::write(writing.get(), &number, sizeof number) == sizeof number ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
    std::uint64_t number = 0;
    ASSERT_EQ(::read(reading.get(), &number, sizeof number), ssize_t{sizeof number});
    EXPECT_TRUE(numbers.insert(number).second) << number;
  }
}

}  // namespace
}  // namespace weir::testing_support
