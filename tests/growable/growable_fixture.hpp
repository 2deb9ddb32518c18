// SPDX-License-Identifier: Apache-2.0
// A simulated GPU with an allocator and growable memory on it.
#pragma once

#include <cstddef>

#include "heap/graph_fixture.hpp"
#include "weir/growable/growable_memory.hpp"

namespace weir::testing_support {

/// Growable memory in pages of 4 MiB, unless a test says otherwise. Nothing may be left that races,
/// was reported or contradicts itself.
class growable_test : public graph_test {
 protected:
  growable_test() = default;
  /// On a machine whose queues move on by themselves, or with less memory.
  growable_test(sim::progress mode, bytes capacity) {
    sim::machine_options settings;
    settings.devices = {sim::device_spec{.capacity = capacity, .context_overhead = 64_MiB}};
    settings.mode = mode;
    machine = sim::machine::create(settings).value();
    runtime_ = runtime::open_simulated(machine).value();
  }

  [[nodiscard]] static growable_memory reserve_from(const caching_allocator& memory, bytes size,
                                                    bytes page = 4_MiB) {
    return growable_memory::reserve(memory, size, {.page = page}).value();
  }
  [[nodiscard]] static void* at(const growable_memory& memory, bytes offset) {
    return static_cast<std::byte*>(memory.data()) + offset.count();
  }
  /// A kernel that writes these bytes.
  void use(const stream_ref& on, const growable_memory& memory, bytes offset, bytes size) {
    write(on, at(memory, offset), size);
  }
  /// What the driver was asked for that concerns memory.
  [[nodiscard]] std::uint64_t memory_calls() const {
    using driver::call;
    std::uint64_t sum = 0;
    for (const call each :
         {call::mem_create, call::mem_release, call::mem_map, call::mem_unmap, call::mem_set_access,
          call::mem_address_reserve, call::mem_address_free})
      sum += machine->calls(each);
    return sum;
  }
  [[nodiscard]] std::vector<sim::hazard> take_hazards() {
    auto all = machine->hazards();
    machine->clear_hazards();
    return all;
  }
};

}  // namespace weir::testing_support
