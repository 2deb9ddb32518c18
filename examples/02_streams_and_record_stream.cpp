// SPDX-License-Identifier: Apache-2.0
// Memory that crosses streams: the three ways to free a block that two streams have used.
//
// The rule: deallocate(p, s) says that work queued on s so far may still use the block. Whoever
// used it on a further stream says so with record_stream(), or makes s wait for that stream, or
// frees it on that stream. Runs on a GPU where there is one and on a simulated machine where there
// is none.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <vector>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/buffer/copy.hpp"
#include "weir/device/event.hpp"
#include "weir/device/runtime.hpp"
#include "weir/device/stream.hpp"

namespace {

using namespace weir::literals;

constexpr weir::bytes size = 8_MiB;

int unexpected = 0;

void expect(bool holds, const char* what) {
  std::printf("   %s %s\n", holds ? "yes:" : "NO: ", what);
  unexpected += holds ? 0 : 1;
}

// The producer's kernel: fills a block.
void produce(void* into, unsigned char value, const weir::stream_ref& on) {
  weir::fill_bytes(into, value, size, on).value();
}

// The consumer's kernel: reads one block and writes another.
void consume(const void* from, void* into, const weir::stream_ref& on) {
  weir::copy_bytes(into, from, size, on).value();
}

// Whether every byte of a block has this value, once the stream has come so far.
bool all_are(const void* block, unsigned char value, const weir::stream& on) {
  std::vector<unsigned char> arrived(size.count());
  weir::copy_bytes(arrived.data(), block, size, on).value();
  on.synchronize().value();
  return std::all_of(arrived.begin(), arrived.end(), [&](auto each) { return each == value; });
}

}  // namespace

int main() try {
  const auto machine = weir::runtime::open().value();
  const auto gpu = machine->device(weir::device_id{0}).value();
  auto memory = weir::caching_allocator::create(gpu).value();
  const auto producer = weir::stream::create(gpu).value();
  const auto consumer = weir::stream::create(gpu).value();
  auto produced = weir::event::create(gpu).value();
  auto consumed = weir::event::create(gpu).value();
  void* const result = memory.allocate(size, consumer);

  // In all three the consumer waits for the producer before it reads. That is the program's own
  // business: an allocator orders the reuse of memory, not the use of it.
  std::puts("1. record_stream: the allocator watches the other stream");
  void* block = memory.allocate(size, producer);
  produce(block, 1, producer);
  produced.record(producer).value();
  consumer.wait(produced).value();
  consume(block, result, consumer);
  memory.record_stream(block, consumer).value();  // before the free: the consumer uses it, too
  memory.deallocate(block, producer);
  expect(memory.stats().pending == size, "the freed block waits for the consumer");
  // What the producer gets now is other memory, or the same behind a wait: never too early.
  void* next = memory.allocate(size, producer);
  produce(next, 99, producer);
  expect(all_are(result, 1, consumer), "the consumer read what was produced");
  memory.deallocate(next, producer);
  producer.synchronize().value();
  static_cast<void>(memory.trim(weir::bytes::max()).value());  // gives nothing back, but looks
  expect(memory.stats().pending == 0_B, "once the consumer has passed, the block is free");

  std::puts("\n2. A wait: the freeing stream is behind the other");
  block = memory.allocate(size, producer);
  produce(block, 2, producer);
  produced.record(producer).value();
  consumer.wait(produced).value();
  consume(block, result, consumer);
  consumed.record(consumer).value();
  producer.wait(consumed).value();     // the producer goes on behind the consumer ...
  memory.deallocate(block, producer);  // ... so its order covers both
  next = memory.allocate(size, producer);
  expect(next == block, "the producer may have it again at once");
  produce(next, 99, producer);
  expect(all_are(result, 2, consumer), "the consumer read what was produced");
  memory.deallocate(next, producer);

  std::puts("\n3. Freed where it was used last");
  block = memory.allocate(size, producer);
  produce(block, 3, producer);
  produced.record(producer).value();
  consumer.wait(produced).value();
  consume(block, result, consumer);
  memory.deallocate(block, consumer);  // the consumer has waited for the producer: it is the last
  next = memory.allocate(size, consumer);
  expect(next == block, "now it is the consumer who has it again at once");
  expect(all_are(result, 3, consumer), "the consumer read what was produced");
  memory.deallocate(next, consumer);

  std::puts("\n4. Somebody else's stream");
  {
    // Such as a cudaStream_t. A bare handle may be passed as it is; with its id looked up once,
    // requests are as quick as those of a weir::stream.
    const auto owner = weir::stream::create(gpu).value();
    const auto theirs = weir::stream_ref{gpu, owner.handle()}.identified().value();
    block = memory.allocate(size, theirs);
    produce(block, 4, theirs);
    memory.deallocate(block, theirs);
    // Before it is destroyed: nobody can ask afterwards how far it came.
    memory.release_stream(theirs).value();
  }
  memory.deallocate(result, consumer);
  static_cast<void>(memory.empty_cache().value());
  expect(memory.stats().reserved.current == 0_B, "what it freed last is not lost");

  const weir::memory_stats now = memory.stats();
  std::printf("\n   %llu events were recorded and %llu waits queued for %llu allocations\n",
              static_cast<unsigned long long>(now.events),
              static_cast<unsigned long long>(now.waits),
              static_cast<unsigned long long>(now.allocations));
  std::printf("\n%s\n", unexpected == 0 ? "All as it should be." : "Something is wrong.");
  return unexpected == 0 ? 0 : 1;
} catch (const std::exception& found) {
  std::fprintf(stderr, "%s\n", found.what());
  return 1;
}
