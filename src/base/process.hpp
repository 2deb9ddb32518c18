// SPDX-License-Identifier: Apache-2.0
// Which process it is, also where another has got its number since.
#pragma once

#include <time.h>

#include <cstdint>
#include <string>

namespace weir { inline namespace v0 { namespace detail {

/// A process: its number, and when it began, in the kernel's ticks since the computer started.
struct process_identity {
  int number = 0;
  std::uint64_t start = 0;

  friend bool operator==(const process_identity&, const process_identity&) = default;
};

/// When the process began; 0: there is none, it has ended and nobody asked how, or /proc is not
/// there. Costs the reading of a file of /proc.
[[nodiscard]] std::uint64_t start_of_process(int number) noexcept;
[[nodiscard]] process_identity own_process() noexcept;
[[nodiscard]] bool is_running(const process_identity& process) noexcept;
/// Whether the process that has the number now began after `time`, as files tell it: a file of that
/// time is another process's. Only by more than a second: both are rounded. False: there is none.
[[nodiscard]] bool began_after(int number, const timespec& time) noexcept;
/// The name of its program, at most 15 letters; empty: there is no such process.
[[nodiscard]] std::string name_of_process(int number);
/// Stands for the processes that see each other's numbers; 0 where the kernel does not say.
[[nodiscard]] std::uint64_t process_namespace() noexcept;

}}}  // namespace weir::v0::detail
