// torch's streams as weir's: each asked once for its number, found again in nanoseconds.
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

#include "handed_out.hpp"
#include "weir/base/ids.hpp"
#include "weir/device/device.hpp"
#include "weir/device/stream.hpp"

namespace weir_torch {

/// The streams of one device.
///
/// torch's own streams are never destroyed, so their references are kept for good, with their
/// numbers: looking one up costs a comparison for a thread that stays on its stream, and a load
/// otherwise, by torch's number or by handle. Streams that came from outside
/// (torch.cuda.ExternalStream) can be destroyed and their handles used again, so they are asked
/// every time.
///
/// tell() tells weir of those that somebody may queue work on, also if they never ask for memory.
///
/// A stream must be asked before a capture takes it in, because the driver answers the question by
/// breaking the capture: identify_all() asks all of torch's streams before a capture begins. Any
/// thread; never destroyed.
class stream_table {
 public:
  stream_table(c10::DeviceIndex index, weir::device where, handed_out& handed)
      : index_{index}, device_{where}, handed_{handed} {}
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
  /// Asks torch's streams, and the one named, for their numbers, as far as they exist and are not
  /// being captured.
  void identify_all(c10::cuda::CUDAStream also);

  /// Appends the default stream and those of torch's that were handed out, as far as they can be
  /// asked now; the others come with a later call. A weir::stream_source: an allocator calls it
  /// with its lock held.
  void tell(std::vector<weir::stream_ref>& known) noexcept;
  /// Notes a stream by torch's number of it, if it is one of torch's own.
  static void note(handed_out& handed, std::int64_t id) noexcept {
    if (!is_kept(id)) return;
    const int priority = priority_of(id);
    if (priority >= 0 && priority < handed_out::most_priorities)
      handed.note(priority, index_in_turn(id));
  }

  /// A stream that was asked before.
  [[nodiscard]] std::optional<weir::stream_ref> with_id(weir::stream_id id) const;
  /// As torch writes it: null for the default stream, and for one that was never met.
  [[nodiscard]] cudaStream_t handle_of(weir::stream_id id) const;

 private:
  /// Odd ids below this are torch's own streams, 0 is the default stream, even ones are handles.
  static constexpr std::int64_t own_ids = 1024;
  static bool is_kept(std::int64_t id) noexcept { return id >= 0 && id < own_ids && (id & 1) != 0; }
  // Of torch's own streams: c10/cuda/CUDAStream.cpp, "StreamId assignment".
  static std::int64_t own_id(int priority, int index) noexcept {
    return (index << 5) | ((priority + 1) << 1) | 1;
  }
  static int priority_of(std::int64_t id) noexcept { return static_cast<int>((id >> 1) & 15) - 1; }
  static int index_in_turn(std::int64_t id) noexcept { return static_cast<int>((id >> 5) & 31); }

  // What a thread did not look up last.
  [[nodiscard]] const weir::stream_ref& find(c10::cuda::CUDAStream stream,
                                             std::optional<weir::stream_ref>& scratch);
  [[nodiscard]] const weir::stream_ref& find(cudaStream_t handle,
                                             std::optional<weir::stream_ref>& scratch);

  /// Asks and keeps; null while that is forbidden or fails.
  const weir::stream_ref* keep(std::int64_t id, cudaStream_t handle);
  const weir::stream_ref* remember(const weir::stream_ref& identified);
  /// Asks torch's streams for their numbers, as far as they exist and are not being captured.
  /// False: all of them have answered before.
  bool ask_all();
  /// How many priorities torch has streams of.
  [[nodiscard]] static int count_priorities();
  /// Null until torch has made its streams.
  [[nodiscard]] cudaStream_t own_handle(std::int64_t id) const;
  void look_at_turns(int priorities);

  /// What a thread looked up last, of torch's own streams: neither its number nor its handle is
  /// ever another stream's.
  struct last_stream {
    const void* table;
    std::int64_t id;
    cudaStream_t handle;
    const weir::stream_ref* ref;
  };
  // In the static block of thread-local memory: found without a call.
  [[gnu::tls_model("initial-exec")]] static inline thread_local constinit last_stream last_{};

  struct own_stream {
    std::int64_t id;
    const weir::stream_ref* ref;
  };

  const c10::DeviceIndex index_;
  const weir::device device_;
  handed_out& handed_;
  std::atomic<int> priorities_{0};  // 0: not counted yet
  std::array<std::atomic<const weir::stream_ref*>, own_ids> kept_{};
  mutable std::mutex mutex_;
  std::deque<weir::stream_ref> refs_;  // addresses stay
  std::unordered_map<std::uint64_t, const weir::stream_ref*> by_id_;
  std::unordered_map<cudaStream_t, own_stream> own_by_handle_;
  std::atomic<bool> asked_all_{false};
};

}  // namespace weir_torch
