// SPDX-License-Identifier: Apache-2.0
// The messages of weir run, each printed once.
#include "remarks.hpp"

#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>

#include "settings.hpp"

namespace weir_preload {

namespace {

constexpr std::array<std::string_view, static_cast<std::size_t>(remark::count)> texts{
    "weir cannot be used here, and the driver serves all memory: ",
    "memory of contexts other than the primary one is left to the driver",
    "pools that the program created are left to the driver; they count towards the limit",
    "cuMemCreate is left to the driver; its memory does not count towards the limit",
    "memory that graphs allocate is left to the driver",
    "cuIpcGetMemHandle does not support weir's memory; use --keep cuMemAlloc to leave cuMemAlloc "
    "to the driver",
    "nothing is recorded: ",
    "the recording is incomplete: ",
    "nothing was recorded: the program requested no memory from the driver; a program that uses "
    "weir "
    "itself is recorded with weir record",
    "a requested service is not available: ",
    "the driver serves a request that weir could not: ",
};

std::array<std::atomic<bool>, texts.size()> said{};

struct file_identity {
  dev_t device = 0;
  ino_t number = 0;
  bool is_open = false;
};

file_identity error_output() noexcept {
  struct stat status {};
  if (::fstat(STDERR_FILENO, &status) != 0) return {};
  return {status.st_dev, status.st_ino, true};
}

file_identity at_start;

[[gnu::constructor]] void look_at_error_output() noexcept { at_start = error_output(); }

/// A program that closed it may have the number for a file or a connection of its own.
bool is_error_output_there() noexcept {
  const file_identity now = error_output();
  return at_start.is_open && now.is_open && now.device == at_start.device &&
         now.number == at_start.number;
}

}  // namespace

void say_once(remark about, std::string_view detail) noexcept {
  const auto index = static_cast<std::size_t>(about);
  if (said[index].exchange(true) || !is_error_output_there()) return;
  try {
    if (settings::get().is_quiet) return;
  } catch (...) {
    return;
  }
  const auto part = [](std::string_view text) {
    return iovec{const_cast<char*>(text.data()), text.size()};
  };
  const std::array line{part("weir run: "), part(texts[index]), part(detail), part("\n")};
  // In one piece, though other threads and processes write there, too.
  [[maybe_unused]] const auto written =
      ::writev(STDERR_FILENO, line.data(), static_cast<int>(line.size()));
}

}  // namespace weir_preload
