// SPDX-License-Identifier: Apache-2.0
// Copies of another process's descriptors.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <vector>

#include "weir/base/result.hpp"
#include "weir/device/virtual_memory.hpp"

namespace weir_torch {

/// The descriptors with these numbers in that process, copied with pidfd_getfd(), as torch's own
/// allocator does it. not_permitted: this process may not trace that one, or the container forbids
/// the call; not_found: there is no such process or descriptor; not_supported: a kernel before 5.6.
[[nodiscard]] weir::result<std::vector<weir::descriptor>> copy_descriptors(
    pid_t process, std::span<const std::int32_t> numbers);

/// Whether processes of the same user can be expected to copy descriptors of this one: the kernel
/// has the call, the container permits it, and no rule keeps processes from tracing each other.
/// Asked once.
[[nodiscard]] bool can_be_copied_from() noexcept;

}  // namespace weir_torch
