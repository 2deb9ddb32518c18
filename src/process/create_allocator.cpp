// SPDX-License-Identifier: Apache-2.0
// caching_allocator::create(): a heap, and what the options and the environment request around it.
#include <memory>
#include <utility>

#include "heap/check_options.hpp"
#include "heap/heap_view.hpp"
#include "process/budgets.hpp"
#include "process/live_pages.hpp"
#include "process/recordings.hpp"
#include "weir/allocator/caching_allocator.hpp"

namespace weir { inline namespace v0 {
namespace {

/// What the options request and cannot be provided is an error for the caller. What the environment
/// requests never stops a program that knows nothing of it, also where the program took its options
/// from the environment.
result<void> start_services(caching_allocator& allocator, const allocator_options& options) try {
  WEIR_TRY_VALUE(member, process::join_if_requested(allocator, options));
  WEIR_TRY_VALUE(page, process::publish_if_requested(allocator, options));
  WEIR_TRY(process::record_if_requested(allocator, options));
  process::keep(allocator, std::move(member));
  process::keep(allocator, std::move(page));
  return {};
} catch (const std::bad_alloc&) {
  return error{{.code = errc::no_host_memory,
                .detail = "out of host memory for a budget, a live page or a recording"}};
}

}  // namespace

result<caching_allocator> caching_allocator::create(weir::device device,
                                                    const allocator_options& options) {
  WEIR_TRY(heap::check_options(options));
  WEIR_TRY_VALUE(heap, heap::create_heap(device, options));
  caching_allocator allocator{std::move(heap)};
  WEIR_TRY(start_services(allocator, options));
  return allocator;
}

}}  // namespace weir::v0
