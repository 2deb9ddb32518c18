// SPDX-License-Identifier: Apache-2.0
// Buffers and copies: device vectors, pinned memory, staging, and memory that both sides see.
//
// Every call queues its work on a stream, and no memory is reused before that stream has completed
// the work. Runs on a GPU where there is one and on a simulated machine where there is none.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <numeric>
#include <span>
#include <vector>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/buffer/copy.hpp"
#include "weir/buffer/device_vector.hpp"
#include "weir/buffer/pinned_buffer.hpp"
#include "weir/buffer/staging.hpp"
#include "weir/buffer/unified_buffer.hpp"
#include "weir/device/runtime.hpp"
#include "weir/device/stream.hpp"

namespace {

int unexpected = 0;

void expect(bool holds, const char* claim) {
  std::printf("   %s %s\n", holds ? "yes:" : "NO: ", claim);
  unexpected += holds ? 0 : 1;
}

}  // namespace

int main() try {
  constexpr std::size_t count = 1 << 20;
  const auto machine = weir::runtime::open().value();
  const auto gpu = machine->device(weir::device_id{0}).value();
  const auto stream = weir::stream::create(gpu).value();
  auto memory = weir::caching_allocator::create(gpu).value();

  std::puts("1. A vector on the device, filled through pinned memory");
  const auto pool = weir::pinned_pool::create(gpu).value();
  auto weights = weir::device_vector<float>::create(memory, count, stream).value();
  {
    auto batch = weir::pinned_buffer<float>::create(pool, count, stream).value();
    std::iota(batch.begin(), batch.end(), 0.0F);
    weir::copy(weights, batch, stream).value();
  }  // the buffer may go at once: the pool keeps its memory until the stream has copied it
  expect(weights.get(count - 1).value() == static_cast<float>(count - 1),
         "the last element is there");
  weights.resize(2 * count).value();  // the new half is undefined ...
  weir::fill(weights.span().part(count, count).value(), 0.5F, stream).value();  // ... until now
  expect(weights.get(0).value() == 0.0F && weights.get(2 * count - 1).value() == 0.5F,
         "growing kept the old half, the fill wrote the new one");

  auto sums = weir::device_vector<float>::zeroed(memory, count, stream).value();
  expect(sums.get(0).value() == 0.0F && sums.get(count - 1).value() == 0.0F,
         "a vector can begin as zeros");

  std::puts("\n2. Pageable memory, through a staging buffer");
  auto stage = weir::staging_buffer::create(pool, stream).value();
  std::vector<float> host(2 * count, 2.0F);
  stage.upload(weights.data(), std::as_bytes(std::span{host})).value();
  std::fill(host.begin(), host.end(), 0.0F);  // it was read: no need to wait
  stage.download(std::as_writable_bytes(std::span{host}), weights.data()).value();
  expect(std::all_of(host.begin(), host.end(), [](float each) { return each == 2.0F; }),
         "it went there and back");

  std::puts("\n3. A part of a table");
  // Columns 2 to 5 of an 8-column table on the host, packed on the device.
  std::vector<int> table(8 * 4);
  std::iota(table.begin(), table.end(), 0);
  auto packed = weir::device_vector<int>::create(memory, 4 * 4, stream).value();
  weir::copy_2d({packed.data(), weir::bytes{16}}, {table.data() + 2, weir::bytes{32}},
                weir::bytes{16}, 4, stream)
      .value();
  expect(packed.get(0).value() == 2 && packed.get(15).value() == 29, "four columns arrived");
  const auto too_wide = weir::copy_2d({packed.data(), weir::bytes{16}},
                                      {table.data(), weir::bytes{32}}, weir::bytes{20}, 4, stream);
  expect(too_wide.code() == weir::errc::invalid_argument,
         "rows wider than their pitch are refused");

  std::puts("\n4. Memory that both sides see");
  if (!gpu.capabilities().managed_memory) {
    std::puts("   this device has no managed memory");
  } else {
    auto field = weir::unified_buffer<int>::zeroed(count, stream).value();
    weir::fill(field.use_on(stream).value(), 7, stream).value();
    {
      auto view = field.view().value();  // waits for the stream
      expect(view[0] == 7 && view[count - 1] == 7, "the host sees what the device wrote");
      view[0] = 8;
      expect(field.use_on(stream).code() == weir::errc::not_ready,
             "while the host has a view, no stream gets it");
    }
    if (gpu.capabilities().concurrent_managed_access) {
      field.advise_preferred(weir::managed_place::host()).value();
      field.prefetch(gpu, stream).value();
      const auto info = field.info().value();
      expect(info.preferred == weir::managed_place::host(), "it prefers the host");
      expect(info.last_prefetch == weir::managed_place{gpu}, "it was sent to the device");
      std::printf("   %s\n", to_string(info).c_str());
    }
  }

  std::printf("\n%s\n", unexpected == 0 ? "All as it should be." : "Something is wrong.");
  return unexpected == 0 ? 0 : 1;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "%s\n", failure.what());
  return 1;
}
