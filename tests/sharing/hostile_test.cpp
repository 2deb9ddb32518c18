// Everything the other process may do wrong, by mistake or not: each is one error, and nothing
// more.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sharing/sharing_fixture.hpp"

namespace weir::testing_support {
namespace {

using sharing::encode_number;
using sharing::encode_offer;
using sharing::packet_kind;
using timer = std::chrono::steady_clock;

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
    link.emplace(share_link::open(machine_runtime, std::move(ours), {.limit = 100ms}).value());
    EXPECT_TRUE(other->end.receive(1s));
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
  EXPECT_EQ(code_of(opened), errc::bad_version);
}

TEST_P(hostile_greeting, that_is_none) {
  const auto say = [&](std::vector<std::byte> raw) {
    return code_of(open_after([&](share_channel& end) { EXPECT_TRUE(end.send(raw, {}, 1s)); }));
  };
  EXPECT_EQ(say(std::vector<std::byte>(16)), errc::invalid_argument);
  EXPECT_EQ(say(std::vector<std::byte>(1)), errc::invalid_argument);
  EXPECT_EQ(say(encode_number(packet_kind::closed, 1)), errc::invalid_argument);
  EXPECT_EQ(say(sharing::encode_note({})), errc::invalid_argument);
}

TEST_P(hostile_greeting, that_does_not_come) {
  const auto begin = timer::now();
  EXPECT_EQ(code_of(open_after([](share_channel&) {})), errc::not_ready);
  EXPECT_LT(timer::now() - begin, 5s);
  EXPECT_EQ(code_of(open_after([](share_channel& end) { end.close(); })), errc::peer_closed);
  auto channel = share_channel::pair().value().first;
  EXPECT_EQ(code_of(share_link::open(nullptr, std::move(channel))), errc::invalid_argument);
}

// --- Tickets -------------------------------------------------------------------------------------

TEST_P(hostile_peer, sends_tickets_of_another_version) {
  auto raw = encode_offer(ticket());
  raw[8 + 8] = std::byte{2};
  other->say(raw, one(good));
  EXPECT_EQ(code_of(link->receive(1s)), errc::bad_version);
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
  EXPECT_EQ(code_of(opened()), errc::invalid_argument);
  EXPECT_TRUE(first.address());
}

TEST_P(hostile_peer, names_a_device_that_is_not_here) {
  auto lie = ticket();
  lie.device.fill(0xee);
  other->offer(lie, one(good));
  EXPECT_EQ(code_of(opened()), errc::no_device);
}

TEST_P(hostile_peer, names_another_device_than_the_memory_s) {
  if (machine_runtime->device_count() < 2) GTEST_SKIP() << "there is one device";
  auto lie = ticket();
  lie.device = machine_runtime->device(device_id{1}).value().uuid().value();
  other->offer(lie, one(good));
  EXPECT_EQ(code_of(opened()), errc::invalid_argument);
}

TEST_P(hostile_peer, replays_tickets_and_passes_on_those_of_others) {
  other->offer(ticket(5), one(good));
  EXPECT_TRUE(opened());
  other->offer(ticket(5), one(good));
  EXPECT_EQ(code_of(link->receive(1s)), errc::not_permitted);
  other->offer(ticket(4), one(good));
  EXPECT_EQ(code_of(link->receive(1s)), errc::not_permitted);
  auto foreign = ticket(6);
  foreign.exporter = other->number + 1;
  other->offer(foreign, one(good));
  EXPECT_EQ(code_of(link->receive(1s)), errc::not_permitted);
  expect_usable(6);
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
  EXPECT_EQ(code_of(link->receive(1s)), errc::not_permitted);
  expect_usable(1);
}

// --- Descriptors ---------------------------------------------------------------------------------

TEST_P(hostile_peer, sends_another_number_of_descriptors) {
  other->offer(ticket(1));
  EXPECT_EQ(code_of(link->receive(1s)), errc::invalid_argument);
  const int two[] = {good.get(), good.get()};
  other->offer(ticket(2), two);
  EXPECT_EQ(code_of(link->receive(1s)), errc::invalid_argument);
  const std::vector<int> many(most_share_pieces, good.get());
  other->offer(ticket(3), many);
  EXPECT_EQ(code_of(link->receive(1s)), errc::invalid_argument);
  other->say(sharing::encode_note(as_note("x")), one(good));
  EXPECT_EQ(code_of(link->receive(1s)), errc::invalid_argument);
  other->say(encode_number(packet_kind::closed, 1), many);
  EXPECT_EQ(code_of(link->receive(1s)), errc::invalid_argument);
  expect_usable(4);
}

TEST_P(hostile_peer, sends_descriptors_of_other_things) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const descriptor reads{ends[0]};
  const descriptor writes{ends[1]};
  const descriptor nothing{::open("/dev/null", O_RDWR | O_CLOEXEC)};
  const descriptor folder{::open("/", O_RDONLY | O_CLOEXEC)};
  const descriptor file{::memfd_create("weir test", MFD_CLOEXEC)};
  ASSERT_EQ(::ftruncate(file.get(), 4 << 20), 0);
  std::uint64_t grant = 0;
  for (const descriptor* each : {&reads, &nothing, &folder, &file}) {
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

// --- Time ----------------------------------------------------------------------------------------

TEST_P(hostile_peer, floods_with_offers) {
  const std::size_t before = open_descriptors();
  std::uint64_t grant = 0;
  result<void> sent;
  while (sent) sent = other->end.send(encode_offer(ticket(++grant)), one(good), 0ms);
  EXPECT_EQ(sent.code(), errc::not_ready);
  EXPECT_TRUE(link->check());  // looks, and takes in no more than it may
  EXPECT_LE(open_descriptors(), before + 64);
  std::size_t received = 0;
  while (link->receive(0ms)) ++received;
  EXPECT_EQ(received, grant - 1);
}

TEST_P(hostile_peer, does_not_read) {
  const auto begin = timer::now();
  const std::vector<std::byte> note(share_link::most_note);
  result<void> sent;
  int count = 0;
  while (sent && count < 10000) {
    sent = link->send_note(note);
    ++count;
  }
  EXPECT_EQ(code_of(sent), errc::not_ready);
  EXPECT_EQ(code_of(link->offer(memory)), errc::not_ready);
  EXPECT_EQ(link->outstanding(), 0u);  // nothing was offered
  EXPECT_LT(timer::now() - begin, 30s);
  while (other->end.receive(0ms)) {
  }
  EXPECT_TRUE(link->send_note(note));
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

TEST_P(hostile_peer, lets_go_of_what_it_never_had) {
  other->say(encode_number(packet_kind::closed, 12345));
  other->say(encode_number(packet_kind::revoke, 12345));
  EXPECT_TRUE(link->check());
  const auto grant = link->offer(memory).value();
  EXPECT_EQ(code_of(link->revoke(share_grant{grant.number() + 1}, 0ms)), errc::not_found);
  EXPECT_EQ(link->outstanding(), 1u);
  other->say(encode_number(packet_kind::closed, grant.number()));
  EXPECT_EQ(link->outstanding(), 0u);
  other->say(encode_number(packet_kind::hello, 5));
  EXPECT_EQ(code_of(link->receive(1s)), errc::invalid_argument);
}

}  // namespace
}  // namespace weir::testing_support
