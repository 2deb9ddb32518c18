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
// Every adaptor is a shared handle, cheap to copy and never empty, and keeps its upstream alive.
// Its device and its kind of memory are the upstream's. Memory is freed through the adaptor it came
// from, or an equal one. Adaptors with a table of live allocations check every free: double_free
// (if it comes soon after the first), foreign_pointer, and invalid_argument for a wrong size, which
// frees the memory anyway. If the upstream refuses a free, the memory stays live. All other errors
// are the upstream's. Counters start at zero; reset_counters() resets them.
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
