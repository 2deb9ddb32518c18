// SPDX-License-Identifier: Apache-2.0
// A program with a race between two streams: what the simulated machine says of it, and of its
// repair.
//
// A producer's kernel writes numbers on one stream. A consumer copies them to the host on another.
// Nothing tells the second stream to wait for the first, so the copy may come too early. On a GPU
// such a program often works, and its tests pass. The simulated machine finds the race every time,
// because it looks at the order that the program asks for and not only at what happened.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "weir/device/event.hpp"
#include "weir/device/runtime.hpp"
#include "weir/device/stream.hpp"
#include "weir/device/virtual_memory.hpp"
#include "weir/sim/machine.hpp"

namespace {

constexpr std::uint32_t answer = 42;
constexpr std::size_t size = 1024 * sizeof answer;

// --- The program under test ----------------------------------------------------------------------

// The producer: a kernel that fills `numbers`. On the simulated machine a kernel is a function of
// the host, together with the memory that it touches.
weir::result<void> launch_producer(weir::sim::machine& machine, const weir::stream& on,
                                   weir::device_address numbers) {
  return machine.launch(on.handle(), "kernel produce", {weir::sim::writes(numbers, size)}, [=] {
    auto* const words = reinterpret_cast<std::uint32_t*>(numbers);
    for (std::size_t i = 0; i < size / sizeof answer; ++i) words[i] = answer;
  });
}

// [pipeline]
// Returns the last number that arrived on the host.
weir::result<std::uint32_t> pipeline(weir::sim::machine& machine, weir::device gpu, bool repaired) {
  const weir::context_scope bound{gpu};
  WEIR_TRY_VALUE(numbers, weir::allocate_plain(bound, weir::bytes{size}));
  void* arrived = nullptr;
  WEIR_TRY(weir::driver::check(weir::driver::call::mem_host_alloc,
                               bound.driver().mem_host_alloc(&arrived, size, 0)));
  std::memset(arrived, 0, size);
  WEIR_TRY_VALUE(producer, weir::stream::create(gpu));
  WEIR_TRY_VALUE(consumer, weir::stream::create(gpu));
  WEIR_TRY_VALUE(produced, weir::event::create(gpu));

  WEIR_TRY(launch_producer(machine, producer, numbers));
  if (repaired) {
    WEIR_TRY(produced.record(producer));  // a mark behind the kernel ...
    WEIR_TRY(consumer.wait(produced));    // ... that the other stream waits for
  }
  WEIR_TRY(weir::driver::check(
      weir::driver::call::memcpy_dtoh_async,
      bound.driver().memcpy_dtoh_async(arrived, numbers, size, consumer.handle())));
  WEIR_TRY(consumer.synchronize());

  std::uint32_t last = 0;
  std::memcpy(&last, static_cast<const std::byte*>(arrived) + size - sizeof last, sizeof last);
  WEIR_TRY(producer.synchronize());
  WEIR_TRY(weir::free_plain(bound, numbers));
  WEIR_TRY(weir::driver::check(weir::driver::call::mem_free_host,
                               bound.driver().mem_free_host(arrived)));
  return last;
}
// [pipeline]

// --- The test ------------------------------------------------------------------------------------

struct outcome {
  int runs = 0;
  int right = 0;       // runs in which the numbers arrived
  int reported = 0;    // runs in which the machine found a hazard
  std::string report;  // of the first hazard
};

// [test]
// Runs the pipeline once a seed: another seed is another order in which the streams get on.
weir::result<outcome> test(bool repaired) {
  outcome all;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    weir::sim::machine_options options;
    options.seed = seed;
    WEIR_TRY_VALUE(machine, weir::sim::machine::create(options));
    WEIR_TRY_VALUE(runtime, weir::runtime::open_simulated(machine));
    WEIR_TRY_VALUE(gpu, runtime->device(weir::device_id{0}));
    WEIR_TRY_VALUE(last, pipeline(*machine, gpu, repaired));

    const std::vector<weir::sim::hazard> hazards = machine->hazards();
    ++all.runs;
    all.right += last == answer ? 1 : 0;
    all.reported += hazards.empty() ? 0 : 1;
    if (!hazards.empty() && all.report.empty()) all.report = hazards.front().message();
  }
  return all;
}
// [test]

void print(const outcome& what) {
  std::printf("     the numbers arrived in  %2d of %d runs\n", what.right, what.runs);
  std::printf("     a hazard was found in   %2d of %d runs\n", what.reported, what.runs);
  if (what.report.empty()) return;
  std::puts("\n   What the machine says of the first:\n");
  std::istringstream lines{what.report};
  for (std::string line; std::getline(lines, line);) std::printf("     %s\n", line.c_str());
}

}  // namespace

int main() {
  std::puts("A kernel writes numbers on one stream; a copy on another brings them to the host.");
  std::puts("Each version runs 20 times on a simulated GPU, each time with another seed.\n");

  std::puts("1. Nothing makes the copy wait for the kernel:");
  const auto racy = test(false);
  if (!racy) {
    std::fprintf(stderr, "%s\n", racy.error().message().c_str());
    return 1;
  }
  print(*racy);

  std::puts("\n2. The copy's stream waits for an event that is recorded behind the kernel:");
  const auto repaired = test(true);
  if (!repaired) {
    std::fprintf(stderr, "%s\n", repaired.error().message().c_str());
    return 1;
  }
  print(*repaired);

  const bool found = racy->reported == racy->runs;
  const bool clean = repaired->reported == 0 && repaired->right == repaired->runs;
  std::printf("\n%s\n", found && clean
                            ? "The race was found in every run, also in those that went well by "
                              "luck; the repair is clean."
                            : "This is not what should have happened.");
  return found && clean ? 0 : 1;
}
