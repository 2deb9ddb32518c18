// SPDX-License-Identifier: Apache-2.0
// Starting the second process, and messages with descriptors over the socket pair.
#include "support/child_process.hpp"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/call_counter.hpp"

extern char** environ;

namespace weir::testing_support {
namespace {

std::map<std::string_view, child_function>& children() {
  static std::map<std::string_view, child_function> all;
  return all;
}

std::string_view value_of(const char* argument, std::string_view option) {
  const std::string_view text{argument};
  return text.substr(0, option.size()) == option ? text.substr(option.size()) : std::string_view{};
}

}  // namespace

process_link::~process_link() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

process_link::process_link(process_link&& other) noexcept
    : descriptor_{std::exchange(other.descriptor_, -1)} {}

process_link& process_link::operator=(process_link&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

bool process_link::send_bytes(const void* data, std::size_t size) {
  const char* next = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t sent = ::send(descriptor_, next, size, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    next += sent;
    size -= static_cast<std::size_t>(sent);
  }
  return true;
}

bool process_link::receive_bytes(void* data, std::size_t size) {
  char* next = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t received = ::recv(descriptor_, next, size, 0);
    if (received <= 0) return false;
    next += received;
    size -= static_cast<std::size_t>(received);
  }
  return true;
}

bool process_link::send_descriptor(int descriptor) {
  char byte = 'd';
  iovec content{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  return ::sendmsg(descriptor_, &message, MSG_NOSIGNAL) == 1;
}

int process_link::receive_descriptor() {
  char byte = 0;
  iovec content{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (::recvmsg(descriptor_, &message, MSG_CMSG_CLOEXEC) != 1) return -1;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return -1;
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
  return descriptor;
}

bool process_link::meet() {
  char sent = 'm';
  char received = 0;
  return send(sent) && receive(received) && received == 'm';
}

child_registration::child_registration(const char* name, child_function function) {
  children().emplace(name, function);
}

namespace {

/// LeakSanitizer takes seconds at the end of each process, and there are dozens of children; the
/// parent runs the same code and is checked.
std::vector<std::string> environment_without_leak_check() {
  std::vector<std::string> settings;
  std::string sanitizer = "ASAN_OPTIONS=";
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string_view setting = *each;
    if (setting.starts_with(sanitizer)) {
      sanitizer = std::string{setting} + ":";
    } else {
      settings.emplace_back(setting);
    }
  }
  settings.push_back(sanitizer + "detect_leaks=0");
  return settings;
}

}  // namespace

child_process::child_process(const char* name, std::uint64_t seed) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return;
  // The child's end under a number of its own: dup2 in the child clears close-on-exec.
  constexpr int child_end = 100;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], child_end);
  const std::string child_argument = std::string{"--child="} + name;
  const std::string link_argument = "--link=" + std::to_string(child_end);
  const std::string seed_argument = "--seed=" + std::to_string(seed);
  char program[] = "/proc/self/exe";
  char* arguments[] = {program, const_cast<char*>(child_argument.c_str()),
                       const_cast<char*>(link_argument.c_str()),
                       const_cast<char*>(seed_argument.c_str()), nullptr};
  std::vector<std::string> settings = environment_without_leak_check();
  std::vector<char*> environment;
  for (std::string& each : settings) environment.push_back(each.data());
  environment.push_back(nullptr);
  if (::posix_spawn(&pid_, program, &actions, nullptr, arguments, environment.data()) != 0) {
    pid_ = -1;
  }
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  link_ = process_link{ends[0]};
}

child_process::~child_process() {
  if (pid_ <= 0) return;
  kill();
  ::waitpid(pid_, nullptr, 0);
}

int child_process::wait() {
  if (pid_ <= 0) return -1;
  call_counts counts;
  if (link_.receive(counts)) add_counts(counts);
  int status = 0;
  ::waitpid(std::exchange(pid_, -1), &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void child_process::kill() {
  if (pid_ > 0) ::kill(pid_, SIGKILL);
}

int run_as_child(int argc, char** argv) {
  std::string_view name;
  int descriptor = -1;
  std::uint64_t seed = 0;
  for (int i = 1; i < argc; ++i) {
    if (const auto text = value_of(argv[i], "--child="); !text.empty()) name = text;
    if (const auto text = value_of(argv[i], "--link="); !text.empty())
      descriptor = std::atoi(text.data());
    if (const auto text = value_of(argv[i], "--seed="); !text.empty())
      seed = std::strtoull(text.data(), nullptr, 10);
  }
  if (name.empty()) return -1;
  const auto registered = children().find(name);
  if (registered == children().end()) {
    std::fprintf(stderr, "no child function is called %s\n", std::string{name}.c_str());
    return 2;
  }
  process_link parent{descriptor};
  auto machine = open_machine(seed);
  if (!machine) {
    std::fprintf(stderr, "child: %s\n", machine.error().message().c_str());
    return 3;
  }
  const int status = registered->second(**machine, parent);
  parent.send(counted());
  return status;
}

void child_failed(const char* file, int line, const char* expression, long long actual) {
  std::fprintf(stderr, "%s:%d: in the child: %s answered %lld\n", file, line, expression, actual);
}

}  // namespace weir::testing_support
