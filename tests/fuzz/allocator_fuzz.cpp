// SPDX-License-Identifier: Apache-2.0
// Any bytes as a program over the caching allocator: its metadata stays right and no stream meets
// another's memory, whatever the driver refuses.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "allocator_program.hpp"

// The machine lives on from input to input and remembers, which libFuzzer takes for a leak to look
// for each time, at a thousand times the cost of the input.
extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }  // NOLINT: their name

/// Adds an option in front of the caller's: weighing the corpus by rare features costs ten times as
/// much as running these inputs.
extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  static std::string option = "-entropic=0";
  static std::vector<char*> all{*arguments, *arguments + *count};
  all.insert(all.begin() + 1, option.data());
  all.push_back(nullptr);
  *arguments = all.data();
  ++*count;
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // What a machine remembers of streams and events that are gone grows slowly.
  constexpr int most_runs = 4000;
  static std::unique_ptr<weir::fuzz::fuzz_fixture> fixture;
  static int runs = 0;
  if (fixture == nullptr || ++runs % most_runs == 0) {
    fixture.reset();
    fixture = std::make_unique<weir::fuzz::fuzz_fixture>();
  }
  weir::fuzz::program program{*fixture, weir::fuzz::fuzz_input{{data, size}}};
  const bool clean = program.run();
  if (!clean) runs = most_runs - 1;
  return 0;
}
