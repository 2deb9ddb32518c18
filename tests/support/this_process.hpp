// SPDX-License-Identifier: Apache-2.0
// What the kernel says of this process and its threads.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace weir::testing_support {

/// Whether a thread, by gettid(), waits.
inline bool is_asleep(pid_t thread) {
  std::ifstream file{"/proc/self/task/" + std::to_string(thread) + "/stat"};
  const std::string text{std::istreambuf_iterator<char>{file}, {}};
  return text.find(") S ") != std::string::npos;
}

inline std::size_t running_threads() {
  const std::filesystem::directory_iterator all{"/proc/self/task"};
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

inline std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all{"/proc/self/fd"};
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

/// Addresses in use, whether memory lies under them or not.
inline std::uint64_t mapped_bytes() {
  std::uint64_t pages = 0;
  std::ifstream{"/proc/self/statm"} >> pages;
  return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace weir::testing_support
