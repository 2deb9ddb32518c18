// SPDX-License-Identifier: Apache-2.0
// Reuse, inside a capture, of blocks that several of its streams used.
#include "capture_reuse.hpp"

#include <algorithm>

namespace weir_torch {
namespace {

/// A query that failed leaves its error behind for whoever looks next.
bool succeeded(cudaError_t outcome) {
  if (outcome == cudaSuccess) return true;
  static_cast<void>(cudaGetLastError());
  return false;
}

cudaError_t dependencies_of(cudaGraphNode_t node, std::vector<cudaGraphNode_t>& all) {
  std::size_t count = 0;
#if CUDART_VERSION >= 13000
  cudaError_t outcome = cudaGraphNodeGetDependencies(node, nullptr, nullptr, &count);
  if (outcome != cudaSuccess || count == 0) return outcome;
  all.resize(count);
  std::vector<cudaGraphEdgeData> edges(count);
  outcome = cudaGraphNodeGetDependencies(node, all.data(), edges.data(), &count);
#else
  cudaError_t outcome = cudaGraphNodeGetDependencies(node, nullptr, &count);
  if (outcome != cudaSuccess || count == 0) return outcome;
  all.resize(count);
  outcome = cudaGraphNodeGetDependencies(node, all.data(), &count);
#endif
  all.resize(std::min(all.size(), count));
  return outcome;
}

}  // namespace

std::optional<capture_reuse::capture_state> capture_reuse::query(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  capture_state state;
  cudaGraph_t graph = nullptr;
  const cudaGraphNode_t* last = nullptr;
  std::size_t count = 0;
#if CUDART_VERSION >= 13000
  const cudaError_t outcome =
      cudaStreamGetCaptureInfo(stream, &status, &state.id, &graph, &last, nullptr, &count);
#else
  const cudaError_t outcome =
      cudaStreamGetCaptureInfo_v2(stream, &status, &state.id, &graph, &last, &count);
#endif
  if (!succeeded(outcome) || status != cudaStreamCaptureStatusActive) return std::nullopt;
  if (count != 0) state.last.assign(last, last + count);
  return state;
}

bool capture_reuse::add_predecessors(std::vector<cudaGraphNode_t> from, nodes& to) {
  nodes added;  // all or nothing: a node that is known is taken to have its predecessors known
  while (!from.empty()) {
    cudaGraphNode_t const node = from.back();
    from.pop_back();
    if (to.count(node) != 0 || !added.insert(node).second) continue;
    std::vector<cudaGraphNode_t> before;
    if (!succeeded(dependencies_of(node, before))) return false;
    from.insert(from.end(), before.begin(), before.end());
  }
  to.insert(added.begin(), added.end());
  return true;
}

void capture_reuse::on_allocated(const void* block) {
  const std::lock_guard lock{mutex_};
  uses_[block].clear();
  update();
}

void capture_reuse::on_use(const void* block, cudaStream_t stream) {
  const std::lock_guard lock{mutex_};
  if (const auto known = uses_.find(block); known != uses_.end()) known->second.insert(stream);
}

void capture_reuse::on_free(void* block, cudaStream_t own, MempoolId_t pool) {
  const std::lock_guard lock{mutex_};
  const auto known = uses_.find(block);
  if (known == uses_.end()) return;
  std::unordered_set<cudaStream_t> streams = std::move(known->second);
  uses_.erase(known);
  if (!streams.empty()) {
    const auto capture = query(own);
    nodes last_uses;
    if (capture) last_uses.insert(capture->last.begin(), capture->last.end());
    const bool all_captured =
        capture && std::all_of(streams.begin(), streams.end(), [&](cudaStream_t each) {
          const auto other = query(each);
          if (!other || other->id != capture->id) return false;
          last_uses.insert(other->last.begin(), other->last.end());
          return true;
        });
    if (all_captured && !last_uses.empty())
      freed_.push_back({block, own, pool, capture->id, std::move(last_uses)});
  }
  update();
}

std::vector<void*> capture_reuse::take_reusable(cudaStream_t stream) {
  const std::lock_guard lock{mutex_};
  const auto is_of_stream = [&](const freed_block& each) { return each.stream == stream; };
  if (std::none_of(freed_.begin(), freed_.end(), is_of_stream)) return {};
  const auto capture = query(stream);
  if (!capture || capture->last.empty()) return {};
  nodes& behind = behind_[{capture->id, stream}];
  if (!add_predecessors(capture->last, behind)) return {};
  std::vector<void*> reusable;
  const auto is_reusable = [&](const freed_block& each) {
    return is_of_stream(each) && each.capture == capture->id &&
           std::all_of(each.last_uses.begin(), each.last_uses.end(),
                       [&](cudaGraphNode_t node) { return behind.count(node) != 0; });
  };
  for (const freed_block& each : freed_)
    if (is_reusable(each)) reusable.push_back(each.block);
  freed_.erase(std::remove_if(freed_.begin(), freed_.end(), is_reusable), freed_.end());
  update();
  return reusable;
}

void capture_reuse::end(MempoolId_t pool, bool all) {
  const std::lock_guard lock{mutex_};
  // Nodes are the graph's, and another graph's may come to lie at their addresses.
  const auto is_over = [&](const freed_block& each) { return all || each.pool == pool; };
  freed_.erase(std::remove_if(freed_.begin(), freed_.end(), is_over), freed_.end());
  if (all) {
    uses_.clear();
    behind_.clear();
  }
  update();
}

}  // namespace weir_torch
