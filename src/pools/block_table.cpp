// SPDX-License-Identifier: Apache-2.0
// Finding blocks by address, and saying what is wrong with an address.
#include "pools/block_table.hpp"

#include <utility>

namespace weir { inline namespace v0 { namespace pools {

block& block_table::add() {
  const std::uint64_t key = next_key();
  block& fresh = blocks_.try_emplace(key).first->second;
  fresh.key = key;
  fresh.state = block_state::releasing;
  return fresh;
}

void block_table::place(block& placed, std::uint64_t address) noexcept {
  placed.address = address;
  set_key(placed, address);
}

void block_table::set_key(block& moved, std::uint64_t key) noexcept {
  // As many as before: the table does not grow.
  auto node = blocks_.extract(moved.key);
  node.key() = moved.key = key;
  blocks_.insert(std::move(node));
}

result<block*> block_table::find_live(const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  const auto entry = blocks_.find(address);
  if (entry == blocks_.end()) return why_not_live(address);
  if (entry->second.state != block_state::live) return observe::double_free(accused(entry->second));
  return &entry->second;
}

error block_table::why_not_live(std::uint64_t address) const {
  for (const auto& [start, each] : blocks_) {
    if (each.state == block_state::releasing) continue;
    if (address < each.base || address - each.base >= each.size) continue;
    return each.state == block_state::live ? observe::foreign_pointer(address, accused(each))
                                           : observe::double_free(address, accused(each));
  }
  return observe::foreign_pointer(address, "pool");
}

observe::accused_block block_table::accused(const block& told) const {
  const bool is_live = told.state == block_state::live;
  return {.address = told.address,
          .size = bytes{told.requested},
          .tag = told.tag,
          .stream = streams_.id(is_live ? told.stream : told.freed_on),
          .life = {}};
}

block* block_table::find_stream_bound(std::uint64_t order) noexcept {
  for (auto& [key, each] : blocks_) {
    const bool is_bound = each.state == block_state::pending ||
                          (each.state == block_state::cached && !each.is_quiescent());
    if (is_bound && each.order == order) return &each;
  }
  return nullptr;
}

std::vector<observe::accused_block> block_table::live_blocks() const {
  std::vector<observe::accused_block> live;
  for (const auto& [key, each] : blocks_)
    if (each.state == block_state::live) live.push_back(accused(each));
  return live;
}

}}}  // namespace weir::v0::pools
