// What serves a replay's requests: the interface, and one implementation a kind of policy.
#pragma once

#include <cstdint>
#include <memory>

#include "replay/replay.hpp"
#include "replay/script.hpp"
#include "weir/device/device.hpp"
#include "weir/device/stream.hpp"
#include "weir/observe/stats.hpp"

namespace weir::inline v0::replay {

/// An allocator under replay. Calls come one at a time, from the threads of the recording. What
/// goes wrong, but for a lack of memory, is thrown as weir::failure.
class server {
 public:
  virtual ~server() = default;
  /// Null if there is no memory, or for zero bytes.
  [[nodiscard]] virtual void* allocate(const step& now, const stream_ref& on) = 0;
  virtual void free(void* block, const stream_ref& on) = 0;
  virtual void record_stream(void* block, const stream_ref& on) = 0;

  /// The most that was reserved since the last such question.
  [[nodiscard]] virtual std::uint64_t take_reserved_peak() = 0;
  [[nodiscard]] virtual memory_stats stats() const { return {}; }
  /// Gives everything back; all blocks are freed.
  virtual void close() = 0;
};

/// weir's caching allocator, for every policy but driver_pool.
[[nodiscard]] result<std::unique_ptr<server>> serve_by_heap(device gpu, const settings& how);
/// One memory pool of the driver that gives nothing back by itself, as PyTorch's and RMM's
/// asynchronous back ends use it. It has no record_stream: whoever uses it makes the freeing stream
/// wait, which is what a recorded stream becomes here, too.
[[nodiscard]] result<std::unique_ptr<server>> serve_by_driver_pool(device gpu, const settings& how);

}  // namespace weir::inline v0::replay
