// SPDX-License-Identifier: Apache-2.0
// Two processes and one piece of device memory: exported, used in order, revoked.
//
// The program starts itself a second time and offers that process memory and an event. Runs on a
// GPU where there is one and on simulated machines, one a process, where there is none.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weir/buffer/copy.hpp"
#include "weir/device/runtime.hpp"
#include "weir/share/session.hpp"

extern char** environ;

namespace {

using namespace weir::literals;
using namespace std::chrono_literals;

constexpr weir::bytes size = 4_MiB;
constexpr int inherited_end = 100;

int unexpected = 0;

void expect(bool holds, const char* claim) {
  std::printf("   %s %s\n", holds ? "yes:" : "NO: ", claim);
  std::fflush(stdout);
  unexpected += holds ? 0 : 1;
}

std::span<const std::byte> as_note(std::string_view text) { return std::as_bytes(std::span{text}); }

void fill(weir::device_address address, unsigned char value, const weir::stream& on) {
  weir::fill_bytes(reinterpret_cast<void*>(address), value, size, on).value();
}

unsigned char first_byte(weir::device_address address, const weir::stream& on) {
  unsigned char byte = 0;
  weir::copy_bytes(&byte, reinterpret_cast<const void*>(address), 1_B, on).value();
  on.synchronize().value();
  return byte;
}

/// The second process: imports, answers, and releases the memory when it is revoked.
int second_process() {
  const auto machine = weir::runtime::open().value();
  auto channel = weir::share_channel::adopt(weir::descriptor{inherited_end}).value();
  const auto link = weir::share_link::open(machine, std::move(channel), {.limit = 60s}).value();
  auto memory = link.receive().value().open_memory().value();
  auto written = link.receive().value().open_event().value();
  const auto stream = weir::stream::create(written.device()).value();

  static_cast<void>(link.receive().value());  // "recorded"
  stream.wait(written).value();
  expect(first_byte(memory.address().value(), stream) == 1,
         "the second process sees what the first wrote");
  fill(memory.address().value(), 2, stream);
  written.record(stream).value();
  link.send_note(as_note("recorded")).value();

  // Revoked: no work here may use it any more, so wait for the work and close it.
  while (memory.address()) ::usleep(1000);
  expect(memory.address().code() == weir::errc::not_permitted,
         "it learns that the memory was revoked");
  stream.synchronize().value();
  memory.close().value();
  static_cast<void>(link.check());
  return unexpected == 0 ? 0 : 1;
}

pid_t start_second(const char* program, int end) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, end, inherited_end);
  std::string name{program};
  std::string role{"second"};
  char* arguments[] = {name.data(), role.data(), nullptr};
  pid_t process = -1;
  const int failed =
      ::posix_spawn(&process, "/proc/self/exe", &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  return failed == 0 ? process : -1;
}

int first_process(const char* program) {
  const auto machine = weir::runtime::open().value();
  const auto gpu = machine->device(weir::device_id{0}).value();
  const auto stream = weir::stream::create(gpu).value();

  // A driver does not survive fork(): the other process is started anew and inherits one end.
  auto [ours, theirs] = weir::share_channel::pair().value();
  const pid_t second = start_second(program, theirs.get());
  theirs.close();
  const auto link = weir::share_link::open(machine, std::move(ours), {.limit = 60s}).value();
  expect(link.peer().process == second, "the kernel says who is at the other end");

  const auto memory = weir::shared_memory::create(gpu, size).value();
  auto written = weir::event::create(gpu, {.interprocess = true}).value();
  const auto grant = link.offer(memory).value();
  static_cast<void>(link.offer(written).value());

  // Record, then say so: a wait covers only the records before it.
  fill(memory.address(), 1, stream);
  written.record(stream).value();
  link.send_note(as_note("recorded")).value();

  static_cast<void>(link.receive().value());  // the same from over there
  stream.wait(written).value();
  expect(first_byte(memory.address(), stream) == 2, "the first process sees the answer");

  expect(link.outstanding() == 1, "the memory is exported");
  link.revoke(grant).value();
  expect(link.outstanding() == 0, "and revoked");

  int status = 0;
  ::waitpid(second, &status, 0);
  expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the second process ended well");
  expect(!link.check(), "and that is noticed");
  std::printf("\n%s\n", unexpected == 0 ? "All as it should be." : "Something is wrong.");
  return unexpected == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc > 1 && std::string_view{argv[1]} == "second") return second_process();
  return first_process(argv[0]);
} catch (const std::exception& failure) {
  std::fprintf(stderr, "%s\n", failure.what());
  return 1;
}
