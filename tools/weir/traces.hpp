// What the subcommands that read traces share: reading them, naming them, saying what is wrong.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "weir/base/error.hpp"
#include "weir/trace/trace.hpp"

namespace weir::command {

/// The file's name without folder and extensions: "moe_train" for "a/moe_train.trace.gz".
[[nodiscard]] std::string trace_name(std::string_view path);

/// Reads a trace; what is wrong with it goes to the error output, beginning with `who`, the
/// subcommand. Empty: nothing could be read.
[[nodiscard]] std::optional<recording> read_trace(std::string_view who, const std::string& path);

/// Whether the file gave all that its program did. If not, it says so on the error output.
bool say_if_damaged(std::string_view who, const std::string& path, const recording& what);

/// "weir replay: …" on the error output.
void complain(std::string_view who, std::string_view what);
/// The same for an error, which may come without a detail.
void complain(std::string_view who, const error& what);

/// One line that says how far a long work is, where the error output is a terminal; elsewhere
/// nothing. Any thread.
class progress_line {
 public:
  progress_line(std::string what, std::uint64_t all);
  ~progress_line();
  progress_line(const progress_line&) = delete;
  progress_line& operator=(const progress_line&) = delete;

  void add(std::uint64_t more);

 private:
  void print(std::uint64_t done);

  const std::string what_;
  const std::uint64_t all_;
  const bool visible_;
  std::atomic<std::uint64_t> done_{0};
  std::mutex mutex_;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace weir::command
