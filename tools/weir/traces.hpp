// SPDX-License-Identifier: Apache-2.0
// Shared by the subcommands that read traces: reading them, naming them, printing errors.
#pragma once

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "weir/base/error.hpp"
#include "weir/trace/trace.hpp"

namespace weir::command {

/// The file's name without folder and extensions: "moe_train" for "a/moe_train.trace.gz".
[[nodiscard]] std::string trace_name(std::string_view path);

/// Reads a trace, "-" from the standard input; a failure is printed. Empty: nothing could be read.
/// Of a snapshot of several devices one is read: `device`, or that which held the most. Which it is
/// is printed.
[[nodiscard]] std::optional<recording> read_trace(std::string_view subcommand,
                                                  const std::string& path,
                                                  std::optional<std::uint64_t> device = {});

/// Adds the option that chooses a snapshot's device, under `names`.
void add_snapshot_device(CLI::App& subcommand, const std::string& names,
                         std::optional<std::uint64_t>& device);

/// Whether the file is damaged or lacks events, which is then printed.
bool warn_if_damaged(std::string_view subcommand, const std::string& path,
                     const recording& recording);

/// Prints that the figures of its replays are too high if the program suspended memory; whether it
/// did.
bool warn_if_suspended(std::string_view subcommand, const std::string& path,
                       const recording& recording);

/// Where a program is to record, absolute: it may change its folder. Empty: something is there, or
/// nothing can be made there, which is printed.
[[nodiscard]] std::optional<std::filesystem::path> new_trace(std::string_view subcommand,
                                                             const std::string& path);

/// "weir replay: …" on the error output.
void print_error(std::string_view subcommand, std::string_view message);
/// The same for an error, which may come without a detail.
void print_error(std::string_view subcommand, const error& error);

/// One line that shows the progress of long work, ten times a second at most and at its end, where
/// the error output is a terminal; elsewhere nothing. Any thread.
class progress_line {
 public:
  progress_line(std::string title, std::uint64_t total);
  ~progress_line();
  progress_line(const progress_line&) = delete;
  progress_line& operator=(const progress_line&) = delete;

  void add(std::uint64_t more);
  /// To be told how much of one of several parts is done so far; it must not outlive the line.
  [[nodiscard]] std::function<void(std::size_t)> part();

 private:
  void print(std::uint64_t done);

  const std::string title_;
  const std::uint64_t total_;
  const bool visible_;
  std::atomic<std::uint64_t> done_{0};
  std::mutex mutex_;
  std::chrono::steady_clock::time_point last_;
};

/// One line that names what is being done and for how long, for work of unknown length; shown from
/// the first half second on, where the error output is a terminal.
class stage_line {
 public:
  explicit stage_line(std::string title);
  ~stage_line();
  stage_line(const stage_line&) = delete;
  stage_line& operator=(const stage_line&) = delete;

 private:
  void run();

  const std::string title_;
  std::mutex mutex_;
  std::condition_variable end_;
  bool ended_ = false;
  std::thread printer_;
};

}  // namespace weir::command
