// SPDX-License-Identifier: Apache-2.0
// Memory kept apart: a pool for one part of a program, and the private memory of a captured graph.
//
// A captured graph uses the same addresses at every replay, so nobody else may get them as long as
// it can be replayed. Runs on a GPU where there is one and on a simulated machine where there is
// none.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/buffer/copy.hpp"
#include "weir/device/runtime.hpp"
#include "weir/device/stream.hpp"
#include "weir/driver/table.hpp"

namespace {

using namespace weir::literals;
using weir::driver::call;
using weir::driver::check;

constexpr weir::bytes size = 4_MiB;

int unexpected = 0;

void expect(bool holds, const char* what) {
  std::printf("   %s %s\n", holds ? "yes:" : "NO: ", what);
  unexpected += holds ? 0 : 1;
}

void fill(void* where, unsigned char with, const weir::stream& on) {
  weir::fill_bytes(where, with, size, on).value();
}

void copy(const void* from, void* into, const weir::stream& on) {
  weir::copy_bytes(into, from, size, on).value();
}

bool all_are(const void* block, unsigned char value, const weir::stream& on) {
  std::vector<unsigned char> arrived(size.count());
  weir::copy_bytes(arrived.data(), block, size, on).value();
  on.synchronize().value();
  return std::all_of(arrived.begin(), arrived.end(), [&](auto each) { return each == value; });
}

void show_pool(weir::caching_allocator& memory, const weir::stream& stream) {
  std::puts("1. A pool: what is freed to it is reused by it alone");
  auto pool = memory.create_pool("staging").value();
  void* kept = nullptr;
  {
    const weir::pool_scope scope{pool};  // this thread's requests go to the pool
    kept = memory.allocate(size, stream);
  }
  expect(pool.stats().blocks.current == 1, "the scope sent the request to the pool");
  memory.deallocate(kept, stream);  // a free needs no scope: the block knows where it belongs
  void* const elsewhere = memory.allocate(size, stream);
  expect(elsewhere != kept, "a request outside the scope does not get its memory");
  void* const again = pool.allocate(size, stream);  // the same without a scope
  expect(again == kept, "a request to the pool does");
  memory.deallocate(again, stream);
  memory.deallocate(elsewhere, stream);
  pool = {};  // the last handle: the pool's memory goes back as the streams get past it
  stream.synchronize().value();
  static_cast<void>(memory.empty_cache().value());
  expect(memory.snapshot().pools.size() == 1, "the pool is gone");
}

void show_graph(weir::caching_allocator& memory, const weir::stream& stream) {
  std::puts("\n2. A captured graph has memory of its own");
  const weir::context_scope bound{stream.device()};
  const weir::driver::table& cuda = bound.driver();
  if (cuda.graph_instantiate == nullptr) {
    std::puts("   this driver is too old to make this graph executable");
    return;
  }
  void* const result = memory.allocate(size, stream);

  // Declared before the capture begins: from here on requests on the stream are private.
  auto own = memory.begin_capture(stream).value();
  check(call::stream_begin_capture,
        cuda.stream_begin_capture(stream.handle(), weir::driver::CU_STREAM_CAPTURE_MODE_GLOBAL))
      .value();
  void* const scratch = memory.allocate(size, stream);
  fill(scratch, 5, stream);
  copy(scratch, result, stream);
  memory.deallocate(scratch, stream);
  void* const second = memory.allocate(size, stream);
  const bool reused = second == scratch;
  memory.deallocate(second, stream);
  weir::driver::CUgraph graph = nullptr;
  check(call::stream_end_capture, cuda.stream_end_capture(stream.handle(), &graph)).value();
  own.end_capture();
  expect(reused, "what the capture freed was reused inside it");

  // The memory lives as long as the graph and every executable made of it.
  own.tie_to_graph(graph).value();
  own = {};
  weir::driver::CUgraphExec replay = nullptr;
  check(call::graph_instantiate, cuda.graph_instantiate(&replay, graph, 0)).value();
  check(call::graph_destroy, cuda.graph_destroy(graph)).value();
  expect(memory.snapshot().pools.size() == 2, "the graph's memory is a pool");

  bool right = true;
  bool apart = true;
  for (int i = 0; i < 3; ++i) {
    fill(result, 0, stream);
    check(call::graph_launch, cuda.graph_launch(replay, stream.handle())).value();
    void* const other = memory.allocate(size, stream);  // meanwhile others allocate and write
    fill(other, 99, stream);
    apart = apart && other != scratch;
    right = all_are(result, 5, stream) && right;
    memory.deallocate(other, stream);
    static_cast<void>(memory.empty_cache().value());
  }
  expect(right, "every replay brought its result");
  expect(apart, "nobody else got the graph's memory");

  check(call::graph_exec_destroy, cuda.graph_exec_destroy(replay)).value();
  memory.deallocate(result, stream);
  // The driver tells of a graph's end on a thread of its own, in its own time.
  for (int i = 0; i < 500 && memory.snapshot().pools.size() != 1; ++i) {
    static_cast<void>(memory.empty_cache().value());
    std::this_thread::sleep_for(std::chrono::milliseconds{10});
  }
  expect(memory.snapshot().pools.size() == 1, "with the graph its memory goes");
}

}  // namespace

int main() try {
  const auto machine = weir::runtime::open().value();
  const auto gpu = machine->device(weir::device_id{0}).value();
  auto memory = weir::caching_allocator::create(gpu).value();
  const auto stream = weir::stream::create(gpu).value();
  show_pool(memory, stream);
  show_graph(memory, stream);
  static_cast<void>(memory.empty_cache().value());
  expect(memory.stats().reserved.current == 0_B, "nothing is held any more");

  std::printf("\n%s\n", unexpected == 0 ? "All as it should be." : "Something is wrong.");
  return unexpected == 0 ? 0 : 1;
} catch (const std::exception& found) {
  std::fprintf(stderr, "%s\n", found.what());
  return 1;
}
