// SPDX-License-Identifier: Apache-2.0
// Everything the replaced functions share: heaps, blocks, limits, captures, recordings.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "blocks.hpp"
#include "captures.hpp"
#include "device_heap.hpp"
#include "pool_devices.hpp"
#include "real_driver.hpp"
#include "recordings.hpp"
#include "settings.hpp"

namespace weir_preload {

/// The process as the replaced functions see it. Made at the first of their calls and never
/// destroyed: calls may come until the very end. Any thread.
///
/// Nothing here is used in a forked child, to which CUDA does not belong either: there every call
/// is passed on.
class process {
 public:
  /// Null: nothing is to be done but to pass calls on, because there is no driver, the process was
  /// forked, or the settings cannot be read (which is said).
  [[nodiscard]] static process* get() noexcept;
  /// For tests: forgets everything. No other thread may be inside.
  static void restart() noexcept;

  explicit process(const real_driver& driver);

  [[nodiscard]] const real_driver& driver() const noexcept { return driver_; }
  [[nodiscard]] const table& calls() const noexcept { return driver_.calls; }
  [[nodiscard]] block_table& blocks() noexcept { return blocks_; }
  [[nodiscard]] recordings& traces() noexcept { return traces_; }
  /// The process ends, and with it what is recorded.
  void end_recordings() noexcept;

  // --- Heaps ------------------------------------------------------------------------------------

  /// The heap of the calling thread's context, made at first sight. Null: the driver serves it.
  [[nodiscard]] std::shared_ptr<device_heap> heap_of_current();
  /// The heap of a stream's context; the default streams are of the current one.
  [[nodiscard]] std::shared_ptr<device_heap> heap_of(CUstream stream);
  /// The heap that a device has already.
  [[nodiscard]] std::shared_ptr<device_heap> existing_heap(int device);
  [[nodiscard]] std::shared_ptr<device_heap> heap_with_pool(CUmemoryPool default_pool);
  /// Whether a heap has a block there, freed or not, that the driver would take for memory of its
  /// own: a classic segment begins there. The driver must not free it. Walks over freed blocks.
  [[nodiscard]] bool is_segment_of_weir(CUdeviceptr address) noexcept;
  /// The device whose default pool it is, whether or not it has a heap.
  [[nodiscard]] std::optional<int> device_with_pool(CUmemoryPool default_pool) const noexcept;
  [[nodiscard]] pool_devices& known_pools() noexcept { return pools_; }
  /// The device whose memory a request for `stream` gets: of `pool`, of the stream's context where
  /// none is named, or of the current context.
  [[nodiscard]] std::optional<int> device_of_request(CUstream stream, CUmemoryPool pool) noexcept;
  /// The device's context is about to end: its memory goes back.
  void drop_heap(int device);
  /// A context has ended, and with it its captures and the memory that the driver served there.
  void forget_context(CUcontext context);
  /// The primary context of a device; null: it is not active.
  [[nodiscard]] CUcontext primary_context(int device) const noexcept;
  /// The program's own count of the device's primary context, after this change of it.
  int count_context(int device, int change);
  /// Whether weir holds the primary context and the program does not.
  [[nodiscard]] bool holds_context_alone(int device);

  // --- Limits -----------------------------------------------------------------------------------

  /// The most that the program may have of a device; none: no limit.
  [[nodiscard]] std::optional<std::uint64_t> limit_of(int device);
  /// Whether the driver may be asked for so much: then it counts.
  [[nodiscard]] bool admit(int device, std::size_t bytes);
  void leave(int device, std::size_t bytes);
  [[nodiscard]] std::uint64_t passed_on(int device);

  // --- Streams and peers ------------------------------------------------------------------------

  [[nodiscard]] captures& known_captures() noexcept { return captures_; }
  void forget_stream(CUstream stream);
  /// `reader` reaches what `owner` has, now and later.
  void add_peer(int owner, int reader);

