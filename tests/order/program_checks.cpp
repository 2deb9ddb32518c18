// SPDX-License-Identifier: Apache-2.0
// The allocator's statistics, snapshots and metadata against the program's own model of them.
#include "program.hpp"

namespace weir::order_test {

void program::check() {
  if (fixture_.failure()->occurred()) return;
  if (mailbox_ != nullptr) {  // others change the numbers meanwhile
    if (steps_ % 64 == 0) fixture_.check_invariants();
    return;
  }
  const std::size_t captured = capturing_ ? capturing_->blocks.size() : 0;
  const memory_stats now = fixture_.check_invariants();
  fixture_.expect(now.blocks.current == live_.size() + captured, "blocks is not what is live");
  fixture_.expect(now.requested.current == bytes{live_bytes_}, "requested is not what is live");
  if (steps_ % 16 == 0) check_metadata();
}

void program::check_metadata() {
  caching_allocator& memory = fixture_.memory();
  std::map<weir::tag, bytes> by_tag;
  for (const tracked_block& each : live_) by_tag[each.tag] += bytes{each.size};
  if (capturing_)
    for (const tracked_block& each : capturing_->blocks) by_tag[each.tag] += bytes{each.size};
  for (const tag_stats& each : memory.stats_by_tag())
    fixture_.expect(each.stats.requested.current == by_tag[each.tag], "a tag's requested is wrong");
  if (steps_ % 64 != 0) return;

  fixture_.check_heap();
  const allocator_snapshot snapshot = memory.snapshot();
  bytes requested;
  bytes reserved;
  std::size_t blocks = 0;
  for (const pool_snapshot& pool : snapshot.pools) {
    requested += pool.stats.requested.current;
    reserved += pool.stats.reserved.current;
    for (const block_info& each : pool.blocks) {
      if (each.state != block_state::live) continue;
      ++blocks;
      fixture_.expect(extents_.contains(each.address),
                      "the snapshot shows a block that is not live");
    }
  }
  fixture_.expect(requested == snapshot.stats.requested.current,
                  "pools do not add up to requested");
  fixture_.expect(reserved == snapshot.stats.reserved.current, "pools do not add up to reserved");
  fixture_.expect(blocks == extents_.size(), "the snapshot misses a live block");
}

void program::finish(std::size_t thread) {
  const context_scope bound{fixture_.gpu()};
  streams_.enter_thread(thread);
  callback_.reset();
  if (fixture_.failure()->occurred()) {
    // Nothing can be believed any more; what the driver holds goes with its machine.
    for (graph& each : graphs_) static_cast<void>(fixture_.cuda().graph_exec_destroy(each.exec));
    graphs_.clear();
    pools_.clear();
    capturing_.reset();
    return;
  }
  if (capturing_) end_capture();
  for (int attempts = 0; !live_.empty() && attempts < 10'000; ++attempts) {
    if (fixture_.failure()->occurred()) return;
    free_some(live_.size());
  }
  fixture_.expect(live_.empty(), "a block could not be freed");
  while (!graphs_.empty()) drop_graph(graphs_.size() - 1);
  pools_.clear();
}

}  // namespace weir::order_test
