// The socket under a link: whole messages, descriptors, deadlines, and ends that go away.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "sharing/sharing_fixture.hpp"

namespace weir::testing_support {
namespace {

using timer = std::chrono::steady_clock;

std::vector<std::byte> some_bytes(std::size_t count) {
  return std::vector<std::byte>(count, std::byte{7});
}

TEST(channels, carry_whole_messages_and_say_who_wrote_them) {
  auto [one, two] = share_channel::pair().value();
  EXPECT_TRUE(one.send(some_bytes(3), {}, 1s));
  EXPECT_TRUE(one.send(some_bytes(share_channel::most_content), {}, 1s));
  EXPECT_EQ(two.receive(1s).value().content.size(), 3u);
  const auto second = two.receive(1s).value();
  EXPECT_EQ(second.content, some_bytes(share_channel::most_content));
  EXPECT_EQ(second.from, (share_peer{::getpid(), ::geteuid()}));
  EXPECT_EQ(to_string(share_peer{4711, 1000}), "process 4711 of user 1000");
  EXPECT_EQ(code_of(one.send({}, {}, 1s)), errc::invalid_argument);
  EXPECT_EQ(code_of(one.send(some_bytes(share_channel::most_content + 1), {}, 1s)),
            errc::invalid_argument);
}

TEST(channels, carry_descriptors) {
  const std::size_t before = open_descriptors();
  {
    auto [one, two] = share_channel::pair().value();
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const descriptor reads{ends[0]};
    {
      const descriptor writes{ends[1]};
      EXPECT_TRUE(one.send(some_bytes(1), std::span{&ends[1], 1}, 1s));
    }
    const auto got = two.receive(1s).value();
    ASSERT_EQ(got.descriptors.size(), 1u);
    EXPECT_EQ(::write(got.descriptors[0].get(), "x", 1), 1);
    char seen = 0;
    EXPECT_EQ(::read(reads.get(), &seen, 1), 1);
    EXPECT_EQ(::fcntl(got.descriptors[0].get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(channels, keep_their_deadlines) {
  auto [one, two] = share_channel::pair().value();
  const auto begin = timer::now();
  EXPECT_EQ(code_of(two.receive(30ms)), errc::not_ready);
  result<void> sent;
  while (sent) sent = one.send(some_bytes(4096), {}, 30ms);  // until it is full
  EXPECT_EQ(sent.code(), errc::not_ready);
  EXPECT_LT(timer::now() - begin, 10s);
  EXPECT_GE(timer::now() - begin, 60ms);
  EXPECT_TRUE(two.receive(0ms));  // nothing was lost or cut
  EXPECT_EQ(two.receive(0ms).value().content, some_bytes(4096));
}

TEST(channels, tell_of_a_closed_end_after_what_it_sent) {
  auto [one, two] = share_channel::pair().value();
  EXPECT_TRUE(two.send(some_bytes(9), {}, 1s));  // which the other never reads
  EXPECT_TRUE(one.send(some_bytes(1), {}, 1s));
  one.close();
  EXPECT_EQ(code_of(two.receive(1s)), std::nullopt);
  EXPECT_EQ(code_of(two.receive(1s)), errc::peer_closed);
  EXPECT_EQ(code_of(two.send(some_bytes(1), {}, 1s)), errc::peer_closed);
  EXPECT_EQ(code_of(one.receive(1s)), errc::moved_from);
  EXPECT_EQ(code_of(one.send(some_bytes(1), {}, 1s)), errc::moved_from);
}

TEST(channels, refuse_what_is_too_large_and_go_on) {
  const std::size_t before = open_descriptors();
  {
    auto [one, two] = share_channel::pair().value();
    const auto large = some_bytes(share_channel::most_content + 1);
    ASSERT_EQ(::send(one.get(), large.data(), large.size(), 0), static_cast<ssize_t>(large.size()));
    // As many descriptors as the kernel takes, which is more than any ticket speaks of.
    constexpr std::size_t flood = 253;
    std::vector<int> numbers(flood, one.get());
    std::vector<char> control(CMSG_SPACE(flood * sizeof(int)));
    char byte = 1;
    iovec part{&byte, 1};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(flood * sizeof(int));
    std::memcpy(CMSG_DATA(header), numbers.data(), flood * sizeof(int));
    ASSERT_EQ(::sendmsg(one.get(), &message, 0), 1);
    EXPECT_TRUE(one.send(some_bytes(1), {}, 1s));

    const std::size_t held = open_descriptors();
    EXPECT_EQ(code_of(two.receive(1s)), errc::invalid_argument);
    EXPECT_EQ(code_of(two.receive(1s)), errc::invalid_argument);
    EXPECT_EQ(open_descriptors(), held);
    EXPECT_EQ(two.receive(1s).value().content, some_bytes(1));
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(channels, meet_at_a_path) {
  const std::string path = ::testing::TempDir() + "weir_share_" + std::to_string(::getpid());
  EXPECT_EQ(code_of(share_channel::connect(path, 50ms)), errc::not_found);
  {
    const auto listener = share_listener::listen(path).value();
    EXPECT_EQ(listener.path(), path);
    EXPECT_EQ(code_of(share_listener::listen(path)), errc::not_permitted);
    EXPECT_EQ(code_of(listener.accept(20ms)), errc::not_ready);
    const auto one = share_channel::connect(path, 1s).value();
    const auto two = listener.accept(1s).value();
    EXPECT_TRUE(one.send(some_bytes(1), {}, 1s));
    EXPECT_EQ(two.receive(1s).value().from.process, ::getpid());
  }
  EXPECT_NE(::access(path.c_str(), F_OK), 0);
  EXPECT_EQ(code_of(share_channel::connect("", 1s)), errc::invalid_argument);
  EXPECT_EQ(code_of(share_listener::listen(std::string(200, 'x'))), errc::invalid_argument);
}

TEST(channels, adopt_sockets_for_messages_only) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const descriptor other{ends[1]};
  EXPECT_EQ(code_of(share_channel::adopt(descriptor{ends[0]})), errc::invalid_argument);
  EXPECT_EQ(code_of(share_channel::adopt(descriptor{})), errc::invalid_argument);
}

}  // namespace
}  // namespace weir::testing_support
