// SPDX-License-Identifier: Apache-2.0
// A cache that grows without being copied, and lends its memory while it does not need it.
//
// Sequences of different lengths each have a range of addresses in one reservation. A sequence
// grows page by page; when it ends, its pages serve others. Under a limit, a large request gets
// pages from the cache. Runs on a GPU where there is one and on a simulated machine where there is
// none; it takes at most 96 MiB of either.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/buffer/copy.hpp"
#include "weir/device/runtime.hpp"
#include "weir/device/stream.hpp"
#include "weir/growable/growable_memory.hpp"

namespace {

using namespace weir::literals;

constexpr weir::bytes page = 4_MiB;
constexpr weir::bytes longest = 32_MiB;  // what a sequence may grow to
constexpr std::uint64_t sequences = 8;
constexpr weir::bytes card = 96_MiB;  // what the program may have of it

int unexpected = 0;

void expect(bool holds, const char* what) {
  std::printf("   %s %s\n", holds ? "yes:" : "NO: ", what);
  unexpected += holds ? 0 : 1;
}

std::byte* at(const weir::growable_memory& cache, weir::bytes offset) {
  return static_cast<std::byte*>(cache.data()) + offset.count();
}

// What a kernel would do: every byte of a sequence's new part becomes `value`.
void append(const weir::growable_memory& cache, weir::bytes offset, weir::bytes size,
            unsigned char value, const weir::stream& on) {
  cache.commit(offset, size, on).value();
  weir::fill_bytes(at(cache, offset), value, size, on).value();
}

bool is_full_of(const weir::growable_memory& cache, weir::bytes offset, weir::bytes size,
                unsigned char value, const weir::stream& on) {
  std::vector<unsigned char> seen(size.count());
  weir::copy_bytes(seen.data(), at(cache, offset), size, on).value();
  on.synchronize().value();
  return std::all_of(seen.begin(), seen.end(), [&](auto each) { return each == value; });
}

}  // namespace

int main() try {
  const auto machine = weir::runtime::open().value();
  const auto gpu = machine->device(weir::device_id{0}).value();
  weir::allocator_options settings;
  settings.limit = card;
  const auto memory = weir::caching_allocator::create(gpu, settings).value();
  const auto stream = weir::stream::create(gpu).value();

  std::puts("1. Addresses for all sequences, memory for none");
  const auto cache =
      weir::growable_memory::reserve(memory, longest * sequences, {.page = page, .name = "kv"})
          .value();
  std::printf("   %s\n", to_string(cache).c_str());
  expect(longest * sequences > card, "more addresses than the program may have memory");
  expect(memory.stats().reserved.current == 0_B, "nothing is reserved on the device");

  std::puts("\n2. Sequences grow where they are");
  for (std::uint64_t step = 0; step < 4; ++step) {
    for (std::uint64_t each = 0; each < 4; ++each) {
      const auto value = static_cast<unsigned char>(16 * each + step);
      append(cache, longest * each + page * step, page, value, stream);
    }
  }
  expect(cache.stats().committed == page * 16, "each of four sequences has four pages");
  expect(is_full_of(cache, longest * 2 + page, page, 33, stream), "and what it wrote there");

  std::puts("\n3. What one sequence gives back another one gets");
  cache.decommit(0_B, longest, stream).value();
  const weir::bytes before = memory.stats().reserved.current;
  for (std::uint64_t step = 0; step < 4; ++step)
    append(cache, longest * 5 + page * step, page, 99, stream);
  expect(memory.stats().reserved.current == before, "without new memory");
  expect(is_full_of(cache, longest * 5, page * 4, 99, stream), "at addresses of its own");

  std::puts("\n4. All pages of a batch, or none");
  const std::vector<weir::byte_range> too_much{{longest * 6, longest}, {longest * 7, longest}};
  const auto refused = cache.commit(too_much, stream);
  expect(!refused && refused.code() == weir::errc::out_of_memory, "there is no room for both");
  expect(!cache.is_committed(longest * 6, 1_B), "so the first range has no page either");

  std::puts("\n5. A request that finds no memory gets pages of the cache");
  const auto lending = memory
                           .on_out_of_memory([&](weir::bytes needed) {
                             std::printf("   asked for %s\n", to_string(needed).c_str());
                             return cache.decommit(longest, longest * 2, stream).has_value();
                           })
                           .value();
  void* const activations = memory.allocate(48_MiB, stream);
  expect(cache.stats().committed == page * 8, "two sequences went for it");
  expect(memory.stats().reserved.peak <= card, "never more than the program may have");
  memory.deallocate(activations, stream);

  cache.close().value();
  std::printf("\n%s\n", unexpected == 0 ? "All as it should be." : "Something is wrong.");
  return unexpected == 0 ? 0 : 1;
} catch (const std::exception& found) {
  std::fprintf(stderr, "%s\n", found.what());
  return 1;
}
