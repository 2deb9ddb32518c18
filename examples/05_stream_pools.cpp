// SPDX-License-Identifier: Apache-2.0
// The driver's own pools: memory in stream order, kept through synchronisations, with exact
// figures.
//
// Runs on a GPU where there is one and on a simulated machine where there is none.
#include <cstdio>
#include <exception>
#include <iostream>

#include "weir/buffer/copy.hpp"
#include "weir/device/event.hpp"
#include "weir/device/runtime.hpp"
#include "weir/device/stream.hpp"
#include "weir/pool/stream_pool.hpp"

namespace {

using namespace weir::literals;

int unexpected = 0;

void expect(bool holds, const char* claim) {
  std::printf("   %s %s\n", holds ? "yes:" : "NO: ", claim);
  unexpected += holds ? 0 : 1;
}

// Work for a stream. In a real program this is a kernel.
void fill(const weir::stream_allocation& memory, unsigned char value, const weir::stream& stream) {
  weir::fill_bytes(memory.data(), value, memory.size(), stream).value();
}

void print(const weir::stream_pool& pool) {
  std::cout << "   " << pool.stats().value() << std::endl;
}

void show_order(weir::stream_pool& pool, const weir::stream& first, const weir::stream& second) {
  std::puts("1. Owners free in the order of their stream");
  void* address = nullptr;
  {
    auto scratch = pool.allocate_owned(64_MiB, first).value();
    address = scratch.data();
    fill(scratch, 1, first);
  }  // freed; the fill may still be running
  auto again = pool.allocate_owned(64_MiB, first).value();
  expect(again.data() == address, "the same stream gets the memory at once");
  fill(again, 2, first);

  // Another stream may free it, once it waits for the work.
  auto done = weir::event::create(pool.device()).value();
  done.record(first).value();
  second.wait(done).value();
  again.free(second).value();
  expect(again.is_freed(), "freed on another stream");
  expect(again.free().code() == weir::errc::already_freed, "a second free is refused");
}

void show_figures(weir::stream_pool& pool, const weir::stream& stream) {
  std::puts("\n2. What is reserved stays, up to the threshold");
  stream.synchronize().value();
  print(pool);
  expect(pool.stats().value().reserved >= 128_MiB, "a synchronisation takes nothing away");
  pool.set_threshold(0_B).value();  // the driver's own default
  stream.synchronize().value();
  expect(pool.stats().value().used == 0_B, "nothing is in use");
  static_cast<void>(pool.trim().value());
  expect(pool.stats().value().reserved == 0_B, "everything went back to the device");
  pool.reset_peaks().value();
  print(pool);
}

void show_limits(const weir::device& gpu, const weir::stream& stream) {
  std::puts("\n3. A maximum is a maximum");
  auto pool = weir::stream_pool::create(gpu, {.max = 64_MiB}).value();
  auto memory = pool.allocate_owned(48_MiB, stream).value();
  const auto refused = pool.try_allocate(48_MiB, stream);
  expect(!refused && refused.code() == weir::errc::out_of_memory, "what is above it is refused");
  std::printf("   %s\n", refused.error().message().c_str());
  memory.free().value();
  const auto remains = pool.close().value();
  expect(remains.allocations == 0, "closing the pool finds nothing left");
}

void show_default(const weir::stream& stream) {
  std::puts("\n4. The device's own pool needs no name");
  auto memory = weir::stream_alloc(1_MiB, stream).value();
  expect(memory.pool().is_default(), "it is the one that cudaMallocAsync uses");
  weir::stream_free(memory).value();
}

}  // namespace

int main() try {
  const auto machine = weir::runtime::open().value();
  const auto gpu = machine->device(weir::device_id{0}).value();
  if (!gpu.capabilities().memory_pools) {
    std::puts("This device has no pools.");
    return 0;
  }
  const auto first = weir::stream::create(gpu).value();
  const auto second = weir::stream::create(gpu).value();

  // 128 MiB are reserved now, and stay: the threshold is "everything" unless said otherwise.
  auto pool = weir::stream_pool::create(gpu, {.initial = 128_MiB}).value();
  show_order(pool, first, second);
  gpu.synchronize().value();
  show_figures(pool, first);
  show_limits(gpu, first);
  show_default(first);

  std::printf("\n%s\n", unexpected == 0 ? "All as it should be." : "Something is wrong.");
  return unexpected == 0 ? 0 : 1;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "%s\n", failure.what());
  return 1;
}
