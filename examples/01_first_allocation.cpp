// SPDX-License-Identifier: Apache-2.0
// The first allocation: memory for a stream, used, freed, and allocated again without a wait.
// Runs on a GPU, and on a simulated machine if there is none.
#include <cstdio>
#include <exception>

#include "weir/weir.hpp"
using namespace weir::literals;

int main() try {
  const auto machine = weir::runtime::open().value();
  const auto gpu = machine->device(weir::device_id{0}).value();
  const auto memory = weir::caching_allocator::create(gpu).value();
  const auto stream = weir::stream::create(gpu).value();

  void* const block = memory.allocate(64_MiB, stream);  // throws if there is no room
  weir::fill_bytes(block, 7, 64_MiB, stream).value();   // queued; your kernels go here
  unsigned char first_byte = 0;
  weir::copy_bytes(&first_byte, block, 1_B, stream).value();
  memory.deallocate(block, stream);  // the copy may still be running: the stream keeps the order
  stream.synchronize().value();
  std::printf("The first byte is %d.\n", first_byte);

  void* const again = memory.allocate(64_MiB, stream);  // no lock, no driver call
  std::printf("The stream gets %s block.\n", again == block ? "the same" : "another");
  memory.deallocate(again, stream);
  std::puts(to_string(memory.stats()).c_str());

  const weir::bytes released = memory.empty_cache().value();
  std::printf("%s went back to the driver.\n", to_string(released).c_str());
  return first_byte == 7 && again == block && released == 64_MiB ? 0 : 1;
} catch (const std::exception& problem) {
  std::fprintf(stderr, "%s\n", problem.what());
  return 1;
}
