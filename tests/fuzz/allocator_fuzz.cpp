// Any bytes as a program over the caching allocator: its books stay right and no stream meets
// another's memory, whatever the driver refuses.
#include <cstddef>
#include <cstdint>
#include <memory>

#include "allocator_program.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // What a machine remembers of streams and events that are gone grows slowly.
  constexpr int most_runs = 4000;
  static std::unique_ptr<weir::fuzz::world> at;
  static int runs = 0;
  if (at == nullptr || ++runs % most_runs == 0) {
    at.reset();
    at = std::make_unique<weir::fuzz::world>();
  }
  weir::fuzz::program program{*at, weir::fuzz::script{{data, size}}};
  const bool clean = program.run();
  if (!clean) runs = most_runs - 1;
  return 0;
}
