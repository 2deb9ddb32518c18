// SPDX-License-Identifier: Apache-2.0
// Reuse, inside a capture, of blocks that several of its streams used.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "compat.hpp"

namespace weir_torch {

/// graph_capture_record_stream_reuse: a block that was allocated in a capture, used on further
/// streams of it (record_stream) and freed in it may be reused there, once its stream has been
/// joined with the others behind their last uses. The graph that is being captured tells: a use
/// lies before the nodes that its stream ended in at the free, and what the block's stream captures
/// next lies behind all nodes from which its own last ones follow. No stream and no event is
/// queried. Where anything is in doubt (a stream outside the capture, a query that fails) the block
/// waits for the end of the capture, as it does without the setting.
///
/// Blocks are known between on_allocated() and the end of the last scope, so that all their uses
/// are. Any thread.
class capture_reuse {
 public:
  void on_allocated(const void* block);
  void on_use(const void* block, cudaStream_t stream);
  /// The block, of stream `own` and of that pool, is about to be freed.
  void on_free(void* block, cudaStream_t own, MempoolId_t pool);
  /// Blocks that were freed and that the stream may use again in what it captures from now on.
  [[nodiscard]] std::vector<void*> take_reusable(cudaStream_t stream);
  /// The capture into the pool is over, or all of them are.
  void end(MempoolId_t pool, bool all);

  /// Whether any block is known: whether uses and frees have to be told.
  [[nodiscard]] bool is_active() const noexcept {
    return is_active_.load(std::memory_order_relaxed);
  }

 private:
  using capture_id = unsigned long long;
  using nodes = std::unordered_set<cudaGraphNode_t>;
  /// What a captured stream ends in: its next node will depend on these.
  struct capture_state {
    capture_id id = 0;
    std::vector<cudaGraphNode_t> last;
  };
  struct freed_block {
    void* block;
    cudaStream_t stream;
    MempoolId_t pool;
    capture_id capture;
    nodes last_uses;
  };

  /// None: the stream is not being captured, or the driver does not tell.
  [[nodiscard]] static std::optional<capture_state> query(cudaStream_t stream);
  /// Adds the nodes that come before these, and themselves. False: the driver does not tell.
  [[nodiscard]] static bool add_predecessors(std::vector<cudaGraphNode_t> from, nodes& to);
  void update() noexcept { is_active_ = !uses_.empty() || !freed_.empty(); }

  std::atomic<bool> is_active_{false};
  std::mutex mutex_;
  std::unordered_map<const void*, std::unordered_set<cudaStream_t>> uses_;  // of live blocks
  std::vector<freed_block> freed_;
  // What a stream is behind: events only ever add to it. Ids of captures are not used twice.
  std::map<std::pair<capture_id, cudaStream_t>, nodes> behind_;
};

}  // namespace weir_torch
