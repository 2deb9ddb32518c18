// SPDX-License-Identifier: Apache-2.0
// The live blocks of a mixed program, each with a pattern that kernels write and verify.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "faults.hpp"
#include "lanes.hpp"
#include "supplier.hpp"

namespace weir::programs_test {

using block_number = std::uint64_t;

struct live_block {
  supplier* from = nullptr;
  void* memory = nullptr;
  std::uint64_t size = 0;
  std::uint64_t content = 0;  // seed of the pattern; 0: unspecified contents
  std::size_t group = no_group;
  lane_index home = no_lane;
  access_history accesses{};
  std::vector<lane_index> recorded{};
  int graphs = 0;  // captured graphs that use it and do not own it: it must stay
};

/// Allocates, uses and frees blocks in a correct order, so that every hazard and every wrong byte
/// is weir's fault. All uses are declared: a use on another stream is recorded, or the stream of
/// the free waits for it. One thread at a time.
class live_blocks {
 public:
  live_blocks(world& in, faults& failing, lanes& streams)
      : world_{in}, faults_{failing}, lanes_{streams} {}

  [[nodiscard]] std::size_t count() const { return blocks_.size(); }
  [[nodiscard]] std::uint64_t total() const { return total_; }
  [[nodiscard]] live_block& at(block_number number) { return blocks_.at(number); }
  [[nodiscard]] bool contains(block_number number) const { return blocks_.contains(number); }
  [[nodiscard]] bool uses(const supplier& of) const;
  [[nodiscard]] block_number any();
  [[nodiscard]] std::uint64_t next_content() { return ++contents_; }

  void allocate(supplier& from);
  /// Adds a block that exists already.
  block_number add(live_block block);
  /// A kernel writes or verifies the block on a lane. False: it cannot now.
  bool touch(block_number number, lane_index on, bool writes);
  void touch_any();
  void record_any();
  /// False: the block cannot be freed now, or the call failed.
  bool free(block_number number);
  void free_some(std::size_t count);
  void free_all(const supplier& of);
  /// Blocks of the supplier, or of one group of it, lose their contents.
  void forget_contents(const supplier& of, std::size_t group = no_group);
  /// A use of all blocks of a group that later uses must come behind.
  void add_access(const supplier& of, std::size_t group, lane_index on, std::uint64_t operation);

  /// Peers reach every block of an allocator that let them in, unless it is suspended.
  void check_peers();
  /// Called with the uses of every block that was freed.
  void on_free(std::function<void(block_number, const access_history&)> listener) {
    on_free_ = std::move(listener);
  }

  /// Queues a kernel; also in a capture. No checks.
  void launch(lane_index on, const live_block& block, bool writes, std::uint64_t content);
  [[nodiscard]] std::uint64_t random_size();
  [[nodiscard]] stream_ref name_of(lane_index lane);

 private:
  bool prepare_free(live_block& block, lane_index on);
  [[nodiscard]] bool record(live_block& block, lane_index on);

  world& world_;
  faults& faults_;
  lanes& lanes_;
  std::map<block_number, live_block> blocks_;
  std::function<void(block_number, const access_history&)> on_free_;
  block_number numbers_ = 0;
  std::uint64_t contents_ = 0;
  std::uint64_t total_ = 0;
};

}  // namespace weir::programs_test
