// SPDX-License-Identifier: Apache-2.0
// The only code of the library that writes to standard error.
#pragma once

#include <atomic>
#include <cstdint>

#include "weir/base/error.hpp"

namespace weir { inline namespace v0 { namespace detail {

/// Decides which errors are written to standard error, and writes them.
///
/// Errors are found with locks held, at the end of the process and in forked children. So this
/// class takes no lock, allocates nothing, and writes each error with one system call. After
/// `most_written` errors it says so, and writes no more. Any thread.
class error_output {
 public:
  static constexpr std::uint32_t most_written = 100;

  /// `failure`: found while the program ran. `mistake`: in what the environment requests, which is
  /// also written by programs that were compiled with NDEBUG.
  enum class subject : std::uint8_t { failure, mistake };

  constexpr error_output() noexcept = default;

  void mark_debug_program() noexcept { is_debug_program_.store(true, std::memory_order_relaxed); }
  void choose(error_printing when) noexcept { chosen_.store(when, std::memory_order_relaxed); }
  [[nodiscard]] bool is_wanted(subject subject, bool has_handler) noexcept;
  void write(const error& reason) noexcept;

 private:
  enum class variable : std::uint8_t { unread, automatic, on, off };
  [[nodiscard]] variable read_variable() noexcept;

  std::atomic<error_printing> chosen_{error_printing::automatic};
  std::atomic<variable> variable_{variable::unread};  // WEIR_PRINT_ERRORS
  std::atomic<bool> is_debug_program_{false};
  std::atomic<std::uint32_t> written_{0};
};

/// The process's.
extern constinit error_output standard_error;

}}}  // namespace weir::v0::detail
