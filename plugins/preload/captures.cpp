// SPDX-License-Identifier: Apache-2.0
// Stream captures from their beginning to their end.
#include "captures.hpp"

#include <pthread.h>

namespace weir_preload {

namespace {

std::uint64_t this_thread() noexcept { return static_cast<std::uint64_t>(pthread_self()); }

std::pair<weir::driver::CUstream, std::uint64_t> key_of(weir::driver::CUstream stream) noexcept {
  return {stream, stream == weir::driver::per_thread_stream() ? this_thread() : 0};
}

}  // namespace

std::shared_ptr<context_captures> captures::of(CUcontext context) {
  const std::lock_guard lock{mutex_};
  auto& entry = contexts_[context];
  if (entry == nullptr) entry = std::make_shared<context_captures>();
  return entry;
}

void captures::change(CUcontext context, int difference) {
  const auto here = of(context);
  const std::unique_lock alone{here->gate_};
  const int before = here->count_;
  here->count_ += difference;
  if ((before == 0) != (here->count_ == 0)) changed_(context, here->count_ != 0);
}

void captures::begins(CUcontext context) { change(context, 1); }

void captures::did_not_begin(CUcontext context) noexcept try { change(context, -1); } catch (...) {
  // Without host memory the context stays in the state for captures, which is always correct.
}

bool captures::add(CUcontext context, CUstream stream) {
  const std::lock_guard lock{mutex_};
  return captured_.emplace(key_of(stream), context).second;
}

void captures::end(CUstream stream) noexcept {
  CUcontext context = nullptr;
  {
    const std::lock_guard lock{mutex_};
    const auto entry = captured_.find(key_of(stream));
    if (entry == captured_.end()) return;
    context = entry->second;
    captured_.erase(entry);
  }
  did_not_begin(context);
}

void captures::end_context(CUcontext context) noexcept {
  int count = 0;
  {
    const std::lock_guard lock{mutex_};
    count = static_cast<int>(
        std::erase_if(captured_, [&](const auto& each) { return each.second == context; }));
    if (count == 0) return;
  }
  for (; count > 0; --count) did_not_begin(context);
}

void captures::end_thread() noexcept {
  const std::uint64_t thread = this_thread();
  for (;;) {
    CUcontext context = nullptr;
    {
      const std::lock_guard lock{mutex_};
      auto entry = captured_.begin();
      while (entry != captured_.end() && entry->first.second != thread) ++entry;
      if (entry == captured_.end()) return;
      context = entry->second;
      captured_.erase(entry);
    }
    did_not_begin(context);
  }
}

}  // namespace weir_preload
