// SPDX-License-Identifier: Apache-2.0
// A bug that nobody sees, found in three ways.
//
// A kernel without a bound check: its grid has whole groups of 256 threads, so it writes 1,280
// numbers into room for 1,030, and the rest goes into whatever lies behind. Here that is the
// weights. Run with heap_debug the same program says so at the free, or stops at the kernel. On a
// GPU the last act ends the process's context, so all of it runs on a simulated machine; there the
// kernel's work is a function of the host.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/device/stream.hpp"
#include "weir/sim/machine.hpp"

using namespace weir::literals;

constexpr std::size_t count = 1030;

/// A simulated GPU, an allocator on it, and what was reported.
struct bench {
  bench(weir::debug_checks checks, bool watch_blocks) {
    weir::sim::machine_options options;
    options.watch_blocks = watch_blocks;  // the simulator's own eyes, which a GPU has not
    machine = weir::sim::machine::create(options).value();
    runtime = weir::runtime::open_simulated(machine).value();
    gpu.emplace(runtime->device(weir::device_id{0}).value());
    memory = weir::caching_allocator::create(*gpu, {.debug = checks}).value();
    stream = std::make_unique<weir::stream>(weir::stream::create(*gpu).value());
  }
  std::shared_ptr<weir::sim::machine> machine;
  std::shared_ptr<weir::runtime> runtime;
  std::optional<weir::device> gpu;
  std::optional<weir::caching_allocator> memory;
  std::unique_ptr<weir::stream> stream;
};

/// Room for so many numbers, under a name.
float* numbers(bench& on, const char* name) {
  const weir::tag_scope as{weir::tag::named(name).value()};
  return static_cast<float*>(on.memory->allocate(weir::bytes{count * sizeof(float)}, *on.stream));
}

/// The kernel: thread i writes numbers[i], for every i there is a thread for.
void fill(bench& on, float* into, float value) {
  const std::size_t threads = (count + 255) / 256 * 256;
  const auto address = reinterpret_cast<weir::device_address>(into);
  on.machine
      ->launch(on.stream->handle(), "kernel fill",
               {weir::sim::writes(address, threads * sizeof(float))},
               [=] {
                 for (std::size_t i = 0; i < threads; ++i) into[i] = value;
               })
      .value();
}

/// What the program does. The weights are 1 before and should be 1 afterwards.
float step(bench& on) {
  float* const activations = numbers(on, "activations");
  float* const weights = numbers(on, "weights");
  fill(on, weights, 1);
  on.stream->synchronize().value();
  fill(on, activations, 0);
  const auto done = on.stream->synchronize();
  float first = 0;
  if (done) first = weights[0];  // addresses of a simulated device are the host's
  if (!done) std::printf("   the device stopped: %s\n", done.error().message().c_str());
  on.memory->deallocate(activations, *on.stream);
  on.memory->deallocate(weights, *on.stream);
  return first;
}

int main() try {
  std::vector<weir::error> reported;
  weir::set_error_handler([&](const weir::error& found) { reported.push_back(found); });
  int unexpected = 0;
  const auto expect = [&](bool holds) { unexpected += holds ? 0 : 1; };

  std::puts("1. As it is: nothing is said.");
  {
    bench on{weir::debug_checks::off, false};
    const float first = step(on);
    std::printf("   the first weight is %g, and should be 1\n", first);
    expect(first == 0 && reported.empty());
  }

  std::puts("2. heap_debug=red_zones: the free of the block that was left says so.");
  {
    bench on{weir::debug_checks::red_zones, false};
    const float first = step(on);
    std::printf("   the first weight is %g\n", first);
    for (const weir::error& each : reported) std::printf("   %s\n", each.message().c_str());
    expect(first == 1 && reported.size() == 2 &&
           reported.front().code() == weir::errc::memory_damaged);
    reported.clear();
  }

  std::puts("3. heap_debug=guard_pages: the kernel stops where it leaves the block.");
  {
    bench on{weir::debug_checks::guard_pages, false};
    float* const activations = numbers(on, "activations");
    fill(on, activations, 0);
    const auto done = on.stream->synchronize();
    expect(!done);
    if (!done) std::printf("   %s\n", done.error().message().c_str());
    // compute-sanitizer and cuda-gdb name the address that could not be written.
    void* const fault = reinterpret_cast<char*>(activations) + 4608;
    const auto described = on.memory->describe_address(fault);
    expect(described.has_value());
    if (described) std::printf("   %s\n", described->c_str());
    static_cast<void>(on.memory->close());  // of a device that stopped
    reported.clear();
  }

  std::puts("4. And the simulator, which knows every block, without any of it:");
  {
    bench on{weir::debug_checks::off, true};
    static_cast<void>(step(on));
    const auto hazards = on.machine->hazards();
    expect(!hazards.empty());
    if (!hazards.empty()) std::printf("%s\n", hazards.front().message().c_str());
  }
  return unexpected == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
} catch (const std::exception& failed) {
  std::printf("failed: %s\n", failed.what());
  return EXIT_FAILURE;
}
