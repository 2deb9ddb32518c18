// Arrays that are taken and given back: a typed buffer pool, its bounds, and pinned memory to copy
// from.
//
// Runs on a GPU where there is one and on a simulated machine where there is none.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <vector>

#include "weir/device/event.hpp"
#include "weir/device/runtime.hpp"
#include "weir/device/stream.hpp"
#include "weir/device/virtual_memory.hpp"
#include "weir/driver/table.hpp"
#include "weir/pool/buffer_pool.hpp"
#include "weir/pool/pinned_pool.hpp"

namespace {

using namespace std::chrono_literals;
using namespace weir::literals;
using weir::driver::call;
using weir::driver::check;

constexpr std::size_t count = 1 << 18;

int unexpected = 0;

void expect(bool holds, const char* what) {
  std::printf("   %s %s\n", holds ? "yes:" : "NO: ", what);
  unexpected += holds ? 0 : 1;
}

weir::device_address address_of(const void* pointer) {
  return reinterpret_cast<weir::device_address>(pointer);
}

/// Copies to or from the host, on the stream; returns before it is done.
void upload(float* to, const float* from, const weir::stream& on) {
  const weir::context_scope bound{on.device()};
  check(call::memcpy_htod_async,
        bound.driver().memcpy_htod_async(address_of(to), from, count * sizeof(float), on.handle()))
      .value();
}

std::vector<float> download(const float* from, const weir::stream& on) {
  const weir::context_scope bound{on.device()};
  std::vector<float> arrived(count);
  check(call::memcpy_dtoh_async,
        bound.driver().memcpy_dtoh_async(arrived.data(), address_of(from), count * sizeof(float),
                                         on.handle()))
      .value();
  on.synchronize().value();
  return arrived;
}

bool all_are(const std::vector<float>& values, float expected) {
  return std::all_of(values.begin(), values.end(), [&](float each) { return each == expected; });
}

void show_take_and_give_back(const weir::buffer_pool& pool, const weir::stream& stream) {
  std::puts("1. A buffer that came back is taken again");
  const void* where = nullptr;
  {
    const auto first = pool.take<float>(count, stream).value();
    where = first.data();
  }  // back, behind whatever is queued on the stream
  const auto second = pool.take<int>(count, stream).value();
  expect(second.data() == where, "also for another type of the same length");
  const auto zeros = pool.take<float>(count, stream, weir::contents::zeroed).value();
  expect(all_are(download(zeros.data(), stream), 0.0F), "zeros are there if they are asked for");
  const auto now = pool.stats(stream.device());
  std::printf(
      "   %llu hits, %llu misses, %llu returns\n", static_cast<unsigned long long>(now.hits),
      static_cast<unsigned long long>(now.misses), static_cast<unsigned long long>(now.returns));
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
  values.give_back().value();
  expect(!values, "the buffer went back");
}

void show_bounds(const weir::stream& stream) {
  std::puts("\n3. What is kept is bounded, in bytes and in age");
  std::chrono::nanoseconds now = 0s;
  const auto pool = weir::buffer_pool::create(
                        {.most_kept = 8_MiB, .longest_kept = 30s, .clock = [&] { return now; }})
                        .value();
  {
    std::vector<weir::pooled_buffer<float>> all;
    for (int i = 0; i < 16; ++i) all.push_back(pool.take<float>(count, stream).value());
  }
  expect(pool.stats().kept == 16_MiB, "giving back asks the driver nothing");
  static_cast<void>(pool.trim().value());
  expect(pool.stats().kept == 8_MiB, "what is over the bound went to the driver");
  now = 31s;
  static_cast<void>(pool.trim().value());
  expect(pool.stats().kept == 0_B, "what nobody took for half a minute, too");
  pool.shutdown().value();
}

}  // namespace

int main() try {
  const auto machine = weir::runtime::open().value();
  const auto gpu = machine->device(weir::device_id{0}).value();
  const auto first = weir::stream::create(gpu).value();
  const auto second = weir::stream::create(gpu).value();

  const auto pool = weir::buffer_pool::create().value();
  const auto pinned = weir::pinned_pool::create(gpu).value();
  show_take_and_give_back(pool, first);
  show_two_streams(pool, pinned, first, second);
  show_bounds(first);

  std::printf("\n%s\n", unexpected == 0 ? "All as it should be." : "Something is wrong.");
  return unexpected == 0 ? 0 : 1;
} catch (const std::exception& found) {
  std::fprintf(stderr, "%s\n", found.what());
  return 1;
}
