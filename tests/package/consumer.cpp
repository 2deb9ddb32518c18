// SPDX-License-Identifier: Apache-2.0
// A program outside weir that uses it: a simulated machine, its driver table, and a thrown error.
// It includes all of weir, so that a header which is not installed is missed.
#include <cstdio>

#include "weir/weir.hpp"

int main() {
  auto machine = weir::sim::machine::create();
  if (!machine) {
    std::fprintf(stderr, "%s\n", machine.error().message().c_str());
    return 1;
  }
  const weir::driver::table& cuda = (*machine)->driver();
  int devices = 0;
  if (cuda.init(0) != weir::driver::CUDA_SUCCESS) return 2;
  if (cuda.device_get_count(&devices) != weir::driver::CUDA_SUCCESS || devices != 1) return 3;

  // Thrown in the library, caught here by its type: what hidden visibility breaks first.
  try {
    weir::raise({{.code = weir::errc::out_of_memory}});
  } catch (const weir::out_of_memory& caught) {
    std::printf("consumer: one simulated device, caught \"%s\"\n", caught.what());
    return 0;
  } catch (...) {
  }
  return 4;
}
