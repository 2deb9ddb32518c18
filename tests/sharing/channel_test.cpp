// SPDX-License-Identifier: Apache-2.0
// The socket under a link: whole messages, descriptors, deadlines, and ends that go away.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include "sharing/sharing_fixture.hpp"
#include "support/scratch.hpp"

namespace weir::testing_support { namespace {

using timer = std::chrono::steady_clock;

std::vector<std::byte> some_bytes(std::size_t count) {
  return std::vector<std::byte>(count, std::byte{7});
}
/// No two neighbours are equal.
std::vector<std::byte> distinct_bytes(std::size_t count) {
  std::vector<std::byte> content(count);
  for (std::size_t i = 0; i < count; ++i) content[i] = static_cast<std::byte>(i % 251);
  return content;
}

std::string path_of(const char* name) {
  return ::testing::TempDir() + "weir_share_" + name + std::to_string(::getpid());
}

TEST(share_peer, is_nobody_until_the_kernel_says_who) {
  EXPECT_EQ(share_peer{}.process, 0);
  EXPECT_EQ(share_peer{}.user, 0u);
  EXPECT_EQ(share_message{}.from, share_peer{});
}

bool closes_on_exec(int number) { return (::fcntl(number, F_GETFD) & FD_CLOEXEC) != 0; }

/// A socket at a path that no share_listener made.
descriptor socket_at(const std::string& path) {
  ::unlink(path.c_str());
  descriptor socket{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path.c_str());
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return socket;
}

TEST(channels, carry_whole_messages_and_say_who_wrote_them) {
  auto [one, two] = share_channel::pair().value();
  const share_peer self{::getpid(), ::geteuid()};
  EXPECT_TRUE(one.send(distinct_bytes(3), {}, 1s));
  EXPECT_TRUE(one.send(distinct_bytes(share_channel::most_content), {}, 1s));
  EXPECT_TRUE(two.send(distinct_bytes(1), {}, 1s));
  EXPECT_EQ(two.receive(1s).value().content, distinct_bytes(3));
  const auto second = two.receive(1s).value();
  EXPECT_EQ(second.content, distinct_bytes(4096));
  EXPECT_EQ(second.from, self);
  EXPECT_EQ(one.receive(1s).value().from, self);
  EXPECT_TRUE(closes_on_exec(one.get()));
  EXPECT_TRUE(closes_on_exec(two.get()));
  EXPECT_EQ(to_string(share_peer{4711, 1000}), "process 4711 of user 1000");
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
    EXPECT_TRUE(closes_on_exec(got.descriptors[0].get()));
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(channels, carry_as_much_as_they_say_and_no_more) {
  auto [one, two] = share_channel::pair().value();
  const std::vector<int> most(most_share_pieces, one.get());
  const std::vector<int> more(most_share_pieces + 1, one.get());
  const std::string refused = "invalid_argument: the size of the message is invalid";
  EXPECT_EQ(reason_of(one.send({}, {}, 1s)), refused);
  EXPECT_EQ(reason_of(one.send(some_bytes(share_channel::most_content + 1), {}, 1s)), refused);
  EXPECT_EQ(reason_of(one.send(some_bytes(1), more, 1s)), refused);
  EXPECT_EQ(reason_of(two.receive(0ms)),
            "not_ready: the deadline passed before the other process answered");
  ASSERT_EQ(reason_of(one.send(distinct_bytes(share_channel::most_content), most, 1s)), "");
  const auto received = two.receive(1s).value();
  EXPECT_EQ(received.content, distinct_bytes(4096));
  EXPECT_EQ(received.descriptors.size(), 240u);
  EXPECT_EQ(received.from.process, ::getpid());
}

TEST(channels, keep_the_order_of_descriptors) {
  auto [one, two] = share_channel::pair().value();
  std::vector<descriptor> files;
  std::vector<int> numbers;
  for (const char* name : {"/dev/null", "/dev/zero", "/dev/urandom"}) {
    files.emplace_back(::open(name, O_RDONLY | O_CLOEXEC));
    numbers.push_back(files.back().get());
  }
  ASSERT_TRUE(one.send(some_bytes(1), numbers, 1s));
  const auto received = two.receive(1s).value();
  ASSERT_EQ(received.descriptors.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    struct stat sent {};
    struct stat came {};
    ASSERT_EQ(::fstat(numbers[i], &sent), 0);
    ASSERT_EQ(::fstat(received.descriptors[i].get(), &came), 0);
    EXPECT_EQ(came.st_rdev, sent.st_rdev) << i;
  }
}

TEST(channels, keep_their_deadlines) {
  auto [one, two] = share_channel::pair().value();
  const auto begin = timer::now();
  EXPECT_EQ(reason_of(two.receive(30ms)),
            "not_ready: the deadline passed before the other process answered");
  result<void> sent;
  while (sent) sent = one.send(some_bytes(4096), {}, 30ms);  // until it is full
  EXPECT_EQ(reason_of(sent), "not_ready: the deadline passed before the other process answered");
  EXPECT_LT(timer::now() - begin, 10s);
  EXPECT_GE(timer::now() - begin, 60ms);
  EXPECT_TRUE(two.receive(0ms));  // nothing was lost or cut
  EXPECT_EQ(two.receive(0ms).value().content, some_bytes(4096));
}

TEST(channels, send_when_there_is_room_again) {
  auto [one, two] = share_channel::pair().value();
  std::size_t count = 0;
  while (one.send(some_bytes(4096), {}, 0ms)) ++count;
  std::thread reader{[&count, &from = two] {
    for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(code_of(from.receive(20s)), std::nullopt);
  }};
  EXPECT_EQ(reason_of(one.send(some_bytes(9), {}, 20s)), "");
  reader.join();
  EXPECT_EQ(two.receive(1s).value().content, some_bytes(9));
}

TEST(listeners, leave_their_socket_alone_in_a_forked_child) {
  const scratch_folder folder;
  std::optional<share_listener> listener{share_listener::listen(folder.path("socket")).value()};
  const pid_t child = ::fork();
  if (child == 0) {
    listener.reset();
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(code_of(share_channel::connect(folder.path("socket"), 1s)), std::nullopt);
  listener.reset();
  EXPECT_EQ(folder.files(), 0u);
}

// The kernel lets a user have as many descriptors under way as a process may have open.
TEST(channels, wait_where_too_many_descriptors_are_under_way) {
  const pid_t child = ::fork();  // what it gives up is its own
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (::geteuid() == 0 && ::setuid(65534) != 0) ::_exit(1);  // root may have more
    auto [one, two] = share_channel::pair().value();
    const rlimit few{128, 128};
    if (::setrlimit(RLIMIT_NOFILE, &few) != 0) ::_exit(2);
    const int number = one.get();
    result<void> sent;
    std::size_t count = 0;
    for (; sent && count < 10'000; ++count) sent = one.send(some_bytes(1), {&number, 1}, 0ms);
    if (reason_of(sent) != "not_ready: the deadline passed before the other process answered")
      ::_exit(3);
    if (reason_of(one.send(some_bytes(1), {&number, 1}, 5ms)) != reason_of(sent)) ::_exit(4);
    if (!one.send(some_bytes(2), {}, 0ms)) ::_exit(5);  // which needs none
    for (std::size_t i = 0; i + 1 < count; ++i)
      if (!two.receive(0ms)) ::_exit(6);
    if (two.receive(0ms).value().content != some_bytes(2)) ::_exit(7);
    ::_exit(one.send(some_bytes(1), {&number, 1}, 20s) ? 0 : 8);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// A signal ends the system calls that wait, and must not end the wait.
TEST(channels, wait_through_signals) {
  static std::atomic<int> signals;
  signals = 0;
  struct sigaction counting {};
  struct sigaction before {};
  counting.sa_handler = [](int) { ++signals; };
  ASSERT_EQ(::sigaction(SIGALRM, &counting, &before), 0);
  const itimerval often{{0, 1000}, {0, 1000}};
  ASSERT_EQ(::setitimer(ITIMER_REAL, &often, nullptr), 0);
  auto [one, two] = share_channel::pair().value();
  EXPECT_EQ(code_of(two.receive(20ms)), errc::not_ready);
  const std::string path = path_of("signals");
  const auto listener = share_listener::listen(path).value();
  EXPECT_EQ(code_of(listener.accept(20ms)), errc::not_ready);
  const itimerval never{};
  ASSERT_EQ(::setitimer(ITIMER_REAL, &never, nullptr), 0);
  ASSERT_EQ(::sigaction(SIGALRM, &before, nullptr), 0);
  EXPECT_GE(signals, 2);
}

TEST(channels, tell_of_a_closed_end_after_what_it_sent) {
  auto [one, two] = share_channel::pair().value();
  EXPECT_TRUE(two.send(some_bytes(9), {}, 1s));  // which the other never reads
  EXPECT_TRUE(one.send(some_bytes(1), {}, 1s));
  one.close();
  EXPECT_FALSE(one);
  EXPECT_EQ(two.receive(1s).value().content, some_bytes(1));
  EXPECT_EQ(code_of(two.receive(1s)), errc::peer_closed);
  EXPECT_EQ(code_of(two.send(some_bytes(1), {}, 1s)), errc::peer_closed);
  EXPECT_EQ(code_of(one.receive(1s)), errc::moved_from);
  EXPECT_EQ(code_of(one.send(some_bytes(1), {}, 1s)), errc::moved_from);
}

// Somebody closed the number, and it is another file by now: one that never has anything to read.
TEST(channels, say_so_where_the_socket_is_gone) {
  auto [one, two] = share_channel::pair().value();
  const descriptor other{::eventfd(0, EFD_CLOEXEC)};
  ASSERT_EQ(::dup3(other.get(), two.get(), O_CLOEXEC), two.get());
  EXPECT_EQ(reason_of(two.receive(20ms)), "system: recvmsg: Socket operation on non-socket");
  EXPECT_EQ(reason_of(two.send(some_bytes(1), {}, 20ms)),
            "system: sendmsg: Socket operation on non-socket");
  EXPECT_EQ(code_of(one.receive(20ms)), errc::peer_closed);
}

TEST(channels, refuse_what_is_too_large_and_go_on) {
  const std::size_t before = open_descriptors();
  {
    auto [one, two] = share_channel::pair().value();
    for (const std::size_t beyond : {1, 1000}) {
      const auto large = some_bytes(share_channel::most_content + beyond);
      ASSERT_EQ(::send(one.get(), large.data(), large.size(), 0),
                static_cast<ssize_t>(large.size()));
    }
    // As many descriptors as the kernel takes, which is more than any ticket speaks of.
    constexpr std::size_t flood = 253;
    const descriptor nothing{::open("/dev/null", O_RDWR | O_CLOEXEC)};
    std::vector<int> numbers(flood, nothing.get());
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
    for (int i = 0; i < 3; ++i)
      EXPECT_EQ(reason_of(two.receive(1s)), "invalid_argument: the message is too large");
    EXPECT_EQ(open_descriptors(), held);
    EXPECT_EQ(two.receive(1s).value().content, some_bytes(1));
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(channels, tell_a_message_without_content_from_the_end) {
  auto [one, two] = share_channel::pair().value();
  ASSERT_EQ(::send(one.get(), "", 0, 0), 0);
  EXPECT_TRUE(one.send(some_bytes(1), {}, 1s));
  EXPECT_EQ(reason_of(two.receive(1s)), "invalid_argument: the message is empty");
  EXPECT_EQ(two.receive(1s).value().content, some_bytes(1));
  one.close();
  EXPECT_EQ(code_of(two.receive(1s)), errc::peer_closed);
}

TEST(channels, meet_at_a_path) {
  const std::string path = path_of("");
  EXPECT_EQ(reason_of(share_channel::connect(path, 50ms)), "not_found: " + path);
  {
    const auto listener = share_listener::listen(path).value();
    EXPECT_EQ(listener.path(), path);
    EXPECT_EQ(reason_of(share_listener::listen(path)),
              "not_permitted: " + path + ": Address already in use");
    EXPECT_EQ(code_of(listener.accept(20ms)), errc::not_ready);
    const auto one = share_channel::connect(path, 1s).value();
    const auto two = listener.accept(1s).value();
    EXPECT_TRUE(closes_on_exec(one.get()));
    EXPECT_TRUE(closes_on_exec(two.get()));
    const share_peer self{::getpid(), ::geteuid()};
    EXPECT_TRUE(one.send(distinct_bytes(5), {}, 1s));
    EXPECT_TRUE(two.send(distinct_bytes(6), {}, 1s));
    const auto at_listener = two.receive(1s).value();
    const auto at_caller = one.receive(1s).value();
    EXPECT_EQ(at_listener.content, distinct_bytes(5));
    EXPECT_EQ(at_listener.from, self);
    EXPECT_EQ(at_caller.content, distinct_bytes(6));
    EXPECT_EQ(at_caller.from, self);
  }
  EXPECT_NE(::access(path.c_str(), F_OK), 0);
}

TEST(channels, need_a_path_that_the_system_can_take) {
  const std::string folder = ::testing::TempDir();
  const std::string longest = folder + std::string(107 - folder.size(), 'x');
  const std::string longer = longest + "x";
  EXPECT_EQ(reason_of(share_channel::connect("", 1s)), "invalid_argument: a path of 0 characters");
  EXPECT_EQ(reason_of(share_listener::listen("")), "invalid_argument: a path of 0 characters");
  EXPECT_EQ(reason_of(share_listener::listen(longer)),
            "invalid_argument: a path of 108 characters");
  EXPECT_EQ(reason_of(share_channel::connect(longer, 1s)),
            "invalid_argument: a path of 108 characters");
  {
    const auto listener = share_listener::listen(longest);
    ASSERT_EQ(reason_of(listener), "");
    EXPECT_EQ(reason_of(share_channel::connect(longest, 1s)), "");
  }
  EXPECT_EQ(reason_of(share_listener::listen(folder + "no/such/folder")),
            "system: bind: No such file or directory");
  EXPECT_EQ(reason_of(share_channel::connect("/dev/null/x", 1s)),
            "system: connect: Not a directory");
}

// Whoever could connect could ask for memory.
TEST(listeners, remove_their_own_file_and_no_other) {
  const scratch_folder folder;
  const std::string path = folder.path("socket");
  {
    const auto replaced = share_listener::listen(path).value();
    ASSERT_EQ(::unlink(path.c_str()), 0);
    const auto another = share_listener::listen(path).value();
    { const auto gone = share_listener::listen(folder.path("other")).value(); }
    EXPECT_EQ(folder.files(), 1u);
    {
      auto assigned = share_listener::listen(folder.path("other")).value();
      assigned = share_listener::listen(folder.path("third")).value();
      EXPECT_EQ(folder.files(), 2u);
    }
  }
  EXPECT_EQ(folder.files(), 0u) << "of the second listener";
  {
    const auto listener = share_listener::listen(path).value();
    ASSERT_EQ(::rename(path.c_str(), folder.path("moved").c_str()), 0);
    std::ofstream{path} << "precious";
  }
  EXPECT_EQ(folder.files(), 2u);
}

TEST(listeners, remove_their_file_where_the_program_has_changed_its_folder) {
  const scratch_folder folder;
  const scratch_folder other;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path(""));
  {
    const auto listener = share_listener::listen("socket").value();
    EXPECT_EQ(listener.path(), "socket");
    std::filesystem::current_path(other.path(""));
    std::ofstream{"socket"} << "precious";
  }
  std::filesystem::current_path(before);
  EXPECT_EQ(folder.files(), 0u);
  EXPECT_EQ(other.files(), 1u);
}

TEST(listeners, take_paths_and_no_other_names) {
  const scratch_folder folder;
  using namespace std::string_literals;
  for (const std::string& name : {folder.path("a\0b"s), "\0abstract"s}) {
    EXPECT_EQ(reason_of(share_listener::listen(name)),
              "invalid_argument: the path contains a null character");
    EXPECT_EQ(reason_of(share_channel::connect(name, 1s)),
              "invalid_argument: the path contains a null character");
  }
  EXPECT_EQ(folder.files(), 0u);
}

TEST(channels, of_a_listener_are_its_users_alone) {
  const std::string path = path_of("mode");
  for (const mode_t mask : {0000, 0022, 0077}) {
    const mode_t before = ::umask(mask);
    const auto listener = share_listener::listen(path);
    ::umask(before);
    ASSERT_EQ(reason_of(listener), "");
    struct stat status {};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_TRUE(S_ISSOCK(status.st_mode));
    EXPECT_EQ(status.st_mode & 0777, 0600u) << mask;
  }
}

TEST(channels, say_so_where_the_process_has_no_descriptor_left) {
  const std::string path = path_of("scarce");
  const std::string other_path = path_of("scarcer");
  const auto listener = share_listener::listen(path).value();
  const auto waiting = share_channel::connect(path, 1s).value();
  auto one = share_channel::pair().value();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const std::string paired = reason_of(share_channel::pair());
  const std::string connected = reason_of(share_channel::connect(path, 1s));
  const std::string listened = reason_of(share_listener::listen(other_path));
  const std::string accepted = reason_of(listener.accept(1s));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(paired, "system: socketpair: Too many open files");
  EXPECT_EQ(connected, "system: socket: Too many open files");
  EXPECT_EQ(listened, "system: socket: Too many open files");
  EXPECT_EQ(accepted, "system: accept: Too many open files");
  EXPECT_EQ(code_of(listener.accept(1s)), std::nullopt) << "who waited is still there";
}

TEST(listeners, wait_for_a_descriptor) {
  const std::string path = path_of("soon");
  const auto listener = share_listener::listen(path).value();
  const auto waiting = share_channel::connect(path, 1s).value();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto begin = timer::now();
  const std::string refused = reason_of(listener.accept(30ms));
  const auto waited = timer::now() - begin;
  std::atomic<pid_t> number{0};
  std::string accepted = "nothing";
  std::thread accepting{[&] {
    number = ::gettid();
    accepted = reason_of(listener.accept(std::chrono::milliseconds::max()));
  }};
  while (number == 0) std::this_thread::yield();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  accepting.join();
  EXPECT_EQ(refused, "system: accept: Too many open files");
  EXPECT_GE(waited, 30ms);
  EXPECT_EQ(accepted, "");
}

/// From now on the process may set no option of any socket; false where the system has no filters.
bool forbid_socket_options() {
  std::array<sock_filter, 4> filter{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_setsockopt, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog program{filter.size(), filter.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(channels, are_not_made_where_nobody_would_say_who_writes) {
  const std::string path = path_of("nameless");
  const std::string other_path = path_of("as_nameless");
  const auto listener = share_listener::listen(path).value();
  const auto waiting = share_channel::connect(path, 1s).value();
  constexpr int no_filters = 100;
  const pid_t child = ::fork();  // what it may not do it may never do again
  ASSERT_GE(child, 0);
  if (child == 0) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) ::_exit(1);
    if (!forbid_socket_options()) ::_exit(no_filters);
    const std::string refused = "system: setsockopt: Operation not permitted";
    if (reason_of(share_channel::pair()) != refused) ::_exit(2);
    if (reason_of(share_channel::adopt(descriptor{ends[0]})) != refused) ::_exit(3);
    if (reason_of(share_channel::connect(path, 1s)) != refused) ::_exit(4);
    if (reason_of(share_listener::listen(other_path)) != refused) ::_exit(5);
    if (reason_of(listener.accept(1s)) != refused) ::_exit(6);
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == no_filters) GTEST_SKIP() << "the system has no filters of calls";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(channels, are_not_permitted_where_the_user_may_not_go) {
  const std::string path = path_of("closed");
  const auto listener = share_listener::listen(path).value();
  ASSERT_EQ(::chmod(path.c_str(), 0), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (::geteuid() == 0 && ::setuid(65534) != 0) ::_exit(1);
    if (reason_of(share_channel::connect(path, 1s)) != "not_permitted: " + path) ::_exit(2);
    const std::string refused = "not_permitted: /weir_share: Permission denied";
    ::_exit(reason_of(share_listener::listen("/weir_share")) == refused ? 0 : 3);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(channels, are_not_found_where_nobody_listens) {
  const std::string path = path_of("deserted");
  { const auto gone = socket_at(path); }  // the file stays
  EXPECT_EQ(reason_of(share_channel::connect(path, 1s)), "not_found: " + path);
  ::unlink(path.c_str());
}

TEST(channels, wait_for_a_place_in_the_queue) {
  const std::string path = path_of("full");
  {
    const auto listener = socket_at(path);
    ASSERT_EQ(::listen(listener.get(), 0), 0);
    std::vector<share_channel> waiting;
    auto next = share_channel::connect(path, 0ms);
    for (; next && waiting.size() < 100; next = share_channel::connect(path, 0ms))
      waiting.push_back(*std::move(next));
    EXPECT_EQ(reason_of(next), "not_ready: the deadline passed before the other process answered");
    const auto begin = timer::now();
    EXPECT_EQ(code_of(share_channel::connect(path, 20ms)), errc::not_ready);
    EXPECT_GE(timer::now() - begin, 20ms);
    const descriptor accepted{::accept(listener.get(), nullptr, nullptr)};
    EXPECT_EQ(reason_of(share_channel::connect(path, 1s)), "");
  }
  ::unlink(path.c_str());
}

TEST(listeners, take_their_path_along_when_they_are_moved) {
  const std::string first = path_of("first");
  const std::string second = path_of("second");
  const auto exists = [](const std::string& path) { return ::access(path.c_str(), F_OK) == 0; };
  {
    auto original = share_listener::listen(first).value();
    auto other = share_listener::listen(second).value();
    {
      auto moved = std::move(original);
      EXPECT_EQ(moved.path(), first);
      EXPECT_EQ(code_of(original.accept(0ms)), errc::moved_from);  // NOLINT: that is the question
      original = std::move(moved);
    }
    EXPECT_TRUE(exists(first)) << "who was moved from removes nothing";
    EXPECT_EQ(code_of(share_channel::connect(first, 1s)), std::nullopt);
    EXPECT_EQ(code_of(original.accept(1s)), std::nullopt);

    auto& same = other;
    other = std::move(same);
    EXPECT_TRUE(exists(second));
    other = std::move(original);
    EXPECT_FALSE(exists(second)) << "it listened there before";
    EXPECT_EQ(other.path(), first);
    EXPECT_EQ(code_of(share_channel::connect(first, 1s)), std::nullopt);
    EXPECT_EQ(code_of(other.accept(1s)), std::nullopt);
  }
  EXPECT_FALSE(exists(first));
}

TEST(channels, adopt_sockets_for_messages_only) {
  int ends[2];
  const std::string refused = "invalid_argument: not a Unix socket for messages";
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const descriptor stream{ends[1]};
  EXPECT_EQ(reason_of(share_channel::adopt(descriptor{ends[0]})), refused);
  EXPECT_EQ(reason_of(share_channel::adopt(descriptor{})), refused);
  EXPECT_EQ(reason_of(share_channel::adopt(descriptor{::open("/dev/null", O_RDONLY | O_CLOEXEC)})),
            refused);

  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const descriptor other{ends[1]};
  const auto adopted = share_channel::adopt(descriptor{ends[0]}).value();
  EXPECT_EQ(adopted.get(), ends[0]);
  ASSERT_EQ(::send(other.get(), "x", 1, 0), 1);
  EXPECT_EQ(adopted.receive(1s).value().from, (share_peer{::getpid(), ::geteuid()}));
}

TEST(channels, pass_their_socket_on) {
  auto [one, two] = share_channel::pair().value();
  const int number = one.get();
  const descriptor taken = one.release();
  EXPECT_EQ(taken.get(), number);
  EXPECT_FALSE(one);
  ASSERT_EQ(::send(taken.get(), "x", 1, 0), 1);
  EXPECT_EQ(two.receive(1s).value().content.size(), 1u);
}

}  // namespace
}  // namespace weir::testing_support
