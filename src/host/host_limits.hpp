// SPDX-License-Identifier: Apache-2.0
// How much host memory can still be pinned: by the machine, the control group, and the user's
// limit.
#pragma once

#include <cstdint>
#include <string>

#include "weir/base/result.hpp"

namespace weir { inline namespace v0 { namespace host {

/// What the system says about memory of this process.
struct system_memory {
  std::uint64_t available = ~std::uint64_t{0};  // can be had without swapping
  std::uint64_t total = ~std::uint64_t{0};
  bool by_control_group = false;  // a control group, not the machine, sets `available`
};

/// Reads /proc/meminfo and the limits of the process's control groups (version 2, and version 1 of
/// the memory controller). What cannot be read is no limit. About 100 us. `root` is the folder that
/// holds proc and sys, for tests.
[[nodiscard]] system_memory read_system_memory(const std::string& root = {});

/// The soft RLIMIT_MEMLOCK; the largest number if there is none.
[[nodiscard]] std::uint64_t lock_limit() noexcept;

/// Whether `size` more bytes may be pinned beside the `pinned` that are. limit_exceeded: not by the
/// user's limit; no_host_memory: not by what the system has. The kernel would end processes of the
/// control group rather than refuse the pages, so it is not asked for more than there is.
[[nodiscard]] result<void> check_room(std::uint64_t size, std::uint64_t pinned, std::uint64_t limit,
                                      const system_memory& system);

/// Adds to an error of the driver what the system allows, so that its reader knows what to change.
[[nodiscard]] error explain_refusal(error reason, const system_memory& system) noexcept;

}}}  // namespace weir::v0::host
