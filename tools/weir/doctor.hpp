// SPDX-License-Identifier: Apache-2.0
// The findings of `weir doctor` about a machine, before anything is printed.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weir/base/options.hpp"
#include "weir/base/result.hpp"
#include "weir/device/device.hpp"
#include "weir/device/runtime.hpp"
#include "weir/driver/table.hpp"

namespace weir::command {

/// The outcome in one word. The values are the exit codes; docs/doctor.md promises them.
enum class verdict {
  ready = 0,      ///< a driver, and everything below works
  limited = 1,    ///< a driver, and something below is missing
  no_driver = 2,  ///< only the simulated machine
  unusable = 3,   ///< a driver is there, but weir cannot use it
};

enum class support { yes, partly, no };

/// One thing that weir needs of a device, and whether it worked when it was tried.
struct feature {
  std::string_view key;    ///< in JSON
  std::string_view title;  ///< for people
  support works = support::no;
  std::string reason;
};

struct device_report {
  weir::device device;
  result<memory_info> memory;
  std::vector<int> peers;  ///< the other devices whose memory it reaches
  std::vector<feature> features;
  /// Whether network cards can reach mapped memory. The verdict does not depend on it.
  feature network_cards;
};

/// What the host has for the contents of suspended memory. 0: not known.
struct host_report {
  bytes total{};
  bytes available{};  ///< without swapping
  /// The most that a process may lock (RLIMIT_MEMLOCK); drivers may pin memory beside it.
  std::optional<bytes> lock_limit{};
};

struct machine_report {
  std::string driver;            ///< the one that was tried
  std::optional<error> problem;  ///< why no real machine is used
  command::verdict verdict = command::verdict::ready;
  std::shared_ptr<runtime> machine;   ///< the real one, or with a problem the simulated one
  std::vector<driver::call> missing;  ///< optional calls that the machine's driver lacks
  std::vector<device_report> devices;
  host_report host;

  [[nodiscard]] bool is_simulated() const noexcept { return problem.has_value(); }
};

/// Examines the driver that `settings` name; without a usable one the simulated machine they
/// describe. Only the device `only`, if there is one. no_device: the machine has no such device.
[[nodiscard]] result<machine_report> examine(const options& settings, std::optional<int> only);

/// Tries out what weir needs of `gpu`. Takes a context and a few megabytes for a moment.
[[nodiscard]] std::vector<feature> examine_features(device gpu);

/// Maps one handle that network cards can reach.
[[nodiscard]] feature examine_network_cards(device gpu);

/// Asks the system, now.
[[nodiscard]] host_report examine_host();

/// The optional calls that `calls` lacks.
[[nodiscard]] std::vector<driver::call> missing_calls(const driver::table& calls);

/// "13.0" for 13000.
[[nodiscard]] std::string cuda_version(int number);

/// "caching allocator: yes"... in at most 80 columns, for people.
[[nodiscard]] std::string to_text(const machine_report& report);
/// The same as JSON; docs/doctor.md describes the members.
[[nodiscard]] std::string to_json(const machine_report& report);

}  // namespace weir::command
