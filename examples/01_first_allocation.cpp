// SPDX-License-Identifier: Apache-2.0
// The first allocation: memory for a stream, used, freed, had back at once, and what the books say.
//
// Runs on a GPU where there is one and on a simulated machine where there is none.
#include <cstddef>
#include <cstdio>
#include <exception>
#include <string>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/device/stream.hpp"
#include "weir/driver/table.hpp"

namespace {

using namespace weir::literals;

int unexpected = 0;

// Says what is true now, and counts what should be and is not.
void expect(bool holds, const char* what) {
  std::printf("   %s %s\n", holds ? "yes:" : "NO: ", what);
  unexpected += holds ? 0 : 1;
}

weir::device_address address_of(const void* pointer) {
  return reinterpret_cast<weir::device_address>(pointer);
}

// Work for a stream, so that there is something to be in order with. In a real program this is a
// kernel.
void fill(void* where, weir::bytes size, unsigned char with, const weir::stream& on) {
  const weir::context_scope bound{on.device()};
  weir::driver::check(
      weir::driver::call::memset_d8_async,
      bound.driver().memset_d8_async(address_of(where), with, size.count(), on.handle()))
      .value();
}

std::byte last_byte(const void* where, weir::bytes size, const weir::stream& on) {
  const weir::context_scope bound{on.device()};
  std::byte arrived{};
  weir::driver::check(weir::driver::call::memcpy_dtoh_async,
                      bound.driver().memcpy_dtoh_async(
                          &arrived, address_of(where) + size.count() - 1, 1, on.handle()))
      .value();
  on.synchronize().value();
  return arrived;
}

void print(const char* when, const weir::memory_stats& now) {
  std::printf("   %-22s requested %-10s allocated %-10s reserved %-10s cached %s\n", when,
              to_string(now.requested.current).c_str(), to_string(now.allocated.current).c_str(),
              to_string(now.reserved.current).c_str(), to_string(now.cached).c_str());
}

}  // namespace

int main() try {
  // The machine, one of its devices, an allocator for that device, and a stream to work on. The
  // allocator takes no memory before somebody asks for some.
  const auto machine = weir::runtime::open().value();
  const auto gpu = machine->device(weir::device_id{0}).value();
  auto memory = weir::caching_allocator::create(gpu).value();
  const auto stream = weir::stream::create(gpu).value();
  std::printf("The driver is %s, the device %s with %s.\n\n", machine->describe().driver.c_str(),
              std::string{gpu.name()}.c_str(), to_string(gpu.total_memory()).c_str());

  std::puts("1. A block for a stream");
  void* const block = memory.allocate(64_MiB, stream);  // throws if there is no room
  fill(block, 64_MiB, 7, stream);                       // queued; may happen later
  expect(last_byte(block, 64_MiB, stream) == std::byte{7}, "the memory keeps what is written");
  print("one block", memory.stats());

  std::puts("\n2. Freed, and had again");
  fill(block, 64_MiB, 8, stream);
  memory.deallocate(block, stream);  // the fill may still be running: the stream keeps the order
  print("freed", memory.stats());
  void* const again = memory.allocate(64_MiB, stream);
  expect(again == block, "the same stream gets its memory back at once, without waiting");
  expect(memory.stats().hits == 1, "without a lock and without a driver call");

  std::puts("\n3. Sizes are rounded up to 512 bytes");
  void* const small = memory.allocate(1000_B, stream);
  expect(memory.size_of(small).value() == 1000_B, "what was asked for is remembered");
  expect(memory.stats().requested.current == 64_MiB + 1000_B, "requested is exact");
  expect(memory.stats().allocated.current == 64_MiB + 1024_B, "allocated is rounded");

  std::puts("\n4. Bad input has an answer");
  expect(memory.allocate(0_B, stream) == nullptr, "no bytes are a null pointer");
  int on_the_host = 0;
  expect(memory.try_deallocate(&on_the_host, stream).code() == weir::errc::foreign_pointer,
         "a pointer from elsewhere is refused");
  memory.deallocate(small, stream);
  expect(memory.try_deallocate(small, stream).code() == weir::errc::double_free,
         "a second free is refused");

  std::puts("\n5. Giving memory back");
  memory.deallocate(again, stream);
  expect(memory.stats().allocated.current == 0_B, "nothing is live");
  print("all freed", memory.stats());
  const weir::bytes went = memory.empty_cache().value();  // waits for the streams first
  std::printf("   %s went back to the driver\n", to_string(went).c_str());
  expect(memory.stats().reserved.current == 0_B, "nothing is reserved");

  std::printf("\n%s\n", unexpected == 0 ? "All as it should be." : "Something is wrong.");
  return unexpected == 0 ? 0 : 1;
} catch (const std::exception& found) {
  std::fprintf(stderr, "%s\n", found.what());
  return 1;
}
