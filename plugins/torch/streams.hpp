// SPDX-License-Identifier: Apache-2.0
// torch's streams as weir's: each identified once, looked up in nanoseconds afterwards.
#pragma once

#include <c10/cuda/CUDAStream.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "pools.hpp"
#include "used_streams.hpp"
#include "weir/base/ids.hpp"
#include "weir/device/device.hpp"
#include "weir/device/stream.hpp"

namespace weir_torch {

/// The streams of one device.
///
/// torch's own streams are never destroyed, so their references are kept for good, with their ids:
/// looking one up costs a comparison for a thread that stays on its stream, and a load otherwise,
/// by torch's id or by handle. External streams (torch.cuda.ExternalStream) can be destroyed and
/// their handles reused, so they are identified every time.
///
/// append_used() names those that somebody may queue work on to weir, also if they never request
/// memory.
///
/// A stream must be identified before a capture takes it in, because the driver's query invalidates
/// the capture: identify_all() does that for all of torch's streams before a capture begins. Any
/// thread; never destroyed.
class stream_table {
 public:
  stream_table(c10::DeviceIndex index, weir::device gpu, used_streams& used)
      : index_{index}, device_{gpu}, used_{used} {}
  stream_table(const stream_table&) = delete;
  stream_table& operator=(const stream_table&) = delete;

  /// The stream; `scratch` holds it where it is not kept.
  [[nodiscard]] const weir::stream_ref& look_up(c10::cuda::CUDAStream stream,
                                                std::optional<weir::stream_ref>& scratch) {
    if (last_.table == this && last_.id == stream.id()) [[likely]]
      return *last_.ref;
    return find(stream, scratch);
  }
  /// The same for a bare handle.
  [[nodiscard]] const weir::stream_ref& look_up(cudaStream_t handle,
                                                std::optional<weir::stream_ref>& scratch) {
    if (last_.table == this && last_.handle == handle) [[likely]]
      return *last_.ref;
    return find(handle, scratch);
  }
  /// Identifies torch's streams and `current`, as far as they exist and are not being captured;
  /// what is known of `current` then.
  pool_table::origin identify_all(c10::cuda::CUDAStream current);

  /// Appends the default stream and those of torch's that were handed out, as far as they can be
  /// identified now; the others follow with a later call. A weir::stream_source: an allocator calls
  /// it with its lock held.
  void append_used(std::vector<weir::stream_ref>& streams) noexcept;
  /// Marks a stream as used by torch's id of it, if it is one of torch's own.
  static void mark_used(used_streams& used, std::int64_t id) noexcept {
    if (!is_own(id)) return;
    const int priority = priority_of(id);
    if (priority >= 0 && priority < used_streams::max_priorities) used.mark(priority, index_of(id));
  }

  /// A stream that was identified before.
  [[nodiscard]] std::optional<weir::stream_ref> with_id(weir::stream_id id) const;
  /// As torch writes it: null for the default stream, and for one that is not known.
  [[nodiscard]] cudaStream_t handle_of(weir::stream_id id) const;

 private:
  /// Odd ids below this are torch's own streams, 0 is the default stream, even ones are handles.
  static constexpr std::int64_t own_ids = 1024;
  static bool is_own(std::int64_t id) noexcept { return id >= 0 && id < own_ids && (id & 1) != 0; }
  // Of torch's own streams: c10/cuda/CUDAStream.cpp, "StreamId assignment".
  static std::int64_t own_id(int priority, int index) noexcept {
    return (index << 5) | ((priority + 1) << 1) | 1;
  }
  static int priority_of(std::int64_t id) noexcept { return static_cast<int>((id >> 1) & 15) - 1; }
  static int index_of(std::int64_t id) noexcept { return static_cast<int>((id >> 5) & 31); }

  // The slow path: not the stream that the thread looked up last.
  [[nodiscard]] const weir::stream_ref& find(c10::cuda::CUDAStream stream,
                                             std::optional<weir::stream_ref>& scratch);
  [[nodiscard]] const weir::stream_ref& find(cudaStream_t handle,
                                             std::optional<weir::stream_ref>& scratch);

  /// Identifies one of torch's own streams and keeps it; null while that is forbidden or fails.
  const weir::stream_ref* identify_own(std::int64_t id, cudaStream_t handle);
  const weir::stream_ref* store(const weir::stream_ref& identified);
  /// Identifies torch's own streams, as far as they exist and are not being captured. False: all of
  /// them were identified before.
  bool identify_all_own();
  /// How many priorities torch has streams of.
  [[nodiscard]] static int count_priorities();
  /// Null until torch has created its streams.
  [[nodiscard]] cudaStream_t own_handle(std::int64_t id) const;
  void probe_used(int priorities);

  /// The stream that a thread looked up last, of torch's own: neither its id nor its handle is ever
  /// another stream's.
  struct last_stream {
    const void* table;
    std::int64_t id;
    cudaStream_t handle;
    const weir::stream_ref* ref;
  };
  // In the static block of thread-local memory: reached without a call.
  [[gnu::tls_model("initial-exec")]] static inline thread_local constinit last_stream last_{};

  struct own_stream {
    std::int64_t id;
    const weir::stream_ref* ref;
  };

  const c10::DeviceIndex index_;
  const weir::device device_;
  used_streams& used_;
  std::atomic<int> priorities_{0};  // 0: not counted yet
  std::array<std::atomic<const weir::stream_ref*>, own_ids> own_by_id_{};
  mutable std::mutex mutex_;
  std::deque<weir::stream_ref> refs_;  // addresses stay
  std::unordered_map<std::uint64_t, const weir::stream_ref*> refs_by_id_;
  std::unordered_map<cudaStream_t, own_stream> own_by_handle_;
  std::atomic<bool> all_identified_{false};
};

}  // namespace weir_torch
