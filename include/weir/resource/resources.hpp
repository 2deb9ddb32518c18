// SPDX-License-Identifier: Apache-2.0
// All resources and adaptors at once.
//
// Adaptors stand on other resources and are resources themselves, so they can be stacked:
//
//   using namespace weir::literals;
//   weir::any_resource memory = weir::caching_allocator::create(gpu).value();
//   memory = weir::limiting_resource::create(memory, 8_GiB).value();
//   memory = weir::logging_resource::create(memory, "requests.csv").value();
//
// What is true of every adaptor: it is a shared handle, cheap to copy and never empty; it keeps
// its upstream alive; its device and its kind of memory are the upstream's; memory is freed through
// the adaptor it came from, or one equal to it. Adaptors with a table of live allocations check a
// free themselves, whatever the upstream checks: double_free, if it comes soon after the first;
// foreign_pointer; invalid_argument for a wrong size, which frees the memory all the same. A free
// that the upstream refuses leaves the memory live. All other errors are the upstream's. Counters
// begin at zero and are set back by reset_counters().
#pragma once

// IWYU pragma: begin_exports
#include "weir/resource/aligned_resource.hpp"
#include "weir/resource/current_resource.hpp"
#include "weir/resource/fallback_resource.hpp"
#include "weir/resource/limiting_resource.hpp"
#include "weir/resource/logging_resource.hpp"
#include "weir/resource/managed_resource.hpp"
#include "weir/resource/plain_resource.hpp"
#include "weir/resource/resource.hpp"
#include "weir/resource/retry_resource.hpp"
#include "weir/resource/statistics_resource.hpp"
#include "weir/resource/stream_allocator.hpp"
#include "weir/resource/synchronous_resource.hpp"
#include "weir/resource/tracking_resource.hpp"
// IWYU pragma: end_exports
