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

any_resource caching(device where) { return caching_allocator::create(where).value(); }

any_resource classic(device where) {
  options settings;
  settings.heap_policy = placement_policy::classic;
  return caching_allocator::create(where, settings).value();
}

any_resource plain(device where) { return plain_resource::create(where).value(); }
any_resource managed(device where) { return managed_resource::create(where).value(); }
any_resource driver_pool(device where) { return stream_pool::create(where).value(); }
any_resource bins(device where) { return bin_pool::create(where).value(); }
any_resource pinned(device where) { return pinned_pool::create(where).value(); }

any_resource limiting(device where) {
  return limiting_resource::create(caching(where), 64_GiB).value();
}
any_resource statistics(device where) {
  return statistics_resource::create(caching(where)).value();
}
any_resource tracking(device where) {
  return tracking_resource::create(caching(where), {.stacks = true, .depth = 8}).value();
}
any_resource logging(device where) {
  return logging_resource::create(caching(where),
                                  [](std::string_view) -> result<void> { return {}; })
      .value();
}
any_resource aligned(device where) {
  return aligned_resource::create(plain(where), 64_KiB).value();  // padded: plain memory cannot
}
any_resource fallback(device where) {
  // The first has room for little, so that both serve.
  const any_resource little = limiting_resource::create(caching(where), 1_MiB).value();
  return fallback_resource::create(little, bins(where)).value();
}
any_resource retry(device where) {
  return retry_resource::create(caching(where), [](bytes, unsigned attempt) { return attempt < 2; })
      .value();
}
any_resource prefetch(device where) { return prefetch_resource::create(managed(where)).value(); }

any_resource stacked(device where) {
  any_resource memory = statistics(where);
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
     .frees_in_captures = true,
     .no_such_size = errc::out_of_memory},
    {.name = "bin_pool", .make = &bins},
    {.name = "pinned_pool", .make = &pinned, .bounded_by_device = false},
    {.name = "limiting", .make = &limiting, .no_such_size = errc::limit_exceeded},
    {.name = "statistics", .make = &statistics},
    {.name = "tracking", .make = &tracking},
    {.name = "logging", .make = &logging},
    {.name = "aligned", .make = &aligned, .free_waits = true, .frees_in_captures = true},
    {.name = "fallback", .make = &fallback},
    {.name = "retry", .make = &retry},
    {.name = "prefetch",
     .make = &prefetch,
     .free_waits = true,
     .bounded_by_device = false,
     .frees_in_captures = true},
    {.name = "stacked", .make = &stacked, .no_such_size = errc::limit_exceeded},
};

}  // namespace

std::span<const resource_case> all_resources() { return cases; }

}  // namespace weir::testing_support
