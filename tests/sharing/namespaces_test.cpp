// SPDX-License-Identifier: Apache-2.0
// Links between processes of different PID namespaces. Simulated only: the processes are forked.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "sharing/session.hpp"
#include "sharing/sharing_fixture.hpp"
#include "weir/sim/machine.hpp"

namespace weir::testing_support { namespace {

constexpr int no_namespaces = 100;

/// Offers a block to a process outside, which ends once `ended` is written to. 0: its memory came
/// back.
int offer_from_inside(share_channel end, int holds, int ended) {
  const auto machine = sim::machine::create({}).value();
  const auto opened = runtime::open_simulated(machine).value();
  const auto gpu = opened->device(device_id{0}).value();
  const auto heap = caching_allocator::create(gpu).value();
  const auto pool = heap.create_pool("shared", {.exportable = true}).value();
  const auto stream = weir::stream::create(gpu).value();
  const auto link = share_link::open(opened, std::move(end), {.limit = 20s});
  if (!link) return 1;
  if (link->peer().process != 0) return 2;  // it has no number in here
  if (!link->offer(shared_memory::allocate(heap, pool, 2_MiB, stream).value())) return 3;
  if (link->outstanding() != 1 || pool.stats().blocks.current != 1) return 4;
  char byte = 1;
  if (::write(holds, &byte, 1) != 1 || ::read(ended, &byte, 1) != 1) return 5;
  if (link->outstanding() != 0 || pool.stats().blocks.current != 0) return 6;
  return link->check().code() == errc::peer_closed ? 0 : 7;
}

TEST(namespaces_of_processes, do_not_hide_the_end_of_the_other_one) {
  auto ends = share_channel::pair().value();
  int holds[2];
  int ended[2];
  ASSERT_EQ(::pipe2(holds, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(ended, O_CLOEXEC), 0);
  std::array<descriptor, 4> pipes{descriptor{holds[0]}, descriptor{holds[1]}, descriptor{ended[0]},
                                  descriptor{ended[1]}};
  const pid_t importer = ::fork();
  ASSERT_GE(importer, 0);
  if (importer == 0) {
    const auto number = sharing::encode_number(sharing::packet_kind::hello, 1);
    if (!ends.first.send(number, {}, 20s)) ::_exit(1);
    for (;;) ::pause();
  }
  const pid_t outer = ::fork();
  ASSERT_GE(outer, 0);
  if (outer == 0) {
    if (::unshare(CLONE_NEWPID) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0)
      ::_exit(no_namespaces);
    ends.first.close();
    const pid_t inner = ::fork();
    if (inner < 0) ::_exit(no_namespaces);
    if (inner == 0) ::_exit(offer_from_inside(std::move(ends.second), holds[1], ended[0]));
    int status = -1;
    ::waitpid(inner, &status, 0);
    ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
  }
  pipes[1] = descriptor{};  // the read ends where the child ends
  char byte = 0;
  const bool is_held = ::read(holds[0], &byte, 1) == 1;
  ASSERT_EQ(::kill(importer, SIGKILL), 0);
  int status = -1;
  ASSERT_EQ(::waitpid(importer, &status, 0), importer);
  if (is_held) {
    EXPECT_EQ(::write(ended[1], &byte, 1), 1);
  }
  ASSERT_EQ(::waitpid(outer, &status, 0), outer);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == no_namespaces) GTEST_SKIP() << "no PID namespaces here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace weir::testing_support
