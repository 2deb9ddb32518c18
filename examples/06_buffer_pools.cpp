// SPDX-License-Identifier: Apache-2.0
// Arrays that are taken and freed all the time: a typed buffer pool, its bounds, and pinned memory
// to copy from.
//
// Runs on a GPU where there is one and on a simulated machine where there is none.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <iostream>
#include <vector>

#include "weir/buffer/copy.hpp"
#include "weir/device/event.hpp"
#include "weir/device/runtime.hpp"
#include "weir/device/stream.hpp"
#include "weir/device/virtual_memory.hpp"
#include "weir/pool/buffer_pool.hpp"
#include "weir/pool/pinned_pool.hpp"

namespace {

using namespace std::chrono_literals;
using namespace weir::literals;

constexpr std::size_t count = 1 << 18;

int unexpected = 0;

void expect(bool holds, const char* claim) {
  std::printf("   %s %s\n", holds ? "yes:" : "NO: ", claim);
  unexpected += holds ? 0 : 1;
}

/// Copies to or from the host, on the stream; returns before it is done.
void upload(float* target, const float* source, const weir::stream& stream) {
  weir::copy_bytes(target, source, weir::bytes{count * sizeof(float)}, stream).value();
}

std::vector<float> download(const float* source, const weir::stream& stream) {
  std::vector<float> values(count);
  weir::copy_bytes(values.data(), source, weir::bytes{count * sizeof(float)}, stream).value();
  stream.synchronize().value();
  return values;
}

bool all_are(const std::vector<float>& values, float expected) {
  return std::all_of(values.begin(), values.end(), [&](float each) { return each == expected; });
}

void show_takes_and_frees(const weir::buffer_pool& pool, const weir::stream& stream) {
  std::puts("1. A buffer that was freed is taken again");
  const void* address = nullptr;
  {
    const auto first = pool.take<float>(count, stream).value();
    address = first.data();
  }  // freed, behind whatever is queued on the stream
  const auto second = pool.take<int>(count, stream).value();
  expect(second.data() == address, "also for another type of the same length");
  expect(pool.try_take_cached<float>(count, stream).code() == weir::errc::not_found,
         "no other one is cached");
  const auto zeros = pool.take<float>(count, stream, weir::contents::zeroed).value();
  expect(all_are(download(zeros.data(), stream), 0.0F), "zeros are there if they are asked for");
  const auto now = pool.stats(stream.device());
  std::cout << "   " << now << std::endl;
  expect(now.hits == 1 && now.misses == 2 && now.returns == 1, "and all of it was counted");
}

void show_two_streams(const weir::buffer_pool& pool, const weir::pinned_pool& pinned,
                      const weir::stream& first, const weir::stream& second) {
  std::puts("\n2. A second stream reads it, and the pool waits for that one, too");
  auto values = pool.take<float>(count, first).value();
  {
    const auto staging = weir::pooled_buffer<float>::create(pinned, count, first).value();
    std::fill_n(staging.data(), count, 7.0F);  // the host may write at once
    upload(values.data(), staging.data(), first);
  }  // the copy may still be under way: the pool keeps the memory until it is done
  auto uploaded = weir::event::create(first.device()).value();
  uploaded.record(first).value();
  second.wait(uploaded).value();
  values.record_stream(second).value();  // while the buffer is live
  expect(all_are(download(values.data(), second), 7.0F), "what was uploaded arrived");
  values.free().value();
  expect(values.empty(), "the buffer was freed");
}

void show_bounds(const weir::stream& stream) {
  std::puts("\n3. What is cached is bounded, in bytes and in age");
  std::chrono::nanoseconds now = 0s;
  const auto pool = weir::buffer_pool::create(
                        {.max_cached = 8_MiB, .max_idle_time = 30s, .clock = [&] { return now; }})
                        .value();
  {
    std::vector<weir::pooled_buffer<float>> buffers;
    for (int i = 0; i < 16; ++i) buffers.push_back(pool.take<float>(count, stream).value());
  }
  expect(pool.stats().cached == 16_MiB, "a free asks the driver nothing");
  // Takes release what is over the bounds, and so does trim(). Neither waits for the streams: they
  // are marked, and a mark on an idle stream is reached within microseconds.
  while (pool.stats().cached > 8_MiB) static_cast<void>(pool.trim(weir::bytes::max()).value());
  expect(pool.stats().cached == 8_MiB, "what is over the bound went to the driver");
  now = 31s;
  static_cast<void>(pool.trim(weir::bytes::max()).value());
  expect(pool.stats().cached == 0_B, "what nobody took for half a minute, too");
  static_cast<void>(pool.take<float>(count, stream).value());
  expect(pool.empty_cache().value() == 1_MiB, "all of it goes, if one waits for the streams");
  pool.close().value();
  expect(pool.take<float>(count, stream).code() == weir::errc::closed, "and that is the end");
}

}  // namespace

int main() try {
  const auto machine = weir::runtime::open().value();
  const auto gpu = machine->device(weir::device_id{0}).value();
  const auto first = weir::stream::create(gpu).value();
  const auto second = weir::stream::create(gpu).value();

  const auto pool = weir::buffer_pool::create().value();
  const auto pinned = weir::pinned_pool::create(gpu).value();
  show_takes_and_frees(pool, first);
  show_two_streams(pool, pinned, first, second);
  show_bounds(first);

  std::printf("\n%s\n", unexpected == 0 ? "All as it should be." : "Something is wrong.");
  return unexpected == 0 ? 0 : 1;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "%s\n", failure.what());
  return 1;
}
