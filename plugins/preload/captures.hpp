// SPDX-License-Identifier: Apache-2.0
// The stream captures of the process.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "weir/driver/types.hpp"

namespace weir_preload {

/// The captures of one context. Any thread; shared by `captures` and the context's heap.
class context_captures {
 public:
  /// While the lock is held, no capture begins or ends in the context. Hold it around calls that
  /// invalidate captures, never while waiting for work.
  [[nodiscard]] std::shared_lock<std::shared_mutex> hold() { return std::shared_lock{gate_}; }
  /// Whether a capture is under way; call it with the lock.
  [[nodiscard]] bool any() const noexcept { return count_ != 0; }

 private:
  friend class captures;

  std::shared_mutex gate_;
  int count_ = 0;  // changed with the gate held exclusively
};

/// Which streams are being captured, as far as the replaced functions see it.
///
/// A capture is known from before it begins until it ends: with cuStreamEndCapture, with its
/// stream, with its context, or, on a per-thread default stream, with its thread. Contexts share no
/// lock that is held during a driver call: work of one context may wait for a thread that begins a
/// capture in another. Owned by the process; any thread.
class captures {
 public:
  using CUcontext = weir::driver::CUcontext;
  using CUstream = weir::driver::CUstream;
  /// Called before the first capture of a context begins (true) and after the last has ended, while
  /// no other begins or ends there.
  using listener = std::function<void(CUcontext context, bool any)>;

  explicit captures(listener changed) : changed_{std::move(changed)} {}

  /// The captures of a context; what is returned stays valid.
  [[nodiscard]] std::shared_ptr<context_captures> of(CUcontext context);

  /// Before a capture begins, and if it did not begin after all.
  void begins(CUcontext context);
  void did_not_begin(CUcontext context) noexcept;
  /// It has begun. False: the stream was being captured already.
  [[nodiscard]] bool add(CUcontext context, CUstream stream);
  /// The capture of the stream is over, if there was one.
  void end(CUstream stream) noexcept;
  /// All captures of the context are over.
  void end_context(CUcontext context) noexcept;
  /// The calling thread ends: captures of its per-thread default streams are over.
  void end_thread() noexcept;

 private:
  using key = std::pair<CUstream, std::uint64_t>;  // with the thread, of its own default stream

  void change(CUcontext context, int difference);

  const listener changed_;
  std::mutex mutex_;  // of what follows; never held while a gate is taken
  std::map<CUcontext, std::shared_ptr<context_captures>> contexts_;
  std::map<key, CUcontext> captured_;
};

}  // namespace weir_preload
