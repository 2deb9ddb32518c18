// SPDX-License-Identifier: Apache-2.0
// Training and rollout take turns on one card that is too small for both.
//
// Weights stay; the optimizer's states leave for the host while text is generated, and the cache of
// the generator leaves, without its contents, while weights are trained. Pointers, and a graph that
// was captured once, stay good all the time. Runs on a GPU where there is one and on a simulated
// machine where there is none; it takes at most 280 MiB of either.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
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

constexpr weir::bytes card = 280_MiB;  // what the program may have of it
constexpr weir::bytes weights_size = 64_MiB;
constexpr weir::bytes states_size = 128_MiB;
constexpr weir::bytes cache_size = 160_MiB;

int unexpected = 0;

void expect(bool holds, const char* what) {
  std::printf("   %s %s\n", holds ? "yes:" : "NO: ", what);
  unexpected += holds ? 0 : 1;
}

// What a kernel would do: every byte becomes `value`.
void fill(void* block, unsigned char value, weir::bytes size, const weir::stream& on) {
  weir::fill_bytes(block, value, size, on).value();
}

bool is_full_of(const void* block, unsigned char value, weir::bytes size, const weir::stream& on) {
  std::vector<unsigned char> seen(size.count());
  weir::copy_bytes(seen.data(), block, size, on).value();
  on.synchronize().value();
  return std::all_of(seen.begin(), seen.end(), [&](auto each) { return each == value; });
}

// A tag whose memory can leave, with one block.
class part {
 public:
  part(weir::caching_allocator memory, const char* name)
      : memory_{std::move(memory)}, tag_{weir::tag::named(name).value()} {
    memory_.declare_suspendable(tag_).value();
  }
  weir::result<void> allocate(weir::bytes size, const weir::stream& on) {
    const weir::tag_scope scope{tag_};
    auto block = memory_.try_allocate(size, on);
    if (!block) return std::move(block).error();
    block_ = *block;
    return {};
  }
  void free(const weir::stream& on) { memory_.deallocate(block_, on); }
  [[nodiscard]] weir::tag tag() const { return tag_; }
  [[nodiscard]] void* block() const { return block_; }

 private:
  weir::caching_allocator memory_;  // a shared handle
  weir::tag tag_;
  void* block_ = nullptr;
};

// Generation reads the weights and writes the cache: captured once, replayed in every round.
weir::driver::CUgraphExec capture_generation(const part& weights, const part& cache,
                                             const weir::stream& on) {
  const weir::context_scope bound{on.device()};
  const weir::driver::table& cuda = bound.driver();
  if (cuda.graph_instantiate == nullptr) return nullptr;  // an old driver
  weir::driver::CUgraph graph = nullptr;
  weir::driver::CUgraphExec replay = nullptr;
  check(call::stream_begin_capture,
        cuda.stream_begin_capture(on.handle(), weir::driver::CU_STREAM_CAPTURE_MODE_GLOBAL))
      .value();
  weir::copy_bytes(cache.block(), weights.block(), weights_size, on).value();
  check(call::stream_end_capture, cuda.stream_end_capture(on.handle(), &graph)).value();
  check(call::graph_instantiate, cuda.graph_instantiate(&replay, graph, 0)).value();
  check(call::graph_destroy, cuda.graph_destroy(graph)).value();
  return replay;
}

void generate(weir::driver::CUgraphExec replay, const part& weights, const part& cache,
              const weir::stream& on) {
  if (replay != nullptr) {
    const weir::context_scope bound{on.device()};
    check(call::graph_launch, bound.driver().graph_launch(replay, on.handle())).value();
    return;
  }
  weir::copy_bytes(cache.block(), weights.block(), weights_size, on).value();
}

}  // namespace

int main() try {
  const auto machine = weir::runtime::open().value();
  const auto gpu = machine->device(weir::device_id{0}).value();
  weir::allocator_options settings;
  settings.limit = card;
  auto memory = weir::caching_allocator::create(gpu, settings).value();
  const auto stream = weir::stream::create(gpu).value();

  std::puts("1. The card is too small for all of it");
  part weights{memory, "weights"};
  part states{memory, "optimizer states"};
  part cache{memory, "kv cache"};
  weights.allocate(weights_size, stream).value();
  states.allocate(states_size, stream).value();
  fill(weights.block(), 0, weights_size, stream);
  fill(states.block(), 100, states_size, stream);
  const auto refused = cache.allocate(cache_size, stream);
  expect(!refused && refused.code() == weir::errc::out_of_memory, "there is no room for the cache");

  std::puts("\n2. It is enough for one after the other");
  // Contents go to host memory that is pinned before anybody waits for it.
  memory.reserve_backup(states_size).value();
  const auto gone = memory.suspend(states.tag()).value();
  std::printf("   %s\n", to_string(gone).c_str());
  expect(gone.released == states_size && gone.saved == states_size, "the states are on the host");
  cache.allocate(cache_size, stream).value();
  const auto replay = capture_generation(weights, cache, stream);
  void* const where = states.block();

  unsigned char round = 0;
  for (; round < 3; ++round) {
    std::printf("   round %d\n", round + 1);
    generate(replay, weights, cache, stream);
    expect(is_full_of(cache.block(), round, weights_size, stream),
           "text was generated with the weights of the last step");
    // The cache is worthless once the weights change.
    const auto lost =
        memory.suspend(cache.tag(), {.contents = weir::suspended_contents::discard}).value();
    expect(lost.released == cache_size && lost.saved == 0_B, "the cache is gone");
    int steps = 0;
    const auto back =
        memory.resume(states.tag(), {.progress = [&](weir::bytes, weir::bytes) { ++steps; }})
            .value();
    expect(back.restored == states_size && steps == 4, "the states came back, in four chunks");

    void* const activations = memory.allocate(64_MiB, stream);  // what the cache had
    fill(activations, 1, 64_MiB, stream);
    const auto expected = static_cast<unsigned char>(100 + round);
    expect(is_full_of(states.block(), expected, states_size, stream), "as they were");
    fill(weights.block(), static_cast<unsigned char>(round + 1), weights_size, stream);
    fill(states.block(), static_cast<unsigned char>(expected + 1), states_size, stream);
    memory.deallocate(activations, stream);

    static_cast<void>(memory.suspend(states.tag()).value());  // waits for the work above
    static_cast<void>(memory.resume(cache.tag()).value());    // what is cached makes room
  }
  expect(memory.stats().reserved.peak <= card, "never more than the card has");

  std::puts("\n3. What is not needed any more does not come back");
  states.free(stream);  // while it is away
  expect(memory.resume(states.tag()).value() == weir::resume_outcome{}, "freed on the host");
  expect(states.block() == where, "its address had not changed in all that time");
  if (replay != nullptr) {
    const weir::context_scope bound{gpu};
    stream.synchronize().value();
    check(call::graph_exec_destroy, bound.driver().graph_exec_destroy(replay)).value();
  }
  weights.free(stream);
  cache.free(stream);
  expect(memory.trim_backup().value() == states_size, "and the host has its memory back");

  std::printf("\n%s\n", unexpected == 0 ? "All as it should be." : "Something is wrong.");
  return unexpected == 0 ? 0 : 1;
} catch (const std::exception& found) {
  std::fprintf(stderr, "%s\n", found.what());
  return 1;
}
