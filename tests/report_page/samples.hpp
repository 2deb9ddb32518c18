// SPDX-License-Identifier: Apache-2.0
// Recordings made up for tests of the report: a training run of any length, and odd ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "weir/trace/trace.hpp"

namespace weir::report_test {

/// Writes recordings event by event; each is a microsecond after the one before.
class recording_writer {
 public:
  recording_writer();

  void allocate(std::uint64_t address, std::uint64_t size, std::uint32_t stream = 0,
                std::uint16_t tag = 0, std::uint32_t stack = 0);
  void deallocate(std::uint64_t address);
  trace_event& add(trace_kind kind);
  void marker(std::string text);

  recording out;

 private:
  std::uint64_t time_ = 0;
};

/// Steps of a training run with weights, activations, temporaries and caches on two streams, with
/// stacks, tags, markers and reservations, on addresses of a simple allocator that fragments. The
/// last request fails. About `events` events; the same every time.
[[nodiscard]] recording training_run(std::size_t events);

/// One by name: "training", "empty", "one", "untagged", "damaged", "hostile", "unplaced".
[[nodiscard]] recording sample_named(const std::string& name, std::size_t events);

/// What no page may take for markup.
inline const std::string hostile_text =
    "</script><img src=x onerror=\"document.title='hacked'\"><b>&amp;\xff\" '";

}  // namespace weir::report_test
