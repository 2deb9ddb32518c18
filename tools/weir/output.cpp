// SPDX-License-Identifier: Apache-2.0
// Output files: which files may be written, and their removal when the command is interrupted.
#include "output.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

namespace weir::command {

namespace {

constexpr std::array ending_signals{SIGINT, SIGTERM, SIGHUP};

// What a signal handler may read: the names of files that go with the process.
std::array<char, PATH_MAX> part_name{};
std::array<char, PATH_MAX> temporary_name{};

void end_without_remains(int signal) {
  if (part_name[0] != 0) ::unlink(part_name.data());
  if (temporary_name[0] != 0) ::unlink(temporary_name.data());
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

void copy_name(std::array<char, PATH_MAX>& to, const std::string& name) {
  if (name.size() < to.size()) std::memcpy(to.data(), name.c_str(), name.size() + 1);
}

void watch_signals(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  for (const int each : ending_signals) {
    struct sigaction before {};
    ::sigaction(each, nullptr, &before);
    if (before.sa_handler != SIG_IGN) ::sigaction(each, &action, nullptr);  // as under nohup
  }
}

error failure(const std::string& path, const std::string& problem) {
  return {{.code = errc::system, .detail = path + ": " + problem}};
}

result<std::string> make_temporary() {
  std::error_code code;
  const auto folder = std::filesystem::temp_directory_path(code);
  std::string name = (code ? std::filesystem::path{"/tmp"} : folder) / "weir-XXXXXX";
  const int file = ::mkstemp(name.data());
  if (file < 0) return failure(name, std::strerror(errno));
  ::close(file);
  return name;
}

}  // namespace

bool is_output_closed() {
  pollfd end{STDOUT_FILENO, 0, 0};
  return ::poll(&end, 1, 0) > 0 && (end.revents & POLLERR) != 0;
}

result<output_file> output_file::open(const std::string& path, bool overwrite) {
  if (path == "-") {
    WEIR_TRY_VALUE(name, make_temporary());
    return output_file{name, true};
  }
  std::error_code code;
  const auto status = std::filesystem::status(path, code);  // through links
  if (!std::filesystem::exists(status)) return output_file{path, false};
  if (!std::filesystem::is_regular_file(status))
    return failure(path, "expected a regular file; - writes to the standard output");
  if (!overwrite)
    return error{{.code = errc::system, .detail = path + ": the file exists; --force replaces it"}};
  // What a link leads to is replaced, not the link.
  const auto target = std::filesystem::canonical(path, code);
  return output_file{code ? path : target.string(), false};
}

output_file::output_file(std::string path, bool is_standard)
    : path_{std::move(path)}, is_standard_{is_standard} {
  copy_name(part_name, path_ + "." + std::to_string(::getpid()) + ".part");
  if (is_standard_) copy_name(temporary_name, path_);
  watch_signals(end_without_remains);
}

output_file::output_file(output_file&& other) noexcept
    : path_{std::exchange(other.path_, {})}, is_standard_{other.is_standard_} {}

output_file::~output_file() {
  if (path_.empty()) return;
  watch_signals(SIG_DFL);
  // What a writer left that failed half-way; a part that holds events is of no use here.
  ::unlink(part_name.data());
  if (is_standard_) ::unlink(path_.c_str());
  part_name[0] = temporary_name[0] = 0;
}

result<void> output_file::finish() {
  if (!is_standard_) return {};
  const int file = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return failure(path_, std::strerror(errno));
  std::array<char, 1 << 16> piece{};
  int reason = 0;
  for (ssize_t count = 1; count > 0 && reason == 0;) {
    count = ::read(file, piece.data(), piece.size());
    if (count < 0) reason = errno;
    if (count > 0 && std::fwrite(piece.data(), 1, static_cast<std::size_t>(count), stdout) !=
                         static_cast<std::size_t>(count))
      reason = errno;
  }
  if (reason == 0 && std::fflush(stdout) != 0) reason = errno;
  ::close(file);
  if (reason == 0) return {};
  std::clearerr(stdout);              // reported here, not once more by main()
  if (is_output_closed()) return {};  // the reader has seen enough
  return failure("standard output", std::strerror(reason));
}

}  // namespace weir::command
