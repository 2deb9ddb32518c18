// SPDX-License-Identifier: Apache-2.0
// Blocks told to a tool that watches the process, compute-sanitizer say, by way of NVTX.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "weir/observe/events.hpp"

namespace weir { inline namespace v0 { namespace observe {

/// Tells a tool of the memory of one allocator as its heaps, and of the blocks in it as regions
/// with their tag and size as names, so that the tool knows where a block ends. A tool that refuses
/// a heap is not told of that memory, nor asked again.
///
/// A region ends where the program frees the block; what is queued by then may still use it.
///
/// An observer of one allocator; its mutex is taken last, around calls of the tool. Any thread.
class tool_regions final : public event_sink {
 public:
  /// Null: no tool is attached, or it wants nothing of memory. The first call asks the library that
  /// NVTX_INJECTION64_PATH names; it is asked once in the life of the process.
  [[nodiscard]] static std::unique_ptr<tool_regions> create();
  void on_event(const memory_event& event) noexcept override;

 private:
  struct heap {
    std::uint64_t size = 0;
    void* handle = nullptr;
  };

  void reserved(const memory_event& event);
  void released(const memory_event& event);
  void allocated(const memory_event& event);
  void freed(const memory_event& event);
  /// Null: the tool knows of none there.
  [[nodiscard]] void* heap_around(const memory_event& event) const noexcept;

  std::mutex mutex_;
  std::map<std::uint64_t, heap> heaps_;  // by address
  bool refused_ = false;
};

}}}  // namespace weir::v0::observe
