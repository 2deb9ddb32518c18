// SPDX-License-Identifier: Apache-2.0
// Any bytes as calls of weir.h: nothing crashes, every failure has a name and leaves no trace.
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "capi_program.hpp"

// Handles and machines live in tables that outlive every input, which libFuzzer takes for leaks to
// look for each time.
extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }  // NOLINT: their name

namespace weir::fuzz {

std::span<const c_function> c_functions() {
  // For std::array, clang nests the deduction of the size no deeper than 256 elements.
  // NOLINTNEXTLINE(modernize-avoid-c-arrays)
  static constexpr c_function all[] = {
#define WEIR_FUNCTION(name) c_function{#name, &any_call<&::name>::make},
#include "weir_functions.inc"
#undef WEIR_FUNCTION
  };
  return all;
}

}  // namespace weir::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  // Never a real machine.
  ::setenv("WEIR_RUNTIME", "sim", 1);
  ::setenv("WEIR_SIM_CAPACITY", "1GiB", 1);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string scratch =
      (std::filesystem::temp_directory_path() / ("weir-fuzz-" + std::to_string(::getpid())))
          .string();
  weir::fuzz::c_program{weir::fuzz::fuzz_input{{data, size}}, scratch}.run();
  ::unlink(scratch.c_str());
  return 0;
}
