// SPDX-License-Identifier: Apache-2.0
// The list of allocating types, with settings that make each do what it is for.
#include "resource_contract/resource_cases.hpp"

#include "weir/allocator/caching_allocator.hpp"
#include "weir/pool/bin_pool.hpp"
#include "weir/pool/pinned_pool.hpp"
#include "weir/pool/stream_pool.hpp"
#include "weir/resource/resources.hpp"

namespace weir::testing_support {
namespace {

using namespace weir::literals;

any_resource caching(device home) { return caching_allocator::create(home).value(); }

any_resource classic(device home) {
  return caching_allocator::create(home, {.policy = placement_policy::classic}).value();
}

any_resource plain(device home) { return plain_resource::create(home).value(); }
any_resource managed(device home) { return managed_resource::create(home).value(); }
any_resource driver_pool(device home) { return stream_pool::create(home).value(); }
any_resource bins(device home) { return bin_pool::create(home).value(); }
any_resource pinned(device home) { return pinned_pool::create(home).value(); }

any_resource limiting(device home) {
  return limiting_resource::create(caching(home), 64_GiB).value();
}
any_resource statistics(device home) { return statistics_resource::create(caching(home)).value(); }
any_resource tracking(device home) {
  return tracking_resource::create(caching(home), {.stacks = true, .depth = 8}).value();
}
any_resource logging(device home) {
  return logging_resource::create(caching(home),
                                  [](std::string_view) -> result<void> { return {}; })
      .value();
}
any_resource aligned(device home) {
  return aligned_resource::create(plain(home), 64_KiB).value();  // padded: plain memory cannot
}
any_resource fallback(device home) {
  // The first has room for little, so that both serve.
  const any_resource little = limiting_resource::create(caching(home), 1_MiB).value();
  return fallback_resource::create(little, bins(home)).value();
}
any_resource retry(device home) {
  return retry_resource::create(caching(home), [](bytes, unsigned attempt) { return attempt < 2; })
      .value();
}

any_resource stacked(device home) {
  any_resource memory = statistics(home);
  memory = limiting_resource::create(memory, 64_GiB).value();
  memory = aligned_resource::create(memory, 4_KiB).value();
  return tracking_resource::create(memory, {.stacks = false}).value();
}

const resource_case cases[] = {
    {.name = "caching_allocator", .make = &caching},
    {.name = "caching_allocator_classic", .make = &classic},
    {.name = "plain", .make = &plain, .free_waits = true, .frees_in_captures = true},
    {.name = "managed",
     .make = &managed,
     .free_waits = true,
     .bounded_by_device = false,
     .frees_in_captures = true},
    {.name = "stream_pool",
     .make = &driver_pool,
     .serves_all_devices = true,
     .frees_in_captures = true},
    {.name = "bin_pool", .make = &bins, .frees_on_all_devices = true},
    {.name = "pinned_pool",
     .make = &pinned,
     .serves_all_devices = true,
     .bounded_by_device = false},
    {.name = "limiting", .make = &limiting, .no_such_size = errc::out_of_memory},
    {.name = "statistics", .make = &statistics},
    {.name = "tracking", .make = &tracking},
    {.name = "logging", .make = &logging},
    {.name = "aligned", .make = &aligned, .free_waits = true, .frees_in_captures = true},
    {.name = "fallback", .make = &fallback},
    {.name = "retry", .make = &retry},
    {.name = "stacked", .make = &stacked, .no_such_size = errc::out_of_memory},
};

}  // namespace

std::span<const resource_case> all_resources() { return cases; }

}  // namespace weir::testing_support
