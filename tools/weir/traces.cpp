// SPDX-License-Identifier: Apache-2.0
// Reading traces for the subcommands.
#include "traces.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "formats/frames.hpp"
#include "formats/open.hpp"
#include "printable.hpp"
#include "words.hpp"

namespace weir::command {

std::string trace_name(std::string_view path) {
  constexpr std::array<std::string_view, 9> extensions{
      ".gz", ".zst", ".trace", ".weirtrace", ".csv", ".pickle", ".pkl", ".snapshot", ".log"};
  std::string_view name = path.substr(path.find_last_of('/') + 1);
  bool shorter = true;
  while (shorter) {
    shorter = false;
    for (const std::string_view each : extensions) {
      if (name.size() <= each.size() || !name.ends_with(each)) continue;
      name.remove_suffix(each.size());
      shorter = true;
    }
  }
  return std::string{name};
}

std::optional<std::filesystem::path> new_trace(std::string_view subcommand,
                                               const std::string& path) {
  const auto refuse = [&](const std::filesystem::path& what, const std::string& reason) {
    print_error(subcommand, fmt::format("{}: {}", what.string(), reason));
    return std::nullopt;
  };
  if (path == "--") return refuse(path, "expected the name of the trace before --");
  std::error_code code;
  std::filesystem::path output = std::filesystem::absolute(path, code);
  if (code) return refuse(path, code.message());
  if (std::filesystem::exists(output, code))
    return refuse(output, "the file exists; remove it or name another");
  if (code) return refuse(output, code.message());
  const std::filesystem::path folder = output.parent_path();
  if (folder.string().find("%p") == std::string::npos && ::access(folder.c_str(), W_OK | X_OK) != 0)
    return refuse(folder, std::strerror(errno));
  return output;
}

void print_error(std::string_view subcommand, std::string_view message) {
  fmt::print(stderr, "weir {}: {}\n", subcommand, printable_lines(message));
}

void print_error(std::string_view subcommand, const error& error) {
  print_error(subcommand, error.detail().empty() ? error.message() : error.detail());
}

std::optional<recording> read_trace(std::string_view subcommand, const std::string& path,
                                    std::optional<std::uint64_t> device) {
  std::string remark;
  bool is_ignored = false;
  auto read = [&] {
    const stage_line reading{"reading " + printable(path)};
    auto recorded = formats::read_recording(
        path, {}, {.device = device, .remark = &remark, .is_ignored = &is_ignored});
    if (recorded) formats::name_frames(*recorded);
    return recorded;
  }();
  if (read && !remark.empty() && !device)
    print_error(subcommand, path + ": " + remark + "; --device N chooses another");
  if (read && is_ignored)
    print_error(subcommand,
                fmt::format("{}: not a PyTorch snapshot, so the choice of device {} has no effect",
                            path, device.value_or(0)));
  if (read) return std::move(*read);
  print_error(subcommand, read.error());
  return std::nullopt;
}

void add_snapshot_device(CLI::App& subcommand, const std::string& names,
                         std::optional<std::uint64_t>& device) {
  subcommand
      .add_option(names, device,
                  "The device to read from a PyTorch snapshot of several devices (default: the one "
                  "that held the most)")
      ->type_name("N")
      ->check(whole_number());
}

bool warn_if_damaged(std::string_view subcommand, const std::string& path,
                     const recording& recording) {
  if (recording.damage) {
    print_error(subcommand,
                fmt::format("{}: damaged at byte {}: {}; read {} event{} before it", path,
                            recording.damage->offset, recording.damage->reason,
                            recording.events.size(), recording.events.size() == 1 ? "" : "s"));
  }
  if (recording.dropped != 0)
    print_error(subcommand,
                fmt::format("{}: the recorder dropped {} event{}; figures are too low", path,
                            recording.dropped, recording.dropped == 1 ? "" : "s"));
  return recording.damage || recording.dropped != 0;
}

bool warn_if_suspended(std::string_view subcommand, const std::string& path,
                       const recording& recording) {
  const auto count = std::count_if(
      recording.events.begin(), recording.events.end(),
      [](const trace_event& each) { return each.kind == trace_kind::suspended && each.size != 0; });
  if (count == 0) return false;
  print_error(
      subcommand,
      fmt::format("{}: the program suspended memory {} {}; a replay keeps all of it, so its "
                  "figures are higher",
                  path, count, count == 1 ? "time" : "times"));
  return true;
}

// --- Progress ------------------------------------------------------------------------------------

progress_line::progress_line(std::string title, std::uint64_t total)
    : title_{std::move(title)},
      total_{total},
      visible_{::isatty(STDERR_FILENO) == 1},
      last_{std::chrono::steady_clock::now()} {}

progress_line::~progress_line() {
  if (visible_) fmt::print(stderr, "\r\033[K");
}

void progress_line::add(std::uint64_t more) {
  const std::uint64_t done = done_.fetch_add(more) + more;
  if (!visible_) return;
  const std::unique_lock lock{mutex_, std::try_to_lock};
  const auto now = std::chrono::steady_clock::now();
  const bool is_end = more != 0 && done == total_;  // which is shown however soon it comes
  if (!lock || (!is_end && now - last_ < std::chrono::milliseconds{100})) return;
  last_ = now;
  print(done);
}

std::function<void(std::size_t)> progress_line::part() {
  return [this, before = std::size_t{0}](std::size_t done) mutable {
    add(done - before);
    before = done;
  };
}

stage_line::stage_line(std::string title) : title_{std::move(title)} {
  if (::isatty(STDERR_FILENO) != 1) return;
  try {
    printer_ = std::thread{[this] { run(); }};
  } catch (const std::system_error&) {  // then without
  }
}

stage_line::~stage_line() {
  if (!printer_.joinable()) return;
  {
    const std::lock_guard lock{mutex_};
    ended_ = true;
  }
  end_.notify_one();
  printer_.join();
}

void stage_line::run() {
  using namespace std::chrono_literals;
  const auto begin = std::chrono::steady_clock::now();
  std::unique_lock lock{mutex_};
  bool shown = false;
  while (!end_.wait_for(lock, 500ms, [&] { return ended_; })) {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    fmt::print(stderr, "\r{}, {:.0f} s\033[K", title_, elapsed.count());
    std::fflush(stderr);
    shown = true;
  }
  if (shown) fmt::print(stderr, "\r\033[K");
}

void progress_line::print(std::uint64_t done) {
  constexpr std::size_t width = 40;
  const double share = total_ == 0 ? 1 : static_cast<double>(done) / static_cast<double>(total_);
  const auto filled = std::min(width, static_cast<std::size_t>(share * width));
  fmt::print(stderr, "\r{} [{:<{}}] {:3.0f} %", title_, std::string(filled, '#'), width,
             100 * std::min(share, 1.0));
  std::fflush(stderr);
}

}  // namespace weir::command
