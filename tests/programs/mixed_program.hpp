// SPDX-License-Identifier: Apache-2.0
// A random program that mixes everything weir offers, used as it should be.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "captures.hpp"
#include "faults.hpp"
#include "graphs.hpp"
#include "heaps.hpp"
#include "lanes.hpp"
#include "live_blocks.hpp"
#include "other_calls.hpp"
#include "pool_suppliers.hpp"
#include "suspension.hpp"
#include "unified_memory.hpp"
#include "world.hpp"

namespace weir::programs_test {

/// Runs on threads that take turns: run() says which thread it is on. The same seed makes the same
/// calls. Everything that goes wrong is recorded in the world.
class mixed_program {
 public:
  explicit mixed_program(world& in);
  ~mixed_program();
  mixed_program(const mixed_program&) = delete;
  mixed_program& operator=(const mixed_program&) = delete;

  void run(std::uint64_t steps, std::size_t thread);
  /// Ends the captures that this thread must end.
  void end_captures(std::size_t thread);
  /// Frees and closes everything, and checks that nothing is left.
  void finish(std::size_t thread);

 private:
  void step();
  void rare_step();
  void check(bool always);
  void add_pools();
  void change_pools();
  [[nodiscard]] heap_supplier& any_heap();
  [[nodiscard]] supplier& any_supplier();

  world& world_;
  faults faults_;
  lanes lanes_;
  live_blocks blocks_;
  graphs graphs_;
  captures captures_;
  suspension suspension_;
  other_calls other_calls_;
  unified_memory unified_;
  std::vector<std::unique_ptr<heap_supplier>> heaps_;
  std::vector<std::unique_ptr<pool_supplier>> pools_;
  std::uint64_t target_ = 0;
  std::uint64_t pool_numbers_ = 0;
};

}  // namespace weir::programs_test