  /// The context of the calling thread, or of a stream; null: there is none.
  [[nodiscard]] CUcontext current_context() const noexcept;
  [[nodiscard]] CUcontext context_of(CUstream stream) const noexcept;
  /// The device of the calling thread's context; none: it has no context.
  [[nodiscard]] std::optional<int> current_device() const noexcept;
  [[nodiscard]] std::optional<int> device_of(CUcontext context) const noexcept;
  /// As recordings number streams.
  [[nodiscard]] std::uint64_t stream_number(CUstream stream) const noexcept;

 private:
  [[nodiscard]] std::shared_ptr<device_heap> heap_of(CUcontext context);
  [[nodiscard]] std::shared_ptr<device_heap> existing_heap(CUcontext context);
  [[nodiscard]] std::vector<std::shared_ptr<device_heap>> all_heaps();
  [[nodiscard]] std::shared_ptr<device_heap> make_heap(CUcontext context);
  void add_heap(const std::shared_ptr<device_heap>& heap);
  [[nodiscard]] bool make_room(int device, std::uint64_t rest);
  void fit_heap(int device, std::uint64_t rest);

  const real_driver& driver_;
  block_table blocks_;
  recordings traces_;

  std::mutex making_;  // held while a heap is made or dropped
  std::mutex mutex_;   // of what follows; never held around a driver call
  std::map<int, std::shared_ptr<device_heap>> heaps_;
  std::set<int> unusable_;  // devices that weir cannot serve
  std::map<int, int> context_counts_;
  std::set<std::pair<int, int>> peers_;

  captures captures_;
  pool_devices pools_;

  std::mutex limits_;  // held while the limit of a heap is changed
  std::map<int, std::uint64_t> passed_on_;
};

/// Whether cuMemAlloc and its kin, or cuMemAllocAsync and its kin, are weir's to serve.
[[nodiscard]] bool serves_plain() noexcept;
[[nodiscard]] bool serves_ordered() noexcept;

/// Enters what the heap gave in the table, and answers for it; none: the driver is to give it.
[[nodiscard]] std::optional<CUresult> hand_out(process& here,
                                               const std::shared_ptr<device_heap>& heap,
                                               const weir::result<void*>& block, std::size_t bytes,
                                               served_as kind, CUdeviceptr* address);

/// The driver's answer to the free of memory of its own, which was taken from the table and left
/// the trace before: another thread may get the address as soon as it is free.
[[nodiscard]] CUresult settle_freed(process& here, served_block block, CUresult answer) noexcept;

/// Asks the driver for memory and keeps count of it: against the limit, in the table and in the
/// trace. Where the driver has none, what weir caches goes back to it first. Plain memory, which
/// names no stream, ends with the current context; memory of pools with the device's primary one.
/// `pool` is null where none was named.
template <class Request>
[[nodiscard]] CUresult pass_counted(CUdeviceptr* address, std::size_t bytes, CUstream stream,
                                    CUmemoryPool pool, const Request& request) noexcept {
  process* const here = process::get();
  const auto device = here == nullptr ? std::nullopt : here->device_of_request(stream, pool);
  if (!device || address == nullptr || bytes == 0) return request();
  try {
    if (!here->admit(*device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult answer = request();
    const auto heap = here->existing_heap(*device);
    if (answer == CUDA_ERROR_OUT_OF_MEMORY && heap != nullptr && heap->release_cached() != 0)
      answer = request();
    if (answer != CUDA_SUCCESS) {
      here->leave(*device, bytes);
      return answer;
    }
    const served_block block{
        .address = *address,
        .bytes = bytes,
        .kind = served_as::driver,
        .device = *device,
        .context = stream == nullptr ? here->current_context() : here->primary_context(*device),
        .stream = here->stream_number(stream)};
    try {
      here->blocks().insert(block);
    } catch (...) {
      here->leave(*device, bytes);  // it is the program's all the same, only not counted
      return answer;
    }
    here->traces().allocated(block, here->driver());
    return answer;
  } catch (...) {
    return request();
  }
}

}  // namespace weir_preload
