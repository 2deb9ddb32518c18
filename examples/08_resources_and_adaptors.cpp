// SPDX-License-Identifier: Apache-2.0
// Resources: adaptors stacked on an allocator, a fallback, a standard container, a leak report.
//
// Runs on a GPU where there is one and on a simulated machine where there is none; it takes at most
// 256 MiB of either.
#include <cstdio>
#include <exception>
#include <memory_resource>
#include <string>
#include <vector>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/device/stream.hpp"
#include "weir/resource/pmr_resource.hpp"
#include "weir/resource/resources.hpp"

namespace {

using namespace weir::literals;

int unexpected = 0;

void expect(bool holds, const char* claim) {
  std::printf("   %s %s\n", holds ? "yes:" : "NO: ", claim);
  unexpected += holds ? 0 : 1;
}

// Whatever is behind it, this code only knows a resource.
void work(const weir::any_resource& memory, const weir::stream_ref& stream) {
  void* const scratch = memory.allocate(16_MiB, stream);
  // ... launch kernels on `stream` that use it ...
  memory.deallocate(scratch, 16_MiB, stream);
}

}  // namespace

int main() try {
  const auto machine = weir::runtime::open().value();
  const auto gpu = machine->device(weir::device_id{0}).value();
  const auto stream = weir::stream::create(gpu).value();
  const auto allocator = weir::caching_allocator::create(gpu).value();

  std::puts("1. Adaptors stand on each other");
  const auto counted = weir::statistics_resource::create(allocator).value();
  const auto limited = weir::limiting_resource::create(counted, 64_MiB).value();
  std::vector<std::string> rows;
  const auto logged =
      weir::logging_resource::create(limited, [&](std::string_view row) -> weir::result<void> {
        rows.emplace_back(row);
        return {};
      }).value();
  for (int i = 0; i < 3; ++i) work(logged, stream);
  const weir::resource_stats stats = counted.stats();
  expect(stats.allocations.total == 3 && stats.bytes.peak == 16_MiB, "three were counted");
  std::printf("   %s\n", to_string(stats).c_str());
  expect(rows.size() == 7, "and logged, each with its free, below a header");
  std::printf("   %s   %s", rows[0].c_str(), rows[1].c_str());
  const auto refused = limited.try_allocate(65_MiB, stream);
  expect(!refused && refused.code() == weir::errc::out_of_memory, "65 MiB are over the budget");

  std::puts("\n2. Managed memory where device memory runs out");
  const auto roomy =
      weir::fallback_resource::create(limited, weir::managed_resource::create(gpu).value()).value();
  const weir::any_resource either = roomy;
  void* const first = either.allocate(48_MiB, stream);
  void* const second = either.allocate(48_MiB, stream);
  expect(roomy.fallbacks() == 1, "the second went to managed memory");
  either.deallocate(first, 48_MiB, stream);
  either.deallocate(second, 48_MiB, stream);  // each with the resource it came from
  expect(limited.used() == 0_B, "the budget is whole again");

  std::puts("\n3. A callback before a request fails");
  void* spare = limited.try_allocate(40_MiB, stream).value();
  const auto patient = weir::retry_resource::create(limited, [&](weir::bytes needed, unsigned) {
                         std::printf("   somebody needs %s\n", to_string(needed).c_str());
                         if (spare == nullptr) return false;
                         limited.try_deallocate(spare, 40_MiB, stream).value();
                         spare = nullptr;
                         return true;
                       }).value();
  work(patient, stream);
  expect(patient.recoveries() == 0, "16 MiB fit beside the spare 40");
  const weir::any_resource retrying = patient;
  void* const large = retrying.allocate(60_MiB, stream);
  expect(patient.recoveries() == 1 && spare == nullptr, "60 do not, and the spare ones were freed");
  retrying.deallocate(large, 60_MiB, stream);

  std::puts("\n4. The current resource, and a thread's own");
  const weir::any_resource usual = weir::set_current_resource(gpu, logged).value();
  {
    const weir::resource_scope here{allocator};
    work(weir::current_resource(gpu).value(), stream);
  }
  const std::size_t before = rows.size();
  work(weir::current_resource(gpu).value(), stream);
  expect(rows.size() == before + 2, "only what was done outside of the scope was logged");
  expect(weir::set_current_resource(gpu, usual).has_value(), "and the usual one is back");

  std::puts("\n5. A container of the standard library in managed memory");
  if (auto managed = weir::managed_resource::create(gpu)) {
    auto resource = weir::pmr_resource::create(*managed).value();
    std::pmr::vector<int> squares{&resource};
    for (int i = 0; i < 100; ++i) squares.push_back(i * i);
    expect(squares[99] == 9801 && managed->in_use() >= 400_B, "a device could read it");
  }
  expect(weir::pmr_resource::create(allocator).code() == weir::errc::invalid_argument,
         "device memory is not for the host");

  std::puts("\n6. A leak, and its stack");
  const auto tracked = weir::tracking_resource::create(allocator).value();
  void* const forgotten = tracked.try_allocate(1_MiB, stream).value();
  const weir::live_report live = tracked.live();
  expect(live.allocations.size() == 1 && live.size == 1_MiB, "one allocation is live");
  std::printf("   %s, with a stack of %zu frames\n", to_string(live.allocations[0]).c_str(),
              live.allocations[0].stack.size());
  expect(tracked.try_deallocate(forgotten, 2_MiB, stream).code() == weir::errc::invalid_argument,
         "that was not its size, but it is freed");
  expect(tracked.try_deallocate(forgotten, 1_MiB, stream).code() == weir::errc::double_free,
         "and cannot be freed again");

  std::printf("\n%s\n", unexpected == 0 ? "All as it should be." : "Something is wrong.");
  return unexpected == 0 ? 0 : 1;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "%s\n", failure.what());
  return 1;
}
