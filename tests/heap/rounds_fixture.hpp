// SPDX-License-Identifier: Apache-2.0
// A program whose requests repeat, and whose kernels say when memory came too early.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "heap/heap_fixture.hpp"

namespace weir::testing_support {

/// Tables that are freed at the start of each round and taken back between activations of which
/// every other one goes first.
class repeating_heap_test : public heap_test {
 protected:
  static bytes size_of(std::size_t activation) {
    return 1_MiB + bytes{(activation * activation * 37 % 61 + 3) * 131'072};
  }
  /// Blocks of null: an allocation that failed on purpose.
  void play(caching_allocator& memory, const stream& on, const stream& other, std::size_t count) {
    const auto ask = [&](bytes size) {
      auto given = memory.try_allocate(size, on);
      if (!given) return std::pair{static_cast<void*>(nullptr), size};
      if (writes_) write(on, *given, size);
      return std::pair{*given, size};
    };
    const auto free = [&](const std::pair<void*, bytes>& block) {
      if (block.first != nullptr && !memory.try_deallocate(block.first, on))
        not_freed_.push_back(block.first);
    };
    for (const auto& each : std::exchange(tables_, {})) free(each);
    std::vector<std::pair<void*, bytes>> live;
    for (std::size_t i = 0; i < count; ++i) {
      live.push_back(ask(size_of(i)));
      if (!writes_ || i % 5 != 0) continue;
      // Read on another stream, behind a wait, and said so.
      if (!memory.record_stream(live.back().first, other)) continue;
      event written = event::create(gpu()).value();
      if (written.record(on) && other.wait(written))
        write(other, live.back().first, live.back().second);
    }
    for (std::size_t i = 0; i < count; i += 2) free(live[i]);
    for (std::size_t i = 1; i < count; i += 2) {
      if (i == count / 2 / 2 * 2 + 1) tables_ = {ask(96_MiB), ask(38_MiB)};
      free(live[i]);
    }
  }
  void end(caching_allocator& memory, const stream& on) {
    for (const auto& each : std::exchange(tables_, {}))
      if (each.first != nullptr) not_freed_.push_back(each.first);
    for (void* const each : std::exchange(not_freed_, {})) memory.deallocate(each, on);
  }

  bool writes_ = true;
  std::vector<std::pair<void*, bytes>> tables_;
  std::vector<void*> not_freed_;
};

}  // namespace weir::testing_support
