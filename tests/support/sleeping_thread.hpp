// Whether a thread waits, as the kernel sees it.
#pragma once

#include <sys/types.h>

#include <fstream>
#include <iterator>
#include <string>

namespace weir::testing_support {

/// Of a thread of this process, by gettid().
inline bool is_asleep(pid_t thread) {
  std::ifstream file{"/proc/self/task/" + std::to_string(thread) + "/stat"};
  const std::string text{std::istreambuf_iterator<char>{file}, {}};
  return text.find(") S ") != std::string::npos;
}

}  // namespace weir::testing_support
