// SPDX-License-Identifier: Apache-2.0
// The runtime and the allocators that belong to the process.
#pragma once

#include <cstdint>
#include <optional>

#include "capi/objects.hpp"
#include "weir.h"
#include "weir/base/result.hpp"

namespace weir { inline namespace v0 { namespace capi {

/// An allocator that is never closed, and its handle.
struct default_allocator {
  allocator_object* object = nullptr;
  weir_allocator* handle = nullptr;
};

/// The process's allocator of the device, created at the first request. Costs a load afterwards.
[[nodiscard]] result<default_allocator> default_allocator_of(std::int32_t device);
/// Opens the process's runtime, unless it is open.
[[nodiscard]] result<void> open_default_runtime_if_closed();
/// The first device of the process's runtime; empty where that was not opened.
[[nodiscard]] std::optional<weir::device> first_default_device() noexcept;
/// How many devices the process's runtime has; 0 where it was not opened.
[[nodiscard]] std::int32_t default_device_count() noexcept;
/// The allocator of the device if it exists; without one, nulls.
[[nodiscard]] default_allocator existing_allocator_of(std::int32_t device) noexcept;

}}}  // namespace weir::v0::capi
