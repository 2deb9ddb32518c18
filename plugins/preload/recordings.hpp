// SPDX-License-Identifier: Apache-2.0
// The traces of the process, one for each device.
#pragma once

#include <csignal>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "blocks.hpp"
#include "real_driver.hpp"
#include "weir/trace/recorder.hpp"

namespace weir_preload {

/// Begun where WEIR_RUN_RECORD names a file, when a device's memory is first asked for, and ended
/// with the process. Any thread.
class recordings {
 public:
  /// The recorder of a device, which lives as long as the process; null: nothing is recorded.
  [[nodiscard]] weir::recorder* of(int device, const real_driver& driver) noexcept;

  /// Memory that the driver gave, or is about to get back.
  void allocated(const served_block& block, const real_driver& driver) noexcept;
  void freed(const served_block& block, const real_driver& driver) noexcept;

  void stop() noexcept;

 private:
  [[nodiscard]] weir::recorder* start(int device, const real_driver& driver);
  [[nodiscard]] std::string next_path();

  std::mutex mutex_;
  int started_ = 0;
  std::map<int, std::unique_ptr<weir::recorder>> recorders_;  // null: it could not be begun
};

/// Keeps signals of the program from threads that are made meanwhile: its handlers are not for
/// ours.
class signals_blocked {
 public:
  signals_blocked() noexcept;
  ~signals_blocked();
  signals_blocked(const signals_blocked&) = delete;
  signals_blocked& operator=(const signals_blocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace weir_preload
