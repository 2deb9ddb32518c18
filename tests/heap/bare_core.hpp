// SPDX-License-Identifier: Apache-2.0
// The shared state of a heap, without the heap.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <thread>

#include "heap/heap_core.hpp"

namespace weir::testing_support {

struct bare_core final : heap::heap_core {
  bare_core(weir::device device, const allocator_options& options) : heap_core{device, options} {
    if (!blocks_.prepare(1)) std::abort();  // record 0, which stands for none
  }
};

/// What a question of another thread answers that waited for the lock while the heap was closed.
template <class Question>
auto behind_the_end(bare_core& core, const Question& question) {
  std::atomic<bool> begun{false};
  std::future<decltype(question())> answer;
  {
    const detail::mutex_lock lock{core.mutex_};
    answer = std::async(std::launch::async, [&] {
      begun = true;
      return question();
    });
    while (!begun) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds{20});  // it waits now
    core.closed_ = true;
  }
  auto told = answer.get();
  core.closed_ = false;
  return told;
}

}  // namespace weir::testing_support
