// SPDX-License-Identifier: Apache-2.0
// Captures: which pool serves a stream while its work becomes a graph.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "heap/private_pools.hpp"
#include "weir/device/stream.hpp"

namespace weir { inline namespace v0 { namespace heap {

/// What graph_memory shares: the claim that captures of a stream get their memory from a pool.
struct graph_claim {
  graph_claim(std::weak_ptr<central_heap> of, pool_id memory, stream_id captured) noexcept
      : owner{std::move(of)}, pool{memory}, stream{captured} {}
  ~graph_claim();
  graph_claim(const graph_claim&) = delete;
  graph_claim& operator=(const graph_claim&) = delete;

  std::weak_ptr<central_heap> owner;
  pool_id pool;
  stream_id stream;
};

/// How a graph's end becomes known. The driver runs the destructor of a graph's user object on a
/// thread of its own, where nothing may be locked or asked: it leaves a mark here, and the
/// allocator's next slow path looks.
struct graph_ties {
  std::atomic<std::uint64_t> ended{0};
};

/// The captures of an allocator: those that were declared and those that were found.
///
/// Owned by the central heap.
class capture_registry {
 public:
  capture_registry() : ties_{std::make_shared<graph_ties>()} {}

  struct declared {
    stream_id stream{};
    pool_id pool{};
    capture_id capture{};  // 0 until a request shows it
  };
  /// A graph that holds a pool.
  struct tie {
    pool_id pool{};
    std::shared_ptr<std::atomic<bool>> ended;
  };

  /// Host memory for the next declare(), which then cannot fail.
  void prepare_declare() { declared_.reserve(declared_.size() + 1); }
  void declare(stream_id stream, pool_id pool) { declared_.push_back({stream, pool, {}}); }
  /// False: it was over already.
  bool end(pool_id pool) noexcept;
  [[nodiscard]] bool any_declared() const noexcept { return !declared_.empty(); }
  [[nodiscard]] bool is_declared(stream_id stream) const noexcept;

  /// The pool of a stream that is being captured; 0 if the capture is new and nobody declared it.
  [[nodiscard]] pool_id pool_of(stream_id stream, capture_id capture) noexcept;
  /// The pool serves the capture from now on, though nobody declared it.
  void adopt(capture_id capture, pool_id pool) { found_.insert_or_assign(capture, pool); }
  void forget(pool_id pool) noexcept;

  /// Ties the pool to a graph; whoever holds the tie is told when the graph and all made of it are
  /// gone. not_supported: the driver has no user objects.
  [[nodiscard]] result<void> tie_to(driver::CUgraph graph, pool_id pool,
                                    const context_scope& bound);
  [[nodiscard]] bool any_tied() const noexcept { return !tied_.empty(); }
  /// How many graphs hold the pool that are not known to have ended.
  [[nodiscard]] std::uint32_t ties_of(pool_id pool) const noexcept;
  /// Whether the pool's free memory stays its own until somebody who holds it lets go. One that
  /// graphs alone hold may go without any call, with the last replay of one that was destroyed.
  [[nodiscard]] bool keeps_memory(const pool_state& pool) const noexcept {
    return pool.of_graphs() && pool.holders > ties_of(pool.id);
  }
  /// Whether a graph ended since the last sweep().
  [[nodiscard]] bool ended() const noexcept {
    return ties_->ended.load(std::memory_order_relaxed) != swept_;
  }
  /// Pools whose graphs ended, one entry a graph.
  [[nodiscard]] std::vector<pool_id> sweep();

 private:
  std::vector<declared> declared_;
  std::unordered_map<capture_id, pool_id> found_;
  std::shared_ptr<graph_ties> ties_;
  std::uint64_t swept_ = 0;
  std::vector<tie> tied_;
};

/// The graph that a stream is being captured into.
[[nodiscard]] result<driver::CUgraph> graph_of(const stream_ref& stream,
                                               const context_scope& bound);

}}}  // namespace weir::v0::heap
