// SPDX-License-Identifier: Apache-2.0
// Error texts for invalid frees and for leaks, and the description of an address.
#include "observe/misuse.hpp"

#include <string>
#include <utility>
#include <vector>

#include "base/hexadecimal.hpp"
#include "heap/inspector.hpp"

namespace weir { inline namespace v0 { namespace heap {
namespace {

observe::accused_block accused(const block_info& block, std::string life) {
  return {.address = block.address,
          .size = block.size,
          .tag = block.tag,
          .stream = block.stream,
          .life = std::move(life)};
}

}  // namespace

std::string inspector::life_of(std::uint64_t address) const {
  return core_.history_ != nullptr ? core_.history_->life_of(address) : std::string{};
}

error inspector::freed_already(const block& block) const {
  core_.mutex_.assert_held();
  return observe::double_free({.address = block.address,
                               .size = bytes{block.size()},
                               .tag = core_.accounts_.tag_of(block.account),
                               .stream = core_.order_.id(block.stream),
                               .life = life_of(block.address)});
}

error inspector::why_not_live(std::uint64_t address) {
  core_.mutex_.assert_held();
  // What went back to a store is no block any more; its bytes lie in something free.
  for (const auto& each : core_.pools_) {
    if (each->memory == nullptr) continue;
    if (const auto near = each->memory->block_near(address)) {
      const observe::accused_block block = accused_near(*near);
      const bool is_freed = !near->is_live && address - block.address < near->requested;
      if (is_freed && address == block.address) return observe::double_free(block);
      return is_freed ? observe::double_free(address, block)
                      : observe::foreign_pointer(address, block);
    }
    pool_snapshot snapshot;
    each->memory->describe(snapshot);
    for (const block_info& piece : snapshot.blocks) {
      if (address < piece.address || address - piece.address >= piece.size.count()) continue;
      const bool is_free = piece.state == block_state::free ||
                           piece.state == block_state::stream_bound ||
                           piece.state == block_state::hole;
      if (is_free) return observe::double_free(address, accused(piece, life_of(address)));
      block_info owner = piece;
      if (const block_index index = core_.table_.find(piece.address); index != no_block)
        owner.tag = core_.accounts_.tag_of(core_.blocks_[index].account);
      return observe::foreign_pointer(address, accused(owner, life_of(piece.address)));
    }
  }
  return observe::foreign_pointer(address, "allocator");
}

observe::accused_block inspector::accused_near(const placement::nearest_block& block) const {
  return {.address = block.address, .size = bytes{block.requested}, .life = life_of(block.address)};
}

result<std::string> inspector::describe_address(const void* pointer) try {
  WEIR_TRY(core_.usable());
  const auto address = reinterpret_cast<std::uint64_t>(pointer);
  const detail::mutex_lock lock{core_.mutex_};
  WEIR_TRY(core_.usable());
  const auto text = [&](const observe::accused_block& block, bool is_live, bool is_away = false) {
    return detail::hexadecimal(address) + " is " + observe::position_of(address, block) +
           (is_live ? " a live block" : " a freed block") +
           (is_away ? " whose memory is suspended: " : ": ") + observe::words_of(block) +
           block.life;
  };
  for (const auto& each : core_.pools_) {
    if (each->memory == nullptr) continue;
    if (const auto near = each->memory->block_near(address))
      return text(accused_near(*near), near->is_live);
    const block& block = core_.blocks_[each->memory->block_over(address)];
    if (block.is_live()) {
      return text({.address = block.address,
                   .size = bytes{block.size() - block.out.waste},
                   .tag = core_.accounts_.tag_of(block.account),
                   .stream = core_.order_.id(block.stream),
                   .life = life_of(block.address)},
                  true, each->memory->is_suspended());
    }
  }
  if (core_.placement_.outside != nullptr) {
    std::string page = core_.placement_.outside->describe(address);
    if (!page.empty()) return page;
  }
  if (core_.history_ != nullptr) {
    const auto last = core_.history_->block_over(address);
    if (last.size != 0)
      return text(
          {.address = last.address, .size = bytes{last.size}, .life = life_of(last.address)},
          !last.is_freed);
  }
  return observe::foreign_pointer(address, "allocator");
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

error inspector::leak() {
  core_.mutex_.assert_held();
  const ledger& total = core_.accounts_.total();
  std::vector<observe::accused_block> blocks;
  for (const auto& each : core_.pools_) {
    if (each->memory == nullptr) continue;
    pool_snapshot snapshot;
    describe(*each, snapshot);
    for (const block_info& piece : snapshot.blocks)
      if (piece.state == block_state::live)
        blocks.push_back(accused(piece, life_of(piece.address)));
  }
  return observe::leak("an allocator was closed", total.blocks.current,
                       bytes{total.allocated.current}, std::move(blocks));
}

}}}  // namespace weir::v0::heap
